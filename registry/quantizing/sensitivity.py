"""How sensitive a model is to coarser tensor types of its groups of organs, measured by the runtime and stored.

One group at a time is written in a coarse type, and the divergence from the model itself is measured on a few windows.
Each measurement is stored when it is done, so an interrupted search measures nothing twice, and another one of the same
model only what it needs beyond.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import gettempdir

from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.catalog.queries.sizes import sensitivities_of
from organs.registry.catalog.register.sizes import record_sensitivity
from organs.registry.compose.parents import Parent
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.base import Entity, decode, encode
from organs.registry.gguf.types import DType
from organs.registry.progress import StepProgress
from organs.registry.quantizing.groups import OrganGroup, coarse_dtype
from organs.registry.quantizing.rounding import Weights
from organs.registry.quantizing.shards import ShardedModel
from organs.registry.store import BlobStore
from organs.registry.store.files import Files, check_room, placing_error, temporary_folder, translating
from organs.registry.validation.comparison import ModelFacts
from organs.registry.validation.llama import LlamaCpp, usable_cores
from organs.registry.validation.scorer import OrderedText
from organs.registry.validation.texts import CHAT, ScoredText, built_in_texts, fitted_texts
from organs.registry.validation.variants import ModelVariant, VariantLine, VariantOrder, WindowReading

KINDS = (CHAT, "python", "documentation", "encyclopedic", "narrative")
"""The built-in texts on which variants are compared."""
WINDOW_TOKENS = 128
SEARCHED, PROVED = range(1), range(1, 7)
"""The windows of each text that a search uses, and those on which its result is measured."""
FIRST_BITS = 4.6
"""The most bits of the type in which a group is measured first."""
AHEAD = 2
"""Variants that are written before the runtime asks for them."""
PREFIX = "organ-sizes-"
"""Of the folders in the system's temporary folder."""
SECONDS_MAX = 7 * 86400.0
"""The longest comparison: what limits it is the number of its variants."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of texts on which variants are compared: of each text those of `ranks`, in `spread_order`."""

    texts: tuple[ScoredText, ...]
    ranks: range
    tokens: int
    """Of a window."""

    @classmethod
    def of(cls, facts: ModelFacts, ranks: range) -> Windows:
        """Return windows for a model: the chat in its template, and not longer than its context."""
        texts = fitted_texts(built_in_texts(KINDS), facts.chat_template)
        return cls(texts, ranks, min(WINDOW_TOKENS, facts.context_tokens or WINDOW_TOKENS))

    @property
    def digest(self) -> Digest:
        """The key of what is measured on them, besides the tokens of a window."""
        texts = " ".join(text.digest for text in self.texts)
        return digest_of(f"{texts} {self.ranks.start}-{self.ranks.stop}".encode())

    def ordered(self) -> list[OrderedText]:
        """Return the texts for the runtime."""
        return [
            OrderedText(
                text=text.text,
                template=text.template or None,
                first=self.ranks.start,
                end=self.ranks.stop,
                reference=[],
            )
            for text in self.texts
        ]

    @property
    def token_count(self) -> int:
        """About how many tokens a variant is compared on."""
        return len(self.texts) * len(self.ranks) * self.tokens


class SensitivityReading(Entity):
    """What one type of one group does."""

    divergence: float | None
    """In nats per token; None if it is not finite."""
    windows: tuple[float | None, ...]
    """Of each window."""
    tokens: int
    seconds: float


Key = tuple[str, str]
"""The key of a group and the name of a type."""
Take = Callable[[int, tuple[WindowReading, ...], float], None]
"""Called with the number of a variant, what was measured on its windows, and the seconds that it took."""


