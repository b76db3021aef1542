"""The program in the confined child: run a model over texts, and sum the squares of what its weights are multiplied by.

It reads a `CollectionOrder`, prints a `CollectionLine` of JSON for each thing that it has done, and writes the sums to
a file that its parent has opened. llama.cpp calls back for each operation (see `Decoder`). Where the members of its
tensors are is found with tensors of odd shapes, and checked by the first product: what is read must give what
llama.cpp computed.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from organs.registry.entities.base import Count, Entity, Items
from organs.registry.errors import OrganError
from organs.registry.gguf import quants
from organs.registry.validation.child import order_and_answers
from organs.registry.validation.decoder import (
    Decoder,
    LoadedModel,
    ModelRefused,
    UnknownInterface,
    declare,
    opened,
)
from organs.registry.validation.scorer import text_tokens
from organs.registry.validation.texts import spread_order
from organs.registry.validation.weights import Spot, Weights

CHUNK_TOKENS_MIN = 32
"""A text of fewer tokens is refused."""
NAME_MAX_BYTES = 256
CHECKED_ROWS = 8
"""The rows of a weight whose products are computed again."""
CHECK_ERROR_MAX = 0.1
"""The relative error of these products. Rounding of inputs to 8 bits gives 0.01."""
ONE_COUNT = -1.0
"""Stands for the counts of all but the first matrix of a stack whose matrices are all used by every token."""
_MULTIPLIED, _MULTIPLIED_BY_EXPERT = b"MUL_MAT", b"MUL_MAT_ID"
_F32, _F16, _I32 = 0, 1, 26


class CollectionText(Entity):
    """A text, and the chat template in which its conversations are written."""

    text: str
    template: str | None


class CollectionOrder(Entity):
    """What the program is to do."""

    model: str
    """The path of the model; of a split set, of its first file."""
    texts: Items[CollectionText]
    chunk_tokens: int
    seconds: float | None
    """No chunk is begun after so many seconds, except the first."""
    decoders: int
    """The threads that evaluate."""
    descriptor: int
    """The open file for the sums."""


class CollectionLine(Entity, omit_defaults=True):
    """What the program has done. The parent ignores lines that are none of these."""

    loaded: bool = False
    chunks: tuple[Count, Count] | None = None
    """The chunks of all texts, and the tokens of a chunk."""
    evaluated: Count = 0
    """The chunks that were evaluated so far."""
    rate: tuple[Count, float] | None = None
    """The evaluated tokens, and the seconds that this took."""
    refused: str | None = None
    missing: str | None = None
    """Why llama.cpp is not there."""
    unknown: str | None = None
    """What this version of llama.cpp does not have."""
    done: bool = False


@dataclass(frozen=True, slots=True)
class MatrixPlace:
    """A weight: one matrix, or a stack of matrices."""

    name: str
    row: int
    matrices: int

    @property
    def size_bytes(self) -> int:
        """The bytes of its counts and its sums in the file of the sums, as float32."""
        return 4 * (1 + self.row) * self.matrices


def matrix_places(weights: Weights) -> list[MatrixPlace]:
    """Return the tensors that may be multiplied with, in the order of the file of the sums."""
    shapes = {name: spot.info.shape for name, spot in weights.spots.items()}
    return [MatrixPlace(name, shape[0], prod(shape[2:])) for name, shape in shapes.items() if len(shape) > 1]


def main() -> None:
    """Read one order, do it, and end."""
    order, tell = order_and_answers(CollectionOrder)
    try:
        with Weights(Path(order.model)) as weights, opened(order.model) as model:
            tell(CollectionLine(loaded=True))
            chunks = text_chunks(model, order)
            tell(CollectionLine(chunks=(len(chunks), len(chunks[0]))))
            observers = [ProductObserver(model.library, weights) for _ in range(min(order.decoders, len(chunks)))]
            tell(_evaluate(model, order, chunks, observers, tell))
            with os.fdopen(order.descriptor, "wb") as file:
                for place in matrix_places(weights):
                    for values in total_of([observer.sums.get(place.name) for observer in observers], place):
                        file.write(values.astype("<f4").tobytes())
        tell(CollectionLine(done=True))
    except ImportError as error:
        tell(CollectionLine(missing=str(error)))
    except UnknownInterface as error:
        tell(CollectionLine(unknown=str(error)))
    except (ModelRefused, OrganError, OSError) as error:
        tell(CollectionLine(refused=str(error)))


def text_chunks(model: LoadedModel, order: CollectionOrder) -> list[list[int]]:
    """Return the tokens of all texts in chunks, evenly spread for any number of the first ones.

    As in llama.cpp's program, the texts are one after another, the special token that begins a text replaces the first
    token of each chunk, and the last tokens that fill no chunk are left out. Fewer tokens than a chunk are one chunk.
    """
    first = model.first_tokens()
    tokens = first + [token for text in order.texts for token in text_tokens(model, text.text, text.template)]
    if len(tokens) < CHUNK_TOKENS_MIN:
        raise ModelRefused(f"the texts have {len(tokens)} tokens: at least {CHUNK_TOKENS_MIN} are needed")
    size = min(order.chunk_tokens, len(tokens))
    starts = range(0, len(tokens) - size + 1, size)
    return [[*first, *tokens[starts[place] + len(first) : starts[place] + size]] for place in spread_order(len(starts))]


def _evaluate(
    model: LoadedModel,
    order: CollectionOrder,
    chunks: Sequence[Sequence[int]],
    observers: Sequence[ProductObserver],
    tell: Callable[[Entity], None],
) -> CollectionLine:
    """Evaluate the chunks, each observer some of them; return how fast this was."""
    queue, lock, evaluated = deque(chunks), threading.Lock(), 0

    def next_chunk(was_evaluated: bool) -> Sequence[int] | None:
        nonlocal evaluated
        with lock:
            evaluated += was_evaluated
            tell(CollectionLine(evaluated=evaluated))
            is_over = order.seconds is not None and monotonic() - begun > order.seconds
            return None if not queue or (is_over and len(queue) < len(chunks)) else queue.popleft()

    def work(decoder: Decoder, observer: ProductObserver) -> None:
        chunk = next_chunk(False)
        try:
            while chunk is not None:
                decoder.evaluate(chunk)
                observer.check(len(chunk))
                chunk = next_chunk(True)
        except (ModelRefused, UnknownInterface):
            queue.clear()  # the other threads begin no other chunk
            observer.check(0)
            raise

    with ExitStack() as stack:
        decoders = [
            stack.enter_context(closing(Decoder(model, len(chunks[0]), observer=observer))) for observer in observers
        ]
        pool, begun = stack.enter_context(ThreadPoolExecutor(len(decoders))), monotonic()
        deque(pool.map(work, decoders, observers), maxlen=0)
        return CollectionLine(rate=(evaluated * len(chunks[0]), round(monotonic() - begun, 3)))


@dataclass(slots=True)
class InputSums:
    """The squares of the inputs of a weight, summed over tokens."""

    sums: NDArray[np.float64]
    """By matrix and column."""
    counts: NDArray[np.float64]
    """By matrix: the number of tokens. Only one for a stack whose matrices are all used by every token."""

    def add(self, sums: NDArray[np.float64], counts: NDArray[np.float64]) -> None:
        self.sums += sums
        self.counts += counts


def total_of(parts: Sequence[InputSums | None], place: MatrixPlace) -> Iterator[NDArray[np.float64]]:
    """Yield the counts of the matrices of a weight, and the sums, over all parts."""
    found = [part for part in parts if part is not None]
    counts = np.zeros(place.matrices)
    if found and len(found[0].counts) < place.matrices:
        counts[1:] = ONE_COUNT
        counts[0] = sum(float(part.counts[0]) for part in found)
    elif found:
        counts = np.sum([part.counts for part in found], axis=0)
    yield counts
    yield np.sum([part.sums for part in found], axis=0) if found else np.zeros((place.matrices, place.row))


class _PoolParameters(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


_Pointer, _Long, _Size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t
_TENSOR_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_init": (_Pointer, (_PoolParameters,)),
    "ggml_free": (None, (_Pointer,)),
    "ggml_tensor_overhead": (_Size, ()),
    "ggml_new_tensor_2d": (_Pointer, (_Pointer, ctypes.c_int, _Long, _Long)),
    "ggml_new_tensor_3d": (_Pointer, (_Pointer, ctypes.c_int, _Long, _Long, _Long)),
    "ggml_mul_mat": (_Pointer, (_Pointer, _Pointer, _Pointer)),
    "ggml_mul_mat_id": (_Pointer, (_Pointer, _Pointer, _Pointer, _Pointer)),
    "ggml_get_name": (ctypes.c_char_p, (_Pointer,)),
    "ggml_op_desc": (ctypes.c_char_p, (_Pointer,)),
    "ggml_nbytes": (_Size, (_Pointer,)),
    "ggml_backend_tensor_get": (None, (_Pointer, _Pointer, _Size, _Size)),
}
_POOL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorMembers:
    """The places of members of llama.cpp's tensors, in bytes from the beginning, and the bytes that have them all."""

    kind: int
    shape: int
    strides: int
    sources: int
    size_bytes: int


