"""Chimeras: a list, and one with how it came to be, what was predicted of it, what a runtime showed, and its use."""

from __future__ import annotations

import shlex
from typing import Any

from flask import request, url_for

from organs.registry.catalog.queries.chimeras import chimeras_by_lock, newest_chimeras
from organs.registry.present.chimeras import chimera_organs, chimera_page, chimeras_values
from organs.registry.present.values import Values
from organs.registry.reports.document import Cell
from organs.web.forms import writing_form
from organs.web.links import model_address, with_parameters
from organs.web.pages.anatomy import (
    READINGS,
    acts_text,
    anatomy,
    changes,
    legend,
    marked,
    marks,
    with_marks,
)
from organs.web.pages.blueprint import pages
from organs.web.pages.model import pull_lines
from organs.web.pages.verdicts import (
    KIND,
    missing_runtime,
    scored,
    under_way,
    verdict_meaning,
)
from organs.web.params import (
    asked_after,
    asked_choice,
    asked_limit,
)
from organs.web.permissions import ask
from organs.web.responses import (
    Page,
    Sheet,
    paged,
    reading,
    settings,
)

READINGS_HERE = ("theta", "spectral", "size", "change")
COMPUTED_SHOWN = 60
"""Computed organs that the page lists; its twin has all of them."""
TEXTS = ("recipe.yaml", "lock.json", "card.md", "Modelfile")
COLUMNS = ("name", "lock_id", "usable", "score", "verdict", "size_bytes", "mean_theta", "created_at")
"""Of the list as CSV."""


@paged(pages, "/chimeras", csv=True)
def chimeras() -> Page:
    """The models that were composed here, newest first; `after` and `limit` page through them."""
    limit, after = asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        values = chimeras_values(session, newest_chimeras(session, limit, after))
    return Page(
        "chimeras.html", values, extra=lambda: _around(values), sheet=lambda: _sheet(values), next=values["next"]
    )


@paged(pages, "/chimeras/<lock>")
def chimera(lock: str) -> Page:
    """The chimera whose lock has a digest that begins so; `by` says what the cells of its grid are coloured by."""
    by = asked_choice("by", READINGS_HERE)
    with reading(settings().search_seconds) as session:
        values = chimera_page(session, lock)
        values["placements"] = chimera_organs(session, lock)
        jobs = under_way(session, values["model"])
    return Page("chimera.html", values, extra=lambda: _shown(values, by) | {"jobs": jobs})


@writing_form(pages, "/chimeras/<lock>/validate")
def validate(lock: str) -> str:
    """Ask for a validation, and show its job; one that is under way already is shown instead."""
    with reading(settings().search_seconds) as session:
        name = chimeras_by_lock(session, lock)[0].full_name
        active = under_way(session, name)
    job_id = active[0].id if active else ask(KIND, {"chimera": name})
    return url_for("pages.job", job=job_id)


def _around(values: Values) -> Values:
    path, limit = url_for("pages.chimeras"), request.args.get("limit", "")
    return {
        "following": values["next"] and with_parameters(path, {"after": values["next"]}, limit=limit),
        "first": with_parameters(path, {}, limit=limit) if request.args.get("after") else None,
        "csv": with_parameters(url_for("pages.chimeras_csv"), {}, limit="1000"),
        "verdict_meaning": verdict_meaning,
    }


def _sheet(values: Values) -> Sheet:
    keys = (*COLUMNS[:1], "parents", *COLUMNS[1:])
    return Sheet(keys, [[_cell(one[key]) for key in keys] for one in values["items"]])


def _cell(value: Any) -> Cell:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _shown(values: Values, by: str) -> Values:
    lines = legend(values["parts"], values["parents"][0]["model"])
    colours = changes(values["placements"], values["parts"]) if by == "change" else {}
    grid = anatomy(values["placements"], by, colours)
    newest = values["verdicts"][0] if values["verdicts"] else None
    return {
        "parts_count": len(values["parts"]),
        "by_label": READINGS[by],
        "choices": [_choice(values, name, by) for name in READINGS_HERE],
        "grid": marked(grid, marks(values["parts"], lines)),
        "donors": lines,
        "changes_shown": with_marks(values["changes"], lines),
        "acts_text": acts_text,
        "newest": newest,
        "scored": None if newest is None else scored(newest["report"]),
        "verdict_meaning": verdict_meaning,
        "serious": [one for one in values["findings"] if one["severity"] != "info"],
        "informing": [one for one in values["findings"] if one["severity"] == "info"],
        "computed_shown": values["computed"][:COMPUTED_SHOWN],
        "file_address": model_address(values["model"], "downloads.model"),
        "texts": [_text(values, name) for name in TEXTS],
        "lines": _lines(values),
        "lineage_address": url_for("pages.lineage", model=values["model"]),
        "missing_runtime": missing_runtime(),
    }


def _choice(values: Values, name: str, by: str) -> Values:
    address = with_parameters(
        url_for("pages.chimera", lock=values["lock_id"]), {"by": name} if name != READINGS_HERE[0] else {}
    )
    return {"label": READINGS[name], "chosen": name == by, "address": address}


def _text(values: Values, name: str) -> Values:
    return {"label": name, "address": url_for("made.chimera_text", lock=values["lock_id"], text=name)}


def _lines(values: Values) -> list[Values]:
    """What to type, by what it is for: first what gets the file, under the name that the other lines call it."""
    name = values["model"].partition("/")[2].partition("@")[0]
    modelfile = url_for("made.chimera_text", lock=values["lock_id"], text="Modelfile", _external=True)
    get, pull = pull_lines(values["model"], values["file"]["name"])
    ollama = f"ollama create {shlex.quote(name.lower())} -f Modelfile"
    return [
        {"label": "get the file", "line": get},
        {"label": "run it with llama.cpp", "line": values["llama_cli"]},
        {
            "label": "into Ollama, with the Modelfile beside the file",
            "line": f"curl -fL -o Modelfile '{modelfile}'\n{ollama}",
        },
        {"label": "or get it as clients of the Hugging Face hub do", "line": pull},
        {"label": "or write its file where the registry is", "line": values["assemble"]},
        {"label": "the same from Python, from the recipe", "line": values["python"].rstrip()},
    ]
