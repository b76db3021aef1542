"""A chimera beside its base, its donors and its control, each read by one runtime, and the verdict."""

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
    """A model to be read, which need not lie in a file before it is."""

    digest: Digest
    """Of its content, by which its scores are kept."""
    placed: Callable[[], AbstractContextManager[Path]]
    """Its file (of a split set the first), for as long as it is read."""
    context_tokens: int | None = None
    """How long a text its header says that it can be given; None where it does not say."""


@dataclass(frozen=True, slots=True)
class Length:
    """How many tokens of each text are scored; `remark` says why, in a sentence, where fewer than were asked for."""

    tokens: int
    remark: str | None = None


def file_candidate(path: Path) -> Candidate:
    """The model in the file `path`; reads it, for its digest. Raises BadSource, BadGguf, BadSplit."""
    return Candidate(files_digest(path), lambda: nullcontext(path), context_tokens(path))


def context_tokens(path: Path) -> int | None:
    """What the header of the model in `path` says of its context. Raises BadSource, BadGguf, BadSplit."""
    with Weights(path) as weights:
        header = weights.headers[0]
        return header.integer(f"{header.architecture}.context_length")


def length_that_fits(requested: int, chimera: Candidate, base: Candidate, donors: Sequence[Candidate]) -> Length:
    """As many of the `asked` tokens as all of them can be given: one less than the smallest context has.

    The first token of a text is given and not scored. A donor that cannot take enough to be scored at all is not asked:
    it is only shown. Raises BadInput where that is the case of the chimera or its base.
    """
    named = (("the chimera", chimera), ("its base", base))
    known = [(whose, item.context_tokens) for whose, item in named if item.context_tokens is not None]
    for whose, context in known:
        if context <= TOKENS_MIN:
            raise BadInput(f"{whose} has a context of {context} tokens, in which no {TOKENS_MIN} tokens can be scored")
    contexts = [context for _, context in known]
    contexts += [donor.context_tokens for donor in donors if donor.context_tokens and donor.context_tokens > TOKENS_MIN]
    smallest = min(contexts, default=None)
    if smallest is None or requested < smallest:
        return Length(requested)
    reason = f"{requested} tokens a text were asked for; the smallest context among these models has {smallest}"
    return Length(smallest - 1, f"{reason}, so {smallest - 1} were scored at most.")


_NO_RANGE_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_control(model: Path, names: Iterable[str], target: Path) -> None:
    """Write to `target`, which must not exist, a copy of the file `model` in which the tensors `names` are zero bytes.

    Zeroed ranges are holes where the file system has them; what is kept is shared with `model` where it can, copied
    otherwise. Nothing is left behind by a failure. Raises BadInput for a name that is not in the file and for a split
    set, UnsupportedDType where zero bytes are not known to mean zeros, DiskFull, StoreUnwritable, BadSource, BadGguf.
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
    """Whether a tensor of zero bytes is a tensor of zeros: asked of the kernel that reads it; no kernel, no.

    Quantised blocks are a scale times whole numbers, and the scale of zero bytes is 0; every dtype that can be read
    here is like that, and a test asks each.
    """
    if not quants.can_dequantize(dtype):
        return False
    return not np.any(quants.decode(bytes(dtype.block_bytes), dtype))


def _zeroed(weights: Weights, names: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Where the tensors `names` begin and end."""
    for name in dict.fromkeys(names):
        spot = weights.spots.get(name)
        if spot is None:
            raise BadInput(f"{weights.files[0].name}: there is no tensor {name[:80]!r} to zero")
        if not zero_bytes_mean_zero(spot.info.dtype):
            raise UnsupportedDType(f"{name}: it is not known here what zero bytes mean in {spot.info.dtype.name}")
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
    """Copy the bytes from `begin` to `end` to the same place, inside the kernel where it can."""
    while begin < end:
        copied = _copy_range(source.descriptor, descriptor, begin, end - begin)
        if not copied:
            data = source.read_at(begin, min(CHUNK_BYTES, end - begin))
            copied = os.pwrite(descriptor, data, begin)
        begin += copied


