"""Forms that edit the description of a model, and yank and restore it."""

from __future__ import annotations

from flask import abort, redirect, request, url_for

from organs.ingest.contributions.manifest import (
    FIELDS,
    read_edits,
)
from organs.ingest.service import publish_model
from organs.registry.catalog.queries.model_lists import published_model
from organs.registry.catalog.register.model_changes import edit_model, hide_model
from organs.registry.entities.published import PublishedModel
from organs.registry.errors import Conflict
from organs.registry.names import ModelName, parse_model_name
from organs.registry.relatives import resolve_declared
from organs.web.auth import (
    ANY,
    identity,
    need,
)
from organs.web.pages.routes import Context, Page, paged, pages, writing_form
from organs.web.permissions import (
    model_to_edit,
    model_to_restore,
    model_to_yank,
)
from organs.web.responses import model_address, plain_page, reading, registry, settings

TAGS_SEPARATOR = ","


@paged(pages, "/models/<namespace>/<name>/edit")
def model_edit(namespace: str, name: str) -> Page:
    """Show the form that edits the description of a model. Without an account, redirect to the log-in."""
    if identity().name is None and plain_page():
        abort(redirect(url_for("pages.login", next=request.script_root + request.path), 303))
    need(ANY)
    with reading(settings().search_seconds) as session:
        published = published_model(session, model_to_edit(session, _name(namespace, name)))
    return Page(
        "edit.html",
        {"model": published},
        extra=lambda: {"stated": _description_context(published), "wrong": {}},
        entity=published,
    )


@writing_form(pages, "/models/<namespace>/<name>/edit")
def save_model(namespace: str, name: str) -> str | Page:
    """Save the description and show the model. If a field is not valid, show the form again with the errors."""
    typed = {field: request.form[field] for field in FIELDS if field in request.form}
    edits, wrong = read_edits(typed | {"tags": _tags(typed["tags"])} if "tags" in typed else typed)
    with registry().catalog.writing() as session:
        model = model_to_edit(session, _name(namespace, name))
        before = published_model(session, model)
        if not wrong:
            try:
                edit_model(session, model, edits, _user_name())
                if model.state == "visible":
                    resolve_declared(session, model)
            except Conflict as error:  # the model would be its own base, which only the registry can check
                wrong.append(("base", f"{str(error)[:1].upper()}{str(error)[1:]}."))
    if wrong:
        form = {"stated": _description_context(before) | typed, "wrong": dict(wrong)}
        return Page("edit.html", {"model": before}, extra=lambda: form, status=400)
    return model_address(before.name)


@writing_form(pages, "/models/<namespace>/<name>/yank", scope=ANY)
def yank_model(namespace: str, name: str) -> str:
    """Hide the model from searches, rankings and lists, with the reason in the form."""
    with registry().catalog.writing() as session:
        model = model_to_yank(session, _name(namespace, name))
        hide_model(session, model, "yanked", request.form.get("reason", ""), _user_name())
        return model_address(model.full_name)


@writing_form(pages, "/models/<namespace>/<name>/restore", scope=ANY)
def restore_model(namespace: str, name: str) -> str:
    """Show a yanked model in searches, rankings and lists again."""
    with registry().catalog.writing() as session:
        model = model_to_restore(session, _name(namespace, name))
        publish_model(session, model, _user_name())
        return model_address(model.full_name)


def _description_context(model: PublishedModel) -> Context:
    """Return the values of the fields of the form."""
    texts = {field: getattr(model, field) or "" for field in FIELDS if field != "tags"}
    return texts | {"tags": f"{TAGS_SEPARATOR} ".join(model.tags)}


def _tags(typed: str) -> list[str]:
    return [tag for tag in map(str.strip, typed.split(TAGS_SEPARATOR)) if tag]


def _user_name() -> str:
    name = identity().name
    assert name is not None
    return name


def _name(namespace: str, name: str) -> ModelName:
    return parse_model_name(f"{namespace}/{name}")
