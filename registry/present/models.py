"""Models as plain values."""

from __future__ import annotations

import json

from sqlalchemy.orm import Session

from registry.catalog.queries.blobs import totals
from registry.catalog.queries.models import (
    count_models,
    files_of,
    ingest_of,
    metadata_of,
    placements_of,
    type_means,
)
from registry.catalog.tables import Model, Placement
from registry.present.facts import facts
from registry.present.relatives import lineage_values
from registry.present.values import Values


def model_summary(model: Model) -> Values:
    """A model as a line of a list."""
    return {
        "name": model.full_name,
        "title": model.title,
        "kind": model.kind,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "tensors": model.tensors,
        "size_bytes": model.size_bytes,
        "mean_theta": model.mean_theta,
        "mean_signal": model.mean_signal,
        "license": model.license,
        "complete": model.complete,
        "digest": model.digest,
        "created_at": model.created_at.isoformat(),
    }


def model_page(session: Session, model: Model) -> Values:
    """A model with everything that is shown of it."""
    ingest = ingest_of(session, model.id)
    metadata, placements = metadata_of(session, model.id), placements_of(session, model.id)
    return model_summary(model) | {
        "description": model.description,
        "flags": json.loads(model.flags),
        "unassemblable": json.loads(model.unassemblable),
        "types": [
            {"type": kind, "tensors": count, "size_bytes": size, "mean_theta": theta, "mean_spectral_signal": spectral}
            for kind, count, size, theta, spectral in type_means(session, model.id)
        ],
        "files": [
            {"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256}
            for file in files_of(session, model.id)
        ],
        "facts": facts(model, metadata, (placement.dtype for placement, _, _ in placements)),
        "metadata": [{"key": row.key, "type": row.type, "value": row.value} for row in metadata],
        "placements": [
            placement_values(placement) | {"shape": shape, "digest": digest} for placement, shape, digest in placements
        ],
        "ingest": json.loads(ingest.report) if ingest is not None and ingest.report else None,
        **lineage_values(session, model),
    }


def placement_values(placement: Placement) -> Values:
    """An organ at its place."""
    return {
        "name": placement.name,
        "type": placement.type,
        "tower": placement.tower,
        "block": placement.block,
        "slot": placement.slot,
        "dtype": placement.dtype,
        "size_bytes": placement.size_bytes,
        "theta": placement.theta,
        "magnitude": placement.magnitude,
        "signal": placement.signal,
        "spectral_signal": placement.spectral_signal,
        "stable_rank": placement.stable_rank,
    }


def figures(session: Session) -> Values:
    """The registry in numbers."""
    blobs, plain, stored = totals(session)
    return {"models": count_models(session), "blobs": blobs, "size_bytes": plain, "stored_bytes": stored}
