"""Tests of the report on ingests: what each stored, the totals, and what only the owner sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from organs.registry.catalog.queries.reports import running_totals
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.catalog.register.organs import begin_ingest
from organs.registry.catalog.tables import Ingest, ModelRow
from organs.registry.entities.report import ReportSection
from organs.registry.errors import BadInput
from organs.registry.local import LocalRegistry
from organs.registry.reports.ingests import ingest_sections
from tests.small_models import ingest_file, small_model, small_shards


def sections_of(registry: LocalRegistry, limit: int = 50, *, complete: bool = True) -> dict[str, ReportSection]:
    with registry.catalog.reading() as session:
        return ingest_sections(session, limit, complete=complete)


def items_of(registry: LocalRegistry, limit: int = 50, *, complete: bool = True) -> list[Any]:
    return list(sections_of(registry, limit, complete=complete)["ingests"].items)


def totals_of(registry: LocalRegistry) -> dict[str, Any]:
    return {key: figure.value for key, figure in sections_of(registry)["ingest_totals"].figures.items()}


def test_every_ingest_has_the_times_and_sizes_of_its_report(family: LocalRegistry, tmp_path: Path) -> None:
    (tmp_path / "new.gguf").write_bytes(small_model("New", seed=4))
    report = ingest_file(family, tmp_path / "new.gguf")
    again = ingest_file(family, tmp_path / "new.gguf")
    second, first, *others = items_of(family)
    for item, expected, result in ((first, report, "new"), (second, again, "known")):
        assert (item["model"], item["result"], item["tensors_count"]) == ("local/new@1", result, 10)
        for key in ("size_bytes", "new_bytes", "stored_bytes", "seconds"):
            assert item[key] == getattr(expected, key)
        assert item["source"] == str(tmp_path / "new.gguf")
        assert item["megabytes_per_second"] == pytest.approx(expected.size_bytes / expected.seconds / 1e6)
    encoding = sum(report.stages[name]["seconds"] for name in ("encode", "choose encoding"))
    assert first["encode_seconds"] == pytest.approx(encoding)
    hashing = sum(report.stages[name]["seconds"] for name in ("hash file", "hash organs", "count non-finite"))
    assert first["hash_seconds"] == pytest.approx(hashing)
    columns = sum(first[f"{stage}_seconds"] for stage in ("read", "hash", "measure", "encode", "write", "catalog"))
    assert columns == pytest.approx(sum(stage["seconds"] for stage in report.stages.values())), "every stage"
    assert [item["model"] for item in others] == ["local/stranger@1", "local/tuned@1", "local/base@1"]
    assert first["started_at"].endswith("Z")


def test_the_totals_are_the_sums_over_all_ingests_also_of_those_not_listed(family: LocalRegistry) -> None:
    items, totals = items_of(family), totals_of(family)
    assert totals["ingests_count"] == len(items) == 3
    for key in ("size_bytes", "new_bytes", "stored_bytes", "seconds", "measure_seconds"):
        assert totals[key] == pytest.approx(sum(item[key] for item in items))
    assert items_of(family, limit=2) == items[:2]
    assert sections_of(family, 2)["ingests"].before[0].startswith("The newest 2 of 3,")
    with family.catalog.reading() as session:
        assert ingest_sections(session, 2, complete=True)["ingest_totals"] == sections_of(family)["ingest_totals"]


def test_shards_that_arrive_alone_count_once(registry: LocalRegistry, tmp_path: Path) -> None:
    shards = small_shards()
    reports = []
    for name, data in shards.items():
        folder = tmp_path / name.removesuffix(".gguf")
        folder.mkdir()
        (folder / name).write_bytes(data)
        reports.append(ingest_file(registry, folder / name))
    items, totals = items_of(registry), totals_of(registry)
    assert [item["size_bytes"] for item in items] == [len(data) for data in reversed(shards.values())]
    assert totals["size_bytes"] == reports[-1].size_bytes == sum(map(len, shards.values()))
    with registry.catalog.reading() as session:
        stored = running_totals(session)
    assert (totals["new_bytes"], totals["stored_bytes"]) == (stored.size_bytes, stored.stored_bytes)
    (public,) = items_of(registry, complete=False)
    assert (public["tensors_count"], public["size_bytes"]) == (reports[-1].organs, totals["size_bytes"])


def test_a_failed_ingest_is_listed_with_its_source_and_its_error(family: LocalRegistry, tmp_path: Path) -> None:
    before = totals_of(family)
    with family.catalog.writing() as session:
        begin_ingest(session, "running.gguf")
        failed = begin_ingest(session, "failed.gguf")
        session.execute(
            update(Ingest).where(Ingest.id == failed).values(state="failed", report=json.dumps({"error": "the disk"}))
        )
    last, running, *_ = items_of(family)
    assert (last["model"], last["result"], last["error"], last["seconds"]) == (
        "failed.gguf",
        "failed",
        "the disk",
        None,
    )
    assert (running["model"], running["result"], running["error"]) == ("running.gguf", "running", None)
    after = totals_of(family)
    assert after == before | {"ingests_count": before["ingests_count"] + 2}
    assert "1 failed; 3 new; 1 running" in sections_of(family)["ingest_totals"].figures["ingests_count"].meaning


def test_a_composed_chimera_is_listed_and_counts_no_bytes(family: LocalRegistry) -> None:
    before = totals_of(family)
    model = family.compose("base").graft("tuned", type="organ").named("local/mixed").plan().register().model
    first = items_of(family)[0]
    assert (first["model"], first["result"], first["new_bytes"]) == (model, "composed", None)
    assert totals_of(family) == before | {"ingests_count": before["ingests_count"] + 1}


def test_a_report_that_cannot_be_read_has_no_values(family: LocalRegistry) -> None:
    with family.catalog.writing() as session:
        session.execute(update(Ingest).values(report='{"size_bytes": "much"}'))
    assert {item["size_bytes"] for item in items_of(family)} == {None}
    assert totals_of(family)["size_bytes"] == 0


def test_the_public_form_does_not_disclose_what_was_new_and_what_is_hidden(
    family: LocalRegistry, tmp_path: Path
) -> None:
    (tmp_path / "base.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadInput):
        ingest_file(family, tmp_path / "base.gguf")
    family.compose("base").graft("tuned", type="organ").named("local/mixed").plan().register()
    with family.catalog.writing() as session:
        stranger = session.scalars(select(ModelRow).where(ModelRow.name == "stranger")).one()
        hide_model(session, stranger, "yanked", "a mistake", "local")
    sections = sections_of(family, complete=False)
    assert list(sections) == ["ingests"]
    assert [item["model"] for item in sections["ingests"].items] == ["local/tuned@1", "local/base@1"]
    assert set(sections["ingests"].items[0]) == {"started_at", "model", "tensors_count", "size_bytes"}
    assert len(items_of(family, 1, complete=False)) == 1