def tensor_members(library: Any) -> TensorMembers:
    """Return where the members of tensors are, found with tensors of odd shapes. Raises UnknownInterface."""
    declare(library, _TENSOR_FUNCTIONS)
    size = int(library.ggml_tensor_overhead())
    pool = library.ggml_init(_PoolParameters(_POOL_BYTES, None, True))
    if not pool or not 64 <= size <= _POOL_BYTES // 64:
        raise UnknownInterface("this version of llama.cpp does not let its operations be read: it has other tensors")
    try:
        weight, stack = (library.ggml_new_tensor_3d(pool, _F16, 7, 11, count) for count in (3, 5))
        inputs, rows = (library.ggml_new_tensor_3d(pool, _F32, 7, *shape) for shape in ((13, 6), (2, 17)))
        chosen = library.ggml_new_tensor_2d(pool, _I32, 2, 17)
        product = library.ggml_mul_mat(pool, weight, inputs)
        by_expert = library.ggml_mul_mat_id(pool, stack, rows, chosen)
        all_bytes = {tensor: ctypes.string_at(tensor, size) for tensor in (weight, inputs, chosen, product, by_expert)}
    finally:
        library.ggml_free(pool)

    def common(step: int, wanted: Mapping[int, bytes]) -> int:
        for place in range(0, size, step):
            if all(all_bytes[tensor][place:].startswith(data) for tensor, data in wanted.items()):
                return place
        raise UnknownInterface("this version of llama.cpp does not let its operations be read: it has other tensors")

    shapes = {weight: (7, 11, 3, 1), inputs: (7, 13, 6, 1), product: (11, 13, 6, 1), by_expert: (11, 2, 17, 1)}
    strides = {weight: (2, 14, 154, 462), inputs: (4, 28, 364, 2184), product: (4, 44, 572, 3432)}
    kinds = {weight: _F16, inputs: _F32, chosen: _I32, product: _F32}
    sources = {product: (weight, inputs, 0), by_expert: (stack, rows, chosen)}
    return TensorMembers(
        common(4, {tensor: struct.pack("<i", kind) for tensor, kind in kinds.items()}),
        common(8, {tensor: struct.pack("<4q", *shape) for tensor, shape in shapes.items()}),
        common(8, {tensor: struct.pack("<4Q", *steps) for tensor, steps in strides.items()}),
        common(8, {tensor: struct.pack("<3Q", *pointers) for tensor, pointers in sources.items()}),
        size,
    )


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of llama.cpp's graph."""

    address: int
    kind: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sources: tuple[int, ...]


