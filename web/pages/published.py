"""What owners do with a published model: the page on which they edit it, and the forms that yank and restore it."""

from __future__ import annotations

from flask import abort, redirect, request, url_for

from organs.ingest.describing import FIELDS, read_edits
from organs.ingest.publishing import publish_model
from organs.registry.catalog.register.editing import edit_model
from organs.registry.catalog.register.states import hide_model
from organs.registry.errors import Conflict
from organs.registry.names import ModelName, parse_model_name
from organs.registry.present.published import published_values
from organs.registry.present.values import Values
from organs.registry.relatives import resolve_declared
from organs.web.answers import Page, paged, plain_page, reading, registry, settings
from organs.web.forms import writing_form
from organs.web.identity import ANY, identity, need
from organs.web.links import model_address
from organs.web.owning import model_to_edit, model_to_restore, model_to_yank
from organs.web.pages.blueprint import pages

TAGS_SEPARATOR = ","


@paged(pages, "/models/<namespace>/<name>/edit")
def model_edit(namespace: str, name: str) -> Page:
    """What is said of a model, in a form; for its owner, anybody else is asked to log in."""
    if identity().name is None and plain_page():
        abort(redirect(url_for("pages.login", next=request.script_root + request.path), 303))
    need(ANY)
    with reading(settings().search_seconds) as session:
        values = published_values(session, model_to_edit(session, _name(namespace, name)))
    return Page("edit.html", values, extra=lambda: {"said": _said(values), "wrong": {}})


@writing_form(pages, "/models/<namespace>/<name>/edit")
def save_model(namespace: str, name: str) -> str | Page:
    """Save it, and show the model; or the form again, as it was typed, with what is wrong beside the fields."""
    typed = {field: request.form[field] for field in FIELDS if field in request.form}
    edits, wrong = read_edits(typed | {"tags": _tags(typed["tags"])} if "tags" in typed else typed)
    with registry().catalog.writing() as session:
        model = model_to_edit(session, _name(namespace, name))
        values = published_values(session, model)
        if not wrong:
            try:
                edit_model(session, model, edits, _asker())
                if model.state == "visible":
                    resolve_declared(session, model)
            except Conflict as error:  # the one thing that only the registry knows: it would be its own base
                wrong.append(("base", f"{str(error)[:1].upper()}{str(error)[1:]}."))
    if wrong:
        again = {"said": _said(values) | typed, "wrong": dict(wrong)}
        return Page("edit.html", values, extra=lambda: again, status=400)
    return model_address(values["name"])


@writing_form(pages, "/models/<namespace>/<name>/yank", scope=ANY)
def yank_model(namespace: str, name: str) -> str:
    """Take it out of searches, rankings and lists, with the reason that was typed."""
    with registry().catalog.writing() as session:
        model = model_to_yank(session, _name(namespace, name))
        hide_model(session, model, "yanked", request.form.get("reason", ""), _asker())
        return model_address(model.full_name)


@writing_form(pages, "/models/<namespace>/<name>/restore", scope=ANY)
def restore_model(namespace: str, name: str) -> str:
    """Let it be found again."""
    with registry().catalog.writing() as session:
        model = model_to_restore(session, _name(namespace, name))
        publish_model(session, model, _asker())
        return model_address(model.full_name)


def _said(values: Values) -> Values:
    """What is said now, as the fields of the form have it."""
    texts = {field: values[field] or "" for field in FIELDS if field != "tags"}
    return texts | {"tags": f"{TAGS_SEPARATOR} ".join(values["tags"])}


def _tags(typed: str) -> list[str]:
    return [tag for tag in map(str.strip, typed.split(TAGS_SEPARATOR)) if tag]


def _asker() -> str:
    name = identity().name
    assert name is not None
    return name


def _name(namespace: str, name: str) -> ModelName:
    return parse_model_name(f"{namespace}/{name}")
