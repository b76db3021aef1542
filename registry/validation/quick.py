"""A quick look at a chimera: some seconds of measurement in a runtime, beside its base.

Base and chimera score the same windows in one process, in turns, so the time limit leaves both with the same windows.
The base's scores are stored, and read again at the next look. On the first windows both models run, also if the base's
scores are stored: only there, the distributions of the next token are compared. Of a quantisation, both run on all
windows: how far its distributions are from those of its source is its result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from organs.registry.amounts import duration_text, names_text
from organs.registry.entities.validation import QuickLook, RunFailure, TextLook
from organs.registry.errors import BadInput
from organs.registry.progress import StepProgress
from organs.registry.validation.comparison import (
    RunnableModel,
    ScoreCache,
    ScoreKey,
    check_same_tokens,
    evaluation_rate,
    source_divergence,
    texts_for,
    window_that_fits,
)
from organs.registry.validation.divergence import divergence_of
from organs.registry.validation.intervals import MeanInterval, interval_of
from organs.registry.validation.runtime import (
    Failure,
    FailureKind,
    NoVerdict,
    Runtime,
    Score,
    ScoringRequest,
    finite,
    perplexity_of,
)
from organs.registry.validation.texts import CHAT, ScoredText
from organs.registry.validation.verdict import DEGRADED_FROM

KINDS = (CHAT, "python", "documentation", "encyclopedic")
"""The built-in texts of a quick look."""
SECONDS = 30.0
SECONDS_MIN, SECONDS_MAX = 1.0, 3600.0
WINDOWS = 8
"""The most windows of each text."""
COMPARED_WINDOWS = 1
"""The windows of each text on which both models run, also if the scores of the base are stored."""
WINDOWS_LEAST = 3
"""With fewer windows of a text, its change is not said: two windows that happen to agree would pass for certain."""
TOO_LARGE_FROM = 4.0
"""How wrong the estimate of the time that they need may be."""
ALPHA = 0.1
"""The intervals of a quick look have the level 90%."""
EFFICIENCY = 0.4
"""llama.cpp's floating-point operations in a second, over those of a matrix product of NumPy: 0.39 for SmolLM2-135M in
Q4_1 on two processors."""
PROBE_SIZE = 1024
"""The size of the square matrices of that product."""


@dataclass(frozen=True, slots=True)
class LookBudget:
    """The limits of a quick look."""

    seconds: float = SECONDS
    """For the windows of both models. Loading, and the first windows, are not limited by it."""
    windows: int = WINDOWS
    """The most windows of each text."""

    def __post_init__(self) -> None:
        if not SECONDS_MIN <= self.seconds <= SECONDS_MAX:
            raise BadInput(f"{self.seconds:g} seconds: a quick look takes {SECONDS_MIN:g} to {SECONDS_MAX:,g} seconds")


def quick_look(
    chimera: RunnableModel,
    base: RunnableModel,
    texts: Sequence[ScoredText],
    runtime: Runtime,
    cache: ScoreCache,
    budget: LookBudget | None = None,
    progress: StepProgress = lambda _share, _step: None,
    *,
    is_quantised: bool = False,
) -> QuickLook:
    """Score windows of `texts` with base and chimera in `runtime` until the budget is spent.

    `is_quantised` says whether the chimera is a quantisation of the base, so that its divergence leads.
    The runtime must compare with a reference, as llama.cpp does. Fewer texts are scored, the first ones, if there is
    no time for WINDOWS_LEAST windows of each. If the models are too large for the time, nothing is started, and the
    result says what it would take. Raises NoRuntime, NoVerdict if the two tokenize differently, and
    BadInput if no text can be scored; an exception of `progress` stops the look.
    """
    begun, limits = monotonic(), budget or LookBudget()
    wanted, tokens = texts_for(base, texts), window_that_fits(chimera, base)
    keys = [ScoreKey(base.digest, text.digest, tokens, runtime.identity) for text in wanted]
    stored = [cache.get(key) for key in keys]
    known = [0 if score is None else len(score.windows) for score in stored]
    models = (chimera,) if min(known) >= limits.windows and not is_quantised else (chimera, base)
    # A weight costs a multiplication and an addition for each token; a model of unknown size counts as 0.
    speed = operations_per_second()
    needed = WINDOWS_LEAST * sum(2.0 * model.facts.active_parameters * tokens / speed for model in models)
    if needed > TOO_LARGE_FROM * limits.seconds:
        allowed = duration_text(limits.seconds)
        return QuickLook(
            sentence=f"Not started: these models need about {_about(needed)} for a first look on this machine, and "
            f"{allowed} are allowed.{_all_texts(len(wanted), needed * len(wanted))}",
            seconds_needed=needed * len(wanted),
            usable=None,
            runtime=runtime.identity,
            window_tokens=tokens,
            seconds=0.0,
            tokens_per_second=None,
        )
    scored = wanted[: max(1, round(limits.seconds / needed))] if needed else wanted  # each gets enough windows
    # The base scores the windows without a stored score, and those that are compared.
    references = tuple(
        [rank for rank in range(limits.windows) if is_quantised or rank < COMPARED_WINDOWS or rank >= count]
        for count in known[: len(scored)]
    )
    with ExitStack() as files:
        progress(0.0, "writing the models")
        request = ScoringRequest(
            files.enter_context(chimera.placed()),
            scored,
            (range(limits.windows),) * len(scored),
            tokens,
            limits.seconds,
            reference=files.enter_context(base.placed()),
            reference_ranks=references,
        )

        def say(step: str, windows: int = 0) -> None:
            share = windows / (limits.windows * len(scored))
            progress(min(1.0, max(share, (monotonic() - begun) / limits.seconds)), step)

        reading = runtime.read(request, say)
        failure = reading.failure
        if failure is not None and failure.kind is not FailureKind.STOPPED:
            alone = replace(request, texts=scored[:1], ranks=(range(1),), reference=None, reference_ranks=())
            if runtime.read(alone, lambda *_: None).failure is None:  # there is not enough memory for both
                raise NoVerdict(f"the chimera runs, but not beside its base: {failure.reason}")
    theirs = []
    for key, old, found, ranks in zip(keys, stored, reading.reference, references, strict=False):
        windows = [] if old is None else list(old.windows)
        now = dict(zip(ranks, found.windows, strict=False))
        while len(windows) in now:
            windows.append(now[len(windows)])
        theirs.append(replace(found, windows=tuple(windows)))
        if len(windows) > (0 if old is None else len(old.windows)):
            cache[key] = theirs[-1]
    pairs = [
        _compared(*scores) for scores in zip(scored, theirs, reading.scores, strict=False) if scores[2].token_count
    ]
    unknown = {text.name for text, ours in zip(scored, reading.scores, strict=False) if not ours.token_count}
    usable, sentence = _judged(pairs, [text.name for text in wanted if text.name not in unknown], failure)
    rate = finite(evaluation_rate([reading]))
    seconds_needed = None
    if usable is None and failure is None and sum(look.ratio_margin is not None for look, _ in pairs) < len(wanted):
        measured = WINDOWS_LEAST * tokens * len(models) / rate if rate else 0.0  # on a busy machine, it takes longer
        seconds_needed = len(wanted) * max(needed, measured)
        sentence += _all_texts(len(wanted), seconds_needed) if seconds_needed > limits.seconds else ""
        seconds_needed = max(seconds_needed, 2.0 * limits.seconds)
    if failure is None and not pairs:  # llama.cpp does not know the chat template
        rest = [text for text in texts if text.name not in unknown]
        if rest:
            return quick_look(chimera, base, rest, runtime, cache, limits, progress, is_quantised=is_quantised)
        sentence = "Not measured: llama.cpp does not know the chat template of the base."
        seconds_needed = None
    from_source = None
    if is_quantised:
        pairs_of_scores = zip(reading.scores, theirs, strict=False)
        from_source = source_divergence(base.name, [(ours.windows, own.windows) for ours, own in pairs_of_scores])
    if from_source is not None:
        sentence = from_source.sentence if usable else f"{from_source.sentence} {sentence}"
    return QuickLook(
        sentence=sentence,
        usable=usable,
        runtime=runtime.identity,
        window_tokens=tokens,
        seconds=round(monotonic() - begun, 1),
        seconds_allowed=limits.seconds,
        seconds_needed=seconds_needed,
        tokens_per_second=rate,
        texts=tuple(look for look, _ in pairs),
        failure=None if failure is None else RunFailure(kind=failure.kind.value, reason=failure.reason),
        from_source=from_source,
    )


def operations_per_second() -> float:
    """Return the floating-point operations that llama.cpp does in a second here, from a measurement of 0.1 seconds."""
    matrix = np.ones((PROBE_SIZE, PROBE_SIZE), np.float32)
    times = []
    for _ in range(4):
        begun = monotonic()
        matrix @ matrix
        times.append(monotonic() - begun)
    return EFFICIENCY * 2.0 * PROBE_SIZE**3 / max(min(times), 1e-6)


def _about(seconds: float) -> str:
    """Return a time in full minutes, rounded up."""
    return duration_text(60.0 * math.ceil(seconds / 60.0))


def _all_texts(count: int, seconds: float) -> str:
    return f" All {count} texts need about {_about(seconds)}." if count > 1 else ""


def _compared(text: ScoredText, base: Score, chimera: Score) -> tuple[TextLook, MeanInterval | None]:
    """Return the comparison on one text, by the windows that both have, and the interval of ln p - ln p0."""
    check_same_tokens(chimera, base)
    pairs = list(zip(chimera.windows, base.windows, strict=False))
    differences = [ours.nats / ours.tokens - theirs.nats / theirs.tokens for ours, theirs in pairs]
    change = interval_of(differences, 1, ALPHA, WINDOWS_LEAST)
    ratio = None if change is None else finite(_exp(change.mean))
    divergence = divergence_of([[ours for ours, _ in pairs]])
    look = TextLook(
        name=text.name,
        digest=text.digest,
        base_perplexity=finite(perplexity_of([theirs for _, theirs in pairs])),
        perplexity=finite(perplexity_of([ours for ours, _ in pairs])),
        ratio=ratio,
        ratio_margin=None if change is None or ratio is None else finite(ratio * (_exp(change.margin) - 1.0)),
        windows=len(pairs),
        window_count=chimera.window_count,
        tokens=sum(ours.tokens for ours, _ in pairs),
        divergence=None if divergence is None else divergence.mean,
        divergence_margin=None if divergence is None else divergence.margin,
        divergence_99=None if divergence is None else divergence.high,
        divergence_tokens=0 if divergence is None else divergence.tokens,
        same_top=None if divergence is None else divergence.same_top,
    )
    return look, change


def _judged(
    texts: Sequence[tuple[TextLook, MeanInterval | None]], wanted: Sequence[str], failure: Failure | None
) -> tuple[bool | None, str]:
    """Return whether a chimera is usable, if that is certain, and the result as a sentence.

    It is usable only if it is on each of the `wanted` texts.
    """
    if failure is not None and failure.kind is FailureKind.STOPPED:
        return None, f"Not finished: {failure.reason.rstrip('.')}."
    if failure is not None:
        return False, f"It did not run: {failure.reason.rstrip('.')}."
    for text, change in texts:
        if text.windows and text.base_perplexity is None:
            return None, f"Not clear: the base has no finite perplexity on {text.name}."
        if text.windows and (text.perplexity is None or (change is not None and text.ratio_margin is None)):
            return False, f"Not usable: it has no finite perplexity on {text.name}."
    known = {text.name: text for text, _ in texts if text.ratio_margin is not None}
    if not known:
        return None, f"Not clear: the time was too short for {WINDOWS_LEAST} windows of a text."
    worst, best = (extreme(known.values(), key=lambda text: text.ratio or 0.0) for extreme in (max, min))
    amount = f"{worst.amount} perplexity on {worst.name}"
    if any(text.low is not None and text.low > DEGRADED_FROM for text in known.values()):
        return False, f"Not usable: {amount}."
    if any(text.high is None or text.high >= DEGRADED_FROM for text in known.values()):
        return None, f"Not clear: {amount}. A validation scores more."
    missing = [name for name in wanted if name not in known]
    if missing:
        return None, f"Not clear: at worst {amount}, but the time was too short for {names_text(missing)}."
    return True, f"Usable: at worst {amount}{'' if best is worst else f'; {best.amount} on {best.name}'}."


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700.0 else math.inf