class ProductObserver:
    """Sees the operations of a graph, and sums the squares of what the model's weights are multiplied by.

    Raises UnknownInterface if llama.cpp's tensors are others than expected.
    """

    def __init__(self, library: Any, weights: Weights) -> None:
        self.sums: dict[str, InputSums] = {}
        """By the name of the weight."""
        self._library, self._members = library, tensor_members(library)
        self._places = {place.name: place for place in matrix_places(weights)}
        self._spots: Mapping[str, Spot] = weights.spots
        self._is_checked = False
        self._error: Exception | None = None

    def __call__(self, tensor: int, is_question: bool) -> bool:
        """Return whether an operation is wanted, or, after it was computed, whether to go on."""
        try:
            kind = self._library.ggml_op_desc(tensor)
            if kind not in (_MULTIPLIED, _MULTIPLIED_BY_EXPERT):
                return not is_question
            result = self._tensor(tensor)
            place = self._places.get(self._weight_name(result.sources[0]))
            if is_question or place is None:
                return place is not None
            self._add(place, result, by_expert=kind == _MULTIPLIED_BY_EXPERT)
        except Exception as error:  # noqa: BLE001 - nothing may be raised through llama.cpp; `check` raises it
            self._error = self._error or error
            return False
        return True

    def check(self, tokens: int) -> None:
        """Raise the error of the last calls, and UnknownInterface if there was none for a chunk of `tokens`."""
        if isinstance(self._error, ValueError | TypeError | struct.error):  # an array that lies outside of its bytes
            raise UnknownInterface(f"llama.cpp's operations cannot be read: {self._error}") from self._error
        if self._error is not None:
            raise self._error
        if tokens and not self.sums:
            raise UnknownInterface("llama.cpp does not let its operations be read: it does not call back")

    def _tensor(self, address: int) -> GraphTensor:
        data, members = ctypes.string_at(address, self._members.size_bytes), self._members
        return GraphTensor(
            address,
            struct.unpack_from("<i", data, members.kind)[0],
            struct.unpack_from("<4q", data, members.shape),
            struct.unpack_from("<4Q", data, members.strides),
            struct.unpack_from("<3Q", data, members.sources),
        )

    def _weight_name(self, address: int) -> str:
        """Return the name of a tensor; that of a copy on a device has marks around it."""
        name = (self._library.ggml_get_name(address) or b"")[:NAME_MAX_BYTES].decode("utf-8", "replace")
        return str(name.split("#")[1] if "#" in name else name)

    def _values(self, tensor: GraphTensor, kind: int, form: str) -> NDArray[Any]:
        """Return a copy of the values of a tensor, with the row in the last dimension."""
        if tensor.kind != kind:
            raise UnknownInterface(f"llama.cpp multiplies values of the tensor type {tensor.kind}")
        size = int(self._library.ggml_nbytes(tensor.address))
        data = np.empty(size, np.uint8)
        self._library.ggml_backend_tensor_get(tensor.address, data.ctypes.data, 0, size)
        return np.ndarray(tensor.shape[::-1], form, data, strides=tensor.strides[::-1])

    def _add(self, place: MatrixPlace, result: GraphTensor, *, by_expert: bool) -> None:
        """Add the inputs of one product."""
        inputs = self._tensor(result.sources[1])
        values = self._values(inputs, _F32, "<f4")
        if values.shape[-1] != place.row:
            raise UnknownInterface(f"the inputs of {place.name} have {values.shape[-1]} columns, not {place.row}")
        if by_expert:
            chosen = self._values(self._tensor(result.sources[2]), _I32, "<i4")[0, 0]
            sums, counts = sums_by_expert(values[0], chosen, place.matrices)
        else:
            if not self._is_checked and place.matrices == 1:
                self._check_product(place, values, self._values(result, _F32, "<f4"))
            sums, counts = sums_of_all(values, place.matrices)
        if not np.isfinite(sums).all():
            raise ModelRefused(f"values that are multiplied with {place.name} are not finite numbers")
        known = self.sums.setdefault(place.name, InputSums(np.zeros_like(sums), np.zeros_like(counts)))
        known.add(sums, counts)

    def _check_product(self, place: MatrixPlace, values: NDArray[np.float32], products: NDArray[np.float32]) -> None:
        """Raise UnknownInterface if the first rows of a weight give other products than llama.cpp computed."""
        spot = self._spots[place.name]
        if not quants.can_dequantize(spot.info.dtype):
            return
        rows = min(CHECKED_ROWS, spot.info.shape[1])
        data = spot.file.read_at(spot.offset, spot.info.dtype.size_bytes(rows * place.row))
        weight = quants.decode(data, spot.info.dtype).reshape(rows, place.row)
        own = values.reshape(-1, place.row) @ weight.T
        difference = own - products.reshape(len(own), -1)[:, :rows]
        if not np.linalg.norm(difference) <= CHECK_ERROR_MAX * np.linalg.norm(own):
            raise UnknownInterface(f"llama.cpp's products with {place.name} are not those of the values that are read")
        self._is_checked = True


