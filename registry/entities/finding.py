"""Findings: what is worth knowing about a composition, or about a model and its relatives."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from organs.registry.entities.base import Entity, Text, Texts, Word


class Severity(StrEnum):
    """How serious a finding is."""

    REFUSE = "refuse"
    """It cannot be made like this."""
    WARN = "warn"
    """It can be made by a person who accepts the finding by its code."""
    INFO = "info"


class Finding(Entity, frozen=True):
    """One thing that was found: `code` is for programs and for `accept`, `sentence` for people.

    Members after the sentence may be empty: not every finding is about a field, models or organs.
    """

    severity: Severity
    code: Annotated[Word, Meta(description="The kind of the finding.")]
    sentence: Text
    field: Annotated[
        Text, Meta(description="A field of the recipe, such as `grafts[1].blocks`, or a metadata key; may be empty.")
    ] = ""
    models: Annotated[Texts, Meta(description="The models that it is about; of a composition the base first.")] = ()
    organs: Annotated[Texts, Meta(description="Names of the tensors that it is about.")] = ()
    score: Annotated[float, Meta(description="A mean correlation of weights that it rests on.")] | None = None
    accepted: Annotated[bool, Meta(description="Whether the recipe accepts this warning.")] = False


Findings = tuple[Finding, ...]


def in_order(findings: Iterable[Finding], accepted: Collection[str] = ()) -> Findings:
    """Return `findings`, refusals first, then warnings; warnings whose codes are in `accepted` are marked so."""
    order = list(Severity)
    marked = (
        msgspec.structs.replace(one, accepted=one.severity is Severity.WARN and one.code in accepted)
        for one in findings
    )
    return tuple(sorted(marked, key=lambda one: order.index(one.severity)))


class _StoredFinding(Finding, frozen=True):
    """A finding in the database: before there was `models`, it had the base and the donor."""

    base: Text = ""
    donor: Text = ""


def stored_findings(text: str) -> list[Finding]:
    """Return the findings that are stored as the JSON `text`."""
    return [
        Finding(
            one.severity,
            one.code,
            one.sentence,
            one.field,
            one.models or tuple(name for name in (one.base, one.donor) if name),
            one.organs,
            one.score,
        )
        for one in msgspec.json.decode(text, type=list[_StoredFinding])
    ]
