"""Findings on a submission: their severities, codes and stored form."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from organs.registry.catalog.vocabulary import shown_text
from organs.registry.entities.base import encode
from organs.registry.entities.finding import NONFINITE
from organs.registry.entities.submission import SubmissionFinding
from organs.registry.errors import OrganError
from organs.registry.upload_limits import FINDING_MAX_LENGTH, FINDINGS_MAX

REFUSE, WARN, NOTE = "refuse", "warn", "note"
SEVERITIES = (REFUSE, WARN, NOTE)
MUST_ACCEPT = frozenset((NONFINITE,))
"""Codes of findings that must be accepted before publication."""


def finding_of(error: OrganError) -> SubmissionFinding:
    """Return the finding of a refusal."""
    return SubmissionFinding(REFUSE, error.code, shown_text(str(error), FINDING_MAX_LENGTH))


def findings_json(findings: Iterable[SubmissionFinding]) -> str:
    """Return findings as JSON: refusals, then warnings, then notes; each once, at most FINDINGS_MAX."""
    ordered = sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity))
    bounded = [replace(item, sentence=shown_text(item.sentence, FINDING_MAX_LENGTH)) for item in ordered[:FINDINGS_MAX]]
    return encode(bounded).decode()


def unaccepted(findings: Iterable[SubmissionFinding], accepted: Iterable[str]) -> list[SubmissionFinding]:
    """Return the findings that must still be accepted before publication."""
    codes = MUST_ACCEPT.difference(accepted)
    return [finding for finding in findings if finding.code in codes]
