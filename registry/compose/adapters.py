"""Whether an adapter (LoRA, DoRA, whole tensors) fits a base, and what it adds to or puts in the place of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from organs.registry.amounts import names_text, plural_text
from organs.registry.anatomy import (
    COMPANIONS,
    LORA_SUFFIXES,
    MAGNITUDE_SUFFIX,
    OUTPUT_MATRIX,
    TOKEN_EMBEDDING,
    adapted_tensor,
    companion_slot,
    place_of,
)
from organs.registry.compose.parents import Parent, Part, odd_weights, refusal
from organs.registry.compose.plan import Addition
from organs.registry.entities.finding import ARCHITECTURE_DIFFERS, Finding, Severity
from organs.registry.gguf import Header
from organs.registry.gguf.quants import can_dequantize
from organs.registry.gguf.types import ValueType
from organs.registry.kinds import ADAPTER_TYPE_KEY, ALPHA_KEY, INVOCATION_KEY, LORA_TYPE, MERGED_TYPE, FileKind
from organs.registry.transform import magnitude_misfit, misfit, whole_misfit

PARENTS_MAX = 64
"""Limit of the declared parents that are read."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The two factors for one tensor of the base, with the magnitudes of a DoRA; None for a missing one.

    `whole` is a tensor that takes the place of that of the base.
    """

    a: Part | None = None
    b: Part | None = None
    magnitude: Part | None = None
    whole: Part | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it is a pair of factors or a whole tensor."""
        return (self.a is not None and self.b is not None) != (self.whole is not None)

    def misfit(self, own: Part) -> str | None:
        """Return why it cannot be merged into `own`, a tensor of the base; None if it can, or if it is incomplete."""
        if self.whole is not None:
            return whole_misfit(own.shape, self.whole.shape)
        if self.a is None or self.b is None:
            return None
        is_embedding = own.place == TOKEN_EMBEDDING
        reason = misfit(own.shape, self.a.shape, self.b.shape, is_embedding)
        if reason is None and self.magnitude is not None:
            reason = magnitude_misfit(own.shape, self.magnitude.shape, is_embedding)
        return reason


def check_adapter(base: Parent, adapter: Parent) -> list[Finding]:
    """Return the findings on merging `adapter` into `base`.

    Refuses `not-an-adapter`, `adapter-not-lora`, `architecture-differs`, `adapter-misfit`, `non-finite-weights` and
    `dtype-refused` (values that cannot be decoded); warns of `adapter-base-differs`; reports `adapter-rank`.
    Licenses are not checked here.
    """
    factors, models = _factors_of(adapter), (base, adapter)
    findings: list[Finding] = []
    if adapter.kind != FileKind.ADAPTER:
        kind = _quoted(adapter.header.text("general.type"))
        sentence = f"{adapter.label} is not an adapter: its general.type is {kind}."
        findings.append(refusal("not-an-adapter", sentence, models, (), "general.type"))
        if not factors:
            return findings
    findings += [*_of_header(base, adapter), *_of_factors(base, adapter, factors)]
    targets = [base.by_name.get(target) for target in factors]
    undecodable = [part for part in (*targets, *adapter.parts) if part is not None and not can_dequantize(part.dtype)]
    if undecodable:
        dtypes = " and ".join(sorted({part.dtype.name for part in undecodable}))
        names = [part.name for part in undecodable]
        sentence = f"{names_text(names)} cannot be merged: values of {dtypes} cannot be decoded here."
        findings.append(refusal("dtype-refused", sentence, models, names))
    declared = _declared(adapter)
    own = {name for name in (base.header.text("general.name"), *_declared(base)) if name is not None}
    labels = (base.label, adapter.label)
    if declared and own and not any(_is_same(first, second) for first in declared for second in own):
        sentence = (
            f"{adapter.label} names {names_text(declared)} as its base; the name of {base.label} is "
            f"{base.header.text('general.name') or 'not stated'}, and it declares no such parent."
        )
        field = "general.base_model.0.name"
        findings.append(Finding(Severity.WARN, "adapter-base-differs", sentence, field, labels))
    # The sum of weights that are NaN or infinite with an organ has no meaning.
    odd = odd_weights(adapter, adapter.parts, models)
    findings += [msgspec.structs.replace(item, severity=Severity.REFUSE) for item in odd]
    ranks = sorted({pair.b.shape[0] for pair in factors.values() if pair.b is not None})
    whole = [target for target, pair in factors.items() if pair.whole is not None]
    if ranks or whole:
        at_ranks = f"at rank {names_text([str(rank) for rank in ranks])}, with an alpha of {alpha_of(adapter.header):g}"
        changes = [f"changes {len(factors) - len(whole)} tensors {at_ranks}"] if ranks else []
        changes += [f"has {plural_text(len(whole), 'whole tensor', 'whole tensors')}"] if whole else []
        sentence = f"{adapter.label} {' and '.join(changes)}."
        findings.append(Finding(Severity.INFO, "adapter-rank", sentence, ALPHA_KEY, labels, tuple(factors)))
    return findings


