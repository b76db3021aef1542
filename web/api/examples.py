"""Answers to the example requests of the reference, as the shipped models gave them, shortened.

`python -m tests.web.api.write_examples` asks anew and writes `examples.json`.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def example_answers() -> dict[str, Any]:
    """An answer by the name of its operation."""
    found: dict[str, Any] = json.loads(files("organs.web.api").joinpath("examples.json").read_text("utf-8"))
    return found
