"""A chimera beside its base, its donors and its control, each read by one runtime, and the verdict. Files only."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from registry.digest import Digest, digest_of
from registry.errors import BadInput, OrganError
from registry.validation.cache import MemoryCache, ScoreCache, ScoreKey
from registry.validation.control import write_control
from registry.validation.reading import (
    TEXTS_MAX,
    TOKENS_DEFAULT,
    TOKENS_MAX,
    TOKENS_MIN,
    Failure,
    FailureKind,
    NoRuntime,
    Reading,
    Request,
    Runtime,
    Score,
)
from registry.validation.texts import Text
from registry.validation.verdict import TextScores, Verdict, judge
from registry.validation.weights import files_digest, grafted_organs, has_chat_template, is_feed_forward

DONORS_MAX = 16
CONTROL_FILE = "control.gguf"
UNKNOWN = "whether the graft carries anything is not known"


@dataclass(frozen=True, slots=True)
class Event:
    """What is being done: to whom ("base", "chimera", "control", "donor 1"), and what, in a few words."""

    role: str
    doing: str


Progress = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model to be read, which need not lie in a file before it is."""

    digest: Digest
    """Of its content, by which its scores are kept."""
    placed: Callable[[], AbstractContextManager[Path]]
    """Its file (of a split set the first), for as long as it is read."""


def file_candidate(path: Path) -> Candidate:
    """The model in the file `path`; reads it, for its digest. Raises BadSource, BadSplit."""
    return Candidate(files_digest(path), lambda: nullcontext(path))


@dataclass(frozen=True, slots=True)
class Validation:
    """What was found. `readings` of the control is None where there is none; `control_remark` says why."""

    verdict: Verdict
    base: Reading
    chimera: Reading
    control: Reading | None
    donors: tuple[Reading, ...]
    grafted: tuple[str, ...]
    """The feed-forward organs that were zeroed in the control."""
    control_remark: str | None
    texts: tuple[Text, ...]
    tokens: int
    runtime: str


def validate_files(
    chimera: Path,
    base: Path,
    donors: Sequence[Path],
    grafted: Iterable[str] | None,
    texts: Sequence[Text],
    runtime: Runtime,
    tokens: int = TOKENS_DEFAULT,
    progress: Progress = lambda _: None,
    cache: ScoreCache | None = None,
    folder: Path | None = None,
) -> Validation:
    """`validate` for models in files. With `grafted` None, grafts are found by comparing the chimera with its base."""
    progress(Event("chimera", "comparing with the base"))
    names = grafted_organs(chimera, base) if grafted is None else grafted
    others = [file_candidate(donor) for donor in donors]
    return validate(
        file_candidate(chimera),
        file_candidate(base),
        others,
        names,
        texts,
        runtime,
        tokens,
        progress,
        cache,
        folder,
    )


