"""Composing: from words to a chimera. A recipe becomes a plan, the plan a lock, the lock a file.

    recipe         the recipe: what a person wants composed, in names and words
    steps          a recipe as short texts, one a step, as an address has them
    compatibility  whether organs of one model work in another
    prediction     predict what a composition costs before it is run, from measurements alone
    lock           the lock: what a chimera is, as a small canonical document
    plan           the plan: every tensor of the result, where its bytes come from
    api            composing from Python: build a recipe step by step, plan it, and make the chimera
    build          make a plan or a lock
    cost           what planning costs, estimated before it is spent
    findings       the codes of warnings, and what texts and lists of findings have in common
    fitting        whether organs and low-rank adapters (LoRA) fit a base
    licences       licences: SPDX expressions
    metadata       the header of a chimera where it differs from its base's
    models         parents: models as composing sees them, from the registry or from files
    planner        from a recipe to a plan
    recipe_io      reading and writing recipes as text: YAML, or JSON where the text begins with `{`
    document       reading a document as a tree of plain values
    chimeras       registered chimeras: in pages, one with all that is known about it

A *base* receives, a *donor* gives; a *graft* is one replacement; a *chimera* is what comes of it.
"""
