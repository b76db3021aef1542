"""Whether the process answers and its database does."""

from __future__ import annotations

from flask import Blueprint

from organs.registry.catalog.queries.totals import running_totals
from organs.web.answers import reading

health = Blueprint("health", __name__)


@health.get("/healthz")
def healthz() -> dict[str, bool]:
    """200 when a query went through."""
    with reading() as session:
        running_totals(session)
    return {"ok": True}
