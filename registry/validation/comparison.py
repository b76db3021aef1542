"""Compare a chimera with its base, its donors and its control in one runtime, and give the verdict.

All models score the same windows. Windows are added until every question is settled or the budget is spent: first a few
of each text, then twice as many of those texts that are still open (`looks`).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from pathlib import Path
from time import monotonic
from typing import Protocol

from organs.registry.anatomy import is_expert_stack, place_of
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.plan import QUANTISED
from organs.registry.entities.validation import (
    RunFailure,
    RunReport,
    SourceDivergence,
    TextScore,
    TextVerdict,
    VerdictReport,
)
from organs.registry.errors import BadInput, OrganError
from organs.registry.gguf.header import Header
from organs.registry.kinds import FileKind
from organs.registry.progress import StepProgress
from organs.registry.validation.divergence import ALPHA as DIVERGENCE_ALPHA
from organs.registry.validation.divergence import divergence_of
from organs.registry.validation.intervals import LOOK_MIN, interval_around, interval_of, looks
from organs.registry.validation.runtime import (
    TEXTS_MAX,
    WINDOW_TOKENS,
    WINDOW_TOKENS_MIN,
    Failure,
    FailureKind,
    NoVerdict,
    Runtime,
    RuntimeReading,
    Score,
    ScoringRequest,
    Window,
    finite,
    perplexity_of,
)
from organs.registry.validation.texts import ScoredText, fitted_texts
from organs.registry.validation.verdict import TextScores, judge, judge_writing
from organs.registry.validation.weights import (
    CHAT_TEMPLATE_KEY,
    Weights,
    files_digest,
    is_feed_forward,
    is_quantisation,
    write_control,
)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts of a model's header that its evaluation depends on."""

    context_tokens: int | None = None
    """The context length in tokens; None if not stated."""
    chat_template: str | None = None
    active_parameters: int = 0
    """The number of weights that a token uses: of a stack of experts, its share of the experts. 0 if unknown."""
    kind: str = FileKind.MODEL.value

    @classmethod
    def of(cls, headers: Sequence[Header]) -> ModelFacts:
        """Return the facts in the headers of a model's files."""
        first = headers[0]
        architecture = first.architecture
        used, count = (first.integer(f"{architecture}.expert_{name}") for name in ("used_count", "count"))
        share = used / count if used and count and used < count else 1.0
        tensors = [info for header in headers for info in header.tensors]
        return cls(
            first.integer(f"{architecture}.context_length"),
            next((text for header in headers if (text := header.text(CHAT_TEMPLATE_KEY))), None),
            int(sum(info.elements * (share if is_expert_stack(place_of(info.name)) else 1.0) for info in tensors)),
            first.kind(),
        )


@dataclass(frozen=True, slots=True)
class RunnableModel:
    """A model to run; its file is written only when it is needed."""

    name: str
    digest: Digest
    """SHA-256 of its content, the key of its scores."""
    placed: Callable[[], AbstractContextManager[Path]]
    """Return a context manager with its file (the first of a split set)."""
    facts: ModelFacts = ModelFacts()
    """What its header says."""
    is_mixed: bool = False
    """Whether it was composed by more than quantising its base, so that it is no quantisation of any model."""


BUDGET_SECONDS = 600.0
TOKENS_ENOUGH = 4096
CHEAP_SHARE = 0.25
TOKENS_MIN, TOKENS_MAX = 1024, 1 << 20
"""The limits of the number of tokens of each text. Fewer than 1,024 are fewer than LOOK_MIN windows."""
SECONDS_MIN, SECONDS_MAX = 1.0, 7 * 86400.0


@dataclass(frozen=True, slots=True)
class ValidationBudget:
    """The limits of a validation."""

    seconds: float = BUDGET_SECONDS
    """For all models together. Loading, and the first window of each model, are not limited by it."""
    tokens: int = TOKENS_MAX
    """The most tokens of each text that a model scores."""
    enough_tokens: int = TOKENS_ENOUGH
    """A text that is settled gets more windows up to so many tokens, while at most CHEAP_SHARE of the time is used."""

    def __post_init__(self) -> None:
        if not TOKENS_MIN <= self.tokens <= TOKENS_MAX:
            raise BadInput(f"{self.tokens} tokens of each text: {TOKENS_MIN:,} to {TOKENS_MAX:,} can be scored")
        if not SECONDS_MIN <= self.seconds <= SECONDS_MAX:
            raise BadInput(f"{self.seconds:g} seconds: a validation takes {SECONDS_MIN:g} seconds to a week")


