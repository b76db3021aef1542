"""Reports: the measurements in tables, with explanations for readers who do not know θ.

    words       the explanations in reports, and when a θ is rough
    overview    the report on a whole registry: figures, findings with commands, and all measures
    ranking     the tables over all models: ranking, types, components, ranges, wells
    scale       the scale law, and the families of models behind it
    ingests     the times and sizes of every ingest
    dissection  the report on one model: its contents, what it shares, its relatives, and its measurements
    groups      tables of tensors by type, component and depth, the tensors with extreme θ, and quartiles
    formats     reports as text, Markdown and CSV

`groups` and `formats` are pure: `groups` also serves files that are not registered. The other numbers come from
`registry.catalog.queries.reports`.
"""
