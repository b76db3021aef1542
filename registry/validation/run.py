"""Run a registered chimera in a runtime, with its base, its donors and its control."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
from sqlalchemy.orm import Session

from organs.registry.anatomy import expert_name, place_of
from organs.registry.assembly import (
    first_header,
    place_file,
    plan_merged,
    plan_model,
    stored_header,
)
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.chimeras import chimera_of, stored_origins, stored_quick_look, stored_score
from organs.registry.catalog.queries.model_contents import files_of
from organs.registry.catalog.queries.model_names import model_by_name, model_by_text
from organs.registry.catalog.register.chimeras import (
    add_verdict,
    record_gains,
    record_quick_look,
    record_score,
)
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.compose.recipe import kept_experts, recipe_from_json
from organs.registry.digest import Digest
from organs.registry.entities.base import encode
from organs.registry.entities.plan import GRAFTED, QUANTISED
from organs.registry.entities.validation import QuickLook, VerdictReport
from organs.registry.errors import NotAssemblable, NotComposedHere, NotFound, StoreError
from organs.registry.names import parse_model_name
from organs.registry.progress import StepProgress
from organs.registry.relatives.lineage import quantised_from
from organs.registry.store import BlobStore
from organs.registry.validation.comparison import (
    DONORS_MAX,
    TOKENS_ENOUGH,
    ModelFacts,
    RunnableModel,
    ScoreKey,
    ValidationBudget,
    texts_for,
    validate,
)
from organs.registry.validation.memory import write_hole
from organs.registry.validation.quick import KINDS as QUICK_KINDS
from organs.registry.validation.quick import LookBudget, quick_look
from organs.registry.validation.runtime import (
    Runtime,
    Score,
    Window,
    finite,
)
from organs.registry.validation.texts import ScoredText, built_in_texts


def run_chimera(
    catalog: Catalog,
    store: BlobStore,
    name: str,
    texts: Sequence[ScoredText],
    runtime: Runtime,
    budget: ValidationBudget | None = None,
    progress: StepProgress = lambda _share, _step: None,
    gained_on: Collection[str] | None = None,
) -> VerdictReport:
    """Run the chimera or quantisation `name` (a name or a digest), store the verdict and return it.

    Gains are stored for the texts with the names of `gained_on`, by default for all.
    Temporary files are written: at most three of the chimera's size at once, and one for each donor, of at most
    DONORS_MAX. Windows with stored scores are not scored again, except the chimera's, and those of the source of a
    quantisation. Raises NotFound, NotComposedHere for a model that was not composed here and is no quantisation of a
    registered one, NoRuntime, NoVerdict if the base does not run (nothing is stored then), BadInput for too short texts
    and contexts, StoreError, DiskFull.
    """
    with catalog.reading() as session:
        trial = _trial(session, name)
    donors: dict[str, RunnableModel] = {}
    for donor in trial.donors:
        if len(donors) < DONORS_MAX:
            with suppress(NotAssemblable, StoreError):  # donors that cannot be run do not affect the verdict
                donors[donor.full_name] = _candidate(catalog, store, donor)
    report = validate(
        _candidate(catalog, store, trial.model),
        _candidate(catalog, store, trial.base),
        list(donors.values()),
        trial.grafted,
        texts,
        runtime,
        budget,
        progress,
        CatalogScores(catalog),
        trial.act,
    )
    left_out = tuple(donor.full_name for donor in trial.donors if donor.full_name not in donors)
    report = msgspec.structs.replace(report, left_out=left_out)
    with catalog.writing() as session:
        strength = sum(min(text.tokens or 0, TOKENS_ENOUGH) for text in report.texts)
        stored = encode(report).decode()
        add_verdict(session, trial.model.id, report.runtime, report.verdict, report.reason, stored, strength)
        chimera = chimera_of(session, trial.model.id)
        if chimera is not None and trial.act != QUANTISED:  # it may have been removed during the run
            counted = [text for text in report.texts if gained_on is None or text.name in gained_on]
            record_gains(session, chimera, counted)
    return report


def look_at_chimera(
    catalog: Catalog,
    store: BlobStore,
    name: str,
    runtime: Runtime,
    budget: LookBudget | None = None,
    texts: Sequence[ScoredText] | None = None,
    progress: StepProgress = lambda _share, _step: None,
) -> QuickLook:
    """Take a quick look at the chimera `name` (a name or a digest); store it, if it is on the built-in texts.

    If it has one from the same runtime and texts, and with the same budget, this is returned. That at a quantisation
    that was not composed here is not stored. Raises NotFound, NotComposedHere like `run_chimera`, NoRuntime, NoVerdict,
    BadInput, StoreError, DiskFull.
    """
    limits, scored = budget or LookBudget(), tuple(texts or built_in_texts(QUICK_KINDS))
    with catalog.reading() as session:
        trial = _trial(session, name)
        stored = stored_quick_look(session, trial.model.id)
    base = _candidate(catalog, store, trial.base)
    wanted = [text.digest for text in texts_for(base, scored)]
    is_known = stored is not None and stored.covers(wanted, limits.windows, limits.seconds)
    if stored is not None and is_known and stored.runtime == runtime.identity:
        return stored
    look = msgspec.structs.replace(
        quick_look(
            _candidate(catalog, store, trial.model),
            base,
            scored,
            runtime,
            CatalogScores(catalog),
            limits,
            progress,
            is_quantised=trial.act == QUANTISED,
        ),
        model=trial.model.full_name,
        base=trial.base.full_name,
    )
    if texts is None and (look.is_started or stored is None or not stored.is_started):
        with catalog.writing() as session:
            record_quick_look(session, trial.model.id, encode(look).decode())
    return look


def compared_with(session: Session, model: ModelRow) -> tuple[ModelRow, str]:
    """Return the model beside which a chimera or a quantisation is run, and GRAFTED or QUANTISED.

    Raises NotComposedHere for any other model, NotFound if the base was removed.
    """
    chimera = chimera_of(session, model.id)
    if chimera is None:
        source = quantised_from(session, model)
        if source is None:
            raise NotComposedHere(
                f"{model.full_name} was not composed here, and no model is known of which it is a quantisation: name "
                "its base to measure it"
            )
        return source, QUANTISED
    base = session.get(ModelRow, chimera.base_model_id)
    if base is None or base.state not in REACHABLE_STATES:
        raise NotFound(f"the base of {model.full_name} was removed, so the chimera cannot be compared")
    origins = stored_origins(chimera)
    if not origins.is_quantisation:
        return base, GRAFTED
    for number in origins.sources:  # its weights were used in place of the base's
        with suppress(NotFound):
            return model_by_name(session, parse_model_name(origins.parents[number])), QUANTISED
    return base, QUANTISED


def registered_candidate(catalog: Catalog, store: BlobStore, name: str) -> RunnableModel:
    """Return the model `name` (a name or a digest); its files are written while it is run."""
    with catalog.reading() as session:
        model = model_by_text(session, name)
        chimera = chimera_of(session, model.id)
        is_mixed = chimera is not None and not stored_origins(chimera).is_quantisation
    return replace(_candidate(catalog, store, model), is_mixed=is_mixed)


@contextmanager
def registered_hole(catalog: Catalog, store: BlobStore, name: str) -> Iterator[tuple[str, Path]]:
    """Open a temporary file with the header of the model `name` (a name or a digest), and no data of its tensors.

    Yields the full name and the file, which takes only the room of the header. Raises NotFound, NotAssemblable,
    StoreError.
    """
    with catalog.reading() as session:
        model = model_by_text(session, name)
        full_name = model.full_name
        (plan,) = plan_merged(session, store, model, f"{model.name}.gguf")
        header = plan.literal or first_header(session, store, model).source.header
    with tempfile.TemporaryDirectory(prefix="organ-memory-") as place:
        path = Path(place, Path(plan.name).name)
        write_hole(path, header, plan.size_bytes)
        yield full_name, path


@dataclass(frozen=True, slots=True)
class CatalogScores:
    """A cache of scores in the catalog (`ScoreCache`)."""

    catalog: Catalog

    def get(self, key: ScoreKey) -> Score | None:
        """Return the score under `key`, or None."""
        with self.catalog.reading() as session:
            row = stored_score(session, key.model, key.text, key.window_tokens, key.runtime)
        if row is None:
            return None
        values = json.loads(row)
        windows = tuple(Window(math.inf if nats is None else nats, *rest) for nats, *rest in values["windows"])
        return Score(values["text"], windows, values["window_count"], values["token_count"])

    def __setitem__(self, key: ScoreKey, score: Score) -> None:
        """Store `score` under `key`."""
        values = asdict(score)
        values["windows"] = [
            [window.nats if math.isfinite(window.nats) else None, window.tokens, window.digest]
            for window in score.windows
        ]
        with self.catalog.writing() as session:
            document, perplexity = json.dumps(values, separators=(",", ":")), finite(score.perplexity)
            record_score(session, key.model, key.text, key.window_tokens, key.runtime, document, perplexity)


@dataclass(frozen=True, slots=True)
class _RegisteredTrial:
    model: ModelRow
    base: ModelRow
    donors: tuple[ModelRow, ...]
    """The donors that are complete models, the one with most grafted organs first."""
    grafted: tuple[str, ...]
    """Tensors from donors, and experts with their numbers; adapted or purified tensors of the base are not among them.
    """
    act: str = GRAFTED
    """QUANTISED for a quantisation of the base."""


def _trial(session: Session, name: str) -> _RegisteredTrial:
    model = model_by_text(session, name)
    base, act = compared_with(session, model)
    chimera = chimera_of(session, model.id)
    if chimera is None or act == QUANTISED:
        return _RegisteredTrial(model, base, (), (), act)
    origins = stored_origins(chimera)
    grafted: list[str] = []
    recipe = recipe_from_json(chimera.recipe)
    for tensor, (_, acts) in origins.by_tensor().items():
        if tensor in origins.experts:
            numbers = [number for _, numbers in origins.experts[tensor] for number in numbers]
            if tensor in origins.pruned:  # the experts that stay have other numbers in the chimera
                kept = kept_experts(recipe, place_of(tensor).block, origins.pruned[tensor][1])
                numbers = [kept.index(number) for number in numbers if number in kept]
            grafted += [expert_name(tensor, number) for number in numbers]
        elif GRAFTED in acts:
            grafted.append(tensor)
    counts = Counter(number for number, _ in origins.by_tensor().values() if number)
    counts.update(number for grafts in origins.experts.values() for number, _ in grafts[1:])
    donors = []
    for number, _ in counts.most_common():
        with suppress(NotFound):  # removed since
            donors.append(model_by_name(session, parse_model_name(origins.parents[number])))
    complete = tuple(donor for donor in donors if donor.complete and donor.kind == "model")
    return _RegisteredTrial(model, base, complete, tuple(grafted))


def _candidate(catalog: Catalog, store: BlobStore, model: ModelRow) -> RunnableModel:
    with catalog.reading() as session:
        files = files_of(session, model.id)
        # llama.cpp refuses a whole file that says that it is a shard.
        is_one = len(files) == 1
        plans = plan_merged(session, store, model, files[0].name) if is_one else plan_model(session, model)
        headers = [stored_header(session, store, file).header for file in files]

    @contextmanager
    def placed() -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="organ-trial-") as place:
            paths = [Path(place, Path(plan.name).name) for plan in plans]
            for plan, path in zip(plans, paths, strict=True):
                place_file(store, plan, path)
            yield paths[0]

    return RunnableModel(model.full_name, Digest(model.digest), placed, ModelFacts.of(headers))
