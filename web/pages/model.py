"""One model: its card, its anatomy, its verdict and recipe if it is a chimera, its lineage and files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from flask import redirect, request, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from organs.registry.amounts import size_text
from organs.registry.anatomy import Slot
from organs.registry.catalog import tables
from organs.registry.catalog.queries.model_lists import descendants_page, versions
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.organs import organs_of_model
from organs.registry.catalog.vocabulary import CHIMERA, PARTIAL, REACHABLE_STATES
from organs.registry.compose.chimeras import PROMPT, Usage, chimera_of_model
from organs.registry.entities.chimera import Chimera
from organs.registry.entities.comparison import OrganChange
from organs.registry.entities.job import Job
from organs.registry.entities.lineage import LineageEdge, merged_edges
from organs.registry.entities.model import Model
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import BadQuery, Incomplete
from organs.registry.gguf import dtype_by_name
from organs.registry.kinds import WEIGHT_KINDS
from organs.registry.models import model_page
from organs.registry.names import parse_model_name
from organs.registry.relatives.comparison import PAGE_TENSORS_MAX, organ_changes, registered_model
from organs.web.downloads import public_names, whole_name
from organs.web.ollama import has_image, llama_server_line, ollama_line
from organs.web.pages.anatomy import READINGS, acts_text, anatomy
from organs.web.pages.charts import depth_shown
from organs.web.pages.chimera import chimera_context, donor_lines
from organs.web.pages.jobs import active_validations
from organs.web.pages.organs import CSV_COLUMNS, organ_rows
from organs.web.pages.routes import Context, Page, Sheet, canonical_model, paged, pages
from organs.web.params import requested_choice
from organs.web.permissions import may_edit, may_see_storage, may_yank
from organs.web.responses import model_address, plain_page, reading, settings, with_parameters

METADATA_SHOWN = 400
USE_SHOWN = 3
"""Commands that are shown before the rest is opened."""
VERSIONS_SHOWN = DESCENDANTS_SHOWN = 20
RESUMED = "Run it again to continue. Error 416 means that the file is complete."
LINEAGE_SHOWN = 6
"""Relatives that are shown before the rest is opened."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A model on its page."""

    model: Model
    organs: tuple[PlacedOrgan, ...]
    organs_left_out: int
    compared_with: str | None
    """The model that its organs are compared with."""
    chimera: Chimera | None
    jobs: Sequence[Job]
    """Active validations."""
    is_newest: bool
    """Whether it is the newest visible version."""
    is_image: bool
    """Whether Ollama can pull it, if it is an adapter."""


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


@pages.get("/models/<short>")
def short_name(short: str) -> Response:
    """Redirect from a name without its namespace, such as `zoo:latest`, to the page of the model."""
    with reading(settings().search_seconds) as session:
        model = canonical_model(session, short)
    name = model.full_name if "@" in short else f"{model.namespace}/{model.name}"
    return redirect(with_parameters(model_address(name), request.args.to_dict()))


def _shown_model(namespace: str, name: str) -> Page:
    requested = requested_choice("by", tuple(READINGS)) if request.args.get("by") else None
    with reading(settings().search_seconds) as session:
        row = canonical_model(session, f"{namespace}/{name}")
        page = model_page(session, row, shows_storage=may_see_storage())
        organs = organs_of_model(session, row, PAGE_TENSORS_MAX)
        left_out = row.tensors - len(organs)
        chimera = chimera_of_model(session, row)
        jobs = active_validations(session, row.full_name) if chimera else []
        compared_with = None if left_out else model_to_compare(session, page)
        others = versions(session, row, REACHABLE_STATES, VERSIONS_SHOWN)
        newest = next((version.name for version in others.items if version.state == "visible"), None)
        is_image = page.kind == "adapter" and has_image(session, row)
        shown = _Shown(page, organs, left_out, compared_with, chimera, jobs, newest == page.name, is_image)
        descendants = descendants_page(session, row, DESCENDANTS_SHOWN).items
        readings = _readings(shown)
        by = requested if requested in readings else readings[0]
        changes = changes_against(session, row, shown.compared_with) if by == "change" and shown.compared_with else {}
    context = {
        "model": page,
        "organs": organs,
        "organs_left_out": left_out,
        "compared_with": shown.compared_with,
        "versions": others.items,
        "versions_left_out": others.left_out,
        "newest": newest,
        "descendants": descendants,
    }
    return Page(
        "model.html",
        context,
        extra=lambda: _page_context(shown, by, changes),
        sheet=lambda: _organs_sheet(shown),
    )


def _readings(shown: _Shown) -> tuple[str, ...]:
    """Return the readings that can colour the drawing, the most useful first: the change only against a base."""
    possible = {"donor": shown.chimera is not None, "change": shown.compared_with is not None}
    readings = [name for name in READINGS if possible.get(name, True)]
    parents = {edge.model for edge in shown.model.lineage if edge.direction == "parent"}
    if possible["change"] and shown.compared_with not in parents and "against" not in request.args:
        readings.sort(key="change".__eq__)
    return tuple(readings)


def _organs_sheet(shown: _Shown) -> Sheet:
    """Return the organs of the model as CSV. Raises BadQuery if it has more than PAGE_TENSORS_MAX."""
    if shown.organs_left_out:
        tensors = f"{shown.model.tensors:,}"
        reason = f"it has {tensors} tensors, and a CSV has at most {PAGE_TENSORS_MAX:,}; the API lists all in pages"
        raise BadQuery(shown.model.name, reason)
    return Sheet(CSV_COLUMNS, organ_rows(shown.organs))


def model_to_compare(session: Session, model: Model) -> str | None:
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


