"""An object store in memory, which can fail, lie and be slow: `BlobBucket` without a server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from organs.registry.store import bucket
from organs.registry.store.bucket import MARK
from tests import buckets

Before = Callable[[str, str], None]
"""It is called with the kind of a request and the name of its object, and may raise."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request of a range."""

    meta: dict[str, Any]
    range: tuple[int, int]
    data: bytes

    def bytes(self) -> bytes:
        return self.data


@dataclass(slots=True)
class MemoryService:
    """The requests of one bucket that `BlobBucket` sends. `after` gets their kind and name when they were done."""

    objects: MemoryStore = field(default_factory=MemoryStore)
    before: Before = lambda _kind, _name: None
    after: Before = lambda _kind, _name: None
    change: Callable[[Answer], Answer] = lambda answer: answer
    """It changes the answer to a request of a range."""
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    knows_conditions: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, name: str, *, options: dict[str, Any]) -> Answer:
        self._begin("get", name)
        result = self.objects.get(name, options=options)  # type: ignore[arg-type]
        answer = Answer(dict(result.meta), result.range, bytes(result.bytes()))
        self.after("get", name)
        return self.change(answer)

    def get_range(self, name: str, *, start: int, length: int) -> bytes:
        return self.get(name, options={"range": (start, start + length)}).data

    def head(self, name: str) -> Any:
        self._begin("head", name)
        return self.objects.head(name)

    def put(self, name: str, data: Any, **options: Any) -> None:
        self._begin("put", name)
        if options.get("mode") == "create" and not self.knows_conditions:
            raise GenericError("501 Not Implemented: A header you provided implies functionality that is not here")
        self.objects.put(name, data, **options)
        self.after("put", name)

    def delete(self, name: str) -> None:
        self._begin("delete", name)
        self.objects.delete(name)

    def list(self, prefix: str | None = None, *, chunk_size: int = 50) -> Iterator[Any]:
        self._begin("list", "")
        for chunk in self.objects.list(prefix, chunk_size=chunk_size):
            self._begin("list page", "")
            yield chunk

    def names(self) -> Sequence[str]:
        """Return the names of the objects, without the mark of a registry."""
        return sorted(entry["path"] for chunk in self.objects.list() for entry in chunk if entry["path"] != MARK)

    def stored(self, name: str) -> bytes:
        """Return the bytes of an object."""
        return bytes(self.objects.get(name).bytes())

    def _begin(self, kind: str, name: str) -> None:
        with self._lock:
            self.requests[kind, name] += 1
        self.before(kind, name)


def serve_from_memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, MemoryService]:
    """Let every bucket be in memory; return the services that were opened, by the address of the bucket.

    The bucket of the plugin `tests.buckets` stays where it is.
    """
    services: dict[str, MemoryService] = {}
    real = bucket.open_bucket

    def open_bucket(url: str, *, allows_http: bool) -> Any:
        if url.startswith(f"s3://{buckets.BUCKET}/"):
            return real(url, allows_http=allows_http)
        return services.setdefault(url, MemoryService())

    monkeypatch.setattr(bucket, "open_bucket", open_bucket)
    return services


def shortened(answer: Answer) -> Answer:
    """Return an answer that lacks its last byte, as after a lost connection."""
    return replace(answer, data=answer.data[:-1])


def shifted(answer: Answer) -> Answer:
    """Return an answer of the right size for another range."""
    begin, end = answer.range
    return replace(answer, range=(begin + 1, end + 1))


def failing(error: Exception, *kinds: str) -> Before:
    """Return a function that raises `error` for requests of these kinds."""

    def before(kind: str, _name: str) -> None:
        if kind in kinds:
            raise error

    return before
