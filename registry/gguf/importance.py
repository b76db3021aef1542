"""Importance matrices: how large the inputs of each column of a model's weights were, which encoders weigh errors by.

llama.cpp writes them as GGUF files with two tensors for each weight, the sums of squares and the counts, and wrote them
before in a format of its own: records of a name, a count and sums.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from organs.registry.digest import Digest
from organs.registry.errors import BadInput
from organs.registry.gguf.header import ByteSource, TensorSpec, padded, range_digest
from organs.registry.gguf.read import read_header
from organs.registry.gguf.types import ALIGNMENT_DEFAULT, MAGIC, NAME_MAX_BYTES, ValueType, dtype_by_name
from organs.registry.gguf.write import KeyValue, encode_header

FILE_MAX_BYTES = 1 << 30
"""The largest file that is read. That of a model of 70 billion weights has 25 MB."""
SUMS, COUNTS = ".in_sum2", ".counts"
"""The ends of the names of the two tensors of a weight."""
LARGEST = 1e20
"""Encoders of larger importances stop the program."""
NO_DIGEST = Digest("")
"""Until the file is hashed."""
_WHOLE = struct.Struct("<i")
_RECORD_MIN_BYTES = 3 * _WHOLE.size
CHUNK_TOKENS = 512
"""The tokens of a chunk by default; files in the former format do not tell them."""


@dataclass(frozen=True, slots=True)
class ImportanceMatrix:
    """The importances of the columns of a model's matrices."""

    digest: Digest
    """SHA-256 of the file."""
    by_tensor: Mapping[str, NDArray[np.float32]]
    """By the name of the weight: mean squares of the inputs of the columns, of a stack those of each expert in turn."""
    energies: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """By the name of a stack: the squares of the inputs of each expert, summed over all columns and all its tokens.

    Empty for files in the old format, which have no counts by expert, as are `tokens`.
    """
    tokens: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """By the name of a stack: the number of tokens for which each expert was used."""

    def fits(self, name: str, shape: tuple[int, ...]) -> bool:
        """Return whether the file has importances of the weight `name`, for each matrix of a stack."""
        values = self.by_tensor.get(name)
        return values is not None and values.size == shape[0] * math.prod(shape[2:])

    def of(self, name: str, row: int, matrix: int = 0) -> NDArray[np.float32]:
        """Return the importances of one matrix with rows of length `row`, of a weight that fits."""
        return self.by_tensor[name][matrix * row : (matrix + 1) * row]


def read_importances(source: ByteSource) -> ImportanceMatrix:
    """Return the importance matrix in a file of either format. Raises BadInput, BadGguf."""
    if source.size_bytes > FILE_MAX_BYTES:
        raise BadInput(f"{source.name}: {source.size_bytes:,} bytes are more than an importance matrix has")
    is_gguf = source.size_bytes >= len(MAGIC) and source.read_at(0, len(MAGIC)) == MAGIC
    matrix = _of_gguf(source) if is_gguf else ImportanceMatrix(NO_DIGEST, _of_records(source))
    found = matrix.by_tensor
    if not found:
        raise BadInput(f"{source.name} is no importance matrix: no tensor has sums of squares")
    for name, values in found.items():
        if not ((values >= 0) & (values <= LARGEST)).all():  # False for NaN
            raise BadInput(f"{source.name}: importances of {name} are negative, or larger than {LARGEST:g}")
    return replace(matrix, digest=range_digest(source, 0, source.size_bytes))


@dataclass(frozen=True, slots=True)
class SummedSquares:
    """The squares of the inputs of a weight, summed over tokens, as they are written."""

    sums: NDArray[np.float32]
    """By column; of a stack by matrix and column."""
    counts: NDArray[np.float32]
    """The number of tokens: of each expert, or one number for all matrices."""


