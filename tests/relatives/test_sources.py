"""Tests of the sources of quantisations: blocks of relatives are encoded again and compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import func, select

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.register.model_changes import remove_model
from organs.registry.catalog.tables import Derivation
from organs.registry.digest import digest_of
from organs.registry.errors import BadInput, Conflict
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.gguf.quants import dequantize, encode, quantize
from organs.registry.local import LocalRegistry
from organs.registry.relatives import settle_sources, sources
from tests import llama_quants
from tests.cli.in_process import OrganCommand
from tests.gguf_files import importance_file, importance_records
from tests.related_models import ingest_all, ingest_bytes, related_tensors
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


def altered(tensors: Tensors, *names: str) -> Tensors:
    """Return the tensors with other bytes in one block of those named."""
    return [
        (spec, data[:20] + bytes(reversed(data[20:36])) + data[36:] if spec.name in names else data)
        for spec, data in tensors
    ]


def test_a_proof_is_recorded_and_shown_wherever_the_two_models_are(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_all(registry, tmp_path, base=BASE, small=quantised(BASE), code=CODE)
    organ = OrganCommand(registry.settings.home)
    assert registry.compare("small", "base").proof is None
    sentence = (
        "local/small@1 is proved to be made from local/base@1: 7 of its 10 tensors are exactly what encoding "
        "that model gives, 3 are the same in both."
    )
    assert organ.done("prove", "small").lines[0] == sentence
    for first, second in (("small", "base"), ("base", "small")):
        assert registry.compare(first, second).sentence == sentence
    edges = [edge for name in ("small", "base") for edge in registry.model(name).lineage if edge.evidence == "proved"]
    assert [(edge.direction, edge.relation, edge.matched) for edge in edges] == [
        ("parent", "quantized", 1.0),
        ("child", "quantized", 1.0),
    ]
    assert organ("prove", "base").err.startswith("organ: local/base@1 is not quantised: most of its weights are F16")
    ended = organ("prove", "code", "--from", "base")
    assert (ended.status, "nothing of local/base@1 can be encoded" in ended.err) == (1, True)
    with registry.catalog.writing() as session:
        remove_model(session, model_by_text(session, "base"), "gone", "local")
        assert session.scalar(select(func.count()).select_from(Derivation)) == 0
    assert [edge for edge in registry.model("small").lineage if edge.evidence == "proved"] == []


def test_a_proof_names_exactly_the_organs_that_the_source_does_not_explain(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    names = ("blk.0.attn_q.weight", "blk.1.ffn_up.weight")
    norm = "output_norm.weight"
    ingest_all(registry, tmp_path, base=BASE, code=CODE, small=altered(quantised(BASE), *names, norm))
    proof = registry.prove("small")
    assert (proof.source, proof.exact, proof.same) == ("local/base@1", 5, 2)
    assert {organ.name: organ.result for organ in proof.others} == {
        **dict.fromkeys(names, "near"),
        norm: "not explained",
    }
    assert all(organ.blocks - organ.equal_blocks == 1 for organ in proof.others if organ.name in names)
    assert not proof.is_complete
    (finding,) = [one for one in registry.model("small").findings if one.code == "not-explained"]
    assert finding.organs == (*names, norm)
    ended = OrganCommand(registry.settings.home)("prove", "small")
    assert ended.status == 1
    assert "2 but for some blocks (blk.0.attn_q.weight and blk.1.ffn_up.weight), 1 not explained" in ended.out
    wrong = registry.prove("small", "code")
    assert (wrong.explained, wrong.is_likely) == (0, False)
    assert registry.compare("small", "code").sentence.startswith("Almost identical")


def test_a_proof_compares_the_last_blocks_and_floats_and_says_what_was_not_compared(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    def last_bit(spec: TensorSpec, data: bytes) -> tuple[TensorSpec, bytes]:
        return spec, data[:-1] + bytes([data[-1] ^ 1])

    shapes = {"attn_q": (32, 5), "attn_k": (32, 63), "attn_v": (32, 32), "attn_output": (32, 33), "ffn_up": (32, 34)}
    matrices = [weight_tensor(f"blk.0.{slot}.weight", shape) for slot, shape in shapes.items()]
    norms = [weight_tensor(f"{name}.weight", (64,), dtype="F32") for name in ("blk.0.attn_norm", "output_norm")]
    short, long = quantised(matrices[:2])
    values = dequantize(matrices[3][1], dtype_by_name("F16"))
    half, wide = (dtype_by_name(name) for name in ("BF16", "F32"))
    rounded = (TensorSpec("blk.0.attn_output.weight", (32, 33), half), quantize(values, half))
    same_values = dequantize(matrices[4][1], dtype_by_name("F16")).tobytes()
    widened = (TensorSpec("blk.0.ffn_up.weight", (32, 34), wide), same_values)
    more = weight_tensor("blk.0.ffn_gate.weight", (32, 34))
    small = [short, last_bit(*long), last_bit(*matrices[2]), rounded, widened, norms[0], last_bit(*norms[1]), more]
    ingest_all(registry, tmp_path, base=[*matrices, *norms], small=small)
    proof = registry.prove("small", "base")
    assert (proof.organs, proof.exact, proof.same) == (8, 2, 1)
    results = [(organ.name, organ.result, organ.equal_blocks, organ.blocks) for organ in proof.others]
    assert results == [
        ("blk.0.attn_k.weight", "near", 62, 63),
        ("blk.0.attn_v.weight", "not explained", 0, 0),
        ("blk.0.ffn_up.weight", "not compared", 0, 0),
        ("output_norm.weight", "not explained", 0, 0),
        ("blk.0.ffn_gate.weight", "not compared", 0, 0),
    ]


def importances(tensors: Tensors) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(5)
    return {spec.name: random.gamma(0.3, size=spec.shape[0]).astype(np.float32) for spec, _ in tensors}


def weighted(tensors: Tensors, matrix: dict[str, NDArray[np.float32]], dtype: str = "Q4_0") -> Tensors:
    """Return what llama.cpp makes by an importance matrix."""
    kind = dtype_by_name(dtype)
    found = []
    for spec, data in tensors:
        if len(spec.shape) > 1:
            rows = dequantize(data, spec.dtype).reshape(-1, spec.shape[0])
            data = llama_quants.quantised(rows, kind, matrix[spec.name]).tobytes()
            found.append((TensorSpec(spec.name, spec.shape, kind), data))
        else:
            found.append((spec, data))
    return found


def test_a_quantisation_by_an_importance_matrix_is_proved_with_it_and_with_no_other(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    matrix = importances(BASE)
    ingest_all(registry, tmp_path, base=BASE, code=CODE, small=weighted(BASE, matrix))
    path, other = tmp_path / "matrix.gguf", tmp_path / "matrix.dat"
    path.write_bytes(importance_file(matrix))
    other.write_bytes(importance_records({name: values[::-1] for name, values in matrix.items()}))
    organ = OrganCommand(registry.settings.home)
    for arguments in ((), ("--imatrix", other)):
        ended = organ("prove", "small", *arguments)
        assert (ended.status, "no source of local/small@1 is found" in ended.err) == (3, True)
    assert registry.prove("small", "base").explained == 3
    assert registry.compare("small", "base").sentence.startswith("Close")
    assert organ.done("prove", "small", "--imatrix", path).lines[0] == (
        "local/small@1 is proved to be made from local/base@1: 7 with the importance matrix "
        f"{digest_of(path.read_bytes())[:12]}, 3 are the same in both."
    )
    (edge,) = [edge for edge in registry.model("small").lineage if edge.evidence == "proved"]
    assert (edge.model, edge.direction, edge.relation) == ("local/base@1", "parent", "quantized")


def test_a_proof_with_an_importance_matrix_is_kept_when_a_later_one_is_worse(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    matrix = importances(BASE)
    ingest_all(registry, tmp_path, base=BASE, small=weighted(BASE, matrix))
    ingest_bytes(registry, tmp_path, "matrix", importance_file(matrix))
    registry.prove("small", "base", importances="matrix")
    assert registry.prove("small", "base").is_complete
    assert registry.compare("small", "base").matched == 1.0


def test_a_file_that_was_decoded_from_a_quantisation_is_not_its_source(registry: LocalRegistry, tmp_path: Path) -> None:
    small, wide = quantised(BASE), dtype_by_name("F32")
    decoded = [
        (TensorSpec(spec.name, spec.shape, wide), dequantize(data, spec.dtype).tobytes()) for spec, data in small
    ]
    ingest_all(registry, tmp_path, base=BASE, decoded=decoded, small=small)
    assert registry.prove("small").source == "local/base@1"
    with pytest.raises(BadInput, match="local/decoded@1 has the values of local/small@1: it was decoded from it"):
        registry.prove("small", "decoded")


def test_a_model_that_is_removed_meanwhile_leaves_no_proof(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_all(registry, tmp_path, base=BASE, small=quantised(BASE), code=CODE)
    left = ["small"]

    def replaced(_size: int) -> None:
        if left:
            with registry.catalog.writing() as session:
                remove_model(session, model_by_text(session, left.pop()), "gone", "local")
            ingest_all(registry, tmp_path, other=quantised(CODE))

    with pytest.raises(Conflict, match="was removed meanwhile: nothing is recorded"):
        registry.prove("small", "base", progress=replaced)
    with registry.catalog.reading() as session:
        assert session.scalar(select(func.count()).select_from(Derivation)) == 0


def test_hostile_values_are_not_encoded(registry: LocalRegistry, tmp_path: Path) -> None:
    small = quantised(BASE)
    hostile = [
        (spec, np.full(len(data) // 2, np.inf, np.float16).tobytes() if spec.name == "blk.0.attn_q.weight" else data)
        for spec, data in BASE
    ]
    ingest_all(registry, tmp_path, hostile=hostile, small=small)
    proof = registry.prove("small", "hostile")
    assert (proof.exact, [organ.name for organ in proof.others]) == (6, ["blk.0.attn_q.weight"])
