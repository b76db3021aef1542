"""Hostile programs: suites that attack the registry, and one harness that runs them.

- `harness.py`: a case, a suite, the runner with its report, and the processes and servers of a run.
- `__main__.py`: the table of all suites, and the command `python -m tests.faults.hostile SUITE`.
- A module for each suite, with its cases or a module of cases beside it.
"""
