"""Charts as SVG, made on the server: numbers in, bytes out. Nothing here knows requests or rows.

plots     the weights of an organ, θ along the depth, θ against size, θ by type
families  a family of models as a tree and as a graph
drawing   axes, lines, dots and the stylesheet of a chart
"""
