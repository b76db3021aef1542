"""Storage: what is stored how, and what this saves. For administrators and the user of a personal server."""

from __future__ import annotations

from organs.registry.entities.storage import ROWS_DEFAULT, ROWS_MAX, Storage
from organs.registry.relatives.storage import storage as stored
from organs.web.api.operation import ROOT, STORAGE_ROWS, operation
from organs.web.auth import ADMIN
from organs.web.params import requested_limit
from organs.web.responses import reading

GROUP = "Administration"
STORAGE_SECONDS = 10.0
"""Time limit. The sizes take about 5 s at a million placements; they are cached until the catalog changes."""


@operation(
    "/storage",
    group=GROUP,
    summary="What is stored how, and what this saves",
    parameters=(STORAGE_ROWS,),
    scope=ADMIN,
    is_open_locally=True,
    example=f"{ROOT}/storage?limit=2",
)
def storage() -> Storage:
    """Return the size of all files and their size on the disk, with families, models and encodings by stored size. On
    a personal server, no token is needed."""
    return requested_storage()


def requested_storage() -> Storage:
    """Return what is stored how, with as many families and models as requested. Raises TooSlow."""
    limit = requested_limit(ROWS_DEFAULT, ROWS_MAX)
    with reading(STORAGE_SECONDS) as session:
        return stored(session, limit)
