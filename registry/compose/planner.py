"""From a recipe to a plan: rows, headers and fingerprints are read; nothing is written and no organ is read."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import msgspec

from organs.registry.anatomy import OrganType, Place, Slot
from organs.registry.catalog.search import nearest, parse_query
from organs.registry.compose.compatibility import check_adapter, check_replacements, check_yanked
from organs.registry.compose.cost import Budget, steps_cost
from organs.registry.compose.findings import runs
from organs.registry.compose.fitting import (
    additions_of,
    is_token_embedding,
)
from organs.registry.compose.licences import combined_licence, licence_expression
from organs.registry.compose.metadata import (
    LICENCE_KEY,
    dropped_keys,
    file_stem,
    set_entries,
)
from organs.registry.compose.models import (
    Library,
    Parent,
    Part,
    Replacement,
)
from organs.registry.compose.plan import (
    Addition,
    Computation,
    Ingredient,
    Plan,
    PlannedPart,
)
from organs.registry.compose.prediction import Change, predict
from organs.registry.compose.recipe import Graft, Purification, PurifyMethod, Recipe, Selection, matches_slot
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.plan import Prediction
from organs.registry.errors import NotFound, OrganError, StoreError, TooCostly, UnsupportedDType
from organs.registry.transform import encoded_dtype
from organs.registry.transform.purify import KEEP_DEFAULT

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
        self._note(Severity.REFUSE, code, sentence, at, donor, organs)

    def tell(self, code: str, sentence: str, at: str, donor: str = "", organs: Sequence[str] = ()) -> None:
        """Note something to know."""
        self._note(Severity.INFO, code, sentence, at, donor, organs)

    def _note(self, severity: Severity, code: str, sentence: str, at: str, donor: str, organs: Sequence[str]) -> None:
        self.findings.append(Finding(severity, code, sentence, at, (donor,) if donor else (), tuple(organs)))


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
    groups: Mapping[GroupKey, dict[Slot, Part]], organs: Iterator[PlacedOrgan], common: Mapping[Slot, Collection[str]]
) -> tuple[list[PlacedOrgan], dict[GroupKey, str]]:
    """Return the organs that were looked at, and for each group the first model that has brought all of it.

    No more organs are looked at than decide all groups, and at most LOOKED_AT_MAX. What a model has in `common` with
    the base it need not bring: no query finds that.
    """
    found: list[PlacedOrgan] = []
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


FRACTAL_ENERGY = 0.105
"""Energy that fractal purification moves in a matrix: 0.096 to 0.132 over those of two models, whatever they hold."""
TRIED = "Of 83 grafts between small models it was right for 78."
"""By `python -m bench.prediction`, which docs/prediction.md tells more of."""


def predicted(parts: Iterable[PlannedPart], computed: Mapping[str, Part] | None = None) -> Prediction:
    """The prediction for a plan's `parts`; `computed` has what was measured of computed organs, by their names."""
    all_parts = list(parts)
    return predict(changes_of(all_parts, computed), sum(part.before.spec.elements for part in all_parts))


def changes_of(parts: Iterable[PlannedPart], computed: Mapping[str, Part] | None = None) -> list[Change]:
    """What changes: every part whose source is not the base's own to the last byte, or that is computed."""
    made = computed or {}
    changes = (_change(part, made.get(part.before.name)) for part in parts)
    return [change for change in changes if change.is_grafted or change.is_computed]


def likely_degraded(base: Parent, prediction: Prediction, findings: Iterable[Finding]) -> Iterator[Finding]:
    """`likely-degraded` (warn) where the prediction says so; nothing where strangers are warned of among `findings`."""
    if prediction.usable is not False or any(one.code == "unrelated-lineage" for one in findings):
        return
    yield Finding(Severity.WARN, "likely-degraded", f"{prediction.sentence} {TRIED}", models=(base.label,))


def _change(part: PlannedPart, computed: Part | None) -> Change:
    if part.computation is None:
        return Change(part.before, part.source, part.source)
    return Change(part.before, part.source, computed, _estimated(part))


def _estimated(part: PlannedPart) -> float | None:
    """Energy that computing will move, over the source's, from moments alone; None where those are not known."""
    made, source = part.computation, part.source
    size, spread = _size(source), source.standard_deviation
    if made is None or not size or spread is None:
        return None
    energy = 0.0
    for addition, adapter in zip(made.additions, part.adapters, strict=True):
        product = _product_size(addition, adapter)
        if product is None:
            return None
        energy += (product / size) * (product / size)
    if made.method is not None:
        energy += _purified_energy(made.method, made.keep) * (spread / size) * (spread / size)
    return energy


