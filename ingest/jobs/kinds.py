"""Kinds of jobs: what each takes, and the function that does it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from msgspec import to_builtins
from msgspec.structs import asdict, replace
from sqlalchemy.orm import Session
from threadpoolctl import threadpool_limits

from organs.ingest.contributions.submissions import INSPECT as INSPECT_NAME
from organs.ingest.contributions.submissions import PUBLISH as PUBLISH_NAME
from organs.ingest.contributions.submissions import process_submission, settle_abandoned
from organs.ingest.jobs.packs import make_pack
from organs.registry.assembly import naming
from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.accounts import check_model_fits, contributor_by_name
from organs.registry.catalog.queries.blobs import blobs_by_digest, oldest_living_ingest
from organs.registry.catalog.queries.chimeras import stored_quick_look
from organs.registry.catalog.queries.evolutions import evolution_summary
from organs.registry.catalog.queries.jobs import active_jobs, is_anything_due, job_of_evolution, last_end
from organs.registry.catalog.queries.model_contents import placements_of
from organs.registry.catalog.queries.model_names import check_model_name, model_by_name, model_by_text
from organs.registry.catalog.queries.relatives import models_to_repack
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.jobs import enqueue_job
from organs.registry.compose.build import check_own, make
from organs.registry.compose.cost import Budget, check_recipe
from organs.registry.compose.parents import RegisteredLibrary
from organs.registry.compose.plan import chimera_name
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import read_recipe, recipe_file
from organs.registry.digest import Digest, digest_of
from organs.registry.documents import BadDocument, convert
from organs.registry.entities.base import Entity, RequestBody, encode
from organs.registry.entities.job import (
    EVOLUTION_MINUTES_MAX,
    EVOLUTION_TEXT_MAX_BYTES,
    ChimeraJobResult,
    EvolutionArguments,
    EvolutionJobResult,
    EvolutionRequest,
    EvolutionText,
    ExtractionJobResult,
    GraftRequest,
    MeasuredDifference,
    MeasureJobResult,
    ModelRequest,
    PurificationRequest,
    QuantizationJobResult,
    RecipeArguments,
    RemeasuredTensor,
    RepackJobResult,
    ReportJobResult,
    ReportRequest,
    SubmissionArguments,
    SubmissionJobResult,
    ValidationJobResult,
    ValidationRequest,
)
from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT
from organs.registry.entities.sizes import QuantizationRequest
from organs.registry.entities.validation import QuickLook, QuickLookRequest
from organs.registry.errors import BadInput, MissingBlob, QueueFull, TooMany
from organs.registry.evolving.search import checked_evolution, chosen_texts, evolve, standing_of
from organs.registry.evolving.space import SearchSpace, read_space, space_of_values
from organs.registry.gguf import dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.measure import measure
from organs.registry.measures import MEASURE_NAMES
from organs.registry.names import name_from_text, parse_model_name
from organs.registry.progress import StepProgress
from organs.registry.quantizing.search import check_possible, checked_request, quantize
from organs.registry.references import RepackReport, repack
from organs.registry.relatives import settle_sources
from organs.registry.reports.dissection import model_report
from organs.registry.reports.overview import registry_report
from organs.registry.store import RangeReader
from organs.registry.validation.comparison import BUDGET_SECONDS, TOKENS_MAX, ValidationBudget
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.quick import LookBudget
from organs.registry.validation.run import compared_with, look_at_chimera, run_chimera
from organs.registry.validation.texts import KINDS as TEXT_KINDS
from organs.registry.validation.texts import ScoredText, built_in_texts

WORK, VALIDATION, INTAKE, UPKEEP, PROMPTS = "work", "validate", "intake", "upkeep", "prompts"
EVOLUTION = "evolve"
LANES = (WORK, VALIDATION, EVOLUTION, INTAKE, UPKEEP, PROMPTS)
"""A runner runs one job of each lane at a time. The prompts have a queue of their own (`ingest.answering`), so that no
prompt waits for a validation."""
ALONE = (VALIDATION, EVOLUTION, UPKEEP)
"""Lanes in which all runners of a registry together run one job at a time: a validation can fill a machine's memory,
an evolution takes hours, and two repacks would do the same work."""

A = TypeVar("A", bound=Entity)


@dataclass(frozen=True, slots=True)
class JobKind(Generic[A]):
    """A kind of job with arguments of the class `A`."""

    name: str
    """At most 32 characters."""
    lane: str
    arguments: type[A]
    """The class of the arguments, which wait in the queue as JSON."""
    run: Callable[[LocalRegistry, A, StepProgress, str], Entity]
    """Do the job for the contributor whose name comes last, and return its result. The name of a model under `model`,
    or names under `models`, and the digest of an organ under `organ`, or digests under `organs`, become links. Raises
    OrganError if it fails. It must call its third argument about every second: only these calls can cancel the job."""
    settle: Callable[[LocalRegistry, Any, str], A | Callable[[Session], A]] | None = None
    """Check a request against the registry before the job is queued, for the contributor of that name, and return the
    arguments; or a function that returns them and writes what the job works on, in the transaction that queues it.
    Raises OrganError for models that do not exist, and for requests that the contributor is not allowed to
    make. It must be quick, and must read only the catalog and headers. None if the request is the arguments."""
    request: type[Entity] | type[dict[str, object]] | None = None
    """The class of requests, by default that of the arguments; a dictionary is read by `settle`."""

    def settled(
        self, registry: LocalRegistry, inputs: Entity | Mapping[str, object], contributor: str
    ) -> A | Callable[[Session], A]:
        """Return what `settle` does for a request, or for JSON from outside. Raises BadInput, and as `settle`."""
        wanted = self.request or self.arguments
        request: Any = inputs
        if isinstance(inputs, Entity):
            if not isinstance(inputs, wanted):
                raise TypeError(f"a job {self.name} takes no {type(inputs).__name__}")
        elif wanted is not dict:
            try:
                request = convert(dict(inputs), wanted)
            except BadDocument as error:
                raise BadInput(str(error)) from error
        return cast(A, request) if self.settle is None else self.settle(registry, request, contributor)


PLAN_SECONDS = 10.0
"""The database time limit of a recipe's plan before its job is queued."""
PLAN_COST_MAX = 10_000_000
"""The cost limit of a plan before its job is queued, in microseconds: see `registry.compose.cost`."""
PREPARED = 0.02
"""The approximate share of a job's progress that its plan takes."""
COMPOSE_NOTES = {
    "compute": "computing tensors",
    "hash": "computing the digest of the file",
    "write": "writing the file",
}


