"""Rows as plain values: the one shape that page, JSON and command show.

models      models as lines of a list, a model with all that is shown of it, the registry in figures
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
values      the type of what is shown
text        sizes, counts and degrees as people read them
"""
