"""The program that looks at what was sent, under limits: memory, processor time, time, and output."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import make_url

from ingest.submissions.child import Say
from registry.errors import OrganError
from registry.registry import Registry
from registry.sandbox.process import Limits, Result, Sandbox, run_python
from registry.settings import Settings

ADDRESS_SPACE_BYTES = 8 * 1024**3
"""Of it the database that is mapped takes up to 4 GiB, and what threads and numpy set aside without using it a GiB or
two; what an ingest works with is some hundred megabytes, whatever the size of the model."""
CPU_SECONDS_LEAST, CPU_BYTES_A_SECOND = 120, 2_000_000
"""An ingest takes about a tenth of that."""
WALL_SECONDS_LEAST, WALL_BYTES_A_SECOND = 300, 1_000_000
OUTPUT_BYTES_LEAST, OUTPUT_BYTES_A_SECOND = 1024 * 1024, 128
NICENESS = 10
DATABASE_PORT = 5432

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done with a submission."""

    submission: int
    publish: bool
    size_bytes: int
    """Of its files: limits grow with it."""


class Worker(Protocol):
    """Does an order, and says what comes of it (`ingest.submissions.child`)."""

    def __call__(self, registry: Registry, order: Order, say: Say) -> None:
        """Raises Stopped when it was ended before it could say what came of it, and what `say` raises."""
        ...


class Stopped(OrganError):
    """The program was over a limit (`is_limit`), or crashed."""

    def __init__(self, sentence: str, *, is_limit: bool) -> None:
        super().__init__(sentence)
        self.is_limit = is_limit


def limits_for(size_bytes: int) -> Limits:
    """What a submission of that size may use."""
    wall_seconds = WALL_SECONDS_LEAST + size_bytes / WALL_BYTES_A_SECOND
    return Limits(
        wall_seconds=wall_seconds,
        cpu_seconds=CPU_SECONDS_LEAST + size_bytes // CPU_BYTES_A_SECOND,
        address_space_bytes=ADDRESS_SPACE_BYTES,
        output_max_bytes=OUTPUT_BYTES_LEAST + int(wall_seconds) * OUTPUT_BYTES_A_SECOND,
        niceness=NICENESS,
    )


def in_child(registry: Registry, order: Order, say: Say, limits: Limits | None = None) -> None:
    """Do an order in a child process; what it says that is no JSON object is left out."""
    settings = registry.settings
    asked = {
        "home": str(settings.home),
        "database_url": settings.database_url,
        "blobs": str(settings.blobs),
        "submission": order.submission,
        "publish": order.publish,
    }

    def heard(line: bytes) -> None:
        try:
            told: Any = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(told, dict):
            say(told)

    result = run_python(
        "ingest.submissions.child",
        limits or limits_for(order.size_bytes),
        _sandbox(settings),
        json.dumps(asked).encode(),
        heard,
    )
    if result.code != 0:
        _log.error("looking at submission %d ended badly: %s\n%s", order.submission, _how(result), result.log)
        raise Stopped(_how(result), is_limit=result.stopped is not None)


def _sandbox(settings: Settings) -> Sandbox:
    """What the child needs as long as it opens the registry: its folders, and its database where that is elsewhere."""
    database = make_url(settings.database_url)
    is_file = database.get_backend_name() == "sqlite"
    return Sandbox(
        write=(
            settings.home,
            settings.blobs,
            *([Path(database.database).parent] if is_file and database.database else []),
        ),
        port=None if is_file else database.port or DATABASE_PORT,
        required=settings.requires_sandbox,
    )


def _how(result: Result) -> str:
    if result.stopped is not None:
        return f"It was stopped while it was looked at: {result.stopped}."
    how = f"ended by {result.signal_name}" if result.signal_name is not None else "broke"
    return f"The program that looked at it {how}: something in these files is not as it should be."
