"""A plan as plain values: sizes, findings, prediction, and what becomes of every organ that changes."""

from __future__ import annotations

from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.compose.build import chimera_name
from organs.registry.compose.models import Parent
from organs.registry.compose.plan import Plan, PlannedPart
from organs.registry.gguf import padded
from organs.registry.present.changes import ACTS, changes_values, findings_values
from organs.registry.present.values import Values

__all__ = ["ACTS", "changes_values", "findings_values", "part_values", "plan_values"]


def plan_values(plan: Plan, *, every_part: bool = False, contributor: str = LOCAL) -> Values:
    """What `plan` comes to when `contributor` makes it; of the organs only those that change, unless all are wanted.

    `lock_id` is None where organs are still to be computed, and for what is refused. Room on a disk is for whoever
    writes the file to look at.
    """
    shown = [part for part in plan.parts if every_part or part.acts]
    changed = [part_values(part, plan.base) for part in plan.parts if part.acts]
    return {
        "name": str(chimera_name(plan.recipe, plan.stem, contributor)),
        "file": plan.file_name,
        "size_bytes": plan.size_bytes,
        "base": plan.base.label,
        "base_size_bytes": _base_size_bytes(plan.base),
        "parents": _parents(plan),
        "license": plan.licence,
        "findings": findings_values(plan.findings, plan.recipe.accept),
        "prediction": plan.prediction.values(),
        "can_be_made": plan.can_be_made,
        "unaccepted": sorted({finding.code for finding in plan.unaccepted}),
        "lock_id": None if plan.computations or plan.refusals else plan.lock().id,
        "to_compute": len(plan.computations),
        "organs": len(plan.parts),
        "changed": len(changed),
        "changes": changes_values(changed),
        "parts": [part_values(part, plan.base) for part in shown],
    }


def part_values(part: PlannedPart, base: Parent) -> Values:
    """An organ of the result, beside the one of the base that gives way to it.

    θ and the spectral signal of what is still to be computed are None.
    """
    before, spec = part.before, part.spec
    made = part.source if part.computation is None else None
    return {
        "name": before.name,
        "type": before.place.type.value,
        "tower": before.place.tower.value,
        "block": before.place.block,
        "slot": before.place.slot,
        "from": (part.donor or base).label,
        "acts": list(part.acts),
        "dtype_before": before.dtype.name,
        "dtype": spec.dtype.name,
        "theta_before": before.theta,
        "theta": None if made is None else made.theta,
        "spectral_signal": None if made is None else made.spectral_signal,
        "size_bytes_before": before.size_bytes,
        "size_bytes": spec.size_bytes,
    }


def _base_size_bytes(base: Parent) -> int:
    """Of one file with all of its tensors."""
    return base.header.data_offset + sum(padded(part.size_bytes, base.header.alignment) for part in base.parts)


def _parents(plan: Plan) -> list[Values]:
    acts: dict[str, set[str]] = {parent.label: set() for parent in plan.parents}
    for part in plan.parts:
        acts[(part.donor or plan.base).label].update(part.acts)
        for adapter in part.adapters:
            acts[adapter.label].add("adapter")
    return [
        {"model": parent.label, "license": parent.license, "acts": [act for act in ACTS if act in acts[parent.label]]}
        for parent in plan.parents
    ]
