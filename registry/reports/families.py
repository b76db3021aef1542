"""Which models share weights: a quantisation or a fine-tune is no second, independent observation. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass


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
    (`org/Zoo A v1.0` with `Zoo A`: the longest title counts). When in doubt this joins: taking strangers for kin makes
    a statement about all models weaker, taking kin for strangers makes it wrong.
    """
    groups = _Groups()
    titles = {title for member in members if (title := _folded(member.title))}
    for child, parent in known_edges:
        groups.join(child, parent)
    for member in members:
        if title := _folded(member.title):
            groups.join(member.model_id, title)
        for declared in filter(None, map(_folded, member.declared_parents)):
            groups.join(member.model_id, _title_in(declared, titles) or declared)
    found: dict[Hashable, list[int]] = {}
    for member in members:
        found.setdefault(groups.root(member.model_id), []).append(member.model_id)
    return [tuple(group) for group in found.values()]


class _Groups:
    """Disjoint sets; whatever was never joined is a set of its own."""

    def __init__(self) -> None:
        self._parents: dict[Hashable, Hashable] = {}

    def root(self, item: Hashable) -> Hashable:
        parents = self._parents
        while (parent := parents.setdefault(item, item)) != item:
            parents[item] = item = parents[parent]  # each look shortens the way for the next one
        return item

    def join(self, first: Hashable, second: Hashable) -> None:
        self._parents[self.root(first)] = self.root(second)


def _folded(text: str | None) -> str:
    return " ".join((text or "").casefold().split())


def _title_in(declared: str, titles: set[str]) -> str | None:
    """The longest of `titles` that `declared` begins with, with or without its organisation."""
    name = declared.partition("/")[2] or declared
    words = name.split(" ")
    candidates = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((candidate for candidate in candidates if candidate in titles), None)
