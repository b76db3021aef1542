"""How often models were fetched: counted elsewhere, added here in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.tables import DailyDownloads, Model
from organs.registry.catalog.upsert import batches, insert_or_add


def add_downloads(session: Session, counted: Mapping[tuple[int, str], int]) -> None:
    """Add what was `counted`, by a model's id and a day (YYYY-MM-DD, UTC), to the days and to the models' sums."""
    sums: Counter[int] = Counter()
    for (model_id, _), downloads in counted.items():
        sums[model_id] += downloads
    known: set[int] = set()
    for batch in batches(sorted(sums)):
        known.update(session.scalars(select(Model.id).where(Model.id.in_(batch))))
    rows = [
        {"model_id": model_id, "day": day, "downloads": downloads}
        for (model_id, day), downloads in sorted(counted.items())
        if model_id in known
    ]
    insert_or_add(session, DailyDownloads, ["model_id", "day"], "downloads", rows)
    for model_id in sorted(known):
        added = Model.downloads + sums[model_id]
        session.execute(update(Model).where(Model.id == model_id).values(downloads=added))
