"""Rows as plain values: the one shape that page, JSON and command show.

models   a model as a line of a list, and with all that is shown of it
organs   an organ with its measurements and places
values   the type of what is shown
text     sizes, counts and degrees as people read them
"""
