"""The command `organ`: words to service to print. One file a group of commands; nothing else here does work.

    accounts     `organ contributor`, `organ token` and `organ login`
    admin        `organ admin`: review, models yanked, restored and removed, the event log
    arguments    what commands take: the registry that they work on, and queries
    assemble     `organ assemble`
    compare      `organ compare` and `organ compat`: two models side by side, and what fits what
    compose      `organ compose`
    composing    planning and making a recipe for `compose`, `purify` and `assemble`
    console      how commands print: tables, prose, sizes, JSON, progress and hints
    demo         `organ demo`: the whole journey on the trained models that come with the source
    elsewhere    what commands show of a registry elsewhere, as the same values that a folder gives
    extract      `organ extract`
    fetching     a model of a registry elsewhere brought here
    ingest       `organ ingest`
    main         `organ`: the entry point
    maintenance  `organ verify`, `organ sweep` and `organ backup`
    measure      `organ measure`
    pull         `organ pull`
    purify       `organ purify`
    push         `organ push`
    report       `organ report`
    search       `organ search`: find organs
    serve        `organ serve`: the catalog in a browser, on this machine unless told otherwise
    show         `organ models` and `organ show`
    transplant   `organ transplant` and `organ graft`
    validate     `organ validate`
    work         `organ work` runs the jobs of the queue; `organ jobs` lists and cancels them
    files        files that commands read and write

Results go to stdout, progress and hints to stderr. Exit 0; 1 when something failed or was refused; 2 for wrong usage.
"""
