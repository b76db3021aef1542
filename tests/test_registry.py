"""Tests of models and organs as `LocalRegistry` returns them: complete and correct."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from organs.registry import LocalRegistry
from organs.registry.digest import digest_of
from organs.registry.errors import NotFound
from organs.registry.gguf import TensorSpec, dtype_by_name
from tests.gguf_files import file_bytes
from tests.related_models import ingest_bytes
from tests.small_models import block_tensors, small_model

F32 = dtype_by_name("F32")


@pytest.fixture
def little(registry: LocalRegistry, tmp_path: Path) -> LocalRegistry:
    """Return the registry with one model of two blocks."""
    ingest_bytes(registry, tmp_path, "little", small_model())
    return registry


def test_a_model_has_the_facts_of_its_header_and_tensors_by_its_name_or_a_prefix_of_its_digest(
    little: LocalRegistry,
) -> None:
    model = little.model("little")
    assert (model.name, model.architecture, model.license) == ("local/little@1", "llama", "apache-2.0")
    assert (model.kind, model.title, model.complete) == ("model", "Little", True)
    assert model.size_bytes == len(small_model())
    assert model.digest == digest_of(small_model()) == model.files[0].sha256
    assert [organ.name for organ in model.organs] == [spec.name for spec, _ in block_tensors()]
    assert model.parameters == sum(spec.elements for spec, _ in block_tensors())
    assert 0 < (model.mean_theta or 0) < 90
    assert [entry.key for entry in model.metadata][:2] == ["general.architecture", "general.name"]
    assert {kind.type: kind.tensors for kind in model.types} == {"embed": 1, "norm": 3, "organ": 4, "skeleton": 2}
    assert sum(kind.size_bytes for kind in model.types) == sum(organ.size_bytes for organ in model.organs)
    assert (model.is_chimera, model.recipe, model.lock_id, model.relatives) == (False, None, None, ())
    assert (model.flags, model.unassemblable) == ((), ())
    for name in ("local/little", "little@1", f"sha256:{model.digest}", f"sha256:{model.digest[:12]}"):
        assert little.model(name) == model


def test_the_organs_of_a_model_equal_those_of_a_search(little: LocalRegistry) -> None:
    model = little.model("little")
    assert sorted(model.organs, key=repr) == sorted(little.search("model:local/little"), key=repr)
    organ = model.organ("blk.1.ffn_up.weight")
    assert (organ.type, organ.block, organ.slot, organ.dtype, organ.shape) == ("organ", 1, "ffn_up", "F16", (64, 128))
    with pytest.raises(
        NotFound, match=r"local/little@1 has no tensor 'blk.1.ffn_upp.weight'; did you mean blk.1.ffn_up"
    ):
        model.organ("blk.1.ffn_upp.weight")


def test_an_organ_lists_all_its_places_and_the_other_shapes_and_types_of_its_bytes(
    little: LocalRegistry, tmp_path: Path
) -> None:
    ingest_bytes(little, tmp_path, "other", small_model("Other"))
    organ = little.organ(little.model("little").organ("blk.0.attn_q.weight").digest[:10])
    assert [(place.model, place.name) for place in organ.places] == [
        ("local/little@1", "blk.0.attn_q.weight"),
        ("local/other@1", "blk.0.attn_q.weight"),
    ]
    assert organ.also == ()
    tensors = [
        (TensorSpec("a", (256,), F32), bytes(1024)),
        (TensorSpec("b", (16, 16), F32), bytes(1024)),
        (TensorSpec("c", (512,), dtype_by_name("F16")), bytes(1024)),
    ]
    ingest_bytes(little, tmp_path, "zeros", file_bytes([], tensors))
    zeros = little.organ(digest_of(bytes(1024)))
    assert (zeros.dtype, zeros.shape) == ("F32", (256,))
    assert [(other.dtype, other.shape) for other in zeros.also] == [("F32", (16, 16)), ("F16", (512,))]
    assert all(other.measurements for other in zeros.also)
    assert [place.name for place in zeros.places] == ["a", "b", "c"]


def test_an_organ_has_the_reason_for_missing_measures_and_the_count_of_its_oddities(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    odd = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    odd[:3], odd[3:5] = np.nan, np.inf
    tensors = [(TensorSpec(f"{values.size}", (values.size,), F32), values) for values in (odd, np.ones(8, np.float32))]
    ingest_bytes(registry, tmp_path, "odd", file_bytes([], [(spec, values.tobytes()) for spec, values in tensors]))
    counted, constant = (registry.organ(digest_of(values.tobytes())).measurements[0] for _, values in tensors)
    assert (counted.nan_count, counted.infinite_count) == (3, 2)
    assert 0 <= (counted.theta or 0) <= 90
    assert constant.reason
    assert constant.constant
    assert (constant.theta, constant.spectral_signal, constant.entropy) == (None, None, None)
