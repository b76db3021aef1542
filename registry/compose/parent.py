"""A parent: a model as composing sees it, whether it is registered here or lies in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from organs.registry.anatomy import Place
from organs.registry.digest import Digest
from organs.registry.gguf import ByteSource, Header, TensorSpec
from organs.registry.gguf.types import DType
from organs.registry.lineage import Organ, Slot


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of a parent, or one that is to be computed for a chimera."""

    name: str
    place: Place
    dtype: DType
    shape: tuple[int, ...]
    """Row length first."""
    digest: Digest
    """Of its bytes."""
    theta: float | None = None
    spectral_signal: float | None = None
    fingerprint: bytes | None = field(default=None, repr=False)
    mean: float | None = None
    standard_deviation: float | None = None
    nonfinite: int | None = None
    """How many of its values are NaN or infinite; None where they were not counted."""

    @property
    def slot(self) -> Slot:
        return (self.place.tower.value, self.place.block, self.place.slot)

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.shape, self.dtype)

    @property
    def size_bytes(self) -> int:
        return self.spec.size_bytes

    @property
    def organ(self) -> Organ:
        """As models are compared by it."""
        return Organ(self.place.type.value, self.shape, self.dtype.name, self.fingerprint, self.digest)


@dataclass(frozen=True, slots=True)
class Parent:
    """A base, a donor or an adapter."""

    label: str
    """What people call it: `acme/tiny@1`, or a file's name."""
    header: Header = field(repr=False)
    """Of its first file."""
    source: ByteSource = field(repr=False)
    """Of which `header` was read; only the header's own bytes may be asked for."""
    header_digest: Digest
    """SHA-256 from the magic to the last tensor info of the first file."""
    parts: tuple[Part, ...] = field(repr=False)
    """Of all of its files, in order."""
    unassemblable: tuple[str, ...] = ()
    """Why it must not be given to a loader; empty for nearly all."""
    complete: bool = True
    model_id: int | None = None
    """Its row, where it is registered."""
    yanked: tuple[str | None, str] | None = None
    """The day on which it was yanked, and why; None for a model that is not."""
    licence_said: str | None = None
    """What its contributor says beside its header; None where that is nothing else."""
    by_name: Mapping[str, Part] = field(init=False, repr=False, compare=False)
    by_slot: Mapping[Slot, Part] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Frozen, so what is looked up all the time is set once, here.
        object.__setattr__(self, "by_name", {part.name: part for part in self.parts})
        object.__setattr__(self, "by_slot", {part.slot: part for part in self.parts})

    @property
    def license(self) -> str | None:
        """What it is under: what its contributor says, else what its header does."""
        return self.licence_said or self.header.text("general.license")