def _settle_recipe(registry: LocalRegistry, inputs: Mapping[str, object], contributor: str) -> RecipeArguments:
    values = dict(inputs)
    proposed = values.pop("proposed_name", None)
    if not isinstance(proposed, str | None):
        raise BadInput("proposed_name is a text")
    match values:
        case {"recipe_text": str(text), **rest} if not rest:
            pass
        case {"recipe": dict(recipe), **rest} if not rest:
            text = json.dumps(recipe, ensure_ascii=False)
        case _:
            raise BadInput("give either recipe, an object, or recipe_text, YAML")
    name = None if proposed is None else name_from_text(proposed)
    return replace(_planned_first(registry, text, contributor), proposed_name=name)


def _settle_graft(registry: LocalRegistry, request: GraftRequest, contributor: str) -> RecipeArguments:
    values = to_builtins(request)  # without those that were left out
    graft = {key: values.pop(key) for key in ("donor", "type", "slot", "blocks") if key in values}
    graft["from"] = graft.pop("donor")
    return _planned_first(registry, json.dumps(values | {"grafts": [graft]}), contributor)


def _settle_purification(registry: LocalRegistry, request: PurificationRequest, contributor: str) -> RecipeArguments:
    values = to_builtins(request)  # without those that were left out
    step = {key: values.pop(key) for key in ("method", "keep", "where", "type", "slot", "blocks") if key in values}
    values["base"] = values.pop("model")
    return _planned_first(registry, json.dumps(values | {"purify": step}), contributor)


