"""Composing: a base, then its cells and who could give to them, what it comes to, and the chimera into the queue."""

from __future__ import annotations

from flask import abort, redirect, request, url_for
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response

from organs.registry.catalog.queries.candidates import known_bases
from organs.registry.catalog.queries.model_search import search_models
from organs.registry.catalog.search import MODELS
from organs.registry.catalog.search.refine import short_text
from organs.registry.compose.writing import recipe_values
from organs.registry.errors import Ambiguous, BadDigest, BadName, BadQuery, NotAllowed, NotFound
from organs.registry.present.models import model_summary, models_values
from organs.registry.present.values import Values
from organs.web.answers import Page, paged, plain_page, reading, settings
from organs.web.asked import asked_query
from organs.web.asking import ask
from organs.web.errors import status_of
from organs.web.forms import writing_form
from organs.web.pages.blueprint import pages
from organs.web.pages.composing import Asked, asked_of, compose_address, filled_step, twin
from organs.web.pages.workbench import workbench

MODELS_SHOWN, KNOWN_SHOWN = 20, 8
NO_BASE = (NotFound, BadName, BadDigest, Ambiguous)
"""What is raised of a base that is not there."""
COMPOSE = "compose"
"""The kind of the job that makes it."""
NOT_YET = "It cannot be made like this: what stands in its way is below, under Findings."


@paged(pages, "/compose")
def compose() -> Page:
    """The recipe in the address: `base`, then steps (`graft`, `adapter`, `purify` ...); `cell` asks for candidates.

    With `add`, which a form has, to the page that has one more step.
    """
    asked = asked_of(request.args)
    if "add" in request.args and plain_page():
        abort(_onward(asked.having(*filled_step(request.args)).address(anchor="steps")))
    if not asked.base:
        return _start(asked)
    try:
        return workbench(asked).page()
    except NO_BASE as error:
        if not plain_page():
            raise
        return _start(asked, str(error).rstrip("?.") + ".", status_of(error))


@writing_form(pages, "/compose")
def compose_chimera() -> str | Page:
    """Queue what the form has, if it can be made; else the page again, with what is in the way."""
    asked = asked_of(_plain_fields(request.form))
    if not asked.base:
        return _start(asked, "A chimera has a base: choose one.", 400)
    try:
        bench = workbench(asked)
    except NO_BASE as error:
        return _start(asked, str(error).rstrip("?.") + ".", status_of(error))
    if bench.status != 200 or not bench.plan.can_be_made:
        return workbench(asked, NOT_YET, 409 if bench.status == 200 else bench.status).page()
    try:
        return url_for("pages.job", job=ask(COMPOSE, {"recipe": recipe_values(bench.recipe)}))
    except NotAllowed as error:
        return workbench(asked, f"{error}.", 403).page()


def _onward(address: str) -> Response:
    """To another address, without a page of its own."""
    answer = redirect(address, 303)
    answer.set_data(b"")
    answer.mimetype = "text/plain"
    return answer


def _plain_fields(form: MultiDict[str, str]) -> MultiDict[str, str]:
    """`form` with the ends of lines as an address has them: browsers send others."""
    return MultiDict((name, value.replace("\r\n", "\n")) for name, value in form.items(multi=True))


def _start(asked: Asked, problem: str | None = None, status: int = 200) -> Page:
    """The choice of a base: a search, the newest models, those that others come from."""
    query, text = None, request.args.get("q", "")
    try:
        query = asked_query(MODELS)
    except BadQuery as error:
        if not plain_page():
            raise
        problem, status = str(error), 400
    with reading(settings().search_seconds) as session:
        known = [model_summary(model) for model in known_bases(session, KNOWN_SHOWN)] if not text else []
        found: Values = {"items": [], "notes": []}
        if query is not None:
            found = models_values(search_models(session, query, MODELS_SHOWN, ranked=True))
            text = short_text(query, MODELS)
    values = {"steps": [list(step) for step in asked.steps], "known": known, **found}
    return Page("compose_start.html", values, extra=lambda: _offered(asked, values, text, problem), status=status)


def _offered(asked: Asked, values: Values, text: str, problem: str | None) -> Values:
    def offer(one: Values) -> Values:
        return one | {"address": asked.having("base", one["name"]).address(anchor="anatomy")}

    return {
        "text": text,
        "problem": problem,
        "pending": [step for step in asked.steps if step[0] != "base"],
        "offers": [offer(one) for one in {one["name"]: one for one in (*values["known"], *values["items"])}.values()],
        "dropped": compose_address([]),
        "twin": twin(),
    }
