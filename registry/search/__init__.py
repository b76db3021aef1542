"""Searches of organs, experts and models. It stands on `catalog`.

language        the query language: fields, parser, and queries as values; it loads neither SQLAlchemy nor numpy
plan            a query resolved to filters, and the index that answers it
rows            the pages of organs and of models, and the counts of organs by facet
experts         pages of single experts
model_facets    the counts of models by facet
fitting         `fits:`: the organs and models that fit a base
gains           what validated chimeras gained: by organ, by model, and the leaderboard
"""
