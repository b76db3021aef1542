"""Models: the list, and the forms that edit the description of a model, and yank and restore it."""

from __future__ import annotations

import msgspec
from flask import abort, redirect, request, url_for

from organs.ingest.contributions.manifest import (
    FIELDS,
    read_edits,
)
from organs.ingest.service import publish_model
from organs.registry.catalog.queries.models import (
    published_model,
)
from organs.registry.catalog.queries.search import search_models
from organs.registry.catalog.register.models import edit_model, hide_model
from organs.registry.catalog.search import (
    GAIN,
    LIKENESS,
    MODELS,
    Query,
    short_text,
    sorted_by,
)
from organs.registry.entities.model import ModelPage
from organs.registry.entities.published import PublishedModel
from organs.registry.errors import BadQuery, Conflict
from organs.registry.names import ModelName, parse_model_name
from organs.registry.relatives import resolve_declared
from organs.web.auth import (
    ANY,
    identity,
    need,
)
from organs.web.pages.organs import GAIN_COLUMNS, Column, gain_cells, heading
from organs.web.pages.routes import Context, Page, Sheet, paged, pages, writing_form
from organs.web.params import (
    requested_after,
    requested_limit,
    requested_query,
)
from organs.web.permissions import (
    model_to_edit,
    model_to_restore,
    model_to_yank,
)
from organs.web.responses import model_address, plain_page, reading, registry, settings, with_parameters

COLUMNS = (
    Column("model", "model", classes=""),
    Column("kind", "kind", classes=""),
    Column("license", "license", classes="hide-small"),
    Column("mean_theta", "mean θ", "Mean of θ over all organs, in degrees.", sort="theta"),
    Column("mean_signal", "mean sin θ", "Mean of sin θ over all organs, from 0 to 1.", sort="signal"),
    Column("parameters", "parameters", "Number of weights.", sort="params"),
    Column("tensors", "organs", "Number of organs.", sort="tensors"),
    Column("size_bytes", "size", "Size of all files.", sort="size"),
    Column("downloads", "downloads", "Number of downloads.", sort="downloads"),
    Column("grafts", "uses", "Number of chimeras that use its organs.", sort="grafts"),
    Column("created_at", "added", "When the model was added.", sort="new"),
)
"""Columns of the table of models. `models.html` has its table cells in the same order."""
GAIN_COLUMN = Column(
    GAIN,
    GAIN,
    "Fall of the perplexity: of a chimera against its base, or of a base with organs of this model.",
    sort=GAIN,
)
LIKENESS_COLUMN = Column(LIKENESS, LIKENESS, "Mean likeness of its matrices to those of the base.", sort=LIKENESS)
"""The column after the name, in lists with a base. GAIN_COLUMN follows it if the query is about gains."""
CSV_MODEL_COLUMNS = (
    *("name", "title", "kind", "architecture", "license", "parameters", "tensors", "size_bytes", "mean_theta"),
    *("mean_signal", "complete", "digest", "created_at", "downloads", "grafts", "nonfinite_tensors", LIKENESS),
)
"""Columns of the list as CSV."""
EXAMPLES = ("kind:model sort:-theta", "kind:adapter", "sort:-downloads", "sort:-grafts", "license:apache-2.0")


@paged(pages, "/models", csv=True, api="models")
def models() -> Page:
    """Show the models that match the query in `q`, newest first unless it sorts."""
    try:
        query, limit, after = requested_query(MODELS), requested_limit(), requested_after()
        with reading(settings().search_seconds) as session:
            page = search_models(session, query, limit, after)
    except BadQuery as error:
        if not plain_page():
            raise
        typed = request.args.get("q", "")
        extra = {"text": typed, "problem": str(error), "examples": _examples()}
        return Page("models.html", {"items": [], "notes": []}, extra=lambda: extra, status=400)
    return Page(
        "models.html",
        {"query": str(query), "items": page.items, "notes": page.notes},
        extra=lambda: _list_context(query, page),
        sheet=lambda: _models_sheet(page),
        next=page.next,
    )


def _list_context(query: Query, page: ModelPage) -> Context:
    has_base = query.base is not None
    has_gain = query.mentions_gains
    firsts = [*([LIKENESS_COLUMN] if has_base else []), *([GAIN_COLUMN] if has_gain else [])]
    columns = [*COLUMNS[:1], *firsts, *COLUMNS[1:]]
    return {
        "text": short_text(query, MODELS),
        "headings": [heading(query, column, _sort_address(query, column)) for column in columns],
        "has_likeness": has_base,
        "has_gain": has_gain,
        "following": page.next and _address(query, after=page.next, limit=request.args.get("limit", "")),
        "first": _address(query) if request.args.get("after") else None,
        "examples": _examples(),
        "csv": with_parameters(url_for("pages.models_csv"), {"q": short_text(query, MODELS)}, limit="1000"),
    }


def _address(query: Query, **more: str) -> str:
    return with_parameters(url_for("pages.models"), {"q": short_text(query, MODELS)}, **more)


def _sort_address(query: Query, column: Column) -> str:
    return _address(sorted_by(query, column.sort)) if column.sort else ""


def _examples() -> list[Context]:
    return [{"text": text, "address": url_for("pages.models", q=text)} for text in EXAMPLES]


def _models_sheet(page: ModelPage) -> Sheet:
    rows = []
    for model in page:
        values = msgspec.to_builtins(model)
        rows.append([*(values[key] for key in CSV_MODEL_COLUMNS), *gain_cells(model.gain)])
    return Sheet((*CSV_MODEL_COLUMNS, *GAIN_COLUMNS), rows)


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
