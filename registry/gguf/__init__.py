"""The GGUF container, pure: bytes in, values out, and back to the same bytes.

    types       value types, dtypes with their block sizes, the limits
    source      where bytes come from (a protocol; files are opened elsewhere)
    cursor      a bounded window over a source
    header      Header, Field, TensorInfo: what a file says
    read        the strict reader
    write       the exact writer
    pieces      the values that are kept by themselves, and all as text for reading
    split       several shards as one model
    shards      one model as several shards
    tokenizer   oddities of a vocabulary that crash loaders
    quants      values of a tensor type and back, by the `gguf` package's kernels

Header, metadata, tensor, alignment, padding and shard mean what the GGUF specification says.
"""

from organs.registry.gguf.header import Field, Header, TensorInfo, TensorSpec, padded
from organs.registry.gguf.read import read_array, read_header
from organs.registry.gguf.source import ByteSource, HeaderSource, MemorySource
from organs.registry.gguf.types import DType, ValueType, dtype_by_id, dtype_by_name
from organs.registry.gguf.write import KeyValue, RawKeyValue, carry_over, encode_header, write_file

__all__ = [
    "ByteSource",
    "DType",
    "Field",
    "Header",
    "HeaderSource",
    "KeyValue",
    "MemorySource",
    "RawKeyValue",
    "TensorInfo",
    "TensorSpec",
    "ValueType",
    "carry_over",
    "dtype_by_id",
    "dtype_by_name",
    "encode_header",
    "padded",
    "read_array",
    "read_header",
    "write_file",
]
