"""Low-rank adapters (LoRA): whether one fits a base, and which products it adds to which tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from organs.registry.anatomy import LORA_SUFFIXES, TOKEN_EMBEDDING, adapted_tensor, place_of
from organs.registry.compose.findings import listed
from organs.registry.compose.fitting import odd_weights
from organs.registry.compose.models import (
    Parent,
    Part,
)
from organs.registry.compose.plan import (
    Addition,
    Ingredient,
)
from organs.registry.entities.finding import Finding, Severity
from organs.registry.gguf.quants import can_dequantize
from organs.registry.gguf.types import ValueType
from organs.registry.transform import misfit

TYPE_KEY = "adapter.type"
ALPHA_KEY = "adapter.lora.alpha"
PARENTS_MAX = 64
"""Declared parents that are looked at."""


@dataclass(frozen=True, slots=True)
class FactorPair:
    """The two factors for one tensor of the base, as far as they are there."""

    target: str
    a: Part | None
    b: Part | None


def check_adapter(base: Parent, adapter: Parent) -> list[Finding]:
    """All that is to be said of merging `adapter` into `base`.

    Refuses `not-an-adapter`, `adapter-not-lora`, `architecture-differs`, `adapter-misfit`, `non-finite-weights` and
    `dtype-refused` (values that cannot be read here); warns of `adapter-base-differs`; reports `adapter-rank`.
    Licences are checked elsewhere.
    """
    pairs = factor_pairs(adapter)
    if not pairs and adapter.header.text("general.type") != "adapter":
        return [_not_an_adapter(base, adapter)]
    found = [*_of_header(base, adapter), *_of_pairs(base, adapter, pairs)]
    found += [*_of_dtypes(base, adapter, pairs), *_of_base_name(base, adapter)]
    odd = odd_weights(adapter, adapter.parts, base=base, donor=adapter)
    found += [msgspec.structs.replace(one, severity=Severity.REFUSE) for one in odd]  # they cannot be computed with
    ranks = sorted({pair.b.shape[0] for pair in pairs if pair.b is not None})
    if ranks:
        alpha = alpha_of(adapter)
        listed_ranks = listed([str(rank) for rank in ranks])
        sentence = f"{adapter.label} changes {len(pairs)} tensors at rank {listed_ranks}, with an alpha of {alpha:g}."
        targets = [pair.target for pair in pairs]
        found.append(_finding(Severity.INFO, "adapter-rank", sentence, base, adapter, targets, ALPHA_KEY))
    return found


def factor_pairs(adapter: Parent) -> list[FactorPair]:
    """The factors in `adapter` by the tensor that they change, in the order of the file."""
    parts: dict[str, dict[str, Part]] = {}
    for part in adapter.parts:
        target = adapted_tensor(part.name)
        if target is not None:
            parts.setdefault(target, {})[part.name.removeprefix(target)] = part
    first, second = LORA_SUFFIXES
    return [FactorPair(target, halves.get(first), halves.get(second)) for target, halves in parts.items()]


def alpha_of(adapter: Parent) -> float:
    """Alpha as the header says it; 0, which means a factor of 1, where it says none or no number."""
    field = adapter.header.field(ALPHA_KEY)
    value = field.value if field is not None and field.type is not ValueType.BOOL else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if math.isfinite(value) else 0.0


def _not_an_adapter(base: Parent, adapter: Parent) -> Finding:
    sentence = f"{adapter.label} is no adapter: its general.type is {_said(adapter.header.text('general.type'))}."
    return _finding(Severity.REFUSE, "not-an-adapter", sentence, base, adapter, (), "general.type")


def _of_header(base: Parent, adapter: Parent) -> Iterator[Finding]:
    if adapter.header.text("general.type") != "adapter":
        yield _not_an_adapter(base, adapter)
    method = adapter.header.text(TYPE_KEY)
    if method != "lora":
        sentence = (
            f"{adapter.label} is kept as it is, but cannot be merged: its {TYPE_KEY} is {_said(method)}, not lora."
        )
        yield _finding(Severity.REFUSE, "adapter-not-lora", sentence, base, adapter, (), TYPE_KEY)
    ours, theirs = base.header.architecture, adapter.header.architecture
    if ours is None or ours != theirs:
        sentence = f"{adapter.label} is for the architecture {_said(theirs)}, {base.label} is of {_said(ours)}."
        yield _finding(Severity.REFUSE, "architecture-differs", sentence, base, adapter, (), "general.architecture")
    field = adapter.header.field(ALPHA_KEY)
    if field is not None and isinstance(field.value, float) and not math.isfinite(field.value):
        sentence = f"{adapter.label} has an alpha of {field.value}: nothing can be scaled by that."
        yield _finding(Severity.REFUSE, "adapter-misfit", sentence, base, adapter, (), ALPHA_KEY)


def _of_pairs(base: Parent, adapter: Parent, pairs: Sequence[FactorPair]) -> Iterator[Finding]:
    strange = [part.name for part in adapter.parts if adapted_tensor(part.name) is None]
    if strange or not pairs:
        what = f"has {listed(strange)}, which would be lost" if strange else "holds no factors"
        sentence = f"{adapter.label} {what}: an adapter is made of pairs of {' and '.join(LORA_SUFFIXES)}."
        yield _misfit(sentence, base, adapter, strange)
    halves = [pair.target for pair in pairs if pair.a is None or pair.b is None]
    if halves:
        yield _misfit(f"{adapter.label} has one factor of two for {listed(halves)}.", base, adapter, halves)
    absent = [pair.target for pair in pairs if pair.target not in base.by_name]
    if absent:
        sentence = f"{adapter.label} changes {listed(absent)}, and {base.label} has no such tensor."
        yield _misfit(sentence, base, adapter, absent)
    reasons = {pair.target: reason for pair in pairs if (reason := _shape_reason(base, pair)) is not None}
    if reasons:
        first = next(iter(reasons))
        others = f", nor {len(reasons) - 1} more" if len(reasons) > 1 else ""
        sentence = f"{adapter.label} does not fit {base.label} at {first}{others}: {reasons[first]}."
        yield _misfit(sentence, base, adapter, list(reasons))


def _shape_reason(base: Parent, pair: FactorPair) -> str | None:
    target = base.by_name.get(pair.target)
    if target is None or pair.a is None or pair.b is None:
        return None
    return misfit(target.shape, pair.a.shape, pair.b.shape, target.place == TOKEN_EMBEDDING)


def _of_dtypes(base: Parent, adapter: Parent, pairs: Sequence[FactorPair]) -> Iterator[Finding]:
    targets = [base.by_name.get(pair.target) for pair in pairs]
    parts = [part for part in (*targets, *adapter.parts) if part is not None]
    closed = [part for part in parts if not can_dequantize(part.dtype)]
    if closed:
        dtypes = " and ".join(sorted({part.dtype.name for part in closed}))
        names = [part.name for part in closed]
        sentence = f"No values can be read here of {dtypes}, and {listed(names)} would have to be added up."
        yield _finding(Severity.REFUSE, "dtype-refused", sentence, base, adapter, names)


def _of_base_name(base: Parent, adapter: Parent) -> Iterator[Finding]:
    """A warning where the adapter names its base and the base goes by another name, and names no such parent itself."""
    meant = _declared(adapter)
    own = {name for name in (base.header.text("general.name"), *_declared(base)) if name is not None}
    if meant and own and not any(_is_same(one, other) for one in meant for other in own):
        sentence = (
            f"{adapter.label} says that it was made for {listed(meant)}; {base.label} calls itself "
            f"{base.header.text('general.name') or 'nothing'} and names no such parent."
        )
        field = "general.base_model.0.name"
        yield _finding(Severity.WARN, "adapter-base-differs", sentence, base, adapter, (), field)


def _declared(parent: Parent) -> list[str]:
    names = (parent.header.text(f"general.base_model.{number}.name") for number in range(PARENTS_MAX))
    return [name for name in names if name]


def _is_same(first: str, second: str) -> bool:
    """Whether two names mean one model, as far as letters and digits tell: one may say more than the other."""
    one, other = ("".join(char for char in name.casefold() if char.isalnum()) for name in (first, second))
    return bool(one and other) and (one in other or other in one)


def _said(value: str | None) -> str:
    return "not said" if value is None else repr(value[:80])


def _misfit(sentence: str, base: Parent, adapter: Parent, organs: Sequence[str]) -> Finding:
    return _finding(Severity.REFUSE, "adapter-misfit", sentence, base, adapter, organs)


def _finding(
    severity: Severity,
    code: str,
    sentence: str,
    base: Parent,
    adapter: Parent,
    organs: Sequence[str] = (),
    field: str = "",
) -> Finding:
    return Finding(severity, code, sentence, field, (base.label, adapter.label), tuple(organs))


def additions_of(adapter: Parent, scale: float) -> dict[str, Addition]:
    """The additions of `adapter`, `scale` times, by the name of the tensor that each is added to.

    What is incomplete is left out: compatibility has refused it.
    """
    alpha = alpha_of(adapter)
    return {
        pair.target: Addition(_ingredient(pair.a), _ingredient(pair.b), alpha, scale)
        for pair in factor_pairs(adapter)
        if pair.a is not None and pair.b is not None
    }


def is_token_embedding(name: str) -> bool:
    """Whether the tensor `name` turns tokens into vectors: its adapters are stored the other way round."""
    return place_of(name) == TOKEN_EMBEDDING


def _ingredient(part: Part) -> Ingredient:
    return Ingredient(part.digest, part.dtype, part.shape, part.name)
