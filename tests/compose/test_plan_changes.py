"""Tests of the summary of findings and changed organs."""

from __future__ import annotations

import msgspec

from organs.registry.compose.plan import summarize_changes
from organs.registry.entities.base import encode
from organs.registry.entities.finding import Finding, Severity, in_order, stored_findings
from organs.registry.entities.plan import PlanPart


def row(
    block: int | None,
    label: str = "a/x@1",
    kind: str = "organ",
    acts: tuple[str, ...] = ("grafted",),
    **changes: object,
) -> PlanPart:
    part = PlanPart(
        name="",
        type=kind,
        tower="text",
        block=block,
        slot="",
        model=label,
        acts=acts,
        dtype_before="F32",
        dtype="F16",
        theta_before=None if block is None else 10.0 * block,
        theta=30.0,
        spectral_signal=None,
        size_bytes_before=4,
        size_bytes=2,
        digest=None,
    )
    return msgspec.structs.replace(part, **changes)


def spans(rows: list[PlanPart]) -> list[tuple[str, int | None, int | None, int]]:
    return [(change.model, change.first_block, change.last_block, change.organs) for change in summarize_changes(rows)]


def test_neighbouring_blocks_with_the_same_change_are_one_line() -> None:
    rows = [row(block) for block in (0, 0, 1, 2, 5, 6, 9)]
    assert spans(rows) == [("a/x@1", 0, 2, 4), ("a/x@1", 5, 6, 2), ("a/x@1", 9, 9, 1)]


def test_blocks_that_come_in_any_order_are_one_run() -> None:
    assert spans([row(2), row(0), row(1)]) == [("a/x@1", 0, 2, 3)]


def test_another_donor_type_or_action_is_another_line() -> None:
    rows = [row(0), row(1, "a/y@1"), row(2), row(3, acts=("grafted", "purified")), row(0, kind="norm")]
    assert spans(rows) == [
        ("a/x@1", 0, 0, 1), ("a/y@1", 1, 1, 1), ("a/x@1", 2, 2, 1), ("a/x@1", 3, 3, 1), ("a/x@1", 0, 0, 1),
    ]  # fmt: skip


def test_organs_outside_the_blocks_are_on_a_line_before_them() -> None:
    assert spans([row(0), row(None), row(1)]) == [("a/x@1", None, None, 1), ("a/x@1", 0, 1, 2)]


def test_means_are_of_the_organs_that_have_one_and_sizes_add_up() -> None:
    (change,) = summarize_changes([row(1), row(3, theta=None, theta_before=30.0), row(2, theta_before=None)])
    assert (change.theta_before, change.theta) == (20.0, 30.0)
    assert (change.size_bytes_before, change.size_bytes) == (12, 6)
    (unknown,) = summarize_changes([row(None, theta=None)])
    assert (unknown.theta_before, unknown.theta) == (None, None)


def test_findings_come_refusals_first_and_say_which_warnings_are_accepted() -> None:
    findings = [
        Finding(Severity.INFO, "changed-share", "Some."),
        Finding(Severity.WARN, "other-scale", "Larger."),
        Finding(Severity.REFUSE, "width-differs", "Wider.", organs=("a", "b")),
        Finding(Severity.WARN, "unrelated-lineage", "Strangers."),
    ]
    ordered = in_order(findings, ["other-scale", "width-differs"])
    assert [(finding.code, finding.accepted) for finding in ordered] == [
        ("width-differs", False), ("other-scale", True), ("unrelated-lineage", False), ("changed-share", False),
    ]  # fmt: skip
    assert ordered[0].organs == ("a", "b")
    stored = stored_findings(encode(findings).decode())
    assert in_order(stored, ["other-scale", "width-differs"]) == ordered


def test_findings_that_were_stored_with_a_base_and_a_donor_name_both_models() -> None:
    old = (
        '[{"severity": "warn", "code": "other-scale", "sentence": "Larger.", "field": "", "base": "a/x@1", '
        '"donor": "a/y@1", "organs": ["t"]}, {"severity": "info", "code": "changed-share", "sentence": "Some."}]'
    )
    first, second = stored_findings(old)
    assert (first.models, first.organs, first.accepted) == (("a/x@1", "a/y@1"), ("t",), False)
    assert (second.severity, second.models) == (Severity.INFO, ())
