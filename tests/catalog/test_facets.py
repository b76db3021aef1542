"""The roll-up of counts equals a recount, whatever came in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import select

from registry.catalog.bins import theta_bin
from registry.catalog.register.facets import count_placements
from registry.catalog.tables import Facet, FacetCount, Model, Placement
from registry.registry import Registry
from tests.builders import file_bytes, tensor, text
from tests.trips import block_tensors, ingest_file, little_model, weights

FIELDS = (Facet.type, Facet.tower, Facet.slot, Facet.dtype, Facet.architecture, Facet.license)


def rolled_up(registry: Registry) -> dict[tuple[object, ...], int]:
    statement = (
        select(*FIELDS, FacetCount.theta_bin, FacetCount.placements).join(Facet).where(FacetCount.placements > 0)
    )
    with registry.catalog.reading() as session:
        return {tuple(key): count for *key, count in session.execute(statement)}


def recounted(registry: Registry) -> dict[tuple[object, ...], int]:
    counts: Counter[tuple[object, ...]] = Counter()
    with registry.catalog.reading() as session:
        rows = session.execute(select(Placement, Model).join(Model, Model.id == Placement.model_id)).all()
        for placement, model in rows:
            assert placement.visible
            lower = -1 if placement.theta is None else min(85, int(placement.theta / 5) * 5)
            place = (placement.type, placement.tower, placement.slot, placement.dtype)
            counts[(*place, model.architecture or "", model.license or "", lower)] += 1
    return dict(counts)


def test_the_counts_equal_a_recount_after_several_ingests(registry: Registry, tmp_path: Path) -> None:
    bare = file_bytes([text("general.architecture", "gpt2")], [tensor("what.is.this"), weights("blk.0.attn_q", (64,))])
    for name, data in [
        ("a.gguf", little_model("A")),
        ("b.gguf", little_model("B", seed=1)),
        ("relative.gguf", little_model("A, retouched", blocks=3)),
        ("bare.gguf", bare),
        ("empty.gguf", file_bytes([text("general.name", "Nothing")])),
        ("nameless.gguf", file_bytes([], block_tensors(1, dtype="F32"))),
    ]:
        (tmp_path / name).write_bytes(data)
        assert ingest_file(registry, tmp_path / name).created
        assert rolled_up(registry) == recounted(registry)
    assert sum(rolled_up(registry).values()) == 10 + 10 + 14 + 2 + 6


def test_an_ingest_that_adds_nothing_counts_nothing(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(little_model())
    ingest_file(registry, tmp_path / "a.gguf")
    before = rolled_up(registry)
    assert not ingest_file(registry, tmp_path / "a.gguf").created
    assert rolled_up(registry) == before


def test_a_second_name_of_the_same_bytes_counts_again(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(little_model())
    ingest_file(registry, tmp_path / "a.gguf")
    before = rolled_up(registry)
    ingest_file(registry, tmp_path / "a.gguf", "other/name")
    assert rolled_up(registry) == {key: 2 * count for key, count in before.items()} == recounted(registry)


def test_what_is_taken_away_is_no_longer_counted(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(little_model())
    ingest_file(registry, tmp_path / "a.gguf")
    with registry.catalog.writing() as session:
        count_placements(session, session.scalars(select(Placement)).all(), sign=-1)
    assert rolled_up(registry) == {}


@pytest.mark.parametrize(
    ("theta", "expected"),
    [(None, -1), (0.0, 0), (4.999, 0), (5.0, 5), (34.2, 30), (85.0, 85), (89.9, 85), (90.0, 85)],
)
def test_theta_is_counted_in_bins_of_five_degrees(theta: float | None, expected: int) -> None:
    assert theta_bin(theta) == expected
