"""Tests of registering: everything is written in one transaction or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.registry.anatomy import place_of
from organs.registry.catalog.queries.blobs import blobs_by_digest, unneeded_blobs
from organs.registry.catalog.records import FileRecord, ModelRecord, ParentRecord, PartRecord, PlacementRecord
from organs.registry.catalog.register.models import Registered, register_model
from organs.registry.catalog.register.organs import (
    begin_ingest,
    end_ingest,
    mark_corrupt,
    record_blobs,
)
from organs.registry.catalog.tables import BlobLease, EventRow, Ingest, Lineage
from organs.registry.digest import Digest, digest_of
from organs.registry.errors import BadValue, CatalogError, MissingBlob
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.store import StoredBlob
from tests.catalog.test_tables import NOON
from tests.small_models import row_counts

BYTES = b"sixteen bytes  :"


def stored(data: bytes = BYTES, file: str | None = None) -> StoredBlob:
    inline = b"stored" if file is None else None
    return StoredBlob(digest_of(data), len(data), 6, "raw", 1, file, inline)


def record(name: str = "a", *, digest: Digest | None = None, **more: object) -> ModelRecord:
    """Return a model of one organ with BYTES, in a file with this digest."""
    organ_digest = digest_of(BYTES)
    own_digest = digest or organ_digest
    place = place_of("output_norm.weight")
    placement = PlacementRecord("output_norm.weight", place, organ_digest, "F32", (4,), 16, 32, None)
    part = PartRecord(0, 16, organ_digest, 0)
    file = FileRecord(f"{name}.gguf", 48, own_digest, organ_digest, 20, (part,), (placement,))
    default = ModelRecord(
        name=ModelName("local", name),
        digest=own_digest,
        kind="model",
        architecture="llama",
        title="A",
        description=None,
        license=None,
        size_label=None,
        metadata=(("general.name", "string", "A"),),
        files=(file,),
    )
    return replace(default, **more)  # type: ignore[arg-type]


def register_in(session: Session, wanted: ModelRecord, *, keep_name: bool = False) -> Registered:
    ingest_id = begin_ingest(session, "test")
    record_blobs(session, ingest_id, [stored()])
    registered = register_model(session, wanted, keep_name=keep_name)
    end_ingest(session, ingest_id, "finished", None, registered.model.id)
    return registered


def register(registry: LocalRegistry, wanted: ModelRecord, *, keep_name: bool = False) -> Registered:
    with registry.catalog.writing() as session:
        return register_in(session, wanted, keep_name=keep_name)


def test_a_model_with_swept_blobs_is_refused(registry: LocalRegistry) -> None:
    with pytest.raises(MissingBlob, match="run it again"), registry.catalog.writing() as session:
        register_model(session, record(), keep_name=False)
    assert set(row_counts(registry).values()) == {0}


@pytest.mark.parametrize("name", ["x" * 97, "a\0b"])
def test_a_name_that_cannot_be_stored_is_refused_and_nothing_is_written(name: str, registry: LocalRegistry) -> None:
    with pytest.raises(BadValue, match="the name"):
        register(registry, record(name=name))
    assert set(row_counts(registry).values()) == {0}


def test_a_kind_that_is_not_in_the_vocabulary_rolls_everything_back(registry: LocalRegistry) -> None:
    with pytest.raises(CatalogError, match="kind_known"):
        register(registry, record(kind="spleen"))
    assert set(row_counts(registry).values()) == {0}


def test_a_model_is_recorded_with_its_event_and_the_origin_of_its_organs(registry: LocalRegistry) -> None:
    registered = register(registry, record(parents=(ParentRecord("somebody/base 1", "finetune"),)))
    assert registered.created
    with registry.catalog.reading() as session:
        event = session.scalars(select(EventRow)).one()
        assert (event.action, event.text, event.model_id) == ("ingest", "local/a@1", registered.model.id)
        edges = session.scalars(select(Lineage).order_by(Lineage.id)).all()
    declared, dissected = edges
    assert (declared.relation, declared.evidence, declared.parent_text) == ("finetune", "declared", "somebody/base 1")
    assert (dissected.relation, dissected.evidence, dissected.parent_model_id) == ("dissected", "recorded", 1)
    assert dissected.child_organ_id == 1


def test_a_registered_parent_is_linked_by_its_digest_and_an_unknown_parent_is_left_out(registry: LocalRegistry) -> None:
    first = register(registry, record())
    parents = (
        ParentRecord("a.gguf", "grafted", Digest(first.model.digest)),
        ParentRecord("b.gguf", "grafted", digest_of(b"nobody's")),
    )
    child = register(registry, record("b", digest=digest_of(b"another file"), parents=parents))
    with registry.catalog.reading() as session:
        edge = session.scalars(select(Lineage).where(Lineage.child_model_id == child.model.id)).one()
        origins = session.scalars(select(Lineage.parent_model_id).where(Lineage.child_organ_id.is_not(None))).all()
    assert origins == [first.model.id], "a tensor originates from the first model that has it"
    assert (edge.parent_model_id, edge.parent_text) == (first.model.id, "a.gguf")
    assert (edge.relation, edge.evidence) == ("grafted", "recorded")


def test_the_same_bytes_are_registered_once_unless_another_name_is_requested(registry: LocalRegistry) -> None:
    register(registry, record("a"))
    again = register(registry, record("b"))
    assert (again.created, again.model.name) == (False, "a")
    named = register(registry, record("b"), keep_name=True)
    assert (named.created, named.model.name, named.model.version) == (True, "b", 1)
    assert not register(registry, record("b"), keep_name=True).created


def test_other_bytes_under_a_name_become_its_next_version(registry: LocalRegistry) -> None:
    versions = [register(registry, record("a", digest=digest_of(b"%d" % number))).model.version for number in range(3)]
    assert versions == [1, 2, 3]


def test_an_ingest_holds_its_blobs_until_it_ends(registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        ingest_id = begin_ingest(session, "test")
        record_blobs(session, ingest_id, [stored()])
        later = session.get_one(Ingest, ingest_id).lease_expires_at
    with registry.catalog.reading() as session:
        assert len(session.scalars(select(BlobLease)).all()) == 1
        forever = NOON.replace(year=9000)
        assert list(unneeded_blobs(session, ["present"], forever, later.replace(year=2000))) == []
        assert len(unneeded_blobs(session, ["present"], forever, forever)) == 1, "a lease that ran out protects nothing"
    with registry.catalog.writing() as session:
        end_ingest(session, ingest_id, "failed")
        assert session.scalars(select(BlobLease)).all() == []
        assert len(unneeded_blobs(session, ["present"], forever, later.replace(year=2000))) == 1


def test_a_blob_recorded_by_another_ingest_keeps_its_row_and_the_new_file_is_returned(
    registry: LocalRegistry,
) -> None:
    large = b"L" * 100_000
    first, second = (f"{digest_of(large)[:2]}/{digest_of(large)}.{nonce * 16}" for nonce in "12")
    with registry.catalog.writing() as session:
        ingest_id = begin_ingest(session, "one")
        assert record_blobs(session, ingest_id, [stored(large, first)]) == []
        other_id = begin_ingest(session, "other")
        assert record_blobs(session, other_id, [stored(large, second)]) == [second]
        (row,) = blobs_by_digest(session, [digest_of(large)]).values()
    assert row.file == first


@pytest.mark.parametrize("is_inline", [False, True])
def test_a_corrupt_blob_is_replaced_when_its_bytes_are_stored_again(is_inline: bool, registry: LocalRegistry) -> None:
    digest = digest_of(BYTES)
    first, second = (None if is_inline else f"{digest[:2]}/{digest}.{nonce * 16}" for nonce in "12")
    healed = replace(stored(file=second), inline=b"healed" if is_inline else None)
    with registry.catalog.writing() as session:
        ingest_id = begin_ingest(session, "one")
        record_blobs(session, ingest_id, [stored(file=first)])
        assert mark_corrupt(session, blobs_by_digest(session, [digest])[digest])
        assert record_blobs(session, ingest_id, [healed]) == ([] if is_inline else [first])
        (row,) = blobs_by_digest(session, [digest]).values()
    assert (row.file, row.inline, row.state) == (second, healed.inline, "present")
