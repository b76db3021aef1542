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

from organs.registry.amounts import duration_text, plural_text, size_text
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
from organs.registry.compose.selection import in_ranges
from organs.registry.digest import Digest
from organs.registry.entities.sizes import CHOSEN, PLAIN, QuantizationRequest, SizedModel, SizePoint, SizeReading
from organs.registry.errors import BadInput, BadRequest, NotAssemblable
from organs.registry.gguf import padded
from organs.registry.gguf.mixes import MIXES, is_quantised, mixed_dtypes, traits_of
from organs.registry.gguf.types import DType
from organs.registry.kinds import FileKind
from organs.registry.progress import StepProgress
from organs.registry.quantizing.choice import chosen
from organs.registry.quantizing.estimates import options_of
from organs.registry.quantizing.groups import Group, allowed_dtypes, coarse_dtype, groups_of
from organs.registry.quantizing.rounding import rounding_errors
from organs.registry.quantizing.sensitivity import Key, Windows, Workshop, mean_divergence
from organs.registry.quantizing.tags import name_of_size, tag_of
from organs.registry.store import BlobStore
from organs.registry.transform.values import holds_weights
from organs.registry.validation.comparison import ModelFacts
from organs.registry.validation.intervals import interval_of
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.quick import operations_per_second
from organs.registry.validation.texts import CHAT, built_in_texts, fitted_texts
from organs.registry.validation.variants import WindowReading

WANTED = ("type", "size_bytes", "bits", "like")
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
TRIES = 4
"""Plans that are larger than the wanted size, before the search gives up."""
SEARCH_SHARE, MADE_SHARE = 0.8, 0.9
"""Which share of the work is done, about, when the types are chosen, and when the file is made."""

