"""Tests of divergences over windows: means, quantiles and margins, beside a plain computation, and in llama.cpp."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from organs.registry.amounts import nats_text
from organs.registry.entities.base import encode, prepared
from organs.registry.entities.validation import QuickLook, VerdictReport
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.gguf.quants import decode
from organs.registry.gguf.quants import encode as encoded
from organs.registry.validation.comparison import (
    ValidationBudget,
    act_between,
    file_candidate,
    source_divergence,
    validate,
)
from organs.registry.validation.decoder import Decoder, opened
from organs.registry.validation.divergence import divergence_of, packed, unpacked
from organs.registry.validation.intervals import student_quantile
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.quick import LookBudget, quick_look
from organs.registry.validation.runtime import Failure, FailureKind, RuntimeReading, Say, ScoringRequest, Window
from organs.registry.validation.texts import built_in_texts, spread_order
from organs.registry.validation.weights import Weights, is_quantisation
from tests.gguf_files import file_bytes
from tests.validation.changed_models import A_F16, A_PROSE, LORA, A, feed_forward
from tests.validation.scores import FixedRuntime

TEXTS = built_in_texts(("python", "documentation"))
TOKENS = 255


def windows_of(divergences: NDArray[np.float64]) -> list[Window]:
    """Return a window for each row of the divergences at its tokens."""
    return [
        Window(100.0 + number, len(row), "a digest", float(row.sum()), int((row < 0.1).sum()), packed(row))
        for number, row in enumerate(divergences)
    ]


def drawn(seed: int, count: int, level: float = 0.05) -> NDArray[np.float64]:
    return np.random.default_rng(seed).lognormal(math.log(level), 1.5, (count, TOKENS))


def test_mean_and_quantile_are_those_of_all_tokens_together() -> None:
    first, second = drawn(1, 8), drawn(2, 5, level=0.2)
    found = divergence_of([windows_of(first), windows_of(second)])
    assert found is not None
    every = np.concatenate([first.ravel(), second.ravel()])
    assert found.tokens == every.size
    assert found.mean == pytest.approx(every.mean(), rel=1e-12)
    assert found.high == pytest.approx(np.quantile(every, 0.99), rel=1e-3)
    assert found.same_top == (every < 0.1).mean()


def test_the_margin_is_that_of_windows_around_the_mean_of_their_text() -> None:
    first, second = drawn(1, 8), drawn(2, 5, level=2.0)
    found = divergence_of([windows_of(first), windows_of(second)])
    assert found is not None
    means = [rows.mean(axis=1) for rows in (first, second)]
    squares = sum(((own - own.mean()) ** 2).sum() for own in means)
    assert found.margin == pytest.approx(student_quantile(0.95, 11) * math.sqrt(squares / 11 / 13), rel=1e-9)
    apart = np.concatenate(means)
    assert found.margin < student_quantile(0.95, 12) * apart.std(ddof=1) / math.sqrt(13), "texts may differ"


def test_windows_without_a_reference_and_unknown_tokens_are_left_out() -> None:
    known = windows_of(drawn(1, 4))
    alone = [Window(100.0, TOKENS, "another")]
    found = divergence_of([known])
    assert divergence_of([known + alone]) == found
    assert divergence_of([alone]) is None
    without = divergence_of([[*known[1:], replace(known[0], divergences=None)]])
    assert found is not None
    assert without is not None
    assert (without.mean, without.high) == (pytest.approx(found.mean), None)
    assert (divergence_of([known[:2]]) or found).margin is None, "two windows have no margin"


def test_packed_divergences_keep_three_digits_and_hostile_ones_are_the_largest() -> None:
    values = np.geomspace(6.2e-5, 60_000.0, 500)
    assert unpacked(packed(values)) == pytest.approx(values, rel=5e-4)
    assert unpacked(packed(np.array([0.0, 1e-6, 1e9]))) == pytest.approx([0.0, 1e-6, 65504.0], abs=3e-8)
    hostile = np.array([np.nan, -1.0, np.inf], "<f2").tobytes()
    assert unpacked(hostile).tolist() == [65504.0] * 3


def log_probabilities(path: Path, windows: list[list[int]]) -> NDArray[np.float64]:
    """Return the log-probabilities of all tokens at all places of the windows, in float64."""
    with opened(str(path)) as model, closing(Decoder(model, 256)) as decoder:
        rows = np.concatenate([part.copy() for window in windows for part in decoder.logits(window)]).astype(np.float64)
    highest = rows.max(axis=1, keepdims=True)
    return rows - highest - np.log(np.exp(rows - highest).sum(axis=1, keepdims=True))


@pytest.mark.parametrize(("model", "reference"), [(A, A_F16), (A_PROSE, A_F16)], ids=["Q8_0", "fine-tune"])
def test_the_numbers_of_llama_cpp_are_those_of_a_plain_computation(model: Path, reference: Path) -> None:
    count, text = 3, TEXTS[0]
    request = ScoringRequest(model, (text,), (range(count),), reference=reference, reference_ranks=(range(count),))
    (score,) = LlamaCpp().read(request, lambda *_: None).scores
    found = divergence_of([score.windows])
    assert found is not None
    with opened(str(model)) as loaded:
        tokens, first = loaded.tokens(text.text), loaded.first_tokens()
    size = 256 - len(first)
    cut = [[*first, *tokens[start : start + size]] for start in range(0, len(tokens), TOKENS)]
    whole = [window for window in cut if len(window) == 256]
    chosen = [whole[place] for place in list(spread_order(len(whole)))[:count]]
    p, q = log_probabilities(reference, chosen), log_probabilities(model, chosen)
    divergences = (np.exp(p) * (p - q)).sum(axis=1)
    assert found.tokens == divergences.size == count * TOKENS
    assert found.mean == pytest.approx(divergences.mean(), rel=0.01)
    assert found.high == pytest.approx(np.quantile(divergences, 0.99), rel=0.01)
    assert found.same_top == (p.argmax(axis=1) == q.argmax(axis=1)).mean()


def test_a_validation_of_a_quantisation_compares_all_its_windows_and_has_no_control(tmp_path: Path) -> None:
    report = validate(
        file_candidate(A), file_candidate(A_F16), [], feed_forward(A), TEXTS, LlamaCpp(),
        ValidationBudget(tokens=1024), act=act_between(file_candidate(A), file_candidate(A_F16)),
    )  # fmt: skip
    found = report.from_source
    assert found is not None
    assert (report.control, report.control_remark) == (None, None)
    assert found.divergence_tokens == sum(text.tokens or 0 for text in report.texts) >= 2 * 4 * TOKENS
    assert [text.divergence_tokens for text in report.texts] == [text.tokens for text in report.texts]
    assert 0.0 < found.divergence < 0.01
    assert found.divergence_99 is not None
    assert found.divergence < found.divergence_99 < 0.1
    assert found.same_top > 0.95
    assert found.divergence_margin is not None
    assert 0.0 < found.divergence_margin < found.divergence
    assert report.reason.startswith(f"Divergence from {A_F16.name}: 0.00")
    mean = sum((text.divergence or 0.0) * text.divergence_tokens for text in report.texts) / found.divergence_tokens
    assert found.divergence == pytest.approx(mean)


class WithDivergences(FixedRuntime):
    """Fixed numbers, with a divergence of 0.1 at each token where a reference scores the window."""

    def read(self, request: ScoringRequest, say: Say) -> RuntimeReading:
        reading = super().read(request, say)
        each = packed(np.full(TOKENS, 0.1))
        return replace(
            reading,
            scores=tuple(
                replace(
                    score,
                    windows=tuple(
                        window if window.divergence is None else replace(window, divergences=each)
                        for window in score.windows
                    ),
                )
                for score in reading.scores
            ),
        )


def validated(runtime: FixedRuntime) -> VerdictReport:
    models = file_candidate(A), file_candidate(A_F16)
    return validate(*models, [], (), TEXTS, runtime, act="quantised")


def test_the_source_runs_alone_only_once_and_then_beside_its_quantisation() -> None:
    runtime = WithDivergences({A.name: 10.2, A_F16.name: 10.0}, noise=0.01)
    found = validated(runtime).from_source
    alone, *beside = runtime.requests
    assert (alone.model.name, alone.reference, [len(ranks) for ranks in alone.ranks]) == (A_F16.name, None, [1, 0])
    assert all((one.model, one.reference) == (A, A_F16) and one.reference_ranks == one.ranks for one in beside)
    assert found is not None
    assert (found.divergence, found.divergence_99) == (pytest.approx(0.1), pytest.approx(0.1, rel=1e-3))
    assert found.ratio == pytest.approx(1.02, abs=0.02)
    assert found.sentence.startswith(f"Divergence from {A_F16.name}: 0.1 nats (99% of tokens below 0.1), the same top ")


def test_a_source_of_which_only_some_texts_are_stored_shows_the_tokens_of_the_others() -> None:
    runtime, cache = WithDivergences({A.name: 10.2, A_F16.name: 10.0}, noise=0.01), {}
    models = file_candidate(A), file_candidate(A_F16)
    for known, counts in ((TEXTS[:1], [0, 1]), (TEXTS, [])):
        quick_look(*models, known, runtime, cache, LookBudget(30.0, 4))
        runtime.requests.clear()
        assert validate(*models, [], (), TEXTS, runtime, cache=cache, act="quantised").from_source is not None
        alone = [request for request in runtime.requests if request.model == A_F16]
        assert [len(ranks) for request in alone for ranks in request.ranks] == counts


def test_without_memory_for_both_the_verdict_has_no_divergence() -> None:
    class SmallMemory(WithDivergences):
        def read(self, request: ScoringRequest, say: Say) -> RuntimeReading:
            if request.reference is not None:
                return RuntimeReading(Failure(FailureKind.CRASHED, "it was killed"), ())
            return super().read(request, say)

    report = validated(SmallMemory({A.name: 10.2, A_F16.name: 10.0}, noise=0.01))
    assert (report.from_source, report.verdict) == (None, "coherent")
    assert all(text.tokens for text in report.texts)


def test_a_runtime_that_compares_no_distributions_gives_the_verdict_alone() -> None:
    runtime = FixedRuntime({A.name: 10.2, A_F16.name: 10.0}, noise=0.01, has_references=False)
    report = validated(runtime)
    assert (report.from_source, report.verdict) == (None, "coherent")
    assert all(request.reference is None for request in runtime.requests)


def test_a_quick_look_at_a_quantisation_compares_all_windows_and_begins_with_the_divergence() -> None:
    runtime, cache = WithDivergences({A.name: 10.2, A_F16.name: 10.0}, noise=0.01), {}
    models = file_candidate(A), file_candidate(A_F16)
    for _ in range(2):  # also if the scores of the source are stored
        look = quick_look(*models, TEXTS, runtime, cache, LookBudget(30.0, 4), is_quantised=True)
    assert [request.reference_ranks for request in runtime.requests] == [([0, 1, 2, 3],) * 2] * 2
    assert look.from_source is not None
    assert look.from_source.divergence_tokens == 2 * 4 * TOKENS
    assert look.sentence == look.from_source.sentence
    assert list(look.rows[0])[:3] == ["text", "divergence", "99% of tokens below"]
    runtime.perplexities[A.name] = 20.0
    look = quick_look(*models, TEXTS, runtime, cache, LookBudget(30.0, 4), is_quantised=True)
    assert look.usable is False
    assert "Divergence from" in look.sentence.partition("Not usable: ")[0]


def test_a_change_without_a_finite_ratio_leaves_the_divergence() -> None:
    broken = [replace(window, nats=1e6) for window in windows_of(drawn(1, 4))]
    found = source_divergence("a/source@1", [(broken, windows_of(drawn(1, 4)))])
    assert found is not None
    assert (found.ratio, found.ratio_margin) == (None, None)
    assert found.sentence.endswith("%.")


def test_only_coarser_types_of_most_weights_make_a_file_a_quantisation(tmp_path: Path) -> None:
    assert is_quantisation(A, A_F16)
    assert not is_quantisation(A_F16, A), "it is finer"
    assert not is_quantisation(A, A), "nothing is coarser"
    assert not is_quantisation(A_PROSE, A), "its tensors have equal types and other bytes"
    assert not is_quantisation(LORA, A_F16), "it has other tensors"
    with Weights(A_F16) as weights:
        tensors = [
            (TensorSpec(name, spot.info.shape, spot.info.dtype), b"".join(map(bytes, spot.chunks())))
            for name, spot in weights.spots.items()
        ]
    few = {"blk.0.ffn_up.weight"}
    quantised = dtype_by_name("Q8_0")
    mixed = [
        (TensorSpec(spec.name, spec.shape, quantised), encoded(decode(data, spec.dtype).astype(np.float32), quantised))
        if spec.name in few
        else (spec, data)
        for spec, data in tensors
    ]
    path = tmp_path / "few.gguf"
    path.write_bytes(file_bytes(tensors=mixed))
    assert not is_quantisation(path, A_F16), "most weights are in the type of the base"


def test_documents_of_earlier_versions_are_still_read() -> None:
    look = QuickLook(sentence="s", usable=True, runtime="r", window_tokens=256, seconds=1.0, tokens_per_second=None)
    stored = msgspec.json.decode(encode(look))
    del stored["from_source"]
    assert msgspec.json.decode(msgspec.json.encode(stored), type=prepared(QuickLook)) == look


@pytest.mark.parametrize(
    ("nats", "margin", "text"),
    [
        (0.0123, 0.0011, "0.012 ± 0.001"),
        (0.000512, 0.00004, "0.00051 ± 0.00004"),
        (1.234, 0.3, "1.2 ± 0.3"),
        (0.0, 0.0, "0"),
        (0.11, None, "0.11"),
        (0.00005, None, "5e-5"),
    ],
)
def test_a_divergence_is_written_with_the_digits_of_its_margin(nats: float, margin: float | None, text: str) -> None:
    assert nats_text(nats, margin) == text
