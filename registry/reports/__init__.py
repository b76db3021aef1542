"""Reports: the measurements in tables, with explanations for readers who do not know θ.

    words       the explanations in reports, and when a θ is rough
    overview    the report on a whole registry: figures, findings with commands, and all measures
    dissection  the report on one model: its contents, what it shares, and its measurements
    formats     reports as text, Markdown and CSV
    groups      tables of tensors by type, component and depth, and the tensors with extreme θ
    sections    the sections that read the catalog: types, ranking, scale law, relatives, wells, anomalies
    ingests     the times and sizes of every ingest
    statistics  quartiles, least squares

`statistics`, `groups` and `formats` are pure: `groups` also serves files that are not registered. The other numbers
come from `registry.catalog.queries.reports`.
"""
