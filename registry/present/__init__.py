"""Rows as plain values: the one shape that page, JSON and command show.

models      models as plain values
registered  a registered model as a value for scripts
depth       θ along the depth of a model as plain values
values      the shape of everything that is shown
"""
