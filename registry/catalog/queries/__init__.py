"""Every SELECT, as a named function that takes a session.

blobs         where bytes are, who needs them
models        models by name, their files, parts and placements
organs        organs by digest, with their measurements
search        a query to a page of organs:
  narrow        its terms against what is registered
  bounds        what it says of numbers
  tallies       counts by the roll-up
  ranking       by which index it is answered
  alike         by fingerprints
  spread        how what it finds is spread
model_search  a query to a page of models
words         models by words
relatives     what relatives are found by
reports       what reports are made of: sums and extremes
dissections   what the report on one model is made of
"""
