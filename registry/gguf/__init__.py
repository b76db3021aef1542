"""The GGUF file format: functions without side effects that read and write its bytes. Writing gives the same bytes.

    types      the vocabulary of GGUF: types of values, tensors and files
    header     the header of a GGUF file as values: fields (metadata), tensors, the offset of the data
    read       the strict reader: returns a `Header` or raises BadGguf
    write      the writer: metadata and tensors as the bytes of a GGUF file, version 3
    blocks     the blocks that a header states, and those that the tensors are in
    split      split GGUF: shards `NAME-00001-of-00003.gguf` that together are one model
    tokenizer  checks of vocabularies: those that crash loaders, and those that do not fit
    faults     a fault of a file: its code and its sentence
    loading    what llama.cpp needs of a header and of the tensors
    quants     decoding and encoding the values of a tensor type
    importance importance matrices, by which encoders weigh errors
    mixes      the mixes of tensor types of llama.cpp: which tensor gets which type

Header, metadata, tensor, alignment, padding and shard are terms of the GGUF specification.
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
