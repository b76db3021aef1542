"""Whether the process answers and its database does."""

from __future__ import annotations

from flask import Blueprint, current_app

from registry.catalog.queries.models import count_models

health = Blueprint("health", __name__)


@health.get("/healthz")
def healthz() -> dict[str, bool]:
    """200 when a query went through."""
    with current_app.extensions["organ_registry"].catalog.reading() as session:
        count_models(session)
    return {"ok": True}