def validate(
    chimera: Candidate,
    base: Candidate,
    donors: Sequence[Candidate],
    grafted: Iterable[str],
    texts: Sequence[Text],
    runtime: Runtime,
    tokens: int = TOKENS_DEFAULT,
    progress: Progress = lambda _: None,
    cache: ScoreCache | None = None,
    folder: Path | None = None,
) -> Validation:
    """Read base, chimera, control and donors with `runtime`, one after another, and judge the chimera.

    `grafted` names the grafted tensors; those that are feed-forward organs are zeroed in the control. Base, donors and
    control may come out of `cache`, and need no file then; the chimera is always run. The control is written below
    `folder` (the system's temporary folder otherwise), which needs room for one more copy of the chimera, and removed.

    Whatever a model does to the runtime is part of the result. Raises NoRuntime, and BadInput for files that are no
    GGUF and numbers out of range; an exception out of `progress` stops everything and goes on.
    """
    _check(texts, tokens, donors)
    trial = _Trial(tuple(texts), runtime, tokens, progress, cache if cache is not None else MemoryCache())
    names = tuple(filter(is_feed_forward, grafted))
    base_reading = trial.read("base", base)
    control, remark = None, None
    with chimera.placed() as path:
        chimera_reading = trial.run("chimera", path, chimera.digest)
        if chimera_reading.loads:
            control, remark = _control(trial, path, chimera.digest, names, folder)
    donor_readings = tuple(trial.read(f"donor {number}", donor) for number, donor in enumerate(donors, start=1))
    verdict = _verdict(trial.texts, base_reading, chimera_reading, control, donor_readings, remark)
    return Validation(
        verdict,
        base_reading,
        chimera_reading,
        control,
        donor_readings,
        names,
        remark,
        trial.texts,
        tokens,
        runtime.identity,
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """What is the same for every file."""

    texts: tuple[Text, ...]
    runtime: Runtime
    tokens: int
    progress: Progress
    cache: ScoreCache

    def read(self, role: str, model: Candidate) -> Reading:
        """The reading of `model`, out of the cache where it is there."""
        known = self.known(model.digest)
        if known is not None:
            return known
        with model.placed() as path:
            return self.run(role, path, model.digest)

    def run(self, role: str, path: Path, digest: Digest) -> Reading:
        """The reading of the file `path`, taken now; `digest` is that of its content."""
        request = Request(path, self.texts, self.tokens, chat=has_chat_template(path))
        reading = self.runtime.read(request, lambda doing: self.progress(Event(role, doing)))
        if reading.loads:
            for text, score in zip(self.texts, reading.scores, strict=True):
                self.cache.put(self._key(digest, text), score)
        return reading

    def known(self, model: Digest) -> Reading | None:
        """The reading of a model if every text's score is in the cache."""
        scores: list[Score] = []
        for text in self.texts:
            score = self.cache.get(self._key(model, text))
            if score is None:
                return None
            scores.append(replace(score, text=text.name))
        return Reading(None, tuple(scores), cached=True)

    def _key(self, model: Digest, text: Text) -> ScoreKey:
        return ScoreKey(model, text.digest, self.tokens, self.runtime.identity)


def _check(texts: Sequence[Text], tokens: int, donors: Sequence[Candidate]) -> None:
    if not 1 <= len(texts) <= TEXTS_MAX:
        raise BadInput(f"{len(texts)} texts: 1 to {TEXTS_MAX} can be scored")
    if not TOKENS_MIN <= tokens <= TOKENS_MAX:
        raise BadInput(f"{tokens} tokens a text: {TOKENS_MIN} to {TOKENS_MAX} can be scored")
    if len(donors) > DONORS_MAX:
        raise BadInput(f"{len(donors)} donors: at most {DONORS_MAX} can stand beside")


def _control(
    trial: _Trial, chimera: Path, chimera_digest: Digest, names: tuple[str, ...], folder: Path | None
) -> tuple[Reading | None, str | None]:
    """The control's reading, or why there is none, as a sentence."""
    if not names:
        return None, f"No feed-forward organ was grafted, so there is no control: {UNKNOWN}."
    # Named after what it is made from, so that it need not be written to be known.
    digest = digest_of("\n".join([chimera_digest, "zeroed", *sorted(names)]).encode())
    known = trial.known(digest)
    if known is not None:
        return known, None
    try:
        with tempfile.TemporaryDirectory(prefix="organ-validation-", dir=folder) as place:
            trial.progress(Event("control", "writing"))
            path = Path(place, CONTROL_FILE)
            write_control(chimera, names, path)
            reading = trial.run("control", path, digest)
    except NoRuntime:
        raise
    except OrganError as error:
        return None, f"There is no control, so {UNKNOWN}: {error}."
    if reading.failure is not None:
        return reading, f"The control did not run, so {UNKNOWN}: {reading.failure.reason}."
    return reading, None


def _verdict(
    texts: tuple[Text, ...],
    base: Reading,
    chimera: Reading,
    control: Reading | None,
    donors: tuple[Reading, ...],
    remark: str | None,
) -> Verdict:
    scores = [
        TextScores(
            text.name,
            _perplexity(base, place),
            _perplexity(chimera, place),
            _perplexity(control, place),
            tuple(_perplexity(donor, place) for donor in donors),
        )
        for place, text in enumerate(texts)
    ]
    if _both_stopped(base.failure, chimera.failure):
        assert chimera.failure is not None
        return judge(scores, remark=f"Neither base nor chimera could be run to the end: {chimera.failure.reason}.")
    if base.failure is not None:
        remark = f"The base does not run: {base.failure.reason}."
    return judge(scores, chimera.failure.reason if chimera.failure is not None else None, remark)


def _both_stopped(base: Failure | None, chimera: Failure | None) -> bool:
    """Whether it is our limits, not the chimera, that are to blame."""
    return base is not None and chimera is not None and base.kind is chimera.kind is FailureKind.STOPPED


def _perplexity(reading: Reading | None, place: int) -> float | None:
    """The perplexity of the text at `place`; None where a failure came before."""
    if reading is None or place >= len(reading.scores):
        return None
    return reading.scores[place].perplexity
