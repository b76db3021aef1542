"""Pages to compose a chimera: the choice of a base, the models that fit it, its cells with candidates, the steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

from flask import abort, g, redirect, request, url_for
from msgspec import structs
from msgspec.structs import asdict
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict

from organs.registry.catalog.queries.chimeras import chimeras_by_lock, stored_quick_look, strongest_verdicts
from organs.registry.catalog.queries.model_lists import known_bases
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.compose.blend_steps import BLEND_DEFAULT
from organs.registry.compose.chimeras import leaderboard
from organs.registry.compose.compatibility import check_compatibility
from organs.registry.compose.recipe import (
    ENCODINGS,
    GIVEN,
    PROVED,
    PurifyMethod,
    Recipe,
    recipe_findings,
    recipe_of,
    recipe_python,
    recipe_values,
)
from organs.registry.compose.screen import KNOWN, ChangeKind
from organs.registry.compose.steps import LISTS, PARAMETERS, Step, read_steps, step_paths, step_text, step_texts
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.plan import ALIKE, CANDIDATE_ORDERS, Candidates, CompositionState, RecipeFile
from organs.registry.errors import BadQuery, BadRecipe, NotAllowed, NotFound, TooSlow
from organs.registry.gguf.mixes import MIXES
from organs.registry.search.fitting import fitting_models
from organs.registry.search.language import MODELS, parse_query, short_text
from organs.registry.search.models import search_models
from organs.registry.transform.blend import METHODS
from organs.registry.transform.blend import PARAMETERS as BLEND_PARAMETERS
from organs.web.api.plans import UnderWay, compose_for_client, cut_pair, pair_for_client
from organs.web.error_pages import sentence_of, status_of
from organs.web.pages.anatomy import cell_grid, letters
from organs.web.pages.lineage import offered_names
from organs.web.pages.routes import UNKNOWN_MODEL, Context, WebPage, paged, writing_form
from organs.web.permissions import queue_job
from organs.web.responses import reading, searching, settings

STEP_FIELDS = {
    "layer": ("from", "blocks"),
    "graft": ("from", "where", "sort", "strangers", "type", "slot", "blocks", "experts"),
    "blend": ("method", "from", "weight", "density", "where", "type", "slot", "blocks"),
    "adapter": ("from", "scale"),
    "purify": ("method", "where", "type", "slot", "blocks", "experts", "keep"),
    "expert": ("keep", "drop", "blocks"),
    "quantize": ("as", "type", "slot", "blocks"),
}
"""Fields of the forms that add a step, with the names that a recipe uses."""
SINGLE_FIELDS = {"imatrix": "matrix", "encode": "dtype", "source": "weights"}
"""The fields of the forms that set a single value. They are not named as the value, which is in the address too."""


@dataclass(frozen=True, slots=True)
class RequestedSteps:
    """The steps as typed, and the selected cell and order."""

    steps: tuple[Step, ...]
    cell: str = ""
    order: str = ALIKE

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
        shown = [(name, text) for name, text in selection.items() if text and text != ALIKE]
        return compose_address([*self.steps, *shown]) + (f"#{anchor}" if anchor else "")

    def without(self, place: int) -> RequestedSteps:
        """Return a copy without the step at `place`."""
        return replace(self, steps=(*self.steps[:place], *self.steps[place + 1 :]))

    def having(self, parameter: str, text: str) -> RequestedSteps:
        """Return a copy with one more step, which replaces a step that can occur only once."""
        kept = [step for step in self.steps if parameter in LISTS or step[0] != parameter]
        return replace(self, steps=(*kept, (parameter, text)))


def requested_steps(form: MultiDict[str, str]) -> RequestedSteps:
    """Return the steps in the parameters of an address or in the fields of a form. Raises BadQuery for an unknown
    order.

    Empty fields and fields with other names are ignored.
    """
    steps = [(name, text.strip()) for name in PARAMETERS for text in form.getlist(name) if text.strip()]
    order = form.get("order") or ALIKE
    if order not in CANDIDATE_ORDERS:
        raise BadQuery("order", f"one of {', '.join(CANDIDATE_ORDERS)}")
    return RequestedSteps(tuple(steps), form.get("cell", ""), order)


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
        filled = {name: form[name].strip() for name in STEP_FIELDS[kind] if form.get(name, "").strip()}
        method = METHODS.get(filled.get("method", BLEND_DEFAULT))
        if kind == "blend" and method is not None:  # the weight of one donor is its share, whatever the method names it
            names = {"weight": "weight" if "weight" in method.defaults else "t"}
            filled = {names.get(name, name): value for name, value in filled.items()}
            filled = {
                name: value for name, value in filled.items() if name not in BLEND_PARAMETERS or name in method.defaults
            }
            donors = [name.strip() for name in filled.get("from", "").split(",") if name.strip()]
            if len(donors) > 1:
                del filled["from"]
                filled["models"] = json.dumps([{"from": name} for name in donors], separators=(",", ":"))
        return kind, step_text(filled)
    if kind in SINGLE_FIELDS:
        return kind, form.get(SINGLE_FIELDS[kind], "")
    if kind == "meta":
        return kind, f"{form.get('key', '').strip()}={form.get('value', '').strip()}"
    raise BadQuery("add", f"one of {', '.join((*STEP_FIELDS, *SINGLE_FIELDS, 'meta'))}")


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


def planned_steps(requested: RequestedSteps) -> tuple[UnderWay, int]:
    """Return the plan of the steps with the next choices, and the status of the answer.

    A step that cannot be read becomes a finding, and the status is 400. Raises the errors of `compose_for_client`.
    """
    step_errors: list[Finding] = []
    try:
        recipe = requested.recipe()
    except BadRecipe as error:
        recipe, step_errors = requested.readable(), recipe_findings(error)
    under_way = compose_for_client(recipe, step_errors, requested.cell, requested.order)
    return under_way, 400 if step_errors else 200


def _compose_page(requested: RequestedSteps, under_way: UnderWay, status: int, problem: str | None = None) -> WebPage:
    plan, state, base = under_way.plan, under_way.state, under_way.plan.base.label
    sources = {parent.model for parent in (state.plan.parents if state.plan else ()) if parent.is_source}
    marks = letters([parent.label for parent in plan.parents if parent.label not in sources])
    findings = [
        finding for finding in state.findings if finding.code != NOTHING_YET or len(requested.steps) > 1 or problem
    ]
    refusals = [finding for finding in state.findings if finding.severity is Severity.REFUSE and finding.field]
    steps = [
        {
            "parameter": parameter,
            "text": text,
            "path": path,
            "remove": requested.without(place).address(),
            "problems": [
                finding.sentence
                for finding in refusals
                if finding.field == path or finding.field.startswith((f"{path}.", f"{path}["))
            ],
        }
        for place, ((parameter, text), path) in enumerate(
            zip(requested.steps, step_paths(requested.steps), strict=True)
        )
        if parameter not in ("base", "name")
    ]
    kept = [*requested.steps, *([("cell", requested.cell)] if requested.cell else [])]
    context = {
        "problem": problem,
        "steps": steps,
        "grid": cell_grid(
            state.cells, marks, requested.cell, lambda cell: requested.address(cell=cell, anchor="candidates")
        ),
        "marks": marks,
        "acts": {} if state.plan is None else {parent.model: parent.acts for parent in state.plan.parents},
        "findings_shown": [asdict(finding) | {"accept": _accept_address(requested, finding)} for finding in findings],
        "has_steps": any(part.acts for part in plan.parts) or len(requested.steps) > 1,
        "at_start": len(requested.steps) == 1 and not requested.cell,
        "offers": _candidate_offers(requested, under_way),
        "type_offers": _type_offers(requested, under_way),
        "adapter_offers": [
            {
                "name": adapter.model,
                "address": requested.having("adapter", f"from:{adapter.model}").address(anchor="steps"),
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
            for order, label in CANDIDATE_ORDERS.items()
        ],
        "hidden": kept,
        "name_problem": next((finding.sentence for finding in findings if finding.field == "name"), ""),
        "form_fields": [step for step in requested.steps if step[0] != "name"],
        "name": next((text for parameter, text in requested.steps if parameter == "name"), ""),
        "types_to_choose": GRAFTED_TYPES,
        "methods": [method.value for method in PurifyMethod],
        "blend_methods": [name for name, method in METHODS.items() if method.needs_base and name != BLEND_DEFAULT],
        "purification_cost": KNOWN[ChangeKind.PURIFIED].sentence,
        "encodings": ENCODINGS,
        "mixes": list(MIXES),
        "encode": under_way.recipe.encode,
        "source": under_way.recipe.source,
        "sources": (PROVED, GIVEN),
        "other_base": compose_address([step for step in requested.steps if step[0] != "base"]),
        "fits": compose_address([("base", base)], "pages.compose_fits"),
        "recipe_lines": {
            "recipe_file": FILE_NAME,
            "command": f"organ compose {FILE_NAME} -o {plan.file_name}",
            "python": recipe_python(under_way.recipe, plan.file_name),
        },
        "twin": compose_address(kept, "pages.compose_json"),
        "too_slow": TOO_SLOW,
        "measured": _measured_offers(base),
        "same": _measured_chimera(state),
        "offers_shown": OFFERS_SHOWN,
        "leaderboard": url_for("pages.leaderboard", base=base),
    }
    return WebPage("compose.html", asdict(state) | context, status=status)


MEASURED_READ, MEASURED_SHOWN = 20, 5
OFFERS_SHOWN = 6
"""Models that are shown before the rest is opened."""


def _measured_chimera(state: CompositionState) -> Context | None:
    """Return the registered chimera with the same lock as the plan, and what was measured; None if it was not run."""
    lock = None if state.plan is None else state.plan.lock_id
    if lock is None:
        return None
    with searching() as session:
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


def _accept_address(requested: RequestedSteps, finding: Finding) -> str | None:
    """Return the address that accepts a warning, or undoes the acceptance; None for other findings."""
    if finding.severity is not Severity.WARN:
        return None
    step = ("accept", finding.code)
    if step in requested.steps:
        return requested.without(requested.steps.index(step)).address(anchor="findings")
    return requested.having(*step).address(anchor="findings")


def _candidate_offers(requested: RequestedSteps, under_way: UnderWay) -> list[Context]:
    """Return the candidates of the chosen cell, each with the address that grafts the cell from it."""
    candidates = under_way.state.candidates
    if candidates is None:
        return []
    towers = sorted({part.place.tower.value for part in under_way.plan.base.parts})
    offers = []
    for candidate in candidates.items:
        step = cell_graft(candidate.model, candidates, towers) if candidate.whole else None
        offers.append(asdict(candidate) | {"address": step and _graft_step_address(requested, step)})
    return offers


def _type_offers(requested: RequestedSteps, under_way: UnderWay) -> list[Context]:
    """Return the models that fit, each with the addresses that graft all organs of a type from it."""
    fitting, offers = under_way.state.fitting, []
    for model in fitting.items if fitting else ():
        types = {}
        for kind, fit in model.types.items():
            can_give = fit.whole and fit.fitting and kind in GRAFTED_TYPES
            step = ("graft", step_text({"from": model.model, "type": kind})) if can_give else None
            types[kind] = asdict(fit) | {"address": step and _graft_step_address(requested, step)}
        pair = [("base", under_way.plan.base.label), ("donor", model.model)]
        offers.append(asdict(model) | {"types": types, "fits": compose_address(pair, "pages.compose_fits")})
    return offers


def _graft_step_address(requested: RequestedSteps, step: Step) -> str:
    """Return the address with one more graft. It replaces the graft with the same selection."""
    try:
        recipe = requested.recipe()
        (graft,) = read_steps([("base", recipe.base), step]).grafts
    except BadRecipe:
        return requested.having(*step).address(anchor="steps")
    others = [other for other in recipe.grafts if not other.selects_as(graft)]
    replaced = structs.replace(recipe, grafts=(*others, graft))
    return replace(requested, steps=tuple(step_texts(replaced))).address(anchor="steps")


FITTING_MAX, OTHERS_MAX = 50, 20
ENDPOINT = "pages.compose_fits"


@paged("/compose/fits", api=lambda: "compatibility" if request.args.get("donor") else "fitting")
def compose_fits() -> WebPage:
    """Show the models with organs that fit the model `base`; with `donor`, also the findings about that pair."""
    base, donor = (request.args.get(name, "").strip() for name in ("base", "donor"))
    context: Context = {"requested": [base, donor], "names": offered_names()}
    status = 200
    if base:
        try:
            with searching() as session:
                context |= _fits_context(session, base, donor) | {"twin": twin("pages.compose_fits_json")}
        except UNKNOWN_MODEL as error:
            context |= {"problem": sentence_of(error), "twin": twin("pages.compose_fits_json")}
            status = status_of(error)
    return WebPage("compose_fits.html", context, status=status)


def _fits_context(session: Session, base: str, donor: str) -> Context:
    """Return the models that fit `base`, and the newest ones that do not fit with the reasons."""
    row = model_by_text(session, base)
    page = fitting_models(session, row, FITTING_MAX)
    pair = cut_pair(check_compatibility(*pair_for_client(session, base, donor))) if donor else None
    by_type = [finding for fit in pair.types for finding in fit.findings] if pair else []
    fitting = {model.model for model in page.items}
    newest = search_models(session, parse_query("kind:model", MODELS), FITTING_MAX).items
    others = []
    for model in [model for model in newest if model.name != row.full_name and model.name not in fitting][:OTHERS_MAX]:
        if row.architecture is None or row.architecture != model.architecture:
            others.append((model.name, f"different architecture: {model.architecture or 'not stated'}"))
        else:
            others.append((model.name, "no organ of a matching shape"))
    names = [*(fit.model for fit in page.items), *(name for name, _ in others)]
    return {
        "base": row.full_name,
        "models": page.items,
        "has_models": True,
        "more": page.more,
        "others": others,
        "pair": pair,
        "model_findings": [finding for finding in pair.findings if finding not in by_type] if pair else [],
        "types_shown": [kind for kind in GRAFTED_TYPES if any(kind in model.types for model in page.items)],
        "details": {name: compose_address([("base", base), ("donor", name)], ENDPOINT) for name in names},
        "compose": compose_address([("base", base)]),
        "leaderboard": url_for("pages.leaderboard", base=base),
    }


MODELS_SHOWN, KNOWN_SHOWN = 20, 8
COMPOSE = "compose"
"""The kind of job that makes the chimera."""
NOT_YET = "The chimera cannot be created yet. See the findings below."


@paged("/compose", api=lambda: "composition" if request.args.get("base") else "models")
def compose() -> WebPage:
    """Show the recipe in the address: `base`, then steps (`graft`, `adapter`, `purify` …); `cell` asks for candidates.

    `add`, a field of the forms, redirects to the page with one more step.
    """
    requested = requested_steps(request.args)
    if "add" in request.args:
        answer = redirect(requested.having(*filled_step(request.args)).address(anchor="steps"), 303)
        answer.set_data(b"")
        answer.mimetype = "text/plain"
        abort(answer)
    if not requested.base:
        return _base_choice(requested)
    try:
        return _compose_page(requested, *planned_steps(requested))
    except UNKNOWN_MODEL as error:
        return _base_choice(requested, sentence_of(error), status_of(error))


@writing_form("/compose")
def compose_chimera() -> str | WebPage:
    """Queue the chimera of the form and show the job. If it cannot be made, show the page with the reasons."""
    # Browsers send CRLF, and addresses have LF.
    form = MultiDict((name, value.replace("\r\n", "\n")) for name, value in request.form.items(multi=True))
    requested = requested_steps(form)
    if not requested.base:
        return _base_choice(requested, "Choose a base first.", 400)
    try:
        under_way, status = planned_steps(requested)
    except UNKNOWN_MODEL as error:
        return _base_choice(requested, sentence_of(error), status_of(error))
    if status != 200 or not under_way.plan.can_be_made:
        return _compose_page(requested, under_way, 409 if status == 200 else status, NOT_YET)
    try:
        return url_for("pages.job", job=queue_job(COMPOSE, {"recipe": recipe_values(under_way.recipe)}))
    except NotAllowed as error:
        return _compose_page(requested, under_way, 403, f"{error}.")


def _base_choice(requested: RequestedSteps, problem: str | None = None, status: int = 200) -> WebPage:
    """Show the choice of a base: a search, models with many relatives, the newest models."""
    query, page, text = None, None, request.args.get("q", "")
    try:
        query = parse_query(text, MODELS)
    except BadQuery as error:
        problem, status = str(error), 400
    with searching() as session:
        known = known_bases(session, KNOWN_SHOWN) if not text else ()
        if query is not None:
            page = search_models(session, query, MODELS_SHOWN, ranked=True)
            text = short_text(query, MODELS)
    offers = [
        asdict(model) | {"address": requested.having("base", model.name).address(anchor="anatomy")}
        for model in {model.name: model for model in (*known, *(page or ()))}.values()
    ]
    context = {
        "notes": page.notes if page else (),
        "text": text,
        "problem": problem,
        "pending": [step for step in requested.steps if step[0] != "base"],
        "offers": offers,
        "discard_address": compose_address([]),
        "twin": twin(),
    }
    return WebPage("compose_start.html", context, status=status)