Dtypes = Mapping[str, DType]
"""Tensor types by the names of tensors; the others keep theirs."""


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
    search = _Search(catalog, blobs, settled, runtime, progress, contributor, source, row, facts)
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
    source: Parent
    row: ModelRow
    """Of the source."""
    facts: ModelFacts
    share: float = 0.0
    """The share of the work that is done."""
    seconds: float = 0.0
    """About how long the measurements of groups take."""

    def result(self, like_bytes: int | None) -> SizedModel:
        """Choose the tensor types, make the file, and measure it beside the plain mix."""
        tag, plain = tag_of(self.request, like_bytes), None
        if self.request.type is not None:
            dtypes = self._mix(self.request.type.upper())
            plan = self._plan(dtypes, tag)
        else:
            most_bytes = self._most_bytes(like_bytes)
            plain = self._nearest_mix(most_bytes)
            dtypes, plan = self._best(most_bytes, plain, tag)
        plan.check()
        self.share = SEARCH_SHARE
        made = make(self.catalog, self.blobs, plan, progress=self._making, contributor=self.contributor)
        self.share = MADE_SHARE
        kind = PLAIN if self.request.type is not None else CHOSEN
        sizes: list[tuple[str, str, Dtypes, int, str | None]] = [(kind, tag, dtypes, made.size_bytes, made.model)]
        if plain is not None:
            sizes.append((PLAIN, plain, self._mix(plain), self._size_bytes(self._mix(plain)), None))
        readings = self._compared([size[2] for size in sizes], self._windows(PROVED), "measuring", details=True)
        points = []
        with self.catalog.writing() as session:
            for (kind, label, _, size_bytes, model), windows in zip(sizes, readings, strict=True):
                reading = _size_reading(windows, 8 * size_bytes / max(1, self.row.parameters))
                points.append(
                    SizePoint(**asdict(reading), kind=kind, label=label, tag=label, size_bytes=size_bytes, model=model)
                )
                made_id = None if model is None else model_by_text(session, model).id
                texts = self._windows(PROVED).digest
                record_size(
                    session, self.row.id, made_id, kind, label, label, size_bytes, reading, texts, self.runtime.identity
                )
        return SizedModel(chimera=made, source=self.source.label, point=points[0], plain=(*points[1:], None)[0])

    # The choice

    def _best(self, most_bytes: int, plain: str | None, tag: str) -> tuple[Dtypes, Plan]:
        """Return the types of the best file of at most `most_bytes`, and its plan.

        That is one of a few choices, the one that differs least from the source on the windows of the search. Raises
        BadInput if no file is so small.
        """
        groups = self._measured_groups()
        stored = self._work.stored(self._windows(SEARCHED))
        measured = {key: one.divergence for key, one in stored.items() if one.divergence is not None}
        errors = self._errors(groups)
        room = most_bytes - self._fixed_bytes
        for _ in range(TRIES):
            candidates = [
                dtypes for known in (measured, {}) if (dtypes := self._choice(groups, errors, known, room)) is not None
            ]
            if not candidates:
                raise BadInput(self._below_floor(most_bytes))
            plans = [self._plan(dtypes, tag) for dtypes in candidates]
            excess = max(plan.size_bytes for plan in plans) - most_bytes
            if excess <= 0:
                break
            room -= excess
        else:
            raise BadInput(self._below_floor(most_bytes))
        if plain is not None:
            candidates.append(self._mix(plain))
            plans.append(self._plan(candidates[-1], tag))
        readings = self._compared(candidates, self._windows(SEARCHED), "comparing choice")
        divergences = [mean_divergence(windows) for windows in readings]
        best = min(range(len(candidates)), key=lambda number: _or_infinite(divergences[number]))
        return candidates[best], plans[best]

    def _choice(
        self, groups: Sequence[Group], errors: Mapping[str, Mapping[str, float]], known: Mapping[Key, float], room: int
    ) -> Dtypes | None:
        """Return the types with the smallest estimated divergence; None if not even the smallest fit."""
        found = chosen(options_of(groups, errors, known, self.source.header.alignment), room)
        return None if found is None else {name: option.dtype for name, option in found.items()}

    def _below_floor(self, most_bytes: int) -> str:
        dtypes = {part.name: allowed_dtypes(part)[0] for part in self._parts}
        coarse = {part.name: part.shape[0] for part in self._parts if dtypes[part.name].block_elements < 256}
        why = ""
        if coarse:
            rows = sorted(set(coarse.values()))
            why = (
                f": the rows of {plural_text(len(coarse), 'matrix', 'matrices')} have "
                f"{', '.join(map(str, rows[:3]))} values, and types below 4.5 bits need whole blocks of 256"
            )
        return (
            f"{size_text(most_bytes)} is too small for {self.source.label}: its smallest file has "
            f"{size_text(self._size_bytes(dtypes))}{why}"
        )

    def _errors(self, groups: Sequence[Group]) -> dict[str, dict[str, float]]:
        """Return the squared rounding errors of all organs in all types."""
        with self.catalog.reading() as session:
            rows = blobs_by_digest(session, {part.digest for part in self._parts})
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
        for groups in _partitions(self._parts):
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
        self.seconds = seconds * len(missing)
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

        whole = Group("all", tuple(self._parts))
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

    # Sizes and plans

    @cached_property
    def _parts(self) -> list[Part]:
        """The organs that are written in other types."""
        return [part for part in self.source.parts if is_quantised(part.spec) and holds_weights(part.dtype)]

    def _most_bytes(self, like_bytes: int | None) -> int:
        """Return the most bytes of the file that the request allows. Raises BadInput for an unknown mix."""
        request = self.request
        if request.size_bytes is not None:
            return request.size_bytes
        if request.bits is not None:
            return int(request.bits * self.row.parameters / 8)
        if like_bytes is not None:
            return like_bytes
        return self._size_bytes(self._mix((request.like or "").upper()))

    def _mix(self, name: str) -> Dtypes:
        """Return the types of a mix of llama.cpp. Raises BadInput for an unknown one."""
        if name not in MIXES:
            raise BadInput(f"{name!r} is not a mix of llama.cpp: one is {', '.join(PLAIN_MIXES)}")
        traits = traits_of(self.source.header, self.source.source)
        dtypes = mixed_dtypes(name, (part.spec for part in self.source.parts), traits)
        own = {part.name for part in self._parts}
        return {tensor: dtype for tensor, dtype in dtypes.items() if tensor in own}

    def _nearest_mix(self, most_bytes: int) -> str | None:
        """Return the largest mix that is not larger than `most_bytes`; None if there is none."""
        sizes = {name: self._size_bytes(self._mix(name)) for name in PLAIN_MIXES}
        return max((name for name, size in sizes.items() if size <= most_bytes), key=sizes.__getitem__, default=None)

    def _size_bytes(self, dtypes: Dtypes) -> int:
        """Return the size of a file with these types."""
        alignment = self.source.header.alignment
        return self._fixed_bytes + sum(
            padded(dtypes.get(part.name, part.dtype).size_bytes(part.spec.elements), alignment) for part in self._parts
        )

    @cached_property
    def _fixed_bytes(self) -> int:
        """The size of the header and of the organs that keep their types, as the plan of a mix has them."""
        dtypes = self._mix("Q8_0")
        alignment = self.source.header.alignment
        own = sum(
            padded(dtypes.get(part.name, part.dtype).size_bytes(part.spec.elements), alignment) for part in self._parts
        )
        return self._plan(dtypes, "Q8_0").size_bytes - own

    def _plan(self, dtypes: Dtypes, tag: str) -> Plan:
        name = self.request.name or str(name_of_size(self.row, tag, self.contributor))
        rule: object = rules_of(self._parts, dtypes)
        if self.request.type is not None:
            rule = {"as": self.request.type.upper()}
        values = {"base": self.source.label, "name": name, "quantize": rule}
        if self.request.imatrix is not None:
            values["imatrix"] = self.request.imatrix
        recipe = recipe_of_values(values, "recipe")
        with self.catalog.reading() as session:
            return plan_recipe(recipe, RegisteredLibrary(session, self.blobs))


PLAIN_MIXES = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_0", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0")
"""The mixes beside which a choice is measured."""


def rules_of(parts: Sequence[Part], dtypes: Dtypes) -> list[dict[str, object]]:
    """Return the rules of a recipe that give the organs their types: for each slot the usual one, then the others."""
    slots: dict[str, dict[str, list[int | None]]] = {}
    for part in parts:
        own = slots.setdefault(part.place.slot, {})
        own.setdefault(dtypes.get(part.name, part.dtype).name, []).append(part.place.block)
    rules: list[dict[str, object]] = []
    for slot, by_type in slots.items():
        usual, *others = sorted(by_type, key=lambda name: -len(by_type[name]))
        rules.append({"as": usual, "slot": slot})
        for name in others:
            blocks = [block for block in by_type[name] if block is not None]
            rules.append({"as": name, "slot": slot, "blocks": in_ranges(sorted(blocks))})
    return rules


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