def additions_of(adapter: Parent, scale: float) -> dict[str, Addition]:
    """Return the additions of `adapter`, `scale` times, by the name of the tensor that each is added to.

    Incomplete pairs are left out: the findings refuse them.
    """
    alpha = alpha_of(adapter.header)
    return {
        target: Addition(adapter, first, pair.b, alpha, scale, pair.magnitude)
        for target, pair in _factors_of(adapter).items()
        if pair.is_complete and (first := pair.whole or pair.a) is not None
    }


def _factors_of(adapter: Parent) -> dict[str, Factors]:
    """Return the factors in `adapter` by the tensor that they change, in the order of the file.

    Tensors that are neither factors nor magnitudes are whole ones, if the type of the adapter allows them.
    """
    parts: dict[str, dict[str, Part]] = {}
    for part in adapter.parts:
        target = adapted_tensor(part.name)
        if target is not None or has_whole_tensors(adapter):
            own = parts.setdefault(part.name if target is None else target, {})
            own["" if target is None else part.name.removeprefix(target)] = part
    suffixes = (*LORA_SUFFIXES, MAGNITUDE_SUFFIX, "")
    return {target: Factors(*(halves.get(suffix) for suffix in suffixes)) for target, halves in parts.items()}


def has_whole_tensors(adapter: Parent) -> bool:
    """Return whether the type of an adapter allows magnitudes and whole tensors, which no runtime can apply."""
    return adapter.header.text(ADAPTER_TYPE_KEY) == MERGED_TYPE


def alpha_of(header: Header) -> float:
    """Return the alpha in the header; 0 if the header has no finite number. With 0, the factor is 1."""
    field = header.field(ALPHA_KEY)
    value = field.value if field is not None and field.type is not ValueType.BOOL else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if math.isfinite(value) else 0.0


def _of_header(base: Parent, adapter: Parent) -> Iterator[Finding]:
    header, models = adapter.header, (base, adapter)
    method = header.text(ADAPTER_TYPE_KEY)
    if method not in (LORA_TYPE, MERGED_TYPE):
        stated = f"its {ADAPTER_TYPE_KEY} is {_quoted(method)}, not '{LORA_TYPE}'"
        sentence = f"{adapter.label} is registered but cannot be merged: {stated}."
        yield refusal("adapter-not-lora", sentence, models, (), ADAPTER_TYPE_KEY)
    invocation = header.field(INVOCATION_KEY)
    if invocation is not None and invocation.is_array and invocation.count:
        sentence = (
            f"{adapter.label} is an activated LoRA ({INVOCATION_KEY}): it works only after these tokens, and a merged "
            "one would always work. Load it in the runtime, as an adapter of its base."
        )
        yield refusal("adapter-not-lora", sentence, models, (), INVOCATION_KEY)
    ours, theirs = base.header.architecture, header.architecture
    if ours is None or ours != theirs:
        sentence = f"{adapter.label} is for the architecture {_quoted(theirs)}; {base.label} has {_quoted(ours)}."
        yield refusal(ARCHITECTURE_DIFFERS, sentence, models, (), "general.architecture")
    field = header.field(ALPHA_KEY)
    if field is not None and isinstance(field.value, float) and not math.isfinite(field.value):
        sentence = f"{adapter.label} has an alpha of {field.value}: it must be a finite number."
        yield refusal("adapter-misfit", sentence, models, (), ALPHA_KEY)


