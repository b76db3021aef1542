"""The JSON columns of a submission's row: its manifest, and what its contributor states about the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from organs.ingest.submissions.manifest import Manifest, StatedMetadata, parse_manifest
from organs.registry.catalog.tables import Submission

STATED, PROPOSED, PUBLISH, ACKNOWLEDGED = "given", "proposed", "publish", "acknowledged"
"""Members of the column `metadata_given`: what the contributor states, the proposal that was made of it and of the
headers, whether the submission is published as soon as it has been inspected, and the codes of findings that the
contributor acknowledges."""


def manifest_of(row: Submission) -> Manifest:
    """Return the manifest of a submission. Raises BadManifest for one that has ended: its manifest is removed."""
    return read_manifest(row.manifest)


def read_manifest(text: str) -> Manifest:
    """Return the manifest that the column holds as `text`."""
    return parse_manifest(json.loads(text))


def stated_metadata_of(row: Submission) -> StatedMetadata:
    """Return what the contributor states about the model."""
    values = json.loads(row.metadata_given)[STATED]
    tags = values["tags"]
    return StatedMetadata(**{**values, "tags": None if tags is None else tuple(tags)})


def metadata_json(
    stated: StatedMetadata,
    *,
    publish: bool,
    proposed: Mapping[str, Any] | None = None,
    acknowledged: Iterable[str] = (),
) -> str:
    """Return the text of the column `metadata_given`."""
    values = {STATED: asdict(stated), PUBLISH: publish, PROPOSED: proposed, ACKNOWLEDGED: sorted(acknowledged)}
    return json.dumps(values)


def acknowledged_of(row: Submission) -> tuple[str, ...]:
    """Return the codes of findings that the contributor acknowledges; none in a row of an older version."""
    return tuple(json.loads(row.metadata_given).get(ACKNOWLEDGED, ()))


def wants_publishing(row: Submission) -> bool:
    """Return whether the contributor asked for the submission to be published."""
    return bool(json.loads(row.metadata_given)[PUBLISH])
