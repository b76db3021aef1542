"""Evolve: search for the best chimera of a base, by trials that several processes may share.

Everything is in the catalog: the space, the texts, and a row for each trial, which a process claims and ends. A process
that is killed loses the trial that it was doing, and another one does it. The phases follow from the trials:

    search   trials of the starting points, and of what the sampler proposes, until the time or the number is over
    check    the best of them again, on further windows: the first windows flatter the best of many
    parts    the best one without each of its parts
    result   the chimera is made and registered, and measured on parts of the texts that no trial used
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import msgspec
from msgspec.structs import replace
from sqlalchemy.orm import Session

from organs.registry.amounts import change_text
from organs.registry.catalog.engine import Catalog, database_now
from organs.registry.catalog.queries.evolutions import evolution_row, evolution_summary, has_living_trials, trials_of
from organs.registry.catalog.queries.model_names import check_model_name, model_by_text
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.evolutions import (
    NewTrial,
    TrialClaim,
    add_trial,
    add_trials,
    claim_trial,
    end_evolution,
    record_plan,
    remove_evolution,
    start_evolution,
)
from organs.registry.catalog.tables import ModelRow, TrialRow
from organs.registry.catalog.vocabulary import CHIMERA
from organs.registry.catalog.work import (
    RETRY_SECONDS,
    WorkCancelled,
    exclusive,
    fail,
    finish,
    is_held,
    keeping,
    put_back,
    renew,
    write_end,
)
from organs.registry.compose.build import check_own, make
from organs.registry.compose.cost import Budget
from organs.registry.compose.parents import Parent, Part, RegisteredLibrary
from organs.registry.compose.plan import Plan, chimera_name
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import Recipe
from organs.registry.digest import digest_of
from organs.registry.entities.base import encode, prepared
from organs.registry.entities.evolution import SEARCH_SHARE, EvolutionSummary, share_used
from organs.registry.entities.plan import MadeChimera
from organs.registry.entities.validation import VerdictReport
from organs.registry.errors import (
    OUTAGES,
    BadInput,
    BadRecipe,
    Busy,
    Conflict,
    DiskFull,
    NoSandbox,
    NotAssemblable,
    NotComposable,
    OrganError,
)
from organs.registry.evolving.objectives import Objective, TrialResult
from organs.registry.evolving.proposals import TriedChoice, check_extra, proposed
from organs.registry.evolving.scoring import CHECKED, SEARCHED, DividedText, TrialFolder, TrialScorer
from organs.registry.evolving.space import (
    CHAT_LIMIT,
    PARAMETERS_MAX,
    TRIALS_MAX,
    AdapterSpace,
    BlendSpace,
    Choices,
    SearchSpace,
    space_from_json,
    space_to_json,
)
from organs.registry.kinds import FileKind
from organs.registry.names import parse_model_name
from organs.registry.progress import StepProgress
from organs.registry.search.language import BASE_FIELDS, MODELS, parse_query
from organs.registry.search.models import search_models
from organs.registry.store import BlobStore
from organs.registry.validation.comparison import ValidationBudget
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.run import registered_candidate, run_chimera
from organs.registry.validation.runtime import TEXTS_MAX, NoRuntime, NoVerdict
from organs.registry.validation.texts import CHAT, KINDS, ScoredText, built_in_texts, divided, named_text

TEXTS_DEFAULT = ("python", "documentation", "encyclopedic")
"""The built-in texts of a space without texts."""
FOUND_DONORS = 6
"""The most donors that a query gives, the first ones."""
CHECKS, CHECKS_LEAST, PARTS = 5, 2, 12
"""The most and the fewest trials that are checked, and the most parts of the best one that are left out in turns."""
CHECK_SHARE, PARTS_SHARE = 0.1, 0.1
"""The shares of the time for checks and for parts."""
EQUALS_MAX = 20
"""After so many trials in a row that are the same as earlier ones, no further trial is proposed."""
FAILURES_MAX = 5
"""After so many failures in a row, no further trial is proposed."""
AGAIN = 5
"""How often the sampler is asked for another choice if the same model is being tried."""
VERDICT_SECONDS, VERDICT_TRIALS = 60.0, 8
"""The least time for the verdict on the result: in seconds, and in whole trials."""
WAIT_SECONDS = 1.0
"""The time between two looks for work while other processes finish theirs."""
OUTAGE_DELAY = timedelta(seconds=5)
"""The time after which a trial is done again that failed because a server did not answer."""
OUTAGE_SECONDS = 600.0
"""The time for which a process waits for a database that does not answer."""
_log = logging.getLogger(__name__)

LOST_IN_ROUNDING = "change-lost-in-rounding"
"""The warning of a plan that rounding loses most of a change."""
SEARCH, CHECK, WITHOUT_PARTS, RESULT, OVER = "search", "check", "parts", "result", "over"


@dataclass(frozen=True, slots=True)
class NewEvolution:
    """An evolution that was checked, and can be added to the catalog."""

    contributor: str
    base_model_id: int
    space: SearchSpace
    """With the full names of all models."""
    texts: tuple[DividedText, ...]
    blocks: int
    runtime: str
    starts: tuple[NewTrial, ...]

    def add(self, session: Session) -> int:
        """Add it to the catalog; return its id."""
        texts = encode(list(self.texts)).decode()
        identity = (self.contributor, self.base_model_id, space_to_json(self.space), texts)
        return start_evolution(session, *identity, self.blocks, self.runtime, self.starts)


def begin_evolution(
    catalog: Catalog,
    blobs: BlobStore,
    space: SearchSpace,
    texts: Sequence[ScoredText],
    runtime: LlamaCpp,
    contributor: str = LOCAL,
) -> int:
    """Check a space and its texts, as `chosen_texts` returns them, measure the base, and add an evolution.

    Return its id. Raises as `checked_evolution`; BadInput for texts that are too short, NoVerdict if the base does not
    run.
    """
    new = checked_evolution(catalog, blobs, space, texts, runtime, contributor)
    candidate = registered_candidate(catalog, blobs, new.space.base)
    scorer = TrialScorer(catalog, blobs, candidate, _scored(new.texts, is_proof=False), runtime)
    _ = scorer.base_scores  # raises now what every trial would
    with catalog.writing() as session:
        return new.add(session)


def checked_evolution(
    catalog: Catalog,
    blobs: BlobStore,
    space: SearchSpace,
    texts: Sequence[ScoredText],
    runtime: LlamaCpp,
    contributor: str = LOCAL,
    budget: Budget | None = None,
    seconds: float | None = None,
) -> NewEvolution:
    """Return the evolution of a space and its texts, as `chosen_texts` returns them; nothing is measured or written.

    Donors that are queries are replaced by the models that they find, names get their versions, and without steps all
    donors are blended. Raises BadRecipe with all faults, MissingExtra, NotFound, NotComposable for a space in which no
    chimera can be made, NotAllowed for a name in another contributor's namespace, BadSource for a text that is too
    short to be divided, TooCostly above the `budget`, and TooSlow for a query that takes more than `seconds`.
    """
    check_extra()
    budget = budget or Budget()
    with catalog.reading(seconds) as session:
        choices, model_id = _checked(RegisteredLibrary(session, blobs, budget), space, contributor, budget)
    settled = choices.space
    candidate = registered_candidate(catalog, blobs, settled.base)
    has_chat = candidate.facts.chat_template is not None
    if settled.limits is None:
        settled = replace(settled, limits={CHAT: CHAT_LIMIT} if has_chat else {})
        if has_chat and all(text.name != CHAT for text in texts):
            texts = (*texts, *built_in_texts((CHAT,)))
    parts = [
        DividedText(
            name=text.name,
            searched=searched.text,
            proved=proved.text,
            is_chat=text.is_chat,
            is_built_in=text.name in KINDS and built_in_texts((text.name,))[0].digest == text.digest,
        )
        for text in texts
        for searched, proved in [divided(text)]
        if has_chat or not text.is_chat
    ]
    _check_texts(settled, [text.name for text in parts])
    misnamed = [text.name for text in parts if text.name in KINDS and not text.is_built_in]
    if misnamed and contributor != LOCAL:
        raise BadRecipe("space", [("texts", f"{misnamed[0]} is the name of a built-in text: rename yours")])
    return NewEvolution(
        *(contributor, model_id, settled, tuple(parts), choices.blocks, runtime.identity),
        tuple(NewTrial("start", json.dumps(values)) for values in choices.starts().values()),
    )


def _checked(library: RegisteredLibrary, space: SearchSpace, contributor: str, budget: Budget) -> tuple[Choices, int]:
    """Return the choices of a settled space, of which each starting point can be made, and the id of the base."""
    settled = _settled(library, space)
    base = library.parent(settled.base)
    if base.unassemblable:
        raise NotAssemblable(base.label, base.unassemblable)
    if space.name is not None:
        name = chimera_name(Recipe(settled.base, name=space.name), "", contributor)
        check_own(name, contributor)
        check_model_name(library.session, name)
    choices = Choices(settled, len(base.by_block))
    count = len(choices.parameters)
    if not 1 <= count <= PARAMETERS_MAX:
        sentence = f"the space has {count} parameters; 1 to {PARAMETERS_MAX} can be searched"
        raise BadRecipe("space", [("", f"{sentence}: name models that fit, or fewer of them, or fewer depths")])
    for label, values in choices.starts().items():
        recipe = choices.recipe(values, space.name)
        plan = plan_recipe(replace(recipe, quantize=space.quantize), library, budget)
        if not plan.can_be_made:
            if plan.refusals:
                first, *others = (refusal.sentence for refusal in plan.refusals)
                raise NotComposable([f"{label}: {first}", *others, f"kin:{space.base} finds donors that fit"], [])
            warned = {finding.code: finding.sentence for finding in reversed(plan.unaccepted)}
            raise NotComposable([], sorted(warned), list(warned.values()))
    assert base.model_id is not None
    return choices, base.model_id


def chosen_texts(space: SearchSpace, folder: Path) -> tuple[SearchSpace, tuple[ScoredText, ...]]:
    """Return a space with the names of its texts, and these texts; paths begin in `folder`.

    A text that is the name of a built-in one is that. Raises BadSource.
    """
    found = [named_text(text, folder) for text in space.texts or TEXTS_DEFAULT]
    names = tuple(text.name for text in found)
    guards = [name for name in space.limits or () if name not in names and name in KINDS]
    return replace(space, texts=names), (*found, *built_in_texts(guards))


def _settled(library: RegisteredLibrary, space: SearchSpace) -> SearchSpace:
    """Return the space with full names, with models in the place of queries, and with steps."""
    session = library.session
    base = model_by_text(session, space.base)
    names: list[str] = []
    has_steps = bool(space.blends or space.grafts or space.adapters)
    for text in space.donors or (() if has_steps else (f"kin:{space.base}",)):
        if ":" in text and not text.startswith("sha256:"):
            names += _found(library, text, base)
        else:
            names.append(model_by_text(session, text).full_name)
    donors = [name for name in dict.fromkeys(names) if name != base.full_name]
    kinds = {name: model_by_text(session, name).kind for name in donors}
    models, adapters = _steps_of(kinds)

    def full(chosen: Sequence[str]) -> tuple[str, ...]:
        return tuple(model_by_text(session, name).full_name for name in chosen) or models

    blends = tuple(replace(step, models=full(step.models)) for step in space.blends)
    grafts = tuple(replace(step, models=full(step.models)) for step in space.grafts)
    own_adapters = tuple(replace(step, adapter=full([step.adapter])[0]) for step in space.adapters)
    if not has_steps:
        if not donors:
            missing = "no model fits" if space.donors else f"no relative of {space.base} is registered"
            raise BadRecipe("space", [("donors", f"{missing}: name donors, or a query that finds some")])
        blends, own_adapters = ((BlendSpace(models=models),) if models else ()), adapters
    empty = [f"blends[{number}]" for number, blend in enumerate(blends) if not blend.models]
    empty += [f"grafts[{number}]" for number, graft in enumerate(grafts) if not graft.models]
    if empty:
        raise BadRecipe("space", [(f"{step}.models", "no model: name some here, or as donors") for step in empty])
    return replace(
        *(space,), base=base.full_name, donors=tuple(donors), blends=blends, grafts=grafts, adapters=own_adapters
    )


def _steps_of(kinds: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[AdapterSpace, ...]]:
    """Return the models that are blended, and steps for the adapters, of donors with their kinds."""
    models = tuple(name for name, kind in kinds.items() if kind != FileKind.ADAPTER)
    return models, tuple(AdapterSpace(adapter=name) for name, kind in kinds.items() if kind == FileKind.ADAPTER)


def _found(library: RegisteredLibrary, query: str, base: ModelRow) -> list[str]:
    """Return the models that a query finds and that fit the base, of several quantisations of one the largest.

    Without chimeras, and without other quantisations of the base; the most similar first, if the query names the base.
    """
    session, parsed = library.session, parse_query(query, MODELS)
    if any(choice.field in BASE_FIELDS for choice in parsed.terms):
        parsed = parse_query(query, MODELS, "-likeness")
    page = search_models(session, parsed, 100)
    fitting: dict[str, tuple[int, str]] = {}
    for model in page.items:
        row = model_by_text(session, model.name)
        stem = f"{row.namespace}/{row.stem}"
        is_other = row.architecture == base.architecture and stem != f"{base.namespace}/{base.stem}"
        if is_other and model.kind != CHIMERA and (row.complete or row.kind == FileKind.ADAPTER):
            fitting[stem] = max(fitting.get(stem, (0, "")), (row.size_bytes, row.full_name))
    found: list[str] = []
    for _, name in fitting.values():
        if len(found) < FOUND_DONORS:
            models, adapters = _steps_of({name: model_by_text(session, name).kind})
            steps = replace(SearchSpace(base.full_name), blends=(BlendSpace(models=models),) if models else ())
            (values,) = Choices(replace(steps, adapters=adapters), 1).starts().values()
            recipe = Choices(replace(steps, adapters=adapters), 1).recipe(values)
            plan = plan_recipe(recipe, library, library.budget)
            found += [] if plan.refusals else [name]
    return found


def _check_texts(space: SearchSpace, names: Sequence[str]) -> None:
    """Raise BadRecipe for weights and limits of other texts, and if no text is left to become better."""
    faults = [
        (f"{key}.{name}", f"no text has this name; the texts are {', '.join(names)}")
        for key, wanted in (("weights", space.weights), ("limits", space.limits or {}))
        for name in wanted
        if name not in names
    ]
    if len(set(names)) < len(names):
        faults.append(("texts", "two texts have the same name: rename a file"))
    if len(names) > TEXTS_MAX:
        faults.append(("texts", f"{len(names)} texts, with those that have only a limit; at most {TEXTS_MAX} can be"))
    if not faults and not Objective.of(space, names).weights:
        faults.append(("texts", "all texts have only a limit: name one that is to become better"))
    if faults:
        raise BadRecipe("space", faults)


def _scored(texts: Sequence[DividedText], *, is_proof: bool) -> tuple[ScoredText, ...]:
    contents = ((text, text.proved if is_proof else text.searched) for text in texts)
    return tuple(
        ScoredText(text.name, content, digest_of(content.encode()), is_chat=text.is_chat) for text, content in contents
    )


@dataclass(slots=True)
class Tried:
    """A trial with its choice and its result."""

    row: TrialRow
    values: dict[str, float | str]
    result: TrialResult | None

    @classmethod
    def of(cls, row: TrialRow) -> Tried:
        result = None
        if row.state == "done" and row.result is not None:
            result = msgspec.json.decode(row.result, type=prepared(TrialResult))
        return cls(row, json.loads(row.choices), result)


@dataclass(frozen=True)
class Standing:
    """What the trials of an evolution say so far."""

    choices: Choices
    objective: Objective
    trials: tuple[Tried, ...]
    seconds: float
    """The time in which at least one trial ran."""

    @property
    def space(self) -> SearchSpace:
        """What is searched."""
        return self.choices.space

    def done(self, *roles: str) -> list[Tried]:
        """Return the trials with a result that have these roles, in order."""
        return [trial for trial in self.trials if trial.row.role in roles and trial.result is not None]

    @property
    def searched(self) -> list[Tried]:
        """The trials of the search that are done."""
        return self.done("start", "proposed")

    @cached_property
    def best(self) -> Tried | None:
        """The best trial: after checks by all windows, before by those of the search. None if none holds the limits."""
        checked = self.checks
        among = [trial for trial in self.searched if not checked or trial.row.number in checked]
        found = {trial.row.number: self.differences(trial) for trial in among if not self.result(trial).is_stopped}
        allowed = {number: own for number, own in found.items() if self.objective.is_allowed(own)}
        if not allowed:
            return None
        number = min(allowed, key=lambda one: (self.objective.change(allowed[one]), one))
        return next(trial for trial in among if trial.row.number == number)

    @staticmethod
    def result(trial: Tried) -> TrialResult:
        assert trial.result is not None
        return trial.result

    def differences(self, trial: Tried) -> dict[str, tuple[float, ...]]:
        """Return the differences of a trial, with those of its check."""
        found, check = dict(self.result(trial).differences), self.checks.get(trial.row.number)
        if check is None:
            return found
        more = self.result(check).differences
        return {name: (*own, *more.get(name, ())) for name, own in found.items()}

    @cached_property
    def checks(self) -> dict[int | None, Tried]:
        """The checks that are done, by the numbers of their trials."""
        return {check.row.of_number: check for check in self.done("check")}

    @cached_property
    def starts(self) -> dict[str, str]:
        """What the starting points are, by their choices."""
        return {json.dumps(values): label for label, values in self.choices.starts().items()}

    def values(self, trial: Tried) -> tuple[float, ...]:
        """Return what is to become small; of a stopped trial, an estimate beside the best one."""
        own = self.result(trial).differences
        best = None if self.best is None else self.result(self.best).differences
        return self.objective.estimated(own, best) if self.result(trial).is_stopped else self.objective.values(own)

    def recipe(self, number: int | None = None) -> Recipe:
        """Return the recipe of the best trial, or of the trial `number`, with the tensor types of the space.

        Raises BadInput if there is no such trial.
        """
        trial = next((one for one in self.trials if one.row.number == number), None) if number else self.best
        if trial is None:
            missing = f"there is no trial {number}; the last one is {len(self.trials)}"
            raise BadInput(missing if number else "no trial holds the limits yet")
        made = self.choices.recipe(trial.values, self.space.name)
        return replace(made, quantize=self.space.quantize)

    @property
    def is_search_over(self) -> bool:
        """Whether no further trial is to be proposed."""
        allowed = self.space.allowed_seconds
        begun = sum(trial.row.role in ("start", "proposed") for trial in self.trials)
        is_late = allowed is not None and self.seconds >= SEARCH_SHARE * allowed
        is_enough = is_late or begun >= (self.space.trials or TRIALS_MAX)
        return is_enough or self.has_checks or self.has_only_failures or self.has_only_equals

    @property
    def has_checks(self) -> bool:
        """Whether the phases after the search have begun."""
        return any(trial.row.role in ("check", "without") for trial in self.trials)

    @property
    def has_only_equals(self) -> bool:
        """Whether the last EQUALS_MAX trials were the same as earlier ones: a small space is exhausted."""
        last = self.searched[-EQUALS_MAX:]
        return len(last) == EQUALS_MAX and all(self.result(trial).same_as is not None for trial in last)

    @property
    def seconds_of_a_trial(self) -> float | None:
        """The median time of whole trials, divided by how many ran at a time; None before the first one."""
        whole = [result.seconds for trial in self.searched if not (result := self.result(trial)).is_stopped]
        busy = math.fsum(self.result(trial).seconds for trial in self.searched)
        if not any(whole):
            return None
        return median(filter(None, whole)) / max(1.0, busy / max(self.seconds, 1.0))

    def affordable(self, share: float, cost: float) -> int:
        """Return how many trials fit into a share of the time, if each takes `cost` times as long as a whole one."""
        allowed, seconds = self.space.allowed_seconds, self.seconds_of_a_trial
        return TRIALS_MAX if allowed is None or seconds is None else int(share * allowed / (cost * seconds))

    @property
    def has_only_failures(self) -> bool:
        """Whether the last FAILURES_MAX trials of the search failed."""
        own = (trial.row for trial in self.trials if trial.row.role in ("start", "proposed"))
        ended = [row for row in own if row.state not in ("queued", "running")][-FAILURES_MAX:]
        return len(ended) == FAILURES_MAX and all(row.state != "done" for row in ended)

    @property
    def last_note(self) -> str:
        """Why the last trial failed."""
        return next((trial.row.note for trial in reversed(self.trials) if trial.row.note), "")

    @property
    def share(self) -> float:
        """The share of the work that is done, about."""
        begun = sum(trial.row.role in ("start", "proposed") for trial in self.trials)
        return share_used(begun, self.space.trials, self.seconds, self.space.allowed_seconds)

    @property
    def has_open(self) -> bool:
        """Whether a trial waits or runs."""
        return any(trial.row.state in ("queued", "running") for trial in self.trials)

    @property
    def phase(self) -> str:
        """What is to be done now."""
        roles = {trial.row.role for trial in self.trials}
        if not self.is_search_over or (self.has_open and not self.has_checks):
            return SEARCH
        if self.has_open:
            return WITHOUT_PARTS if "without" in roles else CHECK
        if self.best is None:
            return CHECK if self.unchecked else RESULT
        return RESULT if "without" in roles else WITHOUT_PARTS if "check" in roles else CHECK

    @property
    def unchecked(self) -> list[Tried]:
        """The trials that may be the best and have no check yet, the best first."""
        checked = {trial.row.of_number for trial in self.trials if trial.row.role == "check"}
        found = {
            trial.row.number: trial
            for trial in self.searched
            if trial.row.number not in checked
            and not self.result(trial).is_stopped
            and self.result(trial).same_as is None
            and self.objective.is_allowed(self.result(trial).differences)
        }
        changes = {number: self.objective.change(self.result(trial).differences) for number, trial in found.items()}
        return [found[number] for number in sorted(found, key=lambda one: changes[one])]


def standing_of(session: Session, evolution_id: int) -> Standing:
    """Return what the trials of an evolution say so far. Raises NoSuchEvolution."""
    row = evolution_row(session, evolution_id)
    space = space_from_json(row.space)
    names = [text.name for text in _texts_of(row.texts)]
    rows = trials_of(session, evolution_id)
    now = database_now(session)
    spans = sorted(
        (one.started_at, min(one.finished_at or one.lease_expires_at or now, now))
        for one in rows
        if one.started_at is not None and one.state != "queued"
    )
    seconds, end = 0.0, None
    for first, last in spans:
        start = first if end is None or first > end else end
        if last > start:
            seconds += (last - start).total_seconds()
        end = last if end is None else max(end, last)
    return Standing(Choices(space, row.blocks), Objective.of(space, names), tuple(map(Tried.of, rows)), seconds)


def _texts_of(text: str) -> list[DividedText]:
    return msgspec.json.decode(text, type=prepared(list[DividedText]))


@dataclass(slots=True)
class TrialLibrary(RegisteredLibrary):
    """A library for the plans of trials: no change is tried on some rows first, because the trial measures it."""

    def stored(self, parts: Collection[Part]) -> None:
        """Return None: nothing is read for a plan."""


@dataclass
class Evolver:
    """A process that does trials of one evolution; a context manager."""

    catalog: Catalog
    blobs: BlobStore
    evolution_id: int
    runtime: LlamaCpp
    worker: str
    report: StepProgress = lambda _share, _step: None
    """Called often; raises WorkCancelled when the work is to stop."""
    _scorer: TrialScorer = field(init=False)
    _place: TrialFolder = field(init=False)
    choices: Choices = field(init=False)
    _parents: dict[int, Parent] = field(default_factory=dict)
    """The models of all trials, which are read once."""
    _planned: tuple[Recipe, Plan] | None = None
    """The last recipe with its plan: a trial is planned before it is claimed, and then done."""
    _share: float = 0.0
    _best_so_far: str = ""

    def __enter__(self) -> Evolver:
        self._place.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._place.__exit__()

    def __post_init__(self) -> None:
        self._place = TrialFolder(self.catalog, self.blobs)
        with self.catalog.reading() as session:
            row = evolution_row(session, self.evolution_id)
            space, texts = space_from_json(row.space), _texts_of(row.texts)
            if row.runtime != self.runtime.identity:
                raise BadInput(
                    f"evolution {self.evolution_id} was begun with {row.runtime}, and this is {self.runtime.identity}: "
                    "their scores cannot be compared; begin a new one"
                )
            self.choices = Choices(space, row.blocks)
        base, own = registered_candidate(self.catalog, self.blobs, space.base), _scored(texts, is_proof=False)
        self._scorer = TrialScorer(
            *(self.catalog, self.blobs, base, own, self.runtime), lambda _share, step: self.say(f"base, {step}")
        )

    def work_on(self) -> bool | None:
        """Do a trial. Return whether there was one; None if other processes do the last ones of a phase.

        Errors of a trial are recorded, not raised. Raises errors of the database.
        """
        with self.catalog.writing() as session:
            claim = claim_trial(session, self.evolution_id, self.worker)
        if claim is None:
            with self.catalog.reading() as session:
                standing = standing_of(session, self.evolution_id)
            if not standing.is_search_over:
                claim = self._claim_proposed(standing)
                if claim is None:
                    return True  # another process was faster
            elif standing.has_open:
                return None
            else:
                return self._add_next(standing)
        self._do(claim)
        return True

    def say(self, step: str) -> None:
        """Report a step, with the share of the whole and the best change so far."""
        self.report(self._share, f"{step}{self._best_so_far}")

    def _look(self, standing: Standing) -> None:
        """Take the share of the work that is done, and the best change so far, for the next steps."""
        self._share = standing.share
        if standing.best is not None:
            ratio = math.exp(standing.objective.change(standing.differences(standing.best)))
            self._best_so_far = f"; best {change_text(ratio)} (trial {standing.best.row.number})"

    def _claim_proposed(self, standing: Standing) -> TrialClaim | None:
        """Add the trial that the sampler proposes, and claim it; None if another process has added one meanwhile."""
        number = len(standing.trials) + 1
        tried = [
            TriedChoice(
                trial.values, standing.values(trial), standing.objective.excesses(Standing.result(trial).differences)
            )
            for trial in standing.searched
        ]
        running = [trial for trial in standing.trials if trial.row.state == "running"]
        tried += [TriedChoice(trial.values) for trial in running]
        for attempt in range(AGAIN):
            self.say("choosing the next trial")
            values = proposed(
                self.choices.parameters,
                tried,
                standing.objective.count,
                standing.space.seed + 1_000_003 * attempt,
                number,
                is_random=standing.space.sampler == "random",
            )
            try:
                plan = str(self._plan(values).digest)
            except (*OUTAGES, Busy):
                raise
            except OrganError:  # the trial fails with the reason
                plan = None
            if plan is None or all(trial.row.plan != plan for trial in running):
                break
        with self.catalog.writing() as session:
            trial = NewTrial("proposed", json.dumps(values), plan=plan)
            if not add_trial(session, self.evolution_id, number, trial):
                return None
            return claim_trial(session, self.evolution_id, self.worker, number)

    def _add_next(self, standing: Standing) -> bool:
        """Add the trials of the next phase; return whether there are any."""
        with self.catalog.writing() as session:
            now = standing_of(session, self.evolution_id)
            if len(now.trials) != len(standing.trials):
                return True
            best = now.best
            if now.phase == CHECK:
                count = min(CHECKS, max(CHECKS_LEAST, now.affordable(CHECK_SHARE, len(CHECKED) / len(SEARCHED))))
                trials = [NewTrial("check", one.row.choices, one.row.number) for one in now.unchecked[:count]]
            elif best is None or now.phase == RESULT:
                return False
            else:
                count = min(PARTS, now.affordable(PARTS_SHARE, len(CHECKED) / len(SEARCHED)))
                parts = list(self.choices.without(best.values).values())[:count]
                trials = [NewTrial("without", json.dumps(values), best.row.number) for values in parts]
            return bool(add_trials(session, self.evolution_id, trials))

    def _plan(self, values: Mapping[str, float | str]) -> Plan:
        recipe = self.choices.recipe(values)
        if self._planned is None or self._planned[0] != recipe:
            with self.catalog.reading() as session:
                plan = plan_recipe(recipe, TrialLibrary(session, self.blobs, _parents=self._parents))
            self._planned = recipe, plan
        plan = self._planned[1]
        plan.check()
        return plan

    def _do(self, claim: TrialClaim) -> None:
        """Do a claimed trial, and record how it ended."""
        name = f"trial {claim.number} keeper"
        with keeping(self.catalog, partial(renew, claim=claim), name) as lost:

            def report(_share: float, step: str) -> None:
                if lost.is_set():
                    raise WorkCancelled
                self.say(f"trial {claim.number}, {step}")

            write: Callable[[Session], bool]
            try:
                result = self._measured(claim, report)
                write = partial(finish, claim=claim, result=encode(result).decode())
            except (*OUTAGES, Busy) as error:
                write = partial(put_back, claim=claim, note=str(error), delay=OUTAGE_DELAY)
            except (DiskFull, NoRuntime, NoSandbox):  # of this machine, not of the trial
                with suppress(OrganError), self.catalog.writing() as session:
                    put_back(session, claim)
                raise
            except OrganError as error:
                write = partial(fail, claim=claim, sentence=str(error))
            except BaseException as error:  # of `report`, which may raise anything
                with suppress(OrganError), self.catalog.writing() as session:  # otherwise its lease expires
                    put_back(session, claim)
                if isinstance(error, WorkCancelled) and lost.is_set():
                    return  # another process has the trial
                raise
            write_end(self.catalog, write, threading.Event())

    def _measured(self, claim: TrialClaim, report: StepProgress) -> TrialResult:
        begun, values = monotonic(), json.loads(claim.choices)
        ranks = SEARCHED if claim.role in ("start", "proposed") else CHECKED
        report(0.0, "planning")
        recipe = self.choices.recipe(values)
        if not (recipe.blends or recipe.grafts or recipe.adapters):  # it is the base
            return TrialResult(differences=self._scorer.no_differences(ranks), first=ranks.start)
        plan = self._plan(values)
        digest = str(plan.digest)
        with self.catalog.writing() as session:
            record_plan(session, claim, digest)
        with self.catalog.reading() as session:
            standing = standing_of(session, self.evolution_id)
        self._look(standing)
        if claim.role in ("start", "proposed"):
            for trial in standing.searched:
                if trial.row.plan == digest and trial.row.number != claim.number:
                    result = standing.result(trial)
                    return replace(result, same_as=result.same_as or trial.row.number, seconds=0.0)
        best = None if standing.best is None else standing.result(standing.best).differences
        is_enough = None
        if claim.role == "proposed":

            def is_enough(found: Mapping[str, Sequence[float]]) -> bool:
                return standing.objective.is_hopeless(found, best)

        differences, is_stopped = self._scorer.differences(plan, self._place, ranks, report, is_enough)
        return TrialResult(
            differences=differences,
            first=ranks.start,
            is_stopped=is_stopped,
            seconds=round(monotonic() - begun, 3),
        )


def _above_limits(report: VerdictReport, space: SearchSpace) -> str:
    """Return on which texts the result exceeds a limit, as a sentence; empty if it holds them."""
    limits = space.limits or {}
    above = [
        f"{text.name} {text.change} (limit {limits[text.name]:+g}%)"
        for text in report.texts
        if text.name in limits and text.ratio is not None and 100.0 * (text.ratio - 1.0) > limits[text.name]
    ]
    return f"on parts of the texts that no trial used, a limit is exceeded: {', '.join(above)}" if above else ""


def work_until_done(evolver: Evolver, wait: Callable[[float], object]) -> None:
    """Do trials until none is left to do. Raises WorkCancelled, and errors of the database that last too long."""
    began: float | None = None
    while True:
        try:
            found = evolver.work_on()
        except OUTAGES as error:
            began = monotonic() if began is None else began
            if monotonic() - began > OUTAGE_SECONDS:
                raise
            evolver.say(f"trying again: {error}")
            wait(RETRY_SECONDS)
            continue
        began = None
        if found is False:
            return
        if found is None:
            evolver.say("waiting for the trials of other processes")
            wait(WAIT_SECONDS)


def evolve(
    catalog: Catalog,
    blobs: BlobStore,
    evolution_id: int,
    runtime: LlamaCpp,
    progress: StepProgress = lambda _share, _step: None,
    check_size: Callable[[int], None] = lambda _size_bytes: None,
) -> None:
    """Do the trials of an evolution, beside other processes that do, and then its result.

    Raises as `Evolver` and `conclude` do; an exception of `progress` stops the work, and the next call continues.
    """
    with Evolver(catalog, blobs, evolution_id, runtime, f"process {os.getpid()}", progress) as evolver:
        work_until_done(evolver, sleep)
    conclude(catalog, blobs, evolution_id, runtime, progress, check_size)


def conclude(
    catalog: Catalog,
    blobs: BlobStore,
    evolution_id: int,
    runtime: LlamaCpp,
    progress: StepProgress,
    check_size: Callable[[int], None] = lambda _size_bytes: None,
) -> None:
    """Make the chimera of the best trial, measure it on the parts of the texts that no trial used; end the evolution.

    Done once, also if several processes do it. Raises Busy while another process does it, NotComposable, BadOrgan,
    NoVerdict, StoreError, DiskFull. `check_size` is called with the bytes of the file before it is made.
    """
    with exclusive(catalog, result_lease(evolution_id)):
        with catalog.reading() as session:
            summary = evolution_summary(session, evolution_id)
            if summary.state != "running":
                return
            standing = standing_of(session, evolution_id)
            texts = _texts_of(evolution_row(session, evolution_id).texts)
            library = RegisteredLibrary(session, blobs)
            best = standing.best
            if best is not None:
                plan = plan_recipe(standing.recipe(), library)
                lost = [finding.sentence for finding in plan.unaccepted if finding.code == LOST_IN_ROUNDING]
                if len(lost) == len(plan.unaccepted):  # trials measured what rounding left, and the verdict will
                    plan = plan.accepting_all()
        if best is None or standing.objective.change(standing.differences(best)) >= 0.0:
            with catalog.writing() as session:
                if standing.searched:
                    reason = "no trial holds the limits" if best is None else "no trial is better than the base"
                    end_evolution(session, evolution_id, "finished", reason)
                else:
                    end_evolution(session, evolution_id, "failed", f"all trials fail: {standing.last_note}")
            return
        plan.check()
        check_size(plan.size_bytes)
        progress(0.0, "making the best one")
        proposed_name = f"{parse_model_name(standing.space.base).name}-evolved-{evolution_id}"
        made: MadeChimera = make(
            *(catalog, blobs, plan),
            progress=lambda *_: progress(0.0, "making the best one"),
            contributor=summary.contributor,
            proposed_name=proposed_name,
        )
        rest = (standing.space.allowed_seconds or 0.0) - standing.seconds
        seconds = max(VERDICT_SECONDS, VERDICT_TRIALS * (standing.seconds_of_a_trial or 0.0), rest)
        proof, verdict, reason = _scored(texts, is_proof=True), None, ""
        try:
            counted = None if summary.contributor == LOCAL else [text.name for text in texts if text.is_built_in]
            report = run_chimera(
                *(catalog, blobs, made.model, proof, runtime, ValidationBudget(seconds), progress), gained_on=counted
            )
            verdict = encode(report).decode()
            remarks = [_above_limits(report, standing.space), *(lost if standing.space.quantize else ())]
            reason = "; ".join(filter(None, remarks))
        except (NoVerdict, BadInput) as error:  # it would be the same the next time
            reason = f"the result was made, and could not be measured: {error}"
        with catalog.writing() as session:
            winner = model_by_text(session, made.model).id
            end_evolution(session, evolution_id, "finished", reason, winner, verdict)


def removed(catalog: Catalog, evolution_id: int, contributor: str | None = None) -> EvolutionSummary:
    """Remove an evolution with its trials and texts, and return it; its winner stays.

    With `contributor`, those of others are not found. Raises NoSuchEvolution, and Conflict while something works on it.
    """
    with catalog.reading() as session:
        evolution_summary(session, evolution_id, contributor)
    try:
        with exclusive(catalog, result_lease(evolution_id)), catalog.writing() as session:
            summary = evolution_summary(session, evolution_id, contributor)
            remove_evolution(session, evolution_id)
    except Busy as error:
        raise Conflict(f"the result of evolution {evolution_id} is being made: wait until it is done") from error
    return summary


def has_worker(session: Session, evolution_id: int) -> bool:
    """Return whether a process does a trial or the result; not between two trials, while the next one is chosen."""
    return has_living_trials(session, evolution_id) or is_held(session, result_lease(evolution_id))


def result_lease(evolution_id: int) -> str:
    """Return the name of what the process holds that makes the result."""
    return f"evolution {evolution_id}"
