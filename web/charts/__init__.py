"""Charts as SVG, made on the server: numbers in, bytes out. Nothing here knows of requests or rows.

weights   an organ's values as a histogram beside the normal distribution of the same mean and
depth     θ along the depth of a model
scale     θ over the number of parameters: a dot a family, and the lines that were fitted
types     how θ is spread in each type of organ
drawing   a chart out of axes, lines and dots, and its stylesheet
families  a family of models as a tree and as a graph
"""
