"""What a registry elsewhere says that a recipe comes to, as values: organs, findings, prediction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from organs.registry.anatomy import OrganType, Place, Tower
from organs.registry.client.shape import (
    Each,
    Maybe,
    Members,
    Values,
    check,
    digest,
    flag,
    number,
    one_of,
    text,
    whole,
    word,
)
from organs.registry.compose.findings import (
    Finding,
    Severity,
)
from organs.registry.compose.prediction import Effect, Group, Prediction
from organs.registry.errors import BadReply

_CHANGED: Members = {
    "from": text,
    "acts": Each(text),
    "type": text,
    "tower": text,
    "theta_before": Maybe(number),
    "theta": Maybe(number),
    "size_bytes_before": whole,
    "size_bytes": whole,
}
_PART: Members = {
    **_CHANGED,
    "name": text,
    "block": Maybe(whole),
    "slot": text,
    "dtype_before": text,
    "dtype": text,
    "spectral_signal": Maybe(number),
}
CHANGE: Members = {**_CHANGED, "first_block": Maybe(whole), "last_block": Maybe(whole), "organs": whole}
_FINDING: Members = {
    "severity": one_of(*(one.value for one in Severity)),
    "code": word,
    "sentence": text,
    "field": text,
    "base": text,
    "donor": text,
    "organs": Each(text),
    "accepted": flag,
}
_GROUP: Members = {
    "type": text,
    "tower": text,
    "block": Maybe(whole),
    "organs": whole,
    "uncounted": whole,
    "similarity": Maybe(number),
    "scale": number,
    "distortion": number,
    "grafted_similarity": Maybe(number),
    "grafted_scale": number,
}
_NUMBERS = (
    *("loss", "recovered", "similarity", "change", "theta_before", "theta_after"),
    *("spectral_before", "spectral_after", "share"),
)
PREDICTION: Members = {
    **dict.fromkeys(_NUMBERS, Maybe(number)),
    "provisional": flag,
    "uncounted": whole,
    "compared": whole,
    "sentence": text,
    "effects": Each({**_GROUP, "loss": number}),
}
FINDINGS = Each(_FINDING)
PARENTS = Each({"model": text, "license": Maybe(text), "acts": Each(text)})
PLAN: Members = {
    "name": text,
    "file": text,
    "size_bytes": whole,
    "base": text,
    "base_size_bytes": whole,
    "parents": PARENTS,
    "license": text,
    "prediction": PREDICTION,
    "can_be_made": flag,
    "unaccepted": Each(word),
    "lock_id": Maybe(digest),
    "to_compute": whole,
    "organs": whole,
    "changed": whole,
    "changes": Each(CHANGE),
    "parts": Each(_PART),
}
PLANNED: Members = {"can_be_made": flag, "findings": FINDINGS, "plan": Maybe(PLAN)}


@dataclass(frozen=True, slots=True)
class OrganBefore:
    """The base's organ at a place."""

    name: str
    place: Place
    dtype: str
    theta: float | None
    """Degrees."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Donor:
    """Whom an organ comes from."""

    label: str
    """`namespace/name@version`."""


@dataclass(frozen=True, slots=True)
class PlannedOrgan:
    """A tensor of the result."""

    before: OrganBefore
    donor: Donor | None
    """None for the base's own."""
    acts: tuple[str, ...]
    """What was done at this place; nothing where the base's own stays."""
    dtype: str
    theta: float | None
    """Degrees; None where it is still to be computed, as for the next."""
    spectral_signal: float | None
    size_bytes: int

    def __repr__(self) -> str:
        whose = f" from {self.donor.label}" if self.donor is not None else ""
        return f"<{self.before.name}: {', '.join(self.acts) or 'kept'}{whose}>"


def planned_organs(parts: Iterable[Values]) -> tuple[PlannedOrgan, ...]:
    """Checked `parts` of a plan, in order."""
    return tuple(_organ(part) for part in parts)


def findings(listed: Iterable[Values]) -> tuple[Finding, ...]:
    """Checked findings, refusals first."""
    return tuple(_finding(one) for one in listed)


def prediction(values: Values) -> Prediction:
    """A checked prediction."""
    return Prediction(
        **{name: values[name] for name in (*_NUMBERS, "provisional", "uncounted", "compared")},
        effects=tuple(Effect(_group(one), one["loss"]) for one in values["effects"]),
    )


def check_planned(values: Values) -> None:
    """Raise BadReply for what is no answer to a recipe."""
    check(values, PLANNED, "plan")


def _organ(part: Values) -> PlannedOrgan:
    acts = tuple(part["acts"])
    place = Place(_type(part["type"]), _tower(part["tower"]), part["block"], part["slot"])
    return PlannedOrgan(
        before=OrganBefore(part["name"], place, part["dtype_before"], part["theta_before"], part["size_bytes_before"]),
        donor=Donor(part["from"]) if "grafted" in acts else None,
        acts=acts,
        dtype=part["dtype"],
        theta=part["theta"],
        spectral_signal=part["spectral_signal"],
        size_bytes=part["size_bytes"],
    )


def _finding(values: Values) -> Finding:
    kept = {field.name: values[field.name] for field in fields(Finding)}
    return Finding(**kept | {"severity": Severity(values["severity"]), "organs": tuple(values["organs"])})


def _group(values: Values) -> Group:
    kept = {name: values[name] for name in _GROUP}
    return Group(**kept | {"type": _type(values["type"])})


def _type(word: str) -> OrganType:
    try:
        return OrganType(word)
    except ValueError as error:
        raise _strange(word, "type of organ") from error


def _tower(word: str) -> Tower:
    try:
        return Tower(word)
    except ValueError as error:
        raise _strange(word, "tower") from error


def _strange(word: str, what: str) -> BadReply:
    return BadReply(f"the registry speaks of the {what} {word[:40]!r}, which is not known here")
