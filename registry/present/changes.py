"""What plans and chimeras have in common as plain values: findings, and changed organs in short."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean

from organs.registry.compose.findings import (
    Finding,
    Severity,
)
from organs.registry.present.values import Values

ACTS = ("grafted", "adapter", "purified")
"""What is done to an organ, in that order."""


def findings_values(findings: Iterable[Finding | Values], accepted: Collection[str]) -> list[Values]:
    """`findings`, as they are or as they were stored: refusals first, then warnings. `accepted` has codes."""
    values = [asdict(one) if isinstance(one, Finding) else dict(one) for one in findings]
    for one in values:
        one["organs"] = list(one["organs"])
        one["accepted"] = one["severity"] == Severity.WARN and one["code"] in accepted
    order = list(Severity)
    return sorted(values, key=lambda one: order.index(Severity(one["severity"])))


def changes_values(rows: Sequence[Values]) -> list[Values]:
    """`rows` of organs in short: one for each run of blocks in which the same is done to a type with one parent's.

    A mean θ is of the organs that have one.
    """
    groups: dict[tuple[object, ...], dict[int | None, list[Values]]] = {}
    for row in rows:
        key = (row["from"], row["type"], row["tower"], *row["acts"])
        groups.setdefault(key, {}).setdefault(row["block"], []).append(row)
    found = [_run(blocks, by_block) for by_block in groups.values() for blocks in _runs(list(by_block))]
    types = list(dict.fromkeys(row["type"] for row in rows))
    return sorted(found, key=lambda one: (types.index(one["type"]), _order(one["first_block"])))


def _runs(blocks: Sequence[int | None]) -> list[list[int | None]]:
    """`blocks` cut where one is not the next of the one before; what stands outside the blocks is a run of its own."""
    runs: list[list[int | None]] = [[None]] if None in blocks else []
    last: int | None = None
    for block in sorted(block for block in blocks if block is not None):
        if last is not None and block == last + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
        last = block
    return runs


def _order(block: int | None) -> int:
    return -1 if block is None else block


def _run(blocks: Sequence[int | None], by_block: Mapping[int | None, Sequence[Values]]) -> Values:
    rows = [row for block in blocks for row in by_block[block]]
    first = rows[0]
    return {
        **{key: first[key] for key in ("from", "acts", "type", "tower")},
        "first_block": blocks[0],
        "last_block": blocks[-1],
        "organs": len(rows),
        "theta_before": _mean(rows, "theta_before"),
        "theta": _mean(rows, "theta"),
        "size_bytes_before": sum(row["size_bytes_before"] for row in rows),
        "size_bytes": sum(row["size_bytes"] for row in rows),
    }


def _mean(rows: Iterable[Values], key: str) -> float | None:
    known = [row[key] for row in rows if row[key] is not None]
    return fmean(known) if known else None
