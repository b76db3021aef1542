"""Plan a recipe. Rows, headers and fingerprints are read; organs are not read, and nothing is written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import msgspec
from msgspec import structs

from organs.registry.amounts import names_text, ranges_text
from organs.registry.anatomy import (
    COMPANIONS,
    OUTPUT_MATRIX,
    TOKEN_EMBEDDING,
    OrganType,
    Place,
    Slot,
    companion_slot,
    expert_name,
    is_expert_stack,
    is_factor,
    place_of,
)
from organs.registry.compose.compatibility import check_adapter, check_replacements, check_withdrawn
from organs.registry.compose.cost import Budget, steps_cost
from organs.registry.compose.fitting import additions_of
from organs.registry.compose.licenses import license_expression
from organs.registry.compose.metadata import (
    LICENSE_KEY,
    dropped_keys,
    file_stem,
    set_entries,
)
from organs.registry.compose.parents import (
    Library,
    Parent,
    Part,
    Replacement,
    license_of_parents,
)
from organs.registry.compose.plan import (
    Plan,
    PlannedComputation,
    PlannedPart,
)
from organs.registry.compose.recipe import Graft, Purification, PurifyMethod, Recipe, Selection, matches_slot
from organs.registry.compose.screen import Change, screen
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.plan import Screen
from organs.registry.errors import NotFound, NothingRegistered, OrganError, StoreError, TooCostly, UnsupportedDType
from organs.registry.kinds import WEIGHT_KINDS, FileKind
from organs.registry.names import nearest
from organs.registry.search.language import RECIPE_BASE, parse_query
from organs.registry.transform import encoded_dtype
from organs.registry.transform.purify import KEEP_DEFAULT

EXAMINED_MAX = 20_000
"""Organs that a graft by query examines, the best first."""
GUESSES_MAX = 5
"""Slots of a selection for which the nearest slot of the base is searched."""
SLOTS_COMPARED_MAX = 1000
"""Tensors of the base whose slots are compared with an unknown slot."""

GroupKey = tuple[str, int | None, str]
"""Tower, block and type of organs that come from one model."""


@dataclass(slots=True)
class Chosen:
    """The replacements and findings of the grafts of a recipe."""

    replacements: list[Replacement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def refuse(self, code: str, sentence: str, at: str, donor: str = "", organs: Sequence[str] = ()) -> None:
        """Add a refusal."""
        self._note(Severity.REFUSE, code, sentence, at, donor, organs)

    def inform(self, code: str, sentence: str, at: str, donor: str = "", organs: Sequence[str] = ()) -> None:
        """Add information."""
        self._note(Severity.INFO, code, sentence, at, donor, organs)

    def _note(self, severity: Severity, code: str, sentence: str, at: str, donor: str, organs: Sequence[str]) -> None:
        self.findings.append(Finding(severity, code, sentence, at, (donor,) if donor else (), tuple(organs)))


def choose(base: Parent, recipe: Recipe, library: Library) -> Chosen:
    """Return the replacements of all grafts of `recipe`, in their order, with findings.

    Raises StoreError for stored bytes that cannot be read. Mistakes in the recipe are findings.
    """
    chosen = Chosen()
    taken: dict[Slot, dict[int | None, str]] = {}
    for number, graft in enumerate(recipe.grafts):
        at = f"grafts[{number}]"
        if refused_blocks(base, graft, at, chosen):
            continue
        places = [part for part in base.parts if graft.holds(part.place)]
        if not places:
            chosen.refuse("nothing-selected", nothing_selected(base, graft), at)
            continue
        if refused_experts(graft, places, at, chosen):
            continue
        replacements = _of_donor(base, graft, places, at, library, chosen) if graft.donor is not None else ()
        replacements = replacements or (
            _of_query(base, graft, places, at, library, chosen) if graft.where is not None else ()
        )
        _add_replacements(replacements, taken, at, chosen)
    # The companions of weights, such as scales, that both models have and no graft takes, come from the same donor.
    for replacement in tuple(chosen.replacements):
        for companion in () if replacement.experts else COMPANIONS:
            slot = companion_slot(replacement.before.slot, companion)
            before, after = base.by_slot.get(slot), replacement.donor.by_slot.get(slot)
            if before is not None and after is not None and slot not in taken:
                chosen.replacements.append(replace(replacement, before=before, after=after))
    return chosen


def _add_replacements(
    replacements: Sequence[Replacement], taken: dict[Slot, dict[int | None, str]], at: str, chosen: Chosen
) -> None:
    """Add the replacements of one graft, without those that earlier grafts have `taken`, which are refused.

    `taken` has the grafts by place and expert; the expert None is the whole tensor.
    """
    names: list[str] = []
    others: set[str] = set()
    for replacement in replacements:
        steps = taken.setdefault(replacement.before.slot, {})
        if None in steps or (steps and not replacement.experts):
            names.append(replacement.before.name)
            others.update(steps.values())
        elif repeated := [expert for expert in replacement.experts if expert in steps]:
            names += [expert_name(replacement.before.name, expert) for expert in repeated]
            others.update(steps[expert] for expert in repeated)
        else:
            steps.update((expert, at) for expert in replacement.experts or (None,))
            chosen.replacements.append(replacement)
    if names:
        sentence = f"Both {at} and {', '.join(sorted(others))} replace {names_text(names)}: remove one of them."
        chosen.refuse("overlapping-grafts", sentence, at, organs=names)


def _of_donor(
    base: Parent, graft: Graft, places: Sequence[Part], at: str, library: Library, chosen: Chosen
) -> list[Replacement]:
    assert graft.donor is not None
    donor = parent_or_finding(library, graft.donor, "unknown-donor", f"{at}.from", chosen)
    if donor is None:
        return []
    if donor.header_digest == base.header_digest and donor.parts == base.parts:
        chosen.refuse("own-donor", f"{donor.label} is the base itself: choose another donor.", at, donor.label)
        return []
    replacements = _replacements_by(donor, base, places, graft, library)
    if not replacements:
        sentence = f"{donor.label} has none of the {len(places)} organs that are selected in {base.label}."
        if donor.kind == FileKind.ADAPTER:
            sentence = f"{donor.label} is an adapter, which is merged and not grafted: name it under `adapters`."
        elif donor.kind not in WEIGHT_KINDS:
            sentence = f"{donor.label} is of the kind {donor.kind}, not a model: it has no organs to graft."
        chosen.refuse("nothing-to-graft", sentence, at, donor.label)
        return []
    _note_missing(base, donor, graft, places, at, chosen)
    return replacements


def _replacements_by(
    donor: Parent, base: Parent, places: Iterable[Part], selection: Selection, library: Library
) -> list[Replacement]:
    """Return the replacements of `places` of the base by the organs that `donor` has there, or by experts of them."""
    pairs = [(part, donor.by_slot[part.slot]) for part in places if part.slot in donor.by_slot]
    if not selection.experts:
        return [Replacement(before, after, donor, by_slot=bool(selection.slots)) for before, after in pairs]
    numbers = {before.name: selection.expert_numbers(before.shape[-1]) for before, _ in pairs}
    every = {number for selected in numbers.values() for number in selected}
    ours = library.experts(base, {before.name for before, _ in pairs}, every)
    theirs = library.experts(donor, {after.name for _, after in pairs}, every)
    return [
        Replacement(
            *(before, after, donor),
            by_slot=True,
            experts=numbers[before.name],
            pairs=tuple(
                (
                    ours.get((before.name, number)) or _unknown_expert(before, number, None),
                    theirs.get((after.name, number)) or _unknown_expert(after, number, after.nonfinite),
                )
                for number in numbers[before.name]
            ),
        )
        for before, after in pairs
    ]


def _unknown_expert(stack: Part, number: int, nonfinite: int | None) -> Part:
    """Return an expert that the library does not know: with the digest of its stack, and without measures."""
    name = expert_name(stack.name, number)
    return Part(name, stack.place, stack.dtype, stack.shape[:2], stack.digest, nonfinite=nonfinite)


def _note_missing(
    base: Parent, donor: Parent, selection: Selection, places: Sequence[Part], at: str, chosen: Chosen
) -> None:
    """Add findings on selected organs that only one of the two models has; a partial donor may lack some."""
    surplus = [part.name for part in donor.parts if selection.holds(part.place) and part.slot not in base.by_slot]
    if surplus:
        sentence = f"{base.label} has no place for {names_text(surplus)} of {donor.label}."
        chosen.refuse("slot-absent", sentence, at, donor.label, surplus)
    missing = [part.name for part in places if part.slot not in donor.by_slot]
    if missing and donor.complete:
        sentence = f"{donor.label} has no {names_text(missing)}, selected in {base.label}."
        chosen.refuse("organ-absent", sentence, at, donor.label, missing)
    elif missing:
        sentence = f"{names_text(missing)} of {base.label} stay: {donor.label} has only some organs."
        chosen.inform("kept-organs", sentence, at, donor.label, missing)


def _of_query(
    base: Parent, graft: Graft, places: Sequence[Part], at: str, library: Library, chosen: Chosen
) -> list[Replacement]:
    groups: dict[GroupKey, dict[Slot, Part]] = {}
    for part in (part for part in places if not is_factor(part.slot, base.by_slot)):  # factors follow their weights
        groups.setdefault(_group(part.place), {})[part.slot] = part
    try:
        organs, winners = _search(base, graft, groups, library)
        replacements = [
            replacement
            for key, group in groups.items()
            if key in winners
            for replacement in _replacements_by(library.parent(winners[key]), base, group.values(), graft, library)
        ]
        strangers: dict[GroupKey, str] = {}
        if not winners and not takes_strangers(graft):
            _, strangers = _search(base, structs.replace(graft, strangers=True), groups, library)
    except (StoreError, TooCostly):
        raise
    except OrganError as error:
        chosen.refuse("bad-query", str(error), f"{at}.where")
        return []
    if strangers:
        models = names_text(list(dict.fromkeys(strangers.values())))
        sentence = (
            f"{graft.where!r} finds only organs of models that are not kin of {base.label}: {models}. "
            "To use them, add strangers: true, or name a model with model:."
        )
        chosen.refuse("only-strangers", sentence, f"{at}.where")
        return []
    if not replacements:
        result = f"{len(organs)} organs, but no complete group for" if organs else "nothing that fits"
        chosen.refuse("empty-query", f"{graft.where!r} finds {result} {base.label}.", f"{at}.where")
        return []
    types = {organ.type for organ in organs}  # other types were not searched, so they are not missing
    left = [
        part.name for key, group in groups.items() if key[2] in types and key not in winners for part in group.values()
    ]
    if left:
        sentence = f"{graft.where!r} finds no complete group for {names_text(left)}: the base's own stay."
        chosen.inform("kept-organs", sentence, f"{at}.where", organs=left)
    if len(organs) == EXAMINED_MAX:
        sentence = f"{graft.where!r} finds more than {EXAMINED_MAX} organs; only the best {EXAMINED_MAX} were examined."
        chosen.inform("query-cut", sentence, f"{at}.where")
    return replacements


def _search(
    base: Parent, graft: Graft, groups: Mapping[GroupKey, dict[Slot, Part]], library: Library
) -> tuple[list[PlacedOrgan], dict[GroupKey, str]]:
    """Return the examined results of the graft's query, and for each group the first model that has all of its organs.

    It stops when every group that the query's types allow has a model, or after EXAMINED_MAX organs. Organs that a
    model has in common with the base count as present, because queries do not find them.
    """
    query, common = query_of(base, graft), library.in_common(base)
    types = [choice for choice in parse_query(query, base=base.label).choices("type") if not choice.negated]
    searched = {key: group for key, group in groups.items() if all(key[2] in choice.values for choice in types)}
    examined: list[PlacedOrgan] = []
    lacking: dict[tuple[GroupKey, str], set[Slot]] = {}
    winners: dict[GroupKey, str] = {}
    for organ in islice(library.organs(query, base.label), EXAMINED_MAX):
        examined.append(organ)
        key = (organ.tower, organ.block, organ.type)
        group = searched.get(key, {})
        slot = (organ.tower, organ.block, organ.slot)
        if key in winners or slot not in group:
            continue
        if (key, organ.model) not in lacking:
            lacking[key, organ.model] = {item for item in group if organ.model not in common.get(item, ())}
        lacking[key, organ.model].discard(slot)
        if not lacking[key, organ.model]:
            winners[key] = organ.model
            if len(winners) == len(searched):
                break
    return examined, winners


def takes_strangers(graft: Graft) -> bool:
    """Return whether the query of `graft` may find models that are not kin of the base.

    That is so with `strangers`, and if the query names models completely, without `*`.
    """
    named = parse_query(graft.where or "", base=RECIPE_BASE).choices("model")
    return graft.strangers or any(
        not choice.negated and not any("*" in value for value in choice.values) for choice in named
    )


def query_of(base: Parent, graft: Graft) -> str:
    """Return the complete query of a graft: its own terms, terms for the base, and terms for its selection."""
    terms = [graft.where or "", f"fits:{base.label}"]
    terms += [] if takes_strangers(graft) else [f"kin:{base.label}"]
    terms += [f"type:{','.join(graft.types)}"] if graft.types else []
    terms += [f"slot:{','.join(graft.slots)}"] if graft.slots else []
    blocks = ",".join(f"{first}-{last}" for first, last in graft.blocks)
    terms += [f"block:{blocks}"] if blocks else []
    terms += [f"sort:{graft.sort}"] if graft.sort else []
    return " ".join(term for term in terms if term)


def refused_blocks(base: Parent, selection: Selection, at: str, chosen: Chosen) -> bool:
    """Return whether `selection` names blocks that `base` does not have; if so, add a refusal."""
    blocks = sorted({part.place.block for part in base.parts if part.place.block is not None})
    absent = [
        f"{first}-{last}" if last > first else f"{first}"
        for first, last in selection.blocks
        if sum(first <= block <= last for block in blocks) <= last - first
    ]
    if absent:
        known = f"its blocks are {ranges_text(blocks)}" if blocks else "it has no blocks"
        sentence = f"{base.label} does not have these blocks: {names_text(absent)}; {known}."
        chosen.refuse("no-such-block", sentence, f"{at}.blocks")
    return bool(absent)


def refused_experts(selection: Selection, places: Sequence[Part], at: str, chosen: Chosen) -> bool:
    """Return whether `selection` names experts that a selected stack does not have; if so, add a refusal."""
    last = max((last for _, last in selection.experts), default=-1)
    short = [part for part in places if len(part.shape) < 3 or part.shape[2] <= last]
    if not selection.experts or not short:
        return False
    first = short[0]
    count = first.shape[2] if len(first.shape) == 3 else 1
    sentence = f"{first.name} has {count} experts, numbered from 0: there is no expert {last}."
    chosen.refuse("no-such-expert", sentence, f"{at}.experts", organs=[part.name for part in short])
    return True


def nothing_selected(base: Parent, selection: Selection) -> str:
    """Return a sentence that no organ of `base` is selected, with the nearest slots that it has."""
    if selection.experts and not any(is_expert_stack(part.place) for part in base.parts):
        return f"{base.label} has no stacks of experts, so there are no experts to select."
    slots = dict.fromkeys(islice((part.place.slot for part in base.parts), SLOTS_COMPARED_MAX))
    absent = [slot for slot in selection.slots if not any(matches_slot(item, slot) for item in slots)]
    close = [nearest(slot, slots) for slot in absent[:GUESSES_MAX]]
    guesses = ", ".join(dict.fromkeys(word for word in close if word))
    return f"{base.label} has no organ in this selection{f'; did you mean {guesses}?' if guesses else '.'}"


def parent_or_finding(library: Library, text: str, code: str, at: str, chosen: Chosen) -> Parent | None:
    """Return the model that `text` names; if it is not found, add a finding and return None. Raises StoreError."""
    try:
        return library.parent(text)
    except (StoreError, TooCostly):
        raise
    except OrganError as error:
        chosen.refuse(code, str(error), at)
        return None


def _group(place: Place) -> GroupKey:
    return place.tower.value, place.block, place.type.value


TYPE_DEFAULT = OrganType.ORGAN.value
"""The type that a purification without type, slot and query selects."""


def selected_for(step: Purification, parts: Mapping[str, tuple[Part, Parent]], library: Library) -> list[str]:
    """Return the names of the tensors that `step` purifies; `parts` has each tensor with its model.

    A query uses the measures of the models' own organs, before any step. Factors of weights are left out: a weight is
    purified as it is stored, and its factor stays. Raises BadQuery.
    """
    selection = selection_of(step)
    slots = {part.slot for part, _ in parts.values()}
    selected = {
        name: (part, parent)
        for name, (part, parent) in parts.items()
        if selection.holds(part.place) and not is_factor(part.slot, slots)
    }
    if not step.where:
        return list(selected)
    matching: dict[str, set[Slot]] = {}
    for _, parent in selected.values():
        if parent.label not in matching:
            organs = library.organs(f"model:{parent.label} {step.where}")
            matching[parent.label] = {(organ.tower, organ.block, organ.slot) for organ in organs}
    return [name for name, (part, parent) in selected.items() if part.slot in matching[parent.label]]


def selection_of(step: Purification) -> Selection:
    """Return the places that `step` selects; without type, slot and query, the feed-forward."""
    return step if step.types or step.slots or step.where else structs.replace(step, types=(TYPE_DEFAULT,))


FRACTAL_ENERGY = 0.105
"""Energy that fractal purification moves in a matrix: 0.096 to 0.132 for the matrices of two models."""


def screened(parts: Sequence[PlannedPart], computed: Mapping[str, Part] | None = None) -> Screen:
    """Return the screen of a plan's `parts`; `computed` has the measured computed organs by name."""
    return screen(changes_of(parts, computed), sum(part.before.spec.elements for part in parts))


