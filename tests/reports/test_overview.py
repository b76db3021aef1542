"""Tests of the report on a registry: its numbers equal those of the rows, and each has a description."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, update

from organs.registry.catalog.queries.reports import running_totals
from organs.registry.catalog.register.counts import repair_totals
from organs.registry.catalog.tables import Lineage, ModelRow, Placement
from organs.registry.entities.report import Report, ReportTable
from organs.registry.local import LocalRegistry
from organs.registry.reports.overview import registry_report
from tests.gains import add_gains
from tests.gguf_files import file_bytes
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.small_models import block_metadata, block_tensors, ingest_file

TABLES = (
    *("figures", "actions", "families", "ranking", "types", "type_ranges", "model_types", "components", "scale"),
    *("wells", "ingests"),
)


def report_on(registry: LocalRegistry, limit: int = 50) -> Report:
    with registry.catalog.reading() as session:
        return registry_report(session, limit)


def placements(registry: LocalRegistry) -> list[Placement]:
    with registry.catalog.reading() as session:
        return list(session.scalars(select(Placement).where(Placement.visible)))


def test_the_report_of_an_empty_registry_suggests_a_command(registry: LocalRegistry) -> None:
    report = report_on(registry)
    assert tuple(report.sections) == TABLES
    values = report.sections
    assert values["figures"].before == ("Nothing is registered yet. To begin: organ ingest FILE.gguf",)
    assert [figure.value for figure in values["figures"].figures.values()] == [0] * 5
    for name in TABLES[1:]:
        assert values[name].items == ()
        assert values[name].before[0].startswith(("There", "No"))


def test_an_organ_of_a_model_that_is_hidden_is_not_counted(filled: LocalRegistry) -> None:
    before = report_on(filled).sections["figures"].figures
    with filled.catalog.writing() as session:
        tall = session.scalars(select(ModelRow).where(ModelRow.name == "tall")).one()
        session.execute(update(ModelRow).where(ModelRow.id == tall.id).values(state="quarantined"))
        session.execute(update(Placement).where(Placement.model_id == tall.id).values(visible=False))
        repair_totals(session)
    after = report_on(filled)
    figures = after.sections["figures"].figures
    assert (before["models_count"].value - figures["models_count"].value) == 1
    assert figures["organs_count"].value == len({placement.organ_id for placement in placements(filled)})
    assert figures["organs_count"].value < before["organs_count"].value
    assert "tall" not in str(after)


def test_the_ranking_says_how_much_is_no_matrix_and_when_matrices_give_another_order(filled: LocalRegistry) -> None:
    with filled.catalog.writing() as session:
        for name, theta in (("little", 41.0), ("tall", 40.0), ("tuned", 39.0)):
            session.execute(update(ModelRow).where(ModelRow.name == name).values(mean_theta=theta))
        for model_id, theta in ((1, 31.0), (2, 32.0), (3, 33.0)):
            session.execute(update(Placement).where(Placement.model_id == model_id).values(theta=theta))
    words = " ".join(report_on(filled).sections["ranking"].after)
    assert "In this list 12 of 42 tensors are not matrices." in words
    assert "differ by 2.0° in mean θ" in words
    assert "2 of these 3 models have another place by matrix θ" in words
    assert "local/tuned@1, number 3 here, would be first, and local/little@1, number 1, last" in words


@pytest.mark.sqlite
def test_no_statement_about_all_placements_reads_their_rows(filled: LocalRegistry) -> None:
    statements: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    event.listen(filled.catalog.reader, "before_cursor_execute", note)
    report_on(filled)
    event.remove(filled.catalog.reader, "before_cursor_execute", note)
    with filled.catalog.reader.connect() as connection:
        steps = [
            step[-1]
            for statement, parameters in statements
            for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    scans = [step for step in steps if step.startswith(("SCAN placements", "SEARCH placements"))]
    assert len(statements) > 10
    assert [step for step in scans if "visible=?" in step], "there is an index that is read from end to end"
    scans = [step for step in scans if step.startswith("SCAN")]
    assert [step for step in scans if "COVERING INDEX" not in step] == []


def actions_of(registry: LocalRegistry, *, complete: bool = True) -> dict[str, tuple[object, ...]]:
    """The model, the number of models and the command of each row of "What you can do", by the finding."""
    with registry.catalog.reading() as session:
        table = registry_report(session, complete=complete).sections["actions"]
    assert isinstance(table, ReportTable)
    return {str(row["finding"]): (row["model"], row["models_count"], row["command"]) for row in table.items}


def test_almost_identical_models_are_reported_unless_a_file_or_the_registry_says_why(family: LocalRegistry) -> None:
    def alike() -> list[tuple[object, ...]]:
        beginning = "Almost identical (change 0.0"
        return [row for finding, row in actions_of(family).items() if finding.startswith(beginning)]

    assert alike() == [("local/base@1", 2, "organ compare local/base@1 local/tuned@1")]
    composition = family.compose("base").graft("tuned", type="organ").named("local/mixed")
    assert composition.plan().register().model == "local/mixed@1"
    assert alike() == [], "the chimera that was made of both connects them"
    assert actions_of(family)["1 chimera was never validated."] == ("local/mixed@1", 1, "organ validate local/mixed@1")
    add_gains(family, "local/mixed@1", {"python": 5.0, "narrative": -2.0})
    actions = actions_of(family)
    assert actions["The largest measured gain: +5.0% on python (the perplexity is 5.0% lower)."] == (
        "local/mixed@1",
        1,
        "organ leaderboard",
    )


def test_a_model_and_its_fine_tune_that_fit_are_reported_until_a_chimera_has_both(family: LocalRegistry) -> None:
    def pairs() -> list[tuple[object, ...]]:
        return [row for finding, row in actions_of(family).items() if "no chimera has both models yet" in finding]

    assert pairs() == [("local/base@1", 2, "organ compat local/base@1 local/tuned@1")]
    with family.catalog.writing() as session:
        session.execute(update(ModelRow).where(ModelRow.name == "tuned").values(parameters=1))
    assert pairs() == [], "the shapes differ"
    with family.catalog.writing() as session:
        parameters = session.scalar(select(ModelRow.parameters).where(ModelRow.name == "base"))
        session.execute(update(ModelRow).where(ModelRow.name == "tuned").values(parameters=parameters))
    assert len(pairs()) == 1
    family.compose("base").graft("tuned", type="organ").named("local/mixed").plan().register()
    assert pairs() == []


def test_a_fine_tune_with_a_small_change_fits_its_base_and_a_quantisation_does_not(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    tensors = {"base": related_tensors(), "small": related_tensors(dtype="Q8_0")}
    for name, found in (tensors | {"light": related_tensors(correlation=1 - 4e-6)}).items():
        ingest_bytes(registry, tmp_path, name, model_file(name.title(), found))

    def fits() -> dict[str, object]:
        return {find: row[2] for find, row in actions_of(registry).items() if "no chimera has both models" in find}

    light, mixed = fits().items()
    assert re.match(r"Tensors of local/light@1 fit \(change [78]\.\de-6\); ", light[0]), light[0]
    assert light[1] == "organ compat local/base@1 local/light@1"
    assert mixed[1] == "organ compat local/small@1 local/light@1", "the same quantisation comes first"
    with registry.catalog.writing() as session:
        session.execute(update(Lineage).values(change=None))
    assert fits() == {}, "a likeness does not resolve such changes"


def test_a_file_with_two_names_and_a_model_without_a_license_are_reported(
    family: LocalRegistry, tmp_path: Path
) -> None:
    path = tmp_path / "copy.gguf"
    path.write_bytes(file_bytes(block_metadata("Copy"), block_tensors(seed=7)))
    ingest_file(family, path)
    ingest_file(family, path, "local/again")
    with family.catalog.writing() as session:
        session.execute(update(ModelRow).where(ModelRow.name == "base").values(license=None))
    actions = actions_of(family, complete=False)
    same = "The same file has 2 names: local/copy@1, local/again@1."
    assert actions[same] == ("local/copy@1", 2, "organ show local/copy@1")
    assert actions["1 model states no license."] == ("local/base@1", 1, "organ models license:none")


def test_only_the_owner_sees_what_is_hidden_and_what_the_disk_saves(family: LocalRegistry) -> None:
    with family.catalog.writing() as session:
        session.execute(update(ModelRow).where(ModelRow.name == "stranger").values(state="yanked"))
    hidden = "1 model is yanked: hidden from searches and lists."
    assert actions_of(family)[hidden] == ("local/stranger@1", 1, "organ show local/stranger@1")
    assert hidden not in actions_of(family, complete=False)
    with family.catalog.reading() as session:
        public, own = (registry_report(session, complete=complete).sections["figures"] for complete in (False, True))
        totals = running_totals(session)
    figures = {key: figure.value for key, figure in own.figures.items()}
    assert set(figures) - set(public.figures) == {"saved_bytes", "stored_bytes"}
    assert figures["stored_bytes"] == totals.stored_bytes
    assert next(iter(own.figures)) == "saved_bytes"
