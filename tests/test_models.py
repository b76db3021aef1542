"""Tests of models and organs as shown by pages, JSON and commands: complete and correct."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from organs.registry.catalog.queries.model_lists import model_summaries
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.organs import organ_detail, organs_of_model
from organs.registry.digest import digest_of
from organs.registry.entities.base import decode, encode
from organs.registry.entities.model import Model
from organs.registry.entities.organ import Organ, OrganMeasurement, PlacedOrgan
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.models import model_page
from organs.registry.names import parse_model_name
from tests.gguf_files import file_bytes
from tests.small_models import ingest_file, small_model

F32 = dtype_by_name("F32")


def shown_model(registry: LocalRegistry, name: str) -> Model:
    with registry.catalog.reading() as session:
        return model_page(session, model_by_name(session, parse_model_name(name)))


def shown_organs(registry: LocalRegistry, name: str) -> tuple[PlacedOrgan, ...]:
    with registry.catalog.reading() as session:
        return organs_of_model(session, model_by_name(session, parse_model_name(name)))


def shown_organ(registry: LocalRegistry, folder: Path, values: np.ndarray[Any, np.dtype[np.float32]]) -> Organ:
    data = values.tobytes()
    path = folder / "organ.gguf"
    path.write_bytes(file_bytes([], [(TensorSpec("output_norm.weight", values.shape[::-1], F32), data)]))
    ingest_file(registry, path)
    with registry.catalog.reading() as session:
        return organ_detail(session, digest_of(data))


@pytest.fixture
def ingested(registry: LocalRegistry, tmp_path: Path) -> LocalRegistry:
    (tmp_path / "a.gguf").write_bytes(small_model())
    ingest_file(registry, tmp_path / "a.gguf")
    return registry


def test_a_model_shows_the_facts_of_its_header_and_tensors(ingested: LocalRegistry) -> None:
    model = shown_model(ingested, "a")
    assert model.name == "local/a@1"
    assert model.title == "Little"
    assert model.architecture == "llama"
    assert model.license == "apache-2.0"
    assert model.tensors == 10
    assert model.parameters == 64 * 96 + 2 * (64 + 64 * 64 + 2 * 64 * 128) + 64
    assert model.size_bytes == len(small_model())
    assert model.digest == digest_of(small_model()) == model.files[0].sha256
    assert 0 < model.mean_theta < 90
    assert model.flags == model.unassemblable == ()
    assert [entry.key for entry in model.metadata][:2] == ["general.architecture", "general.name"]


def test_the_types_of_a_model_add_up_to_the_whole(ingested: LocalRegistry) -> None:
    model = shown_model(ingested, "a")
    assert {kind.type: kind.tensors for kind in model.types} == {
        "embed": 1,
        "norm": 3,
        "organ": 4,
        "skeleton": 2,
    }
    assert sum(kind.size_bytes for kind in model.types) == sum(
        organ.size_bytes for organ in shown_organs(ingested, "a")
    )


def test_the_organs_of_a_model_are_in_the_order_of_its_file(ingested: LocalRegistry) -> None:
    organs = shown_organs(ingested, "a")
    assert [organ.name for organ in organs][:2] == ["token_embd.weight", "blk.0.attn_norm.weight"]
    assert organs[-1].name == "output_norm.weight"
    query = organs[2]
    assert (query.type, query.tower, query.block, query.slot) == ("skeleton", "text", 0, "attn_q")
    assert (query.dtype, query.shape, query.size_bytes) == ("F16", (64, 64), 8192)
    assert (query.model, query.architecture, query.license) == ("local/a@1", "llama", "apache-2.0")


def test_every_shown_entity_is_valid_json(ingested: LocalRegistry) -> None:
    model = shown_model(ingested, "a")
    assert decode(encode(model), Model) == model
    with ingested.catalog.reading() as session:
        organ = organ_detail(session, shown_organs(ingested, "a")[2].digest)
        (summary,) = model_summaries(session, [model_by_name(session, parse_model_name("a"))])
    assert decode(encode(organ), Organ) == organ
    assert json.loads(encode(summary)).items() <= json.loads(encode(model)).items()


def test_an_organ_lists_all_its_places(ingested: LocalRegistry, tmp_path: Path) -> None:
    (tmp_path / "b.gguf").write_bytes(small_model("B"))
    ingest_file(ingested, tmp_path / "b.gguf")
    digest = shown_organs(ingested, "a")[2].digest
    with ingested.catalog.reading() as session:
        organ = organ_detail(session, digest[:10])
    assert [(place.model, place.name) for place in organ.places] == [
        ("local/a@1", "blk.0.attn_q.weight"),
        ("local/b@1", "blk.0.attn_q.weight"),
    ]
    assert organ.also == ()


def test_an_organ_lists_the_other_shapes_and_types_of_its_bytes(registry: LocalRegistry, tmp_path: Path) -> None:
    data = bytes(1024)
    tensors = [
        (TensorSpec("a", (256,), F32), data),
        (TensorSpec("b", (16, 16), F32), data),
        (TensorSpec("c", (512,), dtype_by_name("F16")), data),
    ]
    (tmp_path / "zeros.gguf").write_bytes(file_bytes([], tensors))
    ingest_file(registry, tmp_path / "zeros.gguf")
    with registry.catalog.reading() as session:
        organ = organ_detail(session, digest_of(data))
    assert (organ.dtype, organ.shape) == ("F32", (256,))
    assert [(other.dtype, other.shape) for other in organ.also] == [("F32", (16, 16)), ("F16", (512,))]
    assert all(other.measurements for other in organ.also)
    assert [place.name for place in organ.places] == ["a", "b", "c"]


def as_json(measurement: OrganMeasurement) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(encode(measurement))
    return values


def test_missing_measures_are_left_out_and_the_reason_is_shown(registry: LocalRegistry, tmp_path: Path) -> None:
    (measurement,) = shown_organ(registry, tmp_path, np.ones(8, np.float32)).measurements
    reading = as_json(measurement)
    assert reading["reason"]
    assert reading["constant"] is True
    assert {"theta", "spectral_signal", "entropy"} & set(reading) == set()


def test_oddities_are_counted(registry: LocalRegistry, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    values[:3], values[3:5] = np.nan, np.inf
    (measurement,) = shown_organ(registry, tmp_path, values).measurements
    reading = as_json(measurement)
    assert (reading["nan_count"], reading["infinite_count"]) == (3, 2)
    assert 0 <= reading["theta"] <= 90