def _planned_first(registry: LocalRegistry, text: str, contributor: str) -> RecipeArguments:
    """Return the recipe in `text` with the digest of its plan.

    Raises BadRecipe, NotAllowed for a name in another contributor's namespace, BadName, NotComposable, OverQuota,
    TooCostly, and the errors of the base.
    """
    recipe = read_recipe(text)
    name = chimera_name(recipe, "chimera", contributor)
    check_own(name, contributor)
    with registry.catalog.reading() as session:
        check_model_name(session, name)
    with registry.catalog.reading(PLAN_SECONDS) as session:
        budget = Budget(PLAN_COST_MAX)
        check_recipe(session, recipe, budget)  # before its models are read
        plan = plan_recipe(recipe, RegisteredLibrary(session, registry.blobs, budget), budget)
    plan.check()
    _check_quota(registry, plan.size_bytes, contributor)
    return RecipeArguments(recipe=recipe_file(recipe), plan=plan.digest)


def _compose(
    registry: LocalRegistry, arguments: RecipeArguments, report_progress: StepProgress, contributor: str
) -> ChimeraJobResult:
    """Make the recipe in `arguments`; return the chimera and the address of its page."""
    report_progress(0.0, "planning")
    plan = registry.compose(read_recipe(encode(arguments.recipe))).plan()
    if arguments.plan not in (None, plan.plan.digest):
        raise BadInput("the registry has changed, and the result would differ from the plan; plan the recipe again")
    _check_quota(registry, plan.size_bytes, contributor)  # the contributor may have added other models since
    computed = sum(part.spec.size_bytes for part in plan.plan.parts if part.computation is not None)
    # Computing a byte takes about ten times as long as hashing one.
    total, done = plan.size_bytes + 10 * computed, 0

    def advance(step: str, size_bytes: int) -> None:
        nonlocal done
        done += 10 * size_bytes if step == "compute" else size_bytes
        report_progress(PREPARED + (1 - PREPARED) * done / max(total, 1), COMPOSE_NOTES[step])

    chimera = make(
        registry.catalog,
        registry.blobs,
        plan.plan,
        progress=advance,
        contributor=contributor,
        proposed_name=arguments.proposed_name,
    )
    return ChimeraJobResult(
        **asdict(chimera),
        address=f"/chimeras/{chimera.lock_id}",
        quick_look=_queued_look(registry, chimera.model, contributor),
    )


def _queued_look(registry: LocalRegistry, model: str | None, contributor: str) -> int | None:
    """Queue a quick look at a chimera that has none, and return its job, which may be one that waits already.

    Return None without llama.cpp, and if too many jobs wait.
    """
    if model is None or not LlamaCpp.is_installed():
        return None
    with suppress(QueueFull, TooMany), registry.catalog.writing() as session:
        if stored_quick_look(session, model_by_text(session, model).id) is not None:
            return None
        for job in active_jobs(session, QUICK_LOOK.name, contributor):
            if job.arguments.get("chimera") == model:
                return job.id
        return enqueue_job(session, QUICK_LOOK.name, QuickLookRequest(chimera=model), contributor)
    return None


def _check_quota(registry: LocalRegistry, size_bytes: int, contributor: str) -> None:
    """Raise OverQuota if a file of that size exceeds the quota; `local` has no quota."""
    if contributor == LOCAL:
        return
    with registry.catalog.reading() as session:
        owner = contributor_by_name(session, contributor)
        check_model_fits(session, owner, registry.settings.quota_bytes, size_bytes)


COMPOSE = JobKind("compose", WORK, RecipeArguments, _compose, _settle_recipe, dict)
"""Takes `recipe`, an object, or `recipe_text`, YAML; returns the members of a MadeChimera, and `address`."""

GRAFT = JobKind("graft", WORK, RecipeArguments, _compose, _settle_graft, GraftRequest)
"""Takes `base` and `donor`, `type`, `slot` and `blocks` as a recipe does, `name` and `accept`; returns the
same as `compose`."""

