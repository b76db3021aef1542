"""Findings and changed organs in short."""

from __future__ import annotations

from typing import Any

from organs.registry.compose.findings import (
    Finding,
    Severity,
)
from organs.registry.present.changes import changes_values, findings_values


def row(block: int | None, label: str = "a/x@1", kind: str = "organ", acts: tuple[str, ...] = ("grafted",)) -> Any:
    before = None if block is None else 10.0 * block
    sizes = {"size_bytes_before": 4, "size_bytes": 2}
    return {
        "type": kind, "tower": "text", "block": block, "from": label, "acts": [*acts],
        "theta_before": before, "theta": 30.0, **sizes,
    }  # fmt: skip


def spans(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [(one["from"], one["first_block"], one["last_block"], one["organs"]) for one in changes_values(rows)]


def test_neighbouring_blocks_with_the_same_done_are_one_line() -> None:
    rows = [row(block) for block in (0, 0, 1, 2, 5, 6, 9)]
    assert spans(rows) == [("a/x@1", 0, 2, 4), ("a/x@1", 5, 6, 2), ("a/x@1", 9, 9, 1)]


def test_blocks_that_come_in_any_order_are_one_run() -> None:
    assert spans([row(2), row(0), row(1)]) == [("a/x@1", 0, 2, 3)]


def test_another_donor_type_or_act_is_another_line() -> None:
    rows = [row(0), row(1, "a/y@1"), row(2), row(3, acts=("grafted", "purified")), row(0, kind="norm")]
    assert spans(rows) == [
        ("a/x@1", 0, 0, 1), ("a/y@1", 1, 1, 1), ("a/x@1", 2, 2, 1), ("a/x@1", 3, 3, 1), ("a/x@1", 0, 0, 1),
    ]  # fmt: skip


def test_what_stands_outside_the_blocks_is_a_line_of_its_own_before_them() -> None:
    assert spans([row(0), row(None), row(1)]) == [("a/x@1", None, None, 1), ("a/x@1", 0, 1, 2)]


def test_means_are_of_the_organs_that_have_one_and_sizes_add_up() -> None:
    (change,) = changes_values([row(1), row(3) | {"block": 2, "theta": None}, row(2) | {"theta_before": None}])
    assert (change["theta_before"], change["theta"]) == (20.0, 30.0)
    assert (change["size_bytes_before"], change["size_bytes"]) == (12, 6)
    (unknown,) = changes_values([row(None) | {"theta": None}])
    assert (unknown["theta_before"], unknown["theta"]) == (None, None)


def test_findings_come_refusals_first_and_say_which_warnings_are_accepted() -> None:
    found = [
        Finding(Severity.INFO, "changed-share", "Some."),
        Finding(Severity.WARN, "other-scale", "Larger."),
        Finding(Severity.REFUSE, "width-differs", "Wider.", organs=("a", "b")),
        Finding(Severity.WARN, "unrelated-lineage", "Strangers."),
    ]
    values = findings_values(found, ["other-scale", "width-differs"])
    assert [(one["code"], one["accepted"]) for one in values] == [
        ("width-differs", False), ("other-scale", True), ("unrelated-lineage", False), ("changed-share", False),
    ]  # fmt: skip
    assert values[0]["organs"] == ["a", "b"]
    assert findings_values(values, ["other-scale", "width-differs"]) == values, "as they were stored"