def sums_of_all(values: NDArray[np.float32], matrices: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums of squares by matrix and column, and the number of tokens, where every token uses all matrices.

    `values` has the inputs of the matrices in turn in its first two dimensions, tokens in the third.
    """
    row = values.shape[-1]
    if matrices == 1:
        flat = values.reshape(-1, row)
        return _squares(flat)[np.newaxis], np.array([float(len(flat))])
    by_matrix = values.reshape(-1, matrices, values.shape[-2], row)
    sums = [_squares(by_matrix[:, matrix].reshape(-1, row)) for matrix in range(matrices)]
    return np.array(sums), np.array([float(by_matrix.shape[0] * by_matrix.shape[2])])


def sums_by_expert(
    values: NDArray[np.float32], chosen: NDArray[np.int32], experts: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums of squares by expert and column, and the number of tokens of each expert.

    `chosen` has the experts of each token. `values` has for each token one row, or one for each of its experts.
    """
    tokens, used = chosen.shape
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < experts:
        raise UnknownInterface("llama.cpp's choice of experts cannot be read")
    rows = np.arange(tokens)[:, np.newaxis] * values.shape[1] + np.arange(used)[np.newaxis] % values.shape[1]
    flat, sums = values.reshape(-1, values.shape[-1]), np.zeros((experts, values.shape[-1]))
    counts = np.bincount(chosen.reshape(-1), minlength=experts).astype(np.float64)
    order = np.argsort(chosen.reshape(-1), kind="stable")
    parts = np.split(rows.reshape(-1)[order], np.cumsum(counts[:-1]).astype(int))
    for expert, part in enumerate(parts):
        if len(part):
            sums[expert] = _squares(flat[part])
    return sums, counts


def _squares(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the sum of the squares of each column."""
    sums: NDArray[np.float32] = np.einsum("ij,ij->j", rows, rows)
    return sums.astype(np.float64)


if __name__ == "__main__":
    main()
