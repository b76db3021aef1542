"""Models as plain values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import msgspec
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.accounts import contributor_name
from organs.registry.catalog.queries.composing import chimera_of
from organs.registry.catalog.queries.models import (
    composed_among,
    dtype_counts,
    facts_of,
    files_of,
    ingest_of,
    metadata_of,
    placements_of,
    type_means,
)
from organs.registry.catalog.queries.reports import (
    running_totals,
    visible_bytes,
)
from organs.registry.catalog.queries.search import ModelPage
from organs.registry.catalog.search.fields import CHIMERA
from organs.registry.catalog.tables import Model, ModelMetadata, Placement
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.compose.licences import differing_licence
from organs.registry.compose.metadata import LICENCE_KEY
from organs.registry.compose.recipe import kept_recipe
from organs.registry.compose.recipe_io import recipe_values
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.published import LICENSE_MAX
from organs.registry.present.values import Values
from organs.registry.relatives.lineage import lineage_of

INGEST_FIELDS = ("model", "digest", "organs", "size_bytes", "flags", "notes")
"""Of the report of an ingest, what is shown with the model."""


def model_summary(model: Model, *, composed: bool = False) -> Values:
    """A model as a line of a list; `composed` is whether it was composed here."""
    return {
        "name": model.full_name,
        "title": model.title,
        "kind": CHIMERA if composed else model.kind,
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
        "state": model.state,
        "downloads": model.downloads,
        "grafts": model.grafts,
        "nonfinite_tensors": model.nonfinite_tensors,
    }


def models_values(page: ModelPage) -> Values:
    """A page of models."""
    return {
        "items": [model_summary(model, composed=model.id in page.composed) for model in page.items],
        "next": page.next,
        "notes": list(page.notes),
    }


def model_page(session: Session, model: Model, limit: int | None = None) -> Values:
    """A model with everything that is shown of it; with all its placements, or the first `limit`, and how many
    are left out then.
    """
    ingest = ingest_of(session, model.id)
    metadata, placements = metadata_of(session, model.id), placements_of(session, model.id, limit)
    composed = bool(composed_among(session, [model.id]))
    lineage = lineage_of(session, model)
    return model_summary(model, composed=composed) | {
        "contributor": contributor_name(session, model.contributor_id),
        "description": model.description,
        "tags": json.loads(model.tags),
        "state_reason": model.state_reason,
        "changed_at": None if model.changed_at is None else model.changed_at.isoformat(),
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
        "facts": facts_of(model, metadata, dtype_counts(session, model.id)),
        "metadata": [{"key": row.key, "type": row.type, "value": row.value} for row in metadata],
        "placements": [placed_values(*row) for row in placements],
        **({} if limit is None else {"placements_left_out": model.tensors - len(placements)}),
        "ingest": _ingest(ingest.report) if ingest is not None and ingest.report else None,
        "composed": _composed(session, model),
        "lineage": msgspec.to_builtins(lineage.edges),
        "lineage_left_out": lineage.left_out,
        "findings": msgspec.to_builtins([*_licence_findings(model, metadata), *lineage.findings]),
    }


def _ingest(report: str) -> Values:
    """Return what an ingest reported of the model itself.

    How much of it was new, and the time that took, tells which of its bytes were here already: also those of a model
    in quarantine.
    """
    values = json.loads(report)
    return {name: values[name] for name in INGEST_FIELDS if name in values}


def _licence_findings(model: Model, metadata: Sequence[ModelMetadata]) -> list[Finding]:
    """Return a finding if the listed licence is not that of the header: its contributor stated or edited another."""
    in_header = next((row.value for row in metadata if row.key == LICENCE_KEY), None)
    sentence = differing_licence(model.license, None if in_header is None else shown_text(in_header, LICENSE_MAX))
    return [] if sentence is None else [Finding(Severity.WARN, "license-differs", sentence)]


def _composed(session: Session, model: Model) -> Values | None:
    """By which lock, of which models and by which recipe it was composed here; None of any other model."""
    chimera = chimera_of(session, model.id)
    if chimera is None:
        return None
    return {
        "lock_id": chimera.lock_id,
        "parents": json.loads(chimera.origins)["parents"],
        "recipe": recipe_values(kept_recipe(chimera.recipe)),
    }


def placements_values(session: Session, model_id: int) -> list[Values]:
    """The organs of a model at their places, in order."""
    return [placed_values(*row) for row in placements_of(session, model_id)]


def placed_values(placement: Placement, shape: str, digest: str, nonfinite: int | None) -> Values:
    """An organ at its place in a model that is known."""
    return placement_values(placement) | {"shape": shape, "digest": digest, "nonfinite": nonfinite}


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


def public_figures(session: Session) -> Values:
    """Return the registry in numbers that anybody may know: of visible models alone.

    What is stored altogether would tell how large a model in quarantine is, and by what it grows, whether bytes that
    somebody sends are there already.
    """
    totals = running_totals(session)
    return {
        "models": totals.models,
        "placements": totals.placements,
        "organs": totals.organs,
        "size_bytes": visible_bytes(session),
    }


def figures(session: Session) -> Values:
    """Return the registry in numbers, with all that is stored: for those who run it."""
    return asdict(running_totals(session))
