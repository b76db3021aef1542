"""What composing comes to, place by place: this tensor of the base gives way to that one of a donor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from organs.registry.compose.parent import Parent, Part


@dataclass(frozen=True, slots=True)
class Replacement:
    """A place of the base that gets a donor's tensor."""

    before: Part
    """The base's."""
    after: Part
    """The donor's."""
    donor: Parent
    by_slot: bool = False
    """Whether the person named the slot; then a part of a group may be replaced."""

    @property
    def changes(self) -> bool:
        """Whether the two are not the very same organ."""
        return self.before.digest != self.after.digest or self.before.dtype != self.after.dtype or not self.fits

    @property
    def fits(self) -> bool:
        """Whether the shapes are equal; trailing lengths of 1 make no difference."""
        return effective_shape(self.before.shape) == effective_shape(self.after.shape)


def effective_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` as a loader compares it: without trailing lengths of 1."""
    end = len(shape)
    while end > 1 and shape[end - 1] == 1:
        end -= 1
    return shape[:end]


def by_donor(replacements: Iterable[Replacement]) -> list[tuple[Parent, list[Replacement]]]:
    """The replacements of each donor, donors in the order of their first one."""
    groups: dict[tuple[str, str], tuple[Parent, list[Replacement]]] = {}
    for one in replacements:
        groups.setdefault((one.donor.label, one.donor.header_digest), (one.donor, []))[1].append(one)
    return list(groups.values())
