"""Compose chimeras: a recipe becomes a plan, the plan a lock, the lock a file.

    recipe         the recipe: the composition that a person wants, by names, with the rules for its values, as a file
    steps          a recipe as URL parameters, one for each step
    compatibility  whether organs of one model work in another
    differences    differences of two headers that matter for organs of one model in the other
    adapters       whether low-rank adapters (LoRA) fit a base, and the products that they add
    extraction     low-rank adapters extracted from the difference of two models
    candidates     the organs of a plan by cell, and the models and adapters to choose from
    screen         what the weights say about a composition before it is made
    lock           the lock: the definition of a chimera as a small canonical document
    plan           the plan: every tensor of the result, the origin of its bytes
    api            compose from Python: build a recipe step by step, plan it, and make the chimera
    build          make a plan or a lock
    cost           the cost of planning, estimated in advance
    licenses       SPDX expressions, and combinations of licenses that deserve a warning
    metadata       the header entries of a chimera that differ from its base's
    parents        the models of a composition, from the registry or from files
    planner        plan a recipe
    chimeras       registered chimeras: lists, a complete description of one, and the card of a model

A *base* receives, a *donor* gives; a *graft* is one replacement; a *chimera* is the result.
"""