def written_importances(
    by_tensor: Mapping[str, SummedSquares],
    datasets: Sequence[str],
    chunks: int,
    chunk_tokens: int,
    more: Iterable[KeyValue] = (),
) -> Iterator[bytes]:
    """Yield the pieces of an importance matrix as llama.cpp's program writes it, in GGUF.

    `datasets` are the names of the texts, of which `chunks` parts of `chunk_tokens` tokens were evaluated. `more` comes
    after the entries of llama.cpp.
    """
    plain, specs, arrays = dtype_by_name("F32"), list[TensorSpec](), list[NDArray[np.float32]]()
    for name, part in sorted(by_tensor.items()):
        count = part.counts.size
        stacked = (count,) if count > 1 else ()
        specs += [TensorSpec(name + SUMS, (part.sums.size // count, *stacked), plain)]
        specs += [TensorSpec(name + COUNTS, (1, *stacked), plain)]
        arrays += [part.sums, part.counts]
    entries = [
        KeyValue("general.type", ValueType.STRING, "imatrix"),
        KeyValue("imatrix.datasets", ValueType.ARRAY, list(datasets), element_type=ValueType.STRING),
        KeyValue("imatrix.chunk_count", ValueType.UINT32, chunks),
        KeyValue("imatrix.chunk_size", ValueType.UINT32, chunk_tokens),
    ]
    yield encode_header([*entries, *more], specs)
    for spec, values in zip(specs, arrays, strict=True):
        yield values.astype("<f4").tobytes().ljust(padded(spec.size_bytes, ALIGNMENT_DEFAULT), b"\0")


def _of_gguf(source: ByteSource) -> ImportanceMatrix:
    header = read_header(source)
    plain = {
        tensor.name: np.frombuffer(source.read_at(header.data_offset + tensor.offset, tensor.size_bytes), "<f4")
        for tensor in header.tensors
        if tensor.dtype.name == "F32" and tensor.name.endswith((SUMS, COUNTS))
    }
    found, energies, tokens = {}, {}, {}
    for name, sums in plain.items():
        if name.endswith(SUMS):
            weight = name.removesuffix(SUMS)
            counts = plain.get(weight + COUNTS)
            if counts is None or not counts.size or sums.size % counts.size:
                raise BadInput(f"{source.name} has no counts for the sums of {weight}")
            by_matrix = sums.reshape(counts.size, -1)
            found[weight] = mean_squares(by_matrix, counts)
            if counts.size > 1:
                energies[weight] = by_matrix.sum(axis=1, dtype=np.float64)
                tokens[weight] = counts.astype(np.float64)
    return ImportanceMatrix(NO_DIGEST, found, energies, tokens)


def is_of_records(source: ByteSource) -> bool:
    """Return whether a file is no GGUF, and begins as an importance matrix in the former format does."""
    size = 2 * _WHOLE.size
    if source.size_bytes < size or source.read_at(0, len(MAGIC)) == MAGIC:
        return False
    count, length = (int(_WHOLE.unpack(source.read_at(begin, _WHOLE.size))[0]) for begin in (0, _WHOLE.size))
    return 0 < count <= source.size_bytes // _RECORD_MIN_BYTES and 0 < length <= NAME_MAX_BYTES


def gguf_of_records(source: ByteSource) -> bytes:
    """Return an importance matrix in the former format as a GGUF file, with the same means. Raises BadInput."""
    by_tensor = read_importances(source).by_tensor
    if any(len(f"{name}{SUMS}".encode()) > NAME_MAX_BYTES for name in by_tensor):
        raise BadInput(f"{source.name}: a name in it is too long for GGUF")
    summed = {name: SummedSquares(means, np.ones(1, np.float32)) for name, means in by_tensor.items()}
    return b"".join(written_importances(summed, [source.name], 1, CHUNK_TOKENS))


def _of_records(source: ByteSource) -> dict[str, NDArray[np.float32]]:
    offset, found = 0, dict[str, NDArray[np.float32]]()

    def take(size: int) -> bytes:
        nonlocal offset
        if not 0 <= size <= source.size_bytes - offset:
            raise BadInput(f"{source.name} is no importance matrix: it ends in the middle of a record")
        offset += size
        return source.read_at(offset - size, size)

    def number(most: int) -> int:
        (value,) = _WHOLE.unpack(take(_WHOLE.size))
        if not 0 <= value <= most:
            raise BadInput(f"{source.name} is no importance matrix: a record has the number {value}")
        return int(value)

    for _ in range(number(source.size_bytes // _RECORD_MIN_BYTES)):
        name = take(number(NAME_MAX_BYTES)).decode("utf-8", "replace")
        count, size = number(2**31 - 1), number(FILE_MAX_BYTES // 4)
        sums = np.frombuffer(take(4 * size), "<f4")
        found[name] = (sums / np.float32(count or 1)).astype(np.float32)
    return found


def mean_squares(sums: NDArray[np.float32], counts: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the means of each row of `sums`; those of an expert that was never used are 1, as in llama.cpp."""
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(counts[:, np.newaxis] > 0, sums / counts[:, np.newaxis], np.float32(1))
    return means.reshape(-1)
