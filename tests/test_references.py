"""Tests of the parents of organs: who is chosen at ingest and by a repack, whatever arrived first, and who never is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.queries.organs import DEPTH_MAX
from organs.registry.catalog.queries.relatives import models_to_repack, organ_digests
from organs.registry.catalog.register.models import hide_model
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.references import repack, store_alone
from organs.registry.upkeep import Share, all_blobs, verify
from tests.registry_templates import RegistryTemplates, add_family, add_family_backwards
from tests.related_models import blob_forms, family_files, ingest_bytes, model_file, related_tensors
from tests.small_models import assemble_model

SOURCES = family_files()


def stored_bytes(registry: LocalRegistry) -> int:
    return sum(row.stored_bytes for row in all_blobs(registry.catalog))


def repack_new(registry: LocalRegistry) -> int:
    with registry.catalog.reading() as session:
        models = models_to_repack(session)
    return repack(registry.catalog, registry.blobs, models).repacked


def test_a_family_is_stored_by_differences_and_comes_back(templates: RegistryTemplates, tmp_path: Path) -> None:
    with templates.open_copy(add_family, tmp_path / "home") as registry:
        forms = blob_forms(registry)
        assert {kind for kind, _, _ in forms} == {"alone", "delta", "derive"}
        assert max(depth for _, depth, _ in forms) == DEPTH_MAX
        for name, data in SOURCES.items():
            (path,) = assemble_model(registry, f"local/{name}", tmp_path)
            assert path.read_bytes() == data


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


def test_a_repack_of_a_model_examines_only_what_is_like_it(templates: RegistryTemplates, tmp_path: Path) -> None:
    with templates.open_copy(add_family_backwards, tmp_path / "home") as registry:
        for seed, name in ((1, "stranger"), (2, "other")):
            ingest_bytes(registry, tmp_path, name, family_files(["base"], seed=seed)["base"])
        with registry.catalog.reading() as session:
            stranger = model_by_name(session, parse_model_name("local/stranger")).id
            base = model_by_name(session, parse_model_name("local/base")).id
        assert repack(registry.catalog, registry.blobs, [stranger]).organs == 0
        assert repack(registry.catalog, registry.blobs, [base]).repacked > 0
        assert repack_new(registry) == 0


def test_everything_is_stored_alone_again_if_references_are_off(templates: RegistryTemplates, tmp_path: Path) -> None:
    with templates.open_copy(add_family, tmp_path / "home") as registry:
        settings = replace(registry.settings, references=False)
        with LocalRegistry.from_settings(settings) as switched_off:
            store_alone(switched_off.catalog, switched_off.blobs)
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