def _product_size(addition: Addition, adapter: Parent) -> float | None:
    """Root of the mean square of what an adapter adds, were its two factors independent of each other.

    Every value of B·A is a sum of rank products. Of the zoo's adapter this gives 0.86 to 1.00 of the energy.
    """
    halves = (adapter.by_name.get(addition.a.name), adapter.by_name.get(addition.b.name))
    sizes = [_size(half) for half in halves if half is not None]
    rank = addition.b.shape[0]
    if len(sizes) < 2 or sizes[0] is None or sizes[1] is None or rank < 1:
        return None
    factor = addition.scale * (addition.alpha / rank if addition.alpha else 1.0)
    return abs(factor) * math.sqrt(rank) * sizes[0] * sizes[1]


def _purified_energy(method: str, keep: float | None) -> float:
    """Energy moved about the mean, where the standard deviation is restored.

    What spectral purification leaves correlates by the root of the share that is kept, and is stretched to the length
    that the organ had: 2 - 2 r.
    """
    if method == PurifyMethod.FRACTAL:
        return FRACTAL_ENERGY
    return 2.0 - 2.0 * math.sqrt(KEEP_DEFAULT if keep is None else min(1.0, max(0.0, keep)))


def _size(part: Part) -> float | None:
    """Root of the mean square of an organ's values; None where it is not known."""
    if part.mean is None or part.standard_deviation is None:
        return None
    size = math.hypot(part.mean, part.standard_deviation)
    return size if math.isfinite(size) else None


MISSING_SHOWN_MAX = 10
"""Models that are named as not there, where the base is not."""


def plan_recipe(recipe: Recipe, library: Library, budget: Budget | None = None) -> Plan:
    """Return what `recipe` comes to, with everything that is wrong with it.

    Raises what `library` raises for the base; a NotFound names all models of the recipe that are not there. Raises
    TooCostly where `budget` does not allow the work. What else is wrong is among the findings.
    """
    base = _base(recipe, library)
    if budget is not None:
        budget.spend(steps_cost(recipe, len(base.parts)))
    chosen = choose(base, recipe, library)
    parts = {part.name: PlannedPart(part, part, None) for part in base.parts}
    for one in chosen.replacements:
        parts[one.before.name] = PlannedPart(one.before, one.after, one.donor)
    draft = _Draft(base, recipe, library, chosen, parts)
    draft.adapt()
    draft.purify()
    return _finished(draft)


def _base(recipe: Recipe, library: Library) -> Parent:
    try:
        return library.parent(recipe.base)
    except NotFound as error:
        raise type(error)("; ".join(_missing(recipe, library, str(error)))) from error


def _missing(recipe: Recipe, library: Library, first: str) -> list[str]:
    """What is said of every model of `recipe` that is not there; `first` is said of the base."""
    named = (*(graft.donor for graft in recipe.grafts if graft.donor), *(merge.adapter for merge in recipe.adapters))
    said = [first]
    for name in dict.fromkeys(named):
        try:
            library.parent(name)
        except (StoreError, TooCostly):
            raise
        except NotFound as error:
            said.append(str(error))
        except OrganError:
            continue  # no name at all: it is told when the base is there
        if len(said) == MISSING_SHOWN_MAX:
            break
    return list(dict.fromkeys(said))


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    base: Parent
    recipe: Recipe
    library: Library
    chosen: Chosen
    parts: dict[str, PlannedPart]
    adapters: list[Parent] = field(default_factory=list)

    def adapt(self) -> None:
        """Add what adapters bring to the tensors that they adapt."""
        for number, merge in enumerate(self.recipe.adapters):
            at = f"adapters[{number}]"
            adapter = parent_or_finding(self.library, merge.adapter, "unknown-adapter", f"{at}.from", self.chosen)
            if adapter is None:
                continue
            found = [
                msgspec.structs.replace(finding, field=finding.field or at)
                for finding in check_adapter(self.base, adapter)
            ]
            self.chosen.findings += found
            if any(finding.severity is Severity.REFUSE for finding in found):
                continue
            self.adapters.append(adapter)
            for name, addition in additions_of(adapter, merge.scale).items():
                computation = self._computation(name, at)
                if computation is not None:
                    more = replace(
                        computation,
                        additions=(*computation.additions, addition),
                        is_token_embedding=is_token_embedding(name),
                    )
                    part = self.parts[name]
                    self.parts[name] = replace(part, computation=more, adapters=(*part.adapters, adapter))

    def purify(self) -> None:
        """Note what is to be purified; a tensor is purified once."""
        for number, step in enumerate(self.recipe.purify):
            at = "purify" if len(self.recipe.purify) == 1 else f"purify[{number}]"
            names = self._selected(step, at)
            twice = [name for name in names if (made := self.parts[name].computation) and made.method]
            if twice:
                sentence = f"{at} purifies {shown_names(twice)} a second time: say which is meant"
                self.chosen.refuse("overlapping-steps", sentence, at, organs=twice)
            done = set(twice)
            for name in (name for name in names if name not in done):
                computation = self._computation(name, at)
                if computation is not None:
                    keep = KEEP_DEFAULT if step.keep is None and step.method == "spectral" else step.keep
                    purified = replace(computation, method=step.method.value, keep=keep)
                    self.parts[name] = replace(self.parts[name], computation=purified)

    def _selected(self, step: Purification, at: str) -> list[str]:
        if refused_blocks(self.base, step.selection, at, self.chosen):
            return []
        candidates = {name: (part.source, part.donor or self.base) for name, part in self.parts.items()}
        try:
            names = selected_for(step, candidates, self.library)
        except (StoreError, TooCostly):
            raise
        except OrganError as error:
            self.chosen.refuse("bad-query", str(error), f"{at}.where")
            return []
        if not names:
            self.chosen.refuse("nothing-selected", nothing_selected(self.base, meant_by(step)), at)
        return names

    def _computation(self, name: str, at: str) -> Computation | None:
        """What is computed at a place so far; None and a finding where nothing can be."""
        part = self.parts[name]
        if part.computation is not None:
            return part.computation
        source = part.source
        try:
            dtype = encoded_dtype(source.dtype, source.shape[0], self.recipe.encode)
        except UnsupportedDType as error:
            self.chosen.refuse("dtype-refused", f"{source.name}: {error}", at, organs=[name])
            return None
        return Computation(Ingredient(source.digest, source.dtype, source.shape, source.name), dtype)


