"""The tensor types of the matrices of a result: which rule of a recipe says what, and what prevents it.

It is the last step of a plan. Organs of any origin are encoded by it, and those that have the type keep their bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from organs.registry.amounts import names_text, plural_text
from organs.registry.anatomy import Place, WeightRole, place_of, role_of
from organs.registry.compose.layers import Layers
from organs.registry.compose.metadata import IMATRIX_GROUP
from organs.registry.compose.parents import Parent
from organs.registry.compose.plan import PlannedImportances, PlannedPart
from organs.registry.compose.recipe import MetadataValue, Recipe, TypeRule
from organs.registry.entities.finding import Finding, Severity
from organs.registry.gguf import KeyValue, TensorSpec, ValueType, read_array
from organs.registry.gguf.importance import COUNTS, SUMS
from organs.registry.gguf.mixes import (
    MIXES,
    Mix,
    MixTraits,
    fallback_dtype,
    is_quantised,
    mixed_dtypes,
    traits_of,
    wants_importances,
)
from organs.registry.gguf.quants import can_encode, can_weigh, has_encoder
from organs.registry.gguf.types import FILE_TYPE_KEY, UNQUANTISED, DType, dtype_by_name
from organs.registry.transform.compute import ROW_MAX_ELEMENTS
from organs.registry.transform.values import WRITTEN_AS_THEY_ARE, holds_weights

QUANTIZE_FIELD, IMATRIX_FIELD = "quantize", "imatrix"
FILE_KEY, DATASET_KEY, ENTRIES_KEY, CHUNKS_KEY = (
    f"{IMATRIX_GROUP}{name}" for name in ("file", "dataset", "entries_count", "chunks_count")
)
"""The keys that llama.cpp writes for the importance matrix of a file."""
DATASETS_KEY, CHUNK_COUNT_KEY = "imatrix.datasets", "imatrix.chunk_count"
"""Keys of an importance matrix."""
OVERRIDE_MAX_LENGTH = 127
"""The characters of a value that llama.cpp keeps."""
DATASETS_MAX = 1000
UNWEIGHED = frozenset({*UNQUANTISED, "Q8_0"})
"""Types whose values do not depend on importances."""


@dataclass(frozen=True, slots=True)
class ChosenType:
    """The type of a matrix, and the rule that chose it."""

    dtype: DType
    wanted: DType
    """That of the rule, which rows that are no whole blocks cannot have."""
    at: str
    """The field of the rule."""
    mix: Mix | None


def rule_fields(recipe: Recipe) -> dict[str, TypeRule]:
    """Return the rules of a recipe by their fields."""
    rules = recipe.quantize
    return {
        QUANTIZE_FIELD if len(rules) == 1 else f"{QUANTIZE_FIELD}[{number}]": rule for number, rule in enumerate(rules)
    }


def chosen_types(
    rules: Mapping[str, TypeRule], places: Mapping[str, Place], specs: Sequence[TensorSpec], traits: MixTraits
) -> dict[str, ChosenType]:
    """Return the type of each matrix that a rule selects, by name; the last rule for a matrix counts.

    `rules` are by their fields of the recipe; `specs` are all tensors of the result, and `places` theirs by name.
    """
    mixed: dict[str, dict[str, DType]] = {}
    found: dict[str, ChosenType] = {}
    matrices = [spec for spec in specs if is_quantised(spec)]
    for at, rule in rules.items():
        mix = rule.mix
        if mix is not None and mix.name not in mixed:
            mixed[mix.name] = mixed_dtypes(mix.name, specs, traits)
        for spec in matrices:
            if rule.holds(places[spec.name]):
                wanted = mix.dtype if mix is not None else dtype_by_name(rule.dtype)
                dtype = mixed[mix.name][spec.name] if mix is not None else fallback_dtype(wanted, spec.shape[0])
                found[spec.name] = ChosenType(dtype, wanted, at, mix)
    return found


def result_traits(
    base: Parent, layers: Layers | None, hyperparameters: Mapping[str, MetadataValue], *, by_importances: bool
) -> MixTraits:
    """Return what a mix depends on besides the tensors of a result, whose steps change some hyperparameters."""
    traits = replace(traits_of(base.header, base.source), by_importances=by_importances)
    if layers is not None:
        traits = replace(traits, blocks=len(layers.blocks))
    experts = hyperparameters.get(f"{traits.architecture}.expert_count")
    return replace(traits, experts=experts) if isinstance(experts, int) else traits


def importances_of(matrix: Parent, name: str, shape: tuple[int, ...]) -> tuple[PlannedImportances | None, str]:
    """Return the importances of a weight, called `name` in the matrix; None with the reason if they do not fit it.

    Without a reason the matrix has none of this weight.
    """
    sums, counts = (matrix.by_name.get(f"{name}{ending}") for ending in (SUMS, COUNTS))
    if sums is None:
        return None, ""
    if counts is None:
        return None, f"it has no counts for the sums of {name}"
    needed, own = shape[0] * math.prod(shape[2:]), math.prod(sums.shape)
    by_count = math.prod(counts.shape)
    if {sums.dtype.name, counts.dtype.name} != {"F32"} or own % by_count:
        return None, f"the sums of {name} cannot be read"
    if own != needed:
        return None, f"it has {own:,} importances of {name}, which has {needed:,} columns"
    return PlannedImportances(sums, counts), ""


def encoder_finding(name: str, chosen: ChosenType, *, weighed: bool) -> tuple[str, str] | None:
    """Return the code of a refusal and why no encoder writes a matrix in its type; None if one does."""
    dtype = chosen.dtype
    if not weighed and wants_importances(name, dtype, chosen.mix.name if chosen.mix else None):
        reason = f"{dtype.name} needs an importance matrix: name one with imatrix (organ quantize --imatrix)"
        return "importances-needed", reason
    if can_weigh(dtype) if weighed else dtype.name in WRITTEN_AS_THEY_ARE or can_encode(dtype):
        return None
    if not has_encoder():
        what = f"{dtype.name}{' by an importance matrix' if weighed else ''}"
        return "encoder-missing", f"{what} is written by an encoder that is not installed: pip install '.[quantize]'"
    return "dtype-refused", f"no encoder writes {dtype.name}"


def refused_source(part: PlannedPart) -> str | None:
    """Return why a matrix cannot be quantised at all; None if it can."""
    if not holds_weights(part.source.dtype):
        return f"no weights can be computed from tensor type {part.source.dtype.name}"
    if part.source.shape[0] > ROW_MAX_ELEMENTS:
        return f"rows of more than {ROW_MAX_ELEMENTS:,} values are not quantised here"
    return None


def needs_no_importances(name: str) -> bool:
    """Return whether importances of another shape are left out for a weight: llama.cpp does so for the embedding."""
    return role_of(place_of(name)) is WeightRole.EMBEDDING


def whole_mix(recipe: Recipe) -> Mix | None:
    """Return the mix of the last rule that selects everything; None if it names a type, or no rule does."""
    whole = [rule for rule in recipe.quantize if not (rule.types or rule.slots or rule.blocks)]
    return whole[-1].mix if whole else None


def header_entries(recipe: Recipe, importances: Parent | None) -> Iterator[KeyValue]:
    """Yield the entries of the header that llama.cpp writes: the number of the mix, and those on the matrix."""
    mix = whole_mix(recipe)
    if mix is not None:
        yield KeyValue(FILE_TYPE_KEY, ValueType.UINT32, mix.file_type)
    if importances is None:
        return
    yield KeyValue(FILE_KEY, ValueType.STRING, importances.label[:OVERRIDE_MAX_LENGTH])
    field = importances.header.field(DATASETS_KEY)
    if field is not None and field.element_type is ValueType.STRING and 0 < field.count <= DATASETS_MAX:
        first = next(iter(read_array(importances.source, field)))
        if isinstance(first, bytes):
            yield KeyValue(DATASET_KEY, ValueType.STRING, first.decode("utf-8", "replace")[:OVERRIDE_MAX_LENGTH])
    entries = sum(part.name.endswith(SUMS) for part in importances.parts)
    yield KeyValue(ENTRIES_KEY, ValueType.UINT32, entries)
    chunks = importances.header.integer(CHUNK_COUNT_KEY)
    if chunks is not None and 0 < chunks < 2**32:
        yield KeyValue(CHUNKS_KEY, ValueType.UINT32, chunks)


def type_findings(base: Parent, parts: Sequence[PlannedPart], chosen: Mapping[str, ChosenType]) -> Iterator[Finding]:
    """Yield what the types of quantised organs mean: rows that are no whole blocks, and organs rounded twice."""
    done = {part.before.name: part for part in parts if part.computation is not None and part.computation.quantised}
    odd: dict[tuple[int, str, int, str], list[str]] = {}
    for name in done:
        choice = chosen[name]
        row, own = done[name].spec.shape[0], choice.dtype
        if row % choice.wanted.block_elements and choice.wanted != own:
            odd.setdefault((choice.wanted.block_elements, own.name, row, choice.at), []).append(name)
    for (blocks, other, row, at), names in odd.items():
        sentence = (
            f"{plural_text(len(names), 'matrix becomes', 'matrices become')} {other}: rows of {row:,} values cannot be "
            f"divided into the blocks of {blocks} of the type that is meant for them."
        )
        yield Finding(Severity.INFO, "rows-not-whole", sentence, at, organs=tuple(names))
    twice: dict[tuple[str, str], list[str]] = {}
    for name, part in done.items():
        computation = part.computation
        assert computation is not None
        is_rounded = computation.dtype.block_elements > 1 and computation.source.dtype != computation.dtype
        if computation.source.dtype.block_elements > 1 and is_rounded:
            label = (part.donor or base).label
            twice.setdefault((label, computation.source.dtype.name), []).append(name)
    for (label, before), names in twice.items():
        fields = {chosen[name].at for name in names}
        at = fields.pop() if len(fields) == 1 else QUANTIZE_FIELD
        matrices = plural_text(len(names), "matrix", "matrices")
        sentence = (
            f"{matrices} of {label}, {before} already, would be rounded a second time: {names_text(names)}. "
            "Quantise the model in F16, BF16 or F32 from which it was made: name that one, or register it and run "
            f"organ prove {label}, after which recipes compute with it."
        )
        yield Finding(Severity.WARN, "rounded-twice", sentence, at, (label,), tuple(names))


def types_text(parts: Sequence[PlannedPart], recipe: Recipe, label: str) -> str:
    """Return what was quantised of the model `label`, as a sentence; empty if nothing was."""
    done = [part for part in parts if part.computation is not None and part.computation.quantised]
    if not done:
        return ""
    mix = whole_mix(recipe)
    counts: dict[str, int] = {}
    for part in done:
        counts[part.spec.dtype.name] = counts.get(part.spec.dtype.name, 0) + 1
    types = ", ".join(f"{count} in {dtype}" for dtype, count in sorted(counts.items(), key=lambda item: -item[1]))
    as_mix = f" as {mix.name}" if mix is not None and mix.name in MIXES else ""
    return f"Quantised from {label}{as_mix}: {types}."
