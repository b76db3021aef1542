"""The files that can be made of a model: tensor types for its organs, and what a file with them takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from organs.registry.amounts import plural_text
from organs.registry.anatomy import OUTPUT_MATRIX, TOKEN_EMBEDDING
from organs.registry.compose.parents import Parent, Part
from organs.registry.compose.selection import in_ranges
from organs.registry.entities.memory import MemoryCount
from organs.registry.errors import BadInput
from organs.registry.gguf import TensorSpec, encode_header, padded
from organs.registry.gguf.mixes import MIXES, is_quantised, mixed_dtypes, traits_of
from organs.registry.gguf.split import whole_metadata
from organs.registry.gguf.types import DType, dtype_by_name
from organs.registry.quantizing.groups import FAST, allowed_dtypes
from organs.registry.transform.values import holds_weights
from organs.registry.validation.memory import MemoryRequest, counted_memory, write_hole

Dtypes = Mapping[str, DType]
"""Tensor types by the names of tensors; the others keep theirs."""
Weigh = Callable[[Part, DType], float]
"""Return what an organ in a type takes of a limit, in bytes."""

PLAIN_MIXES = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_0", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0")
"""The mixes of llama.cpp beside which a choice is measured, the smallest first."""
LARGE_BLOCK = 256
"""The values of a block of the types with the fewest bits."""


@dataclass(frozen=True)
class Layouts:
    """The files of one source."""

    source: Parent
    by_importances: bool = False
    """Whether organs are encoded by an importance matrix, on which some mixes depend."""

    @cached_property
    def parts(self) -> list[Part]:
        """The organs that are written in other types."""
        return [part for part in self.source.parts if is_quantised(part.spec) and holds_weights(part.dtype)]

    def smallest(self, weigh: Weigh) -> Dtypes:
        """Return the types that are chosen from with which a file takes the least."""
        return {part.name: min(allowed_dtypes(part), key=lambda dtype: weigh(part, dtype)) for part in self.parts}

    def mix(self, name: str) -> Dtypes:
        """Return the types of a mix of llama.cpp. Raises BadInput for an unknown one."""
        if name not in MIXES:
            raise BadInput(f"{name!r} is not a mix of llama.cpp: write one of {', '.join(MIXES)}")
        traits = replace(traits_of(self.source.header, self.source.source), by_importances=self.by_importances)
        dtypes = mixed_dtypes(name, (part.spec for part in self.source.parts), traits)
        own = {part.name for part in self.parts}
        return {tensor: dtype for tensor, dtype in dtypes.items() if tensor in own}

    def is_multiplied(self, part: Part) -> bool:
        """Return whether an organ is a factor of a product: all but a token embedding that is only read by rows."""
        return part.place != TOKEN_EMBEDDING or not self._has_output

    @cached_property
    def _has_output(self) -> bool:
        return any(part.place == OUTPUT_MATRIX for part in self.source.parts)

    def specs(self, dtypes: Dtypes) -> list[TensorSpec]:
        """Return all tensors of a file, in their order."""
        return [TensorSpec(part.name, part.shape, dtypes.get(part.name, part.dtype)) for part in self.source.parts]

    def size_bytes(self, dtypes: Dtypes) -> int:
        """Return the bytes of all tensors of a file, with padding."""
        return sum(padded(spec.size_bytes, self.source.header.alignment) for spec in self.specs(dtypes))

    def memory(self, dtypes: Dtypes, wanted: MemoryRequest, *, requires_sandbox: bool) -> MemoryCount:
        """Return what the runtime takes for a file, by its own count. Only the header is written.

        Raises NoRuntime, RuntimeFailed, NoSandbox.
        """
        header, specs = self.source.header, self.specs(dtypes)
        data = encode_header(whole_metadata(self.source.source, header), specs, header.alignment)
        with TemporaryDirectory(prefix="organ-memory-") as folder:
            path = Path(folder, "model.gguf")
            write_hole(path, data, len(data) + self.size_bytes(dtypes))
            return counted_memory(path, wanted, name=self.source.label, requires_sandbox=requires_sandbox)

    def repacked_shares(self, wanted: MemoryRequest, *, requires_sandbox: bool) -> dict[str, float]:
        """Return how much of an organ is in memory a second time, by its type: 0 or about 1.

        A file of each type is counted. Only organs that are multiplied are repacked. Raises as `memory`.
        """
        shares = {}
        for dtype in map(dtype_by_name, FAST):
            own = [part for part in self.parts if dtype in allowed_dtypes(part) and self.is_multiplied(part)]
            if own:
                count = self.memory(
                    dict.fromkeys((part.name for part in own), dtype), wanted, requires_sandbox=requires_sandbox
                )
                size_bytes = sum(dtype.size_bytes(part.spec.elements) for part in own)
                shares[dtype.name] = min(1.0, count.repacked_bytes / size_bytes)
        return shares

    def reason_of_floor(self, smallest: Dtypes) -> str:
        """Return why no smaller types are there, as the end of a sentence; empty if it is only their number."""
        coarse = [part for part in self.parts if part.shape[0] % LARGE_BLOCK]
        if not coarse:
            return ""
        rows = ", ".join(map(str, sorted({part.shape[0] for part in coarse})[:3]))
        bits = min(smallest[part.name].bits_per_value for part in coarse)
        return (
            f": the rows of {plural_text(len(coarse), 'matrix', 'matrices')} have {rows} values, and types of less "
            f"than {bits:g} bits need whole blocks of {LARGE_BLOCK}"
        )


def rules_of(parts: Sequence[Part], dtypes: Dtypes) -> list[dict[str, object]]:
    """Return the rules of a recipe that give the organs their types: for each slot the usual one, then the others."""
    slots: dict[str, dict[str, list[int]]] = {}
    for part in parts:
        own = slots.setdefault(part.place.slot, {})
        own.setdefault(dtypes.get(part.name, part.dtype).name, []).append(part.place.block or 0)
    rules: list[dict[str, object]] = []
    for slot, by_type in slots.items():
        usual, *others = sorted(by_type, key=lambda name: -len(by_type[name]))
        rules.append({"as": usual, "slot": slot})
        rules += [{"as": name, "slot": slot, "blocks": in_ranges(sorted(by_type[name]))} for name in others]
    return rules
