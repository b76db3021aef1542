"""Tests of the parents of organs: who is chosen at ingest and by a repack, whatever arrived first, and who never is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy.orm import Session

from organs.registry import references
from organs.registry.catalog.queries.blobs import DEPTH_MAX
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.relatives import (
    ExpertPlace,
    RelatedOrgan,
    blob_ids_of_models,
    models_to_repack,
    organ_digests,
    related_organs_at,
)
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.catalog.register.organs import begin_ingest, forget_ingest, lease_blobs, mark_repacked
from organs.registry.catalog.rows import batches
from organs.registry.catalog.tables import now
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.gguf.quants import dequantize, quantize
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.references import repack, search_parents, store_alone
from organs.registry.upkeep import Share, all_blobs, verify
from tests.faults.families import assert_whole, remove, sweep_at_once
from tests.llama_quants import quantised
from tests.registry_templates import RegistryTemplates, add_family, add_family_backwards
from tests.related_models import blob_forms, family_files, ingest_bytes, model_file, related_tensors
from tests.small_models import assemble_model, block_tensors, expert_model

SOURCES = family_files()
LATER = family_files(["retuned", "retuned-coarse"])


def stored_bytes(registry: LocalRegistry) -> int:
    return sum(row.stored_bytes for row in all_blobs(registry.catalog))


def all_models(registry: LocalRegistry) -> Sequence[int]:
    with registry.catalog.reading() as session:
        return models_to_repack(session, everything=True)


def repack_new(registry: LocalRegistry) -> int:
    with registry.catalog.reading() as session:
        models = models_to_repack(session)
    return repack(registry.catalog, registry.blobs, models).repacked


@pytest.mark.long
@pytest.mark.parametrize("order", [list(SOURCES), list(reversed(SOURCES)), sorted(SOURCES)])
def test_the_size_after_a_repack_does_not_depend_on_the_order(
    order: Sequence[str], templates: RegistryTemplates, registry: LocalRegistry, tmp_path: Path
) -> None:
    with templates.open_copy(add_family, tmp_path / "best") as best:
        repack_new(best)
        for name in order:
            ingest_bytes(registry, tmp_path, name, SOURCES[name])
        repack_new(registry)
        assert stored_bytes(registry) <= 1.02 * stored_bytes(best)
    assert max(row.depth for row in all_blobs(registry.catalog)) <= DEPTH_MAX
    assert verify(registry.catalog, registry.blobs, read_data=Share(1, 1)).faults == []


def dequantised_pair(quantised_dtype: str, dtype: str) -> dict[str, bytes]:
    """Return files of a quantisation, and of a model that was made from its values."""
    kind, target = dtype_by_name(quantised_dtype), dtype_by_name(dtype)
    small, full = [], []
    for spec, data in block_tensors(1, 256, 3, "F32"):
        if len(spec.shape) == 1:
            small.append((spec, data))
            full.append((spec, data))
            continue
        blocks = quantised(np.frombuffer(data, np.float32).reshape(spec.shape[::-1]), kind).tobytes()
        small.append((TensorSpec(spec.name, spec.shape, kind), blocks))
        full.append((TensorSpec(spec.name, spec.shape, target), quantize(dequantize(blocks, kind), target)))
    return {"small": model_file("Small", small), "full": model_file("Full", full)}


@pytest.mark.parametrize(
    ("order", "dtypes"),
    [
        (("small", "full"), ("Q4_1", "F16")),
        (("full", "small"), ("Q4_K", "BF16")),
        (("full", "small"), ("Q8_0", "F16")),
    ],
)
def test_a_dequantised_model_costs_less_than_one_percent_in_any_order(
    order: Sequence[str], dtypes: tuple[str, str], registry: LocalRegistry, tmp_path: Path
) -> None:
    files = dequantised_pair(*dtypes)
    for name in order:
        ingest_bytes(registry, tmp_path, name, files[name])
    repack_new(registry)
    full = [row for row in all_blobs(registry.catalog) if row.parent is not None]
    assert {row.codec for row in full} == {f"{dtypes[1]}-from-{dtypes[0]}".lower()}
    assert sum(row.stored_bytes for row in full) < 0.01 * sum(row.size_bytes for row in full)
    assert repack_new(registry) == 0
    remove(registry, "small")
    sweep_at_once(registry)
    assert verify(registry.catalog, registry.blobs, read_data=Share(1, 1)).faults == []
    (path,) = assemble_model(registry, "local/full", tmp_path)
    assert path.read_bytes() == files["full"]


def test_a_model_with_other_values_is_not_stored_by_a_quantisation(registry: LocalRegistry, tmp_path: Path) -> None:
    for name in ("coarse", "half"):
        ingest_bytes(registry, tmp_path, name, SOURCES[name])
    repack_new(registry)
    assert not any("-from-q" in row.codec for row in all_blobs(registry.catalog))


@pytest.mark.long
def test_a_repack_examines_a_model_once_and_a_second_run_changes_nothing(
    templates: RegistryTemplates, tmp_path: Path
) -> None:
    with templates.open_copy(add_family_backwards, tmp_path / "home") as registry:
        before = stored_bytes(registry)
        with registry.catalog.reading() as session:
            models = models_to_repack(session)
        estimate = repack(registry.catalog, registry.blobs, models, dry_run=True)
        assert stored_bytes(registry) == before
        done = repack(registry.catalog, registry.blobs, models)
        assert done.repacked == estimate.repacked > 0
        assert before - stored_bytes(registry) == done.before_bytes - done.after_bytes > 0
        with registry.catalog.reading() as session:
            assert models_to_repack(session) == []
        assert repack(registry.catalog, registry.blobs, models).repacked == 0


def test_a_repack_of_a_model_examines_only_what_is_like_it(
    templates: RegistryTemplates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Collection[int] | None] = []

    def record(session: Session, place: ExpertPlace, model_ids: Collection[int] | None) -> list[RelatedOrgan]:
        compared.append(model_ids)
        return related_organs_at(session, place, model_ids)

    monkeypatch.setattr(references, "related_organs_at", record)
    with templates.open_copy(add_family_backwards, tmp_path / "home") as registry:
        for seed, name in ((1, "stranger"), (2, "other")):
            ingest_bytes(registry, tmp_path, name, family_files(["base"], seed=seed)["base"])
        with registry.catalog.reading() as session:
            stranger = model_by_name(session, parse_model_name("local/stranger")).id
            base = model_by_name(session, parse_model_name("local/base")).id
        assert repack(registry.catalog, registry.blobs, [stranger]).organs == 0
        assert {models is not None and len(models) for models in compared} == {1}
        compared.clear()
        assert repack(registry.catalog, registry.blobs, [base]).repacked > 0
        assert {models is not None and len(models) for models in compared} == {len(SOURCES)}
        monkeypatch.setattr(references, "PROBED_MAX", 0)
        assert repack_new(registry) == 0
        assert compared[-1] is None


@pytest.mark.long
def test_an_estimate_counts_no_organ_whose_dependants_outside_of_its_family_forbid_a_parent(
    templates: RegistryTemplates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "CHANGE_MIN", 0.0)
    with templates.open_copy(add_family, tmp_path / "home") as registry:
        for name in LATER:
            ingest_bytes(registry, tmp_path, name, LATER[name])
        ids = all_models(registry)
        refused = 0
        for members in (2, 3, 4):
            monkeypatch.setattr(references, "FAMILY_MAX", members)
            estimate = repack(registry.catalog, registry.blobs, ids, dry_run=True)
            with monkeypatch.context() as patch:
                patch.setattr(references, "heights_of_blobs", lambda _session, ids, **_: dict.fromkeys(ids, 0))
                refused += repack(registry.catalog, registry.blobs, ids, dry_run=True).repacked - estimate.repacked
            done = repack(registry.catalog, registry.blobs, ids)
            assert (done.repacked, done.skipped) == (estimate.repacked, 0)
        assert refused > 0
        assert verify(registry.catalog, registry.blobs, read_data=Share(1, 1)).faults == []


def test_bytes_that_are_organs_of_two_tensor_types_are_one_member_of_a_family(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for name, label, is_tuned in (("base", "IQ4_NL", False), ("tuned", "IQ4_NL", True), ("renamed", "Q4_0", False)):
        tensors = []
        for spec, data in related_tensors(dtype="Q4_0"):
            if len(spec.shape) > 1:
                blocks = np.frombuffer(data, np.uint8).reshape(-1, 18).copy()
                blocks[::3, 5] ^= np.uint8(is_tuned)
                tensors.append((TensorSpec(spec.name, spec.shape, dtype_by_name(label)), blocks.tobytes()))
        ingest_bytes(registry, tmp_path, name, model_file(name, tensors))
    assert ("delta", 1, False) in blob_forms(registry)
    assert repack(registry.catalog, registry.blobs, all_models(registry)).skipped == 0
    assert repack(registry.catalog, registry.blobs, all_models(registry)).repacked == 0


def test_a_model_whose_organs_an_ingest_used_is_examined_again_when_that_has_ended(
    templates: RegistryTemplates, tmp_path: Path
) -> None:
    with templates.open_copy(add_family_backwards, tmp_path / "home") as registry:
        with registry.catalog.writing() as session:
            coarsest = model_by_name(session, parse_model_name("local/coarsest")).id
            base = model_by_name(session, parse_model_name("local/base")).id
            ingest = begin_ingest(session, "a test")
            leased = blob_ids_of_models(session, [coarsest]) - blob_ids_of_models(session, [base])
            lease_blobs(session, ingest, sorted(leased))
            mark_repacked(session, [coarsest], now())
        assert repack(registry.catalog, registry.blobs, [base]).skipped > 0
        with registry.catalog.writing() as session:
            assert coarsest in models_to_repack(session)
            assert base not in models_to_repack(session)
            forget_ingest(session, ingest)
        assert repack_new(registry) > 0
        with registry.catalog.reading() as session:
            assert not models_to_repack(session)


def test_an_ingest_keeps_few_stored_bytes_of_related_organs(
    templates: RegistryTemplates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with templates.open_copy(add_family, tmp_path / "home") as registry, registry.catalog.reading() as session:
        base = model_by_name(session, parse_model_name("local/base")).id
        every = search_parents(session, {}, [base])
        monkeypatch.setattr(references, "batches", partial(batches, size=1))
        monkeypatch.setattr(references, "RELATED_INLINE_MAX_BYTES", 1)
        assert len(search_parents(session, {}, [base]).blob_ids) < len(every.blob_ids)


@pytest.mark.long
@pytest.mark.parametrize("left", [["coarsest"], ["tuned", "retuned"], ["coarse", "tuned-coarse"]])
def test_a_repack_gives_up_parents_of_removed_models_that_cost_more_than_they_save(
    left: list[str], templates: RegistryTemplates, registry: LocalRegistry, tmp_path: Path
) -> None:
    with templates.open_copy(add_family, tmp_path / "all") as everything:
        ingest_bytes(everything, tmp_path, "retuned", LATER["retuned"])
        repack_new(everything)
        for name in {*SOURCES, "retuned"} - set(left):
            remove(everything, name)
        with everything.catalog.reading() as session:
            models = models_to_repack(session)
        assert models, "a removal has them examined again"
        estimate = repack(everything.catalog, everything.blobs, models, dry_run=True)
        report = repack(everything.catalog, everything.blobs, models)
        assert (report.repacked, report.unneeded_bytes) == (estimate.repacked, estimate.unneeded_bytes)
        assert report.unneeded_bytes > 0
        sweep_at_once(everything)
        for name in left:
            ingest_bytes(registry, tmp_path, name, (SOURCES | LATER)[name])
        repack_new(registry)
        assert stored_bytes(everything) <= 1.02 * stored_bytes(registry)
        assert_whole(everything, SOURCES | LATER, tmp_path / "back")


@pytest.mark.long
def test_a_repack_gives_up_experts_of_removed_models_before_a_sweep(registry: LocalRegistry, tmp_path: Path) -> None:
    for dtype in ("F32", "F16"):
        ingest_bytes(registry, tmp_path, f"mixture-{dtype}", expert_model(dtype=dtype))
    repack_new(registry)
    remove(registry, "mixture-F32")
    assert registry.storage().kept_bytes > 0
    with registry.catalog.reading() as session:
        models = models_to_repack(session)
    assert repack(registry.catalog, registry.blobs, models).unneeded_bytes > 0
    assert registry.storage().kept_bytes == 0


def test_models_are_examined_again_if_one_was_removed_during_a_repack(
    templates: RegistryTemplates, tmp_path: Path
) -> None:
    with templates.open_copy(add_family, tmp_path / "home") as registry:
        ids = all_models(registry)
        removed: list[str] = []

        def remove_once(_organs: int) -> None:
            if not removed:
                removed.append("base")
                remove(registry, "base")

        repack(registry.catalog, registry.blobs, ids, progress=remove_once)
        assert set(all_models(registry)) == {model_id for model_id in ids if model_id != min(ids)}
        with registry.catalog.reading() as session:
            assert list(models_to_repack(session)) == list(all_models(registry))


@pytest.mark.folder
def test_parents_of_removed_models_are_kept_for_an_organ_that_cannot_be_read(
    templates: RegistryTemplates, tmp_path: Path
) -> None:
    with templates.open_copy(add_family, tmp_path / "home") as registry:
        ingest_bytes(registry, tmp_path, "retuned", LATER["retuned"])
        repack_new(registry)
        for name in {*SOURCES} - {"tuned"}:
            remove(registry, name)
        sweep_at_once(registry)
        kept = registry.storage().kept_bytes
        rows = [row for row in all_blobs(registry.catalog) if row.file and row.depth == 1]
        for row in rows[::2]:
            (registry.settings.blobs / (row.file or "")).unlink()
        report = repack(registry.catalog, registry.blobs, all_models(registry))
        sweep_at_once(registry)
        assert report.unneeded_bytes == kept - registry.storage().kept_bytes


@pytest.mark.long
def test_a_repack_keeps_parents_of_removed_models_that_save_more_than_they_cost(
    templates: RegistryTemplates, tmp_path: Path
) -> None:
    with templates.open_copy(add_family, tmp_path / "home") as registry:
        for name in LATER:
            ingest_bytes(registry, tmp_path, name, LATER[name])
        repack_new(registry)
        remove(registry, "half")
        before = stored_bytes(registry)
        repack_new(registry)
        sweep_at_once(registry)
        assert stored_bytes(registry) <= before
        assert_whole(registry, SOURCES | LATER, tmp_path / "back")


def test_everything_is_stored_alone_again_if_references_are_off(templates: RegistryTemplates, tmp_path: Path) -> None:
    with templates.open_copy(add_family, tmp_path / "home") as registry:
        settings = replace(registry.settings, references=False)
        with LocalRegistry.from_settings(settings) as switched_off:
            store_alone(switched_off.catalog, switched_off.blobs, all_models(switched_off))
            assert {kind for kind, _, _ in blob_forms(switched_off)} == {"alone"}
            ingest_bytes(switched_off, tmp_path, "more", family_files(["retuned"])["retuned"])
            assert {kind for kind, _, _ in blob_forms(switched_off)} == {"alone"}
            assert verify(switched_off.catalog, switched_off.blobs, read_data=Share(1, 1)).faults == []
        assert repack_new(registry) > 0


def test_an_organ_that_not_everybody_may_see_is_no_parent(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "hidden", SOURCES["base"])
    with registry.catalog.writing() as session:
        hidden = model_by_name(session, parse_model_name("local/hidden"))
        hide_model(session, hidden, "yanked", "a test", "local")
        digests = set(organ_digests(session, hidden.id).values())
    ingest_bytes(registry, tmp_path, "tuned", SOURCES["tuned"])
    assert {kind for kind, _, _ in blob_forms(registry)} == {"alone"}
    repack_new(registry)
    parents = {row.parent.digest for row in all_blobs(registry.catalog) if row.parent is not None}
    assert parents
    assert not parents & digests


def test_unrelated_models_of_one_shape_are_stored_alone(registry: LocalRegistry, tmp_path: Path) -> None:
    for seed, name in enumerate(("first", "second", "third")):
        ingest_bytes(registry, tmp_path, name, model_file(name, related_tensors(seed)))
    assert {kind for kind, _, _ in blob_forms(registry)} == {"alone"}
    assert repack_new(registry) == 0
