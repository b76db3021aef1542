"""Compare a chimera with its base, its donors and its control in one runtime, and give the verdict."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from organs.registry.digest import Digest, digest_of
from organs.registry.errors import BadInput, DiskFull, OrganError, StoreUnwritable, UnsupportedDType
from organs.registry.gguf import quants
from organs.registry.gguf.types import DType
from organs.registry.validation.runtime import (
    TEXTS_MAX,
    TOKENS_DEFAULT,
    TOKENS_MAX,
    TOKENS_MIN,
    Failure,
    FailureKind,
    NoRuntime,
    NoVerdict,
    Reading,
    Request,
    Runtime,
    Score,
)
from organs.registry.validation.texts import Text
from organs.registry.validation.verdict import TextScores, Verdict, judge, paired_error
from organs.registry.validation.weights import (
    CHUNK_BYTES,
    OpenFile,
    Weights,
    files_digest,
    grafted_organs,
    has_chat_template,
    is_feed_forward,
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model to run; its file is written only when it is needed."""

    digest: Digest
    """SHA-256 of its content, the key of its scores."""
    placed: Callable[[], AbstractContextManager[Path]]
    """Return a context manager with its file (the first of a split set)."""
    context_tokens: int | None = None
    """The context length in its header, in tokens; None if not stated."""


@dataclass(frozen=True, slots=True)
class Length:
    """The number of scored tokens of each text; `remark` is a sentence if it is less than requested."""

    tokens: int
    remark: str | None = None


def file_candidate(path: Path) -> Candidate:
    """Return the model in the file `path`, which is read for its digest. Raises BadSource, BadGguf, BadSplit."""
    return Candidate(files_digest(path), lambda: nullcontext(path), context_tokens(path))


def context_tokens(path: Path) -> int | None:
    """Return the context length in the header of `path`, in tokens. Raises BadSource, BadGguf, BadSplit."""
    with Weights(path) as weights:
        header = weights.headers[0]
        return header.integer(f"{header.architecture}.context_length")


def length_that_fits(requested: int, chimera: Candidate, base: Candidate, donors: Sequence[Candidate]) -> Length:
    """Return the largest length, up to `requested`, that fits all models: one less than the smallest context.

    The first token of a text is not scored. Donors with too small contexts are ignored, because they do not affect the
    verdict. Raises BadInput if the chimera or its base has too small a context.
    """
    named = (("the chimera", chimera), ("its base", base))
    known = [(role, model.context_tokens) for role, model in named if model.context_tokens is not None]
    for role, context in known:
        if context <= TOKENS_MIN:
            raise BadInput(f"{role} has a context of {context} tokens; at least {TOKENS_MIN + 1} are needed")
    contexts = [context for _, context in known]
    contexts += [donor.context_tokens for donor in donors if donor.context_tokens and donor.context_tokens > TOKENS_MIN]
    smallest = min(contexts, default=None)
    if smallest is None or requested < smallest:
        return Length(requested)
    reason = f"{requested} tokens of each text were requested; the smallest context of these models has {smallest}"
    return Length(smallest - 1, f"{reason}, so at most {smallest - 1} were scored.")


_NO_RANGE_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_control(model: Path, names: Iterable[str], target: Path) -> None:
    """Write to `target`, which must not exist, a copy of the file `model` in which the tensors `names` are zero bytes.

    Zeroed ranges are holes if the file system supports them; other bytes are shared with `model` if possible, else
    copied. A failure leaves no file. Raises BadInput for an unknown name and for a split set, UnsupportedDType if zero
    bytes may not mean zeros, DiskFull, StoreUnwritable, BadSource, BadGguf.
    """
    with Weights(model) as weights:
        if len(weights.files) > 1:
            raise BadInput(f"{model.name}: a control is made from a single file, not from a split set")
        spans = sorted(_zeroed(weights, names))
        try:
            _write(weights.files[0], spans, target)
        except OSError as error:
            kind = DiskFull if error.errno in _FULL else StoreUnwritable
            raise kind(f"{target}: the control cannot be written: {error.strerror}") from error


def zero_bytes_mean_zero(dtype: DType) -> bool:
    """Return whether a tensor of zero bytes is a tensor of zeros, by its decoder; False without a decoder.

    Quantised blocks are a scale times integers, and the scale of zero bytes is 0. This holds for every dtype that can
    be decoded; a test checks each.
    """
    if not quants.can_dequantize(dtype):
        return False
    return not np.any(quants.decode(bytes(dtype.block_bytes), dtype))


