"""Jobs: work that takes longer than a request, and the runner that does it.

    kind         the class of a kind of job: what it takes, and the function that does it
    compose      the kinds `compose`, `graft` and `purify`: a recipe becomes a registered chimera
    validate     the kinds `validate` and `quick-look`: a chimera run in llama.cpp beside its base
    measure      the kind `measure`: a registered model measured again from its stored bytes
    extract      the kind `extract`: a registered model as an organ directory
    publish      the kinds `inspect` and `publish`: a submission is inspected, or published as a model
    report       the kind `report`: the report on the registry, or on one model
    runner       add jobs to the queue, and run them

A job runs again if its runner was killed, so its work must be safe to repeat.
"""
