"""Tests of LoRA adapters that are extracted from a fine-tune: their factors, their shares, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from organs.ingest.add import add_model
from organs.registry.compose import extraction
from organs.registry.entities.extraction import ExtractedAdapter
from organs.registry.errors import BadInput, BadOrgan
from organs.registry.gguf import MemorySource, TensorSpec, dtype_by_name, read_header
from organs.registry.gguf.quants import dequantize, quantize
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes, text
from tests.ingest.peft_folders import Matrix, read_tensors
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.small_models import EXPERTS, Tensors, block_metadata, block_tensors, expert_model, weight_tensor

BASE = related_tensors(dtype="F32")
Change = Callable[[TensorSpec], Matrix | None]


def plain(data: bytes, spec: TensorSpec) -> Matrix:
    return dequantize(data, spec.dtype).astype(np.float64).reshape(spec.shape[::-1])


def of_rank(rank: int, *names: str, seed: int = 3, size: float = 0.01) -> Change:
    """Return a change of this rank in the tensors whose names end so; vectors are changed as a whole."""

    def change(spec: TensorSpec) -> Matrix | None:
        if not spec.name.endswith(names):
            return None
        random = np.random.default_rng([seed, *spec.name.encode()])
        if len(spec.shape) == 1:
            return size * random.standard_normal(spec.shape[0])
        columns, rows, *stack = spec.shape
        parts = random.standard_normal((*stack, rows, rank)) @ random.standard_normal((*stack, rank, columns))
        return size * parts

    return change


def tuned(tensors: Tensors, change: Change, dtype: str | None = None) -> Tensors:
    """Return the tensors with `change`, in the same or in another type."""
    result = []
    for spec, data in tensors:
        own = change(spec)
        if own is not None or (dtype and len(spec.shape) > 1):
            kind = dtype_by_name(dtype) if dtype and len(spec.shape) > 1 else spec.dtype
            values = plain(data, spec) + (0.0 if own is None else own)
            spec, data = TensorSpec(spec.name, spec.shape, kind), quantize(values.ravel(), kind)
        result.append((spec, data))
    return result


ATTENTION, FEED_FORWARD = ("attn_q.weight",), ("ffn_up.weight", "ffn_down.weight")


def extracted(
    registry: LocalRegistry, folder: Path, child: Tensors, base: Tensors = BASE, **options: object
) -> tuple[ExtractedAdapter, bytes]:
    """Register both models, and return what is extracted and the file."""
    ingest_bytes(registry, folder, "base", model_file("Base", base))
    ingest_bytes(registry, folder, "child", model_file("Child", child))
    path = folder / "lora.gguf"
    result = registry.extract_lora("child", "base", path=path, **options)  # type: ignore[arg-type]
    return result, path.read_bytes()


def products(data: bytes) -> dict[str, Matrix]:
    """Return what the factors in a file add to each tensor, as llama.cpp computes it."""
    header, tensors = read_header(MemorySource(data)), read_tensors(data)
    field = header.field("adapter.lora.alpha")
    assert field is not None
    found = {}
    for name in dict.fromkeys(name.rpartition(".")[0] for name in tensors):
        a, b = (tensors[f"{name}.lora_{half}"].astype(np.float64) for half in "ab")
        scale = float(str(field.value)) / b.shape[-1]
        found[name] = scale * (a @ b.T if name == "token_embd.weight" else b @ a)
    return found


def changes(child: Tensors, base: Tensors = BASE) -> dict[str, Matrix]:
    """Return the difference of all tensors that differ."""
    pairs = zip(child, base, strict=True)
    all_of_them = {spec.name: plain(data, spec) - plain(own, kind) for (spec, data), (kind, own) in pairs}
    return {name: change for name, change in all_of_them.items() if change.any()}


def energy(values: Mapping[str, Matrix] | Sequence[Matrix]) -> float:
    matrices = values.values() if isinstance(values, Mapping) else values
    return float(sum((matrix**2).sum() for matrix in matrices))


def test_a_change_of_low_rank_is_kept_completely(registry: LocalRegistry, tmp_path: Path) -> None:
    child = tuned(BASE, of_rank(3, *ATTENTION, *FEED_FORWARD))
    result, data = extracted(registry, tmp_path, child, rank=4)
    added, change = products(data), changes(child)
    assert added.keys() == change.keys()
    for name in change:
        assert np.allclose(added[name], change[name], rtol=0, atol=1e-6 * np.abs(change[name]).max()), name
    assert result.kept == pytest.approx(1.0, abs=1e-9)
    assert [(kind.type, kind.matrices, kind.least_rank) for kind in result.types] == [
        ("skeleton", 2, 4),
        ("organ", 4, 4),
    ]
    assert (result.left_out, result.unchanged, result.notes) == ((), len(BASE) - 6, ())
    assert result.sentence == (
        "A LoRA of rank 4 keeps 100% of the change of 6 matrices, and 100% of all that changed from local/base@1 to "
        "local/child@1; 4 tensors are the same in both."
    )
    header = read_header(MemorySource(data))
    texts = [header.text(f"general.{key}") for key in ("architecture", "type", "base_model.0.name", "license")]
    assert texts == ["llama", "adapter", "Base", "apache-2.0"]


def test_shares_are_those_of_the_written_factors_and_count_what_is_left_out(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    child = tuned(BASE, of_rank(40, *ATTENTION, *FEED_FORWARD, "_norm.weight", "token_embd.weight"))
    result, data = extracted(registry, tmp_path, child, rank=[2, 5])
    added, change = products(data), changes(child)
    whole = energy(change)
    rest = energy([change[name] - added[name] for name in added])
    inner = energy([change[name] for name in added])
    assert result.kept == pytest.approx((inner - rest) / whole, rel=1e-6)
    assert [item.rank for item in result.ranks] == [2, 5]
    best = sum((np.linalg.svd(change[name], compute_uv=False)[:2] ** 2).sum() for name in added)
    assert 0.98 * best <= result.ranks[0].kept * whole <= best * (1 + 1e-9)
    assert result.ranks[1].kept == result.kept
    assert result.size_bytes == result.ranks[1].size_bytes == sum(item.size_bytes for item in result.organs)
    assert [len(item.organs) for item in result.left_out] == [1, 3], "the embedding changed most"
    assert "one matrix for embeddings and output" in result.left_out[0].sentence
    assert "(token_embd.weight)" in result.left_out[0].sentence
    shares = [energy([change[name] for name in item.organs]) / whole for item in result.left_out]
    assert [item.of_change for item in result.left_out] == pytest.approx(shares, rel=1e-9)
    assert sum(kind.of_change for kind in result.types) + sum(shares) == pytest.approx(1.0)


def test_a_base_with_two_matrices_for_tokens_has_factors_for_both(registry: LocalRegistry, tmp_path: Path) -> None:
    base = [*BASE, weight_tensor("output.weight", (64, 96), dtype="F32")]
    child = tuned(base, of_rank(2, "token_embd.weight", "output.weight"))
    result, data = extracted(registry, tmp_path, child, base, rank=3)
    added, change = products(data), changes(child, base)
    for name in ("token_embd.weight", "output.weight"):
        assert np.allclose(added[name], change[name], rtol=0, atol=1e-6), name
    shapes = {tensor.name: tensor.shape for tensor in read_header(MemorySource(data)).tensors}
    assert (shapes["token_embd.weight.lora_a"], shapes["token_embd.weight.lora_b"]) == ((3, 96), (3, 64))
    assert [(kind.type, kind.matrices) for kind in result.types] == [("embed", 2)]
    add_model(registry, tmp_path / "lora.gguf")
    merged = recomputed(registry, tmp_path)
    for name, values in merged.items():
        assert np.allclose(values, dict(with_values(child))[name], rtol=0, atol=1e-6), name


def with_values(tensors: Tensors) -> list[tuple[str, Matrix]]:
    return [(spec.name, plain(data, spec)) for spec, data in tensors]


def recomputed(registry: LocalRegistry, folder: Path) -> dict[str, Matrix]:
    """Return the values of the base with the adapter merged, by a recipe."""
    plan = registry.compose("base").adapter("lora").plan()
    plan.accepting_all().assemble(folder / "merged.gguf")
    data = (folder / "merged.gguf").read_bytes()
    return {name: values.astype(np.float64) for name, values in read_tensors(data).items()}


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_merged_back_at_full_rank_it_gives_the_fine_tune(registry: LocalRegistry, tmp_path: Path, dtype: str) -> None:
    base = related_tensors(dtype=dtype)
    child = tuned(base, of_rank(64, *ATTENTION, *FEED_FORWARD))
    result, _ = extracted(registry, tmp_path, child, base, rank=64)
    assert result.kept == pytest.approx(1.0, abs=1e-9)
    add_model(registry, tmp_path / "lora.gguf")
    merged, wanted = recomputed(registry, tmp_path), dict(with_values(child))
    for name, values in merged.items():
        step = np.spacing(np.abs(wanted[name]).astype({"F32": np.float32, "F16": np.float16}[dtype]))
        largest = np.abs(wanted[name]).max()
        assert (np.abs(values - wanted[name]) <= step + 1e-6 * largest).all(), name


def test_each_expert_of_a_stack_has_its_own_factors(registry: LocalRegistry, tmp_path: Path) -> None:
    for name, seeds in (("base", {}), ("child", {2: 5, 6: 5})):
        ingest_bytes(registry, tmp_path, name, expert_model(dtype="F32", changed=seeds))
    path = tmp_path / "lora.gguf"
    result = registry.extract_lora("child", "base", rank=48, path=path)
    files = [read_tensors((tmp_path / f"{name}.gguf").read_bytes()) for name in ("base", "child")]
    added = products(path.read_bytes())
    assert len(added) == 4, "gate and up of two blocks"
    for name, product in added.items():
        change = files[1][name].astype(np.float64) - files[0][name]
        assert [bool(part.any()) for part in change] == [number in (2, 6) for number in range(EXPERTS)]
        assert np.allclose(product, change, rtol=0, atol=1e-6), name
    assert [(kind.type, kind.matrices) for kind in result.types] == [("organ", 4 * EXPERTS)]
    shapes = {tensor.name: tensor.shape for tensor in read_header(MemorySource(path.read_bytes())).tensors}
    stack = "blk.0.ffn_up_exps.weight"
    assert (shapes[f"{stack}.lora_a"], shapes[f"{stack}.lora_b"]) == ((64, 48, EXPERTS), (48, 48, EXPERTS))
    add_model(registry, path)
    merged = recomputed(registry, tmp_path)
    assert np.allclose(merged[stack], files[1][stack], rtol=0, atol=1e-6)


def test_a_share_to_keep_gives_each_matrix_its_smallest_rank(registry: LocalRegistry, tmp_path: Path) -> None:
    few, many = of_rank(2, *ATTENTION), of_rank(40, *FEED_FORWARD)

    def change(spec: TensorSpec) -> Matrix | None:
        found = few(spec)
        return many(spec) if found is None else found

    child = tuned(BASE, change)
    result, data = extracted(registry, tmp_path, child, rank=8, keep=0.9)
    ranks = {organ.name: organ.rank for organ in result.organs}
    assert [ranks[f"blk.0.{name}"] for name in ("attn_q.weight", "ffn_up.weight")] == [2, 8]
    added, differences = products(data), changes(child)
    assert np.allclose(added["blk.0.attn_q.weight"], differences["blk.0.attn_q.weight"], rtol=0, atol=1e-6)
    rest = energy([differences[name] - added[name] for name in added])
    assert result.kept == pytest.approx(1 - rest / energy(differences), rel=1e-6)
    for organ in result.organs:
        values = np.linalg.svd(differences[organ.name], compute_uv=False) ** 2
        assert organ.rank == 8 or values[: organ.rank].sum() >= 0.9 * values.sum() > values[: organ.rank - 1].sum()


def test_the_same_models_give_the_same_bytes(registry: LocalRegistry, tmp_path: Path) -> None:
    _, first = extracted(registry, tmp_path, tuned(BASE, of_rank(40, *ATTENTION, *FEED_FORWARD)))
    registry.extract_lora("child", "base", path=tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == first


@pytest.mark.parametrize("quantised", ["child", "base"])
def test_a_quantised_model_is_named_because_the_difference_has_its_rounding(
    registry: LocalRegistry, tmp_path: Path, quantised: str
) -> None:
    change = of_rank(2, *ATTENTION, *FEED_FORWARD)
    child = tuned(BASE, change, "Q8_0" if quantised == "child" else None)
    base = tuned(BASE, lambda _: None, "Q8_0") if quantised == "base" else BASE
    result, data = extracted(registry, tmp_path, child, base, rank=4)
    assert [note.partition(":")[0] for note in result.notes] == [f"local/{quantised}@1 is quantised (Q8_0)"]
    added, differences = products(data), changes(child, base)
    rest = energy([differences[name] - added[name] for name in added])
    kept = sum(organ.kept * organ.of_change for organ in result.organs)
    assert 1 - rest / energy([differences[name] for name in added]) == pytest.approx(
        kept / sum(organ.of_change for organ in result.organs), rel=1e-5
    )
    assert result.kept < 1


def test_the_proved_source_of_a_quantised_model_is_named(registry: LocalRegistry, tmp_path: Path) -> None:
    child = tuned(related_tensors(), of_rank(2, *ATTENTION, *FEED_FORWARD))
    ingest_bytes(registry, tmp_path, "source", model_file("Child", child))
    result, _ = extracted(registry, tmp_path, tuned(child, lambda _: None, "Q8_0"))
    assert result.notes[0].endswith("Extract from models in F16, BF16 or F32 if you have them.")
    registry.prove("child", "source")
    (note,) = registry.extract_lora("child", "base").notes
    assert note.endswith("It is proved to be made from local/source@1: extract from that model.")


def test_unrelated_models_are_warned_about(registry: LocalRegistry, tmp_path: Path) -> None:
    result, _ = extracted(registry, tmp_path, related_tensors(seed=9, dtype="F32"))
    assert "local/child@1 and local/base@1 are unrelated" in result.notes[0]
    assert result.kept < 0.7


def same_in_bf16(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Return the tensors with values that BF16 holds, in F32 and in BF16."""
    rounded = tuned(tensors, lambda _: None, "BF16")
    return tuned(rounded, lambda _: None, "F32"), rounded