def changes_against(session: Session, row: tables.ModelRow, against: str) -> dict[Slot, OrganChange]:
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
    address = model_address(model.name, "downloads.model")
    links: list[Context] = [{"label": f"{label}, {size_text(model.size_bytes)}", "address": address}]
    base = _registered_base(model)
    if model.kind == "adapter" and base is not None:
        merge = url_for("pages.compose", base=base, adapter=f"from:{model.name}")
        links.append({"label": "Merge it into its base", "address": merge, "is_page": True})
    return links


def _graft_links(model: Model) -> list[Context] | None:
    """Return the link that grafts a partial model into its base; empty without the base, None for other models."""
    declared = [edge for edge in model.lineage if (edge.direction, edge.evidence) == ("parent", "declared")]
    if model.kind != PARTIAL or not declared:
        return None
    base = next((edge.model for edge in declared if edge.model is not None), None)
    graft = f"from:{model.name}"
    address = base and url_for("pages.compose", base=base, graft=graft)
    return [{"label": "Graft it into its base", "address": address, "is_page": True}] if base else []


def _parents(model: Model) -> list[LineageEdge]:
    """Return the declared base of a model that was not composed here, or the bases of a merge."""
    edges = [edge for edge in model.lineage if (edge.direction, edge.evidence) == ("parent", "declared")]
    return [] if model.composed else edges


def _registered_base(model: Model) -> str | None:
    """Return the name of the first declared base that is registered, or None."""
    return next((edge.model for edge in _parents(model) if edge.model is not None), None)


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


def _page_context(shown: _Shown, by: str, changes: dict[Slot, OrganChange]) -> Context:
    model = shown.model
    requested = request.args.get("against", "")
    buttons = _downloads(model)
    return {
        "by": by,
        "by_label": READINGS[by],
        "can_receive": model.kind in WEIGHT_KINDS and model.complete and not model.unassemblable,
        **chimera_context(shown.chimera, shown.jobs),
        "grid": anatomy(shown.organs, by, changes, donor_lines(shown.chimera)),
        "picture": model_address(model.name, "pages.model_picture", form="png"),
        "choices": [
            {
                "label": READINGS[name],
                "chosen": name == by,
                "address": model_address(model.name, by=name, **({"against": requested} if requested else {})),
            }
            for name in _readings(shown)
        ],
        "is_compared": by == "change",
        "matrix_theta": _matrix_theta(shown.organs),
        "buttons": buttons,
        "files_shown": _files(model),
        "use": _use_lines(shown) if buttons and not buttons[0].get("is_page") else [],
        "use_shown": USE_SHOWN,
        "parents": _parents(model),
        "lineage": merged_edges(model.lineage),
        "lineage_shown": LINEAGE_SHOWN,
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


def _use_lines(shown: _Shown) -> list[Context]:
    """Return commands with their purposes. llama.cpp can only load the newest version of a model from here.

    The download comes first: other commands use the name of its file.
    """
    model = shown.model
    file = whole_name(model.name, [file.name for file in model.files])
    get, pull = _pull_lines(model.name, file)
    usage = Usage(model=model.name, file=file, title="", context_length=None)
    runs = []
    if model.kind == "adapter":
        runs = _adapter_lines(model, file, is_image=shown.is_image)
    elif model.kind in ("model", CHIMERA) and not _is_kept_only(shown):
        server = llama_server_line(model.name, request.host_url)
        runs = [
            {"label": "Run it with Ollama", "line": _ollama_line(model, file)},
            *([{"label": "Run it with llama.cpp, from this registry", "line": server}] if shown.is_newest else []),
            {"label": "Run the downloaded file with llama.cpp", "line": usage.llama_cli()},
        ]
    return [
        {"label": "Download the file", "line": get, "remark": RESUMED},
        *runs,
        {"label": "Download it with Hugging Face tools", "line": pull},
        {"label": "Write the file on the registry's machine", "line": usage.assemble()},
    ]


def _is_kept_only(shown: _Shown) -> bool:
    """Return whether the model has tensors of foreign types, which llama.cpp does not load."""
    return any(dtype_by_name(organ.dtype).is_foreign for organ in shown.organs)


def _adapter_lines(model: Model, file: str, *, is_image: bool) -> list[Context]:
    """Return the commands that run an adapter on its base, if its base is registered."""
    base = _registered_base(model)
    if base is None:
        return []
    host = request.host_url.rstrip("/")
    get = f"curl -fL -C - -o base.gguf '{host}{model_address(base, 'downloads.model')}'"
    run = f"llama-cli -m base.gguf --lora {shlex.quote(file)} -p {shlex.quote(PROMPT)} -n 64"
    return [
        {"label": "Download its base", "line": get},
        {"label": "Run both with llama.cpp", "line": run},
        *([{"label": "Run both with Ollama", "line": _ollama_line(model, file)}] if is_image else []),
    ]


def _ollama_line(model: Model, file: str) -> str:
    """Return the command that pulls the model; Ollama takes one file, so shards are merged and imported."""
    is_split = len(model.files) > 1
    return ollama_line(model.name, request.host_url, shlex.quote(file) if is_split else "")


def _pull_lines(name: str, file: str) -> list[str]:
    """Return commands that download the model `name`: with curl into `file`, and with the Hugging Face client."""
    host, (repository, _, version) = request.host_url.rstrip("/"), name.partition("@")
    return [
        f"curl -fL -C - -o {shlex.quote(file)} '{host}{model_address(name, 'downloads.model')}'",
        f"HF_ENDPOINT={host} hf download {repository} --revision v{version} --local-dir .",
    ]
