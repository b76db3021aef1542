"""Run a suite of hostile cases: `python -m tests.faults.hostile SUITE [options]`. Exits with 1 if anything is wrong."""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import postgres
from tests.faults.hostile.harness import Suite, run

SUITES = {
    "api": "tests.faults.hostile.api",
    "crowd-kills": "tests.faults.hostile.crowd_kills",
    "crowds": "tests.faults.hostile.crowds",
    "cut-push": "tests.faults.hostile.cut_push",
    "escape": "tests.faults.hostile.escape",
    "evolve-kills": "tests.faults.hostile.evolve_kills",
    "files": "tests.faults.hostile.files",
    "fleet-kills": "tests.faults.hostile.fleet_kills",
    "fuzz": "tests.faults.hostile.fuzz",
    "kills": "tests.faults.hostile.kills",
    "outages": "tests.faults.hostile.outages",
    "power-cuts": "tests.faults.powerloss",
    "room-for-one": "tests.faults.hostile.room_for_one",
    "uploads": "tests.faults.hostile.uploads",
    "worst-shapes": "tests.faults.hostile.worst_shapes",
}
"""The module of each suite, which has it as SUITE; the docstring of the module says what must hold."""


def main(words: list[str] | None = None) -> int:
    """Run the suite that is named; return the exit status."""
    words = sys.argv[1:] if words is None else words
    choose = argparse.ArgumentParser(prog="python -m tests.faults.hostile", description=__doc__)
    choose.add_argument("suite", choices=SUITES)
    name = choose.parse_args(words[:1]).suite
    module = import_module(SUITES[name])
    suite: Suite = module.SUITE
    parser = argparse.ArgumentParser(
        prog=f"{choose.prog} {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option, default in suite.options.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{option}", action="store_true")
        else:
            parser.add_argument(f"--{option}", type=type(default), default=default, help=f"default: {default}")
    parser.add_argument("--folder", type=Path, help="where to work; a new folder in it is removed at the end")
    options = parser.parse_args(words[1:])
    postgres.use_in_process()
    begun = time.monotonic()
    with TemporaryDirectory(prefix="organ-hostile-", dir=options.folder) as folder:
        report = run(suite, options, Path(folder))
        return report.print(name, time.monotonic() - begun)


if __name__ == "__main__":
    sys.exit(main())