def file_candidate(path: Path) -> RunnableModel:
    """Return the model in the file `path`, which is read for its digest. Raises BadSource, BadGguf, BadSplit."""
    with Weights(path) as weights:
        facts = ModelFacts.of(weights.headers)
    return RunnableModel(path.name, files_digest(path), lambda: nullcontext(path), facts)


def act_between(model: RunnableModel, base: RunnableModel) -> str:
    """Return `QUANTISED` if a model looks like a quantisation of `base`, else `CHANGED`. Raises the errors of files."""
    if model.is_mixed:
        return CHANGED
    with model.placed() as path, base.placed() as base_path:
        return QUANTISED if is_quantisation(path, base_path) else CHANGED


def window_that_fits(chimera: RunnableModel, base: RunnableModel) -> int:
    """Return the size of a window in tokens: WINDOW_TOKENS, or the smaller context of the two models.

    Raises BadInput if a context is too small.
    """
    window_tokens = WINDOW_TOKENS
    for role, model in (("the chimera", chimera), ("its base", base)):
        context = model.facts.context_tokens
        if context is not None and context < WINDOW_TOKENS_MIN:
            raise BadInput(f"{role} has a context of {context} tokens; at least {WINDOW_TOKENS_MIN} are needed")
        window_tokens = min(window_tokens, context or window_tokens)
    return window_tokens


def texts_for(base: RunnableModel, texts: Sequence[ScoredText]) -> tuple[ScoredText, ...]:
    """Return the texts that a base is scored on: chat texts in its chat template.

    Raises BadInput if none remains, NoVerdict for a base that writes no text.
    """
    if base.facts.kind != FileKind.MODEL:
        raise NoVerdict(f"the base is of the kind {base.facts.kind}: it writes no text, so nothing can be measured")
    fitted = fitted_texts(texts, base.facts.chat_template)
    if texts and not fitted:
        raise BadInput("the base has no chat template, so it cannot be scored on a chat; name another text")
    return fitted


@dataclass(frozen=True, slots=True)
class ScoreKey:
    """Everything that the scores of windows depend on."""

    model: Digest
    """Digest of the model's files, or of the definition of a control."""
    text: Digest
    window_tokens: int
    runtime: str
    """`Runtime.identity`."""


class ScoreCache(Protocol):
    """A cache of the scores of windows, such as a dict. It can lose scores, but never returns a wrong one."""

    def get(self, key: ScoreKey, /) -> Score | None:
        """Return the score under `key`, or None; its `text` is the name at the time when it was stored."""
        ...

    def __setitem__(self, key: ScoreKey, score: Score, /) -> None: ...


DONORS_MAX = 16
NATS_MAX = 700.0
"""Changes of more nats have no finite ratio."""
CONTROL_FILE = "control.gguf"
GRAFTED, CHANGED = "grafted", "changed"
"""What was done to the organs that are zeroed in the control; for files, only `changed` is known. Of a model that is
QUANTISED from its base there is no control."""


