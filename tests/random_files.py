"""Random GGUF files, valid and damaged, for hypothesis."""

from __future__ import annotations

import string

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from organs.registry.gguf import DType, KeyValue, TensorSpec, ValueType
from organs.registry.gguf.types import DTYPES
from tests.gguf_files import file_bytes

PATIENT = settings(deadline=None, max_examples=60)
"""Without a deadline, because the machine may be busy."""
BESIDE_FIXTURES = settings(PATIENT, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
"""For examples that share a fixture of the test."""

ALIGNMENTS = (1, 8, 16, 32, 64, 128, 4096)

_RANGES: dict[ValueType, tuple[int, int]] = {
    ValueType.UINT8: (0, 2**8 - 1),
    ValueType.INT8: (-(2**7), 2**7 - 1),
    ValueType.UINT16: (0, 2**16 - 1),
    ValueType.INT16: (-(2**15), 2**15 - 1),
    ValueType.UINT32: (0, 2**32 - 1),
    ValueType.INT32: (-(2**31), 2**31 - 1),
    ValueType.UINT64: (0, 2**64 - 1),
    ValueType.INT64: (-(2**63), 2**63 - 1),
}
_ELEMENTS: dict[ValueType, st.SearchStrategy[object]] = {
    **{kind: st.integers(low, high) for kind, (low, high) in _RANGES.items()},
    ValueType.FLOAT32: st.floats(width=32),
    ValueType.FLOAT64: st.floats(),
    ValueType.BOOL: st.booleans(),
    ValueType.STRING: st.one_of(st.binary(max_size=40), st.text(max_size=20).map(lambda text: text.encode())),
}
_PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " "
_INTERESTING = (0, 1, 2, 3, 5, 8, 9, 31, 32, 64, 2**16, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def keys() -> st.SearchStrategy[str]:
    """Generate metadata keys: printable ASCII, except the alignment, which the writer adds itself."""
    return st.text(_PRINTABLE, min_size=1, max_size=30).filter(lambda key: key != "general.alignment")


def entries(key: str) -> st.SearchStrategy[KeyValue]:
    """Generate a metadata entry of any type under `key`."""
    scalars = st.sampled_from(list(_ELEMENTS)).flatmap(
        lambda kind: _ELEMENTS[kind].map(lambda value: KeyValue(key, kind, value))  # type: ignore[arg-type]
    )
    arrays = st.sampled_from(list(_ELEMENTS)).flatmap(
        lambda kind: st.lists(_ELEMENTS[kind], max_size=12).map(
            lambda values: KeyValue(key, ValueType.ARRAY, values, kind)  # type: ignore[arg-type]
        )
    )
    return scalars | arrays


def metadata() -> st.SearchStrategy[list[KeyValue]]:
    """Generate up to eight entries with different keys."""
    return st.lists(keys(), unique=True, max_size=8).flatmap(
        lambda names: st.tuples(*(entries(name) for name in names)).map(list)
    )


@st.composite
def shapes(draw: st.DrawFn, dtype: DType) -> tuple[int, ...]:
    """Generate one to four small dimensions; the first is a whole number of blocks."""
    row = draw(st.integers(1, 3)) * dtype.block_elements
    return (row, *draw(st.lists(st.integers(1, 3), max_size=3)))


@st.composite
def tensors(draw: st.DrawFn) -> list[tuple[TensorSpec, bytes]]:
    """Generate up to five tensors with different names, of any dtype."""
    names = draw(st.lists(st.text(_PRINTABLE, min_size=1, max_size=63), unique=True, max_size=5))
    drawn = []
    for name in names:
        dtype = draw(st.sampled_from(list(DTYPES.values())))
        spec = TensorSpec(name, draw(shapes(dtype)), dtype)
        fill = draw(st.binary(min_size=1, max_size=8))
        drawn.append((spec, (fill * (spec.size_bytes // len(fill) + 1))[: spec.size_bytes]))
    return drawn


def files() -> st.SearchStrategy[bytes]:
    """Generate complete valid files."""
    return st.builds(file_bytes, metadata(), tensors(), st.sampled_from(ALIGNMENTS))


@st.composite
def damaged(draw: st.DrawFn, originals: st.SearchStrategy[bytes]) -> bytes:
    """Generate one of `originals` with a few parts overwritten, removed, repeated or truncated."""
    data = bytearray(draw(originals))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        act = draw(st.sampled_from(("flip", "number", "remove", "repeat", "truncate", "append")))
        if act == "flip" and place < len(data):
            data[place] ^= draw(st.integers(1, 255))
        elif act == "number":
            width = draw(st.sampled_from((4, 8)))
            number = draw(st.sampled_from(_INTERESTING)) % 2 ** (8 * width)
            data[place : place + width] = number.to_bytes(width, "little")
        elif act == "remove":
            del data[place : place + draw(st.integers(1, 40))]
        elif act == "repeat":
            data[place:place] = data[place : place + draw(st.integers(1, 40))]
        elif act == "truncate":
            del data[place:]
        elif act == "append":
            data += draw(st.binary(max_size=64))
    return bytes(data)
