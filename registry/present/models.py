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
    model_summary,
    type_means,
)
from organs.registry.catalog.queries.reports import (
    running_totals,
    visible_bytes,
)
from organs.registry.catalog.tables import Model, ModelMetadata
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.compose.licences import differing_licence
from organs.registry.compose.metadata import LICENCE_KEY
from organs.registry.compose.recipe import recipe_from_json
from organs.registry.compose.recipe_io import recipe_values
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.published import LICENSE_MAX
from organs.registry.present.values import Values
from organs.registry.relatives.lineage import lineage_of

INGEST_FIELDS = ("model", "digest", "organs", "size_bytes", "flags", "notes")
"""Of the report of an ingest, what is shown with the model."""


def model_page(session: Session, model: Model) -> Values:
    """A model with everything that is shown of it but its organs."""
    ingest = ingest_of(session, model.id)
    metadata = metadata_of(session, model.id)
    composed = bool(composed_among(session, [model.id]))
    lineage = lineage_of(session, model)
    summary: Values = msgspec.to_builtins(model_summary(model, composed=composed))
    return summary | {
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
        "recipe": recipe_values(recipe_from_json(chimera.recipe)),
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
