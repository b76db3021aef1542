"""The GGUF container, pure: bytes in, values out, and back to the same bytes.

    types      the vocabulary of GGUF
    source     where bytes come from: anything with a name, a size and reads at an offset
    header     what the front of a GGUF file says, as values
    read       the strict reader: from the bytes of a file to a `Header`, or one BadGguf
    write      the exact writer: metadata and tensors to the bytes of a GGUF file, version 3
    pieces     a header in pieces: which of its values are large enough to be kept by themselves
    split      split GGUF: shards `NAME-00001-of-00003.gguf` that together are one model
    tokenizer  vocabularies that crash loaders
    quants     values of a tensor type, and back

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