def _of_factors(base: Parent, adapter: Parent, factors: Mapping[str, Factors]) -> Iterator[Finding]:
    """Yield a refusal for each reason why factors cannot be added to the tensors of `base`."""

    def misfits(sentence: str, tensors: list[str]) -> Finding:
        return refusal("adapter-misfit", sentence, (base, adapter), tensors)

    unpaired = [part.name for part in adapter.parts if adapted_tensor(part.name) is None]
    unpaired = [] if has_whole_tensors(adapter) else unpaired
    if unpaired or not factors:
        problem = f"has {names_text(unpaired)}, which cannot be merged" if unpaired else "has no factors"
        pairs = " and ".join(LORA_SUFFIXES)
        yield misfits(f"{adapter.label} {problem}: an adapter consists of pairs of {pairs}.", unpaired)
    halves = [target for target, pair in factors.items() if (pair.a is None) != (pair.b is None)]
    if halves:
        yield misfits(f"{adapter.label} has only one of two factors for {names_text(halves)}.", halves)
    unclear = [target for target, pair in factors.items() if not pair.is_complete and target not in halves]
    if unclear:
        problem = "has magnitudes without factors, or a whole tensor beside factors, for"
        yield misfits(f"{adapter.label} {problem} {names_text(unclear)}.", unclear)
    ignored = [target for target, pair in factors.items() if pair.magnitude and not has_whole_tensors(adapter)]
    if ignored:
        stated = f"{names_text(ignored)}: it is a DoRA, but its {ADAPTER_TYPE_KEY} is not '{MERGED_TYPE}'"
        sentence = f"{adapter.label} has magnitudes for {stated}. Convert the folder in which it was trained again."
        yield misfits(sentence, ignored)
    is_tied = not any(part.place == OUTPUT_MATRIX for part in base.parts)
    tied = [target for target in factors if is_tied and place_of(target) in (TOKEN_EMBEDDING, OUTPUT_MATRIX)]
    if tied:
        yield misfits(f"{adapter.label} changes {names_text(tied)}, but {base.label} uses one matrix for both.", tied)
    # Weights that are stored divided by a scale: what an adapter adds is not divided.
    slots = {target: base.by_name[target].slot for target in factors if target in base.by_name}
    for companion in (companion for companion in COMPANIONS if companion.is_factor):
        scaled = [target for target, slot in slots.items() if companion_slot(slot, companion) in base.by_slot]
        if scaled:
            sentence = (
                f"{base.label} stores {names_text(scaled)} divided by a scale ({companion.suffix}): no adapter can be "
                "merged there. Merge it into the model from which this one was quantised."
            )
            yield misfits(sentence, scaled)
    absent = [target for target in factors if target not in base.by_name]
    if absent:
        yield misfits(f"{adapter.label} changes {names_text(absent)}, but {base.label} has no such tensor.", absent)
    reasons = {}
    for target, pair in factors.items():
        own = base.by_name.get(target)
        reason = None if own is None else pair.misfit(own)
        if reason is not None:
            reasons[target] = reason
    if reasons:
        first = next(iter(reasons))
        others = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        sentence = f"{adapter.label} does not fit {base.label} at {first}{others}: {reasons[first]}."
        yield misfits(sentence, list(reasons))


def _declared(parent: Parent) -> list[str]:
    names = (parent.header.text(f"general.base_model.{number}.name") for number in range(PARENTS_MAX))
    return [name for name in names if name]


def _is_same(first: str, second: str) -> bool:
    """Return whether two names mean the same model: the letters and digits of one contain those of the other."""
    letters = ("".join(filter(str.isalnum, name.casefold())) for name in (first, second))
    short, long = sorted(letters, key=len)
    return bool(short) and short in long


def _quoted(value: str | None) -> str:
    return "not stated" if value is None else repr(value[:80])
