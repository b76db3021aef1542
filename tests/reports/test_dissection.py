"""Tests of the report on one model, also with little or no content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.tables import Placement
from organs.registry.entities.report import Report, ReportFigures, ReportTable
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.relatives.lineage import lineage_of
from organs.registry.reports.dissection import model_report
from organs.registry.reports.formats import section_sheet
from organs.registry.reports.overview import registry_report
from tests.gguf_files import F32, file_bytes
from tests.small_models import block_metadata, expert_tensors, ingest_file, weight_tensor

TABLES = (
    *("model", "notes", "relatives", "findings"),
    *("dtypes", "types", "components", "blocks", "highest", "wells", "anomalies", "methods"),
)


def report_on(registry: LocalRegistry, name: str, limit: int = 10) -> Report:
    with registry.catalog.reading() as session:
        return model_report(session, model_by_name(session, parse_model_name(name)), limit, complete=True)


def sections(registry: LocalRegistry, name: str) -> dict[str, Any]:
    return dict(report_on(registry, name).sections)


def figures_of(section: ReportFigures) -> dict[str, Any]:
    return {key: figure.value for key, figure in section.figures.items()}


def ingested(registry: LocalRegistry, folder: Path, data: bytes) -> dict[str, Any]:
    (folder / "one.gguf").write_bytes(data)
    ingest_file(registry, folder / "one.gguf")
    return sections(registry, "one")


def test_a_whole_model_has_every_table(filled: LocalRegistry) -> None:
    report = report_on(filled, "little")
    assert tuple(report.sections) == TABLES
    assert report.title == "Dissection of local/little@1"
    figures = figures_of(report.sections["model"])
    assert (figures["title"], figures["kind"], figures["architecture"]) == ("Little", "model", "llama")
    assert (figures["blocks_count"], figures["tensors_count"]) == (2, 10)


def test_shared_bytes_count_once_for_each_organ(filled: LocalRegistry) -> None:
    section = sections(filled, "little")["model"]
    little, tall = figures_of(section), figures_of(sections(filled, "tall")["model"])
    assert little["shared_organs_count"] == 9, "all but the last norm, which the relative has changed"
    assert little["shared_bytes"] == 2 * (64 * 96 + 2 * (64 * 64 + 4 * 64 * 64)) + 2 * 4 * 64
    assert "1 other model" in section.figures["shared_organs_count"].meaning
    assert tall["shared_organs_count"] == tall["shared_bytes"] == 0
    assert 0 < tall["stored_bytes"] < tall["size_bytes"]


def test_the_formats_have_their_shares(filled: LocalRegistry) -> None:
    items = sections(filled, "little")["dtypes"].items
    assert [item["dtype"] for item in items] == ["F16", "F32"]
    assert sum(item["size_share"] for item in items) == pytest.approx(1.0)
    assert [item["bits_per_number"] for item in items] == [16, 32]
    with filled.catalog.reading() as session:
        rows = session.scalars(select(Placement).where(Placement.model_id == 1, Placement.dtype == "F16")).all()
    thetas = [row.theta for row in rows if row.spectral_signal is not None]
    assert items[0]["matrix_mean_theta_degrees"] == pytest.approx(np.mean(thetas))
    assert items[1]["mean_theta_degrees"] is not None
    assert items[1]["matrix_mean_theta_degrees"] is None, "norms are not matrices"


def test_relatives_and_findings_are_those_of_the_models_page(filled: LocalRegistry) -> None:
    values = sections(filled, "tuned")
    (relative,) = values["relatives"].items
    assert (relative["direction"], relative["model"]) == ("relative", "local/little@1")
    assert (relative["evidence"], relative["compared_count"]) == ("measured", 7)
    assert relative["mean_correlation"] == pytest.approx(1.0)
    assert "energy of the difference of the weights" in values["relatives"].after[0]
    with filled.catalog.reading() as session:
        page = lineage_of(session, model_by_name(session, parse_model_name("tuned")))
    shown = [(item["severity"], item["code"], item["sentence"]) for item in values["findings"].items]
    assert shown == [(finding.severity, finding.code, finding.sentence) for finding in page.findings]
    alone = sections(filled, "tall")
    assert alone["relatives"].items == ()
    assert [item["code"] for item in alone["findings"].items] == ["no-known-relatives"]


def test_highest_and_lowest_are_in_order_and_cut(filled: LocalRegistry) -> None:
    values = report_on(filled, "tall", limit=4).sections
    highest = [item["theta_degrees"] for item in values["highest"].items]
    lowest = [item["theta_degrees"] for item in values["wells"].items]
    assert len(highest) == len(lowest) == 4
    assert highest == sorted(highest, reverse=True)
    assert lowest == sorted(lowest)
    assert lowest[-1] <= highest[-1]
    assert "at most 4 of 22 tensors" in values["highest"].before[0]
    assert "at most 4 of 16 matrices" in values["wells"].before[0]


def test_a_mixture_of_experts_has_the_figures_of_its_components(registry: LocalRegistry, tmp_path: Path) -> None:
    values = ingested(registry, tmp_path, file_bytes(block_metadata("Mixture", blocks=3), expert_tensors()))
    items = {item["component"]: item for item in values["components"].items}
    counts = {name: (item["tensors_count"], item["parameters_count"]) for name, item in items.items()}
    assert counts == {
        "embeddings": (1, 64 * 96),
        "attention": (3, 3 * 64 * 64),
        "latent attention": (15, 3 * (3 * 64 * 32 + 2 * 32 * 32 * 2)),
        "dense feed-forward": (2, 2 * 64 * 64),
        "routed experts": (4, 2 * 2 * 64 * 32 * 4),
        "shared experts": (4, 2 * 2 * 64 * 32),
        "router": (4, 2 * (64 * 4 + 4)),
        "norms": (7, 3 * (64 + 32) + 64),
    }
    with registry.catalog.reading() as session:
        rows = session.scalars(select(Placement).where(Placement.slot.in_(("ffn_up_exps", "ffn_down_exps")))).all()
    routed, thetas = items["routed experts"], [row.theta for row in rows]
    assert routed["mean_theta_degrees"] == pytest.approx(np.mean(thetas))
    assert routed["theta_standard_deviation_degrees"] == pytest.approx(np.std(thetas), abs=1e-6)
    assert routed["mean_spectral_signal"] == pytest.approx(np.mean([row.spectral_signal for row in rows]))
    assert (routed["minimum_theta_degrees"], routed["maximum_theta_degrees"]) == (min(thetas), max(thetas))
    assert items["router"]["measured_count"] == 2, "the biases of a router are too short to be measured"
    assert sum(item["parameters_share"] for item in items.values()) == pytest.approx(1.0)
    assert "5 tensors without a θ" in values["components"].after[0]
    with registry.catalog.reading() as session:
        of_registry = registry_report(session).sections["components"]
    assert isinstance(of_registry, ReportTable)
    for item, same in zip(of_registry.items, values["components"].items, strict=True):
        assert item == pytest.approx(same)


def test_a_clean_model_has_no_anomalies_and_says_so(filled: LocalRegistry) -> None:
    anomalies = sections(filled, "little")["anomalies"]
    assert anomalies.items == ()
    assert anomalies.before[0].startswith("None:")


def test_anomalies_are_named_one_by_one(registry: LocalRegistry, tmp_path: Path) -> None:
    broken = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    broken[:3], broken[7] = np.nan, np.inf
    opaque = dtype_by_name("Q8_K")
    tensors = [
        (TensorSpec("blk.0.attn_q.weight", (64, 64), F32), broken.tobytes()),
        (TensorSpec("blk.0.attn_k.weight", (64, 64), F32), np.full(4096, 0.5, np.float32).tobytes()),
        (TensorSpec("blk.0.attn_v.weight", (256,), opaque), bytes(opaque.block_bytes)),
        weight_tensor("blk.0.ffn_norm.weight", (16,), 0, "F32"),
        weight_tensor("blk.0.ffn_up.weight", (64, 64)),
    ]
    values = ingested(registry, tmp_path, file_bytes(block_metadata(blocks=1), tensors))
    items = {item["tensor"]: item for item in values["anomalies"].items}
    assert list(items) == [name.name for name, _ in tensors[:4]]
    assert (items["blk.0.attn_q.weight"]["nan_count"], items["blk.0.attn_q.weight"]["infinite_count"]) == (3, 1)
    assert items["blk.0.attn_k.weight"]["constant"] == "yes"
    assert "no kernel reads" in items["blk.0.attn_v.weight"]["reason"]
    assert "fewer than 64" in items["blk.0.ffn_norm.weight"]["reason"]
    assert "4 of 5 tensors" in values["anomalies"].before[0]
    assert "quantised" in values["notes"].items[0]["note"]


def test_an_unreadable_model_has_dashes_and_no_order(registry: LocalRegistry, tmp_path: Path) -> None:
    opaque = dtype_by_name("Q8_K")
    tensors = [(TensorSpec(f"blk.{n}.attn_q.weight", (256,), opaque), bytes(opaque.block_bytes)) for n in range(2)]
    values = ingested(registry, tmp_path, file_bytes(block_metadata(), tensors))
    (kind,) = values["types"].items
    assert (kind["tensors_count"], kind["measured_count"], kind["mean_theta_degrees"]) == (2, 0, None)
    assert kind["theta_median_degrees"] is None
    assert values["highest"].before == ("No tensor of this model has a θ.",)
    assert values["blocks"].items == ()
    assert len(values["anomalies"].items) == 2


def test_a_file_with_only_a_vocabulary_is_described_as_such(filled: LocalRegistry) -> None:
    report = report_on(filled, "words")
    assert tuple(report.sections) == ("model", "notes")
    assert "no tensors" in report.opening[-1]
    words = str(report)
    for promise in ("θ", "spectral", "blocks"):
        assert promise not in words, "nothing of the kind is read from words"
    assert section_sheet(report.sections[report.main])[1][0][:2] == ("title", "Words")


def test_an_adapter_and_a_partial_model_are_described_as_such(filled: LocalRegistry) -> None:
    adapter, part = sections(filled, "adapter"), sections(filled, "part")
    assert "not comparable" in adapter["model"].figures["kind"].meaning
    assert "blocks" not in adapter
    assert adapter["findings"].items[0]["code"] == "no-base-named"
    assert "norms" not in adapter["model"].figures["mean_theta_degrees"].meaning
    assert "Types do different work" not in str(adapter)
    assert part["model"].figures["kind"].value == "partial"


def test_a_chimera_is_described_as_such(filled: LocalRegistry) -> None:
    plan = filled.compose("little").purify(method="spectral", type="organ").named("local/pure").plan()
    values = sections(filled, plan.register().model)
    kind = values["model"].figures["kind"]
    assert (kind.value, "was composed in this registry" in kind.meaning) == ("chimera", True)
    assert values["types"].before[0].startswith("All tensors of this chimera.")


def test_the_methods_say_how_much_was_looked_at(registry: LocalRegistry, tmp_path: Path) -> None:
    values = ingested(registry, tmp_path, file_bytes([], [weight_tensor("blk.0.ffn_up.weight", (1024, 1024))]))
    z1, mp1 = values["methods"].items
    assert (z1["method"], z1["sample_maximum_count"]) == ("z1", 98_304)
    assert z1["sampled_share"] == pytest.approx(98_304 / 2**20)
    assert (mp1["method"], mp1["sample_maximum_count"]) == ("mp1", 256 * 1024)