def changes_of(parts: Iterable[PlannedPart], computed: Mapping[str, Part] | None = None) -> list[Change]:
    """Return the changes: parts whose source is not the base's own organ, and computed parts."""
    measured = computed or {}
    changes = (change for part in parts for change in _changes_at(part, measured.get(part.before.name)))
    return [change for change in changes if change.is_grafted or change.is_computed]


def _changes_at(part: PlannedPart, computed: Part | None) -> Iterator[Change]:
    """Yield the changes at one place: each grafted expert, and the tensor if it is replaced or computed otherwise."""
    for graft in part.expert_grafts:
        for organ in graft.organs:
            yield Change(organ.before, organ.after, organ.after, is_expert=True)
    if part.computation is None:
        yield Change(part.before, part.source, part.source)
    elif part.computation.additions or part.computation.method:
        # The measured change of the stack has that of grafted experts, which would count twice.
        measured = None if part.expert_grafts else computed
        scales = tuple(addition.scale for addition in part.computation.additions)
        is_purified = part.computation.method is not None
        yield Change(part.before, part.source, measured, _estimated_energy(part), scales, is_purified)


def _estimated_energy(part: PlannedPart) -> float | None:
    """Return the estimated energy that computing moves, over the energy of the source; None without moments.

    The two factors of an adapter are assumed to be independent: each value of B·A is a sum of as many products as the
    rank. For the zoo's adapter, this gives 0.86 to 1.00 of the energy.
    """
    computation, source = part.computation, part.source
    size, spread = _size(source), source.standard_deviation
    if computation is None or not size or spread is None:
        return None
    energy = 0.0
    for addition in computation.additions:
        first, second, rank = _size(addition.a), _size(addition.b), addition.b.shape[0]
        if first is None or second is None or rank < 1:
            return None
        factor = addition.scale * (addition.alpha / rank if addition.alpha else 1.0)
        energy += (abs(factor) * math.sqrt(rank) * first * second / size) ** 2
    if computation.method is not None:
        share = len(computation.purified_experts) / source.shape[-1] if computation.purified_experts else 1.0
        energy += share * _purified_energy(computation.method, computation.keep) * (spread / size) ** 2
    return energy


