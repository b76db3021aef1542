"""Charts as SVG, drawn on the server from numbers. These modules use no requests and no database rows.

plots       charts with axes: the weights of an organ, θ along the depth, θ against size, θ by type
evolutions  the trials of an evolution
families    a family of models as a tree
network     a model as a network
picture     pictures to send around
"""
