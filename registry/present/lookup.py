"""Many organs at once as plain values: by digest, and those of a model in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import reachable_digests
from organs.registry.catalog.queries.organs import placements_page, reachable_organs
from organs.registry.catalog.tables import Model
from organs.registry.digest import Digest
from organs.registry.present.models import placed_values
from organs.registry.present.values import Values

KNOWN_MAX = 4000
"""Organs that are listed: bytes such as zeros can stand under very many shapes."""


def known_organs(session: Session, digests: Sequence[Digest]) -> Values:
    """Which of `digests` are organs of visible or yanked models, in short, and which are not."""
    organs = reachable_organs(session, digests, KNOWN_MAX)
    here = {organ.digest for organ in organs}
    notes: list[str] = []
    if len(organs) >= KNOWN_MAX:
        here |= reachable_digests(session, digests)
        notes.append(f"Only {KNOWN_MAX:,} organs are listed: some of these bytes stand under many dtypes and shapes.")
    absent = [digest for digest in dict.fromkeys(digests) if digest not in here]
    return {"items": [asdict(organ) for organ in organs], "next": None, "notes": notes, "absent": absent}


def organs_of_model(session: Session, model: Model, limit: int, after: str | None = None) -> Values:
    """A page of the organs of `model` at their places; raises BadQuery for a place that is none."""
    rows, following = placements_page(session, model, limit, after)
    items = [placed_values(*row) for row in rows]
    return {"items": items, "next": following, "notes": []}
