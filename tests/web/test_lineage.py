"""Families of models as graphs and lists: who is joined to whom, who is left out, and that names are text."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from organs.registry.catalog.tables import Lineage, ModelRow, now
from organs.registry.entities.base import decode
from organs.registry.entities.lineage import Family, FamilyEdge, FamilyMember, FamilyPage, MissingParent
from organs.registry.local import LocalRegistry
from organs.registry.relatives import families as relatives_families
from organs.web.app import create_app
from organs.web.charts.families import BOX_HEIGHT, BOX_WIDTH, TITLE_WIDTH, draw, family_tree, shortened, title_width
from organs.web.pages import lineage
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_all, ingest_bytes, model_file, parent_entries, related_tensors
from tests.small_models import block_tensors
from tests.web.conftest import HOSTILE
from tests.web.page_parser import page_at


def families(client: FlaskClient, address: str = "/lineage.json") -> tuple[Family, ...]:
    """The families of the API that the JSON address of the page leads to."""
    return decode(client.get(address, follow_redirects=True).data, FamilyPage).items


def add_strangers(registry: LocalRegistry, folder: Path) -> None:
    """Models without relatives."""
    ingest_all(registry, folder, **{name: block_tensors(1, seed=100 + seed) for seed, name in enumerate("abcdefg")})


@pytest.fixture
def ids(registry: LocalRegistry, templates: RegistryTemplates) -> dict[str, int]:
    """The ids of these models by name."""
    templates.fill(registry, add_strangers)
    with registry.catalog.reading() as session:
        return {model.name: model.id for model in session.scalars(select(ModelRow))}


def add_edges(registry: LocalRegistry, evidence: str, *edges: tuple[int, int], score: float | None = None) -> None:
    """Edges from a child to a parent."""
    relation = "relative" if evidence == "measured" else "finetune"
    said = {"relation": relation, "evidence": evidence, "score": score, "created_at": now()}
    with registry.catalog.writing() as session:
        session.add_all(Lineage(child_model_id=child, parent_model_id=parent, **said) for child, parent in edges)


def test_a_family_has_its_models_edges_and_generations(family_client: FlaskClient) -> None:
    (family,) = families(family_client)
    assert family.count == 2
    assert family.left_out == 0
    assert [(one.name, one.generation) for one in family.models] == [("local/base@1", 0), ("local/tuned@1", 1)]
    assert {(one.child, one.parent, one.evidence) for one in family.edges} == {
        ("local/tuned@1", "local/base@1", "declared"),
        ("local/tuned@1", "local/base@1", "measured"),
    }


def test_an_unregistered_parent_joins_the_models_that_name_it_and_is_plain_text(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for name, seed in (("one", 1), ("two", 2)):
        ingest_bytes(registry, tmp_path, name, model_file(name, related_tensors(seed), parent_entries(HOSTILE)))
    with create_app(registry).test_client() as client:
        (family,) = families(client)
        assert "<script>" in page_at(client, "/lineage").text
    assert [one.generation for one in family.models] == [1, 1]
    (missing,) = family.missing
    assert HOSTILE in missing.text
    assert missing.children == ("local/one@1", "local/two@1")


def test_hidden_models_are_left_out_of_families(registry: LocalRegistry, family_client: FlaskClient) -> None:
    with registry.catalog.writing() as session:
        model = session.scalars(select(ModelRow).where(ModelRow.name == "tuned")).one()
        model.state = "quarantined"
    assert families(family_client) == ()
    assert "No two models in this registry are known to be related" in page_at(family_client, "/lineage").text
    assert family_client.get("/lineage?model=local/tuned").status_code == 404


def test_families_are_listed_by_size_in_pages(
    registry: LocalRegistry, ids: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "FAMILIES_DEFAULT", 2)
    add_edges(registry, "recorded", *((ids[child], ids[parent]) for child, parent in ("ab", "cd", "ef", "fg")))
    with create_app(registry).test_client() as client:
        first = decode(client.get("/api/v1/families?limit=2").data, FamilyPage)
        assert [one.count for one in first] == [3, 2]
        assert first.count == 3
        whole = decode(client.get("/api/v1/families?limit=3").data, FamilyPage)
        assert (len(whole.items), whole.next) == (3, None), "a full page may be the last one"
        rest = decode(client.get(f"/api/v1/families?limit=2&after={first.next}").data, FamilyPage)
        assert [one.name for one in rest] == ["local/c@1"]
        assert rest.next is None
        assert f"/lineage?after={first.next}" in page_at(client, "/lineage").links()
        assert "/models/local/c@1" in page_at(client, f"/lineage?after={first.next}").links()


def test_a_large_family_shows_the_models_with_the_most_edges_and_counts_the_others(
    registry: LocalRegistry, ids: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relatives_families, "MEMBERS_MAX", 3)
    add_edges(registry, "declared", *((ids[name], ids["f"]) for name in "abcde"))
    add_edges(registry, "measured", (ids["d"], ids["e"]), score=0.9)
    with create_app(registry).test_client() as client:
        (family,) = families(client)
        assert [one.name for one in family.models] == ["local/f@1", "local/d@1", "local/e@1"]
        assert (family.count, family.left_out) == (6, 3)
        assert "3 more members are not drawn" in client.get("/lineage").text
        (own,) = families(client, "/lineage.json?model=local/a")
        assert "local/a@1" in [one.name for one in own.models]


def test_a_wrong_cursor_is_refused(family_client: FlaskClient) -> None:
    for place in ("x", "99999999", "²"):
        for address in ("/lineage", "/lineage.csv", "/api/v1/families"):
            assert family_client.get(address, query_string={"after": place}).status_code == 400


def family_of(names: list[str], edges: list[tuple[int, int, str, float | None]], missing: int = 0) -> Family:
    """A family, each model's generation by its place."""
    return Family(
        name=names[0],
        count=len(names),
        left_out=0,
        models=tuple(
            FamilyMember(name=name, title=None, kind="model", state="visible", mean_theta=40.0, generation=place % 3)
            for place, name in enumerate(names)
        ),
        edges=tuple(
            FamilyEdge(
                child=names[child],
                parent=names[parent],
                relation="finetune",
                evidence=evidence,
                likeness=likeness,
                directed=evidence != "measured",
            )
            for child, parent, evidence, likeness in edges
        ),
        missing=tuple(
            MissingParent(text=f"absent {one}", children=(names[0],), relation="finetune") for one in range(missing)
        ),
    )


