"""Reports: what was measured, in tables that explain themselves to somebody who has never heard of θ.

    words       what the numbers of a report mean, in words for a first reader
    overview    the report on a whole registry
    dissection  the report on one model: what it is made of, what it shares, how its organs read
    formats     write reports: cells as text, tables as Markdown that names cannot change
    sections    the sections that reports are made of
    statistics  quartiles, a line through points by least squares

`spread`, `line`, `families` and `caution` are pure. The numbers come from `reports` and `dissections` in
`registry.catalog.queries`.
"""
