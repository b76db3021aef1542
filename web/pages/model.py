"""One model: its organs on the anatomy grid, its types, its lineage, its files."""

from __future__ import annotations

import shlex
from statistics import fmean

from flask import request, url_for
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.queries.published import count_descendants, descendants_page, versions
from organs.registry.catalog.search.fields import CHIMERA
from organs.registry.catalog.tables import Model
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.errors import BadQuery
from organs.registry.names import parse_model_name
from organs.registry.present.chimeras import chimera_brief
from organs.registry.present.comparison import PAGE_TENSORS_MAX, changes, registered_model
from organs.registry.present.models import model_page
from organs.registry.present.published import descendants_values, versions_values
from organs.registry.present.text import size_text
from organs.registry.present.values import Values
from organs.web.answers import Page, Sheet, paged, reading, settings
from organs.web.asked import asked_choice
from organs.web.contents import public_names, whole_name
from organs.web.links import model_address
from organs.web.owning import may_edit, may_yank
from organs.web.pages.anatomy import COMPARED, READINGS, anatomy
from organs.web.pages.blueprint import pages
from organs.web.pages.charts import depth_shown
from organs.web.pages.donors import acts_text
from organs.web.pages.validating import missing_runtime, under_way
from organs.web.pages.verdicts import verdict_meaning

READING_DEFAULT = "theta"
METADATA_SHOWN = 400
VERSIONS_SHOWN = DESCENDANTS_SHOWN = 20
COLUMNS = (
    *("name", "type", "tower", "block", "slot", "dtype", "shape", "size_bytes", "theta", "magnitude", "signal"),
    *("spectral_signal", "stable_rank", "digest", "nonfinite"),
)
"""Of the organs as CSV."""


@paged(pages, "/models/<namespace>/<name>", csv=True)
def model(namespace: str, name: str) -> Page:
    """The model of that name; `by` says what its cells are coloured by, `against` which model it is compared with."""
    by = asked_choice("by", tuple(READINGS))
    with reading(settings().search_seconds) as session:
        row = model_by_name(session, parse_model_name(f"{namespace}/{name}"))
        values = model_page(session, row, PAGE_TENSORS_MAX)
        against = _against(session, values) if not values["placements_left_out"] else None
        values |= {"compared_with": against, "changes": []}
        brief = chimera_brief(session, row)
        jobs = under_way(session, row.full_name) if brief else []
        values |= _since(session, row)
        if by in COMPARED and against is not None:
            values["changes"] = _changes(session, row, against)
    if by in COMPARED and against is None:
        by = READING_DEFAULT
    return Page(
        "model.html", values, extra=lambda: _links(values, by) | _as_chimera(brief, jobs), sheet=lambda: _sheet(values)
    )


def _since(session: Session, row: Model) -> Values:
    """What became of it since it was published: its versions, and the newest chimeras that were made of it."""
    found = versions_values(versions(session, row, REACHABLE_STATES, VERSIONS_SHOWN))
    made = descendants_values(row, descendants_page(session, row, DESCENDANTS_SHOWN))
    return {
        "versions": found["items"],
        "versions_left_out": found["left_out"],
        "descendants": made["items"],
        "descendants_count": count_descendants(session, row),
    }


def _sheet(values: Values) -> Sheet:
    """The organs of the model; raises BadQuery for more than a sheet has."""
    if values["placements_left_out"]:
        reason = f"it has {values['tensors']:,} tensors, and a sheet has up to {PAGE_TENSORS_MAX:,}: the API has pages"
        raise BadQuery(values["name"], reason)
    return Sheet(COLUMNS, [[one[key] for key in COLUMNS] for one in values["placements"]])


def _against(session: Session, values: Values) -> str | None:
    """The model that changes are told from: the one asked for, else a parent that is here, else the next relative."""
    asked = request.args.get("against")
    if asked:
        return model_by_name(session, parse_model_name(asked)).full_name
    if values["kind"] not in ("model", CHIMERA):
        return None  # what an adapter adds is not like the weights that it is added to
    registered = [edge for edge in values["lineage"] if edge["model"] is not None]
    parents = [edge["model"] for edge in registered if edge["direction"] == "parent"]
    relatives = [edge["model"] for edge in registered if edge["direction"] == "relative"]
    return next(iter([*parents, *relatives]), None)


def _changes(session: Session, row: Model, against: str) -> list[Values]:
    """What became of the organs of `against` in the model."""
    other = model_by_name(session, parse_model_name(against))
    return changes(*(registered_model(session, one, PAGE_TENSORS_MAX) for one in (other, row)))


