"""One organ: what was measured and what it means, where it sits, which organs are like it."""

from __future__ import annotations

from flask import g, url_for

from organs.registry.catalog.queries.search import search_organs
from organs.registry.catalog.search import parse_query
from organs.registry.errors import BadQuery, NotFound, TooSlow
from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.quants import can_dequantize
from organs.registry.present.meanings import MEANINGS, theta_ingredients, theta_sentence
from organs.registry.present.organs import organ_page
from organs.registry.present.search import search_values
from organs.registry.present.values import Values
from organs.web.answers import Page, paged, reading, settings
from organs.web.pages.blueprint import pages
from organs.web.pages.charts import weights_shown
from organs.web.pages.composing import graft_address
from organs.web.shown import caution_of

ALIKE_SHOWN = 8
FORMS = {"raw": "plain bytes (.raw)", "bin": "with its name and shape (.bin)", "npy": "as float32 for NumPy (.npy)"}
"""What an organ can be downloaded as."""


@paged(pages, "/organs/<digest>")
def organ(digest: str) -> Page:
    """The organ whose digest begins with `digest`."""
    with reading(settings().search_seconds) as session:
        values = organ_page(session, digest, visible=True)
    values |= _alike(values["digest"])
    return Page("organ.html", values, extra=lambda: _explained(values))


def _alike(digest: str) -> Values:
    """The organs of the same slot and shape whose weights are most alike, itself left out."""
    try:
        with reading(settings().counts_seconds) as session:
            page = search_organs(session, parse_query(f"like:{digest} unique:organ"), ALIKE_SHOWN + 1)
    except BadQuery:
        return {"alike": [], "alike_note": "It has too few values to be compared with others."}
    except NotFound:
        return {"alike": [], "alike_note": None}
    except TooSlow:
        g.unkept = True  # the next one who asks may have more luck
        return {"alike": [], "alike_note": "Not looked for: there are too many to compare at once."}
    others = [item for item in search_values(page)["items"] if item["digest"] != digest][:ALIKE_SHOWN]
    return {"alike": others, "alike_note": None if others else "No other organ of its slot and shape is here."}


def _explained(values: Values) -> Values:
    readings = {name: value for one in values["measurements"] for name, value in one.items() if name in MEANINGS}
    first: Values = next((one for one in values["measurements"] if one.get("theta") is not None), {})
    return {
        "readings": [
            {"name": name, "value": readings[name], "meaning": meaning}
            for name, meaning in MEANINGS.items()
            if name in readings
        ],
        "ingredients": theta_ingredients(first),
        "made_of": theta_sentence(first),
        "warning": caution_of(values) if first else "",
        "likeness_meaning": MEANINGS["likeness"],
        "graft": next(filter(None, map(graft_address, values["places"])), None),
        "weights": weights_shown(values["digest"], values["dtype"], values["shape"]),
        "downloads": [
            {"label": label, "address": url_for("downloads.organ", digest=values["digest"], form=form)}
            for form, label in FORMS.items()
            if form != "npy" or can_dequantize(dtype_by_name(values["dtype"]))
        ],
    }
