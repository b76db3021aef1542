"""Pages to compose a chimera: the choice of a base, the models that fit it, its cells with candidates, the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

from flask import abort, g, redirect, request, url_for
from msgspec import structs
from msgspec.structs import asdict
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response

from organs.registry.catalog.queries.chimeras import chimeras_by_lock, stored_quick_look, strongest_verdicts
from organs.registry.catalog.queries.model_lists import known_bases
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.compose.chimeras import leaderboard
from organs.registry.compose.compatibility import check_compatibility
from organs.registry.compose.plan import Plan
from organs.registry.compose.recipe import ENCODINGS, Graft, PurifyMethod, Recipe
from organs.registry.compose.recipe_io import recipe_findings, recipe_of, recipe_python, recipe_values
from organs.registry.compose.screen import KNOWN, Kind
from organs.registry.compose.steps import LISTS, PARAMETERS, Step, read_steps, step_paths, step_text, step_texts
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.model import ModelSummary
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.plan import (
    Candidates,
    Compatibility,
    CompositionState,
    FitCount,
    FittingModels,
    RecipeFile,
)
from organs.registry.errors import Ambiguous, BadDigest, BadName, BadQuery, BadRecipe, NotAllowed, NotFound, TooSlow
from organs.registry.search.fitting import fitting_models
from organs.registry.search.language import MODELS, parse_query, short_text
from organs.registry.search.models import search_models
from organs.web.error_pages import status_of
from organs.web.pages.anatomy import (
    cell_grid,
    letters,
)
from organs.web.pages.lineage import offered_names
from organs.web.pages.routes import Context, Page, paged, pages, writing_form
from organs.web.params import requested_query
from organs.web.permissions import queue_job
from organs.web.responses import reading, settings
from organs.web.services.planning import (
    ORDERS,
    UnderWay,
    checked_order,
    compose_for_client,
    cut_pair,
    pair_for_client,
)

STEP_FIELDS = {
    "graft": ("from", "where", "sort", "strangers", "type", "slot", "blocks", "experts"),
    "adapter": ("from", "scale"),
    "purify": ("method", "where", "type", "slot", "blocks", "experts", "keep"),
}
"""Fields of the forms that add a step, with the names that a recipe uses."""


@dataclass(frozen=True, slots=True)
class RequestedSteps:
    """The steps as typed, and the selected cell and order."""

    steps: tuple[Step, ...]
    cell: str = ""
    order: str = next(iter(ORDERS))

    @property
    def base(self) -> str:
        """The model that receives organs; empty if none is chosen."""
        return next((text.strip() for parameter, text in self.steps if parameter == "base"), "")

    def recipe(self) -> Recipe:
        """Return the recipe of the steps. Raises BadRecipe."""
        return read_steps(self.steps)

    def readable(self) -> Recipe:
        """Return the recipe of the valid steps."""
        base = ("base", self.base)
        valid = [step for step in self.steps if step[0] != "base" and _is_readable([base, step])]
        return read_steps([base, *valid]) if _is_readable([base, *valid]) else Recipe(self.base)

    def address(self, *, cell: str | None = None, order: str | None = None, anchor: str = "") -> str:
        """Return the address of the page of these steps. `cell` and `order` replace the selected ones."""
        selection = {"cell": self.cell if cell is None else cell, "order": order or self.order}
        shown = [(name, text) for name, text in selection.items() if text and text != next(iter(ORDERS))]
        return compose_address([*self.steps, *shown]) + (f"#{anchor}" if anchor else "")

    def with_recipe(self, recipe: Recipe) -> RequestedSteps:
        """Return a copy with the steps of `recipe`."""
        return replace(self, steps=tuple(step_texts(recipe)))

    def without(self, place: int) -> RequestedSteps:
        """Return a copy without the step at `place`."""
        return replace(self, steps=(*self.steps[:place], *self.steps[place + 1 :]))

    def having(self, parameter: str, text: str) -> RequestedSteps:
        """Return a copy with one more step, which replaces a step that can occur only once."""
        kept = [step for step in self.steps if parameter in LISTS or step[0] != parameter]
        return replace(self, steps=(*kept, (parameter, text)))

    def paths(self) -> list[str]:
        """Return the path that findings use for each step: `grafts[0]`."""
        return list(step_paths(self.steps))


def requested_steps(form: MultiDict[str, str]) -> RequestedSteps:
    """Return the steps in the parameters of an address or in the fields of a form. Raises BadQuery for an unknown
    order.

    Empty fields and fields with other names are ignored.
    """
    steps = [(name, text.strip()) for name in PARAMETERS for text in form.getlist(name) if text.strip()]
    return RequestedSteps(tuple(steps), form.get("cell", ""), checked_order(form.get("order", "")))


def compose_address(steps: Sequence[Step], endpoint: str = "pages.compose") -> str:
    """Return the address of a composing page with these parameters. A name may occur more than once."""
    query = urlencode(steps, safe=":,/*>=<-@[]")
    return quote(url_for(endpoint), safe="/@:+~") + (f"?{query}" if query else "")


def twin(endpoint: str = "pages.compose_json") -> str:
    """Return the JSON address of the requested composing page. It keeps all parameters, also repeated ones."""
    return compose_address(list(request.args.items(multi=True)), endpoint)


def filled_step(form: MultiDict[str, str]) -> Step:
    """Return the step that a form adds. Raises BadQuery for an unknown form."""
    kind = form.get("add", "")
    if kind in STEP_FIELDS:
        return kind, step_text({name: form[name].strip() for name in STEP_FIELDS[kind] if form.get(name, "").strip()})
    if kind == "encode":
        return kind, form.get("dtype", "")
    if kind == "meta":
        return kind, f"{form.get('key', '').strip()}={form.get('value', '').strip()}"
    raise BadQuery("add", f"one of {', '.join((*STEP_FIELDS, 'encode', 'meta'))}")


def cell_graft(model: str, cell: Candidates, towers: Sequence[str]) -> Step:
    """Return the step that grafts a whole cell from `model`.

    The blocks of a recipe are blocks of every tower. If the base has several towers, a query selects one of them.
    Organs outside the blocks are named by their slots.
    """
    place = {"slot": ",".join(cell.slots)} if cell.block is None else {"type": cell.type}
    block = {} if cell.block is None else {"blocks": str(cell.block)}
    if len(towers) > 1:
        return "graft", step_text({"where": f"model:{model} tower:{cell.tower}", **place, **block})
    return "graft", step_text({"from": model, **place, **block})


def type_graft(model: str, kind: str) -> Step:
    """Return the step that takes all organs of a type from `model`."""
    return "graft", step_text({"from": model, "type": kind})


def graft_address(place: PlacedOrgan) -> str | None:
    """Return the address to choose a base for the organ at `place`; None for an organ that cannot be grafted."""
    if place.type not in GRAFTED_TYPES:
        return None
    block = {} if place.block is None else {"blocks": str(place.block)}
    expert = {} if place.expert is None else {"experts": str(place.expert)}
    return compose_address([("graft", step_text({"from": place.model, "slot": place.slot, **block, **expert}))])


def recipe_address(file: RecipeFile) -> str:
    """Return the address of the composing page with the steps of a recipe, without its name."""
    return compose_address(step_texts(structs.replace(recipe_of(file), name=None)))


def replacing(recipe: Recipe, step: Step) -> Recipe:
    """Return `recipe` with the graft of `step`. It replaces the graft with the same selection."""
    (graft,) = read_steps([("base", recipe.base), step]).grafts
    return structs.replace(recipe, grafts=(*_other_grafts(recipe, graft), graft))


def _other_grafts(recipe: Recipe, graft: Graft) -> list[Graft]:
    return [other for other in recipe.grafts if not other.selects_as(graft)]


def _is_readable(steps: Sequence[Step]) -> bool:
    try:
        read_steps(steps)
    except BadRecipe:
        return False
    return True


FILE_NAME = "recipe.yaml"
TOO_SLOW = "Not shown: the search took too long."
NOTHING_YET = "nothing-to-do"
"""Code of the finding about a base without steps. It is not shown before the first step."""


@dataclass(frozen=True, slots=True)
class Workbench:
    """The steps, their plan, and the error of the request."""

    requested: RequestedSteps
    under_way: UnderWay
    problem: str | None = None
    status: int = 200

    @property
    def recipe(self) -> Recipe:
        return self.under_way.recipe

    @property
    def plan(self) -> Plan:
        return self.under_way.plan

    @property
    def state(self) -> CompositionState:
        return self.under_way.state

    def page(self) -> Page:
        """Return the page."""
        return Page("compose.html", asdict(self.state), extra=lambda: _page_context(self), status=self.status)


def workbench(requested: RequestedSteps, problem: str | None = None, status: int = 200) -> Workbench:
    """Return the plan of the steps and the next choices. A step that cannot be read becomes a finding, and the status
    is 400.

    Raises the errors of `compose_for_client`.
    """
    step_errors: list[Finding] = []
    try:
        recipe = requested.recipe()
    except BadRecipe as error:
        recipe, step_errors, status = requested.readable(), recipe_findings(error), 400
    return Workbench(
        requested, compose_for_client(recipe, step_errors, requested.cell, requested.order), problem, status
    )


def _page_context(bench: Workbench) -> Context:
    """Return the values that only the HTML needs."""
    requested, plan, state = bench.requested, bench.plan, bench.state
    marks = letters([parent.label for parent in plan.parents])
    findings = [
        finding
        for finding in state.findings
        if finding.code != NOTHING_YET or len(requested.steps) > 1 or bench.problem
    ]
    parents = () if state.plan is None else state.plan.parents
    return {
        "problem": bench.problem,
        "steps": _step_list(bench),
        "grid": cell_grid(
            state.cells, marks, requested.cell, lambda cell: requested.address(cell=cell, anchor="candidates")
        ),
        "marks": marks,
        "acts": {parent.model: parent.acts for parent in parents},
        "findings_shown": [asdict(finding) | {"accept": _accept_address(requested, finding)} for finding in findings],
        "has_steps": any(part.acts for part in plan.parts) or len(requested.steps) > 1,
        "at_start": len(requested.steps) == 1 and not requested.cell,
        "offers": _candidate_offers(bench),
        "type_offers": _type_offers(bench),
        "adapter_offers": [
            {
                "name": adapter.model,
                "address": _address_with(requested, "adapter", f"from:{adapter.model}"),
                "findings": adapter.findings,
            }
            for adapter in state.adapters
        ],
        "orders": [
            {
                "label": label,
                "chosen": order == requested.order,
                "address": requested.address(order=order, anchor="candidates"),
            }
            for order, label in ORDERS.items()
        ],
        "hidden": [*requested.steps, *([("cell", requested.cell)] if requested.cell else [])],
        "name_problem": next((finding.sentence for finding in findings if finding.field == "name"), ""),
        "form_fields": [step for step in requested.steps if step[0] != "name"],
        "name": next((text for parameter, text in requested.steps if parameter == "name"), ""),
        "types_to_choose": GRAFTED_TYPES,
        "methods": [method.value for method in PurifyMethod],
        "purification_cost": KNOWN[Kind.PURIFIED].sentence,
        "encodings": ENCODINGS,
        "encode": bench.recipe.encode,
        "other_base": compose_address([step for step in requested.steps if step[0] != "base"]),
        "fits": compose_address([("base", plan.base.label)], "pages.compose_fits"),
        "recipe_lines": _recipe_lines(bench),
        "twin": compose_address(
            [*requested.steps, *([("cell", requested.cell)] if requested.cell else [])], "pages.compose_json"
        ),
        "too_slow": TOO_SLOW,
        "measured": _measured_offers(plan.base.label),
        "same": _measured_chimera(state),
        "offers_shown": OFFERS_SHOWN,
        "leaderboard": url_for("pages.leaderboard", base=plan.base.label),
    }


MEASURED_READ, MEASURED_SHOWN = 20, 5
OFFERS_SHOWN = 6
"""Models that are shown before the rest is opened."""


def _measured_chimera(state: CompositionState) -> Context | None:
    """Return the registered chimera with the same lock as the plan, and what was measured; None if it was not run."""
    lock = None if state.plan is None else state.plan.lock_id
    if lock is None:
        return None
    with reading(settings().search_seconds) as session:
        try:
            model = chimeras_by_lock(session, lock)[0]
        except NotFound:
            return None
        verdict = strongest_verdicts(session, [model.id]).get(model.id)
        look = stored_quick_look(session, model.id)
    if verdict is not None:
        sentence = f"It was run on {verdict.created_at:%Y-%m-%d}: {verdict.verdict}. {verdict.reason}"
    elif look is not None:
        sentence = look.sentence
    else:
        return None
    return {"model": model.full_name, "sentence": sentence}


def _measured_offers(base: str) -> list[Context]:
    """Return the grafts with the largest measured gains over `base`, each with the address of its recipe."""
    try:
        with reading(settings().counts_seconds) as session:
            page = leaderboard(session, model_by_text(session, base), None, MEASURED_READ)
    except TooSlow:
        g.not_cached = True  # the next request may be fast enough
        return []
    offered = [graft for graft in page if graft.best.percent > 0.0 and not graft.unavailable_parents]
    return [{"graft": graft, "address": recipe_address(graft.recipe)} for graft in offered[:MEASURED_SHOWN]]


def _step_list(bench: Workbench) -> list[Context]:
    """Return the steps, each with its errors and the address of the page without it."""
    requested = bench.requested
    errors = [finding for finding in bench.state.findings if finding.severity is Severity.REFUSE and finding.field]
    return [
        {
            "parameter": parameter,
            "text": text,
            "path": path,
            "remove": requested.without(place).address(),
            "problems": [finding.sentence for finding in errors if _is_at(finding.field, path)],
        }
        for place, ((parameter, text), path) in enumerate(zip(requested.steps, requested.paths(), strict=True))
        if parameter not in ("base", "name")
    ]


def _is_at(field: str, path: str) -> bool:
    return field == path or field.startswith((f"{path}.", f"{path}["))


def _accept_address(requested: RequestedSteps, finding: Finding) -> str | None:
    """Return the address that accepts a warning, or undoes the acceptance; None for other findings."""
    if finding.severity is not Severity.WARN:
        return None
    step = ("accept", finding.code)
    if step in requested.steps:
        return requested.without(requested.steps.index(step)).address(anchor="findings")
    return requested.having(*step).address(anchor="findings")


def _candidate_offers(bench: Workbench) -> list[Context]:
    """Return the candidates of the chosen cell, each with the address that grafts the cell from it."""
    candidates = bench.state.candidates
    if candidates is None:
        return []
    towers = sorted({part.place.tower.value for part in bench.plan.base.parts})
    return [
        asdict(candidate)
        | {
            "address": _graft_step_address(bench, cell_graft(candidate.model, candidates, towers))
            if candidate.whole
            else None
        }
        for candidate in candidates.items
    ]


def _type_offers(bench: Workbench) -> list[Context]:
    """Return the models that fit, each with the addresses that graft all organs of a type from it."""
    fitting = bench.state.fitting
    return [
        {
            "model": model.model,
            "likeness": model.likeness,
            "change": model.change,
            "same": model.same,
            "types": {
                kind: asdict(fit)
                | {
                    "address": _graft_step_address(bench, type_graft(model.model, kind))
                    if _can_give(kind, fit)
                    else None
                }
                for kind, fit in model.types.items()
            },
            "fits": compose_address([("base", bench.plan.base.label), ("donor", model.model)], "pages.compose_fits"),
        }
        for model in (fitting.items if fitting else ())
    ]


def _can_give(kind: str, fit: FitCount) -> bool:
    return bool(fit.whole and fit.fitting and kind in GRAFTED_TYPES)


def _graft_step_address(bench: Workbench, step: tuple[str, str]) -> str:
    """Return the address with one more graft. It replaces the graft with the same selection."""
    try:
        return bench.requested.with_recipe(replacing(bench.requested.recipe(), step)).address(anchor="steps")
    except BadRecipe:
        return _address_with(bench.requested, *step)


def _address_with(requested: RequestedSteps, parameter: str, text: str) -> str:
    return requested.having(parameter, text).address(anchor="steps")


def _recipe_lines(bench: Workbench) -> Context:
    file_name = bench.plan.file_name
    return {
        "recipe_file": FILE_NAME,
        "command": f"organ compose {FILE_NAME} -o {file_name}",
        "python": recipe_python(bench.recipe, file_name),
    }


FITTING_MAX, OTHERS_MAX = 50, 20
ENDPOINT = "pages.compose_fits"


@dataclass(frozen=True, slots=True)
class Fits:
    """Models that fit a base, and models that do not; with a donor, the findings about that pair."""

    base: str
    models: FittingModels
    others: tuple[tuple[str, str], ...]
    """Names of models without an organ that fits, each with the reason."""
    pair: Compatibility | None


def _api_of_fits() -> str:
    return "compatibility" if request.args.get("donor") else "fitting"


@paged(pages, "/compose/fits", api=_api_of_fits)
def compose_fits() -> Page:
    """Show the models with organs that fit the model `base`; with `donor`, also the findings about that pair."""
    base, donor = (request.args.get(name, "").strip() for name in ("base", "donor"))
    fits: Fits | None = None
    problem, status = None, 200
    if base:
        try:
            with reading(settings().search_seconds) as session:
                fits = _find_fits(session, base, donor)
        except (NotFound, BadName, BadDigest, Ambiguous) as error:
            problem, status = str(error).rstrip("?.") + ".", status_of(error)
    return Page("compose_fits.html", {}, extra=lambda: _fits_context(fits, base, donor, problem), status=status)


def _find_fits(session: Session, base: str, donor: str) -> Fits:
    row = model_by_text(session, base)
    fitting_page = fitting_models(session, row, FITTING_MAX)
    pair = cut_pair(check_compatibility(*pair_for_client(session, base, donor))) if donor else None
    fitting = {model.model for model in fitting_page.items}
    newest = search_models(session, parse_query("kind:model", MODELS), FITTING_MAX).items
    others = [model for model in newest if model.name != row.full_name and model.name not in fitting]
    reasons = tuple((model.name, _reason(row, model)) for model in others[:OTHERS_MAX])
    return Fits(row.full_name, fitting_page, reasons, pair)


def _reason(base: ModelRow, other: ModelSummary) -> str:
    """Return why no organ of `other` fits. The catalog is enough for this; headers are not read."""
    if base.architecture is None or base.architecture != other.architecture:
        return f"different architecture: {other.architecture or 'not stated'}"
    return "no organ of a matching shape"


def _fits_context(fits: Fits | None, base: str, donor: str, problem: str | None) -> Context:
    models = fits.models.items if fits else ()
    pair = fits.pair if fits else None
    by_type = [finding for fit in pair.types for finding in fit.findings] if pair else []
    names = [*(fit.model for fit in models), *(name for name, _ in (fits.others if fits else ()))]
    return {
        "base": fits.base if fits else None,
        "models": models,
        "has_models": fits is not None,
        "more": fits is not None and fits.models.more,
        "others": fits.others if fits else (),
        "pair": pair,
        "model_findings": [finding for finding in pair.findings if finding not in by_type] if pair else [],
        "requested": [base, donor],
        "problem": problem,
        "names": offered_names(),
        "types_shown": [kind for kind in GRAFTED_TYPES if any(kind in model.types for model in models)],
        "details": {name: compose_address([("base", base), ("donor", name)], ENDPOINT) for name in names},
        "compose": compose_address([("base", base)]) if fits else None,
        "leaderboard": url_for("pages.leaderboard", base=base) if fits else None,
        "twin": twin("pages.compose_fits_json") if base else None,
    }


MODELS_SHOWN, KNOWN_SHOWN = 20, 8
NO_BASE = (NotFound, BadName, BadDigest, Ambiguous)
"""Errors about a base that does not exist."""
COMPOSE = "compose"
"""The kind of job that makes the chimera."""
NOT_YET = "The chimera cannot be created yet. See the findings below."


def _api_of_compose() -> str:
    return "composition" if request.args.get("base") else "models"


@paged(pages, "/compose", api=_api_of_compose)
def compose() -> Page:
    """Show the recipe in the address: `base`, then steps (`graft`, `adapter`, `purify` …); `cell` asks for candidates.

    `add`, a field of the forms, redirects to the page with one more step.
    """
    requested = requested_steps(request.args)
    if "add" in request.args:
        abort(_redirect_to(requested.having(*filled_step(request.args)).address(anchor="steps")))
    if not requested.base:
        return _base_choice(requested)
    try:
        return workbench(requested).page()
    except NO_BASE as error:
        return _base_choice(requested, str(error).rstrip("?.") + ".", status_of(error))


@writing_form(pages, "/compose")
def compose_chimera() -> str | Page:
    """Queue the chimera of the form and show the job. If it cannot be made, show the page with the reasons."""
    requested = requested_steps(_with_plain_line_ends(request.form))
    if not requested.base:
        return _base_choice(requested, "Choose a base first.", 400)
    try:
        bench = workbench(requested)
    except NO_BASE as error:
        return _base_choice(requested, str(error).rstrip("?.") + ".", status_of(error))
    if bench.status != 200 or not bench.plan.can_be_made:
        return workbench(requested, NOT_YET, 409 if bench.status == 200 else bench.status).page()
    try:
        return url_for("pages.job", job=queue_job(COMPOSE, {"recipe": recipe_values(bench.recipe)}))
    except NotAllowed as error:
        return workbench(requested, f"{error}.", 403).page()


def _redirect_to(address: str) -> Response:
    """Redirect to another address, without a body."""
    answer = redirect(address, 303)
    answer.set_data(b"")
    answer.mimetype = "text/plain"
    return answer


def _with_plain_line_ends(form: MultiDict[str, str]) -> MultiDict[str, str]:
    """Return `form` with LF as line ends, as addresses have them. Browsers send CRLF."""
    return MultiDict((name, value.replace("\r\n", "\n")) for name, value in form.items(multi=True))


def _base_choice(requested: RequestedSteps, problem: str | None = None, status: int = 200) -> Page:
    """Show the choice of a base: a search, models with many relatives, the newest models."""
    query, page, text = None, None, request.args.get("q", "")
    try:
        query = requested_query(MODELS)
    except BadQuery as error:
        problem, status = str(error), 400
    with reading(settings().search_seconds) as session:
        known = known_bases(session, KNOWN_SHOWN) if not text else ()
        if query is not None:
            page = search_models(session, query, MODELS_SHOWN, ranked=True)
            text = short_text(query, MODELS)
    values = {
        "steps": [list(step) for step in requested.steps],
        "known": known,
        "items": page.items if page else (),
        "notes": page.notes if page else (),
    }
    return Page(
        "compose_start.html",
        values,
        extra=lambda: _base_choice_context(requested, values, text, problem),
        status=status,
    )


def _base_choice_context(requested: RequestedSteps, values: Context, text: str, problem: str | None) -> Context:
    def offer(model: ModelSummary) -> Context:
        return asdict(model) | {"address": requested.having("base", model.name).address(anchor="anatomy")}

    return {
        "text": text,
        "problem": problem,
        "pending": [step for step in requested.steps if step[0] != "base"],
        "offers": [
            offer(model) for model in {model.name: model for model in (*values["known"], *values["items"])}.values()
        ],
        "discard_address": compose_address([]),
        "twin": twin(),
    }
