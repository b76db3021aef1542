"""Make a model of a wanted size from its source, and measure how far it is from it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from msgspec.structs import asdict, replace
from sqlalchemy.orm import Session

from organs.registry.amounts import duration_text, plural_text
from organs.registry.assembly import stored_header
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.catalog.queries.model_contents import files_of
from organs.registry.catalog.queries.model_names import check_model_name, find_model_by_text, model_by_text
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.sizes import record_size
from organs.registry.catalog.tables import ModelRow
from organs.registry.compose.build import check_own, make
from organs.registry.compose.parents import Parent, Part, RegisteredLibrary
from organs.registry.compose.plan import Plan, chimera_name
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import Recipe, recipe_of_values
from organs.registry.digest import Digest
from organs.registry.entities.memory import MemoryCount
from organs.registry.entities.sizes import CHOSEN, PLAIN, QuantizationRequest, SizedModel, SizePoint, SizeReading
from organs.registry.errors import BadInput, BadRequest, NotAssemblable
from organs.registry.gguf import padded
from organs.registry.gguf.types import DType
from organs.registry.kinds import FileKind
from organs.registry.progress import StepProgress
from organs.registry.quantizing.choice import Option, chosen
from organs.registry.quantizing.estimates import options_of
from organs.registry.quantizing.groups import Group, allowed_dtypes, coarse_dtype, groups_of
from organs.registry.quantizing.layouts import PLAIN_MIXES, Dtypes, Layouts, rules_of
from organs.registry.quantizing.limits import Limit
from organs.registry.quantizing.rounding import rounding_errors
from organs.registry.quantizing.sensitivity import Key, Windows, Workshop, mean_divergence
from organs.registry.quantizing.tags import name_of_size, tag_of
from organs.registry.store import BlobStore
from organs.registry.validation.comparison import ModelFacts
from organs.registry.validation.intervals import interval_of
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.memory import MemoryRequest
from organs.registry.validation.quick import operations_per_second
from organs.registry.validation.texts import CHAT, built_in_texts, fitted_texts
from organs.registry.validation.variants import WindowReading

WANTED = ("type", "size_bytes", "bits", "like", "memory_bytes")
"""The members of a request of which it has exactly one."""


def checked_request(
    session: Session, request: QuantizationRequest, contributor: str = LOCAL
) -> tuple[QuantizationRequest, int]:
    """Return the request with full names, and the most bytes that its file can have, as far as this is known now.

    Raises BadRequest with all faults, NotAllowed for a name in another contributor's namespace, BadName, NotFound,
    NotAssemblable.
    """
    source = model_by_text(session, request.model)
    if source.unassemblable:
        raise NotAssemblable(source.full_name, source.unassemblable)
    faults: list[tuple[str | None, str]] = []
    if source.kind != FileKind.MODEL or not source.complete:
        faults.append(("model", f"{source.full_name} is no complete language model, so it has no sizes."))
    wanted = [name for name in WANTED if getattr(request, name) is not None]
    if len(wanted) != 1:
        found = f"The request has {', '.join(wanted)}." if wanted else "The request has none of them."
        faults.append((None, f"Give exactly one of {', '.join(WANTED)}. {found}"))
    like = None
    if request.like is not None and "/" in request.like:
        like = find_model_by_text(session, request.like)
        if like is None:
            faults.append(("like", f"{request.like[:100]!r} is no registered model."))
    importances = None if request.imatrix is None else find_model_by_text(session, request.imatrix)
    if request.imatrix is not None and (importances is None or importances.kind != FileKind.IMATRIX):
        faults.append(("imatrix", f"{request.imatrix[:100]!r} is no registered importance matrix."))
    if faults:
        raise BadRequest(*faults[0], more=faults[1:])
    settled = replace(request, model=source.full_name)
    if request.name is not None:
        name = chimera_name(Recipe(source.full_name, name=request.name), "", contributor)
        check_own(name, contributor)
        check_model_name(session, name)
        settled = replace(settled, name=str(name))
    if like is not None:
        settled = replace(settled, like=like.full_name)
    if importances is not None:
        settled = replace(settled, imatrix=importances.full_name)
    most_bytes = request.size_bytes or 0
    if request.bits is not None:
        most_bytes = int(request.bits * source.parameters / 8)
    if like is not None:
        most_bytes = like.size_bytes
    return settled, min(most_bytes, source.size_bytes)


MINUTES = 10.0
"""The time for measurements if a request states none."""
KINDS = (CHAT, "python", "documentation", "encyclopedic", "narrative")
"""The built-in texts on which sizes are measured."""
WINDOW_TOKENS = 128
SEARCHED, PROVED = range(1), range(1, 7)
"""The windows of each text that a search uses, and those on which its result is measured."""
FIRST_BITS, OTHER_BITS = 4.6, (3.5, 5.6, 2.7)
"""The bits of the types in which groups are measured: first all in one, then, as far as time allows, in others."""
ALPHA, WINDOWS_LEAST = 0.1, 3
"""The intervals have the level 90%, and need so many windows."""
SEARCH_SHARE, MADE_SHARE = 0.8, 0.9
"""Which share of the work is done, about, when the types are chosen, and when the file is made."""


def quantize(
    catalog: Catalog,
    blobs: BlobStore,
    request: QuantizationRequest,
    runtime: LlamaCpp,
    progress: StepProgress = lambda _share, _step: None,
    contributor: str = LOCAL,
) -> SizedModel:
    """Make the model that `request` describes, in the namespace of `contributor`, store its size and return it.

    It is made from the model that is proved to be the source of `request.model`, or from this model itself. Raises
    BadInput for a size below the smallest one and for too little time, NoRuntime, NoVerdict, NotComposable, StoreError,
    DiskFull; what was measured before an error stays stored.
    """
    with catalog.reading() as session:
        settled, _ = checked_request(session, request, contributor)
        library = RegisteredLibrary(session, blobs)
        wanted = library.parent(settled.model)
        proved = library.source_of(wanted)
        source = wanted if proved is None else proved.model
        row = model_by_text(session, source.label)
        like = None if settled.like is None else find_model_by_text(session, settled.like)
        facts = ModelFacts.of([stored_header(session, blobs, file).header for file in files_of(session, row.id)])
    search = _Search(catalog, blobs, settled, runtime, progress, contributor, row, facts, Layouts(source))
    return search.result(None if like is None else like.size_bytes)


@dataclass
class _Search:
    """The work for one request."""

    catalog: Catalog
    blobs: BlobStore
    request: QuantizationRequest
    runtime: LlamaCpp
    progress: StepProgress
    contributor: str
    row: ModelRow
    """Of the source."""
    facts: ModelFacts
    layouts: Layouts
    share: float = 0.0
    """The share of the work that is done."""

    def result(self, like_bytes: int | None) -> SizedModel:
        """Choose the tensor types, make the file, and measure it beside the plain mix."""
        tag, plain, memory = tag_of(self.request, like_bytes), None, None
        if self.request.type is not None:
            dtypes = self.layouts.mix(self.request.type.upper())
        else:
            limit = self._limit(tag, like_bytes)
            plain = self._nearest_mix(limit)
            dtypes = self._best(limit, plain)
        plan = self._plan(dtypes, tag)
        plan.check()
        if self.request.memory_bytes is not None:
            memory = self._memory(dtypes)
        self.share = SEARCH_SHARE
        made = make(self.catalog, self.blobs, plan, progress=self._making, contributor=self.contributor)
        self.share = MADE_SHARE
        sizes = [_Size(CHOSEN if self.request.type is None else PLAIN, tag, dtypes, made.size_bytes, made.model)]
        if plain is not None:
            mix = self.layouts.mix(plain)
            sizes.append(_Size(PLAIN, plain, mix, self._plan(mix, plain).size_bytes))
        points = self._measured(sizes)
        return SizedModel(
            chimera=made,
            source=self.source.label,
            point=points[0],
            plain=points[1] if plain is not None else None,
            memory=memory,
        )

    def _measured(self, sizes: Sequence[_Size]) -> list[SizePoint]:
        """Measure files on windows that no choice used, and store what was found."""
        windows = self._windows(PROVED)
        readings = self._compared([size.dtypes for size in sizes], windows, "measuring", details=True)
        points = []
        with self.catalog.writing() as session:
            for size, found in zip(sizes, readings, strict=True):
                reading = _size_reading(found, 8 * size.size_bytes / max(1, self.row.parameters))
                model_id = None if size.model is None else model_by_text(session, size.model).id
                record_size(
                    *(session, self.row.id, model_id, size.kind, size.tag, size.tag, size.size_bytes, reading),
                    *(windows.digest, self.runtime.identity),
                )
                points.append(
                    SizePoint(
                        **asdict(reading),
                        kind=size.kind,
                        label=size.tag,
                        tag=size.tag,
                        size_bytes=size.size_bytes,
                        model=size.model,
                    )
                )
        return points

    # The choice

    def _limit(self, tag: str, like_bytes: int | None) -> Limit:
        """Return the limit that the request sets. Raises BadInput for an unknown mix."""
        request = self.request
        if request.memory_bytes is not None:
            return Limit.of_memory(request.memory_bytes, lambda dtypes: self._memory(dtypes).total_bytes)
        most_bytes = request.size_bytes or like_bytes
        if request.bits is not None:
            most_bytes = int(request.bits * self.row.parameters / 8)
        if most_bytes is None:
            most_bytes = self._plan(self.layouts.mix((request.like or "").upper()), tag).size_bytes
        return Limit.of_file(most_bytes, lambda dtypes: self._plan(dtypes, tag).size_bytes)

    def _nearest_mix(self, limit: Limit) -> str | None:
        """Return the largest mix within `limit`; None if there is none."""
        by_size = sorted(PLAIN_MIXES, key=lambda name: -self.layouts.size_bytes(self.layouts.mix(name)))
        small = (name for name in by_size if self.layouts.size_bytes(self.layouts.mix(name)) <= limit.most_bytes)
        return next((name for name in small if limit.allows(self.layouts.mix(name))), None)

    def _best(self, limit: Limit, plain: str | None) -> Dtypes:
        """Return the types of the best file within `limit`.

        That is one of a few choices, the one that differs least from the source on the windows of the search. Raises
        BadInput if no file is so small.
        """
        layouts = self.layouts
        if not limit.allows(layouts.smallest):
            raise BadInput(limit.below(self.source.label, layouts.smallest, layouts.reason_of_floor()))
        groups = self._measured_groups()
        stored = self._work.stored(self._windows(SEARCHED))
        measured = {key: one.divergence for key, one in stored.items() if one.divergence is not None}
        errors, alignment = self._errors(groups), self.source.header.alignment
        # The organs that keep their types are not among the options.
        fixed_bytes = layouts.size_bytes({}) - sum(padded(part.size_bytes, alignment) for part in layouts.parts)
        candidates = []
        for known in (measured, dict[Key, float]()):
            options = options_of(groups, errors, known, alignment)

            def choose(size_bytes: int, options: Mapping[str, Sequence[Option]] = options) -> Dtypes | None:
                found = chosen(options, size_bytes - fixed_bytes)
                return None if found is None else {name: option.dtype for name, option in found.items()}

            candidates.append(limit.closest(choose, layouts.smallest, limit.most_bytes))
        candidates += [] if plain is None else [layouts.mix(plain)]
        readings = self._compared(candidates, self._windows(SEARCHED), "comparing choice")
        divergences = [mean_divergence(windows) for windows in readings]
        return candidates[min(range(len(candidates)), key=lambda number: _or_infinite(divergences[number]))]

    def _errors(self, groups: Sequence[Group]) -> dict[str, dict[str, float]]:
        """Return the squared rounding errors of all organs in all types."""
        with self.catalog.reading() as session:
            rows = blobs_by_digest(session, {part.digest for part in self.layouts.parts})
        errors = {}
        parts = [part for group in groups for part in group.parts]
        for number, part in enumerate(parts, start=1):
            self.progress(self.share, f"rounding organ {number} of {len(parts)}")
            errors[part.name] = rounding_errors(self.blobs, rows, part, allowed_dtypes(part)[:-1])
        return errors

    # Measurements

    def _measured_groups(self) -> list[Group]:
        """Measure groups of organs as fine as time allows; return them. Raises BadInput for too little time."""
        minutes = self.request.minutes or MINUTES
        windows = self._windows(SEARCHED)
        stored = self._work.stored(windows)
        seconds = self._seconds_a_run(windows, [reading.seconds for reading in stored.values()])
        runs = int(60 * minutes / seconds)
        missing: list[tuple[Group, DType]] = []
        for groups in _partitions(self.layouts.parts):
            missing = _runs(groups, FIRST_BITS, stored)
            if len(missing) <= runs:
                break
        else:
            needed = duration_text(60 + seconds * len(missing))
            raise BadInput(
                f"{self.source.label} has {plural_text(len(missing), 'kind', 'kinds')} of matrices to measure, which "
                f"takes about {needed} on this machine: state more than {minutes:g} minutes"
            )
        for bits in OTHER_BITS:
            more = _runs(groups, bits, stored)
            if len(missing) + len(more) <= runs:
                missing += more
        self._work.measure(groups, missing, windows)
        return list(groups)

    def _seconds_a_run(self, windows: Windows, known: Sequence[float]) -> float:
        """Return about how long the measurement of a group takes: as earlier ones did, else by the machine's speed."""
        if known:
            return median(known)
        return max(0.1, 2.0 * self.facts.active_parameters * windows.token_count / operations_per_second())

    def _compared(
        self, variants: Sequence[Dtypes], windows: Windows, step: str, *, details: bool = False
    ) -> list[tuple[WindowReading, ...]]:
        """Return how far each variant is from the source on each window."""
        found: dict[int, tuple[WindowReading, ...]] = {}

        def take(number: int, readings: tuple[WindowReading, ...], _seconds: float) -> None:
            found[number] = readings

        whole = Group("all", tuple(self.layouts.parts))
        self._work.compare([whole], variants, windows, take, step, details=details)
        return [found[number] for number in range(len(variants))]

    @cached_property
    def _work(self) -> Workshop:
        def advance(done: float, step: str) -> None:
            begin, end = (0.0, SEARCH_SHARE) if self.share < SEARCH_SHARE else (MADE_SHARE, 1.0)
            self.share = max(self.share, begin + (end - begin) * done)
            self.progress(self.share, step)

        return Workshop(self.catalog, self.blobs, self.source, Digest(self.row.digest), self.runtime, advance)

    def _windows(self, ranks: range) -> Windows:
        texts = fitted_texts(built_in_texts(KINDS), self.facts.chat_template)
        tokens = min(WINDOW_TOKENS, self.facts.context_tokens or WINDOW_TOKENS)
        return Windows(texts, ranks, tokens)

    def _making(self, step: str, _size_bytes: int) -> None:
        self.progress(self.share, {"compute": "writing organs", "hash": "hashing the file"}.get(step, step))

    # Files

    @property
    def source(self) -> Parent:
        return self.layouts.source

    def _memory(self, dtypes: Dtypes) -> MemoryCount:
        """Return what the runtime takes for a file."""
        request = self.request
        wanted = MemoryRequest(request.context, request.cache_type, request.micro_batch, request.flash_attention)
        self.progress(self.share, "counting memory")
        return self.layouts.memory(dtypes, wanted, requires_sandbox=self.runtime.requires_sandbox)

    def _plan(self, dtypes: Dtypes, tag: str) -> Plan:
        """Return the plan of the recipe that writes these types."""
        rules: object = rules_of(self.layouts.parts, dtypes)
        if self.request.type is not None:
            rules = {"as": self.request.type.upper()}
        name = self.request.name or str(name_of_size(self.row, tag, self.contributor))
        values = {"base": self.source.label, "name": name, "quantize": rules}
        if self.request.imatrix is not None:
            values["imatrix"] = self.request.imatrix
        with self.catalog.reading() as session:
            return plan_recipe(recipe_of_values(values, "recipe"), RegisteredLibrary(session, self.blobs))


