"""The table of all endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from organs.registry.endpoints import (
    about,
    accounts,
    administration,
    answers,
    chimeras,
    downloads,
    evolutions,
    jobs,
    models,
    organs,
    queries,
    reports,
    submissions,
    uploads,
)
from organs.registry.endpoints.declaration import Endpoint, Group

_OF_API = (
    *(about, organs, models, queries, chimeras, evolutions, reports),
    *(uploads, submissions, accounts, administration, jobs, answers),
)
GROUPS: tuple[Group, ...] = (*(module.GROUP for module in _OF_API), downloads.GROUP)
"""All groups, in the order of the reference."""
API: Mapping[str, Endpoint[..., Any]] = {
    name: endpoint for module in _OF_API for name, endpoint in module.GROUP.endpoints.items()
}
"""The endpoints of the API by name."""
DOWNLOADS: Mapping[str, Endpoint[..., Any]] = downloads.GROUP.endpoints
"""The addresses that send bytes, by name."""
