"""A submission's texts in its row, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ingest.submissions.manifest import Given, Manifest, parse_manifest
from registry.catalog.tables import Submission

GIVEN, PROPOSED, PUBLISH = "given", "proposed", "publish"
"""What stands in `metadata_given`: the contributor's words, what the headers say with them, whether it is to be
published as soon as it is looked at."""


def kept_manifest(row: Submission) -> Manifest:
    """The files that it is of; one that has ended has none any more (BadManifest)."""
    return manifest_in(row.manifest)


def manifest_in(text: str) -> Manifest:
    """The manifest that is kept as `text`."""
    return parse_manifest(json.loads(text))


def kept_given(row: Submission) -> Given:
    """What its contributor says of it."""
    values = json.loads(row.metadata_given)[GIVEN]
    tags = values["tags"]
    return Given(**{**values, "tags": None if tags is None else tuple(tags)})


def said_json(given: Given, *, publish: bool, proposed: Mapping[str, Any] | None = None) -> str:
    """The text to be kept."""
    return json.dumps({GIVEN: asdict(given), PUBLISH: publish, PROPOSED: proposed})


def wants_publishing(row: Submission) -> bool:
    """Whether its contributor has said that it is to be published."""
    return bool(json.loads(row.metadata_given)[PUBLISH])
