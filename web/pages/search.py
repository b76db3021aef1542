"""One search for models and tensors, with the best results of each; and the saved queries of the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from flask import request, url_for
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.model_lists import model_summaries
from organs.registry.catalog.queries.model_names import find_model_by_text
from organs.registry.entities.model import ModelSummary
from organs.registry.entities.query import LISTS, SavedQueryRequest
from organs.registry.errors import BadInput, BadQuery, NotAllowed, NotFound, TooSlow
from organs.registry.names import QUERY_NAME_MAX_LENGTH, QUERY_NAME_PATTERN
from organs.registry.search.language import MODELS, ORGANS, Query, Vocabulary, parse_query
from organs.registry.search.models import search_models
from organs.registry.search.rows import search_organs
from organs.web.api import queries as api
from organs.web.auth import ANY
from organs.web.error_pages import sentence_of, status_of
from organs.web.pages.lists import examples, saved_context
from organs.web.pages.routes import Context, WebPage, paged, writing_form
from organs.web.params import requested_choice
from organs.web.permissions import may_write
from organs.web.responses import searching

MODELS_SHOWN, ORGANS_SHOWN = 8, 8
BEST_MODELS, BEST_ORGANS = "-grafts", "-spectral"
"""The orders of results of words. With a base, the most similar come first."""
EXAMPLES = {"pages.models": ("tag:code", "quant:Q8_0 sort:new"), "pages.organs": ("type:skeleton block:0-3",)}

T = TypeVar("T")


@paged("/search")
def search() -> WebPage:
    """Show the best models and the best tensors of the query in `q`; without one, the saved queries.

    With `save`, one of `LISTS`, a form saves the query for that list under a name.
    """
    return _page(request.args.get("q", "").strip(), requested_choice("save", ("", *LISTS)))


@writing_form("/search/saved", scope=ANY)
def save_query() -> str | WebPage:
    """Save a query under a name, and show the saved queries."""
    kind, text = request.form.get("kind", ""), request.form.get("q", "").strip()
    if kind not in LISTS:
        raise BadQuery("kind", f"one of {', '.join(LISTS)}")
    try:
        api.save_query(kind, request.form.get("name", "").strip(), SavedQueryRequest(query=text))
    except (BadInput, BadQuery, NotAllowed) as error:
        return _page(text, kind, sentence_of(error, capital=True), status_of(error))
    return f"{url_for('pages.search')}#saved"


@writing_form("/search/saved/<kind>/<saved>/delete", scope=ANY)
def delete_query(kind: str, saved: str) -> str:
    """Delete a saved query, and show the others."""
    if kind not in LISTS:
        raise NotFound(f"there are no saved queries for {kind[:80]!r}")
    api.delete_query(kind, saved)
    return f"{url_for('pages.search')}#saved"


def _page(text: str, kind: str = "", problem: str | None = None, status: int = 200) -> WebPage:
    models, model_problem = _found(text, MODELS, BEST_MODELS, lambda session, query: _models(session, query, text))
    organs, organ_problem = _found(
        text,
        ORGANS,
        BEST_ORGANS,
        lambda session, query: search_organs(session, replace(query, unique=True), ORGANS_SHOWN).items,
    )
    context: Context = saved_context(*LISTS) | {
        "text": text,
        "models": models,
        "organs": organs,
        "model_problem": model_problem,
        "organ_problem": organ_problem,
        "examples": [example for endpoint, texts in EXAMPLES.items() for example in examples(endpoint, texts)],
        "save_kind": kind if text and may_write(ANY) else "",
        "name_pattern": QUERY_NAME_PATTERN,
        "name_max_length": QUERY_NAME_MAX_LENGTH,
        "typed_name": request.form.get("name", ""),
        "problem": problem,
    }
    if status == 200 and model_problem and organ_problem:
        status = 400
    return WebPage("search.html", context, status=status, body={"models": models, "organs": organs})


def _found(
    text: str, vocabulary: Vocabulary, order: str, find: Callable[[Session, Query], tuple[T, ...]]
) -> tuple[tuple[T, ...], str | None]:
    """Return the first results of `text` in a vocabulary, and why there are none if it is no query for it."""
    if not text:
        return (), None
    try:
        parsed = parse_query(text, vocabulary)
        query = parsed if parsed.base is not None else parse_query(text, vocabulary, order)
        with searching() as session:
            return find(session, query), None
    except (BadQuery, TooSlow) as error:
        return (), sentence_of(error, capital=True)


def _models(session: Session, query: Query, text: str) -> tuple[ModelSummary, ...]:
    """Return the first models of `query`; a model with exactly the name `text` comes before the others."""
    exact = find_model_by_text(session, text)
    found = search_models(session, query, MODELS_SHOWN).items
    if exact is None or exact.state != "visible":
        return found
    first = model_summaries(session, [exact])
    return (*first, *(model for model in found if model.name != first[0].name))[:MODELS_SHOWN]