def _purified_energy(method: str, keep: float | None) -> float:
    """Return the energy that purification moves around the mean, over the variance, if the deviation is restored.

    The result of spectral purification has the correlation r with the original, the root of the kept share, and is
    scaled to the length of the original: the energy is 2 - 2 r.
    """
    if method == PurifyMethod.FRACTAL:
        return FRACTAL_ENERGY
    return 2.0 - 2.0 * math.sqrt(KEEP_DEFAULT if keep is None else min(1.0, max(0.0, keep)))


def _size(part: Part) -> float | None:
    """Return the root mean square of an organ's values; None if unknown."""
    if part.mean is None or part.standard_deviation is None:
        return None
    size = math.hypot(part.mean, part.standard_deviation)
    return size if math.isfinite(size) else None


MISSING_SHOWN_MAX = 10
"""Missing models in the error of a missing base."""


def plan_recipe(recipe: Recipe, library: Library, budget: Budget | None = None) -> Plan:
    """Return the plan of `recipe` with all findings.

    Raises the errors of `library` for the base; a NotFound names all missing models of the recipe. Raises TooCostly if
    `budget` does not allow the work. All other problems are findings.
    """
    base = _base(recipe, library)
    if budget is not None:
        budget.spend(steps_cost(recipe, len(base.parts)))
    chosen = choose(base, recipe, library)
    parts = {part.name: PlannedPart(part, part, None) for part in base.parts}
    for replacement in chosen.replacements:
        name = replacement.before.name
        if not replacement.experts:
            parts[name] = PlannedPart(replacement.before, replacement.after, replacement.donor)
        elif (changed := replacement.with_changed_experts()).experts:
            part = parts[name]
            computation = part.computation or PlannedComputation(part.source, part.source.dtype)
            grafted = replace(computation, grafted=(*computation.grafted, changed))
            parts[name] = replace(part, computation=grafted)
    draft = _Draft(base, recipe, library, chosen, parts)
    draft.adapt()
    draft.purify()
    return draft.finished()


