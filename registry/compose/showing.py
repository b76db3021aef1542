"""A plan as it is shown where it was made: in a line, and as HTML for notebooks."""

from __future__ import annotations

from organs.registry import notebook
from organs.registry.amounts import size_text, theta_text
from organs.registry.compose.phrases import counted
from organs.registry.compose.plan import Plan, PlannedPart

_FINDINGS = ("", "code", "field", "what")
_PARTS = ("tensor", "block", "from", "by", "θ before", "θ of what comes", "dtype", "size")
_NUMBERS = ("block", "θ before", "θ of what comes", "size")


def headline(plan: Plan) -> str:
    """What a plan comes to, in a line."""
    changed = sum(bool(part.acts) for part in plan.parts)
    said = [
        f"{changed} of {counted(len(plan.parts), 'tensor', 'tensors')} of {plan.base.label}",
        size_text(plan.size_bytes),
        *([counted(len(plan.refusals), "refusal", "refusals")] if plan.refusals else []),
        *([counted(len(plan.unaccepted), "warning to accept", "warnings to accept")] if plan.unaccepted else []),
        *(["can be made"] if plan.can_be_made else []),
    ]
    return ", ".join(said)


def plan_html(plan: Plan) -> str:
    """The prediction, all findings, and the parts that are not the base's own."""
    findings = [(one.severity.value, one.code, one.field, one.sentence) for one in plan.findings]
    changed = [_row(plan, part) for part in plan.parts if part.acts]
    return notebook.document(
        notebook.heading(headline(plan)),
        notebook.paragraph(plan.prediction.sentence()),
        notebook.table(_FINDINGS, findings) if findings else "",
        notebook.table(_PARTS, changed, _NUMBERS) if changed else "",
    )


def _row(plan: Plan, part: PlannedPart) -> tuple[notebook.Cell, ...]:
    donors = [part.donor or plan.base, *part.adapters]
    return (
        part.before.name,
        part.before.place.block,
        ", ".join(dict.fromkeys(donor.label for donor in donors)),
        ", ".join(part.acts),
        theta_text(part.before.theta),
        theta_text(None if part.computation is not None else part.source.theta),  # known when it has been computed
        part.spec.dtype.name,
        size_text(part.spec.size_bytes),
    )
