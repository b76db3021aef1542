"""Rows as plain values: the one shape that page, JSON and command show.

models      models as lines of a list, a model with all that is shown of it, the registry in figures
registered  a model as a value for scripts
organs      an organ with its measurements and places
search      a page of organs, with counts
lookup      which digests are here
meanings    what each reading means, in words
comparison  two models side by side, and what became of each organ
relatives   the lineage of a model
kinship     families of models
depth       θ along the blocks of a model
facts       what a header says, as short texts
card        a model as a README
changes     findings, and changed organs in short
plan        what a recipe comes to: findings, sizes, and every organ that changes
chimera     a chimera: how it came to be, what was predicted and shown, how to use it
chimeras    chimeras as lines of a list, one by its lock
compatibility  whether the organs of one model fit into another
composing   what is shown while a chimera is put together: cells, candidates, adapters, models that fit
script      a recipe as lines of Python
usage       the lines that run a chimera, or write its file
jobs        what was asked for and takes long
values      the type of what is shown
text        sizes, counts and degrees as people read them
"""