def _zeroed(weights: Weights, names: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Return the byte ranges of the tensors `names`."""
    for name in dict.fromkeys(names):
        spot = weights.spots.get(name)
        if spot is None:
            raise BadInput(f"{weights.files[0].name}: there is no tensor {name[:80]!r} to zero")
        if not zero_bytes_mean_zero(spot.info.dtype):
            raise UnsupportedDType(f"{name}: zero bytes of {spot.info.dtype.name} may not mean zeros")
        yield spot.offset, spot.offset + spot.info.size_bytes


def _write(source: OpenFile, zeroed: list[tuple[int, int]], target: Path) -> None:
    descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.ftruncate(descriptor, source.size_bytes)
        position = 0
        for begin, end in zeroed:
            _copy(source, descriptor, position, begin)
            position = end
        _copy(source, descriptor, position, source.size_bytes)
    except BaseException:
        with suppress(OSError):
            os.unlink(target)
        raise
    finally:
        os.close(descriptor)


def _copy(source: OpenFile, descriptor: int, begin: int, end: int) -> None:
    """Copy the bytes from `begin` to `end` to the same place, inside the kernel if possible."""
    while begin < end:
        copied = _copy_range(source.descriptor, descriptor, begin, end - begin)
        if not copied:
            data = source.read_at(begin, min(CHUNK_BYTES, end - begin))
            copied = os.pwrite(descriptor, data, begin)
        begin += copied


def _copy_range(source: int, target: int, offset: int, size: int) -> int:
    """Return the number of bytes that the kernel copied; 0 if it cannot."""
    if not hasattr(os, "copy_file_range"):  # macOS
        return 0
    try:
        return os.copy_file_range(source, target, size, offset, offset)
    except OSError as error:
        if error.errno in _NO_RANGE_COPY:
            return 0
        raise


@dataclass(frozen=True, slots=True)
class ScoreKey:
    """Everything that a score depends on."""

    model: Digest
    """Digest of the model's files, or of the definition of a control."""
    text: Digest
    tokens: int
    runtime: str
    """`Runtime.identity`."""


class ScoreCache(Protocol):
    """A cache of scores. It can lose scores, but never returns a wrong one."""

    def get(self, key: ScoreKey) -> Score | None:
        """Return the score under `key`, or None; its `text` is the name at the time of `put`."""
        ...

    def put(self, key: ScoreKey, score: Score) -> None:
        """Store `score` under `key`."""
        ...


@dataclass(slots=True)
class MemoryCache:
    """A cache of scores in memory."""

    scores: dict[ScoreKey, Score] = field(default_factory=dict)

    def get(self, key: ScoreKey) -> Score | None:
        return self.scores.get(key)

    def put(self, key: ScoreKey, score: Score) -> None:
        self.scores[key] = score


DONORS_MAX = 16
CONTROL_FILE = "control.gguf"
GRAFTED, CHANGED = "grafted", "changed"
"""What was done to the organs that are zeroed in the control; for files, only `changed` is known."""


@dataclass(frozen=True, slots=True)
class Event:
    """The current step: the model ("base", "chimera", "control", "donor 1") and the action in a few words."""

    role: str
    action: str


Progress = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of a validation. `control` is None without a control; `control_remark` has the reason."""

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
    """Largest number of scored tokens of each text."""
    runtime: str
    act: str = GRAFTED
    tokens_remark: str | None = None
    """Why fewer tokens were scored than requested; None if not."""


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
    """Validate models in files. If `grafted` is None, the changed organs are found by comparison with the base."""
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
        CHANGED if grafted is None else GRAFTED,
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
    act: str = GRAFTED,
) -> Validation:
    """Run base, chimera, control and donors in `runtime`, one after another, and return the verdict.

    `grafted` names the grafted tensors; the feed-forward tensors among them are zeroed in the control. Scores of base,
    donors and control can come from `cache`, without a file; the chimera is always run. The control is written below
    `folder` (by default the system's temporary folder), which needs space for a copy of the chimera, and then removed.
    `act` is `CHANGED` if the tensors in `grafted` are only known to differ from the base's.

    A crash of the runtime on the chimera is part of the result. Raises NoRuntime, NoVerdict if the runtime refuses the
    base or crashes on it, and BadInput for files that are not GGUF, numbers out of range and too short texts; an
    exception of `progress` stops the validation.
    """
    _check(texts, tokens, donors)
    length = length_that_fits(tokens, chimera, base, donors)
    trial = _Trial(tuple(texts), runtime, length.tokens, progress, cache if cache is not None else MemoryCache())
    touched = tuple(grafted)
    names = tuple(filter(is_feed_forward, touched))
    base_reading = _sound(trial.read("base", base))
    control, remark = None, None
    with chimera.placed() as path:
        chimera_reading = trial.run("chimera", path, chimera.digest)
        if chimera_reading.loads and names:
            control, remark = _control(trial, path, chimera.digest, names, folder, act)
        elif chimera_reading.loads:
            remark = _no_control(act, touched)
    donor_readings = tuple(trial.read(f"donor {number}", donor) for number, donor in enumerate(donors, start=1))
    verdict = _verdict(trial.texts, base_reading, chimera_reading, control, donor_readings, remark, act)
    return Validation(
        verdict,
        base_reading,
        chimera_reading,
        control,
        donor_readings,
        names,
        remark,
        trial.texts,
        length.tokens,
        runtime.identity,
        act,
        length.remark,
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """The settings that are the same for all models."""

    texts: tuple[Text, ...]
    runtime: Runtime
    tokens: int
    progress: Progress
    cache: ScoreCache

    def read(self, role: str, model: Candidate) -> Reading:
        """Return the reading of `model`, from the cache if possible."""
        known = self.known(model.digest)
        if known is not None:
            return known
        with model.placed() as path:
            return self.run(role, path, model.digest)

    def run(self, role: str, path: Path, digest: Digest) -> Reading:
        """Run the file `path`, whose content has this digest, and return the reading."""
        request = Request(path, self.texts, self.tokens, chat=has_chat_template(path))
        reading = self.runtime.read(request, lambda action: self.progress(Event(role, action)))
        if reading.loads:
            for text, score in zip(self.texts, reading.scores, strict=True):
                self.cache.put(self._key(digest, text), score)
        return reading

    def known(self, model: Digest) -> Reading | None:
        """Return the reading of a model if the cache has the scores of all texts; else None."""
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
        raise BadInput(f"{len(donors)} donors: at most {DONORS_MAX} can be compared")


def _sound(base: Reading) -> Reading:
    """Return `base` if a chimera can be compared with it."""
    if base.failure is not None and base.failure.kind is not FailureKind.STOPPED:
        raise NoVerdict(f"the base does not run, so there is no verdict: {base.failure.reason}")
    for score in base.scores:
        if score.tokens is not None and score.tokens < TOKENS_MIN:
            raise BadInput(f"the text {score.text!r} has {score.tokens} tokens; at least {TOKENS_MIN} are needed")
    return base


def _no_control(act: str, touched: Sequence[str]) -> str:
    """Return why there is no control if no feed-forward organ can be zeroed."""
    if act == GRAFTED and not touched:
        return "Nothing was grafted, so there is no control: the rules on weak and inert grafts do not apply."
    return f"No feed-forward organ was {act}, so there is no control, and {_unknown(act)}."


def _unknown(act: str) -> str:
    return f"it is unknown whether the {act} organs work"


def _control(
    trial: _Trial, chimera: Path, chimera_digest: Digest, names: tuple[str, ...], folder: Path | None, act: str
) -> tuple[Reading | None, str | None]:
    """Return the control's reading, or a sentence on why there is none."""
    # The digest of the definition, so that scores are found without writing the file.
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
        return None, f"There is no control, so {_unknown(act)}: {error}."
    if reading.failure is not None:
        return reading, f"The control did not run, so {_unknown(act)}: {reading.failure.reason}."
    return reading, None


def _verdict(
    texts: tuple[Text, ...],
    base: Reading,
    chimera: Reading,
    control: Reading | None,
    donors: tuple[Reading, ...],
    remark: str | None,
    act: str,
) -> Verdict:
    scores = [
        TextScores(
            text.name,
            _perplexity(base, place),
            _perplexity(chimera, place),
            _perplexity(control, place),
            tuple(_perplexity(donor, place) for donor in donors),
            paired_error(_surprises(chimera, place), _surprises(base, place)),
        )
        for place, text in enumerate(texts)
    ]
    if _both_stopped(base.failure, chimera.failure):
        assert chimera.failure is not None
        return judge(scores, remark=f"Neither base nor chimera could be run to the end: {chimera.failure.reason}.")
    if base.failure is not None:
        remark = f"The base does not run: {base.failure.reason}."
    return judge(scores, chimera.failure.reason if chimera.failure is not None else None, remark, act)


def _both_stopped(base: Failure | None, chimera: Failure | None) -> bool:
    """Return whether both were stopped by limits, so that the chimera is not at fault."""
    return base is not None and chimera is not None and base.kind is chimera.kind is FailureKind.STOPPED


def _perplexity(reading: Reading | None, place: int) -> float | None:
    """Return the perplexity of the text at `place`; None if a failure came before."""
    if reading is None or place >= len(reading.scores):
        return None
    return reading.scores[place].perplexity


def _surprises(reading: Reading, place: int) -> tuple[float, ...] | None:
    return reading.scores[place].surprises if place < len(reading.scores) else None
