"""Rows as plain values: the one shape that page, JSON and command show.

models          models as plain values
registered      a registered model as a value for scripts
organs          organs as plain values
search          searches as plain values
lookup          many organs at once as plain values: by digest, and those of a model in pages
meanings        what each reading means, for whoever meets it for the first time
depth           θ along the depth of a model as plain values
values          the shape of everything that is shown
text            numbers as people read them, for those who show rows
"""
