"""Composing: from words to a chimera. A recipe becomes a plan, the plan a lock, the lock a file.

    recipe         what a person asked for, as values; reading and writing are its texts
    steps          a recipe as short texts, one a step, as an address has them
    document       YAML and JSON from outside, bounded before they are built
    fields         the members of a document, checked as they are taken; every reason collected
    selecting      which organs a step means
    overrides      metadata that a recipe sets
    finding        what is to be said before a byte moves
    parent         a model as composing sees it
    library        where parents come from
    choosing       grafts to replacements
    replacement    a place of the base that gets a donor's tensor
    compatibility  whether parents fit: facts, differences, fitting, relatedness, changes, licences, adaptation
    adapting       adapters to what is added; purifying: which organs are purified
    computation    how an organ is computed, as a value; computing does it
    prediction     how the result is likely to do, before it is run; survival: what is left of each group of organs
    predicting     planned parts to a prediction, and the warning
    header         what the result's metadata say; filename: what its file is called
    lock           the canonical document whose digest is the chimera's id; locked: the header of its file, looked at
    plan           all of this together; planning makes it
    making         a plan to a registered chimera; recording writes its rows
    builder        the same from Python, step by step; showing: its plans in a line, and in a notebook

A *base* receives, a *donor* gives; a *graft* is one replacement; a *chimera* is what comes of it.
"""
