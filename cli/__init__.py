"""The command `organ`. One module for each group of commands in `organ --help`; services below do the work.

    demo        Try it
    scan        On this machine: `scan`
    files       Files: `ingest`, `assemble`, `extract`, `measure`
    catalog     Catalog: `models`, `show`, `search`, `compare`, `report`
    chimeras    Chimeras: `compat`, `compose`, `validate`, `leaderboard`, `purify`, `transplant`, `graft`
    server      Server: `serve`, `jobs`, `work`
    remote      Remote registries: `push`, `pull`
    accounts    Accounts: `login`, `token`, `contributor`
    admin       Administration: `verify`, `backup`, `repack`, `sweep`, `admin`

    details     models and organs: what `organ show` prints
    main        `organ`: the entry point, and the groups
    arguments   the selected registry, and queries as arguments
    local_tools the options that select other tools of this machine
    composing   plan recipes and make chimeras, for several commands
    outputs     input models and output files
    console     tables, text, JSON, progress and hints

Results go to stdout, progress and hints to stderr. `cli/main.py` lists the exit statuses.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def fast_imports() -> Iterator[None]:
    """Import without collections of garbage, and leave the imported objects out of later ones, also the last at exit.

    Together, these collections take a fifth of the time of `organ search`. If nothing was imported, nothing is left
    out: otherwise the garbage of an earlier command in this process would stay for ever.
    """
    modules = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > modules:
            gc.freeze()
        gc.enable()