def validate(
    chimera: RunnableModel,
    base: RunnableModel,
    donors: Sequence[RunnableModel],
    grafted: Iterable[str],
    texts: Sequence[ScoredText],
    runtime: Runtime,
    budget: ValidationBudget | None = None,
    progress: StepProgress = lambda _share, _step: None,
    cache: ScoreCache | None = None,
    act: str = GRAFTED,
) -> VerdictReport:
    """Score base, chimera, control and donors on the same windows in `runtime`, and return the verdict.

    `grafted` names the grafted tensors and experts; the feed-forward among them is zeroed in the control. Scores of
    base, donors and control can come from `cache`, without a file; the chimera is always run. The files of base,
    chimera and control exist at the same time; the control is written into the system's temporary folder, which needs
    space for a copy of the chimera, and then removed. `act` is `CHANGED` if the tensors in
    `grafted` are only known to differ from the base's. With `QUANTISED`, nothing is grafted: the chimera is a
    quantisation of the base, and both run on the same windows in one process where the runtime can, so that their
    distributions of the next token are compared.

    A crash of the runtime on the chimera is part of the result. Raises NoRuntime, NoVerdict if the runtime refuses the
    base or crashes on it, or if the two tokenize differently, and BadInput for files that are not GGUF, numbers out of
    range and too short texts; an exception of `progress` stops the validation.
    """
    limits = budget or ValidationBudget()
    texts = texts_for(base, texts)
    if not 1 <= len(texts) <= TEXTS_MAX:
        raise BadInput(f"{len(texts)} texts: 1 to {TEXTS_MAX} can be scored")
    if len(donors) > DONORS_MAX:
        raise BadInput(f"{len(donors)} donors: at most {DONORS_MAX} can be compared")
    window_tokens = window_that_fits(chimera, base)
    touched = () if act == QUANTISED else tuple(grafted)
    names = tuple(filter(is_feed_forward, touched))
    with ExitStack() as files:
        is_paired = act == QUANTISED and runtime.has_references
        scores = {} if cache is None else cache
        trial = _Trial(texts, runtime, limits, window_tokens, progress, scores, files, is_paired)
        origin = trial.base = trial.subject("base", base)
        own = trial.chimera = trial.subject("chimera", chimera)
        others = [trial.subject(f"donor {number}", donor) for number, donor in enumerate(donors, start=1)]
        control = trial.control = trial.subject("control", trial.zeroed(names)) if names else None
        trial.measure()
        trial.measure_donors(others)
    remark, results, written = _remark(control, own, act, touched), trial.text_scores(), own.written
    after = remark if origin.failure is None else f"The base does not run: {origin.failure.reason}."
    if origin.failure or own.failure or written is None or any(score.window_count for score in own.scores):
        verdict = judge(results, None if own.failure is None else own.failure.reason, after, act)
    else:
        verdict = judge_writing(written, origin.written)
    rate = evaluation_rate(run for subject in trial.subjects for run in subject.runs)
    compared = [len(text.chimera) for text in results]
    from_source = None
    if act == QUANTISED:
        from_source = source_divergence(base.name, [(score.chimera, score.base) for score in results])
    return VerdictReport(
        model=chimera.name,
        verdict=verdict.kind.value,
        reason=verdict.reason if from_source is None else f"{from_source.sentence} {verdict.reason}",
        runtime=runtime.identity,
        tokens=max((text.tokens for text in results), default=0),
        window_tokens=window_tokens,
        seconds=round(trial.seconds, 1),
        tokens_per_second=None if rate is None else round(rate, 1),
        base=origin.report(compared),
        chimera=own.report(compared),
        control=control.report(compared) if control is not None and (control.runs or control.is_compared) else None,
        control_remark=remark,
        donors=tuple(donor.report(compared) for donor in others),
        zeroed=names,
        zeroed_because=act,
        from_source=from_source,
        texts=tuple(_text_verdict(text, score) for text, score in zip(trial.texts, results, strict=True)),
    )


def _text_verdict(text: ScoredText, score: TextScores) -> TextVerdict:
    divergence, early = divergence_of([score.chimera]), score.early_change
    ratio = None if early is None or early.high > NATS_MAX else math.exp(early.mean)
    return TextVerdict(
        name=text.name,
        digest=text.digest,
        verdict=score.kind.value,
        settled=score.is_settled,
        counts=score.is_known,
        ratio=finite(score.ratio),
        ratio_error=score.ratio_error,
        ratio_margin=finite(score.ratio_margin),
        recovered=finite(score.recovered),
        early_ratio=ratio,
        early_margin=None if early is None or ratio is None else finite(ratio * early.margin),
        windows=len(score.chimera),
        window_count=score.window_limit,
        tokens=score.tokens,
        tokens_needed=score.tokens_needed,
        bits=finite(score.bits),
        divergence=None if divergence is None else divergence.mean,
        divergence_margin=None if divergence is None else divergence.margin,
        divergence_99=None if divergence is None else divergence.high,
        same_top=None if divergence is None else divergence.same_top,
        divergence_tokens=0 if divergence is None else divergence.tokens,
    )


