"""Charts as SVG, drawn on the server from numbers. These modules use no requests and no database rows.

plots     the weights of an organ, θ along the depth, θ against size, θ by type
families  a family of models as a tree and as a graph
drawing   axes, lines, dots and the stylesheet of a chart
"""