PURIFY = JobKind("purify", WORK, RecipeArguments, _compose, _settle_purification, PurificationRequest)
"""Takes `model`, `method`, `keep`, `where`, `type`, `slot` and `blocks` as a recipe does, `name`, `encode` and
`accept`; returns the same as `compose`."""


def _chimera(registry: LocalRegistry, text: str) -> str:
    """Return the full name of a chimera or quantisation, under which its jobs are listed.

    `text` is a name or the digest of a lock. Raises NotFound, NotComposedHere.
    """
    with registry.catalog.reading() as session:
        model = model_by_text(session, f"sha256:{text}" if re.fullmatch("[0-9a-f]{64}", text) else text)
        compared_with(session, model)
        return model.full_name


def _settle_validation(registry: LocalRegistry, request: ValidationRequest, _contributor: str) -> ValidationRequest:
    texts = tuple(TEXT_KINDS) if request.texts is None else request.texts
    if not set(texts) <= set(TEXT_KINDS):
        raise BadInput(f"texts must be a list of one or more of {', '.join(TEXT_KINDS)}")
    return ValidationRequest(
        chimera=_chimera(registry, request.chimera),
        tokens=request.tokens or TOKENS_MAX,
        minutes=request.minutes or BUDGET_SECONDS / 60.0,
        texts=tuple(name for name in TEXT_KINDS if name in texts),
    )


def _validate(
    registry: LocalRegistry, arguments: ValidationRequest, report_progress: StepProgress, _contributor: str
) -> ValidationJobResult:
    report = run_chimera(
        registry.catalog,
        registry.blobs,
        arguments.chimera,
        built_in_texts(arguments.texts or TEXT_KINDS),
        LlamaCpp(requires_sandbox=registry.settings.requires_sandbox),
        ValidationBudget(60.0 * (arguments.minutes or BUDGET_SECONDS / 60.0), arguments.tokens or TOKENS_MAX),
        report_progress,
    )
    models = (report.model, report.base.name, *(donor.name for donor in report.donors))
    return ValidationJobResult(**asdict(report), models=models)


def _settle_look(registry: LocalRegistry, request: QuickLookRequest, _contributor: str) -> QuickLookRequest:
    return replace(request, chimera=_chimera(registry, request.chimera))


def _look(
    registry: LocalRegistry, arguments: QuickLookRequest, report_progress: StepProgress, _contributor: str
) -> QuickLook:
    return look_at_chimera(
        registry.catalog,
        registry.blobs,
        arguments.chimera,
        LlamaCpp(requires_sandbox=registry.settings.requires_sandbox),
        LookBudget() if arguments.seconds is None else LookBudget(arguments.seconds),
        progress=report_progress,
    )


QUICK_LOOK = JobKind("quick-look", VALIDATION, QuickLookRequest, _look, _settle_look)
"""Takes `chimera`, a name or the digest of a lock, and `seconds`. Returns the quick look."""

VALIDATE = JobKind("validate", VALIDATION, ValidationRequest, _validate, _settle_validation)
"""Takes `chimera`, a name or the digest of a lock; `tokens`, the most of each text; `minutes`, the time for all models;
and `texts`, names of built-in texts. Returns the verdict with its evidence. It and `QUICK_LOOK` use only the built-in
runtime and the built-in texts: a request must not choose the program that a server runs."""


def _settle_quantization(
    registry: LocalRegistry, request: QuantizationRequest, contributor: str
) -> QuantizationRequest:
    runtime = LlamaCpp(requires_sandbox=registry.settings.requires_sandbox)  # raises NoRuntime
    with registry.catalog.reading() as session:
        settled, most_bytes = checked_request(session, request, contributor)
    _check_quota(registry, most_bytes, contributor)
    check_possible(registry.catalog, registry.blobs, settled, runtime)
    return settled


def _quantize(
    registry: LocalRegistry, arguments: QuantizationRequest, report_progress: StepProgress, contributor: str
) -> QuantizationJobResult:
    sized = quantize(
        registry.catalog,
        registry.blobs,
        arguments,
        LlamaCpp(requires_sandbox=registry.settings.requires_sandbox),
        report_progress,
        contributor,
        lambda size_bytes: _check_quota(registry, size_bytes, contributor),
    )
    return QuantizationJobResult(**asdict(sized), models=(sized.chimera.model, sized.source))


