"""Tests of the display in notebooks: small tables in which any input is only text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry import notebook
from organs.registry.columns import CellKind, Column
from organs.registry.compose.recipe import Recipe
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes, text
from tests.small_models import block_metadata, block_tensors, ingest_file, weight_tensor

TAGS = {"div", "p", "b", "pre", "table", "thead", "tbody", "tr", "th", "td"}
STYLES = {"text-align:left", "text-align:right"}
HOSTILE = "<script>alert('1')</script>&amp;\" onload=\"x\x1b[31m\u202egpj.exe\ud800"
ODD_TENSOR = 'blk.0.<img/src=x/onerror="alert(1)">.weight'


class Reader(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.counts: Counter[str] = Counter()
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert all(name == "style" and value in STYLES for name, value in attrs)
        self.open.append(tag)
        self.counts[tag] += 1
        self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def read(value: object) -> Reader:
    """Parse the HTML of `value`, which must be complete and have only tables and texts."""
    html = value if isinstance(value, str) else value._repr_html_()  # type: ignore[attr-defined]
    assert all(sign.isprintable() or sign == "\n" for sign in html)
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    """Return a registry whose models have hostile text in every field."""
    folder = tmp_path_factory.mktemp("hostile")
    encoded = HOSTILE.encode("utf-8", "replace")
    with LocalRegistry.open(folder) as registry:
        for seed, name in enumerate(("base", "donor")):
            entries = [
                entry for entry in block_metadata(blocks=1) if entry.key not in ("general.name", "general.license")
            ]
            entries += [
                text("general.name", encoded),
                text("general.license", encoded),
                text("general.description", encoded),
            ]
            tensors = [*block_tensors(1, seed=seed), weight_tensor(ODD_TENSOR, (64, 64), seed)]
            (folder / f"{name}.gguf").write_bytes(file_bytes(entries, tensors))
            ingest_file(registry, folder / f"{name}.gguf")
        yield registry


@settings(max_examples=50)
@given(st.text(min_size=1), st.text(min_size=1), st.text() | st.none())
def test_any_text_is_shown_as_text(one: str, two: str, cell: str | None) -> None:
    pieces = (
        *(notebook.heading(one), notebook.paragraph(two), notebook.preformatted(one)),
        *(notebook.facts([(one, cell)]), notebook.table([Column("a", one), Column("b", two)], [{"a": cell, "b": one}])),
    )
    reader = read(notebook.document(*pieces))
    assert reader.counts == {
        "div": 1,
        "p": 2,
        "b": 1,
        "pre": 1,
        "table": 2,
        "thead": 1,
        "tbody": 2,
        "tr": 3,
        "th": 3,
        "td": 3,
    }


def test_a_table_aligns_numbers_right_and_is_limited() -> None:
    columns = [Column("name"), Column("n", kind=CellKind.COUNT)]
    html = notebook.table(columns, [{"name": "a" * 5000, "n": number} for number in range(1000, 3000)])
    reader = read(html)
    assert reader.counts["tr"] == notebook.ROWS_MAX + 1
    assert "… and 1,940 more" in reader.cells
    assert "1,000" in reader.cells
    assert html.count("text-align:right") == notebook.ROWS_MAX + 1
    assert len(html) < 100 * (notebook.TEXT_MAX + 100)
    assert read(notebook.facts([("x", None)])).cells[-1] == "–"


def test_pages_of_organs_and_of_models_are_shown_as_tables(hostile: LocalRegistry) -> None:
    page = hostile.search(limit=2)
    organs = read(page)
    assert (organs.counts["table"], organs.counts["tr"]) == (1, 3)
    assert "there are more: pass `next` as `after`" in organs.cells
    assert [organ.name for organ in page] == [cell for cell in organs.cells if cell.endswith(".weight")]
    all_organs = hostile.search()
    assert ODD_TENSOR in read(all_organs).cells
    models = read(hostile.models())
    assert models.counts["tr"] == 3
    assert "local/base@1" in models.cells
    assert any(cell.startswith("<script>alert(") for cell in models.cells)
    assert (repr(page), repr(hostile.models())) == ("<2 tensors, more follow>", "<2 models>")
    alike = read(hostile.search(f"like:{hostile.model('base').organ('blk.0.attn_q.weight').digest}"))
    assert ("likeness" in alike.cells, "likeness" in organs.cells) == (True, False)
    none = hostile.search("model:nobody")
    assert {*none.notes} & {*read(none).cells}
    assert repr(all_organs.items[0]).startswith("<")
    assert max(len(repr(row)) for row in [*all_organs, *hostile.models()]) < 160


def test_a_model_is_shown_with_its_facts_relatives_and_organs(hostile: LocalRegistry) -> None:
    reader = read(hostile.model("base"))
    assert reader.cells[2] == "local/base@1"
    assert {"apache-2.0", "model", "local/base@1", ODD_TENSOR} - set(reader.cells) == {"apache-2.0"}
    assert repr(hostile.model("base")).startswith("<local/base@1: model, 7 tensors, ")


def test_a_composition_and_its_plan_are_shown(hostile: LocalRegistry) -> None:
    composition = hostile.compose("base").graft("donor", type="organ").metadata("acme.x", "<b>&\u2028")
    assert "metadata:" in read(composition).cells[1]
    plan = composition.plan()
    shown = read(plan)
    assert shown.counts["table"] == 2
    assert {"unrelated-lineage", "blk.0.ffn_up.weight", "local/donor@1"} <= set(shown.cells)
    assert plan.screen.sentence in shown.cells
    composition = hostile.compose("base").purify("fractal", slot="attn_q")
    made = composition.named("local/made").plan().register()
    assert {"local/made@1", made.sha256, made.lock_id, "blk.0.attn_q.weight"} <= set(read(made).cells)
    chimera = read(hostile.model("local/made"))
    assert {"chimera", "parent", "purified", "recorded"} <= set(chimera.cells)


def test_an_unchecked_recipe_is_shown_as_text(hostile: LocalRegistry) -> None:
    recipe = Recipe(HOSTILE, metadata={HOSTILE: HOSTILE}, name="<i>")
    composition = hostile.compose(recipe)
    assert read(composition).counts == {"div": 1, "pre": 1}
    assert repr(composition).isprintable()
