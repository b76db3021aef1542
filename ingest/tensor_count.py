"""How many tensors a model may have: as many as its bytes pay for.

A tensor costs the catalog about a kilobyte of rows and index entries, and every later look at its model some time. In a
file it may cost its sender no more than 60 bytes. So each tensor must bring at least TENSOR_MIN_BYTES that no other
tensor of the model has. FREE_TENSORS may be smaller, or repeat another one: norms, biases and scales of honest models
are a few hundred to two thousand. Bytes count whether they are sent now or are in the store already. So a fine-tune
that is pushed with few new bytes passes, and a header that names one known tensor thousands of times does not.
TENSORS_MAX holds for all models: the largest have about two thousand tensors, and some tens of thousands where each
expert is a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from organs.registry.errors import TooManyTensors

TENSORS_MAX = 65_536
TENSOR_MIN_BYTES = 4096
FREE_TENSORS = 4096


class TensorCount:
    """Counts the tensors of one model, as they become known; raises TooManyTensors at the first that is too many."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: set[Hashable] = set()
        self._free = 0

    def add(self, key: Hashable, size_bytes: int) -> None:
        """Count a tensor of `size_bytes` bytes; `key` is equal for equal bytes of one type and shape."""
        if size_bytes < TENSOR_MIN_BYTES or key in self._seen:
            self._free += 1
            if self._free > FREE_TENSORS:
                raise _too_many_free(self._name)
        self._seen.add(key)


def check_tensor_sizes(name: str, sizes_bytes: Iterable[int]) -> None:
    """Check the sizes that the headers of a model declare, before any tensor is read; raises TooManyTensors."""
    sizes = list(sizes_bytes)
    if len(sizes) > TENSORS_MAX:
        raise TooManyTensors(f"{name}: it has {len(sizes):,} tensors, and {TENSORS_MAX:,} is the most that is accepted")
    if sum(size < TENSOR_MIN_BYTES for size in sizes) > FREE_TENSORS:
        raise _too_many_free(name)


def _too_many_free(name: str) -> TooManyTensors:
    return TooManyTensors(
        f"{name}: more than {FREE_TENSORS:,} of its tensors are smaller than {TENSOR_MIN_BYTES:,} bytes or repeat "
        "another of its tensors: a model with so many tensors must bring more bytes"
    )
