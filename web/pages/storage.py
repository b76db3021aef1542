"""What is stored how, and what this saves. For administrators and the user of a personal server."""

from __future__ import annotations

from collections.abc import Iterator

from flask import request, url_for

from organs.registry.amounts import percent_text
from organs.registry.endpoints import administration as endpoints
from organs.registry.entities.storage import ENCODING_COLUMNS, FAMILY_COLUMNS, MODEL_COLUMNS, Storage, Way
from organs.registry.errors import BadQuery, TooSlow
from organs.web.api import admin as administration
from organs.web.pages.routes import Context, Sheet, WebPage, paged, sheet_of
from organs.web.params import requested
from organs.web.permissions import check_admin, may_see_storage
from organs.web.responses import plain_page

BAR_WIDTH = 1000
"""The length of the bar of all files, in units of its drawing."""
COLUMNS = {"models": MODEL_COLUMNS, "families": FAMILY_COLUMNS, "encodings": ENCODING_COLUMNS}


@paged("/storage", csv=True)
def storage() -> WebPage:
    """Show the size of all files and their size on the disk; `table` chooses the table of a CSV file."""
    if not may_see_storage():
        check_admin()
    try:
        result = administration.storage(**requested(endpoints.storage))
    except TooSlow as error:
        if not plain_page():
            raise
        return WebPage("storage.html", {"problem": str(error)}, status=503)
    return WebPage(
        "storage.html",
        lambda: {
            "storage": result,
            "segments": list(_segments(result)),
            "ways": [row for way in Way if (row := result.way(way)).parts],
            "columns": {
                table: [column for column in columns if not column.data_only and column.name not in ("name", "dtype")]
                for table, columns in COLUMNS.items()
            },
            "csv_addresses": {name: url_for("pages.storage_csv", table=name) for name in COLUMNS},
        },
        sheet=lambda: _sheet(result),
        body=result,
    )


def _segments(result: Storage) -> Iterator[Context]:
    """Yield the parts of the bar of all files: the bytes on the disk, and those saved in one of three ways.

    Parents of removed models are on the disk, and not in the files.
    """
    parts = (
        ("on the disk", result.needed_bytes - result.kept_bytes, "kept"),
        ("saved by storing differences", result.parents_bytes, "differences"),
        ("saved by compression", result.compression_bytes, "compression"),
        ("saved by storing equal parts once", result.once_bytes, "once"),
    )
    total = sum(size for _, size, _ in parts)
    begin = 0.0
    for label, size, tone in parts:
        share = size / total if total else 0.0
        place = {"begin": round(begin, 1), "width": round(BAR_WIDTH * share, 1)}
        yield {"label": label, "size_bytes": size, "share": percent_text(share), "tone": tone} | place
        begin += BAR_WIDTH * share


def _sheet(result: Storage) -> Sheet:
    """Return the table that the parameter `table` names, by default that of the models. Raises BadQuery."""
    name = request.args.get("table") or "models"
    if name not in COLUMNS:
        raise BadQuery("table", f"one of {', '.join(COLUMNS)}")
    return sheet_of(COLUMNS[name], getattr(result, name))
