"""Plan a recipe. Rows, headers and fingerprints are read, and some rows of organs that are computed.

Nothing is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from msgspec import structs

from organs.registry.amounts import names_text, plural_text, ranges_text
from organs.registry.anatomy import (
    COMPANIONS,
    OUTPUT_MATRIX,
    TOKEN_EMBEDDING,
    OrganType,
    Slot,
    companion_slot,
    expert_name,
    is_expert_stack,
    is_factor,
    type_name,
)
from organs.registry.compose.adapters import additions_of, check_adapter
from organs.registry.compose.blend_steps import Blend, settings_at
from organs.registry.compose.compatibility import check_donors, check_replacements, check_withdrawn
from organs.registry.compose.cost import TEMPLATE_COST, Budget, steps_cost
from organs.registry.compose.layers import BLOCKS_MAX, TENSORS_MAX, Layers
from organs.registry.compose.licenses import license_expression
from organs.registry.compose.lock import LOCK_KEY
from organs.registry.compose.metadata import (
    LICENSE_KEY,
    changed_entry,
    dropped_keys,
    file_stem,
    metadata_findings,
    set_entries,
)
from organs.registry.compose.parents import Library, Parent, Part, ProvedSource, Replacement, license_of_parents
from organs.registry.compose.plan import (
    Addition,
    BlendedPart,
    Plan,
    PlannedBlend,
    PlannedComputation,
    PlannedImportances,
    PlannedPart,
)
from organs.registry.compose.pruning import pruned
from organs.registry.compose.quantisation import (
    IMATRIX_FIELD,
    UNWEIGHED,
    ChosenType,
    chosen_types,
    encoder_finding,
    header_entries,
    importances_of,
    needs_no_importances,
    refused_source,
    result_traits,
    rule_fields,
    type_findings,
    types_text,
)
from organs.registry.compose.recipe import (
    ARCHITECTURE_KEY,
    GIVEN,
    TEMPLATE_KEY,
    ExpertChoice,
    Graft,
    MetadataValue,
    Recipe,
    RecipePurification,
    donors_of,
    named_source,
)
from organs.registry.compose.screen import screened
from organs.registry.compose.selection import BlockRange, Selection, matches_slot, range_text
from organs.registry.compose.trial import Trial, summed, trial_cost, tried
from organs.registry.entities.finding import ARCHITECTURE_DIFFERS, Finding, Severity
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.plan import PRUNED, QUANTISED, KeptChange
from organs.registry.errors import (
    BadOrgan,
    EncoderMissing,
    NotFound,
    NothingRegistered,
    OrganError,
    StoreError,
    TooCostly,
    UnsupportedDType,
)
from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.mixes import is_quantised
from organs.registry.gguf.types import DType
from organs.registry.kinds import WEIGHT_KINDS, FileKind
from organs.registry.names import nearest
from organs.registry.search.language import RECIPE_BASE, parse_query
from organs.registry.transform import encoded_dtype
from organs.registry.transform.blend import METHODS
from organs.registry.transform.compute import ROW_MAX_ELEMENTS
from organs.registry.transform.purify import KEEP_DEFAULT
from organs.registry.transform.values import FINER, SAME, finer_dtypes, holds_weights

EXAMINED_MAX = 20_000
"""Organs that a graft by query examines, the best first."""
GUESSES_MAX = 5
"""Slots of a selection for which the nearest slot of the base is searched."""
SLOTS_COMPARED_MAX = 1000
"""Tensors of the base whose slots are compared with an unknown slot."""
MISSING_SHOWN_MAX = 10
"""Missing models in the error of a missing base."""
TRIED, TRIED_MAX = 4, 16
"""Organs of one type and tensor type on which a change is tried: usually, and if they have many slots at most."""
KEPT_MIN, KEPT_FINER = 0.5, 0.9
"""The shares of a change below which a plan warns, and which `encode: finer` keeps at least."""
TYPE_DEFAULT = OrganType.ORGAN.value
"""The type that a purification without type, slot and query selects."""

BlendedModel = tuple[Parent, Mapping[str, Addition]]
"""A model of a blend, and the products of its adapter by the names of the tensors."""
GroupKey = tuple[str, int | None, str]
"""Tower, block and type of organs that come from one model."""


def plan_recipe(recipe: Recipe, library: Library, budget: Budget | None = None) -> Plan:
    """Return the plan of `recipe` with all findings.

    Raises the errors of `library` for the base; a NotFound names all missing models of the recipe. Raises TooCostly if
    `budget` does not allow the work. All other problems are findings.
    """
    base = _base(recipe, library)
    if budget is not None:
        budget.spend(steps_cost(recipe, len(base.parts)))
    draft = Draft(base, recipe, library, budget or Budget())
    draft.arrange()
    draft.graft()
    draft.blend()
    draft.adapt()
    draft.purify()
    draft.choose_experts()
    draft.quantise()
    draft.try_changes()
    return draft.finished()


def _base(recipe: Recipe, library: Library) -> Parent:
    """Return the base of `recipe`; a NotFound names all missing models of the recipe."""
    try:
        return library.parent(recipe.base)
    except NotFound as error:
        messages, missing = [str(error)], error
    for name in donors_of(recipe):
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
class Draft:
    """An unfinished plan. Its methods do the steps of the recipe, in their order; mistakes become findings."""

    base: Parent
    """With the blocks of the result, once they are arranged."""
    recipe: Recipe
    library: Library
    budget: Budget = field(default_factory=Budget)
    layers: Layers | None = None
    findings: list[Finding] = field(default_factory=list)
    replacements: list[Replacement] = field(default_factory=list)
    """Those of all grafts, in the order of the grafts."""
    blended: list[Replacement] = field(default_factory=list)
    """The organs that are blended with those of the base."""
    adapters: list[Parent] = field(default_factory=list)
    placed: list[Parent] = field(default_factory=list)
    """The other models that give blocks."""
    steps: dict[str, str] = field(default_factory=dict)
    """By tensor: the field of the blend or the first adapter that changes it."""
    kept: list[KeptChange] = field(default_factory=list)
    hyperparameters: dict[str, MetadataValue] = field(default_factory=dict)
    """Those of the base that the organs of the result change, by their keys."""
    chosen: dict[str, ChosenType] = field(default_factory=dict)
    """The types of matrices that are quantised, by name."""
    importances: Parent | None = None
    parts: dict[str, PlannedPart] = field(init=False)
    _sources: dict[str, ProvedSource | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts = {part.name: PlannedPart(part, part, None) for part in self.base.parts}

    def arrange(self) -> None:
        """Give the result other blocks than those of the base, or in another order."""
        blocks = list(self._arranged_blocks())
        if any(finding.severity is Severity.REFUSE for finding in self.findings):
            return
        if blocks in ([], [(None, number) for number in range(len(self.base.by_block))]):
            return
        if ARCHITECTURE_KEY in self.recipe.metadata:
            sentence = "Layers and another architecture are two recipes: make the model of one of them first."
            self._refuse("bad-layers", sentence, f"metadata.{ARCHITECTURE_KEY}")
            return
        layers = Layers(self.base, tuple(blocks))
        if layers.tensors > max(TENSORS_MAX, len(self.base.parts)):
            self._refuse("bad-layers", f"The result would have {layers.tensors:,} tensors.", "layers")
            return
        self.budget.spend(steps_cost(self.recipe, max(0, layers.tensors - len(self.base.parts))))
        replacements = layers.replacements()
        self.findings += (item for item in check_donors(self.base, replacements) if item.code != "already-equal")
        if any(finding.severity is Severity.REFUSE for finding in self.findings):
            return
        for code, fault in layers.faults():
            self._refuse(code, f"{fault[:1].upper()}{fault[1:]}.", "layers")
        if any(finding.severity is Severity.REFUSE for finding in self.findings):
            return
        self.layers, self.base = layers, layers.result()
        self.placed = list({giver.label: giver for giver, _ in blocks if giver is not None}.values())
        self.parts = {}
        for part in self.base.parts:
            giver, number = layers.origin(part) or (None, part.place.block)
            is_placed = giver is not None or number != part.place.block
            donor = None if giver is None else layers.arranged(giver)
            self.parts[part.name] = PlannedPart(part, part, donor, from_block=number if is_placed else None)

    def _arranged_blocks(self) -> Iterator[tuple[Parent | None, int]]:
        """Yield the blocks of the recipe: the model that gives each, None for the base, and its number there."""
        count = 0
        givers: dict[str | None, Parent | None] = {None: self.base}
        for number, run in enumerate(self.recipe.layers):
            at = f"layers[{number}]"
            if run.donor not in givers and run.donor is not None:
                givers[run.donor] = self._block_giver(run.donor, f"{at}.from")
            giver = givers[run.donor]
            if giver is None or self._lacks_blocks(run.blocks, at, giver, giver.by_block):
                continue
            count += sum(last - first + 1 for first, last in run.blocks)
            if count > BLOCKS_MAX:
                self._refuse("bad-layers", f"A result has at most {BLOCKS_MAX:,} blocks.", at)
                return
            for first, last in run.blocks:
                yield from ((None if giver is self.base else giver, block) for block in range(first, last + 1))

    def _block_giver(self, name: str, at: str) -> Parent | None:
        """Return the model that gives blocks; None, with a refusal, for another kind or architecture."""
        giver = self._parent(name, "unknown-donor", at)
        if giver is None:
            return None
        if giver.header_digest == self.base.header_digest and giver.parts == self.base.parts:
            return self.base
        ours, theirs = self.base.header.architecture, giver.header.architecture
        if giver.kind not in WEIGHT_KINDS:
            self._refuse(
                "nothing-to-graft", f"{giver.label} is of the kind {giver.kind}, not a model.", at, giver.label
            )
        elif theirs is None or ours != theirs:
            sentence = f"{theirs} and {ours} are different architectures: no block of {giver.label} fits."
            self._refuse(ARCHITECTURE_DIFFERS, sentence, at, giver.label)
        else:
            return giver
        return None

    def graft(self) -> None:
        """Replace tensors and experts of the base. Raises StoreError for stored bytes that cannot be read."""
        taken: dict[Slot, dict[int | None, str]] = {}
        for number, graft in enumerate(self.recipe.grafts):
            at = f"grafts[{number}]"
            if self._lacks_blocks(graft.blocks, at, self.base, self._blocks):
                continue
            places = [part for part in self.base.parts if graft.holds(part.place)]
            if not places:
                self._refuse("nothing-selected", self._nothing_selected(graft), at)
            elif self._lacks_experts(graft, places, at):
                continue
            elif graft.donor is not None:
                self._add(self._of_donor(graft, graft.donor, places, at), taken, at)
            else:
                try:
                    self._add(self._of_query(graft, places, f"{at}.where"), taken, at)
                except OrganError as error:
                    self._refuse_error("bad-query", error, f"{at}.where")
        # The companions of weights, such as scales, that both models have and no graft takes, come from the same donor.
        for replacement in tuple(self.replacements):
            for companion in () if replacement.experts else COMPANIONS:
                slot = companion_slot(replacement.before.slot, companion)
                before, after = self.base.by_slot.get(slot), replacement.donor.by_slot.get(slot)
                if before is not None and after is not None and slot not in taken:
                    self.replacements.append(replace(replacement, before=before, after=after))
        for replacement in self.replacements:
            name = replacement.before.name
            if not replacement.experts:
                self.parts[name] = PlannedPart(replacement.before, replacement.after, replacement.donor)
            elif (changed := replacement.with_changed_experts()).experts:
                part = self.parts[name]
                computation = part.computation or PlannedComputation(part.source, part.source.dtype)
                grafted = replace(computation, grafted=(*computation.grafted, changed))
                self.parts[name] = replace(part, computation=grafted)

    def blend(self) -> None:
        """Blend tensors with those of other models; each tensor can be blended once."""
        for number, step in enumerate(self.recipe.blends):
            at = "blends" if len(self.recipe.blends) == 1 else f"blends[{number}]"
            if self._lacks_blocks(step.blocks, at, self.base, self._blocks):
                continue
            try:
                places = self._blended_places(step)
            except OrganError as error:
                self._refuse_error("bad-query", error, f"{at}.where")
                continue
            if not places:
                self._refuse("nothing-selected", self._nothing_selected(step), at)
                continue
            twice = [part.name for part in places if (item := self.parts[part.name].computation) and item.blend]
            if twice:
                sentence = f"{at} blends {names_text(twice)} a second time: remove one of the steps."
                self._refuse("overlapping-steps", sentence, at, organs=twice)
                continue
            donors = self._blended_models(step, at)
            if donors is not None:
                self._blend_all(step, places, donors, at)

    def _blended_places(self, step: Blend) -> list[Part]:
        """Return the tensors of the base that a blend selects, without factors of others of them. Raises BadQuery."""
        places = {part.slot: part for part in self.base.parts if step.holds(part.place)}
        if step.where:
            models = {slot: self._giver(part).label for slot, part in places.items()}
            matching = {model: self._matching(model, step.where) for model in dict.fromkeys(models.values())}
            places = {slot: part for slot, part in places.items() if slot in matching[models[slot]]}
        return [part for slot, part in places.items() if not is_factor(slot, places)]

    def _giver(self, part: Part) -> Parent:
        """Return the model whose organ a tensor of the base is: another one if it gave the block."""
        origin = None if self.layers is None else self.layers.origin(part)
        return self.base if origin is None or origin[0] is None else origin[0]

    def _matching(self, model: str, where: str) -> set[Slot]:
        """Return the places of the organs of a model that a query finds. Raises BadQuery."""
        found = self.library.organs(f"model:{model} {where}")
        return {slot for organ in found for slot in self._slots((organ.tower, organ.block, organ.slot))}

    def _slots(self, slot: Slot) -> Iterable[Slot]:
        """Return the places in the result of an organ that the catalog has at `slot`."""
        return (slot,) if self.layers is None else self.layers.slots(slot)

    def _arranged(self, model: str) -> Parent:
        """Return the model that `model` names, with the blocks of the result. Raises the errors of the library."""
        parent = self.library.parent(model)
        return parent if self.layers is None else self.layers.arranged(parent)

    def _blended_models(self, step: Blend, at: str) -> list[BlendedModel] | None:
        """Return the models of a blend, each with the products of its adapter; None after a refusal."""
        donors = []
        for number, donor in enumerate(step.donors):
            place = f"{at}.models[{number}]" if step.models else at
            model = self._parent(donor.model, "unknown-donor", f"{place}.from")
            adapter = self._parent(donor.adapter, "unknown-adapter", f"{place}.adapter") if donor.adapter else None
            if model is None or (donor.adapter and adapter is None):
                return None
            if model.kind not in WEIGHT_KINDS:
                sentence = f"{model.label} is of the kind {model.kind}, not a model: it has no tensors to blend."
                self._refuse("nothing-to-graft", sentence, place, model.label)
                return None
            additions: Mapping[str, Addition] = {}
            if adapter is not None:
                findings = check_adapter(model, adapter)
                self.findings += [structs.replace(finding, field=finding.field or place) for finding in findings]
                self.adapters.append(adapter)
                additions = additions_of(adapter, 1.0)
            donors.append((model, additions))
        return donors

    def _blend_all(
        self,
        step: Blend,
        places: Sequence[Part],
        donors: Sequence[BlendedModel],
        at: str,
    ) -> None:
        """Add the blend of each of `places`; it is left out where all models have the bytes of the organ there.

        Organs that a model lacks, that cannot be read, and parameters without a value are refused.
        """
        long = [part.name for part in places if part.shape[0] > ROW_MAX_ELEMENTS]
        if long:
            sentence = f"Rows of more than {ROW_MAX_ELEMENTS:,} values are not blended here: {names_text(long)}."
            self._refuse("bad-blend", sentence, at, organs=long)
            return
        for model, _ in donors:
            lacking = [part.name for part in places if part.slot not in model.by_slot]
            if lacking:
                sentence = f"{model.label} has no {names_text(lacking)}, selected in {self.base.label}."
                self._refuse("organ-absent", sentence, at, model.label, lacking)
                return
        last_block = max((part.place.block for part in self.base.parts if part.place.block is not None), default=0)
        unset: dict[str, list[str]] = {}
        unread: dict[tuple[str, str], list[str]] = {}
        half_proved: dict[str, list[str]] = {}
        equal: list[str] = []
        keeps_equal = METHODS[step.method].needs_base is not False
        for before in places:
            depth = (before.place.block or 0) / last_block if last_block else 0.0
            settings, missing = settings_at(step, before.place, depth)
            for name in missing:
                unset.setdefault(name, []).append(before.name)
            parts = [model.by_slot[before.slot] for model, _ in donors]
            pairs = [
                Replacement(before, part, model, by_slot=True) for part, (model, _) in zip(parts, donors, strict=True)
            ]
            self.blended += [pair for pair in pairs if pair.donor.label != self.base.label]
            planned = self.parts[before.name]
            is_equal = not any(replace(pair, before=planned.source).changes for pair in pairs)
            is_computed = planned.computation or any(
                pair.after.name in added for pair, (_, added) in zip(pairs, donors, strict=True)
            )
            is_mean = keeps_equal or settings.get("normalize", True) or settings.get("weight") == [1.0]
            if is_equal and not is_computed and is_mean:
                equal.append(before.name)
                continue
            operands = [(planned.donor or self.base, planned.source), *((pair.donor, pair.after) for pair in pairs)]
            lacking_source = [model.label for model, part in operands if self._lacks_source(model, part)]
            of_source = not lacking_source
            if not of_source and any(self._has_source(model, part) for model, part in operands):
                half_proved.setdefault(lacking_source[0], []).append(before.name)
            computation = None if missing else self._computation(before.name, at, of_source=of_source)
            if computation is None or not all(pair.fits for pair in pairs):
                continue
            blended = tuple(
                self._blended_part(model, part, additions.get(part.name), of_source=of_source)
                for part, (model, additions) in zip(parts, donors, strict=True)
            )
            for item in blended:
                if not holds_weights(item.part.dtype):
                    label = (item.source_model or item.model).label
                    unread.setdefault((label, item.part.dtype.name), []).append(item.part.name)
            masks = (step.seed, before.name) if METHODS[step.method].is_random else ()
            blend = PlannedBlend(step.method, blended, settings, *masks)
            self.parts[before.name] = replace(self.parts[before.name], computation=replace(computation, blend=blend))
            self.steps[before.name] = at
        if equal:
            sentence = f"All models of the blend have the same bytes in {names_text(equal)}: nothing changes there."
            self.findings.append(Finding(Severity.INFO, "already-equal", sentence, at, organs=tuple(equal)))
        for label, names in half_proved.items():
            sentence = (
                f"{plural_text(len(names), 'tensor is', 'tensors are')} computed with given weights: it is not proved "
                f"from which model {label} was made. To compute with the sources: organ prove {label}."
            )
            self.findings.append(Finding(Severity.INFO, "source-not-used", sentence, at, (label,), tuple(names)))
        for (label, dtype), names in unread.items():
            sentence = f"{label} stores {names_text(names)} as {dtype}: no weights can be computed from this type."
            self._refuse("dtype-refused", sentence, at, label, names)
        for name, names in unset.items():
            sentence = (
                f"{step.method} needs {name}, and no rule gives it for {names_text(names)}: add a rule for all others."
            )
            self._refuse("parameter-missing", sentence, f"{at}.{name}", organs=names)

    def adapt(self) -> None:
        """Add the products of the adapters to the tensors that they change."""
        for number, merge in enumerate(self.recipe.adapters):
            at = f"adapters[{number}]"
            adapter = self._parent(merge.adapter, "unknown-adapter", f"{at}.from")
            if adapter is None:
                continue
            if self.layers is not None:
                left = sorted(set(self.library.parent(merge.adapter).by_block) - set(self.layers.former))
                if left:
                    sentence = f"What {adapter.label} changes in the dropped blocks {ranges_text(left)} is left out."
                    self.findings.append(Finding(Severity.INFO, "adapter-left-out", sentence, at, (adapter.label,)))
            findings = check_adapter(self.base, adapter)
            self.findings += [structs.replace(finding, field=finding.field or at) for finding in findings]
            if any(finding.severity is Severity.REFUSE for finding in findings):
                continue
            self.adapters.append(adapter)
            for name, addition in additions_of(adapter, merge.scale).items():
                computation = self._computation(name, at, of_source=True)
                if computation is not None:
                    more = replace(computation, additions=(*computation.additions, addition))
                    self.parts[name] = replace(self.parts[name], computation=more)
                    self.steps.setdefault(name, at)

    def purify(self) -> None:
        """Add purifications; each tensor can be purified once."""
        for number, step in enumerate(self.recipe.purify):
            at = "purify" if len(self.recipe.purify) == 1 else f"purify[{number}]"
            try:
                names = self._selected(step, at)
            except OrganError as error:
                self._refuse_error("bad-query", error, f"{at}.where")
                continue
            twice = [name for name in names if (planned := self.parts[name].computation) and planned.method]
            if twice:
                sentence = f"{at} purifies {names_text(twice)} a second time: remove one of the steps."
                self._refuse("overlapping-steps", sentence, at, organs=twice)
            done = set(twice)
            for name in (name for name in names if name not in done):
                computation = self._computation(name, at)
                if computation is None or (step.experts and self._refuses_experts(computation, at)):
                    continue
                keep = KEEP_DEFAULT if step.keep is None and step.method == "spectral" else step.keep
                experts = step.expert_numbers(computation.source.shape[-1])
                purified = replace(computation, method=step.method.value, keep=keep, purified_experts=experts)
                self.parts[name] = replace(self.parts[name], computation=purified)

    def choose_experts(self) -> None:
        """Leave out experts of the result, with their rows of the routers."""
        steps: dict[str, ExpertChoice] = {}
        for number, step in enumerate(self.recipe.experts):
            at = "experts" if len(self.recipe.experts) == 1 else f"experts[{number}]"
            if not self._lacks_blocks(step.blocks, at, self.base, self._blocks):
                steps[at] = step
        if not steps:
            return
        tensors = (replace(part.source, name=name) for name, part in self.parts.items())
        pruning = pruned(self.base, tensors, steps)
        self.findings += pruning.findings
        self.hyperparameters |= pruning.hyperparameters
        for name, kept in pruning.kept.items():
            part = self.parts[name]
            computation = part.computation or PlannedComputation(part.source, part.source.dtype)
            self.parts[name] = replace(part, computation=replace(computation, kept_experts=kept))

    def quantise(self) -> None:
        """Choose the tensor types of matrices by the rules; those that have their type keep their bytes."""
        rules = rule_fields(self.recipe)
        if self.recipe.imatrix is not None:
            self.importances = self._importances(self.recipe.imatrix)
        for at, rule in list(rules.items()):
            if self._lacks_blocks(rule.blocks, at, self.base, self._blocks):
                rules.pop(at)
        specs, places = [part.spec for part in self.parts.values()], {part.name: part.place for part in self.base.parts}
        by_importances = self.recipe.imatrix is not None
        traits = result_traits(self.base, self.layers, self.hyperparameters, by_importances=by_importances)
        self.chosen = chosen_types(rules, places, specs, traits)
        for at, rule in rules.items():
            if not any(rule.holds(places[spec.name]) and is_quantised(spec) for spec in specs):
                is_empty = not any(rule.holds(place) for place in places.values())
                kept = f"Only matrices are quantised, and {self.base.label} has none in this selection."
                self._refuse("nothing-selected", self._nothing_selected(rule) if is_empty else kept, at)
        refused: dict[tuple[str, str, str], list[str]] = {}
        absent, misfits = list[str](), dict[str, str]()
        for name, chosen in self.chosen.items():
            part = self.parts[name]
            weights = None if chosen.dtype.name in UNWEIGHED else self._importances_of(part, absent, misfits)
            if part.spec.dtype == chosen.dtype and (part.computation is None or weights is None):
                continue
            reason = refused_source(part)
            fault = encoder_finding(name, chosen, weighed=weights is not None)
            fault = fault if reason is None else ("dtype-refused", reason)
            if fault is not None:
                refused.setdefault((*fault, chosen.at), []).append(name)
                continue
            done = part.computation
            computation = self._from_source(part) if done is None or done.acts == (PRUNED,) else done
            is_quantised_now = part.spec.dtype != chosen.dtype
            computation = replace(computation, dtype=chosen.dtype, quantised=is_quantised_now, importances=weights)
            self.parts[name] = replace(part, computation=computation)
        for (code, reason, at), names in refused.items():
            self._refuse(code, f"{names_text(names)}: {reason}.", at, organs=names)
        if misfits and self.importances is not None:
            first, more = next(iter(misfits.values())), len(misfits) - 1
            others = f"; {plural_text(more, 'other weight does', 'other weights do')} not fit either" if more else ""
            sentence = f"{self.importances.label} is of another model: {first}{others}."
            self._refuse("bad-imatrix", sentence, IMATRIX_FIELD, self.importances.label, list(misfits))
        if absent and self.importances is not None:
            sentence = (
                f"{self.importances.label} has no importances of {names_text(absent)}: all columns count the same."
            )
            label = (self.importances.label,)
            self.findings.append(
                Finding(Severity.INFO, "importances-absent", sentence, IMATRIX_FIELD, label, tuple(absent))
            )

    def _importances(self, name: str) -> Parent | None:
        """Return the importance matrix `name`; None, with a refusal, if it is none or no rule uses it."""
        try:
            matrix = self.library.parent(name)
        except OrganError as error:
            self._refuse_error("unknown-imatrix", error, IMATRIX_FIELD)
            return None
        if matrix.kind != FileKind.IMATRIX:
            sentence = f"{matrix.label} is of the kind {matrix.kind}, not an importance matrix."
            self._refuse("bad-imatrix", sentence, IMATRIX_FIELD, matrix.label)
            return None
        if not self.recipe.quantize:
            sentence = "The importance matrix weighs the errors of quantize, which the recipe has not."
            self._refuse("bad-imatrix", sentence, IMATRIX_FIELD, matrix.label)
        return matrix

    def _importances_of(
        self, part: PlannedPart, absent: list[str], misfits: dict[str, str]
    ) -> PlannedImportances | None:
        """Return the importances of a matrix; None if there are none, whose name is added to `absent` or `misfits`.

        `misfits` has the reason. Those of a block that another model gave are not known: its inputs are others.
        """
        is_placed = part.from_block is not None and part.donor is not None
        if self.importances is None or is_placed:
            return None
        stored = part.before.name if self.layers is None else self.layers.stored_name(part.before)
        found, reason = importances_of(self.importances, stored, part.source.shape)
        if found is None and (not reason or needs_no_importances(part.before.name)):
            absent.append(part.before.name)
        elif found is None:
            misfits[part.before.name] = reason
        return found

    def _from_source(self, part: PlannedPart) -> PlannedComputation:
        """Return the computation of an organ whose weights nothing changes, from its proved source if there is one."""
        kept = () if part.computation is None else part.computation.kept_experts
        source = self._source(part.donor or self.base) if part.source.dtype.block_elements > 1 else None
        made_from = None if source is None else source.parts.get(self._stored_slot(part.source))
        if source is None or made_from is None:
            return PlannedComputation(part.source, part.source.dtype, kept_experts=kept)
        return PlannedComputation(made_from, part.source.dtype, source_model=source.model, kept_experts=kept)

    def try_changes(self) -> None:
        """Try blends and adapters on some rows of some organs of each type, and choose their tensor types.

        Nothing is tried after a refusal. Raises StoreError for stored bytes that cannot be read, and TooCostly.
        """
        if any(finding.severity is Severity.REFUSE for finding in self.findings):
            return
        groups: dict[tuple[str, str, bool, DType, tuple[DType, ...]], list[str]] = {}
        for name, part in self.parts.items():
            computation = part.computation
            if computation is not None and (computation.blend or computation.additions):
                dtype, is_of_source = computation.dtype, computation.source_model is not None
                finer = () if computation.quantised else tuple(finer_dtypes(dtype, computation.source.shape[:1]))
                key = (part.before.place.type.value, part.source.dtype.name, is_of_source, dtype, finer)
                groups.setdefault(key, []).append(name)
        for (kind, before, _, dtype, finer), names in groups.items():
            chosen = self._spread(names)
            trials = self._tried(chosen, [dtype])
            if not trials:
                continue
            trial = summed(trials.values())
            kept = trial.kept(dtype.name)
            is_lost = kept < KEPT_FINER and trial.change and finer
            wide = summed(self._tried(chosen, finer).values()) if is_lost else Trial()
            self._settle(
                names,
                trials,
                KeptChange(
                    type=kind,
                    dtype_before=before,
                    dtype=dtype.name,
                    organs=len(names),
                    moved=trial.moved,
                    kept=kept,
                    values=trial.values,
                    finer={item.name: wide.kept(item.name) for item in finer if item.name in wide.along},
                ),
            )

    def _spread(self, names: Sequence[str]) -> list[str]:
        """Return some of `names`: of every slot, as far as TRIED_MAX allows, and of different blocks."""
        slots: dict[tuple[str, str], list[str]] = {}
        for name in names:
            slots.setdefault(_slot_of(self.parts[name].before), []).append(name)
        members = list(slots.values())
        count = min(max(TRIED, len(members)), TRIED_MAX)
        chosen = (members[number % len(members)] for number in range(count))
        return list(dict.fromkeys(own[number * len(own) // count] for number, own in enumerate(chosen)))

    def _tried(self, names: Sequence[str], dtypes: Sequence[DType]) -> dict[str, Trial]:
        """Return the trials of organs in each of `dtypes`, by name; none after a refusal, or without stored bytes."""
        trials = {}
        for name in names:
            computation = self.parts[name].computation
            assert computation is not None
            self.budget.spend(trial_cost(computation, dtypes))
            stored = self.library.stored(computation.ingredients)
            if stored is None:
                return {}
            try:
                trials[name] = tried(*stored, computation, dtypes)
            except BadOrgan as error:
                self._refuse("bad-blend", f"{name}: {error}.", self.steps[name], organs=[name])
                return {}
        return trials

    def _settle(self, names: Sequence[str], trials: Mapping[str, Trial], kept: KeptChange) -> None:
        """Write organs of one type in a finer type, if the recipe says so, or warn of a change that rounding loses.

        What the trials of a slot moved counts for all its organs.
        """
        better = next((dtype for dtype, share in kept.finer.items() if share >= KEPT_FINER), None)
        if self.recipe.encode == FINER and better is not None:
            kept = structs.replace(kept, dtype=better, kept=kept.finer[better])
        elif kept.kept < KEPT_MIN:
            advice = f"encode: finer writes them as {better}, which keeps {kept.finer[better]:.0%}" if better else ""
            if not any(item.source_model for name in names if (item := self.parts[name].computation)):
                proof = "if the model that they were quantised from is stored, organ prove lets recipes compute with it"
                advice = f"{advice}; {proof}" if advice else proof
            kind = type_name(kept.type)
            organs = plural_text(kept.organs, f"{kind} tensor", f"{kind} tensors")
            sentence = (
                f"Rounding to {kept.dtype} keeps {kept.kept:.0%} of the change of {organs}, as a trial on "
                f"{kept.values:,} values shows{f'; {advice}' if advice else ''}."
            )
            self.findings.append(
                Finding(Severity.WARN, "change-lost-in-rounding", sentence, "encode", organs=tuple(names))
            )
        self.kept.append(kept)
        by_slot: dict[tuple[str, str], list[Trial]] = {}
        for name, trial in trials.items():
            by_slot.setdefault(_slot_of(self.parts[name].before), []).append(trial)
        moved = {slot: summed(own).moved for slot, own in by_slot.items()}
        for name in names:
            part = self.parts[name]
            assert part.computation is not None
            computation = replace(part.computation, dtype=dtype_by_name(kept.dtype))
            estimate = moved.get(_slot_of(part.before), kept.moved)
            self.parts[name] = replace(part, computation=computation, moved=estimate)

    def finished(self) -> Plan:
        """Return the plan with the findings on the whole of it."""
        base, recipe = self.base, self.recipe
        parts = tuple(self.parts[part.name] for part in base.parts)
        computations = [part.computation for part in parts if part.computation is not None]
        sources = [model for computation in computations for model in computation.source_models]
        used = [
            base,
            *self.placed,
            *(replacement.donor for replacement in (*self.replacements, *self.blended)),
            *self.adapters,
            *sources,
        ]
        parents = tuple({(parent.label, parent.header_digest): parent for parent in used}.values())
        is_changed = self.layers is not None or any(part.acts for part in parts)
        is_edit = not is_changed and not any(item.severity is Severity.REFUSE for item in self.findings)
        is_quantisation = self.layers is None and {act for part in parts for act in part.acts} == {QUANTISED}
        role = {"is_edit": is_edit, "is_quantisation": is_quantisation}
        entries = [] if self.layers is None else list(self.layers.entries())
        entries += [changed_entry(base.header, key, value) for key, value in self.hyperparameters.items()]
        entries += header_entries(recipe, self.importances) if any(QUANTISED in part.acts for part in parts) else ()
        sets = set_entries(base, parents, [part.spec for part in parts], recipe.metadata, entries, **role)
        license = license_of_parents(parents)
        replaced = check_replacements(base, self.replacements, self.blended)
        findings = [
            *self.findings,
            *(item for item in replaced if self.layers is None or item.code != "changed-share"),
            *self._of_result(parts, parents),
            *self._of_sources(computations),
            *type_findings(base, parts, self.chosen),
            *check_withdrawn(parents),
            *license.findings,
        ]
        drops = dropped_keys(base.header, sets, **role)
        if (
            is_edit
            and not sets
            and not set(drops) - {LOCK_KEY}
            and not any(item.severity is Severity.REFUSE for item in findings)
        ):
            sentence = f"The recipe changes nothing of {base.label}."
            findings.append(Finding(Severity.REFUSE, "nothing-to-do", sentence, models=(base.label,)))
        of_base = self._sources.get(base.label)
        if of_base is not None and any(computation.source_model is of_base.model for computation in computations):
            recipe = structs.replace(recipe, source=of_base.model.label)
        if self.importances is not None:
            recipe = structs.replace(recipe, imatrix=self.importances.label)
        edited = [entry.key for entry in sets] if is_edit else ()
        return Plan(
            recipe=recipe,
            base=base if self.layers is None else self.layers.base,
            parents=parents,
            parts=parts,
            sets=sets,
            drops=drops,
            findings=tuple(dict.fromkeys(findings)),
            screen=screened(parts, layers=self.layers, edited=edited, quantised=types_text(parts, recipe, base.label)),
            license=license.text,
            stem=file_stem(base, sets, recipe.name, is_quantisation=is_quantisation),
            kept=tuple(self.kept),
            layers=self.layers,
            importances=self.importances,
        )

    def _of_sources(self, computations: Sequence[PlannedComputation]) -> Iterator[Finding]:
        """Yield a finding for each model whose weights are used in place of those that were quantised from them."""
        for label, source in self._sources.items():
            counted = [item for item in computations if source is not None and source.model in item.source_models]
            if source is None or not counted:
                continue
            matrix = "; they were made by an importance matrix, and are written without it" * source.by_importances
            sentence = (
                f"{plural_text(len(counted), 'tensor', 'tensors')} of {label}, proved to be made from those of "
                f"{source.model.label}, are computed with these{matrix}. To use their own: source: given."
            )
            models = (label, source.model.label)
            yield Finding(Severity.INFO, "computed-from-source", sentence, "source", models)

    def _of_result(self, parts: Sequence[PlannedPart], parents: Sequence[Parent]) -> Iterator[Finding]:
        """Yield the findings on the result, beside those on its replacements and licenses.

        `encoded-again`: the dtype of a computed organ cannot be written. `tied-output`: a changed token embedding is
        the output matrix too. `measured-graft`: the best result of chimeras of the same base with organs of a donor.
        `licenses-conflict`: another license is stated. Those on metadata are in `metadata.metadata_findings`.
        """
        base, labels = self.base, (self.base.label,)
        encoded: dict[tuple[str, str], list[str]] = {}
        for part in parts:
            if part.spec.dtype != part.source.dtype and QUANTISED not in part.acts:
                encoded.setdefault((part.source.dtype.name, part.spec.dtype.name), []).append(part.before.name)
        for (before, after), names in encoded.items():
            become = plural_text(len(names), "computed tensor becomes", "computed tensors become")
            sentence = f"{become} {after} instead of {before}: {names_text(names)}."
            yield Finding(Severity.INFO, "encoded-again", sentence, "encode", organs=tuple(names))
        is_tied = not any(part.before.place == OUTPUT_MATRIX for part in parts)
        for part in parts:
            if is_tied and part.before.place == TOKEN_EMBEDDING and set(part.acts) - {QUANTISED}:
                name = part.before.name
                sentence = (
                    f"{name} is also the output matrix of {base.label}: the change affects its input and its output."
                )
                yield Finding(Severity.INFO, "tied-output", sentence, models=labels, organs=(name,))
        for label, gain in self.library.measured(base, parents[1:]).items():
            worst = "" if gain.worst is None else f", at worst {gain.worst}"
            sentence = f"Validated before: {gain.chimera}, with {gain.grafted} of {label}. At best {gain.best}{worst}."
            yield Finding(Severity.INFO, "measured-graft", sentence, models=(base.label, label))
        metadata = self.recipe.metadata
        templates = (text for key, text in metadata.items() if key.startswith(TEMPLATE_KEY) and isinstance(text, str))
        self.budget.spend(TEMPLATE_COST * sum(map(len, templates)))
        yield from metadata_findings(base, metadata)
        stated = license_expression({parent.label: parent.license for parent in parents}) or base.license or "none"
        if metadata.get(LICENSE_KEY, stated) != stated:
            value = metadata[LICENSE_KEY]
            sentence = f"The recipe states the license {value!r}, but its parents give {stated}: read theirs."
            yield Finding(Severity.WARN, "licenses-conflict", sentence, f"metadata.{LICENSE_KEY}", labels)

    def _of_donor(self, graft: Graft, name: str, places: Sequence[Part], at: str) -> list[Replacement]:
        """Return the replacements by the donor `name`; organs that only one of the two models has become findings."""
        base, donor = self.base, self._parent(name, "unknown-donor", f"{at}.from")
        if donor is None:
            return []
        if donor.header_digest == base.header_digest and donor.parts == base.parts:
            self._refuse("own-donor", f"{donor.label} is the base itself: choose another donor.", at, donor.label)
            return []
        replacements = self._replacements_by(donor, places, graft)
        if not replacements:
            sentence = f"{donor.label} has none of the {len(places)} tensors that are selected in {base.label}."
            if donor.kind == FileKind.ADAPTER:
                sentence = f"{donor.label} is an adapter, which is merged and not grafted: name it under `adapters`."
            elif donor.kind not in WEIGHT_KINDS:
                sentence = f"{donor.label} is of the kind {donor.kind}, not a model: it has no tensors to graft."
            self._refuse("nothing-to-graft", sentence, at, donor.label)
            return []
        surplus = [part.name for part in donor.parts if graft.holds(part.place) and part.slot not in base.by_slot]
        if surplus:
            sentence = f"{base.label} has no place for {names_text(surplus)} of {donor.label}."
            self._refuse("slot-absent", sentence, at, donor.label, surplus)
        missing = [part.name for part in places if part.slot not in donor.by_slot]
        if missing and donor.complete:
            sentence = f"{donor.label} has no {names_text(missing)}, selected in {base.label}."
            self._refuse("organ-absent", sentence, at, donor.label, missing)
        elif missing:
            sentence = f"{names_text(missing)} of {base.label} stay: {donor.label} has only some tensors."
            self.findings.append(Finding(Severity.INFO, "kept-organs", sentence, at, (donor.label,), tuple(missing)))
        return replacements

    def _of_query(self, graft: Graft, places: Sequence[Part], at: str) -> list[Replacement]:
        """Return the replacements by the models that the query of `graft` finds; raises BadQuery."""
        base = self.base
        groups: dict[GroupKey, dict[Slot, Part]] = {}
        for part in (part for part in places if not is_factor(part.slot, base.by_slot)):  # factors follow their weights
            key = (part.place.tower.value, part.place.block, part.place.type.value)
            groups.setdefault(key, {})[part.slot] = part
        organs, winners = self._search(graft, groups)
        replacements = [
            replacement
            for key, group in groups.items()
            if key in winners
            for replacement in self._replacements_by(self._arranged(winners[key]), group.values(), graft)
        ]
        if not winners and not takes_strangers(graft):
            _, strangers = self._search(structs.replace(graft, strangers=True), groups)
            if strangers:
                models = names_text(list(dict.fromkeys(strangers.values())))
                sentence = (
                    f"{graft.where!r} finds only tensors of models that are not kin of {base.label}: {models}. "
                    "To use them, add strangers: true, or name a model with model:."
                )
                self._refuse("only-strangers", sentence, at)
                return []
        if not replacements:
            result = f"{len(organs)} tensors, but no complete group for" if organs else "nothing that fits"
            self._refuse("empty-query", f"{graft.where!r} finds {result} {base.label}.", at)
            return []
        types = {organ.type for organ in organs}  # other types were not searched, so they are not missing
        without = (group for key, group in groups.items() if key[2] in types and key not in winners)
        left = [part.name for group in without for part in group.values()]
        if left:
            sentence = f"{graft.where!r} finds no complete group for {names_text(left)}: the base's own stay."
            self.findings.append(Finding(Severity.INFO, "kept-organs", sentence, at, organs=tuple(left)))
        if len(organs) == EXAMINED_MAX:
            examined = f"only the best {EXAMINED_MAX} were examined"
            sentence = f"{graft.where!r} finds more than {EXAMINED_MAX} tensors; {examined}."
            self.findings.append(Finding(Severity.INFO, "query-cut", sentence, at))
        return replacements

    def _search(
        self, graft: Graft, groups: Mapping[GroupKey, dict[Slot, Part]]
    ) -> tuple[list[PlacedOrgan], dict[GroupKey, str]]:
        """Return the examined results of a graft's query, and for each group the first model that has all its organs.

        It stops when every group that the query's types allow has a model, or after EXAMINED_MAX organs. Organs that a
        model has in common with the base count as present, because queries do not find them.
        """
        stored = self.library.in_common(self.base)
        common = {place: names for slot, names in stored.items() for place in self._slots(slot)}
        query = query_of(self.base, graft if self.layers is None else self.layers.stored_selection(graft))
        types = [choice for choice in parse_query(query, base=self.base.label).choices("type") if not choice.negated]
        searched = {key: group for key, group in groups.items() if all(key[2] in choice.values for choice in types)}
        examined: list[PlacedOrgan] = []
        lacking: dict[tuple[GroupKey, str], set[Slot]] = {}
        winners: dict[GroupKey, str] = {}
        for organ in islice(self.library.organs(query, self.base.label), EXAMINED_MAX):
            examined.append(organ)
            for slot in self._slots((organ.tower, organ.block, organ.slot)):
                key = (*slot[:2], organ.type)
                group = searched.get(key, {})
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

    def _replacements_by(self, donor: Parent, places: Iterable[Part], selection: Selection) -> list[Replacement]:
        """Return the replacements of `places` by the organs that `donor` has there, or by experts of them."""
        pairs = [(part, donor.by_slot[part.slot]) for part in places if part.slot in donor.by_slot]
        if not selection.experts:
            return [Replacement(before, after, donor, by_slot=bool(selection.slots)) for before, after in pairs]
        numbers = {before.name: selection.expert_numbers(before.shape[-1]) for before, _ in pairs}
        every = {number for selected in numbers.values() for number in selected}
        stacks: dict[str, tuple[Parent, list[Part]]] = {}
        for before, _ in pairs:
            giver = self._giver(before)
            stacks.setdefault(giver.label, (giver, []))[1].append(before)
        ours = {key: part for giver, own in stacks.values() for key, part in self._experts(giver, own, every).items()}
        theirs = self._experts(donor, [after for _, after in pairs], every)

        def expert(known: Mapping[tuple[str, int], Part], stack: Part, number: int, nonfinite: int | None) -> Part:
            """Return an expert; one that the library does not know has the digest of its stack, and no measures."""
            name = expert_name(stack.name, number)
            return known.get((stack.name, number)) or Part(
                name, stack.place, stack.dtype, stack.shape[:2], stack.digest, nonfinite=nonfinite
            )

        return [
            Replacement(
                *(before, after, donor),
                by_slot=True,
                experts=numbers[before.name],
                pairs=tuple(
                    (expert(ours, before, number, None), expert(theirs, after, number, after.nonfinite))
                    for number in numbers[before.name]
                ),
            )
            for before, after in pairs
        ]

    def _experts(
        self, model: Parent, stacks: Sequence[Part], numbers: Collection[int]
    ) -> Mapping[tuple[str, int], Part]:
        """Return the known experts `numbers` of `stacks`, by the names of these and by number."""
        if self.layers is None:
            return self.library.experts(model, {stack.name for stack in stacks}, numbers)
        names = {stack.name: self.layers.stored_name(stack) for stack in stacks}
        known = self.library.experts(model, set(names.values()), numbers)
        return {
            (stack.name, number): replace(expert, name=expert_name(stack.name, number), place=stack.place)
            for stack in stacks
            for number in numbers
            if (expert := known.get((names[stack.name], number))) is not None
        }

    def _add(self, replacements: Sequence[Replacement], taken: dict[Slot, dict[int | None, str]], at: str) -> None:
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
                self.replacements.append(replacement)
        if names:
            sentence = f"Both {at} and {', '.join(sorted(others))} replace {names_text(names)}: remove one of them."
            self._refuse("overlapping-grafts", sentence, at, organs=names)

    def _selected(self, step: RecipePurification, at: str) -> list[str]:
        """Return the names of the tensors that `step` purifies; without type, slot and query, the feed-forward.

        A query uses the measures of the models' own organs, before any step. Factors of weights are left out: a weight
        is purified as it is stored, and its factor stays. Raises BadQuery.
        """
        if self._lacks_blocks(step.blocks, at, self.base, self._blocks):
            return []
        selection = step if step.types or step.slots or step.where else structs.replace(step, types=(TYPE_DEFAULT,))
        sources = {name: (part.source, (part.donor or self.base).label) for name, part in self.parts.items()}
        slots = {source.slot for source, _ in sources.values()}
        selected = {
            name: (source, model)
            for name, (source, model) in sources.items()
            if selection.holds(source.place) and not is_factor(source.slot, slots)
        }
        if step.where:
            models = dict.fromkeys(model for _, model in selected.values())
            matching = {model: self._matching(model, step.where) for model in models}
            selected = {
                name: (source, model) for name, (source, model) in selected.items() if source.slot in matching[model]
            }
        if not selected:
            self._refuse("nothing-selected", self._nothing_selected(selection), at)
        return [] if self._lacks_experts(step, [source for source, _ in selected.values()], at) else list(selected)

    def _blended_part(self, model: Parent, part: Part, addition: Addition | None, *, of_source: bool) -> BlendedPart:
        source = self._source(model) if of_source else None
        made_from = None if source is None else source.parts.get(self._stored_slot(part))
        if source is None or made_from is None:
            return BlendedPart(model, part, addition)
        return BlendedPart(model, made_from, addition, source.model)

    def _has_source(self, model: Parent, part: Part) -> bool:
        source = self._source(model)
        return source is not None and self._stored_slot(part) in source.parts

    def _stored_slot(self, part: Part) -> Slot:
        """Return the place that a tensor has in the catalog."""
        return part.slot if self.layers is None else self.layers.stored_slot(part.slot)

    def _lacks_source(self, model: Parent, part: Part) -> bool:
        """Return whether a tensor of a model is quantised, and its source is not proved.

        If only some models of a blend are computed with their sources, the rounding of the others is a part of it.
        """
        return part.dtype.block_elements > 1 and not self._has_source(model, part)

    def _source(self, model: Parent) -> ProvedSource | None:
        """Return the model from which a model is proved to be quantised, as far as the recipe uses it."""
        if self.recipe.source == GIVEN:
            return None
        if model.label not in self._sources:
            named = named_source(self.recipe) if model.label == self.base.label else None
            try:
                found = self.library.source_of(model, named)
            except (StoreError, TooCostly):
                raise
            except OrganError as error:
                found = None
                self._refuse_error("unknown-source", error, "source")
            else:
                if named is not None and found is None:
                    sentence = (
                        f"It is not proved that {model.label} was made from {named}, or that model is not visible: "
                        "run organ prove."
                    )
                    self._refuse("source-not-proved", sentence, "source", named)
            self._sources[model.label] = found
        return self._sources[model.label]

    def _computation(self, name: str, at: str, *, of_source: bool = False) -> PlannedComputation | None:
        """Return the unfinished computation at a place; None, with a finding, if its dtype cannot be written.

        With `of_source`, a new one computes with the organ from which that at the place is proved to be quantised.
        """
        part = self.parts[name]
        done = part.computation
        if done is not None and (done.blend or done.additions or done.method):
            return done
        source = part.source
        try:
            dtype = encoded_dtype(source.dtype, source.shape, self.recipe.encode)
        except UnsupportedDType as error:
            code = "encoder-missing" if isinstance(error, EncoderMissing) else "dtype-refused"
            self._refuse(code, f"{source.name}: {error}.", at, organs=[name])
            return None
        if part.computation is not None:  # grafted experts keep their type, but adapted and purified ones are written
            return replace(part.computation, dtype=dtype)
        proved = self._source(part.donor or self.base) if of_source else None
        made_from = None if proved is None else proved.parts.get(self._stored_slot(source))
        if proved is not None and made_from is not None:
            return PlannedComputation(made_from, dtype, source_model=proved.model)
        return PlannedComputation(source, dtype)

    def _refuses_experts(self, computation: PlannedComputation, at: str) -> bool:
        """Return whether single experts of a stack cannot be purified; if so, add a refusal."""
        source = computation.source
        if computation.additions or computation.blend:
            reason = "an adapter or a blend changes the whole stack"
        elif computation.dtype != source.dtype:
            wanted = self.recipe.encode
            is_kept = wanted in (SAME, FINER)
            change = f"{source.dtype.name} cannot be written" if is_kept else f"encode: {wanted} changes the type"
            reason = f"{change}, and all experts of a stack have one tensor type"
        else:
            return False
        sentence = f"Single experts of {source.name} cannot be purified: {reason}. Purify the whole stack."
        self._refuse("experts-refused", sentence, f"{at}.experts", organs=[source.name])
        return True

    def _lacks_blocks(self, selected: Sequence[BlockRange], at: str, model: Parent, blocks: Collection[int]) -> bool:
        """Return whether `selected` has others than the `blocks` of `model`; if so, add a refusal."""
        absent = [
            range_text((first, last))
            for first, last in selected
            if sum(first <= block <= last for block in blocks) <= last - first
        ]
        if absent:
            known = f"its blocks are {ranges_text(sorted(blocks))}" if blocks else "it has no blocks"
            label = "The result" if self.layers is not None and model is self.base else model.label
            sentence = f"{label} does not have these blocks: {names_text(absent)}; {known}."
            self._refuse("no-such-block", sentence, f"{at}.blocks")
        return bool(absent)

    @property
    def _blocks(self) -> set[int]:
        """The numbers of the blocks of the result, of all its towers."""
        return {part.place.block for part in self.base.parts if part.place.block is not None}

    def _lacks_experts(self, selection: Selection, places: Sequence[Part], at: str) -> bool:
        """Return whether `selection` names experts that a selected stack does not have; if so, add a refusal."""
        last = max((last for _, last in selection.experts), default=-1)
        short = [part for part in places if len(part.shape) < 3 or part.shape[2] <= last]
        if not selection.experts or not short:
            return False
        first = short[0]
        count = first.shape[2] if len(first.shape) == 3 else 1
        sentence = f"{first.name} has {count} experts, numbered from 0: there is no expert {last}."
        self._refuse("no-such-expert", sentence, f"{at}.experts", organs=[part.name for part in short])
        return True

    def _nothing_selected(self, selection: Selection) -> str:
        """Return a sentence that no organ of the base is selected, with the nearest slots that it has."""
        base = self.base
        if selection.experts and not any(is_expert_stack(part.place) for part in base.parts):
            return f"{base.label} has no stacks of experts, so there are no experts to select."
        slots = dict.fromkeys(islice((part.place.slot for part in base.parts), SLOTS_COMPARED_MAX))
        absent = [slot for slot in selection.slots if not any(matches_slot(item, slot) for item in slots)]
        close = [nearest(slot, slots) for slot in absent[:GUESSES_MAX]]
        guesses = ", ".join(dict.fromkeys(word for word in close if word))
        return f"{base.label} has no tensor in this selection{f'; did you mean {guesses}?' if guesses else '.'}"

    def _parent(self, text: str, code: str, at: str) -> Parent | None:
        """Return the model that `text` names, with the blocks of the result; None, with a refusal, if it is not found.

        Raises StoreError.
        """
        try:
            return self._arranged(text)
        except OrganError as error:
            self._refuse_error(code, error, at)
            return None

    def _refuse_error(self, code: str, error: OrganError, at: str) -> None:
        """Add a refusal for a mistake in the recipe; raise the errors of the store and of too costly work."""
        if isinstance(error, StoreError | TooCostly):
            raise error
        self._refuse(code, str(error), at)

    def _refuse(self, code: str, sentence: str, at: str, donor: str = "", organs: Sequence[str] = ()) -> None:
        models = (donor,) if donor else ()
        self.findings.append(Finding(Severity.REFUSE, code, sentence, at, models, tuple(organs)))


def _slot_of(part: Part) -> tuple[str, str]:
    """Return the tower and the slot of a tensor, which are the same in all blocks."""
    return part.place.tower.value, part.place.slot


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
