"""Functions that are called with the progress of long work. An exception of theirs stops the work."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int], None]
"""Called with the number of bytes, or other units, since the last call; negative for those that are done again."""
StepProgress = Callable[[float, str], None]
"""Called with the share of the work that is done, from 0 to 1, and the current step."""


def no_progress(_count: int) -> None:
    """Ignore progress."""
