"""Tests of editing the metadata of a model: searches and counts follow, the bytes do not change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.ingest.contributions.manifest import read_edits
from organs.registry.catalog.records import Edits
from organs.registry.catalog.register.model_changes import edit_model, hide_model, remove_model
from organs.registry.catalog.tables import EventRow, Lineage, ModelRow, OtherName
from organs.registry.catalog.vocabulary import WORDS_MAX
from organs.registry.compose.licenses import license_problem
from organs.registry.compose.parents import RegisteredLibrary
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import read_recipe
from organs.registry.entities.published import DESCRIPTION_MAX
from organs.registry.errors import BadValue, Conflict
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.relatives import resolve_declared
from organs.registry.relatives.lineage import lineage_of
from organs.registry.search.language import MODELS, parse_query
from organs.registry.search.models import search_models
from organs.registry.search.rows import search_organs
from tests.catalog.counts import assert_counts_are_right, model_named, rolled_back
from tests.related_models import ingest_all, model_file, parent_entries, related_tensors


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    """Return a registry with a base and a child that declares another, unregistered parent."""
    home = tmp_path_factory.mktemp("editing")
    with LocalRegistry.open(home / "home") as opened:
        child = model_file("Child", related_tensors(correlation=0.9), parent_entries("Elsewhere"))
        ingest_all(opened, home, base=related_tensors(), child=child)
        yield opened


@pytest.fixture
def session(family: LocalRegistry) -> Iterator[Session]:
    """Yield a session whose changes are rolled back."""
    with rolled_back(family) as session:
        yield session


def edit(session: Session, name: str = "child", **changes: object) -> list[str]:
    edits, wrong = read_edits(changes)
    assert not wrong
    return edit_model(session, model_named(session, name), edits, "local")


def found(session: Session, query: str) -> list[str]:
    return sorted(parse_model_name(model.name).name for model in search_models(session, parse_query(query, MODELS), 10))


def test_an_edited_model_is_found_by_its_new_words(session: Session) -> None:
    edit(session, title="Weaver", description="Spins *yarns*.", tags=["wool", "wool", "Größe"])
    assert found(session, "weaver yarns wool größe") == ["child"]
    edit(session, tags=["  a b ", "", "a b", "c"])
    assert model_named(session, "child").tags == ("a b", "c")
    edit(session, title="", description=None, tags=[])
    assert (found(session, "weaver"), found(session, "wool")) == ([], [])
    model = model_named(session, "child")
    assert (model.title, model.description, model.tags) == (None, None, ())
    session.add(
        OtherName(namespace="old", name="earlier", version=1, model_id=model_named(session, "child").id, stem="earlier")
    )
    edit(session, description=" ".join(f"w{number}" for number in range(2 * WORDS_MAX)))
    assert found(session, "earlier") == ["child"]


def test_a_new_license_changes_the_organs_and_the_counts(session: Session) -> None:
    edit(session, license="mit")
    assert found(session, "license:mit") == ["child"]
    organs = search_organs(session, parse_query("license:mit"), 50)
    assert {organ.model for organ in organs} == {"local/child@1"}
    assert_counts_are_right(session)
    edit(session, license="")
    assert (model_named(session, "child").license, found(session, "license:none")) == (None, ["child"])
    assert_counts_are_right(session)


def test_editing_a_hidden_model_changes_no_count(session: Session) -> None:
    hide_model(session, model_named(session, "child"), "yanked", "it was wrong", "local")
    edit(session, license="mit", title="Weaver")
    assert (found(session, "license:mit"), found(session, "weaver")) == ([], [])
    assert_counts_are_right(session)


def test_a_registered_base_is_linked_and_replaces_the_parent_in_the_file(session: Session) -> None:
    edit(session, base="local/base")
    (edge,) = _declared(session)
    assert (edge.parent_text, edge.parent_model_id) == ("local/base", model_named(session, "base").id)
    resolve_declared(session, model_named(session, "child"))
    assert lineage_of(session, model_named(session, "child")).edges[0].model == "local/base@1"
    edit(session, base="")
    assert _declared(session) == []


def test_a_base_that_is_registered_later_is_linked_then(session: Session) -> None:
    edit(session, base="someone/Base")
    assert _declared(session)[0].parent_model_id is None
    edit(session, base="local/Base")
    base = model_named(session, "base")
    assert _declared(session)[0].parent_model_id is None, "names are told apart by case"
    resolve_declared(session, base)
    assert _declared(session)[0].parent_model_id == base.id


def test_a_model_cannot_be_its_own_base(session: Session) -> None:
    with pytest.raises(Conflict, match="own base"):
        edit(session, base="local/child")


def _declared(session: Session) -> list[Lineage]:
    child = model_named(session, "child")
    statement = select(Lineage).where(Lineage.child_model_id == child.id, Lineage.evidence == "declared")
    return list(session.scalars(statement))


def test_the_log_has_every_change_and_no_entry_without_a_change(session: Session) -> None:
    changed = edit(session, title="Weaver", license="apache-2.0", description="x" * DESCRIPTION_MAX)
    model = model_named(session, "child")
    log_text = session.scalars(select(EventRow.text).where(EventRow.model_id == model.id).order_by(EventRow.id)).all()[
        -1
    ]
    assert changed == ["title 'Child' -> 'Weaver'", f"description (nothing) -> '{'x' * 79}…'"]
    assert log_text == f"local/child@1: {'; '.join(changed)}"
    assert model.changed_at is not None
    assert edit(session, title="Weaver") == []


def test_a_removed_model_cannot_be_edited(session: Session) -> None:
    model = model_named(session, "child")
    remove_model(session, model, "gone", "local")
    with pytest.raises(Conflict, match="was removed"):
        edit_model(session, model, Edits(title="x"), "local")


def test_text_that_is_too_long_for_its_column_is_refused(session: Session) -> None:
    for edits in (
        Edits(title="x" * 201),
        Edits(description="x" * (DESCRIPTION_MAX + 1)),
        Edits(tags=("x",) * 21),
        Edits(base="a\0b"),
    ):
        with pytest.raises(BadValue):
            edit_model(session, model_named(session, "child"), edits, "local")
    assert isinstance(session.scalar(select(ModelRow.title).where(ModelRow.name == "child")), str)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("title", "x" * 201, "The title has 201 characters; 200 are allowed."),
        ("title", "two\nlines", "must be one line"),
        ("title", "a\u202eb", "without control characters"),
        ("title", 7, "The title must be a text."),
        ("title", "a\0b", "NUL"),
        ("title", "\ud800", "not valid UTF-8"),
        ("description", "x" * (DESCRIPTION_MAX + 1), "65536 are allowed"),
        ("description", "bell \a", "control characters"),
        ("license", "do what you like", "Unknown license"),
        ("license", "x" * 97, "at most 96"),
        ("tags", "wool", "a list of texts"),
        ("tags", ["x"] * 21, "21 tags; at most"),
        ("tags", ["x" * 49], "48 are allowed"),
        ("tags", [["x"]], "A tag must be a text."),
        ("base", "a" * 201, "200 are allowed"),
    ],
)
def test_an_invalid_edit_is_reported_with_its_field(field: str, value: object, sentence: str) -> None:
    edits, wrong = read_edits({field: value, "tags" if field == "title" else "title": None})
    assert edits == Edits()
    ((wrong_field, message),) = wrong
    assert (wrong_field, sentence in message) == (field, True), message


@pytest.mark.parametrize(
    "text",
    ["mit", "Apache-2.0", "MIT OR Apache-2.0", "(mit AND cc-by-4.0) OR gpl-3.0+", "LicenseRef-mine",
     "gpl-2.0-only WITH Classpath-exception-2.0", "DocumentRef-x:LicenseRef-y", "other",
     "mit AND NOASSERTION", "(((mit)))"],
)  # fmt: skip
def test_a_license_is_an_spdx_expression_of_known_ids_or_references(text: str) -> None:
    assert license_problem(text) is None


@pytest.mark.parametrize(
    "text",
    ["", "  ", "nobody-knows", "mit mit", "mit AND", "AND mit", "(mit", "mit)", "()", "mit WITH", "WITH", "LicenseRef-",
     "LicenseRef-a b", "mit OR (gpl-3.0 AND", "(" * 96, "<script>", "mit; rm", "a" * 97],
)  # fmt: skip
def test_an_invalid_license_gets_a_sentence(text: str) -> None:
    problem = license_problem(text)
    assert problem is not None
    assert problem.endswith(".")


def test_an_edited_license_applies_to_chimeras(family: LocalRegistry) -> None:
    """The edited license applies although the header of the file has another or none."""
    with rolled_back(family) as session:
        edit_model(session, model_named(session, "child"), Edits(license="cc-by-nc-4.0"), "ada")
        library = RegisteredLibrary(session, family.blobs)
        assert library.parent("local/child").license == "cc-by-nc-4.0"
        assert library.parent("local/base").license == "apache-2.0"
        plan = plan_recipe(read_recipe("base: local/child\ngrafts: [{from: local/base, type: organ}]\n"), library)
        (stated,) = [str(entry.value).lower() for entry in plan.sets if entry.key == "general.license"]
    assert "cc-by-nc-4.0" in stated
    assert "cc-by-nc-4.0" in plan.license
    assert [finding.code for finding in plan.findings if "cc-by-nc-4.0" in finding.sentence]
