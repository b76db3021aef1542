"""The clock of another machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo

import pytest

from organs.registry.catalog import tables


@contextmanager
def local_clock(hours: int) -> Iterator[None]:
    """Let the clock of this machine be `hours` ahead, but not the one of the database."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz or UTC) + timedelta(hours=hours)

        @classmethod
        def fromisoformat(cls, text: str) -> datetime:  # type: ignore[override]  # what the catalog reads is plain
            return datetime.fromisoformat(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "datetime", Shifted)
        yield
