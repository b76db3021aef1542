"""Make a model of a wanted size from its source, and measure how far it is from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import median
from time import monotonic

import numpy as np
from msgspec.structs import asdict, replace
from sqlalchemy.orm import Session

from organs.registry.amounts import duration_text, plural_text
from organs.registry.assembly import stored_header
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.catalog.queries.model_contents import files_of
from organs.registry.catalog.queries.model_names import check_model_name, find_model_by_text, model_by_text
from organs.registry.catalog.queries.sizes import size_by_tag
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.sizes import record_size
from organs.registry.catalog.tables import ModelRow
from organs.registry.compose.build import check_own, make
from organs.registry.compose.ingredients import Rows, read_weights, stored_plain
from organs.registry.compose.parents import Parent, Part, RegisteredLibrary
from organs.registry.compose.plan import Plan, chimera_name
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.quantisation import importances_of
from organs.registry.compose.recipe import TENSOR_TYPES, Recipe, recipe_of_values
from organs.registry.digest import Digest
from organs.registry.entities.memory import MemoryCount
from organs.registry.entities.sizes import CHOSEN, PLAIN, QuantizationRequest, SizedModel, SizePoint, SizeReading
from organs.registry.errors import BadInput, BadRequest, NotAssemblable, NotComposable, NotFound, TooLittleTime
from organs.registry.gguf import padded
from organs.registry.gguf.mixes import MIXES
from organs.registry.gguf.types import DType
from organs.registry.kinds import FileKind
from organs.registry.progress import StepProgress
from organs.registry.quantizing.additive import options_of
from organs.registry.quantizing.choice import Option, chosen, total_bytes
from organs.registry.quantizing.groups import OrganGroup, allowed_dtypes, coarse_dtype, first_groups, halves
from organs.registry.quantizing.layouts import PLAIN_MIXES, Dtypes, Layouts, rules_of
from organs.registry.quantizing.limits import Limit
from organs.registry.quantizing.rounding import Weights, rounding_errors
from organs.registry.quantizing.sensitivity import (
    FIRST_BITS,
    PROVED,
    SEARCHED,
    Key,
    Windows,
    Workshop,
    mean_divergence,
)
from organs.registry.quantizing.tags import name_of_size, tag_of
from organs.registry.store import BlobStore
from organs.registry.transform import Plain
from organs.registry.validation.comparison import ModelFacts
from organs.registry.validation.intervals import interval_of
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.memory import MemoryRequest
from organs.registry.validation.quick import operations_per_second
from organs.registry.validation.variants import WindowReading

ONLY_TYPE = dict.fromkeys(("size_bytes", "bits", "like", "memory_bytes"))
"""The other wishes than a type, as nothing."""
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
    for member, known in (("type", (*MIXES, *TENSOR_TYPES)), ("like", tuple(MIXES))):
        word = getattr(request, member)
        if word is not None and "/" not in word and word.upper() not in known:
            faults.append((member, f"{word[:100]!r} is not a mix of llama.cpp: one is {', '.join(PLAIN_MIXES)}."))
    MemoryRequest(request.context, request.cache_type, request.micro_batch, request.flash_attention)  # or BadInput
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
    most_bytes = stated_bytes(settled, source.parameters, None if like is None else like.size_bytes)
    return settled, min(most_bytes or 0, source.size_bytes)


def stated_bytes(request: QuantizationRequest, parameters: int, like_bytes: int | None) -> int | None:
    """Return the most bytes of the file as a request states them; None for a type, a mix and a memory.

    `like_bytes` is the size of the registered model that it names.
    """
    if request.bits is not None:
        return int(request.bits * parameters / 8)
    return request.size_bytes or like_bytes


MINUTES = 10.0
"""The time for measurements if a request states none."""
ROUND = 8
"""Groups that are divided in one round."""
NEGLIGIBLE = 0.001
"""The share of the divergence of all groups below which a group is not divided."""
CORRECTIONS, CORRECTED_SHARE = 6, 0.25
"""Rounds in which organs are measured in the types that were chosen for them, and the share of the time that is kept
for them."""
CANDIDATES, MEASURED_FILES = 4, 2
"""The choices that are compared with each other, and the files that are measured at the end: the result and a mix."""
NOT_FINITE = 100.0
"""The divergence of a variant that has none, in nats: more than any other has."""
ANY_TAG = "0.000bpw"
"""The tag of plans of which only the size is used."""
ALPHA, WINDOWS_LEAST = 0.1, 3
"""The intervals have the level 90%, and need so many windows."""
MEASURING, CHOOSING, MAKING, CHECKING = (0.0, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.0)
"""The phases of the work: the shares of it, about, at which each begins and ends."""


def quantize(
    catalog: Catalog,
    blobs: BlobStore,
    request: QuantizationRequest,
    runtime: LlamaCpp,
    progress: StepProgress = lambda _share, _step: None,
    contributor: str = LOCAL,
    check_size: Callable[[int], None] = lambda _size_bytes: None,
) -> SizedModel:
    """Make the model that `request` describes, in the namespace of `contributor`, store its size and return it.

    It is made from the model that is proved to be the source of `request.model`, or from this model itself. Raises
    BadInput for a size below the smallest one and for too little time, NoRuntime, NoVerdict, NotComposable, StoreError,
    DiskFull; what was measured before an error stays stored. `check_size` is called with the bytes of the file before
    it is made.
    """
    search, like_bytes = _prepared(catalog, blobs, request, runtime, progress, contributor)
    return search.result(like_bytes, check_size)


def check_possible(catalog: Catalog, blobs: BlobStore, request: QuantizationRequest, runtime: LlamaCpp) -> None:
    """Raise BadInput for a size below the smallest file or above the source, without measuring; NotComposable.

    A memory and a type are not checked. Only the catalog and headers are read.
    """
    if request.type is None and request.memory_bytes is None:
        search, like_bytes = _prepared(catalog, blobs, request, runtime, lambda _share, _step: None, LOCAL)
        search.check(search.limit(like_bytes))


def _prepared(
    catalog: Catalog,
    blobs: BlobStore,
    request: QuantizationRequest,
    runtime: LlamaCpp,
    progress: StepProgress,
    contributor: str,
) -> tuple[_Search, int | None]:
    """Return the search for a request, and the size of the model whose size is the limit."""
    with catalog.reading() as session:
        settled, _ = checked_request(session, request, contributor)
        library = RegisteredLibrary(session, blobs)
        source, row, facts = _finest(library, settled.model)
        like = None if settled.like is None else find_model_by_text(session, settled.like)
        matrix = None if settled.imatrix is None else library.parent(settled.imatrix)
        layouts = Layouts(source, by_importances=matrix is not None)
        weights = {} if matrix is None else _weights(session, blobs, matrix, layouts.parts)
        importances = "" if matrix is None else model_by_text(session, matrix.label).digest
    search = _Search(catalog, blobs, settled, runtime, progress, contributor, row, facts, layouts, weights, importances)
    return search, None if like is None else like.size_bytes


def bands_of(catalog: Catalog, blobs: BlobStore, model: str) -> list[str]:
    """Return the names of the bands of organs that a search of `model` measures first. Raises NotFound, StoreError."""
    with catalog.reading() as session:
        source, _, _ = _finest(RegisteredLibrary(session, blobs), model)
    return [group.key for group in next(first_groups(Layouts(source).parts))]


def measure_band(
    catalog: Catalog, blobs: BlobStore, model: str, band: str, runtime: LlamaCpp, progress: StepProgress
) -> int:
    """Measure a band of `bands_of` and its halves, down to single organs, and store it; return how many were measured.

    Raises NotFound for another band, NoRuntime, NoVerdict, StoreError, DiskFull.
    """
    with catalog.reading() as session:
        source, row, facts = _finest(RegisteredLibrary(session, blobs), model)
    groups = [group for group in next(first_groups(Layouts(source).parts)) if group.key == band]
    if not groups:
        raise NotFound(f"{source.label} has no band {band[:100]!r}")
    windows, count = Windows.of(facts, SEARCHED), 0
    with Workshop(catalog, blobs, source, Digest(row.digest), runtime, progress) as work:
        while groups:
            missing = work.missing(groups, windows)
            work.measure(missing, windows)
            count += len(missing)
            groups = [half for group in groups if len(group.parts) > 1 for half in halves(group)]
    return count


def _finest(library: RegisteredLibrary, name: str) -> tuple[Parent, ModelRow, ModelFacts]:
    """Return the model from which a model is proved to be quantised, or itself, with its row and facts."""
    wanted = library.parent(name)
    proved = library.source_of(wanted)
    source = wanted if proved is None else proved.model
    session, store = library.session, library.store
    row = model_by_text(session, source.label)
    headers = [stored_header(session, store, file).header for file in files_of(session, row.id)]
    return source, row, ModelFacts.of(headers)


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
    weights: Mapping[str, Weights]
    """The importances by which organs are encoded, by the names of the tensors."""
    importances: str = ""
    """The digest of the importance matrix."""
    phase: tuple[float, float] = MEASURING
    used_seconds: float = 0.0
    """The time that the measurements of groups took."""
    _work: Workshop = field(init=False)
    _counted: dict[tuple[str, ...], MemoryCount] = field(default_factory=dict)
    """What was counted, by the types of all tensors in order."""

    def __post_init__(self) -> None:
        self._work = Workshop(
            *(self.catalog, self.blobs, self.source, Digest(self.row.digest), self.runtime, self._advance),
            *(self.weights, self.importances),
        )

    def result(self, like_bytes: int | None, check_size: Callable[[int], None]) -> SizedModel:
        """Choose the tensor types, make the file, and measure it beside the plain mix."""
        with self._work:
            return self._result(like_bytes, check_size)

    def _result(self, like_bytes: int | None, check_size: Callable[[int], None]) -> SizedModel:
        plain = memory = None
        if self.request.type is not None:
            plan = self._plan({})
            plan.check()
            parts = plan.parts
            dtypes: Dtypes = {part.spec.name: part.spec.dtype for part in parts if part.computation is not None}
        else:
            limit = self.limit(like_bytes)
            self.check(limit)
            plain, larger = self._mixes_around(limit)
            dtypes = self._best(limit, plain, larger)
        if self.request.memory_bytes is None:
            tag = tag_of(self.request, like_bytes)
        else:
            memory, size_bytes = self._memory(dtypes), self._plan(dtypes).size_bytes
            tag = tag_of(replace(self.request, memory_bytes=None, size_bytes=size_bytes))
        plan = self._plan(dtypes, tag)
        plan.check()
        check_size(plan.size_bytes)
        self.phase = MAKING
        made = make(self.catalog, self.blobs, plan, progress=self._making, contributor=self.contributor)
        self.phase = CHECKING
        kind = CHOSEN if self.request.type is None else PLAIN
        sizes = [_Size(kind, tag, dtypes, made.size_bytes, made.model, memory)]
        if plain is not None:
            mix, plain_tag = self.layouts.mix(plain), tag_of(replace(self.request, **ONLY_TYPE, type=plain))
            sizes.append(_Size(PLAIN, plain_tag, mix, self._plan(mix).size_bytes))
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
        windows = Windows.of(self.facts, PROVED)
        readings = self._compared([size.dtypes for size in sizes], windows, "measuring", details=True)
        points = []
        with self.catalog.writing() as session:
            for size, found in zip(sizes, readings, strict=True):
                reading = _size_reading(found, 8 * size.size_bytes / max(1, self.row.parameters))
                if size.memory is not None and self._context == MemoryRequest(self.request.context):
                    count = size.memory
                    reading = replace(reading, memory_bytes=count.total_bytes, memory_context=count.context_tokens)
                known = size_by_tag(session, self.row.id, size.tag)
                model = size.model
                if model is None and known is not None and known.size_bytes == size.size_bytes:
                    model = known.model
                model_id = None if model is None else model_by_text(session, model).id
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
                        model=model,
                    )
                )
        return points

    # The choice

    def limit(self, like_bytes: int | None) -> Limit:
        """Return the limit that the request sets. Raises BadInput for an unknown mix."""
        request = self.request
        if request.memory_bytes is not None:
            return Limit.of_memory(request.memory_bytes, self._memory)
        most_bytes = stated_bytes(request, self.row.parameters, like_bytes)
        if most_bytes is None:
            most_bytes = self._plan(self.layouts.mix((request.like or "").upper())).size_bytes
        return Limit.of_file(
            most_bytes, lambda dtypes: self._plan(dtypes).size_bytes if dtypes else self.row.size_bytes
        )

    def _mixes_around(self, limit: Limit) -> tuple[str | None, str | None]:
        """Return the largest mix within `limit`, and the smallest one that is not; None for one that is not there."""
        larger = None
        sizes = {name: self.layouts.size_bytes(self.layouts.mix(name)) for name in PLAIN_MIXES}
        for name in sorted(PLAIN_MIXES, key=lambda name: -sizes[name]):
            if sizes[name] <= limit.most_bytes and limit.allows(self.layouts.mix(name)):
                return name, larger
            larger = name
        return None, larger

    def check(self, limit: Limit) -> None:
        """Raise BadInput if no file is so small, or if the source is; NotComposable if no file can be made."""
        towers = {part.place.tower.value for part in self.layouts.parts}
        if len(towers) > 1:
            raise BadInput(
                f"{self.source.label} has several networks ({', '.join(sorted(towers))}): it has only mixes (--type)"
            )
        smallest = self.layouts.smallest(self._weigh)
        plan = self._plan(smallest)  # what prevents one file prevents all
        if not plan.can_be_made:
            warned = [finding.sentence for finding in plan.unaccepted]
            refused = [finding.sentence for finding in plan.refusals]
            raise NotComposable(refused, sorted({finding.code for finding in plan.unaccepted}), warned)
        if not limit.allows(smallest):
            raise BadInput(limit.below(self.source.label, smallest, self.layouts.reason_of_floor(smallest)))
        if limit.allows({}):
            raise BadInput(limit.above(self.source.label))

    def _best(self, limit: Limit, plain: str | None, larger: str | None) -> Dtypes:
        """Return the types of the best file within `limit`, which is between the mixes `plain` and `larger`.

        That is one of a few choices, the one that differs least from the source on the windows of the search. Raises
        BadInput for too little time.
        """
        groups = self._divided()
        errors = self._errors(groups)
        by_errors = self._choice(limit, options_of(groups, errors, {}, self._weigh))
        for turn in range(CORRECTIONS + 1):
            options = options_of(groups, errors, self._divergences(), self._weigh)
            best = self._choice(limit, options)
            missing = self._unmeasured(groups, options, best)[: self._affordable(1.0)]
            if not missing or turn == CORRECTIONS:
                break
            self._measure(missing)
        self.phase = CHOOSING
        mixes = [name for name in (plain, larger) if name is not None]
        near = [self._near(limit, options, self.layouts.mix(name), is_larger=name == larger) for name in mixes]
        choices = [best, by_errors, *near]
        candidates = [choice for number, choice in enumerate(choices) if choice not in choices[:number]]
        readings = self._compared(candidates, self._searched, "comparing choice")
        divergences = [mean_divergence(windows) for windows in readings]
        return candidates[min(range(len(candidates)), key=lambda number: _or_infinite(divergences[number]))]

    def _choice(self, limit: Limit, options: Mapping[str, Sequence[Option]]) -> Dtypes:
        """Return the types with the smallest estimated divergence within `limit`."""
        layouts, alignment = self.layouts, self.source.header.alignment
        fixed_bytes = layouts.size_bytes({}) - sum(padded(part.size_bytes, alignment) for part in layouts.parts)

        def choose(size_bytes: int) -> tuple[Dtypes, int] | None:
            found = chosen(options, size_bytes - fixed_bytes)
            if found is None:
                return None
            return {name: option.dtype for name, option in found.items()}, fixed_bytes + total_bytes(found)

        return limit.closest(choose, layouts.smallest(self._weigh), limit.most_bytes)

    def _near(self, limit: Limit, options: Mapping[str, Sequence[Option]], mix: Dtypes, *, is_larger: bool) -> Dtypes:
        """Return the choice in which no organ is smaller than in a mix; none larger, if the mix is above the limit."""
        near = {}
        for part in self.layouts.parts:
            own, edge = options[part.name], int(self._weigh(part, mix.get(part.name, part.dtype)))
            within = [one for one in own if (one.size_bytes <= edge if is_larger else one.size_bytes >= edge)]
            near[part.name] = within or [(min if is_larger else max)(own, key=lambda option: option.size_bytes)]
        return self._choice(limit, near)

    def _weigh(self, part: Part, dtype: DType) -> float:
        """Return what an organ in a type takes of a file, or of memory, where some types are there twice."""
        size_bytes = padded(dtype.size_bytes(part.spec.elements), self.source.header.alignment)
        twice = self._repacked.get(dtype.name, 0.0) if self.layouts.is_multiplied(part) else 0.0
        return size_bytes * (1.0 + twice)

    @cached_property
    def _repacked(self) -> dict[str, float]:
        """How much of an organ is in memory a second time, by its type; empty for a limit of the file."""
        if self.request.memory_bytes is None:
            return {}
        self._advance(0.0, "counting memory")
        return self.layouts.repacked_shares(self._context, requires_sandbox=self.runtime.requires_sandbox)

    def _unmeasured(
        self, groups: Sequence[OrganGroup], options: Mapping[str, Sequence[Option]], dtypes: Dtypes
    ) -> list[tuple[OrganGroup, DType]]:
        """Return the groups that were not measured in their usual type of a choice, those that add most first."""
        known, found = self._work.stored(self._searched), []
        for group in groups:
            (dtype, _), *_ = Counter(dtypes[part.name] for part in group.parts).most_common()
            added = sum(
                option.divergence for part in group.parts for option in options[part.name] if option.dtype == dtype
            )
            is_allowed = all(dtype in allowed_dtypes(part)[:-1] for part in group.parts)
            if is_allowed and (group.key, dtype.name) not in known:
                found.append((added, group, dtype))
        found.sort(key=lambda item: -item[0])
        return [(group, dtype) for _, group, dtype in found]

    def _errors(self, groups: Sequence[OrganGroup]) -> dict[str, dict[str, float]]:
        """Return the squared rounding errors of all organs in all types."""
        with self.catalog.reading() as session:
            rows = blobs_by_digest(session, {part.digest for part in self.layouts.parts})
        errors = {}
        parts = [part for group in groups for part in group.parts]
        for number, part in enumerate(parts, start=1):
            self._advance(number / len(parts) / 2, f"rounding tensor {number} of {len(parts)}")
            dtypes = allowed_dtypes(part)[:-1]
            errors[part.name] = rounding_errors(self.blobs, rows, part, dtypes, self.weights.get(part.name))
        return errors

    # Measurements

    def _divided(self) -> list[OrganGroup]:
        """Measure groups of organs, and divide those that add most, as far as time allows; return the groups.

        Raises TooLittleTime.
        """
        windows, minutes, seconds = self._searched, self.request.minutes or MINUTES, self._seconds
        seconds_a_run = self._seconds_a_run(windows)
        for groups in first_groups(self.layouts.parts):
            missing = self._work.missing(groups, windows)
            needed = seconds_a_run * len(missing)
            if not missing or needed <= seconds:
                break
        if missing and needed > seconds:
            needed += 60 * minutes - seconds
            enough = math.ceil(needed / 60) + 1
            raise TooLittleTime(
                f"{self.source.label} has {plural_text(len(groups), 'kind', 'kinds')} of matrices to measure, which "
                f"takes about {duration_text(needed)} on this machine, more than the {minutes:g} minutes that are "
                f"allowed: allow {enough} minutes, or make a plain mix, which needs no measurement",
                enough,
            )
        self._advance(0.0, f"measuring {plural_text(len(missing), 'group', 'groups')}, about {duration_text(needed)}")
        self._measure(missing)
        while True:
            known = self._divergences()
            first = {group: coarse_dtype(group, FIRST_BITS) for group in groups}
            added = {group: known.get((group.key, dtype.name), 0.0) for group, dtype in first.items() if dtype}
            least = NEGLIGIBLE * sum(added.values())
            large = sorted(added, key=lambda group: -added[group])
            large = [group for group in large if len(group.parts) > 1 and added[group] >= least][:ROUND]
            count = self._affordable(1.0 - CORRECTED_SHARE)
            while (
                len(missing := self._work.missing([half for group in large for half in halves(group)], windows)) > count
            ):
                large.pop()
            if not large:
                return groups
            self._measure(missing)
            groups = [half for group in groups for half in (halves(group) if group in large else [group])]

    def _affordable(self, share: float) -> int:
        """Return how many groups can be measured until a share of the time for measurements is used."""
        left = self._seconds * share - self.used_seconds
        return max(0, int(left / self._seconds_a_run(self._searched)))

    def _measure(self, wanted: Sequence[tuple[OrganGroup, DType]]) -> None:
        """Measure groups in types."""
        begun, seconds = monotonic(), max(1.0, self._seconds)
        done = min(1.0, self.used_seconds / seconds)
        after = min(1.0, done + len(wanted) * self._seconds_a_run(self._searched) / seconds)
        begin, end = MEASURING
        self.phase = (begin + (end - begin) * done, begin + (end - begin) * after)
        self._work.measure(wanted, self._searched)
        self.used_seconds += monotonic() - begun

    @property
    def _seconds(self) -> float:
        """The time for groups: that for all measurements without what the comparisons of whole files will take."""
        windows = CANDIDATES * len(SEARCHED) + MEASURED_FILES * len(PROVED)
        files = self._seconds_a_run(self._searched) * windows / len(SEARCHED)
        return 60 * (self.request.minutes or MINUTES) - files

    def _divergences(self) -> dict[Key, float]:
        """Return what was measured, by group and type."""
        stored = self._work.stored(self._searched)
        return {key: NOT_FINITE if one.divergence is None else one.divergence for key, one in stored.items()}

    def _seconds_a_run(self, windows: Windows) -> float:
        """Return about how long the measurement of a group takes: as earlier ones did, else by the machine's speed."""
        known = [reading.seconds for reading in self._work.stored(windows).values()]
        if known:
            return max(0.01, median(known))
        return max(0.1, 2.0 * self.facts.active_parameters * windows.token_count / operations_per_second())

    def _compared(
        self, variants: Sequence[Dtypes], windows: Windows, step: str, *, details: bool = False
    ) -> list[tuple[WindowReading, ...]]:
        """Return how far each variant is from the source on each window."""
        found: dict[int, tuple[WindowReading, ...]] = {}

        def take(number: int, readings: tuple[WindowReading, ...], _seconds: float) -> None:
            found[number] = readings

        self._work.compare(variants, windows, take, step, details=details)
        return [found[number] for number in range(len(variants))]

    def _advance(self, done: float, step: str) -> None:
        """Report the share of a phase that is done."""
        begin, end = self.phase
        self.progress(begin + (end - begin) * done, step)

    @property
    def _searched(self) -> Windows:
        return Windows.of(self.facts, SEARCHED)

    def _making(self, step: str, _size_bytes: int) -> None:
        self._advance(
            0.5 if step == "hash" else 0.0, "computing the digest of the file" if step == "hash" else "writing tensors"
        )

    # Files

    @property
    def source(self) -> Parent:
        return self.layouts.source

    def _memory(self, dtypes: Dtypes) -> MemoryCount:
        """Return what the runtime takes for a file."""
        key = tuple(spec.dtype.name for spec in self.layouts.specs(dtypes))
        if key not in self._counted:
            self._advance(0.0, "counting memory")
            count = self.layouts.memory(dtypes, self._context, requires_sandbox=self.runtime.requires_sandbox)
            self._counted[key] = count
        return self._counted[key]

    @property
    def _context(self) -> MemoryRequest:
        request = self.request
        return MemoryRequest(request.context, request.cache_type, request.micro_batch, request.flash_attention)

    def _plan(self, dtypes: Dtypes, tag: str = ANY_TAG) -> Plan:
        """Return the plan of the recipe that writes these types."""
        rules: object = rules_of(self.layouts.parts, dtypes)
        if self.request.type is not None:
            rules = {"as": self.request.type.upper()}
        name = self.request.name or str(name_of_size(self.row, tag, self.contributor))
        values = {"base": self.source.label, "name": name, "quantize": rules, "accept": list(self.request.accept)}
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
    memory: MemoryCount | None = None


def _weights(session: Session, blobs: BlobStore, matrix: Parent, parts: Sequence[Part]) -> dict[str, Weights]:
    """Return the importances of organs that a matrix has, by the names of the tensors. Raises StoreError, BadOrgan.

    A plan says what a matrix lacks, and refuses one of another model.
    """
    rows, weights = blobs_by_digest(session, {part.digest for part in matrix.parts}), {}
    for part in parts:
        planned, _ = importances_of(matrix, part.name, part.shape)
        if planned is not None:
            with ExitStack() as opened:
                weights[part.name] = read_weights(planned, partial(_plain, blobs, rows, opened))
    return weights


def _plain(blobs: BlobStore, rows: Rows, opened: ExitStack, part: Part) -> Plain:
    return stored_plain(blobs, part, rows, opened)


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
