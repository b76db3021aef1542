"""Searches of organs, experts and models. It stands on `catalog`.

language    the query language: fields, parser, and queries as values; it loads neither SQLAlchemy nor numpy
facets      the combinations of type, slot, dtype ... with their counts, which are kept in memory
terms       terms of a query as conditions in SQL, and the look-up of its names
fitting     `fits:`: the organs and models that fit a base
gains       what validated chimeras gained: by organ, by model, and the leaderboard
plan        a query resolved to filters, and the index that answers it
rows        the pages of organs and experts, in the order of a measure or by likeness
models      the pages of models
counts      the counts of results by facet

A search goes one way: `language` -> `plan` -> `rows` or `models`; `counts` counts what they find.
"""
