"""Which organs of a result a step of purification means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from organs.registry.anatomy import OrganType
from organs.registry.compose.library import Library
from organs.registry.compose.parent import Parent, Part
from organs.registry.compose.recipe import Purification, Selection
from organs.registry.lineage import Slot

TYPE_DEFAULT = OrganType.ORGAN.value
"""What is purified where a step has no type, no slot and no query."""


def selected_for(step: Purification, parts: Mapping[str, tuple[Part, Parent]], library: Library) -> list[str]:
    """The names of the tensors that `step` purifies, among `parts`: each with the model that it comes from.

    A query is asked of those models: organs are found by what they measured before anything was done to them. Raises
    BadQuery.
    """
    selection = meant_by(step)
    selected = {name: found for name, found in parts.items() if selection.holds(found[0].place)}
    if not step.where:
        return list(selected)
    matching: dict[str, set[Slot]] = {}
    for _, parent in selected.values():
        if parent.label not in matching:
            found = library.organs(f"model:{parent.label} {step.where}")
            matching[parent.label] = {(organ.tower, organ.block, organ.slot) for organ in found}
    return [name for name, (part, parent) in selected.items() if part.slot in matching[parent.label]]


def meant_by(step: Purification) -> Selection:
    """The places that `step` means: the feed-forward organs, where it says neither type nor slot nor query."""
    selection = step.selection
    if selection.types or selection.slots or step.where:
        return selection
    return replace(selection, types=(TYPE_DEFAULT,))
