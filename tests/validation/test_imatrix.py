"""Tests of importance matrices that llama.cpp collects, beside sums that are computed from the weights in NumPy."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from organs.registry.digest import digest_of
from organs.registry.entities.importance import CollectedImportances
from organs.registry.errors import BadInput
from organs.registry.gguf import MemorySource, read_header
from organs.registry.gguf.importance import ImportanceMatrix, read_importances
from organs.registry.gguf.quants import decode
from organs.registry.input_files import FileSource
from organs.registry.validation import collector, imatrix
from organs.registry.validation.collector import (
    CollectionOrder,
    CollectionText,
    InputSums,
    MatrixPlace,
    ProductObserver,
    matrix_places,
    sums_by_expert,
    sums_of_all,
    tensor_members,
    text_chunks,
    total_of,
)
from organs.registry.validation.comparison import file_candidate
from organs.registry.validation.decoder import UnknownInterface, declare, opened
from organs.registry.validation.imatrix import CollectionPlan, collect_importances, read_sums
from organs.registry.validation.runtime import RuntimeFailed
from organs.registry.validation.texts import CHAT, ScoredText, built_in_texts
from organs.registry.validation.weights import Weights
from tests.small_models import small_model
from tests.validation.changed_models import A_F16, A, with_experts, with_first_token

PLAIN = built_in_texts(("documentation",))[0].text
TEXT = ScoredText("notes", PLAIN[:2600], digest_of(PLAIN[:2600].encode()))
EPSILON = 1e-5


def collected(
    model: Path, target: Path, texts: Sequence[ScoredText] = (TEXT,), **options: Any
) -> tuple[CollectedImportances, ImportanceMatrix]:
    result = collect_importances(file_candidate(model), texts, target, **options)
    with FileSource(target) as source:
        return result, read_importances(source)


def order_of(model: Path, texts: Sequence[str], size: int = 256) -> CollectionOrder:
    parts = tuple(CollectionText(text=text, template=None) for text in texts)
    return CollectionOrder(model=str(model), texts=parts, chunk_tokens=size, seconds=None, decoders=1, descriptor=-1)


def values_of(weights: Weights, name: str) -> NDArray[np.float32]:
    spot = weights.spots[name]
    return decode(b"".join(map(bytes, spot.chunks())), spot.info.dtype).reshape(spot.info.shape[::-1])


def test_the_inputs_of_the_first_block_are_those_that_follow_from_the_weights(tmp_path: Path) -> None:
    result, matrix = collected(A_F16, tmp_path / "i.gguf")
    with opened(str(A_F16)) as model, Weights(A_F16) as weights:
        tokens = np.concatenate(text_chunks(model, order_of(A_F16, [TEXT.text])))
        embedded = values_of(weights, "token_embd.weight")[tokens].astype(np.float64)
        scale = values_of(weights, "blk.0.attn_norm.weight")
        matrices = {place.name for place in matrix_places(weights)}
    normed = embedded / np.sqrt(np.square(embedded).mean(axis=1, keepdims=True) + EPSILON) * scale
    for slot in ("attn_q", "attn_k", "attn_v"):
        np.testing.assert_allclose(matrix.by_tensor[f"blk.0.{slot}.weight"], np.square(normed).mean(axis=0), rtol=1e-3)
    assert set(matrix.by_tensor) == matrices, "the output matrix is the token embedding"
    assert (result.chunks, result.chunk_tokens, result.weights) == (len(tokens) // 256, 256, len(matrices))
    assert result.unused == ()


def test_the_file_has_the_entries_of_llama_cpp_and_names_its_model(tmp_path: Path) -> None:
    result, _ = collected(A, tmp_path / "i.gguf")
    data = (tmp_path / "i.gguf").read_bytes()
    header = read_header(MemorySource(data))
    assert [field.key for field in header.fields[:4]] == [
        "general.type",
        "imatrix.datasets",
        "imatrix.chunk_count",
        "imatrix.chunk_size",
    ]
    assert header.kind() == "imatrix"
    assert (header.integer("imatrix.chunk_count"), header.integer("imatrix.chunk_size")) == (result.chunks, 256)
    assert header.text("general.base_model.0.name") == A.name.removesuffix(".gguf")
    names = [tensor.name for tensor in header.tensors]
    assert names[:2] == ["blk.0.attn_k.weight.in_sum2", "blk.0.attn_k.weight.counts"]
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    assert shapes["blk.0.attn_k.weight.counts"] == (1,)
    counts = next(tensor for tensor in header.tensors if tensor.name == "blk.0.attn_k.weight.counts")
    start = header.data_offset + counts.offset
    assert np.frombuffer(data[start : start + 4], "<f4") == result.chunks * 256


def test_each_expert_has_the_sums_of_the_tokens_that_use_it(tmp_path: Path) -> None:
    mixture = with_experts(A_F16, tmp_path / "mixture.gguf", experts=4, used=2)
    result, matrix = collected(mixture, tmp_path / "i.gguf")
    tokens = result.chunks * result.chunk_tokens
    for block in range(4):
        router = matrix.by_tensor[f"blk.{block}.ffn_gate_inp.weight"] * tokens
        for slot in ("ffn_up", "ffn_gate"):
            name = f"blk.{block}.{slot}_exps.weight"
            used = matrix.tokens[name]
            assert (len(used), used.sum()) == (4, 2 * tokens)
            means = matrix.by_tensor[name].reshape(4, -1)
            np.testing.assert_allclose((means * used[:, np.newaxis]).sum(axis=0), 2 * router, rtol=1e-3)
            assert not np.allclose(means[0], means[1], rtol=0.01)
        np.testing.assert_array_equal(matrix.tokens[f"blk.{block}.ffn_down_exps.weight"], used)


def test_no_chunk_is_begun_after_the_time_is_over_and_any_number_is_spread_over_the_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imatrix, "SECONDS_MIN", 0.0)
    plans: list[CollectionPlan] = []
    texts = built_in_texts(("python", "documentation"))
    result, _ = collected(A, tmp_path / "i.gguf", texts, seconds=1e-9, planned=plans.append)
    assert (result.chunks, result.all_chunks) == (1, plans[0].chunks)
    assert plans[0].seconds > 0
    with opened(str(A)) as model:
        few = text_chunks(model, order_of(A, [text.text for text in texts]))[:4]
        tokens = model.first_tokens() + [token for text in texts for token in model.tokens(text.text)]
    places = [at for at in range(0, len(tokens), 256) if any(part[1:] == tokens[at + 1 : at + 256] for part in few)]
    assert len(places) == 4
    assert max(np.diff([*places, len(tokens)])) <= 0.5 * len(tokens)


def test_chunks_begin_with_the_first_token_of_the_vocabulary_in_the_place_of_one_of_the_text(tmp_path: Path) -> None:
    with opened(str(with_first_token(A, tmp_path / "model.gguf", adds=True))) as model:
        (first,) = model.first_tokens()
        chunks = text_chunks(model, order_of(A, [TEXT.text]))
        tokens = [first, *model.tokens(TEXT.text)]
    assert len(chunks) == len(tokens) // 256 > 1
    assert all(len(chunk) == 256 and chunk[0] == first for chunk in chunks)
    assert {tuple(chunk[1:]) for chunk in chunks} == {
        tuple(tokens[start + 1 : start + 256]) for start in range(0, len(tokens) - 255, 256)
    }


def test_a_short_text_is_one_chunk_and_one_of_a_few_words_is_refused(tmp_path: Path) -> None:
    short = replace(TEXT, text=TEXT.text[:400])
    result, _ = collected(A, tmp_path / "i.gguf", [short])
    assert result.chunks == result.all_chunks == 1
    assert 32 <= result.chunk_tokens < 256
    with pytest.raises(RuntimeFailed, match="tokens: at least 32 are needed"):
        collected(A, tmp_path / "i.gguf", [replace(TEXT, text="Eight words are not enough for a sum.")])


def test_a_model_that_cannot_be_run_and_a_wish_that_cannot_be_met_are_refused(tmp_path: Path) -> None:
    broken, target = tmp_path / "broken.gguf", tmp_path / "i.gguf"
    broken.write_bytes(small_model())
    with pytest.raises(RuntimeFailed, match=r"broken\.gguf: the model was refused: .*key not found"):
        collected(broken, target)
    with pytest.raises(BadInput, match="give a second to a week"):
        collected(A, target, seconds=0.0)
    with pytest.raises(BadInput, match="it has no chat template"):
        collected(A, target, built_in_texts((CHAT,)))
    assert not target.exists()


@pytest.mark.parametrize(
    ("counts", "sums", "reason"),
    [
        ([1, 1], [1] * 8, None),
        ([5, -1], [1] * 8, None),
        ([1, -2], [1] * 8, "negative or too large"),
        ([1, 1], [1] * 7 + [-1], "negative or too large"),
        ([1, 1], [np.nan] * 8, "negative or too large"),
        ([1, 1], [1e30] * 8, "negative or too large"),
        ([0, 0], [0] * 8, "no sums"),
        ([1, 1], [1] * 7, "did not write the sums of up"),
        ([1, 1], [1] * 9, "or more than"),
    ],
)
def test_what_the_child_wrote_is_checked(counts: list[float], sums: list[float], reason: str | None) -> None:
    file = io.BytesIO(np.array([*counts, *sums], "<f4").tobytes())
    if reason is None:
        (part,) = read_sums(file, [MatrixPlace("up", 4, 2)], "m").values()
        assert part.counts.tolist() == [value for value in counts if value > 0]
        return
    with pytest.raises(RuntimeFailed, match=reason):
        read_sums(file, [MatrixPlace("up", 4, 2)], "m")


def test_another_layout_of_tensors_is_an_unknown_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(str(A)) as model, Weights(A) as weights:
        assert tensor_members(model.library).kind == 0
        with pytest.raises(UnknownInterface, match="does not call back"):
            ProductObserver(model.library, weights).check(256)
        with pytest.raises(UnknownInterface, match=r"interface is missing: .*ggml_nothing"):
            declare(model.library, {"ggml_nothing": (None, ())})
        monkeypatch.setattr(collector, "_F16", 0)  # tensors with other strides than those that are searched
        with pytest.raises(UnknownInterface, match="does not let its operations be read: it has other tensors"):
            tensor_members(model.library)


def test_values_that_do_not_give_the_products_of_llama_cpp_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(str(A)) as model, Weights(A) as weights:
        observer = ProductObserver(model.library, weights)
        place = next(place for place in matrix_places(weights) if place.name == "blk.0.attn_q.weight")
        values = np.random.default_rng(0).standard_normal((1, 1, 9, place.row)).astype(np.float32)
        weight = values_of(weights, place.name)
        observer._check_product(place, values, values @ weight.T)
        with pytest.raises(UnknownInterface, match="are not those of the values that are read"):
            ProductObserver(model.library, weights)._check_product(place, values, values @ weight.T[:, ::-1])


def naive_sums(values: NDArray[np.float32], chosen: NDArray[np.int32], experts: int) -> NDArray[np.float64]:
    sums = np.zeros((experts, values.shape[-1]))
    for token, row in enumerate(chosen):
        for place, expert in enumerate(row):
            sums[expert] += np.square(values[token, place % values.shape[1]], dtype=np.float64)
    return sums


@pytest.mark.parametrize("inputs", [1, 3])
def test_sums_by_expert_are_those_of_a_loop(inputs: int) -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal((20, inputs, 6)).astype(np.float32)
    chosen = np.array([random.permutation(7)[:3] for _ in range(20)], np.int32) % 6  # expert 6 is never used
    sums, counts = sums_by_expert(values, chosen, 7)
    np.testing.assert_allclose(sums, naive_sums(values, chosen, 7), rtol=1e-5)
    np.testing.assert_array_equal(counts, np.bincount(chosen.reshape(-1), minlength=7))
    with pytest.raises(UnknownInterface, match="choice of experts"):
        sums_by_expert(values, chosen, 5)


def test_matrices_that_every_token_uses_have_one_count() -> None:
    values = np.random.default_rng(0).standard_normal((1, 6, 5, 4)).astype(np.float32)
    sums, counts = sums_of_all(values, 3)
    squares = np.square(values[0], dtype=np.float64)
    np.testing.assert_allclose(sums, (squares[:3] + squares[3:]).sum(axis=1), rtol=1e-5)
    assert counts.tolist() == [10]
    twice, place = [InputSums(sums, counts), None, InputSums(sums, counts)], MatrixPlace("up", 4, 3)
    total, together = total_of(twice, place)
    assert total.tolist() == [20, -1, -1]
    np.testing.assert_allclose(together, 2 * sums)
    assert [part.sum() for part in total_of([None], place)] == [0, 0]
