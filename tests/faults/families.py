"""Helpers for faults of registries whose organs are stored by their difference to others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from sqlalchemy import select

from organs.registry.catalog.queries.blobs import DEPTH_MAX, KnownBlob
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.model_changes import remove_model
from organs.registry.catalog.tables import ModelRow
from organs.registry.errors import Busy
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.references import RepackReport, repack
from tests.faults.failing import (
    assert_sweeps_leave_no_rest,
    blob_rows,
    let_leases_expire,
    run_sweep,
    verify_all,
)
from tests.small_models import assemble_model

SWEEPS = 2 * (DEPTH_MAX + 1)
"""A parent is doomed by the sweep that removes its last dependant, and removed by the next one."""


def repack_all(registry: LocalRegistry) -> RepackReport:
    """Choose the parents of the organs of all visible models again."""
    with registry.catalog.reading() as session:
        ids = session.scalars(select(ModelRow.id).where(ModelRow.state == "visible")).all()
    return repack(registry.catalog, registry.blobs, ids)


def remove(registry: LocalRegistry, name: str) -> None:
    """Remove the model `local/name`, as `organ admin remove` does."""
    with registry.catalog.writing() as session:
        remove_model(session, model_by_name(session, parse_model_name(f"local/{name}")), "a test", "local")


def sweep_at_once(registry: LocalRegistry) -> None:
    """Remove everything that nothing needs now; another sweep or a backup may be running."""
    for _ in range(SWEEPS):
        try:
            run_sweep(registry, timedelta(0))
        except Busy:
            return


def visible_names(registry: LocalRegistry) -> list[str]:
    """Return the names of the visible models."""
    with registry.catalog.reading() as session:
        return list(session.scalars(select(ModelRow.name).where(ModelRow.state == "visible").order_by(ModelRow.id)))


def assert_models_come_back(registry: LocalRegistry, sources: Mapping[str, bytes], folder: Path) -> None:
    """Assert that every visible model is assembled to its source."""
    for name in visible_names(registry):
        (back,) = assemble_model(registry, f"local/{name}", folder)
        assert back.read_bytes() == sources[name], f"{name} differs"


def assert_whole(registry: LocalRegistry, sources: Mapping[str, bytes], folder: Path) -> None:
    """Assert that all bytes are right, and that no organ is too far from one that is stored alone."""
    assert verify_all(registry).faults == []
    assert max((row.depth for row in blob_rows(registry)), default=0) <= DEPTH_MAX
    assert_models_come_back(registry, sources, folder)


def assert_settles(registry: LocalRegistry, sources: Mapping[str, bytes], folder: Path) -> None:
    """Assert that a repeated repack finds nothing more to do, and that sweeps remove what is left over."""
    let_leases_expire(registry)
    repack_all(registry)
    assert repack_all(registry).repacked == 0
    assert_sweeps_leave_no_rest(registry, SWEEPS)
    assert_whole(registry, sources, folder)


def dependants(registry: LocalRegistry, parent: KnownBlob) -> list[KnownBlob]:
    """Return the blobs that cannot be read without `parent`."""
    return [
        row for row in blob_rows(registry) if row.id != parent.id and parent.id in {above.id for above in row.lineage}
    ]
