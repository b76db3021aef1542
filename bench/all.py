"""Run every benchmark, one after another: `make bench`. Each is also a command: `python -m bench.NAME`."""

from __future__ import annotations

import subprocess
import sys

SCRIPTS = ("header", "sampling", "codecs", "ingest", "search", "load", "composing", "pushing")


def main() -> None:
    """Run the benchmarks; the first failure ends the run."""
    for script in SCRIPTS:
        print(f"\n=== {script}\n", flush=True)
        subprocess.run([sys.executable, "-m", f"bench.{script}"], check=True)


if __name__ == "__main__":
    main()
