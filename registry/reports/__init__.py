"""Reports: the measurements in tables, with explanations for readers who do not know θ.

    words       the explanations in reports, and when a θ is rough
    overview    the report on a whole registry
    dissection  the report on one model: its contents, what it shares, and its measurements
    formats     reports as text, Markdown and CSV
    sections    the sections of reports: types, ranking, scale law, relatives, single tensors
    statistics  quartiles, least squares, families of models

`statistics` and `formats` are pure. The numbers come from `registry.catalog.queries.reports`.
"""
