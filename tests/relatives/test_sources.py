"""Tests of the sources of quantisations: blocks of relatives are encoded again and compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.gguf.quants import dequantize, encode
from organs.registry.local import LocalRegistry
from organs.registry.relatives import settle_sources, sources
from tests.cli.in_process import OrganCommand
from tests.related_models import ingest_all, related_tensors
from tests.small_models import Tensors, weight_tensor

BASE = related_tensors()
CODE, DOCS = (related_tensors(correlation=1 - 4e-5, other_seed=seed) for seed in (1, 2))


def quantised(tensors: Tensors, dtype: str = "Q4_0", noise: float = 0.0) -> Tensors:
    """Return a quantisation; `noise` moves the values, as an importance matrix moves the blocks."""
    found, kind = [], dtype_by_name(dtype)
    for spec, data in tensors:
        if len(spec.shape) == 1:
            found.append((spec, data))
            continue
        values = dequantize(data, spec.dtype)
        moved = values + noise * values.std() * np.random.default_rng(1).standard_normal(values.size)
        found.append((TensorSpec(spec.name, spec.shape, kind), encode(moved.astype(np.float32), kind)))
    return found


def measured(registry: LocalRegistry, name: str) -> dict[str, tuple[str, str]]:
    """Return direction and relation of the measured edges of a model."""
    edges = [edge for edge in registry.model(name).relatives if edge.evidence == "measured"]
    return {str(edge.model)[6:-2]: (edge.direction, edge.relation) for edge in edges}


def codes(registry: LocalRegistry, name: str) -> list[str]:
    return [finding.code for finding in registry.model(name).findings]


@pytest.mark.parametrize("order", [("base", "code", "docs", "small"), ("small", "docs", "code", "base")])
def test_the_true_source_is_proved_in_any_order_of_arrival(
    order: tuple[str, ...], registry: LocalRegistry, tmp_path: Path
) -> None:
    tensors = {"base": BASE, "code": CODE, "docs": DOCS, "small": quantised(CODE)}
    ingest_all(registry, tmp_path, **{name: tensors[name] for name in order})
    assert measured(registry, "small") == {
        "code": ("parent", "quantized"), "base": ("relative", "relative"), "docs": ("relative", "relative"),
    }  # fmt: skip
    assert measured(registry, "code") == {
        "base": ("parent", "finetune"), "small": ("child", "quantized"), "docs": ("relative", "sibling"),
    }  # fmt: skip
    assert "source-not-settled" not in codes(registry, "small")


def test_a_quantisation_with_an_importance_matrix_has_no_source(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_all(registry, tmp_path, base=BASE, small=quantised(BASE, noise=0.03))
    assert measured(registry, "small") == {"base": ("relative", "relative")}
    assert "source-not-settled" in codes(registry, "small")
    assert "not proved to be a plain quantisation: encoding" in registry.compare("base", "small").sentence


def test_without_an_encoder_the_source_stays_open_and_the_finding_names_the_extra(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = quantised(BASE)
    monkeypatch.setattr(sources, "can_encode", lambda _dtype: False)
    ingest_all(registry, tmp_path, base=BASE, small=small)
    assert measured(registry, "small") == {"base": ("relative", "quantized")}
    (finding,) = [one for one in registry.model("small").findings if one.code == "source-not-tried"]
    assert "extra quantize" in finding.sentence
    assert "not proved to be a plain quantisation" in registry.compare("base", "small").sentence
    monkeypatch.undo()
    with registry.catalog.reading() as session:
        model_id = model_by_text(session, "small").id
    assert settle_sources(registry.catalog, registry.blobs, [model_id]) == 1
    assert measured(registry, "small") == {"base": ("parent", "quantized")}
    assert "source-not-tried" not in codes(registry, "small")


def test_a_proof_compares_all_blocks_and_names_the_matrices_with_others(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    small = quantised(BASE)
    altered = [
        (spec, data[:20] + bytes(reversed(data[20:36])) + data[36:] if spec.name == "blk.1.ffn_up.weight" else data)
        for spec, data in small
    ]
    ingest_all(registry, tmp_path, base=BASE, small=small, altered=altered, code=CODE)
    organ = OrganCommand(registry.settings.home)
    assert organ.done("compare", "small", "base", "--prove").lines[0] == (
        "local/small@1 is exactly the quantisation of local/base@1 in 7 of 7 matrices. "
        "Other organs, such as vectors: 3 the same to the last byte."
    )
    proof = registry.prove("base", "altered")
    assert proof is not None
    assert (proof.exact, proof.organs, proof.blocks - proof.equal_blocks) == (6, 7, 1)
    assert proof.differing == ("block 1 ffn_up",)
    assert registry.prove("base", "code") is None
    assert organ("compare", "base", "code", "--prove").status == 1


def test_a_proof_compares_the_last_blocks_and_says_what_was_not_encoded(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    def altered(spec: TensorSpec, data: bytes) -> tuple[TensorSpec, bytes]:
        return spec, data[:-1] + bytes([data[-1] ^ 1])

    shapes = {"attn_q": (32, 5), "attn_k": (32, 63), "attn_v": (32, 32), "attn_output": (32, 33), "ffn_up": (32, 34)}
    matrices = [weight_tensor(f"blk.0.{slot}.weight", shape) for slot, shape in shapes.items()]
    norms = [weight_tensor(f"{name}.weight", (64,), dtype="F32") for name in ("blk.0.attn_norm", "output_norm")]
    short, long = quantised(matrices[:2])
    wide = TensorSpec("blk.0.attn_output.weight", (32, 33), dtype_by_name("F32"))
    other_type = (wide, dequantize(matrices[3][1], dtype_by_name("F16")).tobytes())
    small = [short, altered(*long), altered(*matrices[2]), other_type, norms[0], altered(*norms[1])]
    ingest_all(registry, tmp_path, base=[*matrices, *norms], small=small)
    proof = registry.prove("base", "small")
    assert proof is not None
    assert (proof.exact, proof.organs, proof.equal_blocks, proof.blocks) == (1, 2, 67, 68)
    assert proof.sentence == (
        "local/small@1 is exactly the quantisation of local/base@1 in 1 of 2 matrices; 1 of 68 blocks differ, in "
        "block 0 attn_k. Other organs, such as vectors: 1 the same to the last byte, 2 different (block 0 attn_v and "
        "output_norm), 2 not compared (block 0 attn_output and block 0 ffn_up)."
    )


def test_hostile_values_are_not_encoded(registry: LocalRegistry, tmp_path: Path) -> None:
    small = quantised(BASE)
    hostile = [
        (spec, np.full(len(data) // 2, np.inf, np.float16).tobytes() if spec.name == "blk.0.attn_q.weight" else data)
        for spec, data in BASE
    ]
    ingest_all(registry, tmp_path, hostile=hostile, small=small)
    proof = registry.prove("hostile", "small")
    assert proof is not None
    assert (proof.exact, proof.differing) == (6, ("block 0 attn_q",))
