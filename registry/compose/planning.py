"""From a recipe to a plan. Nothing is written and no organ is read: rows, headers and fingerprints are enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from organs.registry.compose.adapting import additions_of, is_token_embedding
from organs.registry.compose.choosing import (
    Chosen,
    choose,
    nothing_selected,
    parent_or_finding,
    refused_blocks,
    shown_names,
)
from organs.registry.compose.compatibility import check_adapter, check_replacements, check_yanked
from organs.registry.compose.computation import Computation, Ingredient
from organs.registry.compose.cost import Budget, steps_cost
from organs.registry.compose.filename import file_stem
from organs.registry.compose.finding import Finding, Severity
from organs.registry.compose.header import LICENCE_KEY, dropped_keys, set_entries
from organs.registry.compose.library import Library
from organs.registry.compose.licences import combined_licence, licence_expression
from organs.registry.compose.parent import Parent
from organs.registry.compose.plan import Plan, PlannedPart
from organs.registry.compose.predicting import likely_degraded, predicted
from organs.registry.compose.purifying import meant_by, selected_for
from organs.registry.compose.recipe import Purification, Recipe
from organs.registry.compose.replacement import Replacement
from organs.registry.errors import NotFound, OrganError, StoreError, TooCostly, UnsupportedDType
from organs.registry.transform import encoded_dtype
from organs.registry.transform.purify import KEEP_DEFAULT

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
            found = [replace(finding, field=finding.field or at) for finding in check_adapter(self.base, adapter)]
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
        findings.append(Finding(Severity.REFUSE, "nothing-to-do", sentence, base=base.label))
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
            base.label,
        )
        for change in recipe.metadata
        if base.header.architecture and change.key.startswith(own)
    ]
    stated = licence_expression({parent.label: parent.license for parent in parents}) or base.license or "none"
    for change in recipe.metadata:
        if change.key == LICENCE_KEY and change.value != stated:
            sentence = f"The recipe states the licence {change.value!r}; by its parents it is {stated}: read theirs."
            found.append(Finding(Severity.WARN, "licences-conflict", sentence, f"metadata.{change.key}", base.label))
    return found
