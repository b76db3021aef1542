"""The GGUF container, pure: bytes in, values out, and back to the same bytes.

    types      the vocabulary of GGUF
    header     the header of a GGUF file as values: fields (metadata), tensors, where the data begins
    read       the strict reader: from the bytes of a file to a `Header`, or one BadGguf
    write      the exact writer: metadata and tensors to the bytes of a GGUF file, version 3
    split      split GGUF: shards `NAME-00001-of-00003.gguf` that together are one model
    tokenizer  vocabularies that crash loaders
    quants     values of a tensor type, and back

Header, metadata, tensor, alignment, padding and shard mean what the GGUF specification says.
"""

from organs.registry.gguf.header import (
    ByteSource,
    Field,
    Header,
    HeaderSource,
    MemorySource,
    TensorInfo,
    TensorSpec,
    padded,
)
from organs.registry.gguf.read import read_array, read_header
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
