"""The scores of a trial: its file is written, measured beside the base on the texts, and removed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import gettempdir

from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.compose.build import write_unregistered
from organs.registry.compose.ingredients import stored_plain
from organs.registry.compose.parents import Part
from organs.registry.compose.plan import Plan
from organs.registry.entities.base import Entity
from organs.registry.errors import BadInput, DiskFull
from organs.registry.evolving.objectives import NOT_FINITE, Differences
from organs.registry.progress import StepProgress
from organs.registry.store import BlobStore
from organs.registry.store.files import placing_error, temporary_folder, translating
from organs.registry.transform import Plain
from organs.registry.validation.comparison import RunnableModel, ScoreKey
from organs.registry.validation.llama import LlamaCpp, usable_cores
from organs.registry.validation.run import CatalogScores
from organs.registry.validation.runtime import (
    WINDOW_TOKENS_MIN,
    FailureKind,
    NoVerdict,
    Score,
    ScoringRequest,
)
from organs.registry.validation.texts import ENOUGH_BYTES, ScoredText, fitted_texts

WINDOW_TOKENS = 128
SEARCHED = range(6)
"""The windows of each text on which every trial is measured, by their ranks."""
CHECKED = range(6, 18)
"""Those on which the best trials are measured again."""
WINDOWS_LEAST = 4
"""A text with fewer windows is too short."""
PREFIX = "organ-trial-"
KEPT_MAX_BYTES = 8 * 1024**3
PIECE_BYTES = 4 * 1024 * 1024


class DividedText(Entity):
    """A text of an evolution, in a part for the trials and one for the result."""

    name: str
    searched: str
    proved: str
    is_chat: bool = False
    is_built_in: bool = False
    """Whether it is a text of this program, so that gains on it can be compared."""


@dataclass
class TrialFolder:
    """A folder for the file of a trial, with the plain bytes of tensors that many trials read: each is decoded once.

    It is a context manager, in the system's temporary folder.

    Tensors are kept while they take at most KEPT_MAX_BYTES, and half of the free space; others are read from the store.
    """

    catalog: Catalog
    store: BlobStore
    _kept_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _opened: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> TrialFolder:
        self.folder = self._opened.enter_context(temporary_folder(Path(gettempdir()), PREFIX))
        self._room_bytes = min(KEPT_MAX_BYTES, shutil.disk_usage(self.folder).free // 2)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def open_part(self, part: Part, opened: ExitStack) -> Plain:
        """Return the bytes of a tensor. Raises StoreError, DiskFull."""
        path = self.folder / part.digest
        with self._lock:
            is_kept = path.exists()
            has_room = is_kept or self._kept_bytes + part.size_bytes <= self._room_bytes
            self._kept_bytes += 0 if is_kept or not has_room else part.size_bytes
        if not has_room:
            return self._stored(part, opened)
        if not is_kept:
            try:
                self._keep(part, path)
            except DiskFull:  # others write there, too
                self._room_bytes = 0
                return self._stored(part, opened)
        if not part.size_bytes:
            return Plain(lambda _offset, _size: b"", part.dtype, part.shape)
        with path.open("rb") as file:
            content = opened.enter_context(mmap(file.fileno(), 0, access=ACCESS_READ))
        return Plain(lambda offset, size: content[offset : offset + size], part.dtype, part.shape)

    def _keep(self, part: Part, path: Path) -> None:
        unfinished = path.with_suffix(f".{threading.get_ident()}")
        try:
            with translating(path, placing_error), ExitStack() as own, unfinished.open("wb") as file:
                plain = self._stored(part, own)
                for start in range(0, part.size_bytes, PIECE_BYTES):
                    file.write(plain.read(start, min(PIECE_BYTES, part.size_bytes - start)))
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _stored(self, part: Part, opened: ExitStack) -> Plain:
        with self.catalog.reading() as session:
            rows = blobs_by_digest(session, {part.digest})
        return stored_plain(self.store, part, rows, opened)


IsEnough = Callable[[Differences], bool]
"""Called with the differences so far; a trial for which it returns True is not measured further."""


@dataclass(frozen=True)
class TrialScorer:
    """Measures planned chimeras of one base."""

    catalog: Catalog
    store: BlobStore
    base: RunnableModel
    texts: tuple[ScoredText, ...]
    """The parts for the trials."""
    runtime: LlamaCpp
    progress: StepProgress = lambda _share, _step: None
    """Called while the base is measured; an exception stops it."""

    @cached_property
    def _texts(self) -> tuple[ScoredText, ...]:
        return fitted_texts(self.texts, self.base.facts.chat_template)

    @property
    def window_tokens(self) -> int:
        """The size of a window in tokens."""
        return min(WINDOW_TOKENS, self.base.facts.context_tokens or WINDOW_TOKENS)

    @cached_property
    def base_scores(self) -> tuple[Score, ...]:
        """The scores of the base on all windows that trials may use, which are stored for other evolutions.

        Raises NoRuntime, NoVerdict, BadInput for a text or a context that is too short.
        """
        if self.window_tokens < WINDOW_TOKENS_MIN:
            sentence = f"the base has a context of {self.window_tokens} tokens; at least {WINDOW_TOKENS_MIN} are needed"
            raise BadInput(sentence)
        cache = CatalogScores(self.catalog)
        keys = [
            ScoreKey(self.base.digest, text.digest, self.window_tokens, self.runtime.identity) for text in self._texts
        ]
        known = [cache.get(key) for key in keys]
        if any(score is None or len(score.windows) < min(CHECKED.stop, score.window_count) for score in known):
            with self.base.placed() as path:
                ranks = (range(CHECKED.stop),) * len(keys)
                request = ScoringRequest(path, self._texts, ranks, self.window_tokens)
                reading = self.runtime.read(request, lambda step, _windows=0: self.progress(0.0, step))
            if reading.failure is not None:
                raise NoVerdict(f"the base does not run: {reading.failure.reason}")
            known = list(reading.scores)
            for key, score in zip(keys, reading.scores, strict=True):
                cache[key] = score
        scores = tuple(score for score in known if score is not None)
        for score in scores:
            if len(score.windows) < WINDOWS_LEAST:
                raise BadInput(
                    f"the text {score.text!r} is too short: its part for the search has {len(score.windows)} windows "
                    f"of {self.window_tokens} tokens, and {WINDOWS_LEAST} are needed; "
                    f"{ENOUGH_BYTES // 1000} kB are enough"
                )
            if score.perplexity is None or not score.perplexity < float("inf"):
                raise NoVerdict(f"the base has no finite perplexity on {score.text}")
        return scores

    def differences(
        self,
        plan: Plan,
        place: TrialFolder,
        ranks: range,
        progress: StepProgress = lambda _share, _step: None,
        is_enough: IsEnough | None = None,
    ) -> tuple[dict[str, tuple[float, ...]], bool]:
        """Measure a planned chimera on the windows of these ranks; return the differences, and whether it was stopped.

        Raises NoRuntime, NoVerdict if it tokenizes differently, BadOrgan, StoreError, DiskFull; an exception of
        `progress` stops the work.
        """
        own_ranks = self._own_ranks(ranks)
        is_stopped = False

        def look(scores: tuple[Score, ...]) -> bool:
            nonlocal is_stopped
            if len(scores) == len(self._texts):
                is_stopped = is_enough is not None and is_enough(self._differences(scores, ranks.start))
            return is_stopped

        path, count = place.folder / "trial.gguf", sum(map(len, own_ranks))
        try:
            progress(0.0, "writing")
            write_unregistered(plan, place.open_part, path, usable_cores(), lambda *_: progress(0.0, "writing"))
            reading = self.runtime.read(
                ScoringRequest(path, self._texts, own_ranks, self.window_tokens),
                lambda step, windows=0: progress(windows / max(1, count), step),
                None if is_enough is None else look,
            )
        finally:
            path.unlink(missing_ok=True)
        if reading.failure is not None and reading.failure.kind is not FailureKind.REFUSED:
            raise NoVerdict(f"the trial was not measured: {reading.failure.reason}")
        if reading.failure is not None:  # a model that is refused is a result: the worst one
            return {text.name: (NOT_FINITE,) * len(own) for text, own in zip(self._texts, own_ranks, strict=True)}, True
        return self._differences(reading.scores, ranks.start), is_stopped

    def no_differences(self, ranks: range) -> dict[str, tuple[float, ...]]:
        """Return the differences of the base from itself, on the windows of these ranks."""
        return {text.name: (0.0,) * len(own) for text, own in zip(self._texts, self._own_ranks(ranks), strict=True)}

    def _own_ranks(self, ranks: range) -> tuple[range, ...]:
        """Return for each text which of these ranks it has."""
        return tuple(range(ranks.start, min(ranks.stop, len(score.windows))) for score in self.base_scores)

    def _differences(self, scores: Sequence[Score], first: int) -> dict[str, tuple[float, ...]]:
        found = {}
        for ours, theirs in zip(scores, self.base_scores, strict=True):
            pairs = [*zip(ours.windows, theirs.windows[first:], strict=False)]
            if any(window.digest != base.digest for window, base in pairs):
                raise NoVerdict(f"the trial and its base tokenize the text {ours.text!r} differently: no comparison")
            values = (window.nats / window.tokens - base.nats / base.tokens for window, base in pairs)
            found[ours.text] = tuple(round(min(value, NOT_FINITE), 6) for value in values)
        return found
