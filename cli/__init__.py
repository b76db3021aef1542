"""The command `organ`: words to service to print. One file a group of commands; nothing else here does work.

    accounts    `organ contributor`, `organ token` and `organ login`
    admin       `organ admin`, `verify`, `sweep` and `backup`: look after a registry
    arguments   what commands take: the registry that they work on, and queries
    assemble    `organ assemble` and `organ extract`
    compare     `organ compare` and `organ compat`: two models side by side, and what fits what
    compose     `organ compose` and `organ purify`: make chimeras
    composing   planning and making a recipe for `compose`, `purify` and `assemble`
    console     how commands print: tables, prose, sizes, JSON, progress and hints
    demo        `organ demo`: the whole journey on the trained models that come with the source
    elsewhere   what commands show of a registry elsewhere, as the same values that a folder gives
    ingest      `organ ingest` and `organ measure`: GGUF files into the registry, or measured only
    main        `organ`: the entry point
    serve       `organ serve`, `work` and `jobs`: the catalog in a browser, and the queue of jobs
    show        `organ search`, `models`, `show` and `report`: read the catalog
    transplant  `organ transplant` and `organ graft`
    validate    `organ validate`
    files       files that commands read and write
    remote      `organ push` and `organ pull`: models to and from a remote registry

Results go to stdout, progress and hints to stderr. Exit 0; 1 when something failed or was refused; 2 for wrong usage.
"""
