"""Charts as SVG, made on the server: numbers in, bytes out. Nothing here knows of requests or rows.

sampling  the values of an organ's sample, out of its blob
weights   them as a histogram, with the bell curve beside it
depth     θ along the blocks of a model, a line a type
scale     θ over the number of parameters, with the fitted lines
types     how θ is spread in each type of organ
kin       a family of models as a tree
kingraph  the same as boxes and lines for the page of families
drawing   axes, lines and dots by pygal; the same bytes every time
dress     the stylesheet inside every SVG, and what is taken out of what pygal draws
"""
