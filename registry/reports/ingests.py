"""The report on ingests: the times and sizes that every ingest stored, and their totals.

The complete form is for the owner of the registry. It says how much of a model was new and how long its ingest took,
which would disclose what else is stored. The public form has the published models with their sizes only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.reports import all_ingest_reports, first_ingests, newest_ingests
from organs.registry.catalog.tables import Ingest, ModelRow
from organs.registry.columns import CellKind
from organs.registry.entities.base import prepared
from organs.registry.entities.report import Cell, ReportColumn, ReportFigure, ReportFigures, ReportSection, table
from organs.registry.reports.groups import MODEL, SIZE, TENSORS


class StageReport(msgspec.Struct, frozen=True):
    """The time of one stage of an ingest, added over all threads."""

    seconds: float = 0.0
    bytes: int = 0


class StoredReport(msgspec.Struct, frozen=True):
    """The JSON report of an ingest, or of a chimera that was composed. Other members are ignored."""

    created: bool | None = None
    """Whether the model was new; None if nothing was ingested."""
    lock: str | None = None
    """The digest of a chimera's lock."""
    error: str | None = None
    organs: int | None = None
    size_bytes: int | None = None
    new_bytes: int | None = None
    stored_bytes: int | None = None
    seconds: float | None = None
    stages: dict[str, StageReport] = {}


def ingest_sections(session: Session, limit: int, *, complete: bool) -> dict[str, ReportSection]:
    """Return the newest `limit` ingests and, if `complete`, the totals over all, by the key of their section."""
    empty = "There are no ingests yet."
    if not complete:
        published = table(
            title="Ingests",
            columns=(_STARTED, *(MODEL, TENSORS, SIZE)),
            rows=[
                (_moment(row.started_at), model.full_name, model.tensors, model.size_bytes)
                for row, model in first_ingests(session, limit)
            ],
            before=(f"The models that were published here, the newest first, at most {limit:,}.",),
            after=("The owner of the registry also sees the times and the stored sizes.",),
            empty=empty,
        )
        return {"ingests": published}
    totals = _Totals()
    for state, report in all_ingest_reports(session):
        totals.add(state, _decoded(report))
    rows = [_complete_row(row, model, _decoded(row.report)) for row, model in newest_ingests(session, limit)]
    shown = f"The newest {len(rows):,} of {totals.rows:,}" if len(rows) < totals.rows else f"All {totals.rows:,}"
    return {
        "ingests": table(
            title="Ingests",
            columns=_COMPLETE_COLUMNS,
            rows=rows,
            before=(f"{shown}, the newest first. {_MEANING}",),
            after=(
                (
                    "The stages of an ingest run in several threads at the same time, so their times can add up to "
                    "more than its time."
                ),
            ),
            empty=empty,
        ),
        "ingest_totals": ReportFigures(title="Totals of all ingests", before=(), figures=_figures(totals), after=()),
    }


def _decoded(report: str | None) -> StoredReport:
    """Return a stored report. One that cannot be read has no values: another version may have written it."""
    if not report:
        return StoredReport()
    try:
        return msgspec.json.decode(report, type=prepared(StoredReport))
    except msgspec.DecodeError:
        return StoredReport()


def _complete_row(row: Ingest, model: ModelRow | None, report: StoredReport) -> tuple[Cell, ...]:
    speed = report.size_bytes / report.seconds / 1e6 if report.size_bytes and report.seconds else None
    stages = (_stage_seconds(report, names) for names in _STAGES.values())
    return (
        _moment(row.started_at),
        row.source if model is None else model.full_name,
        _result(row.state, report),
        report.organs,
        report.size_bytes,
        report.new_bytes,
        report.stored_bytes,
        report.seconds,
        speed,
        *stages,
        row.source,
        report.error,
    )


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _result(state: str, report: StoredReport) -> str:
    if state != "finished":
        return state
    if report.lock is not None:
        return COMPOSED
    return KNOWN if report.created is False else NEW