QUANTIZE = JobKind("quantize", VALIDATION, QuantizationRequest, _quantize, _settle_quantization)
"""Takes `model`, one of `type`, `size_bytes`, `bits`, `like` and `memory_bytes`, and `imatrix`, `name`, `accept` and
`minutes`. Returns the model that it made and its measurements. What was measured is stored at once, so a job that is
put back continues."""


def _settle_evolution(
    registry: LocalRegistry, request: EvolutionRequest, contributor: str
) -> Callable[[Session], EvolutionArguments]:
    runtime = LlamaCpp(requires_sandbox=registry.settings.requires_sandbox)  # raises NoRuntime
    match request.space, request.space_text:
        case None, str(text):
            space = read_space(text)
        case dict(values), None:
            space = space_of_values(values)
        case _:
            raise BadInput("give either space, an object, or space_text, YAML")
    if space.minutes is None and space.trials is not None:
        space = replace(space, minutes=EVOLUTION_MINUTES_MAX)
    _check_length(space)
    new = checked_evolution(
        registry.catalog,
        registry.blobs,
        *_evolution_texts(space, request.texts),
        runtime,
        contributor,
        Budget(PLAN_COST_MAX),
        PLAN_SECONDS,
    )
    return lambda session: EvolutionArguments(evolution=new.add(session))


def _check_length(space: SearchSpace) -> None:
    if (space.minutes or 0.0) > EVOLUTION_MINUTES_MAX:
        raise BadInput(
            f"a job does an evolution of at most {EVOLUTION_MINUTES_MAX:g} minutes; organ evolve on the registry's "
            "machine does longer ones"
        )


def _evolution_texts(space: SearchSpace, texts: Sequence[EvolutionText]) -> tuple[SearchSpace, Sequence[ScoredText]]:
    """Return the space and its texts: those of the request, and built-in ones by their names; no file is read."""
    if not texts:
        unknown = [name for name in space.texts if name not in TEXT_KINDS]
        if unknown:
            raise BadInput(
                f"texts: {unknown[0][:80]!r} is no built-in text; these are {', '.join(TEXT_KINDS)}. Send your own "
                "texts with the request"
            )
        return chosen_texts(space, Path())
    found: list[ScoredText] = []
    for text in texts:
        if text.content is None:
            if text.name not in TEXT_KINDS:
                raise BadInput(f"texts: {text.name!r} is no built-in text, and has no content")
            found += built_in_texts((text.name,))
            continue
        data = text.content.encode()
        if len(data) > EVOLUTION_TEXT_MAX_BYTES:
            raise BadInput(f"texts: {text.name!r} has {len(data):,} bytes; {EVOLUTION_TEXT_MAX_BYTES:,} are allowed")
        if not text.name.isprintable():
            raise BadInput(f"texts: {text.name!r} holds characters that are no text")
        found.append(ScoredText(text.name, text.content, digest_of(data)))
    names = {text.name for text in found}
    for name in (*space.texts, *(space.limits or {})):
        if name not in names:
            raise BadInput(f"texts: the request has no text {name[:80]!r}")
    return space, found


def _evolve(
    registry: LocalRegistry, arguments: EvolutionArguments, report_progress: StepProgress, contributor: str
) -> EvolutionJobResult:
    number = arguments.evolution
    evolve(
        *(registry.catalog, registry.blobs, number),
        LlamaCpp(requires_sandbox=registry.settings.requires_sandbox),
        report_progress,
        lambda size_bytes: _check_quota(registry, size_bytes, contributor),
    )
    with registry.catalog.reading() as session:
        summary = evolution_summary(session, number)
    if summary.state == "failed":
        raise BadInput(summary.note)
    return EvolutionJobResult(evolution=number, model=summary.winner, address=f"/evolutions/{number}")


