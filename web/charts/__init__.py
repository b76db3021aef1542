"""Charts as SVG, made on the server: numbers in, bytes out. Nothing here knows of requests or rows.

sampling  the values of a sample out of a stored blob
weights   an organ's values as a histogram
depth     θ along the depth of a model
scale     θ over the number of parameters: a dot a family, and the lines that were fitted
types     how θ is spread in each type of organ
kin       a family of models as a tree and as a graph
drawing   a chart out of axes, lines and dots, and its stylesheet
"""
