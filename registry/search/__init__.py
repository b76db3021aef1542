"""Searches of organs, experts and models. It stands on `catalog`.

language    the query language: fields, parser, and queries as values; it loads neither SQLAlchemy nor numpy
facets      the combinations of type, slot, dtype ... with their counts, which are kept in memory
filters     a query resolved to filters: its terms as conditions in SQL, its names looked up
fitting     `fits:`: the organs and models that fit a base
gains       what validated chimeras gained: by organ, by model, and the leaderboard
plan        the index that answers a query
likeness    the matches ranked by likeness, to one organ or to the organs of a base
rows        the pages of organs and experts, in the order of a measure, a gain or a likeness
models      the pages of models
counts      the counts of results by facet
suggestions what may be meant while a query or a name is typed

A search goes one way: `language` -> `filters` -> `plan` -> `rows` or `models`; `counts` counts what they find.
"""
