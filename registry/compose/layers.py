"""Layers: a model whose blocks are repeated, dropped, in another order, or those of other models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from msgspec import structs

from organs.registry.amounts import plural_text
from organs.registry.anatomy import Slot, Tower, in_block
from organs.registry.compose.lock import can_be_set
from organs.registry.compose.parents import Parent, Part, Replacement
from organs.registry.compose.recipe import Graft
from organs.registry.compose.selection import range_text, within
from organs.registry.digest import Digest
from organs.registry.gguf import KeyValue, ValueType, read_array
from organs.registry.gguf.blocks import DENSE_KEY, FURTHER_KEY, arrangement_faults, leading_dense, stated_blocks

BLOCKS_MAX, TENSORS_MAX = 1000, 50_000
"""Blocks and tensors of a result; the deepest models have some hundred blocks with twenty tensors each."""
RUNS_SHOWN = 6
"""Runs of consecutive blocks in a sentence."""
OF_DIMENSIONS = "rope.dimension_sections"
"""An array that has a number for each kind of position, and never one for each block."""


@dataclass(frozen=True)  # without slots, because of the cached properties
class Layers:
    """The blocks of a result: for each, the model that gives it (None: the base), and its number there."""

    base: Parent
    """The base as it is in the catalog."""
    blocks: tuple[tuple[Parent | None, int], ...]

    @cached_property
    def former(self) -> tuple[int, ...]:
        """The number that each block has in its model."""
        return tuple(number for _, number in self.blocks)

    @cached_property
    def _places(self) -> Mapping[int, Sequence[int]]:
        """The new blocks by their former number."""
        places: dict[int, list[int]] = {}
        for new, number in enumerate(self.former):
            places.setdefault(number, []).append(new)
        return places

    def result(self) -> Parent:
        """Return the base with the blocks of the result, which may be those of other models."""
        return self._with_blocks(self.base, [(giver or self.base).by_block.get(own, ()) for giver, own in self.blocks])

    def arranged(self, model: Parent) -> Parent:
        """Return `model` with those of its blocks that have the former numbers of these, in the same new order.

        Steps of a recipe select blocks of the result: a donor gives the block that has the same number in the donor as
        the block of the result had in its own model.
        """
        key = model.label, model.header_digest
        if key not in self._arranged:
            own = [model.by_block.get(number, ()) for number in self.former]
            self._arranged[key] = self._with_blocks(model, own)
        return self._arranged[key]

    @cached_property
    def _arranged(self) -> dict[tuple[str, Digest], Parent]:
        """The models that were arranged before."""
        return {}

    @property
    def tensors(self) -> int:
        """The number of tensors of the result."""
        outside = sum(not _is_in_block(part) for part in self.base.parts)
        return outside + sum(len((giver or self.base).by_block.get(number, ())) for giver, number in self.blocks)

    def _with_blocks(self, model: Parent, blocks: Sequence[Sequence[Part]]) -> Parent:
        """Return `model` with other blocks, where in the order of the file its first one was."""
        first = next((number for number, part in enumerate(model.parts) if _is_in_block(part)), len(model.parts))
        arranged = [
            replace(part, name=in_block(part.name, new), place=replace(part.place, block=new))
            for new, parts in enumerate(blocks)
            for part in parts
        ]
        others = [part for part in model.parts[first:] if not _is_in_block(part)]
        return replace(model, parts=(*model.parts[:first], *arranged, *others), former=self.former)

    def slots(self, slot: Slot) -> Iterator[Slot]:
        """Yield the places in the result of an organ that is at `slot` in its model."""
        tower, block, name = slot
        if tower != Tower.TEXT.value or block is None:
            yield slot
        else:
            yield from ((tower, new, name) for new in self._places.get(block, ()))

    def stored_slot(self, slot: Slot) -> Slot:
        """Return the place that the organ at a place of the result has in its model."""
        tower, block, name = slot
        is_arranged = tower == Tower.TEXT.value and block is not None
        return (tower, self.former[block], name) if is_arranged and block is not None else slot

    def stored_selection(self, graft: Graft) -> Graft:
        """Return a graft that selects blocks by their former numbers."""
        former = dict.fromkeys(self.former[new] for new in range(len(self.former)) if within(new, graft.blocks))
        return structs.replace(graft, blocks=tuple((number, number) for number in former)) if graft.blocks else graft

    def stored_name(self, part: Part) -> str:
        """Return the name that a tensor of an arranged model has in the catalog."""
        block = self.stored_slot(part.slot)[1]
        return part.name if block is None else in_block(part.name, block)

    def origin(self, part: Part) -> tuple[Parent | None, int] | None:
        """Return the model and the former number of the block of a tensor of the result; None outside of the blocks."""
        block = part.place.block
        return self.blocks[block] if _is_in_block(part) and block is not None else None

    def replacements(self) -> list[Replacement]:
        """Return the organs of other models, beside those of the base in the block of the same number, or the last one.

        Compatibility is checked on them.
        """
        found = []
        last = max(self.base.by_block, default=0)
        others = {(giver.label, number): giver for giver, number in self.blocks if giver is not None}
        for (_, number), giver in others.items():
            own = {part.place.slot: part for part in self.base.by_block.get(min(number, last), ())}
            pairs = [(own.get(part.place.slot), part) for part in giver.by_block.get(number, ())]
            found += [Replacement(before, after, giver) for before, after in pairs if before is not None]
        return found

    @property
    def sentence(self) -> str:
        """The blocks of the result in a few words: `34 blocks: 0-10, 7-29`."""
        runs: list[tuple[Parent | None, int, int]] = []
        for giver, number in self.blocks:
            if runs and runs[-1][0] is giver and runs[-1][2] == number - 1:
                runs[-1] = (giver, runs[-1][1], number)
            else:
                runs.append((giver, number, number))
        shown = [
            range_text((first, last)) + (f" of {giver.label}" if giver is not None else "")
            for giver, first, last in runs[:RUNS_SHOWN]
        ]
        more = [f"{len(runs) - RUNS_SHOWN} more runs"] if len(runs) > RUNS_SHOWN else []
        return f"{plural_text(len(self.blocks), 'block', 'blocks')}: {', '.join([*shown, *more])}"

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield a code and a sentence for blocks that runtimes would treat as another kind, and for missing values."""
        count = 1 + max(self.base.by_block, default=-1)
        own = [_slots_of_block(self.base, number) for number in range(count)]
        arranged = [(number, _slots_of_block(giver or self.base, number)) for giver, number in self.blocks]
        outside = [part.place.slot for part in self.base.parts if part.place.block is None]
        yield from (("layer-pattern", fault) for fault in arrangement_faults(self.base.header, own, arranged, outside))
        header = self.base.header
        for key in self._counts():
            field = header.field(f"{header.architecture}.{key}")
            if field is not None and header.integer(field.key) is None:
                yield "bad-layers", f"the value of {field.key} is not a whole number"
        for key, kind in self._numbers.items():
            values = self._values(key, kind)
            if values is None or not can_be_set(KeyValue(key, ValueType.ARRAY, values, element_type=kind)):
                yield (
                    "bad-layers",
                    f"there is no finite number of the right type for each block in {key}",
                )

    def entries(self) -> Iterator[KeyValue]:
        """Yield the entries of the header that have the number of blocks, or a value for each."""
        header = self.base.header
        for key, kind in self._numbers.items():
            values = self._values(key, kind)
            if values is not None:
                yield KeyValue(key, ValueType.ARRAY, values, element_type=kind)
        for key, number in self._counts().items():
            field = header.field(f"{header.architecture}.{key}")
            if field is not None and field.value != number:
                yield KeyValue(field.key, field.type, number)

    def _counts(self) -> dict[str, int]:
        """Return the numbers of blocks that the header of the result states, if the base's states them."""
        header = self.base.header
        changed = {"block_count": len(self.blocks)}
        stated = stated_blocks(header)
        if stated is None or stated - 1 not in self.former:  # the blocks that predict further tokens are the last ones
            changed[FURTHER_KEY] = 0
        dense = leading_dense(header, [_slots_of_block(giver or self.base, number) for giver, number in self.blocks])
        return changed | ({} if dense is None else {DENSE_KEY: dense})

    def _values(self, key: str, kind: ValueType) -> list[float] | list[bool] | list[int] | None:
        """Return the values of a key for the blocks; None if a model states none."""
        numbers = [_number_of(giver or self.base, key, number) for giver, number in self.blocks]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            return None
        if kind in (ValueType.FLOAT32, ValueType.FLOAT64):
            return list(map(float, known))
        return list(map(bool, known)) if kind is ValueType.BOOL else list(map(int, known))

    @cached_property
    def _numbers(self) -> dict[str, ValueType]:
        """The keys of the base's header that have a number for each block, with the type of the numbers."""
        header, count = self.base.header, stated_blocks(self.base.header)
        return {
            field.key: field.element_type
            for field in header.fields
            if field.element_type not in (None, ValueType.STRING)
            and field.count == count
            and field.key.startswith(f"{header.architecture}.")
            and not field.key.endswith(OF_DIMENSIONS)
        }


def _is_in_block(part: Part) -> bool:
    return part.place.tower is Tower.TEXT and part.place.block is not None


def _slots_of_block(model: Parent, block: int) -> set[str]:
    return {part.place.slot for part in model.by_block.get(block, ())}


def _number_of(model: Parent, key: str, block: int) -> int | float | None:
    """Return the value of a key for a block; None if none is stated, or no finite number."""
    field = model.header.field(key)
    value: object = None if field is None else field.value
    if field is not None and field.is_array and block < field.count <= BLOCKS_MAX:
        numbers = read_array(model.source, field)
        value = None if isinstance(numbers, list) else numbers[block].item()
    return value if isinstance(value, int | float) and math.isfinite(value) else None
