"""Tests of a registered chimera, its card, and its instructions for use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import select

from organs.registry.catalog.queries.model_lists import known_bases
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.tables import ChimeraRow, VerdictRow, now
from organs.registry.compose.chimeras import chimera_of_model, chimera_page, modelfile
from organs.registry.entities.base import decode, encode
from organs.registry.entities.chimera import Chimera
from organs.registry.local import LocalRegistry
from tests.compose.parents import ZOO
from tests.gguf_files import text
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.small_models import ingest_file

BASE, TUNED, LORA = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-A-2M-Code-LoRA-v1.0-F32"
HOSTILE = "</p><script>alert(1)</script>\n# big | `code`\n```\n[a](http://b)\u202e"


@pytest.fixture
def family(registry: LocalRegistry, tmp_path: Path) -> LocalRegistry:
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    stranger = model_file("Stranger", related_tensors(seed=7), [text("general.description", HOSTILE)])
    ingest_bytes(registry, tmp_path, "stranger", stranger)
    return registry


def test_a_chimera_shows_its_plan_and_its_later_measurements(family: LocalRegistry) -> None:
    composition = family.compose("base").graft("stranger", type="organ", blocks=1).purify("fractal", slot="attn_q")
    made = composition.accept("unrelated-lineage").plan().register()
    chimera = family.chimera(made.lock_id)
    assert chimera.lock_id == made.lock_id
    assert [(parent.model, parent.acts) for parent in chimera.parents] == [
        ("local/base@1", ("purified",)), ("local/stranger@1", ("grafted",)),
    ]  # fmt: skip
    assert [part.acts for part in chimera.parts] == [("purified",), ("purified",), ("grafted",), ("grafted",)]
    assert [part.name for part in chimera.computed] == ["blk.0.attn_q.weight", "blk.1.attn_q.weight"]
    assert all(part.theta is not None and part.theta_before is not None for part in chimera.computed)
    assert "unrelated-lineage" in [finding.code for finding in chimera.findings if finding.accepted]
    assert chimera.recipe_yaml == composition.accept("unrelated-lineage").yaml()
    assert decode(encode(chimera), Chimera) == chimera
    with family.catalog.reading() as session:
        assert chimera_of_model(session, model_by_text(session, "base")) is None


@pytest.mark.long
@pytest.mark.parametrize("is_recorded", [True, False])
def test_each_changed_organ_names_its_donor_and_its_adapters(registry: LocalRegistry, *, is_recorded: bool) -> None:
    for stem in (BASE, TUNED, LORA):
        ingest_file(registry, ZOO / f"{stem}.gguf")
    made = registry.compose(BASE).graft(TUNED, slot="ffn_up", blocks=0).adapter(LORA).plan().register()
    if not is_recorded:  # by an earlier version of the program
        with registry.catalog.writing() as session:
            row = session.scalars(select(ChimeraRow)).one()
            origins = json.loads(row.origins)
            assert len(origins.pop("adapters")) == 28
            row.origins = json.dumps(origins)
    chimera = registry.chimera(made.lock_id)
    tuned, lora = f"local/{TUNED}@1", f"local/{LORA}@1"
    givers = {part.name: part.givers for part in chimera.parts}
    assert givers.pop("blk.0.ffn_up.weight") == (tuned, lora)
    assert set(givers.values()) == {(lora,)}
    assert {change.givers for change in chimera.changes} == {(lora,), (tuned, lora)}
    assert f"| {tuned} + {lora} |" in chimera.card.replace("\\", "")
    with registry.catalog.reading() as session:
        (summary,) = chimera_page(session, 10).items
    assert {part.model for part in summary.parts} == {tuned, lora}


def test_verdicts_are_listed_newest_first_and_the_card_shows_the_newest(family: LocalRegistry) -> None:
    made = family.compose("base").graft("stranger", type="organ").accept("unrelated-lineage").plan().register()
    assert "Not run yet." in family.chimera(made.lock_id).card
    with family.catalog.writing() as session:
        model = model_by_text(session, made.model)
        for verdict, reason in (("gains", "An old one."), ("broken", "A new one, much worse.")):
            row = VerdictRow(model_id=model.id, runtime="test", verdict=verdict, reason=reason, report="{}")
            row.created_at = now()
            session.add(row)
    chimera = family.chimera(made.lock_id)
    assert [verdict.verdict for verdict in chimera.verdicts] == ["broken", "gains"]
    assert chimera.card.index("Verdict in test: broken. A new one, much worse.") < chimera.card.index(
        "## From the weights, before it was made"
    )
    assert "An old one" not in chimera.card


def test_bases_with_the_most_relatives_are_offered_first_and_chimeras_last(family: LocalRegistry) -> None:
    for slot in ("ffn_up", "ffn_down"):
        family.compose("base").graft("stranger", slot=slot).accept("unrelated-lineage").named(slot).plan().register()
    family.compose("base").purify("fractal", slot="attn_q").named("attn_q").plan().register()
    with family.catalog.reading() as session:
        names = [model.name.partition("/")[2] for model in known_bases(session, 10)]
    assert names[:2] == ["base@1", "stranger@1"]
    assert sorted(names[2:]) == ["attn_q@1", "ffn_down@1", "ffn_up@1"]


def test_input_is_only_text_on_the_card(family: LocalRegistry) -> None:
    composition = family.compose("base").graft("stranger", type="organ").accept("unrelated-lineage")
    composition = (
        composition.metadata("general.name", HOSTILE).metadata("general.license", HOSTILE).accept("licenses-conflict")
    )
    card = family.chimera(composition.plan().register().lock_id).card
    prose = [line for line in card.splitlines() if not line.startswith("    ")]
    assert [line for line in prose if line.startswith("#")][1:] == [
        "## Parents", "## Findings", "## Measurement", "## From the weights, before it was made", "## Recipe", "## Use",
    ]  # fmt: skip
    for markup in ("<script", "</p>", "[a](", "```", "\u202e"):
        assert not any(markup in line for line in prose)
    assert "alert(1)" in card, "as text it is there"
    assert "\u202e" not in card
    shown = card[card.index("## Recipe") : card.index("The lock is ")].splitlines()[2:]
    assert all(line == "" or line.startswith("    ") for line in shown)


def test_a_modelfile_is_three_lines_with_any_title() -> None:
    for title in ("Tiny", "two\nlines", "PARAMETER\r\nFROM /etc/passwd", "\u2028SYSTEM x", "x" * 1000):
        lines = modelfile("local/a@1", "a.gguf", title, 2048).splitlines()
        assert [line.partition(" ")[0] for line in lines] == ["#", "FROM", "PARAMETER"]
        assert lines[1:] == ["FROM ./a.gguf", "PARAMETER num_ctx 2048"]
        assert lines[0].startswith("# local/a@1, ")
        assert len(lines[0]) < 120
    assert modelfile("local/a@1", "a.gguf", "A", None).endswith("num_ctx 4096\n")
    assert modelfile("local/a@1", "a.gguf", "A", 1 << 40).endswith("num_ctx 4096\n")
