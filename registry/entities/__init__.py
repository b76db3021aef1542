"""Entities: the values that cross a border, each defined once.

A query returns an entity, a page and a CSV file show it, the command line and the API encode it as JSON, and the
client of a remote registry decodes and checks it. The schemas of the OpenAPI document are generated from the same
classes.

    base            what all entities have in common: types with their limits, and pages of lists
    problem         problem documents (RFC 9457)
    comparison      comparison: two models side by side
    finding         findings: what is worth knowing about a composition
    lineage         lineage: the edges between a model and others, and families of models
    plan            recipes as JSON, and plans
    verdict         verdicts: what a runtime showed of a chimera, beside its base
    chimera         chimeras: how each came to be, what was predicted, what a runtime showed
    account         contributors: their accounts, tokens and quotas, and what everybody may see of them
    administration  what administrators see
    published       a model after it was published
    submission      uploads, and submissions
    report          reports: sections of numbers with the words that explain them
    organ           organs: at their places, by digest with all measurements
    model           models: as lines of lists, and with their organs
    job             jobs: work that takes longer than a request
    about           the registry as a whole: its version, its figures, and where to continue
"""
