"""Benchmarks: one script a figure, peers side by side. `python -m bench.NAME --help`."""