EVOLVE = JobKind("evolve", EVOLUTION, EvolutionArguments, _evolve, _settle_evolution, EvolutionRequest)
"""Takes `space`, an object, or `space_text`, YAML, and `texts`; returns the evolution and the chimera that was made.
The evolution begins with the job, in one transaction, so a job that is put back, or whose runner dies, continues it."""


def continued_evolution(registry: LocalRegistry, evolution: int, whose: str | None = None) -> int:
    """Return the job that does an evolution, or queue one for its contributor; with `whose`, only if it is theirs.

    Raises BadInput for an evolution of more than EVOLUTION_MINUTES_MAX, NoSuchEvolution, QueueFull, TooMany.
    """
    with registry.catalog.writing() as session:
        contributor = evolution_summary(session, evolution, whose).contributor
        job = job_of_evolution(session, evolution)
        if job is not None:
            return job.id
        _check_length(standing_of(session, evolution).space)
        return enqueue_job(session, EVOLVE.name, EvolutionArguments(evolution=evolution), contributor)


TENSORS_MAX = 2000
"""Limit of tensors that the result lists; all are measured."""


def _current_version(registry: LocalRegistry, request: ModelRequest, _contributor: str) -> ModelRequest:
    """Return the request with the current version of the name; raises BadName, NotFound."""
    with registry.catalog.reading() as session:
        return ModelRequest(model=model_by_name(session, parse_model_name(request.model)).full_name)


def _measure(
    registry: LocalRegistry, arguments: ModelRequest, report_progress: StepProgress, _contributor: str
) -> MeasureJobResult:
    report_progress(0.0, "reading the list of tensors")
    with registry.catalog.reading() as session:
        placements = placements_of(session, model_by_name(session, parse_model_name(arguments.model)).id)
        blobs = blobs_by_digest(session, {digest for _, _, digest, _ in placements})
    tensors = []
    largest: dict[str, MeasuredDifference | None] = dict.fromkeys(MEASURE_NAMES)
    with threadpool_limits(1, "blas"):  # leaves the other processor for requests
        for number, (placement, shape, digest, _) in enumerate(placements):
            report_progress(number / len(placements), f"measuring {placement.name}")
            blob = blobs.get(Digest(digest))
            if blob is None:
                raise MissingBlob(f"{placement.name} has no stored bytes")
            with naming(placement.name, blob.digest), registry.blobs.open(blob) as reader:
                lengths = tuple(map(int, shape.split("x")))
                measured = measure(RangeReader(reader).read, lengths, dtype_by_name(placement.dtype))
            values = {name: getattr(measured, name) for name in MEASURE_NAMES}
            tensors.append(RemeasuredTensor(name=placement.name, **values))
            for name, value in values.items():
                recorded, known = getattr(placement, name), largest[name]
                if value is not None and recorded is not None:
                    difference = abs(value - recorded)
                    if known is None or difference > known.difference:
                        largest[name] = MeasuredDifference(difference=difference, tensor=placement.name)
    return MeasureJobResult(
        model=arguments.model,
        measured=len(tensors),
        differences=largest,
        tensors=tuple(tensors[:TENSORS_MAX]),
        tensors_left_out=max(0, len(tensors) - TENSORS_MAX),
    )


MEASURE = JobKind("measure", WORK, ModelRequest, _measure, _current_version)
"""Takes `model`; returns `tensors` with their measures, and `differences`, the largest difference of each measure from
its recorded value."""


def _extract(
    registry: LocalRegistry, arguments: ModelRequest, report_progress: StepProgress, _contributor: str
) -> ExtractionJobResult:
    file = make_pack(registry, parse_model_name(arguments.model), report_progress)
    return ExtractionJobResult(
        model=arguments.model, pack=file.pack, file=file.name, size_bytes=file.size_bytes, sha256=file.sha256
    )


EXTRACT = JobKind("extract", WORK, ModelRequest, _extract, _current_version)
"""Takes `model`; returns `file` in `pack`, which can be downloaded for a day, its `size_bytes` and `sha256`."""


def _settle_report(_registry: LocalRegistry, request: ReportRequest, _contributor: str) -> ReportRequest:
    if request.model is None:
        return ReportRequest(limit=request.limit or ROWS_DEFAULT)
    return ReportRequest(model=str(parse_model_name(request.model)), limit=request.limit or ORGANS_DEFAULT)


