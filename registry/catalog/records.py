"""Values that ingest and composing hand to `register`: models, files, organs, and what their owners may change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from organs.registry.anatomy import Place
from organs.registry.catalog.vocabulary import Action
from organs.registry.digest import Digest
from organs.registry.names import ModelName

if TYPE_CHECKING:
    from organs.registry.measure import Measurement  # with numpy, which searches do not need


@dataclass(frozen=True, slots=True)
class Edits:
    """What is to be changed. None leaves as it is; an empty text, or no tags, says that nothing is said any more."""

    title: str | None = None
    description: str | None = None
    """Markdown."""
    license: str | None = None
    """An SPDX expression, `LicenseRef-` and a name, or `other`."""
    tags: tuple[str, ...] | None = None
    base: str | None = None
    """The model that it was made from, `namespace/name`, or what it is called elsewhere."""


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A slice of a blob at an offset of a file."""

    offset_bytes: int
    size_bytes: int
    digest: Digest
    blob_offset_bytes: int


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """A tensor at its place. `measurement` is None for an organ that has been measured before."""

    name: str
    place: Place
    digest: Digest
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    offset_bytes: int
    measurement: Measurement | None
    nonfinite: int | None = None
    """How many of its values are NaN or infinite; None where they were not counted now."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a model with everything that is needed to give it back."""

    name: str
    size_bytes: int
    sha256: Digest
    header_sha256: Digest
    header_bytes: int
    parts: tuple[PartRecord, ...]
    placements: tuple[PlacementRecord, ...]


@dataclass(frozen=True, slots=True)
class ParentRecord:
    """A parent that a model names in its metadata, or that it was made from here."""

    text: str
    relation: str
    digest: Digest | None = None
    """Of a model that it was made from: its name decides nothing then, and it is left out if it is not registered."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model to be registered."""

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
    """What the event log calls it; in quarantine it is submitted."""
    state: str = "visible"
    """Or quarantined: then nothing counts it and nothing is led to it until it is shown."""
    placements: tuple[PlacementRecord, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Frozen, so the derived order over all files is set once, here.
        object.__setattr__(self, "placements", tuple(one for file in self.files for one in file.placements))


OrganKey = tuple[str, str, str]
"""Digest, dtype and shape: what makes an organ. Two tensors of zeros with other shapes are two organs of one blob."""


@dataclass(frozen=True, slots=True)
class ComputationRecord:
    """How an organ was computed: `sources` are the organs that went in, each with the act that used it."""

    key: str
    made: str
    organ: OrganKey
    sources: tuple[tuple[OrganKey, str], ...]


@dataclass(frozen=True, slots=True)
class ChimeraRecord:
    """What is known of a model because it was composed here; texts are JSON."""

    lock_id: Digest
    base_model_id: int
    recipe: str
    findings: str
    prediction: str
    origins: str
    parents: tuple[tuple[int, str], ...]
    """Models that it came from, each with the act."""
    computations: tuple[ComputationRecord, ...]
