"""Tests of a sweep with two concurrent writers, a killed sweep, a verify and readers.

`make test` runs a sample of the orders, the slow form very many.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import pytest

from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest
from organs.registry.catalog.register.organs import mark_corrupt
from organs.registry.digest import digest_of
from organs.registry.errors import MissingBlob, StoreError
from organs.registry.local import LocalRegistry
from organs.registry.store import BlobReader
from tests.faults.failing import (
    assert_no_orphans,
    let_leases_expire,
    let_time_pass,
    random_bytes,
    run_sweep,
    verify_all,
)
from tests.faults.test_sweep import STATES, SWEEPER, WRITER, Race, prepared, quick

__all__ = ["quick"]

SAMPLE, MANY = 5, 600


@dataclass(slots=True)
class Looker:
    """A verify with repair of one blob, or a reader that has planned to read it, step by step."""

    registry: LocalRegistry
    plain: bytes
    row: KnownBlob | None = None
    reader: BlobReader | None = None
    is_faulty: bool = False
    has_read: bool = False

    def look(self) -> None:
        with self.registry.catalog.reading() as session:
            self.row = blobs_by_digest(session, [digest_of(self.plain)]).get(digest_of(self.plain))

    def check(self) -> None:
        self.is_faulty = self.row is not None and self._fails(self.row)

    def check_again(self) -> None:
        if self.is_faulty:
            self.look()
            self.check()

    def set_aside(self) -> None:
        if self.is_faulty and self.row is not None:
            with self.registry.catalog.writing() as session:
                mark_corrupt(session, self.row)

    def open(self) -> None:
        try:
            self.reader = None if self.row is None else self.registry.blobs.open(self.row)
        except MissingBlob:
            self.reader = None

    def read(self) -> None:
        if self.reader is not None:
            with self.reader as reader:
                assert reader.read() == self.plain
            self.has_read = True

    def _fails(self, row: KnownBlob) -> bool:
        try:
            with self.registry.blobs.open(row) as reader:
                reader.verify()
        except StoreError:
            return True
        return row.state == "corrupt"


VERIFIER = (Looker.look, Looker.check, Looker.check_again, Looker.set_aside)
READER = (Looker.look, Looker.open, Looker.read)


SIZES = [SAMPLE, pytest.param(MANY, marks=pytest.mark.slow)]
Sides = Sequence[Sequence[Callable[[], None]]]


def bound(party: Any, steps: Sequence[Callable[[Any], None]]) -> list[Callable[[], None]]:
    return [partial(step, party) for step in steps]


def another_writer(sweeper: Race, writer: Race, _attempt: int) -> Sides:
    other = Race(writer.registry, writer.plain)
    register = bound(writer, WRITER[-1:])  # both use the same organ, which is registered once
    return bound(sweeper, SWEEPER), bound(writer, WRITER[:-1]), bound(other, WRITER[:-1]), register


def a_dead_sweep(sweeper: Race, writer: Race, attempt: int) -> Sides:
    died = Race(writer.registry, writer.plain)
    return [*bound(died, SWEEPER[: attempt % 5]), *bound(sweeper, SWEEPER)], bound(writer, WRITER), [], []


def a_repair(sweeper: Race, writer: Race, _attempt: int) -> Sides:
    verifier = bound(Looker(writer.registry, writer.plain), VERIFIER)
    return bound(sweeper, SWEEPER), bound(writer, WRITER), verifier, []


def random_order(sides: Sides, seed: int) -> Iterator[Callable[[], None]]:
    """Yield all steps in a random order that keeps the order of each side."""
    generator, waiting = random.Random(seed), [list(side) for side in sides]
    while any(waiting):
        # Weighted by the remaining steps, so that every order is equally likely.
        yield generator.choices(waiting, [len(steps) for steps in waiting])[0].pop(0)


@pytest.mark.parametrize("number", SIZES)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("beside", [another_writer, a_dead_sweep, a_repair], ids=lambda beside: beside.__name__)
def test_every_order_of_a_sweep_and_a_writer_beside_other_work_keeps_the_bytes(
    beside: Callable[[Race, Race, int], Sides], state: str, number: int, quick: LocalRegistry
) -> None:
    for attempt in range(number):
        plain = random_bytes(66_000, attempt)
        sweeper, writer = Race(quick, plain), Race(quick, plain)
        prepared(quick, state, plain)
        *sides, last = beside(sweeper, writer, attempt)
        for step in (*random_order(sides, attempt), *last):
            step()
        assert not writer.is_lost
    let_leases_expire(quick)
    let_time_pass(quick)
    for _ in range(2):
        run_sweep(quick)
    with quick.catalog.reading() as session:
        digests = [digest_of(random_bytes(66_000, attempt)) for attempt in range(number)]
        assert len(blobs_by_digest(session, digests)) == number
    assert_no_orphans(quick)
    assert verify_all(quick).faults == []


@pytest.mark.parametrize("state", ["unneeded", "doomed"])
def test_a_reader_of_a_swept_blob_gets_the_right_bytes_or_a_clean_error(state: str, quick: LocalRegistry) -> None:
    read = refused = 0
    for number, places in enumerate(combinations(range(7), 3)):
        plain = random_bytes(66_000, number)
        sweeper, reader = Race(quick, plain), Looker(quick, plain)
        prepared(quick, state, plain)
        sides = [iter(SWEEPER), iter(READER)]
        for place in range(7):
            if place in places:
                next(sides[1])(reader)
            else:
                next(sides[0])(sweeper)
        read += reader.has_read
        refused += not reader.has_read
    assert read + refused == 35
    assert read > 5
    assert refused > 0 or state == "unneeded", "one sweep does not remove what it dooms"


@pytest.mark.parametrize("number", SIZES)
def test_a_reader_gets_the_right_bytes_when_they_are_stored_again(number: int, quick: LocalRegistry) -> None:
    for attempt in range(number):
        plain = random_bytes(66_000, attempt)
        sweeper, writer, reader = Race(quick, plain), Race(quick, plain), Looker(quick, plain)
        prepared(quick, "doomed", plain)
        for step in random_order([bound(sweeper, SWEEPER), bound(writer, WRITER), bound(reader, READER)], attempt):
            step()
        assert not writer.is_lost
