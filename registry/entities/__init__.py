"""Entities: the values that cross a border, each defined once.

A query returns an entity, a page and a CSV file show it, the command line and the API encode it as JSON, and the
client of a remote registry decodes and checks it. The schemas of the OpenAPI document are generated from the same
classes.

    base            what all entities have in common: types with their limits, and pages of lists
    problem         problem documents (RFC 9457)
    comparison      comparison: two models side by side
    finding         findings: what is worth knowing about a composition, or about a model and its relatives
    lineage         lineage: the edges between a model and others, and families of models
    recipe          recipes as JSON, member by member
    plan            plans: what a recipe makes, organ by organ, what it costs, and what was made of it
    verdict         verdicts: what a runtime showed of a chimera
    chimera         chimeras: how each came to be, what was predicted, what a runtime showed
    account         contributors: their accounts, tokens and quotas, and what everybody may see of them
    administration  what administrators see: the registry in numbers, and what the removal of a model takes away
    published       a model after it was published: what its owner may change, its versions, and the chimeras made of it
    submission      submissions: models on their way into the catalog, from what was sent to what became of it
    upload          uploads: bytes on their way in
    report          reports: sections of numbers with the words that explain them
    organ           organs: at their places, by digest with all measurements, and counts of what a search finds
    model           models as lines of lists
    event           the event log: who did what
    job             jobs: work that takes longer than a request
"""
