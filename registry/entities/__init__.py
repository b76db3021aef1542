"""Entities: the values that the program exchanges as JSON, each defined once.

A query returns an entity, a page and a CSV file show it, the command line and the API encode it as JSON, and the
client of a remote registry decodes and checks it. The schemas of the OpenAPI document are generated from the same
classes.

    base            what all entities have in common: types with their limits, and pages of lists
    problem         problem documents (RFC 9457)
    comparison      comparison: two models side by side
    extraction      an adapter that was extracted from a fine-tune, and how much of its change it keeps
    finding         findings: refusals, warnings and remarks about a composition
    lineage         lineage: the edges between a model and others, and families of models
    plan            recipes as JSON, and plans
    validation      verdicts and quick looks: the results of running chimeras
    sizes           sizes of a model: files with mixes of tensor types, and how far each is from the source
    importance      an importance matrix that was collected from a model
    memory          how much memory the runtime takes for a model, by its own count
    gain            gains: what validated chimeras gained, by text, and the leaderboard of grafts
    chimera         chimeras: recipe, lineage, screen and verdicts
    account         contributors: accounts, tokens, quotas, and the public data of a contributor
    published       a model after it was published: its versions, its chimeras, and what its removal deletes
    submission      uploads, and submissions
    report          reports: sections of numbers with texts that explain them
    organ           tensors: at their places, by digest with all measurements
    model           models: as lines of lists, and with their tensors
    job             jobs: work that takes longer than a request
    fleet           fleets: plans of work for many processes, and how far they are
    server          the registry and its server: figures, the root of the API, the event log, and health
"""