def _base(recipe: Recipe, library: Library) -> Parent:
    """Return the base of `recipe`; a NotFound names all missing models of the recipe."""
    try:
        return library.parent(recipe.base)
    except NotFound as error:
        messages, missing = [str(error)], error
    named = (*(graft.donor for graft in recipe.grafts if graft.donor), *(merge.adapter for merge in recipe.adapters))
    for name in dict.fromkeys(named):
        try:
            library.parent(name)
        except (StoreError, TooCostly):
            raise
        except NotFound as error:
            messages.append(str(error))
        except OrganError:
            continue  # not a valid name: this becomes a finding once the base exists
        if len(messages) == MISSING_SHOWN_MAX:
            break
    messages = list(dict.fromkeys(messages))
    if len(messages) == 1:
        raise missing  # with its data
    kind = NothingRegistered if isinstance(missing, NothingRegistered) else NotFound
    raise kind("; ".join(messages)) from missing


@dataclass(slots=True)
class _Draft:
    """The unfinished plan: its parts and findings."""

    base: Parent
    recipe: Recipe
    library: Library
    chosen: Chosen
    parts: dict[str, PlannedPart]
    adapters: list[Parent] = field(default_factory=list)

    def adapt(self) -> None:
        """Add the products of the adapters to the tensors that they change."""
        for number, merge in enumerate(self.recipe.adapters):
            at = f"adapters[{number}]"
            adapter = parent_or_finding(self.library, merge.adapter, "unknown-adapter", f"{at}.from", self.chosen)
            if adapter is None:
                continue
            findings = [
                msgspec.structs.replace(finding, field=finding.field or at)
                for finding in check_adapter(self.base, adapter)
            ]
            self.chosen.findings += findings
            if any(finding.severity is Severity.REFUSE for finding in findings):
                continue
            self.adapters.append(adapter)
            for name, addition in additions_of(adapter, merge.scale).items():
                computation = self._computation(name, at)
                if computation is not None:
                    more = replace(
                        computation,
                        additions=(*computation.additions, addition),
                        is_token_embedding=place_of(name) == TOKEN_EMBEDDING,
                    )
                    self.parts[name] = replace(self.parts[name], computation=more)

    def purify(self) -> None:
        """Add purifications; each tensor can be purified once."""
        for number, step in enumerate(self.recipe.purify):
            at = "purify" if len(self.recipe.purify) == 1 else f"purify[{number}]"
            names = self._selected(step, at)
            twice = [name for name in names if (planned := self.parts[name].computation) and planned.method]
            if twice:
                sentence = f"{at} purifies {names_text(twice)} a second time: remove one of the steps."
                self.chosen.refuse("overlapping-steps", sentence, at, organs=twice)
            done = set(twice)
            for name in (name for name in names if name not in done):
                computation = self._computation(name, at)
                if computation is None or self._refuses_experts(step, computation, at):
                    continue
                keep = KEEP_DEFAULT if step.keep is None and step.method == "spectral" else step.keep
                experts = step.expert_numbers(computation.source.shape[-1])
                purified = replace(computation, method=step.method.value, keep=keep, purified_experts=experts)
                self.parts[name] = replace(self.parts[name], computation=purified)

    def _refuses_experts(self, step: Purification, computation: PlannedComputation, at: str) -> bool:
        """Return whether single experts of a stack cannot be purified; if so, add a refusal."""
        if not step.experts:
            return False
        source = computation.source
        if computation.dtype != source.dtype:
            reason = f"{source.dtype.name} cannot be written, and all experts of a stack have one tensor type"
        elif computation.additions:
            reason = "an adapter changes the whole stack"
        else:
            return False
        sentence = f"Single experts of {source.name} cannot be purified: {reason}. Purify the whole stack."
        self.chosen.refuse("experts-refused", sentence, f"{at}.experts", organs=[source.name])
        return True

    def _selected(self, step: Purification, at: str) -> list[str]:
        if refused_blocks(self.base, step, at, self.chosen):
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
            self.chosen.refuse("nothing-selected", nothing_selected(self.base, selection_of(step)), at)
        selected = [self.parts[name].source for name in names]
        return [] if refused_experts(step, selected, at, self.chosen) else names

    def _computation(self, name: str, at: str) -> PlannedComputation | None:
        """Return the unfinished computation at a place; None, with a finding, if its dtype cannot be written."""
        part = self.parts[name]
        if part.computation is not None and (part.computation.additions or part.computation.method):
            return part.computation
        source = part.source
        try:
            dtype = encoded_dtype(source.dtype, source.shape[0], self.recipe.encode)
        except UnsupportedDType as error:
            self.chosen.refuse("dtype-refused", f"{source.name}: {error}", at, organs=[name])
            return None
        if part.computation is not None:  # grafted experts keep their type, but adapted and purified ones are written
            return replace(part.computation, dtype=dtype)
        return PlannedComputation(source, dtype)

    def finished(self) -> Plan:
        """Return the plan with the findings on the whole of it."""
        base, recipe, replacements = self.base, self.recipe, self.chosen.replacements
        parts = tuple(self.parts[part.name] for part in base.parts)
        used = [base, *(replacement.donor for replacement in replacements), *self.adapters]
        parents = tuple({(parent.label, parent.header_digest): parent for parent in used}.values())
        sets = set_entries(base, parents, [part.spec for part in parts], recipe.metadata)
        license = license_of_parents(parents)
        findings = [
            *self.chosen.findings,
            *check_replacements(base, replacements),
            *_encoding_findings(parts),
            *_tied_findings(base, parts),
            *_measured_findings(self.library, base, parents[1:]),
            *_metadata_findings(base, parents, recipe),
            *check_withdrawn(parents),
            *license.findings,
        ]
        if not any(part.acts for part in parts) and not any(item.severity is Severity.REFUSE for item in findings):
            sentence = f"Nothing of {base.label} is replaced, adapted or purified."
            findings.append(Finding(Severity.REFUSE, "nothing-to-do", sentence, models=(base.label,)))
        return Plan(
            recipe=recipe,
            base=base,
            parents=parents,
            parts=parts,
            sets=sets,
            drops=dropped_keys(base.header, sets),
            findings=tuple(dict.fromkeys(findings)),
            screen=screened(parts),
            license=license.text,
            stem=file_stem(base, sets, recipe.name),
        )