def _stage_seconds(report: StoredReport, names: Iterable[str]) -> float | None:
    """Return the seconds of the stages `names`; None for a report without stages."""
    if not report.stages:
        return None
    return sum(report.stages[name].seconds for name in names if name in report.stages)


@dataclass(slots=True)
class _Totals:
    rows: int = 0
    results: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)

    def add(self, state: str, report: StoredReport) -> None:
        result = _result(state, report)
        self.rows += 1
        self.results[result] = self.results.get(result, 0) + 1
        if report.lock is not None:
            return  # a composition reads no files
        self.size_bytes += report.size_bytes or 0
        self.new_bytes += report.new_bytes or 0
        self.stored_bytes += report.stored_bytes or 0
        self.seconds += report.seconds or 0.0
        for stage, names in _STAGES.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + (_stage_seconds(report, names) or 0.0)


def _figures(totals: _Totals) -> dict[str, ReportFigure]:
    parts = "; ".join(f"{count:,} {result}" for result, count in sorted(totals.results.items()))
    size, seconds = CellKind.SIZE, CellKind.SECONDS
    figures = {
        "ingests_count": ReportFigure("ingests", totals.rows, CellKind.COUNT, f"By result: {parts or 'none'}."),
        "size_bytes": ReportFigure("size read", totals.size_bytes, size, "The files of all finished ingests."),
        "new_bytes": ReportFigure(
            "new", totals.new_bytes, size, "Plain bytes of the parts that were not stored before."
        ),
        "stored_bytes": ReportFigure("stored", totals.stored_bytes, size, "Their bytes on the disk."),
        "seconds": ReportFigure("time", totals.seconds, seconds, "The sum over all finished ingests."),
    }
    stages = {
        f"{stage}_seconds": ReportFigure(f"{stage} time", spent, seconds, _STAGE_WORDS[stage])
        for stage, spent in totals.stages.items()
    }
    return figures | stages


NEW, KNOWN, COMPOSED = "new", "known", "composed"
"""The results of an ingest that finished; others have the name of their state."""
_STAGES = {
    "read": ("read", "read again"),
    "hash": ("hash file", "hash stacks", "hash organs", "count non-finite"),
    "measure": ("measure",),
    "encode": ("encode", "choose encoding"),
    "write": ("write", "sync", "check known"),
    "catalog": ("open", "catalog", "register", "relatives", "search parents"),
}
"""The stages of `ingest.service`, in groups."""
_STAGE_WORDS = {
    "read": "Reading the files.",
    "hash": "Computing digests, and looking for NaN and infinite values.",
    "measure": "Measuring samples.",
    "encode": "Compressing, and trying which similar tensor makes a tensor smallest.",
    "write": "Writing to the disk, and comparing with bytes that were stored before.",
    "catalog": "Checking headers, writing rows and finding relatives.",
}
_MEANING = (
    "Every ingest of a file, or of a shard that is stored alone, and every chimera that was composed. New is the size "
    "of the parts that were not stored before, stored is their size after compression. The result of an ingest is "
    "known if the model was registered before. JSON and CSV also have the speed, and the time of each stage."
)
_STARTED = ReportColumn("started_at", "started (UTC)", CellKind.TEXT)
_COMPLETE_COLUMNS = (
    *(_STARTED, MODEL),
    ReportColumn("result", "result", CellKind.TEXT),
    *(TENSORS, SIZE),
    ReportColumn("new_bytes", "new", CellKind.SIZE),
    ReportColumn("stored_bytes", "stored", CellKind.SIZE),
    ReportColumn("seconds", "time", CellKind.SECONDS),
    ReportColumn("megabytes_per_second", "MB/s", CellKind.NUMBER, data_only=True),
    *(ReportColumn(f"{stage}_seconds", stage, CellKind.SECONDS, data_only=True) for stage in _STAGES),
    ReportColumn("source", "source", CellKind.NAME, data_only=True),
    ReportColumn("error", "error", CellKind.TEXT, data_only=True),
)
