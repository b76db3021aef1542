"""Pages to compose a chimera: the choice of a base, the one screen to compose on, the models that fit a base."""

from __future__ import annotations

from flask import abort, redirect, request, url_for
from msgspec.structs import asdict
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict

from organs.registry.catalog.queries.model_lists import known_bases
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.compose.compatibility import check_compatibility
from organs.registry.compose.recipe import parse_blocks, recipe_values
from organs.registry.compose.selection import BlockRange
from organs.registry.errors import BadQuery, BadRecipe, NotAllowed
from organs.registry.search.fitting import fitting_models
from organs.registry.search.language import MODELS, parse_query
from organs.registry.search.models import search_models
from organs.web.api.plans import cut_pair, pair_for_client
from organs.web.error_pages import sentence_of, status_of
from organs.web.pages.jobs import OPENS
from organs.web.pages.routes import UNKNOWN_MODEL, Context, WebPage, paged, writing_form
from organs.web.pages.steps import RequestedSteps, adapter_of, compose_address, filled_step, requested_steps, twin
from organs.web.pages.workbench import Bench, plan_name, planned_steps, workbench
from organs.web.permissions import queue_job
from organs.web.responses import searching, with_parameters

FITTING_MAX, OTHERS_MAX = 50, 20
ENDPOINT = "pages.compose_fits"


@paged("/compose/fits", api=lambda: "compatibility" if request.args.get("donor") else "fitting")
def compose_fits() -> WebPage:
    """Show the models with organs that fit the model `base`; with `donor`, also the findings about that pair."""
    base, donor = (request.args.get(name, "").strip() for name in ("base", "donor"))
    context: Context = {"requested": [base, donor]}
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
            others.append((model.name, "no tensor of a matching shape"))
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
BASE_KINDS = "kind:model,chimera"
COMPOSE = "compose"
"""The kind of job that makes the chimera."""
CELLS, SHARE = "cells", "share"
"""The forms that give parts of the selected donor, and that set its weight."""
NOT_YET = "The chimera cannot be created yet. See the findings below."


@paged("/compose", api=lambda: "composition" if request.args.get("base") else "models")
def compose() -> WebPage:
    """Show the recipe in the address: `base`, then steps (`graft`, `adapter`, `purify` …). `donor` is the model whose
    parts a click gives, with the weight `share`; `cell` asks for the donors of a cell, `find` for donors by words.

    `add`, a field of the forms, redirects to the page with one more step.
    """
    requested = requested_steps(request.args)
    if "add" in request.args:
        answer = redirect(_address_after(requested), 303)
        answer.set_data(b"")
        answer.mimetype = "text/plain"
        abort(answer)
    if not requested.base:
        return _base_choice(requested)
    try:
        return workbench(requested, *planned_steps(requested))
    except UNKNOWN_MODEL as error:
        return _base_choice(requested, sentence_of(error), status_of(error))


def _address_after(requested: RequestedSteps) -> str:
    """Return the address of the page after the form in `add`. Raises BadQuery, and the errors of `planned_steps`."""
    form = request.args
    kind = form["add"]
    if kind in (CELLS, SHARE):
        under_way, _ = planned_steps(requested)
        with searching() as session:
            bench = Bench(session, requested, under_way)
        if kind == SHARE:
            return bench.weighted()
        return bench.with_parts([word for word in form.getlist("type") if word], _blocks(form.get("blocks", "")))
    if kind == "adapter":
        _, text = filled_step(form)
        return requested.with_adapter(adapter_of(text), text).address(anchor="result")
    return requested.having(*filled_step(form)).address(anchor="result")


def _blocks(text: str) -> tuple[BlockRange, ...]:
    """Return ranges of blocks such as `0-5, 9`. Raises BadQuery."""
    try:
        return parse_blocks(text) if text.strip() else ()
    except BadRecipe as error:
        raise BadQuery("blocks", error.reasons[0][1]) from error


@writing_form("/compose")
def compose_chimera() -> str | WebPage:
    """Queue the chimera of the form, and show the job until the chimera can be shown. If it cannot be made, show the
    page with the reasons."""
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
        return workbench(requested, under_way, 409 if status == 200 else status, NOT_YET)
    arguments: dict[str, object] = {"recipe": recipe_values(under_way.recipe)}
    if under_way.recipe.name is None:
        with searching() as session:
            arguments["proposed_name"] = plan_name(session, under_way.state)
    try:
        job = queue_job(COMPOSE, arguments)
        return with_parameters(url_for("pages.job", job=job), {OPENS: "model"})
    except NotAllowed as error:
        return workbench(requested, under_way, 403, f"{error}.")


def _base_choice(requested: RequestedSteps, problem: str | None = None, status: int = 200) -> WebPage:
    """Show the choice of a base: a search, models with many relatives, the newest models."""
    page, text = None, request.args.get("q", "")
    with searching() as session:
        known = known_bases(session, KNOWN_SHOWN) if not text else ()
        try:
            query = parse_query(text, MODELS)
            if not query.choices("kind"):
                query = parse_query(f"{text} {BASE_KINDS}", MODELS)
            page = search_models(session, query, MODELS_SHOWN)
        except BadQuery as error:
            problem, status = str(error), 400
    offers = [
        asdict(model) | {"address": requested.having("base", model.name).address(anchor="donors")}
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
