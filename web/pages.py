"""The pages, each with a JSON twin: the same address with `.json` behind it, `/index.json` for the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flask import Blueprint, Response, current_app, jsonify, render_template, request
from sqlalchemy.orm import Session

from registry.catalog.queries.models import model_by_name, ranked_models, visible_models
from registry.names import parse_model_name
from registry.present.models import figures, model_page, model_summary
from registry.present.organs import organ_page
from registry.present.text import size_text, theta_text
from registry.present.values import Values
from web.shown import theta_class

pages = Blueprint("pages", __name__)

JSON_SUFFIX = ".json"
MODELS_SHOWN = 200
GRID_CELLS_MAX = 20_000
"""A hostile file could ask for a cell for each pair of its tensors."""
LISTED_MAX = 500


@pages.get("/index.json", endpoint="home_twin")
@pages.get("/")
def home() -> str | Response:
    """The registry in numbers and its models, ranked."""
    with _session() as session:
        ranked = [model_summary(model) for model in ranked_models(session, MODELS_SHOWN)]
        names = {model["name"] for model in ranked}
        others = [model_summary(model) for model in visible_models(session, MODELS_SHOWN)]
        values = figures(session) | {
            "ranked": ranked,
            "others": [model for model in others if model["name"] not in names],
        }
    return _page("home.html", values)


@pages.get("/models/<namespace>/<name>")
def model(namespace: str, name: str) -> str | Response:
    """A model: its organs on a grid of blocks and slots, its types, its files and its metadata."""
    with _session() as session:
        row = model_by_name(session, parse_model_name(f"{namespace}/{name.removesuffix(JSON_SUFFIX)}"))
        values = model_page(session, row)
    return _page("model.html", values | ({} if wants_json(request.path) else {"grid": _grid(values["placements"])}))


@pages.get("/organs/<digest>")
def organ(digest: str) -> str | Response:
    """An organ: what was measured, and where it sits."""
    with _session() as session:
        values = organ_page(session, digest.removesuffix(JSON_SUFFIX))
    return _page("organ.html", values)


@pages.app_template_filter("theta_class")
def _theta_class(theta: float | None) -> str:
    return theta_class(theta)


pages.add_app_template_filter(size_text, "size")
pages.add_app_template_filter(theta_text, "degrees")


@pages.app_template_filter("number")
def _number(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def wants_json(path: str) -> bool:
    """Whether the address is that of a JSON twin."""
    return path.endswith(JSON_SUFFIX)


@contextmanager
def _session() -> Iterator[Session]:
    with current_app.extensions["organ_registry"].catalog.reading() as session:
        yield session


def _page(template: str, values: Values) -> str | Response:
    return jsonify(values) if wants_json(request.path) else render_template(template, **values)


def _grid(placements: list[Values]) -> Values:
    """Blocks down, slots across, skeleton first and organs last as in a body; what has no block stands apart."""
    order = {"skeleton": 0, "norm": 1, "organ": 2}
    inside = [placement for placement in placements if placement["block"] is not None]
    kinds = {placement["slot"]: order.get(placement["type"], 3) for placement in inside}
    slots = sorted(kinds, key=lambda slot: (kinds[slot], slot))
    cells = {(placement["tower"], placement["block"], placement["slot"]): placement for placement in inside}
    rows = sorted({(placement["tower"], placement["block"]) for placement in inside})
    if len(rows) * len(slots) > GRID_CELLS_MAX:
        return {
            "slots": [],
            "rows": [],
            "caps": placements[:LISTED_MAX],
            "left_out": max(0, len(placements) - LISTED_MAX),
        }
    return {
        "slots": slots,
        "rows": [
            {
                "label": str(block) if tower == "text" else f"{tower} {block}",
                "cells": [cells.get((tower, block, slot)) for slot in slots],
            }
            for tower, block in rows
        ],
        "caps": [placement for placement in placements if placement["block"] is None][:LISTED_MAX],
        "left_out": 0,
    }