@dataclass
class Workshop:
    """A folder in which variants of a model are written and compared with it; a context manager, which removes it.

    It needs room for the model and for AHEAD variants in the system's temporary folder.
    """

    catalog: Catalog
    store: BlobStore
    model: Parent
    digest: Digest
    """Of the model's files."""
    runtime: LlamaCpp
    progress: StepProgress
    """Called about every second with the done share of a comparison; an exception stops the work."""
    weights: Mapping[str, Weights] = field(default_factory=dict)
    """The importances by which organs are encoded, by the names of the tensors."""
    importances: str = ""
    """The digest of the importance matrix; empty without one."""
    _opened: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Workshop:
        self._folder = self._opened.enter_context(temporary_folder(Path(gettempdir()), PREFIX))
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def stored(self, windows: Windows) -> dict[Key, SensitivityReading]:
        """Return what was measured before."""
        with self.catalog.reading() as session:
            found = sensitivities_of(
                session, self.digest, windows.digest, windows.tokens, self.runtime.identity, self.importances
            )
        return {key: decode(reading.encode(), SensitivityReading) for key, reading in found.items()}

    def missing(self, groups: Iterable[OrganGroup], windows: Windows) -> list[tuple[OrganGroup, DType]]:
        """Return the groups that were not measured in their first type, with this type, if they have one."""
        known = self.stored(windows)
        wanted = [(group, coarse_dtype(group, FIRST_BITS)) for group in groups]
        return [(group, dtype) for group, dtype in wanted if dtype is not None and (group.key, dtype.name) not in known]

    def measure(self, wanted: Sequence[tuple[OrganGroup, DType]], windows: Windows) -> None:
        """Measure groups in coarser types, and store each result at once.

        Raises NoRuntime, NoVerdict, StoreError, DiskFull.
        """
        variants = [dict.fromkeys((part.name for part in group.parts), dtype) for group, dtype in wanted]

        def take(number: int, readings: tuple[WindowReading, ...], seconds: float) -> None:
            group, dtype = wanted[number]
            reading = SensitivityReading(
                divergence=mean_divergence(readings),
                windows=tuple(None if one.divergence is None else one.divergence / one.tokens for one in readings),
                tokens=sum(one.tokens for one in readings),
                seconds=seconds,
            )
            with self.catalog.writing() as session:
                record_sensitivity(
                    session,
                    *(self.digest, group.key, dtype.name, windows.digest, windows.tokens, self.runtime.identity),
                    encode(reading).decode(),
                    self.importances,
                )

        self.compare(variants, windows, take, "measuring group")

    def compare(
        self, variants: Sequence[Mapping[str, DType]], windows: Windows, take: Take, step: str, *, details: bool = False
    ) -> None:
        """Compare variants, each with types by the names of tensors.

        Raises NoRuntime, NoVerdict, StoreError, DiskFull.
        """
        if not variants:
            return
        with translating(self._folder, placing_error):
            sharded, paths = self._sharded
            order = VariantOrder(
                shards=[str(path) for path in paths],
                variants=[
                    ModelVariant(number=number, shards=sharded.variant_paths(number, dtypes))
                    for number, dtypes in enumerate(variants)
                ],
                texts=windows.ordered(),
                window_tokens=windows.tokens,
                decoders=usable_cores(),
                details=details,
            )
            done = 0
            with _writer(sharded, variants) as release:

                def take_line(line: VariantLine) -> None:
                    nonlocal done
                    if line.variant is not None:
                        take(line.variant, line.windows, line.seconds)
                        done += 1
                    release(line.variant)
                    number = min(done + 1, len(variants))
                    self.progress(done / len(variants), f"{step} {number} of {len(variants)}")

                self.runtime.compare_variants(order, sharded.folder, SECONDS_MAX, take_line)

    @cached_property
    def _sharded(self) -> tuple[ShardedModel, list[Path]]:
        """The model in shards, and their paths."""
        with self.catalog.reading() as session:
            rows = blobs_by_digest(session, {part.digest for part in self.model.parts})
        sharded = ShardedModel(self.model, self.store, rows, self._folder, self.weights)
        self.progress(0.0, "writing the model")
        check_room(sharded.folder, sum(part.size_bytes for part in self.model.parts), Files())
        return sharded, sharded.write()


@contextmanager
def _writer(sharded: ShardedModel, variants: Sequence[Mapping[str, DType]]) -> Iterator[Callable[[int | None], None]]:
    """Write the variants in a thread, AHEAD of them at a time; yield what removes one when it is done.

    What is yielded is called about every second, with None while no variant is done: it raises an error of the thread.
    """
    room, is_over = threading.Semaphore(AHEAD), threading.Event()
    errors: list[Exception] = []

    def write() -> None:
        try:
            for number, dtypes in enumerate(variants):
                room.acquire()
                if is_over.is_set():
                    return
                sharded.write_variant(number, dtypes, is_over)
        except Exception as error:  # noqa: BLE001  it is raised in the other thread
            errors.append(error)

    def release(number: int | None) -> None:
        if errors:
            raise errors[0]
        if number is None:
            return
        sharded.remove_variant(number, variants[number])
        room.release()

    thread = threading.Thread(target=write, name="variants", daemon=True)
    thread.start()
    try:
        yield release
    finally:
        is_over.set()
        room.release()
        thread.join()


def mean_divergence(readings: Sequence[WindowReading]) -> float | None:
    """Return the divergence in nats per token; None if it is not finite on a window."""
    if any(reading.divergence is None for reading in readings):
        return None
    tokens = sum(reading.tokens for reading in readings)
    return sum(reading.divergence or 0.0 for reading in readings) / tokens if tokens else None