def _report(
    registry: LocalRegistry, arguments: ReportRequest, report_progress: StepProgress, contributor: str
) -> ReportJobResult:
    report_progress(0.0, "reading the measures")
    complete = contributor == LOCAL
    with registry.catalog.reading() as session:
        if arguments.model is None:
            return ReportJobResult(report=registry_report(session, arguments.limit or ROWS_DEFAULT, complete=complete))
        model = model_by_name(session, parse_model_name(arguments.model))
        report = model_report(session, model, arguments.limit or ORGANS_DEFAULT, complete=complete)
        return ReportJobResult(model=model.full_name, report=report)


REPORT = JobKind("report", WORK, ReportRequest, _report, _settle_report)
"""Takes `model` (by default the registry) and `limit`, rows of a list. The result has `report`, and `model`.

Only a report for the users of this machine is complete, with stored sizes: others may see the jobs of an account later.
"""


def _submission_kind(name: str) -> JobKind[SubmissionArguments]:
    def process(
        registry: LocalRegistry, arguments: SubmissionArguments, report_progress: StepProgress, _contributor: str
    ) -> SubmissionJobResult:
        settle_abandoned(registry)
        return process_submission(registry, arguments.submission, report_progress, publish=name == PUBLISH_NAME)

    return JobKind(name, INTAKE, SubmissionArguments, process)


INSPECT = _submission_kind(INSPECT_NAME)
"""Takes `submission`, an id; returns it with its `state`."""
PUBLISH = _submission_kind(PUBLISH_NAME)
"""Takes and returns the same as `inspect`, and registers a model unless the submission is refused."""


RETRY_AFTER = timedelta(hours=1)
"""The time after a failed or cancelled repack in which runners add none."""


class RepackRequest(RequestBody):
    """The arguments of a repack: none."""


def is_repack_due(session: Session, other_kinds: Sequence[str]) -> bool:
    """Return whether models wait for a repack, no job of `other_kinds` waits, and no ingest runs, anywhere."""
    if is_anything_due(session, [*other_kinds, REPACK.name]) or not models_to_repack(session, 1):
        return False
    if oldest_living_ingest(session, database_now(session)) is not None:
        return False
    end = last_end(session, REPACK.name)
    return end is None or end[0] == "finished" or end[1] < database_now(session) - RETRY_AFTER


def _repack(
    registry: LocalRegistry, _arguments: RepackRequest, report_progress: StepProgress, _contributor: str
) -> RepackJobResult:
    with registry.catalog.reading() as session:
        models = models_to_repack(session)
    total = RepackReport(dry_run=False)
    examined = 0

    def report_step(_organs: int = 0) -> None:
        report_progress(examined / len(models), f"{examined:,} of {len(models):,} models examined")

    for model_id in models:
        report_step()
        with registry.catalog.reading() as session:
            if examined and is_anything_due(session):
                break
        settle_sources(registry.catalog, registry.blobs, [model_id])
        report = repack(registry.catalog, registry.blobs, [model_id], progress=report_step)
        total.merge(report)
        examined += 1
    return RepackJobResult(
        examined_models=examined,
        remaining_models=len(models) - examined,
        organs=total.organs,
        repacked=total.repacked,
        before_bytes=total.before_bytes,
        after_bytes=total.after_bytes,
        unneeded_bytes=total.unneeded_bytes,
        skipped=total.skipped,
    )


REPACK = JobKind("repack", UPKEEP, RepackRequest, _repack)
"""Takes nothing; returns how many organs it examined and stored again, with their sizes before and after."""


KINDS: Mapping[str, JobKind[Any]] = {
    kind.name: kind
    for kind in (
        COMPOSE,
        GRAFT,
        PURIFY,
        QUICK_LOOK,
        VALIDATE,
        QUANTIZE,
        EVOLVE,
        MEASURE,
        EXTRACT,
        REPORT,
        INSPECT,
        PUBLISH,
        REPACK,
    )
}
