"""Values that ingest and compose pass to `register`: models, files, organs, and edits of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from organs.registry.anatomy import Place
from organs.registry.catalog.vocabulary import Action
from organs.registry.digest import Digest
from organs.registry.names import ModelName

if TYPE_CHECKING:
    from organs.registry.measure import Measurement  # imports numpy, which searches do not need


OrganKey = tuple[str, str, str]
"""Digest, dtype and shape, which identify an organ. Zeros of two shapes are two organs of one blob."""


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes of a model. None keeps the current value; an empty text or empty tags remove it."""

    title: str | None = None
    description: str | None = None
    """Markdown."""
    license: str | None = None
    """An SPDX expression, `LicenseRef-` and a name, or `other`."""
    tags: tuple[str, ...] | None = None
    base: str | None = None
    """The model that it was made from: `namespace/name`, or its name outside of the registry."""


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A slice of a blob, and its offset in a file."""

    offset_bytes: int
    size_bytes: int
    digest: Digest
    blob_offset_bytes: int


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """A tensor at its place. `measurement` is None for an organ that was measured before."""

    name: str
    place: Place
    digest: Digest
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    offset_bytes: int
    measurement: Measurement | None
    nonfinite: int | None = None
    """The number of NaN and infinite values; None if they were not counted."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a model with all data that is needed to rebuild it."""

    name: str
    size_bytes: int
    sha256: Digest
    header_sha256: Digest
    header_bytes: int
    parts: tuple[PartRecord, ...]
    placements: tuple[PlacementRecord, ...]


@dataclass(frozen=True, slots=True)
class ParentRecord:
    """A parent that a model names in its metadata, or a model of this registry that it was made from."""

    text: str
    relation: str
    digest: Digest | None = None
    """The digest of the parent. It is used instead of the name. A parent with an unknown digest is left out."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model to register."""

    name: ModelName
    digest: Digest
    kind: str
    architecture: str | None
    title: str | None
    description: str | None
    license: str | None
    size_label: str | None
    metadata: tuple[tuple[str, str, str], ...]
    """Key, type and value as text, in header order."""
    files: tuple[FileRecord, ...]
    tags: tuple[str, ...] = ()
    parents: tuple[ParentRecord, ...] = ()
    flags: tuple[str, ...] = ()
    unassemblable: tuple[str, ...] = ()
    complete: bool = True
    contributor: str = "local"
    action: Action = Action.INGEST
    """The action in the event log. For a model in quarantine, it is `submit` instead."""
    experts: Mapping[OrganKey, Measurement] = field(default_factory=dict)
    """The measurements of single experts that were not measured before. Their places follow from the stored stacks."""
    state: str = "visible"
    """`visible` or `quarantined`. A model in quarantine is neither counted nor linked until it becomes visible."""
    placements: tuple[PlacementRecord, ...] = field(init=False)

    def __post_init__(self) -> None:
        # The class is frozen, so a normal assignment is not possible.
        object.__setattr__(self, "placements", tuple(placement for file in self.files for placement in file.placements))


@dataclass(frozen=True, slots=True)
class ComputationRecord:
    """How an organ was computed. `sources` are the input organs, each with the act that used it."""

    key: str
    made: str
    organ: OrganKey
    sources: tuple[tuple[OrganKey, str], ...]


@dataclass(frozen=True, slots=True)
class ChimeraRecord:
    """The data of a chimera in addition to its model. Texts are JSON."""

    lock_id: Digest
    base_model_id: int
    recipe: str
    findings: str
    screen: str
    origins: str
    parents: tuple[tuple[int, str], ...]
    """The ids of the models that its organs come from, each with the act."""
    computations: tuple[ComputationRecord, ...]
