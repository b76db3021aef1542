"""Findings: refusals, warnings and remarks about a composition, about a model and its relatives, or about files."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from organs.registry.columns import CellKind, Column
from organs.registry.entities.base import Entity, Items, Text, Texts, Word, prepared


class Severity(StrEnum):
    """How serious a finding is."""

    REFUSE = "refuse"
    """The composition cannot be made."""
    WARN = "warn"
    """The composition can be made if its author accepts the finding by its code."""
    INFO = "info"


class Finding(Entity, kw_only=False):
    """A finding. `code` is for programs and for `accept`; `sentence` is for people.

    The members after `sentence` may be empty, because not every finding is about a field, models or tensors.
    """

    severity: Severity
    code: Annotated[Word, Meta(description="The kind of the finding.")]
    sentence: Text
    field: Annotated[
        Text, Meta(description="A field of the recipe, such as `grafts[1].blocks`, or a metadata key; may be empty.")
    ] = ""
    models: Annotated[
        Texts, Meta(description="The models that it is about. For a composition, the base comes first.")
    ] = ()
    organs: Annotated[Texts, Meta(description="Names of the tensors that it is about.")] = ()
    score: Annotated[float, Meta(description="The mean correlation of weights that it is based on.")] | None = None
    accepted: Annotated[bool, Meta(description="Whether the recipe accepts this warning.")] = False


Findings = Items[Finding]
FINDING_COLUMNS = (Column("severity"), Column("code"), Column("field"), Column("sentence", kind=CellKind.PROSE))

PLAN_CODES = frozenset({"measured-graft"})
"""Findings that are true when a plan is made. They are not stored with its chimera."""
WITHDRAWN_CODES = frozenset({"parent-yanked", "parent-removed"})
"""The codes of findings about parents, and about their parents, that were yanked or removed."""
BESIDE_FILE_CODES = WITHDRAWN_CODES | {"license-differs"}
"""The codes of findings on a model that its file cannot contain, because its bytes never change."""


ARCHITECTURE_DIFFERS = "architecture-differs"
"""The code of a refusal that makes all others unimportant."""


def in_order(findings: Iterable[Finding], accepted: Collection[str] = ()) -> Findings:
    """Return `findings`, refusals first, then warnings; different architectures before all others.

    Warnings with a code in `accepted` are marked as accepted.
    """
    order = list(Severity)
    marked = (
        msgspec.structs.replace(finding, accepted=finding.severity is Severity.WARN and finding.code in accepted)
        for finding in findings
    )
    return tuple(sorted(marked, key=lambda one: (order.index(one.severity), one.code != ARCHITECTURE_DIFFERS)))


NONFINITE = "non-finite-weights"
"""The code of findings on NaN and infinite weights, which must be accepted before a model is published."""


class FileFinding(Entity, kw_only=False):
    """A finding about the files of a model: what is wrong and where, and what mends it."""

    severity: Annotated[
        Severity,
        Meta(description="`refuse`: runtimes do not load the file. `warn`: they load it, but something is wrong."),
    ]
    code: Annotated[Word, Meta(description="The kind of the finding.")]
    sentence: Text
    mend: Annotated[Text, Meta(description="The command or the act that mends it; may be empty.")] = ""

    @property
    def text(self) -> str:
        """The sentence, with what mends it."""
        return f"{self.sentence}; {self.mend}" if self.mend else self.sentence


class _StoredFinding(Finding, kw_only=False):
    """A finding in the database. Findings of older versions have a base and a donor instead of `models`."""

    base: Text = ""
    donor: Text = ""


def stored_findings(text: str) -> list[Finding]:
    """Return the findings that are stored as the JSON `text`."""
    return [
        Finding(
            finding.severity,
            finding.code,
            finding.sentence,
            finding.field,
            finding.models or tuple(name for name in (finding.base, finding.donor) if name),
            finding.organs,
            finding.score,
        )
        for finding in msgspec.json.decode(text, type=prepared(list[_StoredFinding]))
    ]
