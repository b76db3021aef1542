"""Findings where what a model declares and what its weights show disagree. Computed on reading, never stored; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from organs.registry.entities.finding import Finding, Severity
from organs.registry.lineage import CLOSE, Groups, Kinship
from organs.registry.relatives.declared import folded

NAMES_SHOWN = 3
SELF_RELATIONS = ("quantized", "relative")
"""What an edge is called that a model declares by its own name: another encoding, or the same weights unquantised."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A parent that a model declares, and what a comparison with it gave."""

    text: str
    relation: str
    model: str | None
    """The registered model that is meant."""
    kinship: Kinship | None = None
    """None where the two were not compared."""
    likeness: float | None = None
    organ_count: int = 0
    matrix_count: int = 0
    is_encoding: bool = False
    """Whether rounding to another dtype explains all differences."""


@dataclass(frozen=True, slots=True)
class DeclaredEdge:
    """What some model declares."""

    child_id: int
    text: str
    parent_id: int | None


def findings(kind: str, declared: Sequence[Declared], undeclared: Mapping[str, float], relatives: int) -> list[Finding]:
    """Return all findings of a model of `kind`.

    `undeclared` has the close relatives that no declaration explains, by name with their likeness; `relatives` counts
    the measured relatives.
    """
    found = [finding for one in declared for finding in _of_declared(kind, one)]
    if undeclared:
        found.append(_close_and_undeclared(undeclared))
    if kind == "adapter" and not declared:
        found.append(Finding(Severity.WARN, "no-base-named", "This adapter does not say which model it belongs to."))
    if kind == "model" and not declared and not relatives:
        sentence = "It declares no parent, and no registered model has similar weights at the same places."
        found.append(Finding(Severity.INFO, "no-known-relatives", sentence))
    return found


def withdrawal_sentence(name: str, state: str, day: str | None, reason: str | None) -> tuple[str, str]:
    """Return the code and the sentence of the finding about a parent in the state `yanked` or `removed`."""
    when = f" on {day}" if day else ""
    return f"parent-{state}", f"The parent {name} was {state}{when}: {(reason or 'no reason was given').rstrip('.')}."


def withdrawn(name: str, state: str, day: str | None, reason: str | None) -> Finding:
    """Return the finding that a parent was yanked or removed after the model was made, or before."""
    code, sentence = withdrawal_sentence(name, state, day, reason)
    return Finding(Severity.WARN, code, sentence, models=(name,))


def unexplained(
    model_id: int, close: Collection[int], declared: Iterable[DeclaredEdge], titles: Mapping[int, str | None]
) -> set[int]:
    """Return the models of `close` that no chain of declarations connects with `model_id`.

    A chain goes over parents and children, over parents of one name that are not registered, and over equal titles.
    """
    groups = Groups()
    for edge in declared:
        if folded(edge.text):
            groups.join(edge.child_id, ("text", folded(edge.text)))
        if edge.parent_id is not None:
            groups.join(edge.child_id, edge.parent_id)
    for one, title in titles.items():
        if folded(title or ""):
            groups.join(one, ("title", folded(title or "")))
    return {other for other in close if groups.leader(other) != groups.leader(model_id)}


def _of_declared(kind: str, one: Declared) -> list[Finding]:
    if one.model is None:
        sentence = f"It names {one.text!r} as its parent, which is not registered here: that cannot be checked."
        if one.relation in SELF_RELATIONS:
            sentence = f"It names itself, {one.text!r}, as quantisations often do; the original is not registered here."
        return [Finding(Severity.INFO, "parent-not-registered", sentence)]
    if kind != "model" or one.kinship is None or one.is_encoding or one.kinship is Kinship.CLOSE:
        return []
    if one.kinship is Kinship.INCOMPARABLE:
        sentence = f"It names {one.model} as its parent, but no two matrices of the two have one shape at one place."
        return [Finding(Severity.INFO, "parent-not-comparable", sentence, models=(one.model,))]
    alike = f"{one.likeness:.2f} over {one.organ_count} of {one.matrix_count} matrices"
    if one.kinship is Kinship.UNRELATED:
        sentence = (
            f"It names {one.model} as its parent, but their weights at the same places are not related: "
            f"the mean correlation is {alike}."
        )
        return [Finding(Severity.WARN, "parent-unrelated", sentence, models=(one.model,), score=one.likeness)]
    sentence = (
        f"It names {one.model} as its parent; their weights at the same places are only loosely alike: the mean "
        f"correlation is {alike}, where quantisations down to 4 bits and light fine-tunes have {CLOSE} and more."
    )
    severity = Severity.WARN if one.relation == "quantized" else Severity.INFO
    return [Finding(severity, "parent-loosely-related", sentence, models=(one.model,), score=one.likeness)]


def _close_and_undeclared(undeclared: Mapping[str, float]) -> Finding:
    names = sorted(undeclared, key=lambda name: (-undeclared[name], name))
    listed = ", ".join(f"{name} ({undeclared[name]:.3f})" for name in names[:NAMES_SHOWN])
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    sentence = (
        f"Almost identical to {listed}{more}, but neither model names the other, or a common parent, as its base."
    )
    return Finding(
        Severity.WARN, "close-relative-not-declared", sentence, models=tuple(names), score=undeclared[names[0]]
    )