def _encoding_findings(parts: Sequence[PlannedPart]) -> list[Finding]:
    """Return `encoded-again` for computed organs whose own dtype cannot be written."""
    changed: dict[tuple[str, str], list[str]] = {}
    for part in parts:
        if part.spec.dtype != part.source.dtype:
            changed.setdefault((part.source.dtype.name, part.spec.dtype.name), []).append(part.before.name)
    return [
        Finding(
            Severity.INFO,
            "encoded-again",
            f"{len(names)} computed organs become {after}, because {before} cannot be written: {names_text(names)}.",
            "encode",
            organs=tuple(names),
        )
        for (before, after), names in changed.items()
    ]


def _tied_findings(base: Parent, parts: Sequence[PlannedPart]) -> Iterator[Finding]:
    """Yield `tied-output` if the token embedding changes and `base` uses it as its output matrix too."""
    if any(part.before.place == OUTPUT_MATRIX for part in parts):
        return
    for part in parts:
        if part.before.place == TOKEN_EMBEDDING and part.acts:
            name = part.before.name
            sentence = f"{name} is also the output matrix of {base.label}: the change affects its input and its output."
            yield Finding(Severity.INFO, "tied-output", sentence, models=(base.label,), organs=(name,))


def _measured_findings(library: Library, base: Parent, donors: Sequence[Parent]) -> Iterator[Finding]:
    """Yield `measured-graft` for each donor whose organs were measured in a chimera of `base`: the best result."""
    for label, gain in library.measured(base, donors).items():
        worst = "" if gain.worst is None else f", at worst {gain.worst}"
        sentence = f"Validated before: {gain.chimera}, with {gain.grafted} of {label}. At best {gain.best}{worst}."
        yield Finding(Severity.INFO, "measured-graft", sentence, models=(base.label, label))


def _metadata_findings(base: Parent, parents: Sequence[Parent], recipe: Recipe) -> list[Finding]:
    """Return refusals of changes to the base's hyperparameters, and a warning if the stated license differs."""
    own = f"{base.header.architecture}."
    findings = [
        Finding(
            Severity.REFUSE,
            "bad-metadata",
            f"{key} is a hyperparameter of {base.label} and cannot be changed.",
            f"metadata.{key}",
            (base.label,),
        )
        for key in recipe.metadata
        if base.header.architecture and key.startswith(own)
    ]
    stated = license_expression({parent.label: parent.license for parent in parents}) or base.license or "none"
    for key, value in recipe.metadata.items():
        if key == LICENSE_KEY and value != stated:
            sentence = f"The recipe states the license {value!r}, but its parents give {stated}: read theirs."
            findings.append(Finding(Severity.WARN, "licenses-conflict", sentence, f"metadata.{key}", (base.label,)))
    return findings
