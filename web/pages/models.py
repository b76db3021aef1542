"""Models: one model with its anatomy, lineage and files, and the form that edits its description."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from flask import abort, redirect, request, url_for
from sqlalchemy.orm import Session

from organs.ingest.contributions.manifest import (
    FIELDS,
    read_edits,
)
from organs.ingest.service import publish_model
from organs.registry.amounts import size_text
from organs.registry.anatomy import Slot
from organs.registry.catalog import tables
from organs.registry.catalog.queries.models import (
    count_descendants,
    descendants_page,
    model_by_name,
    published_model,
    versions,
)
from organs.registry.catalog.queries.organs import organs_of_model
from organs.registry.catalog.register.models import edit_model, hide_model
from organs.registry.catalog.search import CHIMERA, PARTIAL
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.compose.chimeras import chimera_brief
from organs.registry.entities.chimera import ChimeraBrief
from organs.registry.entities.comparison import OrganChange
from organs.registry.entities.job import Job
from organs.registry.entities.model import Model
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.published import PublishedModel
from organs.registry.errors import BadQuery, Conflict, Incomplete
from organs.registry.models import model_page
from organs.registry.names import ModelName, parse_model_name
from organs.registry.relatives import resolve_declared
from organs.registry.relatives.comparison import PAGE_TENSORS_MAX, organ_changes, registered_model
from organs.web.auth import (
    ANY,
    identity,
    need,
)
from organs.web.downloads import (
    public_names,
    whole_name,
)
from organs.web.pages.anatomy import COMPARED, READINGS, acts_text, anatomy
from organs.web.pages.charts import depth_shown
from organs.web.pages.jobs import active_validations, missing_runtime
from organs.web.pages.organs import CSV_COLUMNS, organ_rows
from organs.web.pages.routes import Context, Page, Sheet, paged, pages, writing_form
from organs.web.params import requested_choice
from organs.web.permissions import (
    may_edit,
    may_yank,
    model_to_edit,
    model_to_restore,
    model_to_yank,
)
from organs.web.render import verdict_meaning
from organs.web.responses import model_address, plain_page, reading, registry, settings

READING_DEFAULT = "theta"
METADATA_SHOWN = 400
VERSIONS_SHOWN = DESCENDANTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _Shown:
    """A model on its page."""

    model: Model
    organs: tuple[PlacedOrgan, ...]
    organs_left_out: int
    compared_with: str | None
    """The model that its organs are compared with."""


@paged(pages, "/models/<namespace>/<name>", csv=True, api="model")
def model(namespace: str, name: str) -> Page:
    """Show the model of that name. `by` is the reading that colours cells; `against` is the model to compare with."""
    try:
        return _shown_model(namespace, name)
    except Incomplete as error:
        if not plain_page():
            raise
        context = {"name": error.name, "shards": error.shards, "missing": error.missing, "sentence": str(error)}
        return Page("incomplete.html", context, status=Incomplete.status)


def _shown_model(namespace: str, name: str) -> Page:
    by = requested_choice("by", tuple(READINGS))
    with reading(settings().search_seconds) as session:
        row = model_by_name(session, parse_model_name(f"{namespace}/{name}"))
        page = model_page(session, row)
        organs = organs_of_model(session, row, PAGE_TENSORS_MAX)
        left_out = row.tensors - len(organs)
        shown = _Shown(page, organs, left_out, None if left_out else _model_to_compare(session, page))
        brief = chimera_brief(session, row)
        jobs = active_validations(session, row.full_name) if brief else []
        others = versions(session, row, REACHABLE_STATES, VERSIONS_SHOWN)
        descendants = descendants_page(session, row, DESCENDANTS_SHOWN).items
        descendants_count = count_descendants(session, row)
        changes = _organ_changes(session, row, shown.compared_with) if by in COMPARED and shown.compared_with else {}
    if by in COMPARED and shown.compared_with is None:
        by = READING_DEFAULT
    context = {
        "model": page,
        "organs": organs,
        "organs_left_out": left_out,
        "compared_with": shown.compared_with,
        "versions": others.items,
        "versions_left_out": others.left_out,
        "newest": next((version.name for version in others.items if version.state == "visible"), None),
        "descendants": descendants,
        "descendants_count": descendants_count,
    }
    return Page(
        "model.html",
        context,
        extra=lambda: _page_context(shown, by, changes) | _chimera_context(brief, jobs),
        sheet=lambda: _organs_sheet(shown),
    )


def _organs_sheet(shown: _Shown) -> Sheet:
    """Return the organs of the model as CSV. Raises BadQuery if it has more than PAGE_TENSORS_MAX."""
    if shown.organs_left_out:
        tensors = f"{shown.model.tensors:,}"
        reason = f"it has {tensors} tensors, and a CSV has at most {PAGE_TENSORS_MAX:,}; the API lists all in pages"
        raise BadQuery(shown.model.name, reason)
    return Sheet(CSV_COLUMNS, organ_rows(shown.organs))


def _model_to_compare(session: Session, model: Model) -> str | None:
    """Return the name of the requested model, else of a registered parent, else of the closest relative, else None."""
    requested = request.args.get("against")
    if requested:
        return model_by_name(session, parse_model_name(requested)).full_name
    if model.kind not in ("model", CHIMERA):
        return None  # the weights of an adapter are not similar to the weights that it changes
    registered = [edge for edge in model.lineage if edge.model is not None]
    parents = [edge.model for edge in registered if edge.direction == "parent"]
    relatives = [edge.model for edge in registered if edge.direction == "relative"]
    return next(iter([*parents, *relatives]), None)


def _organ_changes(session: Session, row: tables.Model, against: str) -> dict[Slot, OrganChange]:
    """Return how the organs of the model differ from those of `against`."""
    other = model_by_name(session, parse_model_name(against))
    return organ_changes(*(registered_model(session, model_row, PAGE_TENSORS_MAX) for model_row in (other, row)))


def _matrix_theta(organs: Sequence[PlacedOrgan]) -> float | None:
    """Return the mean θ of the matrices. Norms dominate the mean over all organs, although they have few values."""
    thetas = [organ.theta for organ in organs if organ.spectral_signal is not None and organ.theta is not None]
    return fmean(thetas) if thetas else None


def _downloads(model: Model) -> list[Context]:
    """Return the links to the complete model as one file. The list is empty if the registry cannot assemble it."""
    if model.unassemblable or not model.files:
        return []
    if (graft_links := _graft_links(model)) is not None:
        return graft_links
    label = "Download GGUF" if len(model.files) == 1 else "Download as one GGUF"
    return [{"label": f"{label}, {size_text(model.size_bytes)}", "address": _download_address(model.name)}]


def _graft_links(model: Model) -> list[Context] | None:
    """Return the link that grafts a partial model into its base; empty without the base, None for other models."""
    declared = [edge for edge in model.lineage if (edge.direction, edge.evidence) == ("parent", "declared")]
    if model.kind != PARTIAL or not declared:
        return None
    base = next((edge.model for edge in declared if edge.model is not None), None)
    graft = f"from:{model.name}"
    address = base and url_for("pages.compose", base=base, graft=graft)
    return [{"label": "Graft it into its base", "address": address, "is_page": True}] if base else []


def _files(model: Model) -> list[Context]:
    """Return the files, each with the address of its download, or None if it cannot be assembled."""
    names = public_names([file.name for file in model.files])
    return [
        {
            "file": file,
            "address": None if model.unassemblable else model_address(model.name, "downloads.file_of_model", file=name),
        }
        for name, file in zip(names, model.files, strict=True)
    ]


def _chimera_context(brief: ChimeraBrief | None, jobs: Sequence[Job]) -> Context:
    """Return the prediction, verdict and active validations of a model that was composed here."""
    verdict = brief.verdict if brief else None
    return {
        "brief": brief,
        "jobs": jobs,
        "meaning": verdict_meaning(verdict.verdict) if verdict else "",
        "missing_runtime": missing_runtime(),
    }


def _download_address(name: str) -> str:
    return model_address(name, "downloads.model")


def pull_lines(name: str, file: str) -> list[str]:
    """Return commands that download the model `name`: with curl into `file`, and with the Hugging Face client."""
    host, (repository, _, version) = request.host_url.rstrip("/"), name.partition("@")
    return [
        f"curl -fL -C - -o {shlex.quote(file)} '{host}{_download_address(name)}'",
        f"HF_ENDPOINT={host} hf download {repository} --revision v{version}",
    ]


def _pull_lines(model: Model) -> list[str]:
    if _graft_links(model) is not None:
        return []
    return pull_lines(model.name, whole_name(model.name, [file.name for file in model.files]))


def _page_context(shown: _Shown, by: str, changes: dict[Slot, OrganChange]) -> Context:
    model = shown.model
    requested = request.args.get("against", "")
    choices = [name for name in READINGS if name not in COMPARED or shown.compared_with is not None]
    return {
        "by": by,
        "by_label": READINGS[by],
        "can_receive": model.kind == "model" and model.complete and not model.unassemblable,
        "grid": anatomy(shown.organs, by, changes),
        "choices": [
            {
                "label": READINGS[name],
                "chosen": name == by,
                "address": model_address(model.name, by=name, **({"against": requested} if requested else {})),
            }
            for name in choices
        ],
        "is_compared": by in COMPARED,
        "matrix_theta": _matrix_theta(shown.organs),
        "buttons": _downloads(model),
        "files_shown": _files(model),
        "pull_lines": _pull_lines(model),
        "acts_text": acts_text,
        "may_edit": may_edit(model.name.partition("/")[0]),
        "may_yank": may_yank(model.name.partition("/")[0]),
        "csv": model_address(model.name, "pages.model_csv"),
        "report_address": model_address(model.name, "pages.dissection"),
        "lineage_address": url_for("pages.lineage", model=model.name),
        "compare_endpoint": "pages.compare",
        **({} if shown.organs_left_out else depth_shown(model.name, shown.organs)),
        "metadata_shown": model.metadata[:METADATA_SHOWN],
    }


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