def _finished(draft: _Draft) -> Plan:
    base, recipe = draft.base, draft.recipe
    parts = tuple(draft.parts[part.name] for part in base.parts)
    parents = _parents(base, draft.chosen.replacements, draft.adapters)
    sets = set_entries(base, parents, [part.spec for part in parts], recipe.metadata)
    licence = combined_licence({parent.label: parent.license for parent in parents})
    prediction = predicted(parts)
    findings = [
        *draft.chosen.findings,
        *check_replacements(base, draft.chosen.replacements),
        *_re_encoded(parts),
        *_metadata_findings(base, parents, recipe),
        *check_yanked(parents),
        *licence.findings,
    ]
    if not any(part.acts for part in parts) and not any(one.severity is Severity.REFUSE for one in findings):
        sentence = f"nothing of {base.label} is replaced, adapted or purified"
        findings.append(Finding(Severity.REFUSE, "nothing-to-do", sentence, models=(base.label,)))
    findings += likely_degraded(base, prediction, findings)
    return Plan(
        recipe=recipe,
        base=base,
        parents=parents,
        parts=parts,
        sets=sets,
        drops=dropped_keys(base.header, sets),
        findings=tuple(dict.fromkeys(findings)),
        prediction=prediction,
        licence=licence.text,
        stem=file_stem(base, sets, recipe.name),
    )


def _parents(base: Parent, replacements: Sequence[Replacement], adapters: Sequence[Parent]) -> tuple[Parent, ...]:
    found = [base, *(one.donor for one in replacements), *adapters]
    return tuple({(parent.label, parent.header_digest): parent for parent in found}.values())


def _re_encoded(parts: Sequence[PlannedPart]) -> list[Finding]:
    """What changes its type because it is computed and its own cannot be written here."""
    changed: dict[tuple[str, str], list[str]] = {}
    for part in parts:
        if part.spec.dtype != part.source.dtype:
            changed.setdefault((part.source.dtype.name, part.spec.dtype.name), []).append(part.before.name)
    return [
        Finding(
            Severity.INFO,
            "encoded-again",
            f"{len(names)} computed organs become {after}, as {before} cannot be written here: {shown_names(names)}",
            "encode",
            organs=tuple(names),
        )
        for (before, after), names in changed.items()
    ]


def _metadata_findings(base: Parent, parents: Sequence[Parent], recipe: Recipe) -> list[Finding]:
    """Hyperparameters belong to the base's skeleton: a recipe does not set them. A licence it sets at its own risk."""
    own = f"{base.header.architecture}."
    found = [
        Finding(
            Severity.REFUSE,
            "bad-metadata",
            f"{change.key} is a hyperparameter of {base.label} and stays what it is",
            f"metadata.{change.key}",
            (base.label,),
        )
        for change in recipe.metadata
        if base.header.architecture and change.key.startswith(own)
    ]
    stated = licence_expression({parent.label: parent.license for parent in parents}) or base.license or "none"
    for change in recipe.metadata:
        if change.key == LICENCE_KEY and change.value != stated:
            sentence = f"The recipe states the licence {change.value!r}; by its parents it is {stated}: read theirs."
            found.append(Finding(Severity.WARN, "licences-conflict", sentence, f"metadata.{change.key}", (base.label,)))
    return found