def source_divergence(
    source: str, texts: Sequence[tuple[Sequence[Window], Sequence[Window]]]
) -> SourceDivergence | None:
    """Return how far a quantisation is from its source; `texts` has the windows of both, in the same order.

    None if no window was scored by both in one process.
    """
    divergence = divergence_of([own for own, _ in texts])
    if divergence is None:
        return None
    change = interval_around(
        [
            [ours.nats / ours.tokens - theirs.nats / theirs.tokens for ours, theirs in zip(*windows, strict=False)]
            for windows in texts
        ],
        DIVERGENCE_ALPHA,
    )
    ratio = None if change is None or change.high > NATS_MAX else math.exp(change.mean)
    return SourceDivergence(
        source=source,
        divergence=divergence.mean,
        divergence_margin=divergence.margin,
        divergence_99=divergence.high,
        same_top=divergence.same_top,
        divergence_tokens=divergence.tokens,
        ratio=ratio,
        ratio_margin=None if change is None or ratio is None else ratio * math.expm1(change.margin),
    )


def evaluation_rate(readings: Iterable[RuntimeReading]) -> float | None:
    """Return the tokens that were evaluated in a second of evaluation, without loading; None if none was."""
    runs = list(readings)
    seconds = sum(run.evaluation_seconds for run in runs)
    return sum(run.evaluated_tokens for run in runs) / seconds if seconds else None


class _Subject:
    """A model of a comparison: where its file is, and its scores so far."""

    def __init__(self, role: str, candidate: RunnableModel, texts: Sequence[ScoredText]) -> None:
        self.role = role
        self.candidate = candidate
        self.path: Path | None = None
        self.failure: Failure | None = None
        self.missing: str | None = None
        """Why its file cannot be written, as the end of a sentence."""
        self.scores = [Score(text.name, (), 0, 0) for text in texts]
        self.runs: list[RuntimeReading] = []

    @property
    def is_compared(self) -> bool:
        """Whether it runs and has the score of any window."""
        return self.failure is None and any(score.windows for score in self.scores)

    @property
    def written(self) -> str | None:
        """A prompt and its continuation; None if it wrote nothing."""
        return next((run.written for run in self.runs if run.written is not None), None)

    def report(self, compared: Sequence[int]) -> RunReport:
        """Return the scores over the windows of each text that were compared; stored scores may have more."""
        scores = []
        for score, count in zip(self.scores, compared, strict=True):
            windows = score.windows[: count or None]
            perplexity, error = finite(perplexity_of(windows)), None
            if perplexity is not None and len(windows) >= LOOK_MIN:
                interval = interval_of([window.nats / window.tokens for window in windows], 1)
                error = None if interval is None else finite(perplexity * interval.error)  # by the delta method
            tokens = sum(window.tokens for window in windows)
            scores.append(TextScore(text=score.text, perplexity=perplexity, standard_error=error, tokens=tokens))
        failure = self.failure
        return RunReport(
            name=self.candidate.name,
            failure=None if failure is None else RunFailure(kind=failure.kind.value, reason=failure.reason),
            scores=tuple(scores),
            written=self.written,
            log=self.runs[-1].log if self.runs else "",
        )

    def add(self, reading: RuntimeReading) -> None:
        """Add the windows of a run."""
        self.runs.append(reading)
        self.failure = reading.failure
        for place, score in enumerate(reading.scores):
            self.scores[place] = replace(score, windows=(*self.scores[place].windows, *score.windows))

    def add_beside(self, starts: Sequence[int], scores: Sequence[Score]) -> None:
        """Add windows that were scored beside those of another model, in each text from a place on."""
        for place, (start, score) in enumerate(zip(starts, scores, strict=False)):
            known = self.scores[place].windows
            self.scores[place] = replace(score, windows=(*known, *score.windows[max(0, len(known) - start) :]))


