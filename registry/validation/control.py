"""The control: a model with some of its tensors zeroed, which is what it would be if a graft carried nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from organs.registry.errors import BadInput, DiskFull, StoreUnwritable, UnsupportedDType
from organs.registry.gguf import quants
from organs.registry.gguf.types import DType
from organs.registry.validation.weights import CHUNK_BYTES, OpenFile, Weights

_NO_RANGE_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_control(model: Path, names: Iterable[str], target: Path) -> None:
    """Write to `target`, which must not exist, a copy of the file `model` in which the tensors `names` are zero bytes.

    Zeroed ranges are holes where the file system has them; what is kept is shared with `model` where it can, copied
    otherwise. Nothing is left behind by a failure. Raises BadInput for a name that is not in the file and for a split
    set, UnsupportedDType where zero bytes are not known to mean zeros, DiskFull, StoreUnwritable, BadSource, BadGguf.
    """
    with Weights(model) as weights:
        if len(weights.files) > 1:
            raise BadInput(f"{model.name}: a control is made from a single file, not from a split set")
        spans = sorted(_zeroed(weights, names))
        try:
            _write(weights.files[0], spans, target)
        except OSError as error:
            kind = DiskFull if error.errno in _FULL else StoreUnwritable
            raise kind(f"{target}: the control cannot be written: {error.strerror}") from error


def zero_bytes_mean_zero(dtype: DType) -> bool:
    """Whether a tensor of zero bytes is a tensor of zeros: asked of the kernel that reads it; no kernel, no.

    Quantised blocks are a scale times whole numbers, and the scale of zero bytes is 0; every dtype that can be read
    here is like that, and a test asks each.
    """
    if not quants.can_dequantize(dtype):
        return False
    return not np.any(quants.decode(bytes(dtype.block_bytes), dtype))


def _zeroed(weights: Weights, names: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Where the tensors `names` begin and end."""
    for name in dict.fromkeys(names):
        spot = weights.spots.get(name)
        if spot is None:
            raise BadInput(f"{weights.files[0].name}: there is no tensor {name[:80]!r} to zero")
        if not zero_bytes_mean_zero(spot.info.dtype):
            raise UnsupportedDType(f"{name}: it is not known here what zero bytes mean in {spot.info.dtype.name}")
        yield spot.offset, spot.offset + spot.info.size_bytes


def _write(source: OpenFile, zeroed: list[tuple[int, int]], target: Path) -> None:
    descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.ftruncate(descriptor, source.size_bytes)
        position = 0
        for begin, end in zeroed:
            _copy(source, descriptor, position, begin)
            position = end
        _copy(source, descriptor, position, source.size_bytes)
    except BaseException:
        with suppress(OSError):
            os.unlink(target)
        raise
    finally:
        os.close(descriptor)


def _copy(source: OpenFile, descriptor: int, begin: int, end: int) -> None:
    """Copy the bytes from `begin` to `end` to the same place, inside the kernel where it can."""
    while begin < end:
        copied = _copy_range(source.descriptor, descriptor, begin, end - begin)
        if not copied:
            data = source.read_at(begin, min(CHUNK_BYTES, end - begin))
            copied = os.pwrite(descriptor, data, begin)
        begin += copied


def _copy_range(source: int, target: int, offset: int, size: int) -> int:
    """How many bytes the kernel copied; 0 where it cannot."""
    if not hasattr(os, "copy_file_range"):  # macOS
        return 0
    try:
        return os.copy_file_range(source, target, size, offset, offset)
    except OSError as error:
        if error.errno in _NO_RANGE_COPY:
            return 0
        raise
