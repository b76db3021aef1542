"""What a composition will change: how many organs, how many bytes, which dtypes, and the mean θ of each type."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from organs.registry.anatomy import OrganType
from organs.registry.compose.finding import Finding, Severity
from organs.registry.compose.parent import Parent, Part
from organs.registry.compose.phrases import counted
from organs.registry.compose.replacement import Replacement

_ORGANS = ("organ", "organs")


def changes(base: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """Information about all replacements together; nothing where there are none.

    `changed-share`, `size-changes` (where the size does), `theta-changes` (one a type), and `dtype-differs`.
    """
    changed = [one for one in replacements if one.changes]
    if not replacements:
        return
    yield _share(base, changed)
    before, after = (sum(part.size_bytes for part in parts) for parts in _both(changed))
    if before != after:
        total = sum(part.size_bytes for part in base.parts)
        sentence = f"The tensors will take {total - before + after:,} bytes where those of {base.label} take {total:,}."
        yield _info("size-changes", sentence, base, ())
    dtypes = Counter((one.before.dtype.name, one.after.dtype.name) for one in changed)
    other = {pair: count for pair, count in dtypes.items() if pair[0] != pair[1]}
    if other:
        listed = ", ".join(f"{count} from {ours} to {theirs}" for (ours, theirs), count in sorted(other.items()))
        names = [one.before.name for one in changed if one.before.dtype != one.after.dtype]
        yield _info("dtype-differs", f"{counted(len(names), *_ORGANS)} will change dtype: {listed}.", base, names)
    yield from _thetas(base, changed)


def already_equal(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """`already-equal`: organs of one donor that are the base's own, byte for byte."""
    names = [one.before.name for one in replacements if not one.changes]
    if names:
        sentence = (
            f"{counted(len(names), *_ORGANS)} of {donor.label} would change nothing: {base.label} has the very same."
        )
        yield Finding(Severity.INFO, "already-equal", sentence, base=base.label, donor=donor.label, organs=tuple(names))


def _share(base: Parent, changed: Sequence[Replacement]) -> Finding:
    elements = math.fsum(part.spec.elements for part in base.parts)
    share = math.fsum(one.before.spec.elements for one in changed) / elements if elements else 0.0
    of_all = f"{len(changed)} of {len(base.parts)} organs"
    sentence = f"{of_all} of {base.label} will change, {share:.1%} of its parameters."
    return _info("changed-share", sentence, base, [one.before.name for one in changed])


def _thetas(base: Parent, changed: Sequence[Replacement]) -> Iterator[Finding]:
    """The mean θ of all organs of each type that is touched, before and after, where the two figures differ."""
    after = {one.before.name: one.after for one in changed}
    for kind in OrganType:
        if all(one.before.place.type is not kind for one in changed):
            continue
        parts = [part for part in base.parts if part.place.type is kind]
        ours, theirs = _mean_theta(parts), _mean_theta(after.get(part.name, part) for part in parts)
        if ours is not None and theirs is not None and f"{ours:.1f}" != f"{theirs:.1f}":
            names = [one.before.name for one in changed if one.before.place.type is kind]
            sentence = f"The mean θ of type {kind.value} will be {theirs:.1f}°, where {base.label} has {ours:.1f}°."
            yield Finding(Severity.INFO, "theta-changes", sentence, kind.value, base.label, organs=tuple(names))


def _mean_theta(parts: Iterable[Part]) -> float | None:
    thetas = [part.theta for part in parts if part.theta is not None]
    return math.fsum(thetas) / len(thetas) if thetas else None


def _both(changed: Sequence[Replacement]) -> tuple[list[Part], list[Part]]:
    return [one.before for one in changed], [one.after for one in changed]


def _info(code: str, sentence: str, base: Parent, organs: Sequence[str]) -> Finding:
    return Finding(Severity.INFO, code, sentence, base=base.label, organs=tuple(organs))
