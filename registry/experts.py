"""Stacks of experts: which tensors are stacks, and the experts in them.

A mixture of experts has many small feed-forward networks in a block, the experts; a router selects a few of them for
each token. A GGUF file stores one matrix of all experts of a block as one tensor of three dimensions, the *stack*, for
example `blk.0.ffn_up_exps.weight` with the shape [row length, rows, experts]. The experts follow one another, so each
of them is a contiguous matrix of whole blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from organs.registry.anatomy import Place, is_expert_stack
from organs.registry.gguf.types import DType

EXPERTS_A_STACK_MAX = 4096
"""Stacks with more experts are not split. The largest models have some hundreds."""
EXPERT_MIN_BYTES = 4096
"""Stacks of smaller experts are not split: the rows of an expert would need more space than its bytes."""


def expert_count(place: Place, shape: Sequence[int], dtype: DType) -> int:
    """Return the number of experts in a tensor of `shape` (row length first) at `place`; 0 if it is not split."""
    if not is_expert_stack(place) or len(shape) != 3 or not 2 <= shape[2] <= EXPERTS_A_STACK_MAX:
        return 0
    return shape[2] if dtype.size_bytes(shape[0] * shape[1]) >= EXPERT_MIN_BYTES else 0


def expert_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the shape of one expert in a stack of `shape`: row length and rows."""
    return shape[0], shape[1]
