"""Tests of a part of a planned file, which reads only its own blobs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from organs.registry.assembly import (
    FilePlan,
    FileStream,
    PlannedSlice,
    clipped,
    plan_digest,
    plan_file,
)
from organs.registry.catalog.queries.model_contents import files_of
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.errors import CorruptBlob
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.upkeep import set_aside
from tests.assembly.test_stream import data, flip_middle, largest_file, plan

__all__ = ["data", "plan"]


def read(registry: LocalRegistry, part: FilePlan) -> bytes:
    with ThreadPoolExecutor(2) as pool, FileStream(registry.blobs, part, pool=pool) as stream:
        return b"".join(map(bytes, stream))


def test_adjacent_parts_make_the_whole(registry: LocalRegistry, plan: FilePlan, data: bytes) -> None:
    edges = [0, 1, 31, 32, 4 << 20, (4 << 20) + 1, len(data) - 1, len(data)]
    parts = [read(registry, clipped(plan, begin, end)) for begin, end in pairwise(edges)]
    assert b"".join(parts) == data


def test_a_new_header_and_the_zeros_are_clipped_too(registry: LocalRegistry, plan: FilePlan) -> None:
    largest = max(plan.slices, key=lambda piece: piece.size_bytes)
    made = FilePlan("made", 300, None, b"literal", (PlannedSlice(100, 50, largest.blob, 7),))
    content = read(registry, made)
    for begin in (0, 3, 7, 50, 100, 120, 150, 299, 300):
        for end in (begin, begin + 2, begin + 40, 300):
            assert read(registry, clipped(made, begin, min(300, end))) == content[begin:end]


@pytest.mark.folder
def test_only_the_blobs_of_the_part_are_looked_up(registry: LocalRegistry, plan: FilePlan) -> None:
    with registry.catalog.reading() as session:
        (file,) = files_of(session, model_by_name(session, parse_model_name("a")).id)
        part = plan_file(session, file, plan.slices[-1].offset_bytes)
        assert len(part.slices) == 1
        assert part.sha256 is None
        assert plan_file(session, file) == plan
    set_aside(registry.catalog, [max(plan.slices, key=lambda piece: piece.size_bytes).blob])
    flip_middle(largest_file(registry))
    with registry.catalog.reading() as session:
        assert plan_file(session, file, plan.slices[-1].offset_bytes) == part
        whole_plan = plan_file(session, file)
    with pytest.raises(CorruptBlob):
        read(registry, whole_plan)


def test_the_digest_of_a_plan_depends_only_on_its_bytes(plan: FilePlan) -> None:
    again = FilePlan("another name", plan.size_bytes, None, plan.literal, plan.slices)
    assert plan_digest(again) == plan_digest(plan)
    others = [
        FilePlan(plan.name, plan.size_bytes + 1, None, plan.literal, plan.slices),
        FilePlan(plan.name, plan.size_bytes, None, b"x", plan.slices),
        FilePlan(plan.name, plan.size_bytes, None, plan.literal, plan.slices[1:]),
        clipped(plan, 1, plan.size_bytes),
    ]
    assert len({plan_digest(other) for other in [plan, *others]}) == 5
