"""Benchmarks: one script for each published figure, compared with other programs. `python -m bench.NAME --help`.

The figures are in `bench/results/`, and the notes in `docs/design` name those that decided.

To compare a change with the code before it, run the script in two worktrees in turns (A B A B) on a quiet machine, and
compare medians and ratios.
"""
