"""One thing that a contributor should know of what was sent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from organs.registry.catalog.vocabulary import shown_text
from organs.registry.errors import BadGguf, BadInput, BadName, BadSource, BadSplit, BadValue, TooManyTensors

REFUSE, WARN, NOTE = "refuse", "warn", "note"
SEVERITIES = (REFUSE, WARN, NOTE)
NONFINITE = "non-finite-weights"
MUST_ACKNOWLEDGE = frozenset((NONFINITE,))
"""Codes of findings without whose acknowledgement nothing is published."""
FINDINGS_MAX = 100
"""Of one submission: flags are many where a header is odd in every key."""
SENTENCE_MAX = 1000

_CODES: tuple[tuple[type[BadInput], str], ...] = (
    (BadGguf, "bad-gguf"),
    (BadSplit, "bad-split"),
    (BadSource, "bad-source"),
    (BadName, "bad-name"),
    (TooManyTensors, "too-many-tensors"),
    (BadValue, "bad-value"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """`severity` is one of SEVERITIES, `code` names the kind for programs, `sentence` is for people."""

    severity: str
    code: str
    sentence: str


def finding_of(error: BadInput) -> Finding:
    """Why something was refused."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "bad-input")
    return Finding(REFUSE, code, shown_text(str(error), SENTENCE_MAX))


def findings_json(findings: Iterable[Finding]) -> str:
    """As a submission keeps them: what refuses first, then warnings, then notes; each once, the first FINDINGS_MAX."""
    ordered = sorted(dict.fromkeys(findings), key=lambda one: SEVERITIES.index(one.severity))
    kept = [asdict(one) | {"sentence": shown_text(one.sentence, SENTENCE_MAX)} for one in ordered[:FINDINGS_MAX]]
    return json.dumps(kept, ensure_ascii=True)


def unacknowledged(findings: Iterable[Finding], acknowledged: Iterable[str]) -> list[Finding]:
    """Return the findings that must be acknowledged before anything is published, and are not."""
    codes = MUST_ACKNOWLEDGE.difference(acknowledged)
    return [one for one in findings if one.code in codes]
