"""What is stored how: the sums are those of the single blobs, in any state of the registry."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from sqlalchemy import select

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.register.model_changes import hide_model, remove_model
from organs.registry.catalog.tables import Blob, Expert, FilePart, ModelFileRow, ModelRow, OrganRow, Placement
from organs.registry.entities.storage import Storage, Way
from organs.registry.errors import BadQuery
from organs.registry.local import LocalRegistry
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.small_models import expert_model

TUNED = 0.9995


def fill_family(registry: LocalRegistry, folder: Path) -> None:
    """Two fine-tunes of a base, a quantisation, a stranger, and a model with experts."""
    for name, tensors in {
        "base": related_tensors(),
        "tuned": related_tensors(correlation=TUNED),
        "tuned-again": related_tensors(correlation=TUNED, other_seed=3),
        "base-Q8_0": related_tensors(dtype="Q8_0"),
        "stranger": related_tensors(seed=7),
    }.items():
        ingest_bytes(registry, folder, name, model_file(name, tensors))
    ingest_bytes(registry, folder, "mixture", expert_model(seed=9))


@pytest.fixture
def family(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, fill_family)
    return registry


class Counted:
    """The same numbers, counted blob by blob."""

    def __init__(self, registry: LocalRegistry) -> None:
        with registry.catalog.reading() as session:
            every = {blob.id: blob for blob in session.scalars(select(Blob))}
            self.blobs = {number: blob for number, blob in every.items() if blob.codec != "stack"}
            names = {model.id: model.full_name for model in session.scalars(select(ModelRow))}
            self.blobs_of: dict[str, set[int]] = defaultdict(set)
            for statement in (
                select(Placement.model_id, OrganRow.blob_id).join(OrganRow),
                select(Expert.model_id, OrganRow.blob_id).join(OrganRow),
                select(ModelFileRow.model_id, FilePart.blob_id).join(ModelFileRow),
            ):
                for model_id, blob_id in session.execute(statement):
                    if blob_id in self.blobs:
                        self.blobs_of[names[model_id]].add(blob_id)
        self.needing: dict[int, set[str]] = defaultdict(set)
        for name, ids in self.blobs_of.items():
            for number in ids:
                above: int | None = number
                while above is not None:
                    self.needing[above].add(name)
                    above = self.blobs[above].depends_on

    def plain(self, *names: str) -> int:
        return sum(self.blobs[number].size_bytes for number in self._of(names))

    def stored(self, *names: str) -> int:
        return sum(self.blobs[number].stored_bytes for number in self._of(names))

    def saved_alone(self) -> int:
        alone = [self.blobs[number] for number in self._of(tuple(self.blobs_of)) if not self.blobs[number].depends_on]
        return sum(blob.size_bytes - blob.stored_bytes for blob in alone)

    def own(self, name: str) -> int:
        return sum(self.blobs[number].stored_bytes for number, names in self.needing.items() if names == {name})

    def needed(self) -> int:
        return sum(self.blobs[number].stored_bytes for number in self.needing)

    def _of(self, names: tuple[str, ...]) -> set[int]:
        return set().union(*(self.blobs_of[name] for name in names)) if names else set(self.blobs)


def check(registry: LocalRegistry, storage: Storage) -> None:
    """Every sum of `storage` is that of the blobs."""
    counted = Counted(registry)
    assert (storage.parts, storage.size_bytes, storage.stored_bytes) == (
        len(counted.blobs),
        counted.plain(),
        counted.stored(),
    )
    saved = storage.once_bytes + storage.compression_bytes + storage.parents_bytes
    assert saved == storage.files_bytes - (storage.needed_bytes - storage.kept_bytes)
    assert storage.kept_bytes == counted.needed() - counted.stored(*counted.blobs_of)
    assert storage.compression_bytes == counted.saved_alone()
    assert {row.name for row in storage.models} == set(counted.blobs_of)
    for row in storage.models:
        assert row.parts == len(counted.blobs_of[row.name])
        assert (row.size_bytes, row.stored_bytes) == (counted.plain(row.name), counted.stored(row.name))
        assert row.own_bytes == counted.own(row.name), row.name
    assert [row.stored_bytes for row in storage.models] == sorted(row.stored_bytes for row in storage.models)[::-1]
    for field in ("parts", "size_bytes", "stored_bytes"):
        assert sum(getattr(row, field) for row in storage.encodings) == getattr(storage, field)
    assert storage.needed_bytes == counted.needed()
    assert storage.unneeded_bytes == storage.stored_bytes - storage.needed_bytes


def test_a_registry_is_summed_blob_by_blob(family: LocalRegistry) -> None:
    storage = family.storage()
    check(family, storage)
    assert {row.way for row in storage.encodings} == {Way.ALONE, Way.DIFFERENCE, Way.DERIVED}
    assert {row.dtype for row in storage.encodings} >= {"F16", "F32", "Q8_0", None}
    assert storage.parents_bytes > 0
    assert storage.files_bytes == sum(row.files_bytes for row in storage.models)
    assert storage.once_bytes == storage.files_bytes - storage.size_bytes > 0


def test_a_family_counts_equal_parts_once(family: LocalRegistry) -> None:
    (row,) = family.storage().families
    members = ("local/base@1", "local/tuned@1", "local/tuned-again@1", "local/base-Q8_0@1")
    counted = Counted(family)
    assert (row.models, row.size_bytes, row.stored_bytes) == (4, counted.plain(*members), counted.stored(*members))
    assert row.member == members[0]
    assert row.stored_bytes < sum(counted.stored(name) for name in members)


def test_hidden_models_count_and_parents_of_removed_models_stay_needed(family: LocalRegistry) -> None:
    with family.catalog.writing() as session:
        hide_model(session, model_by_text(session, "local/stranger"), "quarantined", "no", "local")
        remove_model(session, model_by_text(session, "local/base"), "no", "local")
        remove_model(session, model_by_text(session, "local/mixture"), "no", "local")
    storage = family.storage()
    check(family, storage)
    assert storage.unneeded_bytes > 0
    assert {row.state for row in storage.models} == {"visible", "quarantined"}
    assert all(row.dtype for row in storage.encodings if row.way != Way.ALONE)


def test_the_sums_add_up_when_only_a_fine_tune_is_left(family: LocalRegistry) -> None:
    names = {row.name for row in family.storage().models} - {"local/tuned@1"}
    for name in sorted(names):
        with family.catalog.writing() as session:
            remove_model(session, model_by_text(session, name), "no", "local")
    storage = family.storage()
    check(family, storage)
    assert storage.kept_bytes > 0 < storage.parents_bytes


def test_lists_are_cut_and_count_what_is_left_out(family: LocalRegistry) -> None:
    whole, cut = family.storage(), family.storage(limit=2)
    assert (cut.models, cut.models_left_out) == (whole.models[:2], len(whole.models) - 2)
    assert (cut.families, cut.families_left_out) == (whole.families, 0)
    assert cut.encodings == whole.encodings
    for limit in (0, 1001):
        with pytest.raises(BadQuery):
            family.storage(limit=limit)


def test_the_largest_families_are_found_among_many(registry: LocalRegistry, tmp_path: Path) -> None:
    for seed in (0, 10, 20):
        for number in range(1 + seed // 10, 3 + seed // 10):
            tensors = related_tensors(seed=seed, correlation=1 - 0.001 * number, other_seed=seed + number)
            ingest_bytes(registry, tmp_path, f"f{seed}-{number}", model_file(f"F{seed} {number}", tensors))
    whole = registry.storage().families
    assert len(whole) == 3
    for limit in (1, 2):
        cut = registry.storage(limit=limit)
        assert (cut.families, cut.families_left_out) == (whole[:limit], 3 - limit)


def test_an_organ_names_its_parent_and_counts_its_children(family: LocalRegistry) -> None:
    organs = {name: {organ.name: organ for organ in family.organs_of(name)} for name in ("base", "tuned", "base-Q8_0")}
    tensor = "blk.0.ffn_up.weight"
    child = family.organ(organs["tuned"][tensor].digest).storage
    derived = family.organ(organs["base-Q8_0"][tensor].digest).storage
    parent = family.organ(organs["base"][tensor].digest).storage
    assert child is not None
    assert derived is not None
    assert parent is not None
    assert (child.way, derived.way, parent.way) == (Way.DIFFERENCE, Way.DERIVED, Way.ALONE)
    assert child.parent is not None
    assert (child.parent.model, child.parent.name) == ("local/base@1", tensor)
    assert child.parent.digest == organs["base"][tensor].digest
    assert parent.parent is None
    assert parent.children >= 2
    stack = next(organ for organ in family.organs_of("mixture") if "_exps" in organ.name)
    experts = family.organ(stack.digest).storage
    assert experts is not None
    assert (experts.way, experts.parent) == (Way.EXPERTS, None)


def test_a_model_says_how_its_parts_are_stored(family: LocalRegistry) -> None:
    storage, counted = family.model("tuned").storage, Counted(family)
    assert storage is not None
    assert (storage.size_bytes, storage.stored_bytes) == (
        counted.plain("local/tuned@1"),
        counted.stored("local/tuned@1"),
    )
    assert {row.way for row in storage.ways} == {Way.ALONE, Way.DIFFERENCE}
    assert storage.parents[0].name == "local/base@1"
    assert "by their difference to others" in storage.sentence
