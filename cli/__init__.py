"""The command `organ`: a module for each command, or for a few that belong together; services below do the work.

    main        `organ`: the entry point, and the list of commands with their modules
    console     text, JSON, pages, progress; commands for the user to copy
    tables      tables that fit the terminal
    hints       errors, and what the user can do about them
    registries  the selected registry, local or remote
    options     options that commands share, queries as arguments, spellings of the original tools
    inputs      models that commands read: files, addresses, other tools of this machine
    outputs     files that commands write
    plans       plans of chimeras: findings, changes, screens
    processes   how commands that run for long end

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
