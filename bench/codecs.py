"""Measure stored size (share of the plain size) and speed (MB/s) of our codecs, zstd -3, ZipNN and blosc2.

    python -m bench.codecs                  the types that the `gguf` package can write
    python -m bench.codecs A.gguf B.gguf    also the types of these files

Every method gets the same chunks of about 4 MiB of weight-like values and one thread. Rates are plain megabytes per
second of processor time, which other processes disturb little; rounds alternate (A B A B) and the median is shown.
"organ" decodes and compares everything that it encodes, as an ingest does; "organ, unproven" does not, like the other
methods. Peers: `pip install '.[bench]'`; a missing one is named and left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from gguf import GGMLQuantizationType, GGUFReader, quants
from numpy.typing import NDArray

from organs.registry.digest import digest_of
from organs.registry.gguf.types import DTYPES, DType, dtype_by_name
from organs.registry.store.codec import Codec, chunks, codec_for, encode_chunk, pack_head, parse_head, worth_encoding
from organs.registry.store.codec.chunks import EncodedChunk, decode_chunk

KERNEL_TYPES = ("BF16", "F16", "F32", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")
FILE_TYPES = ("Q2_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")
ZIPNN_TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
ROW_ELEMENTS = 4096
MEGA = 1_000_000


@dataclass(frozen=True, slots=True)
class Method:
    """A way to store a chunk, given by its number: encoding to stored bytes, and decoding."""

    name: str
    encode: Callable[[int], Any]
    decode: Callable[[int, Any], object]
    size_bytes: Callable[[Any], int]
    overhead_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """Stored bytes per plain byte, and plain megabytes per second of processor time."""

    dtype: str
    method: str
    stored_ratio: float
    encode_mb_per_s: float
    decode_mb_per_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.codecs", description="Stored size and speed of each codec, with peers."
    )
    parser.add_argument(
        "files", nargs="*", type=Path, help="GGUF files whose tensors are used, for the types that they have"
    )
    parser.add_argument("--types", nargs="+", default=None, help="tensor types (default: all available)")
    parser.add_argument("--mib", type=int, default=32, help="plain MiB of each type (default 32)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object for each line")
    options = parser.parse_args(arguments)
    for name in ("zipnn", "blosc2"):
        if _module(name) is None:
            print(f"{name} is not installed; left out", file=sys.stderr)
    for dtype_name in options.types or (*KERNEL_TYPES, *FILE_TYPES):
        plain = _plain(dtype_name, options.mib << 20, options.files)
        if plain is None:
            print(f"{dtype_name}: no kernel for this type, and no given file has it", file=sys.stderr)
            continue
        results = _measure(dtype_by_name(dtype_name), plain, options.rounds)
        _show(results, len(plain), as_json=options.json)
        if dtype_name == "BF16":
            _show_threads(plain, options.rounds, as_json=options.json)
    return 0


def _plain(dtype_name: str, size_bytes: int, files: Sequence[Path]) -> bytes | None:
    """Return generated weights, encoded; or tensors from the files, for types that no kernel writes."""
    dtype = dtype_by_name(dtype_name)
    if dtype_name not in KERNEL_TYPES:
        tensors = (tensor for file in files for tensor in GGUFReader(file).tensors)
        tensors_by_data = {tensor.data.tobytes(): None for tensor in tensors if tensor.tensor_type.name == dtype_name}
        return b"".join(tensors_by_data)[: size_bytes // dtype.block_bytes * dtype.block_bytes] or None
    rows = size_bytes * dtype.block_elements // dtype.block_bytes // ROW_ELEMENTS
    generator = np.random.default_rng(0)
    width = np.exp(generator.normal(np.log(0.02), 0.3, (rows, 1)))
    values: NDArray[np.float32] = (generator.standard_normal((rows, ROW_ELEMENTS)) * width).astype(np.float32)
    encoded: bytes = quants.quantize(values, GGMLQuantizationType[dtype_name]).tobytes()
    return encoded


def _measure(dtype: DType, plain: bytes, rounds: int) -> list[Result]:
    codec = codec_for(dtype.name)
    pieces = [plain[start : start + codec.chunk_bytes] for start in range(0, len(plain), codec.chunk_bytes)]
    methods = _methods(codec, pieces)
    seconds: dict[str, list[tuple[float, float]]] = {method.name: [] for method in methods}
    sizes: dict[str, int] = {}
    for _ in range(rounds):
        for method in methods:
            encode_seconds = decode_seconds = 0.0
            sizes[method.name] = method.overhead_bytes
            for index in range(len(pieces)):
                start = time.process_time()
                encoded = method.encode(index)
                middle = time.process_time()
                method.decode(index, encoded)
                decode_seconds += time.process_time() - middle
                encode_seconds += middle - start
                sizes[method.name] += method.size_bytes(encoded)
            seconds[method.name].append((encode_seconds, decode_seconds))
    return [
        Result(
            dtype.name,
            method.name,
            sizes[method.name] / len(plain),
            len(plain) / statistics.median(encode for encode, _ in seconds[method.name]) / MEGA,
            len(plain) / statistics.median(decode for _, decode in seconds[method.name]) / MEGA,
        )
        for method in methods
    ]


def _methods(codec: Codec, pieces: list[bytes]) -> list[Method]:
    compressor, decompressor = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
    methods = [
        _organ("organ", codec, pieces, proven=True),
        _organ("organ, unproven", codec, pieces, proven=False),
        _peer("zstd -3", pieces, compressor.compress, decompressor.decompress),
    ]
    zipnn, blosc2 = _module("zipnn"), _module("blosc2")
    assert codec.dtype is not None
    if zipnn is not None and codec.dtype.name in ZIPNN_TYPES:
        coder = zipnn.ZipNN(bytearray_dtype=ZIPNN_TYPES[codec.dtype.name], input_format="byte", threads=1)
        # ZipNN reorders bits in its input buffer, so it gets a copy.
        methods.append(_peer("ZipNN", pieces, lambda piece: coder.compress(bytearray(piece)), coder.decompress))
    if blosc2 is not None:
        for name, kind in (("blosc2 shuffle", "SHUFFLE"), ("blosc2 bitshuffle", "BITSHUFFLE")):
            settings = {
                "codec": blosc2.Codec.ZSTD,
                "clevel": 3,
                "typesize": codec.block_bytes,
                "filters": [blosc2.Filter[kind]],
                "nthreads": 1,
            }
            methods.append(_peer(name, pieces, _compress2(blosc2, settings), _decompress2(blosc2)))
    return methods


def _organ(name: str, codec: Codec, pieces: list[bytes], *, proven: bool) -> Method:
    """Return our own method: the codec, or raw if the first chunk decides so."""
    used = codec if worth_encoding(encode_chunk(codec, pieces[0])) else codec.kept_raw()
    encoded = [encode_chunk(used, piece) for piece in pieces]
    plain_size = sum(map(len, pieces))
    head = pack_head(used, digest_of(b""), plain_size, [chunk.entry for chunk in encoded])
    stored_size = len(head) + sum(chunk.stored_size_bytes for chunk in encoded)
    parsed = parse_head(head, digest=digest_of(b""), plain_size_bytes=plain_size, stored_size_bytes=stored_size)
    stored = [b"".join(chunk.pieces) for chunk in encoded]
    out = memoryview(bytearray(codec.chunk_bytes))

    def encode(index: int) -> EncodedChunk:
        if proven:
            return encode_chunk(used, pieces[index])
        with _without_proof():
            return encode_chunk(used, pieces[index])

    def decode(index: int, _: EncodedChunk) -> None:
        decode_chunk(used, parsed.chunks[index], stored[index], out[: len(pieces[index])])

    return Method(name, encode, decode, lambda chunk: chunk.stored_size_bytes, len(head))


@contextmanager
def _without_proof() -> Iterator[None]:
    """Return encoding alone, to show the cost of the proof. Only a benchmark may use this."""
    proof = chunks._prove
    chunks._prove = lambda *_: None
    try:
        yield
    finally:
        chunks._prove = proof


def _peer(
    name: str, pieces: list[bytes], compress: Callable[[bytes], bytes], decompress: Callable[[bytes], bytes]
) -> Method:
    assert all(bytes(decompress(compress(piece))) == piece for piece in pieces), f"{name} does not give back its input"
    return Method(name, lambda index: compress(pieces[index]), lambda _, stored: decompress(stored), len)


def _compress2(blosc2: Any, settings: dict[str, Any]) -> Callable[[bytes], bytes]:
    return lambda piece: bytes(blosc2.compress2(piece, **settings))


def _decompress2(blosc2: Any) -> Callable[[bytes], bytes]:
    return lambda piece: bytes(blosc2.decompress2(piece, nthreads=1))


def _module(name: str) -> Any:
    """Return the module of a peer, or None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _show(results: list[Result], plain_size_bytes: int, *, as_json: bool) -> None:
    if as_json:
        for result in results:
            print(json.dumps(asdict(result)))
        return
    print(f"\n{results[0].dtype}, {plain_size_bytes / MEGA:.1f} MB         stored   encode MB/s   decode MB/s")
    for result in results:
        rates = f"{result.encode_mb_per_s:>11.0f}   {result.decode_mb_per_s:>11.0f}"
        print(f"  {result.method:<22} {result.stored_ratio:>8.4f}   {rates}")
    ratios = {result.method: result.stored_ratio for result in results}
    if "ZipNN" in ratios:
        print(f"  organ stores {ratios['organ'] / ratios['ZipNN']:.4f} of the bytes of ZipNN")


def _show_threads(plain: bytes, rounds: int, *, as_json: bool) -> None:
    """Print megabytes per elapsed second on one thread and on two. An idle machine of two cores is assumed."""
    codec = codec_for("BF16")
    pieces = [plain[start : start + codec.chunk_bytes] for start in range(0, len(plain), codec.chunk_bytes)]
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for threads in rates:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda piece: encode_chunk(codec, piece).entry, pieces[: 2 * threads]))
                start = time.perf_counter()
                list(pool.map(lambda piece: encode_chunk(codec, piece).entry, pieces))
                rates[threads].append(len(plain) / (time.perf_counter() - start) / MEGA)
    item, two = statistics.median(rates[1]), statistics.median(rates[2])
    if as_json:
        print(json.dumps({"dtype": "BF16", "encode_mb_per_s_one_thread": item, "encode_mb_per_s_two_threads": two}))
    else:
        print(
            f"  by the clock, proof included: {item:.0f} MB/s on one thread, {two:.0f} on two ({two / item:.2f} times)"
        )


assert all(name in {dtype.name for dtype in DTYPES.values()} for name in (*KERNEL_TYPES, *FILE_TYPES))

if __name__ == "__main__":
    raise SystemExit(main())
