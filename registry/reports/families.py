"""Which models share weights: a quantisation or a fine-tune is no second, independent observation. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from organs.registry.relatives.declared import folded
from organs.registry.relatives.groups import Groups


@dataclass(frozen=True, slots=True)
class Member:
    """A model as far as kinship shows: its id, its title, the names of the parents that it declares."""

    model_id: int
    title: str | None
    declared_parents: tuple[str, ...] = ()


def families_of(members: Sequence[Member], known_edges: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """The ids of `members` in groups, each in the order of `members`, as are the groups by their first member.

    Two are of one family when an edge joins them (ids of other models may stand between), when they have the same
    title, when they declare the same parent, or when one declares a parent whose name begins with the other's title
    (`org/Zoo A v1.0` with `Zoo A`: the longest title counts); case, accents and punctuation make no difference. When
    in doubt this joins: taking strangers for kin makes a statement about all models weaker, taking kin for strangers
    makes it wrong.
    """
    groups = Groups()
    titles = {title for member in members if (title := folded(member.title or ""))}
    for child, parent in known_edges:
        groups.join(child, parent)
    for member in members:
        if title := folded(member.title or ""):
            groups.join(member.model_id, title)
        for declared in filter(folded, member.declared_parents):
            groups.join(member.model_id, _title_in(declared, titles) or folded(declared))
    found: dict[Hashable, list[int]] = {}
    for member in members:
        found.setdefault(groups.leader(member.model_id), []).append(member.model_id)
    return [tuple(group) for group in found.values()]


def _title_in(declared: str, titles: set[str]) -> str | None:
    """The longest of `titles` that `declared` begins with, with or without its organisation."""
    words = folded(declared.partition("/")[2] or declared).split(" ")
    candidates = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((candidate for candidate in candidates if candidate in titles), None)
