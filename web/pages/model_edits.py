"""Forms that edit the description of a model, and yank and restore it."""

from __future__ import annotations

from flask import request

from organs.ingest.contributions.manifest import FIELDS, read_edits
from organs.registry.catalog.queries.model_lists import published_model
from organs.registry.catalog.register.model_changes import edit_model
from organs.registry.entities.published import PublishedModel
from organs.registry.errors import Conflict
from organs.registry.names import ModelName, parse_model_name
from organs.registry.relatives import resolve_declared
from organs.web.api import models as api
from organs.web.auth import ANY, need
from organs.web.error_pages import sentence_of
from organs.web.pages.routes import Context, WebPage, paged, pages, writing_form
from organs.web.permissions import log_in_first, model_to_edit, user_name
from organs.web.responses import model_address, registry, searching

TAGS_SEPARATOR = ","


@paged(pages, "/models/<namespace>/<name>/edit")
def model_edit(namespace: str, name: str) -> WebPage:
    """Show the form that edits the description of a model. Without an account, redirect to the log-in."""
    log_in_first()
    need(ANY)
    with searching() as session:
        published = published_model(session, model_to_edit(session, _name(namespace, name)))
    return WebPage(
        "edit.html",
        {"model": published},
        extra=lambda: {"stated": _description_context(published), "wrong": {}},
        entity=published,
    )


@writing_form(pages, "/models/<namespace>/<name>/edit")
def save_model(namespace: str, name: str) -> str | WebPage:
    """Save the description and show the model. If a field is not valid, show the form again with the errors."""
    typed = {field: request.form[field] for field in FIELDS if field in request.form}
    values: Context = dict(typed)
    if "tags" in typed:
        values["tags"] = [tag for tag in map(str.strip, typed["tags"].split(TAGS_SEPARATOR)) if tag]
    edits, wrong = read_edits(values)
    with registry().catalog.writing() as session:
        model = model_to_edit(session, _name(namespace, name))
        before = published_model(session, model)
        if not wrong:
            try:
                edit_model(session, model, edits, user_name())
                if model.state == "visible":
                    resolve_declared(session, model)
            except Conflict as error:  # the model would be its own base, which only the registry can check
                wrong.append(("base", sentence_of(error, capital=True)))
    if wrong:
        form = {"stated": _description_context(before) | typed, "wrong": dict(wrong)}
        return WebPage("edit.html", {"model": before}, extra=lambda: form, status=400)
    return model_address(before.name)


@writing_form(pages, "/models/<namespace>/<name>/yank", scope=ANY)
def yank_model(namespace: str, name: str) -> str:
    """Hide the model from searches, rankings and lists, with the reason in the form."""
    yanked = api.yank_model(_name(namespace, name), request.form.get("reason", ""))
    return model_address(yanked.name)


@writing_form(pages, "/models/<namespace>/<name>/restore", scope=ANY)
def restore_model(namespace: str, name: str) -> str:
    """Show a yanked model in searches, rankings and lists again."""
    return model_address(api.restore_model(_name(namespace, name)).name)


def _description_context(model: PublishedModel) -> Context:
    """Return the values of the fields of the form."""
    texts = {field: getattr(model, field) or "" for field in FIELDS if field != "tags"}
    return texts | {"tags": f"{TAGS_SEPARATOR} ".join(model.tags)}


def _name(namespace: str, name: str) -> ModelName:
    return parse_model_name(f"{namespace}/{name}")
