"""Rows of sizes and sensitivities: recorded, replaced, shown while their models are, removed with their source."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.queries.sizes import (
    sensitivities_of,
    size_by_tag,
    size_curve,
    sizes_of,
    source_of_size,
)
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.model_changes import hide_model, remove_model
from organs.registry.catalog.register.sizes import record_sensitivity
from organs.registry.catalog.tables import SizeRow
from organs.registry.entities.sizes import SizePoint
from organs.registry.local import LocalRegistry
from tests.registry_templates import RegistryTemplates, add_three_models
from tests.sizes import RUNTIME, TEXTS, add_size

KEY = ("ab" * 32, TEXTS, 512, RUNTIME)


@pytest.fixture
def kin(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, add_three_models)
    return registry


def points(registry: LocalRegistry, source: str = "local/base") -> list[SizePoint]:
    with registry.catalog.reading() as session:
        return sizes_of(session, model_by_text(session, source).id)


def test_a_sensitivity_is_measured_once(kin: LocalRegistry) -> None:
    digest, texts, tokens, runtime = KEY
    with kin.catalog.writing() as session:
        for organs, dtype, found in (
            ("ffn_up 0-3", "Q4_K", "1"),
            ("ffn_up 0-3", "Q4_K", "2"),
            ("attn_k 0", "Q6_K", "3"),
        ):
            record_sensitivity(session, digest, organs, dtype, texts, tokens, runtime, found)
        record_sensitivity(session, digest, "attn_k 0", "Q6_K", texts, tokens, runtime, "4", importances="cd" * 32)
    with kin.catalog.reading() as session:
        assert sensitivities_of(session, *KEY) == {("ffn_up 0-3", "Q4_K"): "1", ("attn_k 0", "Q6_K"): "3"}
        assert sensitivities_of(session, *KEY, "cd" * 32) == {("attn_k 0", "Q6_K"): "4"}
        for other in ((digest[::-1], *KEY[1:]), (*KEY[:2], 511, runtime), (*KEY[:3], "another")):
            assert sensitivities_of(session, *other) == {}


def test_sizes_are_listed_from_the_smallest_and_found_by_their_tags(kin: LocalRegistry) -> None:
    add_size(kin, "local/base", "4.5bpw", 4_500_000, 0.01, model="local/tuned")
    add_size(kin, "local/base", "Q2_K", 2_000_000, 0.3, kind="plain")
    add_size(kin, "local/tuned", "4.5bpw", 1)
    found = points(kin)
    assert [(point.tag, point.kind, point.model) for point in found] == [
        ("Q2_K", "plain", None),
        ("4.5bpw", "chosen", "local/tuned@1"),
    ]
    assert (found[1].divergence, found[1].bits, found[1].size_bytes) == (0.01, 4.5, 4_500_000)
    with kin.catalog.reading() as session:
        base, tuned = (model_by_text(session, name) for name in ("local/base", "local/tuned"))
        assert size_by_tag(session, base.id, "4.5BPW") == found[1]
        assert size_by_tag(session, base.id, "5bpw") is None
        assert source_of_size(session, tuned.id) == "local/base@1"
        assert source_of_size(session, base.id) is None
        curve = size_curve(session, base)
    assert (curve.source, curve.source_size_bytes, curve.runtime, curve.texts) == (
        *("local/base@1", base.size_bytes, RUNTIME, TEXTS),
    )
    assert kin.sizes("local/base") == curve
    assert kin.sizes("local/stranger").points == ()


def test_a_size_replaces_an_earlier_one_with_its_tag(kin: LocalRegistry) -> None:
    add_size(kin, "local/base", "4bpw", 4_000_000, 0.02)
    add_size(kin, "local/base", "4bpw", 3_900_000, None, model="local/tuned")
    (found,) = points(kin)
    assert (found.size_bytes, found.divergence, found.model) == (3_900_000, None, "local/tuned@1")


def test_a_size_in_the_namespace_of_the_source_is_not_replaced_by_one_of_somebody_else(kin: LocalRegistry) -> None:
    add_size(kin, "local/base", "4bpw", 4_000_000, 0.02, model="local/tuned")
    with kin.catalog.writing() as session:
        model_by_text(session, "local/stranger").namespace = "mallory"
    add_size(kin, "local/base", "4bpw", 3_000_000, 0.01, model="mallory/stranger")
    assert [point.model for point in points(kin)] == ["local/tuned@1"]
    add_size(kin, "local/base", "3bpw", 3_000_000, 0.01, model="mallory/stranger")
    add_size(kin, "local/base", "3bpw", 2_900_000, 0.02, model="local/tuned")
    assert [point.model for point in points(kin)] == ["local/tuned@1"] * 2


def test_a_size_has_no_name_while_its_model_is_not_reachable(kin: LocalRegistry) -> None:
    add_size(kin, "local/base", "4bpw", 4_000_000, model="local/tuned")
    for state, name in (("yanked", "local/tuned@1"), ("quarantined", None)):
        with kin.catalog.writing() as session:
            hide_model(session, model_by_text(session, "local/tuned"), state, "a reason", LOCAL)
        assert [point.model for point in points(kin)] == [name]


def test_the_sizes_of_a_removed_model_are_removed_and_those_of_its_source_stay(kin: LocalRegistry) -> None:
    add_size(kin, "local/base", "4bpw", 4_000_000, model="local/tuned")
    add_size(kin, "local/tuned", "3bpw", 3_000_000)
    with kin.catalog.writing() as session:
        remove_model(session, model_by_text(session, "local/tuned"), "a reason", LOCAL)
    (found,) = points(kin)
    assert (found.tag, found.model) == ("4bpw", None)
    with kin.catalog.writing() as session:
        remove_model(session, model_by_text(session, "local/base"), "a reason", LOCAL)
        assert session.scalar(select(func.count()).select_from(SizeRow)) == 0
