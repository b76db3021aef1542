"""Where the time of an ingest goes: seconds and bytes per stage, added up over threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class StageTotal:
    """What one stage has done so far. Seconds of threads, which may run side by side."""

    seconds: float = 0.0
    size_bytes: int = 0


class Stages:
    """Adds up what the stages do; safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, StageTotal] = {}
        self._begun = time.perf_counter()

    @contextmanager
    def timed(self, stage: str, size_bytes: int = 0) -> Iterator[None]:
        """Count the block's time and `size_bytes` into `stage`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begun
            with self._lock:
                total = self._totals.setdefault(stage, StageTotal())
                total.seconds += spent
                total.size_bytes += size_bytes

    @property
    def wall_seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self._begun

    def summary(self) -> dict[str, dict[str, float]]:
        """For the report: per stage seconds, bytes, and MB/s of one thread where bytes were counted."""
        rows = {}
        for stage, total in self._totals.items():
            rows[stage] = {"seconds": round(total.seconds, 4), "bytes": total.size_bytes}
            if total.size_bytes and total.seconds:
                rows[stage]["mb_per_second"] = round(total.size_bytes / total.seconds / 1e6, 1)
        return rows