@dataclass(frozen=True, slots=True)
class _Size:
    """A file to measure."""

    kind: str
    tag: str
    dtypes: Dtypes
    size_bytes: int
    model: str | None = None
    """Its name; None if it is not registered."""


def _partitions(parts: Sequence[Part]) -> Iterator[list[Group]]:
    """Yield divisions of `parts` into groups, the finest first."""
    bands = max(
        (sum(1 for part in parts if part.place.slot == slot) for slot in {part.place.slot for part in parts}), default=1
    )
    for count in range(bands, 0, -1):
        yield groups_of(parts, count)


def _runs(groups: Sequence[Group], bits: float, stored: Collection[Key]) -> list[tuple[Group, DType]]:
    """Return the groups that were not measured in the type of so many bits, with this type."""
    wanted = [(group, coarse_dtype(group, bits)) for group in groups]
    return [(group, dtype) for group, dtype in wanted if (group.key, dtype.name) not in stored]


def _size_reading(windows: Sequence[WindowReading], bits: float) -> SizeReading:
    """Return what the windows tell."""
    means = [one.divergence / one.tokens for one in windows if one.divergence is not None]
    tokens = sum(one.tokens for one in windows)
    values = np.array([value for one in windows for value in one.divergences])
    if len(means) < len(windows) or not tokens:
        return SizeReading(bits=bits, tokens=tokens)
    interval = interval_of(means, 1, ALPHA, WINDOWS_LEAST)
    nats = sum((one.nats or 0.0) - (one.reference_nats or 0.0) for one in windows) / tokens
    return SizeReading(
        bits=round(bits, 3),
        divergence=mean_divergence(windows),
        divergence_margin=None if interval is None else interval.margin,
        divergence_99=float(np.quantile(values, 0.99)) if values.size else None,
        same_top=sum(one.same_top for one in windows) / tokens,
        ratio=math.exp(nats) if nats < 700.0 else None,
        tokens=tokens,
    )


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value