@st.composite
def any_family(draw: Callable[..., object]) -> Family:
    count = int(draw(st.integers(2, 12)))  # type: ignore[call-overload]
    chance = random.Random(int(draw(st.integers(0, 10**6))))  # type: ignore[call-overload]
    kinds = ("declared", "recorded", "measured")
    edges = [
        (*chance.choices(range(count), k=2), chance.choice(kinds), chance.random())
        for _ in range(chance.randint(0, 30))
    ]
    return family_of([f"local/m{one}@1" for one in range(count)], edges, chance.randint(0, 3))  # type: ignore[arg-type]


@given(any_family())
def test_every_model_is_drawn_once_and_models_do_not_overlap(family: Family) -> None:
    drawing = draw(family_tree(family))
    assert len(drawing.boxes) == len(family.models) + len(family.missing)
    for box in drawing.boxes:
        assert 0 <= box.x <= drawing.width - BOX_WIDTH
        assert 0 <= box.y <= drawing.height - BOX_HEIGHT
        others = [other for other in drawing.boxes if other is not box and other.x == box.x]
        assert all(abs(other.y - box.y) >= BOX_HEIGHT for other in others)


@given(any_family())
def test_every_declared_pair_is_drawn_once_and_at_most_a_spanning_tree_of_measured_pairs(family: Family) -> None:
    tree = family_tree(family)
    names = [node.name for node in tree.nodes]
    links = [*tree.above.values(), *tree.others]
    said = {
        frozenset((edge.child, edge.parent))
        for edge in family.edges
        if edge.evidence != "measured" and edge.child != edge.parent
    }
    drawn = [frozenset((names[link.child], names[link.parent])) for link in links if link.evidence != "measured"]
    assert said <= set(drawn)
    assert len(drawn) == len(set(drawn)) == len(said) + len(family.missing)
    assert len(links) - len(drawn) <= len(tree.nodes) - 1
    for place in range(len(tree.nodes)):  # the links above a node end at a root
        steps = 0
        while place in tree.above:
            place, steps = tree.above[place].parent, steps + 1
            assert steps <= len(tree.nodes)


def test_the_strongest_likenesses_are_drawn() -> None:
    edges = [(1, 0, "measured", 0.5), (2, 0, "measured", 0.9), (2, 1, "measured", 0.8)]
    tree = family_tree(family_of(["a/a@1", "a/b@1", "a/c@1"], edges))
    assert sorted(link.change for link in tree.above.values()) == ["0.2", "0.4"]
    assert (tree.others, tree.undrawn) == ((), 1)


def test_quantisations_of_one_model_are_one_node_with_a_link_to_each() -> None:
    names = ["a/m-F16@1", "a/m-Q4_0@1", "a/m-Q4_0@2", "b/m-Q8_0@1", "a/tuned-Q8_0@1"]
    edges = [(1, 0, "measured", 0.99), (4, 0, "declared", None), (4, 1, "measured", 0.995), (4, 0, "measured", 0.99)]
    tree = family_tree(family_of(names, edges))
    assert [(node.title, [variant.label for variant in node.variants]) for node in tree.nodes] == [
        ("m", ["F16", "Q4_0", "Q4_0 @2"]),
        ("m-Q8_0", ["Q8_0"]),
        ("tuned-Q8_0", ["Q8_0"]),
    ]
    assert {child: (link.parent, link.words) for child, link in tree.above.items()} == {
        2: (0, "finetune, declared, change 0.01")
    }
    chips = [variant.name for box in draw(tree).boxes for variant, _, _ in box.chips]
    assert chips == names[:3]


def test_a_chimera_is_below_its_base_with_a_thin_line_from_each_donor() -> None:
    edges = [(3, 0, "recorded", None), (3, 1, "recorded", None), (3, 2, "recorded", None)]
    tree = family_tree(family_of(["a/base@1", "a/code@1", "a/prose@1", "me/both@1"], edges))
    assert (tree.above.keys(), tree.above[3].parent) == ({3}, 0)
    assert [(link.parent, link.child) for link in tree.others] == [(1, 3), (2, 3)]
    assert tree.nodes[3].kind == "chimera"
    assert [stroke.look for stroke in draw(tree).donor_strokes] == ["donor g0", "donor g1"]


def test_a_cycle_of_parents_is_drawn_and_terminates(registry: LocalRegistry, ids: dict[str, int]) -> None:
    add_edges(registry, "declared", *((ids[child], ids[parent]) for child, parent in ("ab", "bc", "ca")))
    with create_app(registry).test_client() as client:
        (family,) = families(client)
        assert [one.generation for one in family.models] == [0, 1, 2]
        assert client.get("/lineage").status_code == 200


@given(st.text(max_size=300))
def test_any_title_fits_into_a_box_and_keeps_its_beginning_and_end(title: str) -> None:
    short = shortened(title)
    assert title_width(short) <= TITLE_WIDTH
    assert short == title or (short[0], short[-1]) == (title[0], title[-1])
