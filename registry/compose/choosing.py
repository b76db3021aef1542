"""Grafts to replacements: which tensor of the base gives way to which tensor of which donor.

A query's grafts are chosen by group: the organs of one type in one block are taken from one model, never from several.
Models come in the order of the query, organ by organ, and the first that has brought the whole group wins: the one
whose weakest organ ranks best.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from organs.registry.anatomy import Place
from organs.registry.catalog.search import FoundOrgan, parse_query
from organs.registry.catalog.search.parse import nearest
from organs.registry.compose.finding import Finding, Severity
from organs.registry.compose.library import Library
from organs.registry.compose.parent import Parent, Part
from organs.registry.compose.phrases import runs
from organs.registry.compose.recipe import Graft, Recipe, Selection, matches_slot
from organs.registry.compose.replacement import Replacement
from organs.registry.errors import OrganError, StoreError, TooCostly
from organs.registry.lineage import Slot

LOOKED_AT_MAX = 20_000
"""Organs that a query's graft looks at, the best first."""
NAMES_SHOWN_MAX = 5
SLOTS_COMPARED_MAX = 1000
"""Tensors of the base whose slots are compared with one that it has not."""

GroupKey = tuple[str, int | None, str]
"""Tower, block and type: what is taken from one model."""


@dataclass(slots=True)
class Chosen:
    """What the grafts of a recipe come to."""

    replacements: list[Replacement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def refuse(self, code: str, sentence: str, at: str, donor: str = "", organs: Sequence[str] = ()) -> None:
        """Note why it cannot be made like this."""
        self.findings.append(Finding(Severity.REFUSE, code, sentence, at, donor=donor, organs=tuple(organs)))

    def tell(self, code: str, sentence: str, at: str, donor: str = "", organs: Sequence[str] = ()) -> None:
        """Note something to be known."""
        self.findings.append(Finding(Severity.INFO, code, sentence, at, donor=donor, organs=tuple(organs)))


def choose(base: Parent, recipe: Recipe, library: Library) -> Chosen:
    """The replacements of all grafts of `recipe`, in their order, and what stands in the way of some.

    Raises StoreError for stored bytes that cannot be read; what the recipe asks wrongly is a finding.
    """
    chosen = Chosen()
    taken: dict[Slot, str] = {}
    for number, graft in enumerate(recipe.grafts):
        at = f"grafts[{number}]"
        if refused_blocks(base, graft.selection, at, chosen):
            continue
        places = [part for part in base.parts if graft.selection.holds(part.place)]
        if not places:
            chosen.refuse("nothing-selected", nothing_selected(base, graft.selection), at)
            continue
        found = _of_donor(base, graft, places, at, library, chosen) if graft.donor is not None else ()
        found = found or (_of_query(base, graft, places, at, library, chosen) if graft.where is not None else ())
        _take(found, taken, at, chosen)
    return chosen


def _take(found: Sequence[Replacement], taken: dict[Slot, str], at: str, chosen: Chosen) -> None:
    twice = [one for one in found if one.before.slot in taken]
    if twice:
        others = ", ".join(sorted({taken[one.before.slot] for one in twice}))
        names = [one.before.name for one in twice]
        sentence = f"{at} and {others} both replace {shown_names(names)}: say which is meant"
        chosen.refuse("overlapping-grafts", sentence, at, organs=names)
    for one in found:
        if one.before.slot not in taken:
            taken[one.before.slot] = at
            chosen.replacements.append(one)


def _of_donor(
    base: Parent, graft: Graft, places: Sequence[Part], at: str, library: Library, chosen: Chosen
) -> list[Replacement]:
    assert graft.donor is not None
    donor = parent_or_finding(library, graft.donor, "unknown-donor", f"{at}.from", chosen)
    if donor is None:
        return []
    if donor.header_digest == base.header_digest and donor.parts == base.parts:
        chosen.refuse(
            "own-donor", f"{donor.label} is the base itself: it has nothing to give to itself", at, donor.label
        )
        return []
    found = [
        Replacement(part, donor.by_slot[part.slot], donor, by_slot=bool(graft.selection.slots))
        for part in places
        if part.slot in donor.by_slot
    ]
    if not found:
        sentence = f"{donor.label} has none of the {len(places)} organs that are selected in {base.label}"
        chosen.refuse("nothing-to-graft", sentence, at, donor.label)
        return []
    _tell_of_missing(base, donor, graft.selection, places, at, chosen)
    return found


def _tell_of_missing(
    base: Parent, donor: Parent, selection: Selection, places: Sequence[Part], at: str, chosen: Chosen
) -> None:
    """What the one has and the other has not, where both are selected: organs of a partial donor may be missing."""
    surplus = [part.name for part in donor.parts if selection.holds(part.place) and part.slot not in base.by_slot]
    if surplus:
        sentence = f"{base.label} has no place for {shown_names(surplus)} of {donor.label}"
        chosen.refuse("slot-absent", sentence, at, donor.label, surplus)
    missing = [part.name for part in places if part.slot not in donor.by_slot]
    if missing and donor.complete:
        sentence = f"{donor.label} has no {shown_names(missing)} for what is selected in {base.label}"
        chosen.refuse("organ-absent", sentence, at, donor.label, missing)
    elif missing:
        sentence = f"{shown_names(missing)} stay those of {base.label}: {donor.label} brings only some organs"
        chosen.tell("kept-organs", sentence, at, donor.label, missing)


def _of_query(
    base: Parent, graft: Graft, places: Sequence[Part], at: str, library: Library, chosen: Chosen
) -> list[Replacement]:
    groups: dict[GroupKey, dict[Slot, Part]] = {}
    for part in places:
        groups.setdefault(_group(part.place), {})[part.slot] = part
    try:
        query = query_of(base, graft)
        found, winners = _winners(_wanted(groups, query), library.organs(query), library.in_common(base))
        replacements = list(_replacements(base, graft, groups, winners, library))
    except (StoreError, TooCostly):
        raise
    except OrganError as error:
        chosen.refuse("bad-query", str(error), f"{at}.where")
        return []
    if not replacements:
        what = f"finds {len(found)} organs, but never all of a group" if found else "finds nothing that fits"
        chosen.refuse("empty-query", f"{graft.where!r} {what} in {base.label}", f"{at}.where")
        return []
    asked = {organ.type for organ in found}  # types that the query leaves out are no losses
    wanted = {key: group for key, group in groups.items() if key[2] in asked}
    _tell_of_losses(graft, wanted, winners, len(found), at, chosen)
    return replacements


def query_of(base: Parent, graft: Graft) -> str:
    """The query of a graft in full: what it asks, what fits the base, what its selection leaves."""
    selection = graft.selection
    terms = [graft.where or "", f"fits:{base.label}"]
    terms += [f"type:{','.join(selection.types)}"] if selection.types else []
    terms += [f"slot:{','.join(selection.slots)}"] if selection.slots else []
    blocks = ",".join(f"{first}-{last}" for first, last in selection.blocks)
    terms += [f"block:{blocks}"] if blocks else []
    terms += [f"sort:{graft.sort}"] if graft.sort else []
    return " ".join(term for term in terms if term)


def _wanted(groups: Mapping[GroupKey, dict[Slot, Part]], query: str) -> dict[GroupKey, dict[Slot, Part]]:
    """Return those of `groups` that the types in `query` allow."""
    types = [choice for choice in parse_query(query).choices("type") if not choice.negated]
    return {key: group for key, group in groups.items() if all(key[2] in choice.values for choice in types)}


def _winners(
    groups: Mapping[GroupKey, dict[Slot, Part]], organs: Iterator[FoundOrgan], common: Mapping[Slot, Collection[str]]
) -> tuple[list[FoundOrgan], dict[GroupKey, str]]:
    """Return the organs that were looked at, and for each group the first model that has brought all of it.

    No more organs are looked at than decide all groups, and at most LOOKED_AT_MAX. What a model has in `common` with
    the base it need not bring: no query finds that.
    """
    found: list[FoundOrgan] = []
    lacking: dict[tuple[GroupKey, str], set[Slot]] = {}
    winners: dict[GroupKey, str] = {}
    for organ in islice(organs, LOOKED_AT_MAX):
        found.append(organ)
        key = (organ.tower, organ.block, organ.type)
        group = groups.get(key, {})
        slot = (organ.tower, organ.block, organ.slot)
        if key in winners or slot not in group:
            continue
        if (key, organ.model) not in lacking:
            lacking[key, organ.model] = {one for one in group if organ.model not in common.get(one, ())}
        lacking[key, organ.model].discard(slot)
        if not lacking[key, organ.model]:
            winners[key] = organ.model
            if len(winners) == len(groups):
                break
    return found, winners


def _replacements(
    base: Parent,
    graft: Graft,
    groups: dict[GroupKey, dict[Slot, Part]],
    winners: dict[GroupKey, str],
    library: Library,
) -> Iterator[Replacement]:
    for key, group in groups.items():
        if key in winners:
            donor = library.parent(winners[key])
            for slot, part in group.items():
                yield Replacement(part, donor.by_slot[slot], donor, by_slot=bool(graft.selection.slots))


def _tell_of_losses(
    graft: Graft,
    groups: dict[GroupKey, dict[Slot, Part]],
    winners: dict[GroupKey, str],
    looked_at: int,
    at: str,
    chosen: Chosen,
) -> None:
    left = [part.name for key, group in groups.items() if key not in winners for part in group.values()]
    if left:
        sentence = f"{graft.where!r} finds no whole group for {shown_names(left)}: the base's own stay"
        chosen.tell("kept-organs", sentence, f"{at}.where", organs=left)
    if looked_at == LOOKED_AT_MAX:
        sentence = f"{graft.where!r} finds more than {LOOKED_AT_MAX} organs; the best {LOOKED_AT_MAX} were looked at"
        chosen.tell("query-cut", sentence, f"{at}.where")


def refused_blocks(base: Parent, selection: Selection, at: str, chosen: Chosen) -> bool:
    """Whether `selection` names blocks that `base` has not, which is refused."""
    blocks = sorted({part.place.block for part in base.parts if part.place.block is not None})
    absent = [
        f"{first}-{last}" if last > first else f"{first}"
        for first, last in selection.blocks
        if sum(first <= block <= last for block in blocks) <= last - first
    ]
    if absent:
        there = f"its blocks are {runs(blocks)}" if blocks else "it has none"
        sentence = f"{base.label} does not have all of the blocks {shown_names(absent)}: {there}"
        chosen.refuse("no-such-block", sentence, f"{at}.blocks")
    return bool(absent)


def nothing_selected(base: Parent, selection: Selection) -> str:
    """Why no organ of `base` is selected, with the nearest slots that it has."""
    slots = dict.fromkeys(islice((part.place.slot for part in base.parts), SLOTS_COMPARED_MAX))
    absent = [slot for slot in selection.slots if not any(matches_slot(one, slot) for one in slots)]
    close = [nearest(slot, slots) for slot in absent[:NAMES_SHOWN_MAX]]
    meant = ", ".join(dict.fromkeys(word for word in close if word))
    return f"{base.label} has no organ of that selection{f'; did you mean {meant}?' if meant else ''}"


def parent_or_finding(library: Library, text: str, code: str, at: str, chosen: Chosen) -> Parent | None:
    """The model that `text` means, or None and a finding. Raises StoreError."""
    try:
        return library.parent(text)
    except (StoreError, TooCostly):
        raise
    except OrganError as error:
        chosen.refuse(code, str(error), at)
        return None


def shown_names(names: Sequence[str]) -> str:
    """The first few of `names`, and how many more there are."""
    more = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def _group(place: Place) -> GroupKey:
    return place.tower.value, place.block, place.type.value