def _matrix_theta(placements: list[Values]) -> float | None:
    """The mean θ of the organs with rows and columns: the mean over all is moved most by norms of few numbers."""
    thetas = [one["theta"] for one in placements if one["spectral_signal"] is not None and one["theta"] is not None]
    return fmean(thetas) if thetas else None


def _downloads(values: Values) -> list[Values]:
    """The whole model as one file, unless loaders must not be given it."""
    if values["unassemblable"] or not values["files"]:
        return []
    if (partial := _partial_of(values)) is not None:
        return partial
    label = "Download GGUF" if len(values["files"]) == 1 else "Download as one GGUF"
    return [{"label": f"{label}, {size_text(values['size_bytes'])}", "address": _whole(values["name"])}]


def _partial_of(values: Values) -> list[Values] | None:
    """Of a model with only some organs, that names a base: the way to the two together, if the base is here."""
    declared = [edge for edge in values["lineage"] if (edge["direction"], edge["evidence"]) == ("parent", "declared")]
    if values["complete"] or values["kind"] != "model" or not declared:
        return None
    base = next((edge["model"] for edge in declared if edge["model"] is not None), None)
    graft = f"from:{values['name']}"
    address = base and url_for("pages.compose", base=base, graft=graft)
    return [{"label": "Graft it into its base", "address": address, "is_page": True}] if base else []


def _files(values: Values) -> list[Values]:
    """The files, each with the address of its download where there is one."""
    names = public_names([file["name"] for file in values["files"]])
    return [
        file
        | {
            "address": None
            if values["unassemblable"]
            else model_address(values["name"], "downloads.file_of_model", file=name)
        }
        for name, file in zip(names, values["files"], strict=True)
    ]


def _as_chimera(brief: Values | None, jobs: list[Values]) -> Values:
    """What was predicted and found of a model that was composed here, and the validations under way."""
    verdict = brief["verdict"] if brief else None
    return {
        "brief": brief,
        "jobs": jobs,
        "meaning": verdict_meaning(verdict["verdict"]) if verdict else "",
        "missing_runtime": missing_runtime(),
    }


def _whole(name: str) -> str:
    return model_address(name, "downloads.model")


def pull_lines(name: str, file: str) -> list[str]:
    """The model `name` by commands that people have: saved as `file`, and the same for clients of the hub."""
    here, (repository, _, version) = request.host_url.rstrip("/"), name.partition("@")
    return [
        f"curl -fL -C - -o {shlex.quote(file)} '{here}{_whole(name)}'",
        f"HF_ENDPOINT={here} hf download {repository} --revision v{version}",
    ]


def _pull_lines(values: Values) -> list[str]:
    if _partial_of(values) is not None:
        return []
    return pull_lines(values["name"], whole_name(values["name"], [one["name"] for one in values["files"]]))


def _links(values: Values, by: str) -> Values:
    changed = {(one["tower"], one["block"], one["slot"]): one for one in values["changes"]}
    asked = request.args.get("against", "")
    choices = [name for name in READINGS if name not in COMPARED or values["compared_with"] is not None]
    return {
        "by": by,
        "by_label": READINGS[by],
        "can_receive": values["kind"] == "model" and values["complete"] and not values["unassemblable"],
        "grid": anatomy(values["placements"], by, changed),
        "choices": [
            {
                "label": READINGS[name],
                "chosen": name == by,
                "address": model_address(values["name"], by=name, **({"against": asked} if asked else {})),
            }
            for name in choices
        ],
        "is_compared": by in COMPARED,
        "matrix_theta": _matrix_theta(values["placements"]),
        "buttons": _downloads(values),
        "files_shown": _files(values),
        "pull_lines": []
        if _partial_of(values) is not None
        else pull_lines(values["name"], whole_name(values["name"], [one["name"] for one in values["files"]])),
        "acts_text": acts_text,
        "may_edit": may_edit(values["name"].partition("/")[0]),
        "may_yank": may_yank(values["name"].partition("/")[0]),
        "newest": next((one["name"] for one in values["versions"] if one["state"] == "visible"), None),
        "csv": model_address(values["name"], "pages.model_csv"),
        "report_address": model_address(values["name"], "pages.dissection"),
        "lineage_address": url_for("pages.lineage", model=values["name"]),
        "compare_endpoint": "pages.compare",
        **({} if values["placements_left_out"] else depth_shown(values["name"], values["placements"])),
        "metadata_shown": values["metadata"][:METADATA_SHOWN],
    }