def test_models_without_a_change_for_a_lora_are_refused_in_one_sentence(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    same, other_type = same_in_bf16(BASE)
    norms = tuned(same, of_rank(1, "_norm.weight"))
    for name, tensors in (("base", same), ("twin", same), ("coded", other_type), ("norms", norms)):
        ingest_bytes(registry, tmp_path, name, model_file(name, tensors))
    for child, sentence in (
        ("twin", "local/twin@1 has the same weights as local/base@1: there is no change to extract"),
        ("coded", "local/coded@1 differs from local/base@1 in nothing that a LoRA can change: all values are the same"),
        ("norms", "in nothing that a LoRA can change: blk.0.attn_norm.weight, blk.1.attn_norm.weight and"),
    ):
        with pytest.raises(BadInput, match=sentence):
            registry.extract_lora(child, "base", path=tmp_path / "lora.gguf")
    assert not (tmp_path / "lora.gguf").exists()


def test_models_that_do_not_have_the_same_tensors_are_refused_with_all_reasons(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    other = [item for item in block_tensors(3, 32, dtype="F32") if not item[0].name.startswith("blk.0")]
    keys = [text("general.architecture", "qwen2"), *block_metadata("Other", 3)[1:]]
    ingest_bytes(registry, tmp_path, "base", model_file("Base", BASE))
    ingest_bytes(registry, tmp_path, "other", file_bytes(keys, other))
    with pytest.raises(BadInput) as caught:
        registry.extract_lora("other", "base")
    sentences = [fault.detail for fault in caught.value.errors]
    assert sentences == [
        "local/other@1 has the architecture qwen2, local/base@1 has llama",
        "local/other@1 has no blk.0.attn_norm.weight, blk.0.attn_q.weight, blk.0.ffn_up.weight and 1 more",
        "local/base@1 has no blk.2.attn_norm.weight, blk.2.attn_q.weight, blk.2.ffn_up.weight and 1 more",
        (
            "local/other@1 has other shapes at token_embd.weight (32 × 96, not 64 × 96), blk.1.attn_norm.weight (32, "
            "not 64), blk.1.attn_q.weight (32 × 32, not 64 × 64) and 3 more"
        ),
    ]


def test_ranks_and_sizes_beyond_the_limits_are_refused_before_anything_is_read(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extracted(registry, tmp_path, tuned(BASE, of_rank(2, *ATTENTION)))

    def unread(*_: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(extraction, "low_rank", unread)
    for options, sentence in (
        ({"rank": 0}, "a rank is from 1 to 4,096"),
        ({"rank": 4097}, "a rank is from 1 to 4,096"),
        ({"rank": []}, "a rank is from 1 to 4,096"),
        ({"keep": 0.0}, "the share to keep is 0.0"),
        ({"keep": float("nan")}, "the share to keep is nan"),
        ({"keep": 0.5, "rank": [2, 4]}, "a share to keep is for one rank"),
    ):
        with pytest.raises(BadInput, match=sentence):
            registry.extract_lora("child", "base", **options)  # type: ignore[arg-type]
    too_large = r"a rank of 16 is too large for blk\.0\.attn_q\.weight and blk\.1\.attn_q\.weight: choose a lower one"
    for limit, most in (("FACTORS_MAX_ELEMENTS", 16 * 128), ("SKETCH_MAX_ELEMENTS", 32 * 128)):
        with monkeypatch.context() as patched:
            patched.setattr(extraction, limit, most - 1)
            with pytest.raises(BadInput, match=too_large):
                registry.extract_lora("child", "base")
            patched.setattr(extraction, limit, most)
            with pytest.raises(AssertionError, match="weights are read"):
                registry.extract_lora("child", "base")


def test_weights_that_are_not_finite_are_refused_with_their_name(registry: LocalRegistry, tmp_path: Path) -> None:
    def change(spec: TensorSpec) -> Matrix | None:
        found = of_rank(2, *ATTENTION)(spec)
        if found is not None and spec.name.startswith("blk.1"):
            found[3, 5] = np.inf
        return found

    with np.errstate(all="ignore"), pytest.raises(BadOrgan, match=r"blk\.1\.attn_q\.weight: "):
        extracted(registry, tmp_path, tuned(BASE, change))
    assert not (tmp_path / "lora.gguf").exists()
