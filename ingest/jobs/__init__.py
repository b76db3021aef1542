"""Jobs: what was asked for and takes longer than a request, and the runner that does it.

    kind         what a kind of job is, and how its arguments are checked
    compose      the kinds `compose`, `graft` and `purify`: a recipe becomes a registered chimera
    validate     the kind `validate`: a chimera run in llama.cpp beside its base
    measure      the kind `measure`: a registered model measured anew from its stored bytes
    extract      the kind `extract`: a registered model as an organ directory
    publish      the kinds `inspect` and `publish`: a submission is inspected, or published as a model
    report       the kind `report`: the report on the registry, or on one model
    runner       add jobs to the queue, and run them

A job may run twice, when its runner was killed, so what it does must be safe to repeat.
"""
