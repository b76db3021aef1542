"""Reports: what was measured, in tables that explain themselves to somebody who has never heard of θ.

    document     the shape of a report: sections with their words; nothing in it knows how it is shown
    words        what the numbers mean and do not mean, said once
    spread       mean, deviation and quartiles of a set of angles
    line         a straight line through points, and how far it can be trusted
    families     models that share weights count as one
    caution      what to be careful with in the θ of a single tensor
    overview     the report on a whole registry
    ranking      its section on the order of models
    scale        its section on θ against size
    dissection   the report on one model
    kin          its sections on the relatives of that model
    types        the section on the types of tensors, of either
    organs       sections on single tensors: highest, lowest, odd ones
    markdown     a report as Markdown that is readable in raw form
    sheet        one section as CSV, harmless for spreadsheets

`spread`, `line`, `families` and `caution` are pure. The numbers come from `reports` and `dissections` in
`registry.catalog.queries`.
"""
