"""The kind `repack`: store organs of new models by their difference to others. Runners add it when they are idle."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy.orm import Session

from organs.ingest.jobs.kind import UPKEEP, JobKind, ReportProgress
from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.jobs import is_anything_due, last_end
from organs.registry.catalog.queries.organs import oldest_living_ingest
from organs.registry.catalog.queries.relatives import models_to_repack
from organs.registry.entities.base import RequestBody
from organs.registry.entities.job import RepackJobResult
from organs.registry.local import LocalRegistry
from organs.registry.references import RepackReport, repack
from organs.registry.relatives import settle_sources

RETRY_AFTER = timedelta(hours=1)
"""The time after a failed or cancelled repack in which runners add none."""


class RepackRequest(RequestBody, frozen=True, kw_only=True):
    """The arguments of a repack: none."""


def is_repack_due(session: Session, other_kinds: Sequence[str]) -> bool:
    """Return whether models wait for a repack, no job of `other_kinds` waits, and no ingest runs, anywhere."""
    if is_anything_due(session, [*other_kinds, REPACK.name]) or not models_to_repack(session, 1):
        return False
    if oldest_living_ingest(session, database_now(session)) is not None:
        return False
    end = last_end(session, REPACK.name)
    return end is None or end[0] == "finished" or end[1] < database_now(session) - RETRY_AFTER


def _run(
    registry: LocalRegistry, _arguments: RepackRequest, report_progress: ReportProgress, _contributor: str
) -> RepackJobResult:
    with registry.catalog.reading() as session:
        models = models_to_repack(session)
    total = RepackReport(dry_run=False)
    examined = 0

    def report_step(_organs: int = 0) -> None:
        report_progress(examined / len(models), f"{examined:,} of {len(models):,} models examined")

    for model_id in models:
        report_step()
        with registry.catalog.reading() as session:
            if examined and is_anything_due(session):
                break
        settle_sources(registry.catalog, registry.blobs, [model_id])
        report = repack(registry.catalog, registry.blobs, [model_id], progress=report_step)
        total.merge(report)
        examined += 1
    return RepackJobResult(
        examined_models=examined,
        remaining_models=len(models) - examined,
        organs=total.organs,
        repacked=total.repacked,
        before_bytes=total.before_bytes,
        after_bytes=total.after_bytes,
        unneeded_bytes=total.unneeded_bytes,
        skipped=total.skipped,
    )


REPACK = JobKind("repack", UPKEEP, RepackRequest, _run)
"""Takes nothing; returns how many organs it examined and stored again, with their sizes before and after."""
