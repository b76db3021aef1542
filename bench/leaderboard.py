"""The leaderboard of the shipped models, made by running it: the table in bench/results/leaderboard.md.

    python -m bench.leaderboard             about six minutes on two cores
    python -m bench.leaderboard --home DIR  keep the registry, to look at it with `organ --home DIR serve`

Needs the extra `validate`. Nine chimeras are made of one base in a registry, validated with the built-in texts and the
default budget, and ranked by `Registry.leaderboard`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.amounts import weight_change_text
from organs.registry.compose.api import Composition
from organs.registry.entities.gain import MeasuredGraft
from organs.registry.local import LocalRegistry

ZOO = Path(__file__).resolve().parents[1] / "examples" / "zoo"
BASE, CODE, PROSE = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-A-2M-Prose-v1.0-Q8_0"


def compositions(base: Composition) -> dict[str, Composition]:
    """Return the chimeras by name: whole and partial grafts of kin, an adapter, two donors, and a stranger."""
    code, prose = base.graft(CODE, type="organ"), base.graft(PROSE, type="organ")
    return {
        "coder": code,
        "coder-attention": code.graft(CODE, type="skeleton"),
        "coder-late": base.graft(CODE, type="organ", blocks="2-3"),
        "adapted": base.adapter("Zoo-A-2M-Code-LoRA-v1.0-F32"),
        "prose": prose,
        "both": base.graft(CODE, type="organ", blocks="0-1").graft(PROSE, type="organ", blocks="2-3"),
        "branch": base.graft("Zoo-A-2M-Branch-v1.0-Q8_0", type="organ"),
        "earlier": base.graft("Zoo-A-2M-v0.3-Q8_0", type="organ"),
        "stranger": base.graft("Zoo-B-2M-v1.0-Q8_0", type="organ"),
    }


def make(registry: LocalRegistry) -> None:
    """Register the shipped models and the chimeras, and validate each chimera."""
    for source in find_sources([str(ZOO)]):
        ingest_model(registry, source)
    for name, composition in compositions(registry.compose(BASE)).items():
        made = composition.named(f"me/{name}").plan().accepting_all().register()
        report = registry.validate(made.model)
        print(f"{made.model}: {report.verdict}, {report.seconds:.0f} s", flush=True)


def row(graft: MeasuredGraft) -> str:
    """Return a row of the table in Markdown."""
    donors = ", ".join(donor.partition("/")[2].partition("@")[0] for donor in graft.donors)
    cells = (donors, graft.grafted, weight_change_text(graft.change, graft.likeness), graft.best, graft.worst or "–")
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Make the registry, and print the leaderboard as a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="the folder for the registry; a temporary one by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LocalRegistry.open(arguments.home or folder) as registry:
        make(registry)
        print("\n| donor | organs | change | gain | largest loss |\n|---|---|---:|---|---|")
        print("\n".join(map(row, registry.leaderboard(BASE))))


if __name__ == "__main__":
    main()
