"""Every SELECT, as a named function that takes a session.

blobs         where bytes are, who needs them
models        models by name, their files, parts and placements
organs        organs by digest, with their measurements
search        a query to a page of organs:
  narrow        its terms against what is registered
  bases         what fits a model, as a condition
  fitting       what fits it, counted
  bounds        what it says of numbers
  rollup        the counts by facet and θ, in memory
  tallies       counts by the roll-up
  planning      by which index it is answered
  ranking       its rows, by that plan
  alike         by fingerprints
  spread        how what it finds is spread
model_search  a query to a page of models
words         models by words
placements    the organs of a model, in pages
lookup        which of many digests are here
totals        the registry in figures
removed       what is left of models that were removed, by name
downloads     what downloads ask: versions, names of organs
relatives     what relatives are found by
reports       what reports are made of: sums and extremes
composing     what composing asks of models, organs and computations
candidates    well-known bases, and what models have in one cell of a base
chimeras      chimeras in pages, by their locks; what was computed of an organ
verdicts      what runtimes said
dissections   what the report on one model is made of
jobs          what waits, runs and has ended
"""