@dataclass(slots=True)
class _Share:
    """The part of the work that is done. It grows with each window, also if more or fewer windows become necessary.

    Whenever the expected work changes, the share that was reached stays, and the rest is divided anew.
    """

    reached: float = 0.0
    """At the last change."""
    scored: int = 0
    """The number of scored windows at that time."""
    left: int | None = None
    """The number of windows that were expected then; None if it is unknown."""
    begun: float = 0.0
    """The time of the change, in seconds since the beginning."""

    def at(self, scored: int, seconds: float, limit_seconds: float) -> float:
        """Return the share after `scored` windows and `seconds` of at most `limit_seconds`."""
        work = (scored - self.scored) / self.left if self.left else 0.0
        time = (seconds - self.begun) / max(limit_seconds - self.begun, 1e-9)
        return self.reached + (1.0 - self.reached) * min(1.0, max(0.0, work, time))


@dataclass(slots=True)
class _Trial:
    """A running validation."""

    texts: tuple[ScoredText, ...]
    runtime: Runtime
    budget: ValidationBudget
    window_tokens: int
    progress: StepProgress
    cache: ScoreCache
    files: ExitStack
    """The files of the models, until the end."""
    is_paired: bool = False
    """Whether the base is run beside the chimera on all windows, so that their distributions are compared."""
    base: _Subject = field(init=False)
    chimera: _Subject = field(init=False)
    control: _Subject | None = None
    subjects: list[_Subject] = field(default_factory=list)
    """These, and the donors."""
    open_texts: tuple[str, ...] = ()
    share: _Share = field(default_factory=_Share)
    begun: float = field(default_factory=lambda: monotonic())

    @property
    def seconds(self) -> float:
        """The time since it began."""
        return monotonic() - self.begun

    def subject(self, role: str, candidate: RunnableModel) -> _Subject:
        """Return a model of this validation, with the scores that the cache has. The chimera is always run."""
        subject = _Subject(role, candidate, self.texts)
        if role != "chimera":
            cached = [self.cache.get(self._key(candidate, text)) for text in self.texts]
            for place, (text, score) in enumerate(zip(self.texts, cached, strict=True)):
                if score is not None:
                    subject.scores[place] = replace(score, text=text.name)
        self.subjects.append(subject)
        return subject

    def zeroed(self, names: tuple[str, ...]) -> RunnableModel:
        """Return the control, which is written when it is needed; its digest is that of its definition."""

        @contextmanager
        def placed() -> Iterator[Path]:
            assert self.chimera.path is not None, "the chimera has run"
            with tempfile.TemporaryDirectory(prefix="organ-validation-") as place:
                self.say("control", "writing")
                path = Path(place, CONTROL_FILE)
                write_control(self.chimera.path, names, path)
                yield path

        definition = "\n".join([self.chimera.candidate.digest, "zeroed", *sorted(names)])
        return RunnableModel("control", digest_of(definition.encode()), placed)

    def measure(self) -> None:
        """Add windows until every text is settled or the budget is spent."""
        base, chimera = self.base, self.chimera
        counts = [1] * len(self.texts)
        if self.is_paired:  # alone, the base must only show that it runs, and how many tokens the texts have
            unknown = next((place for place, score in enumerate(base.scores) if not score.token_count), None)
            counts = [int(place == unknown) for place in range(len(self.texts))]
        self._extend(base, counts, 3)
        self._leave_out_unknown_chats()
        if base.failure is not None and base.failure.kind is not FailureKind.STOPPED:
            raise NoVerdict(f"the base does not run, so there is no verdict: {base.failure.reason}")
        for score in base.scores:
            if base.failure is None and score.token_count < WINDOW_TOKENS_MIN:
                count = f"{score.token_count} tokens; at least {WINDOW_TOKENS_MIN} are needed"
                raise BadInput(f"the text {score.text!r} has {count}")
        plans = [looks(self.window_limit(score)) for score in base.scores]
        places = [0] * len(plans)
        while True:
            counts = [plan[place] for plan, place in zip(plans, places, strict=True)]
            self._expect(counts)
            for left, subject in zip((3, 2, 1), (base, chimera, self.control), strict=True):
                if subject is None or base.failure or chimera.failure:
                    break
                if subject is base and self.is_paired:
                    continue  # its windows are scored beside those of the chimera
                self._extend(subject, counts, 1 if self.is_paired else left)
                counts = [min(count, len(score.windows)) for count, score in zip(counts, subject.scores, strict=True)]
            for ours, theirs in zip(chimera.scores, base.scores, strict=True):
                check_same_tokens(ours, theirs)
            if base.failure or chimera.failure or self.seconds > self.budget.seconds:
                return
            if not any(score.windows for score in base.scores):
                return  # the runtime measures no perplexity
            scores = self.text_scores()
            wanted = [
                number
                for number, score in enumerate(scores)
                if places[number] + 1 < len(plans[number]) and self._wants_more(score)
            ]
            self.open_texts = tuple(scores[number].text for number in wanted if scores[number].windows_needed != 0)
            if not wanted:
                return
            for number in wanted:
                places[number] += 1

    def _leave_out_unknown_chats(self) -> None:
        """Leave out chat texts without tokens: llama.cpp does not know the chat template, or a command ran instead."""
        is_kept = [
            self.base.failure is not None or not text.is_chat or bool(score.token_count)
            for text, score in zip(self.texts, self.base.scores, strict=True)
        ]
        if all(is_kept):
            return
        self.texts = tuple(compress(self.texts, is_kept))
        for subject in self.subjects:
            subject.scores = list(compress(subject.scores, is_kept))
        if not self.texts:
            raise BadInput("the runtime does not know the base's chat template; name another text")

    def measure_donors(self, donors: Sequence[_Subject]) -> None:
        """Score the windows of the chimera with its donors, while there is time."""
        counts = [len(score.windows) for score in self.chimera.scores]
        self._divide(donors, counts)
        for place, donor in enumerate(donors):
            if self.chimera.failure is None and self.seconds < self.budget.seconds:
                self._extend(donor, counts, len(donors) - place)

    def window_limit(self, score: Score) -> int:
        """Return the most windows of a text that are scored."""
        by_tokens = -(-self.budget.tokens // (self.window_tokens - 1))
        return max(1, min(score.window_count, by_tokens))

    def text_scores(self) -> list[TextScores]:
        """Return the scores of each text by the windows that base, chimera and control have."""
        compared = self.control if self.control is not None and self.control.is_compared else None
        subjects = [self.base, self.chimera, *([compared] if compared is not None else [])]
        results = []
        for place, text in enumerate(self.texts):
            of_base, count = self.base.scores[place], min(len(subject.scores[place].windows) for subject in subjects)
            limit, bits = self.window_limit(of_base), None
            if of_base.perplexity is not None and 0.0 < of_base.perplexity < math.inf and of_base.token_count:
                bits = math.log2(of_base.perplexity) * of_base.token_count / len(text.text.encode())
            results.append(
                TextScores(
                    text.name,
                    of_base.windows[:count],
                    self.chimera.scores[place].windows[:count],
                    None if compared is None else compared.scores[place].windows[:count],
                    look_count=len(looks(limit)),
                    window_limit=limit,
                    bits=bits,
                )
            )
        return results

    def _wants_more(self, score: TextScores) -> bool:
        """Return whether a text needs more windows; or gets some because there is time."""
        has_time = self.seconds < CHEAP_SHARE * self.budget.seconds
        return score.windows_needed != 0 or (has_time and score.tokens < self.budget.enough_tokens)

    def _extend(self, subject: _Subject, counts: Sequence[int], models_left: int) -> None:
        """Score windows until there are `counts`, in its part of the time that is left."""
        ranks = tuple(
            range(len(score.windows), max(count, len(score.windows)))
            for score, count in zip(subject.scores, counts, strict=True)
        )
        if subject.role == "chimera" and not subject.runs and not any(ranks):
            ranks = (range(1), *ranks[1:])  # it is always run, also if the runtime scores no windows
        if subject.failure or subject.missing or not any(ranks):
            return
        try:
            path = self._placed(subject)
        except OrganError as error:
            if subject.role != "control":
                raise
            subject.missing = str(error)
            return
        seconds = max(0.0, self.budget.seconds - self.seconds) / models_left
        writes = subject.role in ("base", "chimera") and not subject.runs
        request = ScoringRequest(
            path,
            self.texts,
            ranks,
            self.window_tokens,
            seconds,
            writes,
            writes and subject.candidate.facts.chat_template is not None,
        )
        is_beside = self.is_paired and subject is self.chimera
        if is_beside:
            request = replace(request, reference=self._placed(self.base), reference_ranks=ranks)
        reading = self.runtime.read(request, partial(self.say, subject.role))
        if is_beside and reading.failure is not None and reading.failure.kind is not FailureKind.STOPPED:
            self.is_paired = False  # there may not be enough memory for both
            self._extend(subject, counts, models_left)
            return
        subject.add(reading)
        if is_beside:
            self.base.add_beside([own.start for own in ranks], reading.reference)
        if subject.failure is None:
            for scored in (subject, self.base) if is_beside else (subject,):
                self._store(scored)

    def _placed(self, subject: _Subject) -> Path:
        """Return the file of a model, which is written when it is first needed."""
        if subject.path is None:
            subject.path = self.files.enter_context(subject.candidate.placed())
        return subject.path

    def _store(self, subject: _Subject) -> None:
        """Store the scores of a model where the cache has fewer windows."""
        for text, score in zip(self.texts, subject.scores, strict=True):
            key = self._key(subject.candidate, text)
            known = self.cache.get(key)
            if known is None or len(known.windows) < len(score.windows):
                self.cache[key] = score

    def say(self, role: str, action: str, windows: int = 0) -> None:
        """Report a step; `windows` are scored, but not in a reading yet."""
        share = self.share.at(self._scored + windows, self.seconds, self.budget.seconds)
        still_open = f"; open: {', '.join(self.open_texts)}" if self.open_texts else ""
        self.progress(share, f"{role}, {action}{still_open}")

    @property
    def _scored(self) -> int:
        return sum(len(score.windows) for subject in self.subjects for score in subject.scores)

    def _expect(self, counts: Sequence[int]) -> None:
        """Estimate the work that is left: `counts` now, and what would settle the texts if the deviations stay."""
        expected = list(counts)
        for place, score in enumerate(self.text_scores()):
            if score.chimera and not self._wants_more(score):
                continue
            limit = self.window_limit(self.base.scores[place])
            needed = score.windows_needed if score.chimera else 0
            enough = -(-self.budget.enough_tokens // (self.window_tokens - 1))
            wanted = max(counts[place], enough, limit if needed is None else needed)
            expected[place] = next((look for look in looks(limit) if look >= wanted), limit)
        self._divide(self.subjects, expected)

    def _divide(self, subjects: Sequence[_Subject], counts: Sequence[int]) -> None:
        """Divide the rest of the progress by the windows that `subjects` have less than `counts`."""
        left = sum(
            max(0, count - len(score.windows))
            for subject in subjects
            for count, score in zip(counts, subject.scores, strict=True)
        )
        scored, seconds = self._scored, self.seconds
        self.share = _Share(self.share.at(scored, seconds, self.budget.seconds), scored, left, seconds)

    def _key(self, model: RunnableModel, text: ScoredText) -> ScoreKey:
        return ScoreKey(model.digest, text.digest, self.window_tokens, self.runtime.identity)


def check_same_tokens(chimera: Score, base: Score) -> None:
    """Raise NoVerdict if the two models tokenize a text differently."""
    if any(ours.digest != theirs.digest for ours, theirs in zip(chimera.windows, base.windows, strict=False)):
        raise NoVerdict(f"the chimera and its base tokenize the text {chimera.text!r} differently: no comparison")


def _remark(control: _Subject | None, chimera: _Subject, act: str, touched: Sequence[str]) -> str | None:
    """Return why there is no control, as a sentence; None if there is one, or if nothing was grafted."""
    unknown = f"it is unknown whether the {act} tensors work"
    has_nothing_to_check = control is None and act == GRAFTED and not touched
    if chimera.failure is not None or act == QUANTISED or has_nothing_to_check:
        return None
    if control is None:
        return f"No feed-forward tensor was {act}, so there is no control, and {unknown}."
    if control.missing is not None:
        return f"There is no control, so {unknown}: {control.missing}."
    if control.failure is not None:
        return f"The control did not run, so {unknown}: {control.failure.reason}."
    if not control.is_compared:
        return f"The time was over before the control was scored, so {unknown}."
    return None