def _copy_range(source: int, target: int, offset: int, size: int) -> int:
    """How many bytes the kernel copied; 0 where it cannot."""
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
    """What a score depends on."""

    model: Digest
    """Of the model's files, or of what a control is made from."""
    text: Digest
    tokens: int
    runtime: str
    """`Runtime.identity`."""


class ScoreCache(Protocol):
    """Keeps scores. A score that was put may be forgotten; one that is given back is the one that was put."""

    def get(self, key: ScoreKey) -> Score | None:
        """The score under `key`; its `text` is the name that the text had when it was put."""
        ...

    def put(self, key: ScoreKey, score: Score) -> None:
        """Keep `score` under `key`."""
        ...


@dataclass(slots=True)
class MemoryCache:
    """Keeps scores as long as it lives."""

    scores: dict[ScoreKey, Score] = field(default_factory=dict)

    def get(self, key: ScoreKey) -> Score | None:
        return self.scores.get(key)

    def put(self, key: ScoreKey, score: Score) -> None:
        self.scores[key] = score


DONORS_MAX = 16
CONTROL_FILE = "control.gguf"
GRAFTED, CHANGED = "grafted", "changed"
"""What was done to the organs that the control has zeroed: of files alone only the second can be known."""


@dataclass(frozen=True, slots=True)
class Event:
    """What is being done: to whom ("base", "chimera", "control", "donor 1"), and what, in a few words."""

    role: str
    doing: str


Progress = Callable[[Event], None]


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
    """Of each text at most."""
    runtime: str
    act: str = GRAFTED
    tokens_remark: str | None = None
    """Why fewer were scored than were asked for."""


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
    """`validate` for models in files. With `grafted` None, what changed is found by comparing with the base."""
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
    """Read base, chimera, control and donors with `runtime`, one after another, and judge the chimera.

    `grafted` names the grafted tensors; those that are feed-forward organs are zeroed in the control. Base, donors and
    control may come out of `cache`, and need no file then; the chimera is always run. The control is written below
    `folder` (the system's temporary folder otherwise), which needs room for one more copy of the chimera, and removed.
    `act` is `CHANGED` where nobody knows that what is in `grafted` was grafted.

    Whatever a chimera does to the runtime is part of the result. Raises NoRuntime, NoVerdict where the runtime refuses
    the base or crashes on it, and BadInput for files that are no GGUF, numbers out of range and texts of too few
    tokens; an exception out of `progress` stops everything and goes on.
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


def _sound(base: Reading) -> Reading:
    """`base`, if a chimera can be held against it."""
    if base.failure is not None and base.failure.kind is not FailureKind.STOPPED:
        raise NoVerdict(f"the base does not run, so there is no verdict: {base.failure.reason}")
    for score in base.scores:
        if score.tokens is not None and score.tokens < TOKENS_MIN:
            raise BadInput(
                f"the text {score.text!r} has {score.tokens} tokens to score: fewer than {TOKENS_MIN} tell nothing"
            )
    return base


def _no_control(act: str, touched: Sequence[str]) -> str:
    """Why there is no control, where no feed-forward organ is to be zeroed."""
    if act == GRAFTED and not touched:
        return "Nothing was grafted, so there is no control: the rules on weak and inert grafts do not apply."
    return f"No feed-forward organ was {act}, so there is no control: {_unknown(act)}."


def _unknown(act: str) -> str:
    return f"whether what was {act} carries anything is not known"


def _control(
    trial: _Trial, chimera: Path, chimera_digest: Digest, names: tuple[str, ...], folder: Path | None, act: str
) -> tuple[Reading | None, str | None]:
    """The control's reading, or why there is none, as a sentence."""
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
    """Whether it is our limits, not the chimera, that are to blame."""
    return base is not None and chimera is not None and base.kind is chimera.kind is FailureKind.STOPPED


def _perplexity(reading: Reading | None, place: int) -> float | None:
    """The perplexity of the text at `place`; None where a failure came before."""
    if reading is None or place >= len(reading.scores):
        return None
    return reading.scores[place].perplexity


def _surprises(reading: Reading, place: int) -> tuple[float, ...] | None:
    return reading.scores[place].surprises if place < len(reading.scores) else None
