"""Benchmarks: one script for each published figure, compared with other programs. `python -m bench.NAME --help`.

To compare a change with the code before it, run the script in two worktrees in turns (A B A B) on a quiet machine, and
compare medians and ratios.
"""
