"""Stacks of experts: which tensors are stacks, and the experts in them.

A mixture of experts has many small feed-forward networks in a block, the experts; a router selects a few of them for
each token. A GGUF file stores one matrix of all experts of a block as one tensor of three dimensions, the *stack*, for
example `blk.0.ffn_up_exps.weight` with the shape [row length, rows, experts]. The experts follow one another, so each
of them is a contiguous matrix of whole blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from organs.registry.anatomy import Place, is_expert_stack, place_of
from organs.registry.gguf import TensorSpec
from organs.registry.gguf.types import DType

EXPERTS_A_STACK_MAX = 4096
"""Stacks with more experts are not split. The largest models have some hundreds."""
EXPERT_MIN_BYTES = 4096
"""Stacks of smaller experts are not split: the rows of an expert would need more space than its bytes."""


EXPERTS_MAX = 200_000
"""Experts of the split stacks of one file. The largest models have 70,000."""
SMALL_EXPERT_BYTES = 64 * 1024
SMALL_EXPERTS_MAX = 4096
"""Experts of one file up to this size, which are stored in the database: a hostile file must not fill it."""


def split_stacks(tensors: Iterable[TensorSpec]) -> dict[str, int]:
    """Return the number of experts of each stack of a file that is split, by name; others are above a limit."""
    stacks: dict[str, int] = {}
    total = small = 0
    for tensor in tensors:
        count = expert_count(place_of(tensor.name), tensor.shape, tensor.dtype)
        small_count = count if count and tensor.size_bytes // count <= SMALL_EXPERT_BYTES else 0
        if count and total + count <= EXPERTS_MAX and small + small_count <= SMALL_EXPERTS_MAX:
            stacks[tensor.name] = count
            total, small = total + count, small + small_count
    return stacks


def expert_count(place: Place, shape: Sequence[int], dtype: DType) -> int:
    """Return the number of experts in a tensor of `shape` (row length first) at `place`; 0 if it is not split."""
    if dtype.is_foreign or not is_expert_stack(place) or len(shape) != 3 or not 2 <= shape[2] <= EXPERTS_A_STACK_MAX:
        return 0
    return shape[2] if dtype.size_bytes(shape[0] * shape[1]) >= EXPERT_MIN_BYTES else 0


def expert_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the shape of one expert in a stack of `shape`: row length and rows."""
    return shape[0], shape[1]
