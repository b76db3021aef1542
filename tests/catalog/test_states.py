"""Tests of model states: in any order of changes the counts equal a recount and no model is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from organs.ingest.service import publish_model
from organs.registry.catalog.queries.blobs import unneeded
from organs.registry.catalog.queries.model_contents import placements_of
from organs.registry.catalog.queries.model_names import model_by_text, removed_with_digest
from organs.registry.catalog.register.model_changes import hide_model, remove_model, show_model
from organs.registry.catalog.tables import (
    Base,
    Blob,
    EventRow,
    Lineage,
    ModelRow,
    OrganRow,
    Placement,
    now,
)
from organs.registry.compose.chimeras import chimera_of_model
from organs.registry.digest import Digest
from organs.registry.errors import BadValue, Busy, Conflict, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.relatives.lineage import lineage_of
from organs.registry.search.language import MODELS, parse_query
from organs.registry.search.models import search_models
from organs.registry.upkeep import verify
from tests.catalog.counts import assert_counts_are_right, model_named, rolled_back
from tests.catalog.test_register import record, register_in
from tests.random_files import BESIDE_FIXTURES
from tests.related_models import (
    declared_pairs,
    ingest_all,
    measured_pairs,
    model_file,
    parent_entries,
    related_tensors,
)
from tests.small_models import assemble_model

ACTS = ("show", "yank", "quarantine", "remove")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    """Return a registry with a base, a fine-tune, an unrelated model, and a chimera of both with a computed organ."""
    home = tmp_path_factory.mktemp("states")
    with LocalRegistry.open(home / "home") as opened:
        tuned = model_file("Tuned", related_tensors(correlation=0.9), parent_entries("Base"))
        ingest_all(opened, home, base=related_tensors(), tuned=tuned, stranger=related_tensors(seed=7))
        recipe = opened.compose("base").graft("tuned", type="organ", blocks=0).graft("stranger", type="organ", blocks=1)
        recipe = recipe.purify("fractal", slot="attn_q").accept("unrelated-lineage")
        recipe.plan().register()
        yield opened


@pytest.fixture
def session(family: LocalRegistry) -> Iterator[Session]:
    """Yield a session whose changes are rolled back."""
    with rolled_back(family) as session:
        yield session


def act(session: Session, model: ModelRow, what: str) -> None:
    """Change the state of a model as an owner or administrator; a refusal changes nothing."""
    deeds: dict[str, Callable[[], None]] = {
        "show": lambda: show_model(session, model, "local"),
        "yank": lambda: hide_model(session, model, "yanked", "it was wrong", "local"),
        "quarantine": lambda: hide_model(session, model, "quarantined", "to be looked at", "local"),
        "remove": lambda: remove_model(session, model, "not ours to give", "local"),
    }
    before = model.state
    try:
        deeds[what]()
    except Conflict:
        assert model.state == before


STEPS = st.lists(
    st.tuples(st.sampled_from((*ACTS, "visible", "quarantined")), st.integers(min_value=0, max_value=5)), max_size=8
)


@settings(BESIDE_FIXTURES, max_examples=15)
@given(steps=STEPS)
def test_the_counts_equal_a_recount_after_any_changes_of_state(
    family: LocalRegistry, steps: list[tuple[str, int]]
) -> None:
    with rolled_back(family) as session:
        for what, number in steps:
            models = session.scalars(select(ModelRow).order_by(ModelRow.id)).all()
            model = models[number % len(models)]
            if what in ACTS:
                act(session, model, what)
            else:
                register_in(session, record("new", state=what), keep_name=True)
            assert_counts_are_right(session)


def listed(session: Session) -> list[str]:
    return [model.name for model in search_models(session, parse_query("", MODELS), 10)]


def test_a_yanked_model_is_found_by_name_and_digest_but_not_by_search(session: Session) -> None:
    model = model_named(session, "tuned")
    hide_model(session, model, "yanked", "trained on the test set", "local")
    assert (model_named(session, "tuned@1"), model_by_text(session, f"sha256:{model.digest}")) == (model, model)
    assert (model.state_reason, model.changed_at is not None) == ("trained on the test set", True)
    assert model.full_name not in listed(session)
    show_model(session, model, "local")
    assert (model.state, model.state_reason) == ("visible", None)
    assert model.full_name in listed(session)
    assert_counts_are_right(session)


@pytest.mark.parametrize("state", ["quarantined", "removed"])
def test_a_quarantined_or_removed_model_is_not_disclosed(session: Session, state: str) -> None:
    model = model_named(session, "tuned")
    base = model_named(session, "base")
    assert "tuned" in str(lineage_of(session, base))
    act(session, model, {"quarantined": "quarantine", "removed": "remove"}[state])
    assert model.state == state
    for name in ("tuned", "tuned@1", f"sha256:{model.digest}"):
        with pytest.raises(NotFound):
            model_by_text(session, name)
    assert "tuned" not in str(lineage_of(session, base))


def test_every_change_of_state_is_an_event_with_its_reason(session: Session) -> None:
    model = model_named(session, "tuned")
    for what in ("yank", "show", "quarantine", "show", "remove"):
        act(session, model, what)
    rows = session.execute(
        select(EventRow.action, EventRow.text).where(EventRow.model_id == model.id).order_by(EventRow.id)
    ).all()
    assert [action for action, _ in rows] == ["ingest", "yank", "restore", "quarantine", "publish", "remove"]
    assert rows[1][1] == "local/tuned@1: it was wrong"


@pytest.mark.parametrize(
    ("deed", "sentence"),
    [
        (lambda s, m: hide_model(s, m, "yanked", " ", "local"), "a reason is missing"),
        (lambda s, m: hide_model(s, m, "yanked", "x" * 1001, "local"), "1000 are allowed"),
        (lambda s, m: (act(s, m, "quarantine"), hide_model(s, m, "yanked", "why", "local")), "nothing to yank"),
        (lambda s, m: (act(s, m, "remove"), show_model(s, m, "local")), "was removed"),
        (lambda s, m: (act(s, m, "remove"), publish_model(s, m, "local")), "was removed"),
        (lambda s, m: (act(s, m, "remove"), hide_model(s, m, "yanked", "why", "local")), "was removed"),
        (lambda s, m: (act(s, m, "remove"), remove_model(s, m, "why", "local")), "was removed"),
    ],
)
def test_an_impossible_change_of_state_or_a_missing_reason_is_refused(
    session: Session, deed: Callable[[Session, ModelRow], object], sentence: str
) -> None:
    model = model_named(session, "stranger")
    with pytest.raises((BadValue, Conflict), match=sentence):
        deed(session, model)
    assert_counts_are_right(session)


def test_a_removed_model_keeps_only_its_name_and_the_reason(session: Session) -> None:
    model = model_named(session, "stranger")
    size_bytes = model.size_bytes
    remove_model(session, model, "not ours to give", "local")
    for name, table in Base.metadata.tables.items():
        if name not in ("events", "ingests", "lineage") and "model_id" in table.c:
            assert session.scalar(select(func.count()).where(table.c.model_id == model.id)) == 0, name
    assert (model.full_name, model.state, model.state_reason) == ("local/stranger@1", "removed", "not ours to give")
    assert (model.title, model.license, model.size_bytes) == (None, None, size_bytes)
    assert removed_with_digest(session, Digest(model.digest)) == model
    assert register_in(session, record("stranger"), keep_name=True).model.version == 2


@pytest.mark.parametrize("name", ["base", "stranger", "tuned"])
def test_removal_frees_the_bytes_that_no_other_model_has(session: Session, name: str) -> None:
    model = model_named(session, name)
    held = {digest for _, _, digest, _ in placements_of(session, model.id)}
    others = select(ModelRow).where(ModelRow.id != model.id)
    kept = {digest for other in session.scalars(others) for _, _, digest, _ in placements_of(session, other.id)}
    assert held & kept
    assert held - kept
    remove_model(session, model, "gone", "local")
    free = {blob.digest for blob in session.scalars(select(Blob).where(Blob.id.in_(_free(session))))}
    assert held & free == held - kept
    alone = (
        select(func.count())
        .select_from(OrganRow)
        .where(~select(Placement.id).where(Placement.organ_id == OrganRow.id).exists())
    )
    assert session.scalar(alone) == 0
    dissected = select(Lineage.parent_model_id).where(Lineage.relation == "dissected")
    assert model.id not in set(session.scalars(dissected))


def _free(session: Session) -> list[int]:
    return [blob.id for blob in session.scalars(unneeded(now()))]


def test_a_chimera_outlives_its_base_and_its_donors(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_all(registry, tmp_path, base=related_tensors(), donor=related_tensors(seed=7))
    recipe = registry.compose("base").graft("donor", type="organ", blocks=1).purify("fractal", slot="attn_q")
    made = recipe.accept("unrelated-lineage").plan().register()
    before = assemble_model(registry, made.model, tmp_path / "before")[0].read_bytes()
    with registry.catalog.writing() as session:
        for name in ("base", "donor"):
            remove_model(session, model_named(session, name), "gone", "local")
    with registry.catalog.reading() as session:
        chimera = chimera_of_model(session, model_named(session, made.model))
    assert chimera is not None
    assert [(parent.model, parent.license) for parent in chimera.parents] == [
        ("local/base@1", None),
        ("local/donor@1", None),
    ]
    assert all(part.theta_before is None for part in chimera.parts)
    assert assemble_model(registry, made.model, tmp_path / "after")[0].read_bytes() == before
    report = verify(registry.catalog, registry.blobs)
    assert (report.faults, report.miscounted) == ([], {})


def test_a_quarantined_model_gets_its_relatives_when_it_is_published(registry: LocalRegistry, tmp_path: Path) -> None:
    child = model_file("Child", related_tensors(correlation=0.9), parent_entries("Base"))
    late = model_file("Late", related_tensors(correlation=0.8, other_seed=5), parent_entries("Base"))
    ingest_all(registry, tmp_path, base=related_tensors(), child=child)
    pairs, declared = measured_pairs(registry), declared_pairs(registry)
    with registry.catalog.writing() as session:
        hide_model(session, model_named(session, "base"), "quarantined", "to be looked at", "local")
    ingest_all(registry, tmp_path, late=late)
    assert declared_pairs(registry) != declared
    with registry.catalog.writing() as session:
        (base,) = session.scalars(select(ModelRow).where(ModelRow.name == "base"))
        publish_model(session, base, "local")
        publish_model(session, base, "local")
    names = {"late", "base"}
    assert measured_pairs(registry).keys() >= pairs.keys() | {frozenset(names)}, "each pair has one edge"
    assert declared_pairs(registry) >= declared
    assert any(names <= set(pair[:2]) for pair in declared_pairs(registry))


def test_there_is_one_writer_at_a_time(registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        session.scalars(select(ModelRow)).all()
        with pytest.raises(Busy), registry.catalog.writing(waits=False) as other:
            other.scalars(select(ModelRow)).all()
    with registry.catalog.writing(waits=False) as other:
        other.scalars(select(ModelRow)).all()
