"""Store families of models, and compare the sizes with those of other stores.

    python -m bench.families                         train what is missing, store everything, print the tables
    python -m bench.families --family light          one family
    python -m bench.families --files-only            only make the files, and print how much they differ
    python -m bench.families --orders 8              ingest all files in 8 orders, and compare the sizes after repack
    python -m bench.families --speeds                sizes and speeds of each encoding, on one core

It needs torch, the runtime and the other stores. Use an environment of its own; the programs `borg` and `restic` are
left out if they are not installed:

    python -m venv /tmp/families && /tmp/families/bin/pip install -e . --group bench-families

A family is a base, two full fine-tunes, a merged LoRA, and a fine-tune of four of its eight blocks. The script of the
zoo trains them; each starts from the base in BF16, as published fine-tunes do, and is rounded to BF16. Both families
have the same base. In the family `light` most of the values of BF16 stay what they were; in `heavy` hardly one does.
llama.cpp's own code quantises the BF16 files; the mix of types of Q4_K_M is that of llama.cpp. Weights, texts and files
stay in the working folder, so a second run only measures.

Each contender stores the same files, in the same order, in an empty store. The tables show stored bytes per plain byte.

    borg       zstd,3, without encryption, one archive: the folder of the repository
    restic     --compression max: the folder of the repository
    Xet        hf_xet with a store on this disk (`local://`), a commit for each file, because it finds no chunk again
               within a commit: xorbs and shards
    ZipNN      each different tensor once, by ZipNN, zstd -3 or raw, whichever is smallest; headers by zstd -3
    ZipLLM     as ZipNN; a BF16 tensor also by BitX, its difference from the tensor of the same name and shape in the
               first file that has one: exclusive or, exponents apart from signs and mantissas, each by zstd -3
    XOR        as ZipLLM, with the exclusive or for every type: more than ZipLLM does
    organ      `organ ingest`, then `organ repack`: files of blobs, and the blobs that the database holds; each file is
               assembled again and compared
"""

from __future__ import annotations

import argparse
import ctypes
import filecmp
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from bench.ingest import folder_bytes
from organs.registry.gguf import (
    DType,
    KeyValue,
    TensorInfo,
    TensorSpec,
    ValueType,
    carry_over,
    dtype_by_name,
    read_header,
    write_file,
)
from organs.registry.gguf.quants import dequantize, quantize
from organs.registry.input_files import FileSource
from organs.registry.store.codec import (
    BlobChunk,
    Codec,
    can_derive,
    codec_for,
    decode_chunk,
    delta_codec,
    derive_codec,
    encode_chunk,
    fast,
)

ROOT = Path(__file__).parents[1]
FAMILIES = ("light", "heavy")
PARTS = {"base": "", "code": "-Code", "prose": "-Prose", "lora": "-LoRA", "four-blocks": "-FourBlocks"}
"""Parts of a family, and how the script of the zoo calls them in the names of files."""
FAMILY = ("base", "code", "prose", "lora")
LADDER = ("BF16", "F16", "Q8_0", "Q6_K", "Q4_K_M")
OF_ALL = ("BF16", "Q8_0", "Q4_K_M")
FILE_TYPES = {"F16": 1, "Q8_0": 7, "Q4_K_M": 15, "Q6_K": 18, "BF16": 32}
"""Values of `general.file_type`."""
QUANTIZATION_VERSION = 2

SETS: dict[str, tuple[str, ...]] = {
    "4 x BF16": tuple(f"{part}-BF16" for part in FAMILY),
    "ladder": tuple(f"base-{encoding}" for encoding in LADDER),
    "4 x Q4_K_M": tuple(f"{part}-Q4_K_M" for part in FAMILY),
    "all 14": (
        *(f"base-{encoding}" for encoding in LADDER),
        *(f"{part}-{encoding}" for part in FAMILY[1:] for encoding in OF_ALL),
    ),
    "four blocks": ("base-BF16", "four-blocks-BF16"),
}
"""The files of each set, in the order in which they are stored."""

ZIPNN_TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
ZSTD_LEVEL = 3
BLOCK = re.compile(r"blk\.(\d+)\.")


def main() -> None:
    """Make the files, store them with each contender, and print the tables and the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = Path(tempfile.gettempdir()) / "organ-registry-zoo"
    parser.add_argument("--work", type=Path, default=work, help="weights, texts and files (default: the zoo's cache)")
    parser.add_argument("--family", choices=FAMILIES, help="only this family")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--orders", type=int, default=0, help="instead: ingest all files in so many orders")
    parser.add_argument("--speeds", action="store_true", help="instead: encode and decode with each encoding")
    parser.add_argument("--files-only", action="store_true", help="store nothing")
    arguments = parser.parse_args()
    for family in [arguments.family] if arguments.family else FAMILIES:
        files = family_files(arguments.work, family)
        print(f"\n=== {family}: {len(files)} files, {sum(path.stat().st_size for path in files.values()) / 1e6:.1f} MB")
        show_differences(files)
        with tempfile.TemporaryDirectory(prefix="organ-families-") as name:
            if arguments.speeds:
                show_speeds(files)
            elif arguments.orders:
                show_orders(Path(name), files, arguments.orders)
            elif not arguments.files_only:
                results = measure(Path(name), files, arguments.contenders)
                show_table(results)
                show_limits(family, results)
                if "organ" in arguments.contenders:
                    show_untouched(Path(name), files)


# The files of a family


def family_files(work: Path, family: str) -> dict[str, Path]:
    """Return the files of a family by part and encoding, as `base-Q4_K_M`; train and quantise what is missing."""
    folder = work / "families" / family
    names = dict.fromkeys(name for files in SETS.values() for name in files)
    files = {name: folder / f"{name}.gguf" for name in names}
    if all(path.exists() for path in files.values()):
        return files
    trained = work / family
    sources = {
        part: trained / f"{family.capitalize()}-16M{finetune}-v1.0-BF16.gguf" for part, finetune in PARTS.items()
    }
    if not all(path.exists() for path in sources.values()):
        command = [sys.executable, str(ROOT / "examples" / "zoo" / "train.py"), "--family", family, "--work", str(work)]
        subprocess.run(command, env=_environment(), check=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        part, _, encoding = name.rpartition("-")
        if encoding == "BF16":
            shutil.copyfile(sources[part], path)
        else:
            quantise(sources[part], path, encoding)
    return files


def quantise(source: Path, target: Path, encoding: str) -> None:
    """Write the BF16 model `source` in another encoding: the metadata as they are, the tensors as llama.cpp does."""
    with FileSource(source) as file:
        header = read_header(file)
        replaced = ("general.file_type", "general.quantization_version")
        metadata = [carry_over(file, field) for field in header.fields if field.key not in replaced]
        entries = [KeyValue("general.file_type", ValueType.UINT32, FILE_TYPES[encoding])]
        if encoding.startswith("Q"):
            entries.append(KeyValue("general.quantization_version", ValueType.UINT32, QUANTIZATION_VERSION))
        blocks = 1 + max(int(match[1]) for tensor in header.tensors if (match := BLOCK.match(tensor.name)))

        def encoded(tensor: TensorInfo) -> tuple[TensorSpec, bytes]:
            data = file.read_at(header.data_offset + tensor.offset, tensor.size_bytes)
            dtype = tensor.dtype
            if dtype.name == "BF16":
                dtype = dtype_by_name(tensor_type(encoding, tensor.name, blocks))
                data = encode(dequantize(data, tensor.dtype), dtype, tensor.shape[0])
            return TensorSpec(tensor.name, tensor.shape, dtype), data

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # the runtime releases the interpreter's lock
            tensors = list(pool.map(encoded, header.tensors))
    with target.open("wb") as stream:
        write_file(stream, [*metadata, *entries], tensors)


def tensor_type(encoding: str, name: str, blocks: int) -> str:
    """Return the type of a matrix in a file of a model with tied embeddings, as llama.cpp chooses it.

    Q4_K_M has Q6_K for the embedding, which is also the output, and for `attn_v` and `ffn_down` in the first and the
    last eighth of the blocks and in every third block between.
    """
    if encoding != "Q4_K_M":
        return encoding
    match = BLOCK.match(name)
    if match is None:
        return "Q6_K"
    block, eighth = int(match[1]), blocks // 8
    more_bits = block < eighth or block >= 7 * blocks // 8 or (block - eighth) % 3 == 2
    return "Q6_K" if more_bits and name.split(".")[2] in ("attn_v", "ffn_down") else "Q4_K"


def encode(values: NDArray[np.float32], dtype: DType, row_elements: int) -> bytes:
    """Return a matrix in `dtype`; quantised by the runtime's `ggml_quantize_chunk` without an importance matrix."""
    if dtype.name == "F16":
        return quantize(values, dtype)
    assert row_elements % dtype.block_elements == 0
    encoded = ctypes.create_string_buffer(values.size // dtype.block_elements * dtype.block_bytes)
    plain = np.ascontiguousarray(values, np.float32)
    rows = values.size // row_elements
    pointer = plain.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    size = _runtime().ggml_quantize_chunk(dtype.id, pointer, encoded, 0, rows, row_elements, None)
    assert size == len(encoded), f"{size} bytes were written instead of {len(encoded)}"
    return encoded.raw


@cache
def _runtime() -> ctypes.CDLL:
    import xllamacpp

    folder = Path(xllamacpp.__file__).parent
    library = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))
    floats = ctypes.POINTER(ctypes.c_float)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = (
        ctypes.c_int, floats, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, floats,
    )  # fmt: skip
    return library


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file, with its bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    data: bytes


def read_tensors(path: Path) -> tuple[bytes, list[Tensor]]:
    """Return the header of a file, and its tensors."""
    with FileSource(path) as file:
        header = read_header(file)
        tensors = [
            Tensor(
                tensor.name,
                tensor.shape,
                tensor.dtype,
                bytes(file.read_at(header.data_offset + tensor.offset, tensor.size_bytes)),
            )
            for tensor in header.tensors
        ]
        return bytes(file.read_at(0, header.data_offset)), tensors


def show_differences(files: Mapping[str, Path]) -> None:
    """Print for each fine-tune how many values of its BF16 matrices are those of the base, and their correlation."""
    _, base = read_tensors(files["base-BF16"])
    for part in PARTS:
        if part == "base":
            continue
        _, tensors = read_tensors(files[f"{part}-BF16"])
        pairs = [(ours, theirs) for ours, theirs in zip(base, tensors, strict=True) if ours.dtype.name == "BF16"]
        bits = [np.frombuffer(b"".join(pair[side].data for pair in pairs), "<u2") for side in (0, 1)]
        values = [dequantize(side.tobytes(), pairs[0][0].dtype) for side in bits]
        equal = sum(ours.data == theirs.data for ours, theirs in zip(base, tensors, strict=True))
        print(
            f"{part:12} {np.mean(bits[0] == bits[1]):.1%} of the values as in the base, "
            f"correlation {np.corrcoef(values[0], values[1])[0, 1]:.5f}, {equal} of {len(base)} tensors equal"
        )


# Contenders: each stores files in an empty folder, and returns the stored bytes


def store_borg(folder: Path, files: Sequence[Path]) -> int:
    """Store in one archive of Borg."""
    repository = folder / "repository"
    environment = {"BORG_BASE_DIR": str(folder / "home"), "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
    _run(["borg", "init", "-e", "none", str(repository)], environment)
    _run(["borg", "create", "-C", "zstd,3", f"{repository}::all", *map(str, files)], environment)
    return folder_bytes(repository)


def store_restic(folder: Path, files: Sequence[Path]) -> int:
    """Store in one snapshot of restic."""
    repository = str(folder / "repository")
    environment = {"RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": str(folder / "cache")}
    _run(["restic", "init", "-r", repository], environment)
    _run(["restic", "backup", "-r", repository, "--compression", "max", *map(str, files)], environment)
    return folder_bytes(folder / "repository")


XET = (
    "import sys, hf_xet\n"
    "session = hf_xet.XetSession()\n"
    "for path in sys.argv[2:]:\n"
    "    with session.new_upload_commit(endpoint='local://' + sys.argv[1]) as commit:\n"
    "        commit.start_upload_file(path, sha256=hf_xet.COMPUTE_SHA256)\n"
)


def store_xet(folder: Path, files: Sequence[Path]) -> int:
    """Store by hf_xet; return the bytes of xorbs and shards, without the index of the local store."""
    store = folder / "store"
    environment = {"HF_HOME": str(folder / "home"), "HF_XET_CACHE": str(folder / "cache")}
    _run([sys.executable, "-c", XET, str(store), *map(str, files)], environment)
    paths = [path for kind in ("xorbs", "shards") for path in (store / "xet" / "xorbs" / kind).iterdir()]
    assert paths, "hf_xet keeps its local store elsewhere"
    return sum(path.stat().st_size for path in paths if path.suffix != ".tagset")


def store_zipnn(_: Path, files: Sequence[Path]) -> int:
    """Return the size of each different tensor by ZipNN."""
    return tensors_size(files, lambda tensor, base: alone_size(tensor))


def store_zipllm(_: Path, files: Sequence[Path]) -> int:
    """Return the size of each different tensor as ZipLLM stores it: BitX is for BF16."""

    def size(tensor: Tensor, base: Tensor | None) -> int:
        sizes = [alone_size(tensor)]
        if base is not None and tensor.dtype.name == "BF16":
            sizes.append(bitx_size(tensor.data, base.data))
        return min(sizes)

    return tensors_size(files, size)


def store_xor(_: Path, files: Sequence[Path]) -> int:
    """Return the size of each different tensor by ZipLLM, with the exclusive or for every type."""

    def size(tensor: Tensor, base: Tensor | None) -> int:
        sizes = [alone_size(tensor)]
        if base is not None:
            sizes.append(zstd_size(exclusive_or(tensor.data, base.data)))
            if tensor.dtype.name == "BF16":
                sizes.append(bitx_size(tensor.data, base.data))
        return min(sizes)

    return tensors_size(files, size)


def tensors_size(files: Sequence[Path], size_of: Callable[[Tensor, Tensor | None], int]) -> int:
    """Return the stored bytes of files whose different tensors are stored once each.

    `size_of` takes a tensor, and the first tensor with its name, shape and type, if there was one before.
    """
    stored = 0
    seen: set[bytes] = set()
    first: dict[tuple[str, tuple[int, ...], str], Tensor] = {}
    for path in files:
        header, tensors = read_tensors(path)
        stored += zstd_size(header)
        for tensor in tensors:
            key = (tensor.name, tensor.shape, tensor.dtype.name)
            if tensor.data not in seen:
                seen.add(tensor.data)
                stored += size_of(tensor, first.get(key))
            first.setdefault(key, tensor)
    return stored


@cache
def alone_size(tensor: Tensor) -> int:
    """Return the bytes of a tensor by itself: raw, zstd or ZipNN, whichever is smallest."""
    import zipnn

    sizes = [len(tensor.data), zstd_size(tensor.data)]
    if tensor.dtype.name in ZIPNN_TYPES:
        coder = zipnn.ZipNN(bytearray_dtype=ZIPNN_TYPES[tensor.dtype.name], input_format="byte", threads=1)
        sizes.append(len(coder.compress(bytearray(tensor.data))))  # it changes its input
    return min(sizes)


def bitx_size(data: bytes, base: bytes) -> int:
    """Return the bytes of a BF16 tensor by BitX."""
    bits = np.frombuffer(exclusive_or(data, base), "<u2")
    exponents = (bits >> 7).astype(np.uint8)
    others = (bits >> 8 & 0x80 | bits & 0x7F).astype(np.uint8)
    return zstd_size(exponents.tobytes()) + zstd_size(others.tobytes())


def exclusive_or(data: bytes, base: bytes) -> bytes:
    """Return the bits in which `data` and `base` differ."""
    return (np.frombuffer(data, np.uint8) ^ np.frombuffer(base, np.uint8)).tobytes()


def zstd_size(data: bytes) -> int:
    """Return the bytes of `data` by zstd."""
    return len(zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data))


def store_organ(folder: Path, files: Sequence[Path]) -> int:
    """Ingest into a new registry, repack, and check that each file comes back byte for byte."""
    home, copy = folder / HOME, folder / "copy.gguf"
    for path, name in zip(files, ingest(home, files), strict=True):
        _organ(home, "assemble", name, "-o", str(copy), "--quiet")
        if not filecmp.cmp(path, copy, shallow=False):
            raise SystemExit(f"{name} is not the file that was ingested")
        copy.unlink()
    return registry_bytes(home)


def ingest(home: Path, files: Sequence[Path]) -> list[str]:
    """Ingest files one after the other, repack if this version of the program can, and return the models' names."""
    names = _organ(home, "ingest", "--quiet", *map(str, files)).split()
    if _can_repack():
        _organ(home, "repack")
    return names


def _organ(home: Path, *arguments: str) -> str:
    return _run([sys.executable, "-m", "organs.cli", "--home", str(home), *arguments])


@cache
def _can_repack() -> bool:
    done = subprocess.run(
        [sys.executable, "-m", "organs.cli", "repack", "--help"], env=_environment(), capture_output=True, check=False
    )
    if done.returncode:
        print("this version has no command `repack`: sizes are those after the ingest", file=sys.stderr)
    return done.returncode == 0


def registry_bytes(home: Path) -> int:
    """Return the stored bytes of a registry: the files of its blobs, and the blobs in its database."""
    with closing(sqlite3.connect(home / "registry.sqlite3")) as database:
        (inline,) = database.execute("SELECT coalesce(sum(stored_bytes), 0) FROM blobs WHERE file IS NULL").fetchone()
    return int(inline) + folder_bytes(home / "blobs")


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    everything = _environment() | dict(environment or {})
    done = subprocess.run(command, env=everything, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])} failed: {done.stderr[-1000:]}")
    return done.stdout


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}


CONTENDERS: dict[str, Callable[[Path, Sequence[Path]], int]] = {
    "borg": store_borg,
    "restic": store_restic,
    "Xet": store_xet,
    "ZipNN": store_zipnn,
    "ZipLLM": store_zipllm,
    "XOR": store_xor,
    "organ": store_organ,
}
HOME = "home"
"""The folder in which `organ` stores, below the folder for a set."""
WHOLE_HOME = "organ, whole home"
"""The row of a table with the database and its indexes."""
PROGRAMS = ("borg", "restic")
"""Contenders that are programs of the same name."""


# Measuring and printing

Results = dict[str, dict[str, float]]
"""Stored bytes per plain byte by contender and set."""


def measure(folder: Path, files: Mapping[str, Path], contenders: Sequence[str]) -> Results:
    """Store every set with every contender that is installed."""
    results: Results = {}
    for contender in contenders:
        if contender in PROGRAMS and shutil.which(contender) is None:
            print(f"{contender} is not installed; left out", file=sys.stderr)
            continue
        results[contender] = {}
        for title, names in SETS.items():
            paths = [files[name] for name in names]
            with tempfile.TemporaryDirectory(dir=folder) as store:
                stored = CONTENDERS[contender](Path(store), paths)
                home_bytes = folder_bytes(Path(store) / HOME)
            plain = sum(path.stat().st_size for path in paths)
            results[contender][title] = stored / plain
            if contender == "organ":
                results.setdefault(WHOLE_HOME, {})[title] = home_bytes / plain
        print(f"{contender} done", file=sys.stderr, flush=True)
    return results


def show_table(results: Results) -> None:
    """Print a row for each contender."""
    print(f"\n| stored / plain | {' | '.join(SETS)} |\n|---|{'---:|' * len(SETS)}")
    for contender, sizes in results.items():
        print(f"| {contender} | {' | '.join(f'{sizes[title]:.3f}' for title in SETS)} |")
    # Speeds beside the sizes belong here: encode and decode MB/s a core of each encoding, with numba and without.


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of the size by `organ`, as a share of the plain size, or of the size by a peer."""

    title: str
    highest: float
    peer: str = ""


SMALLEST = "the smallest peer"

LIMITS: dict[str, tuple[Limit, ...]] = {
    "light": (
        Limit("4 x BF16", 0.25),
        Limit("ladder", 0.25),
        Limit("4 x Q4_K_M", 0.30),
        Limit("all 14", 0.15),
        Limit("all 14", 0.35, "ZipLLM"),
        Limit("all 14", 0.25, "Xet"),
    ),
    "heavy": (
        Limit("4 x BF16", 0.92, "ZipLLM"),
        Limit("all 14", 0.50, "ZipLLM"),
        *(Limit(title, 1.0, SMALLEST) for title in SETS),
    ),
}


def show_limits(family: str, results: Results) -> None:
    """Print each limit, the figure, and whether it is met; limits against peers that were left out are missing."""
    if "organ" not in results:
        return
    print(f"\n| limit of {family} | at most | is | |\n|---|---:|---:|---|")
    peers = {peer: sizes for peer, sizes in results.items() if peer not in ("organ", WHOLE_HOME)}
    for limit in LIMITS[family]:
        title, whole = limit.title, 1.0
        if limit.peer == SMALLEST and peers:
            peer = min(peers, key=lambda name: peers[name][limit.title])
            title, whole = f"{title}, of {SMALLEST}: {peer}", peers[peer][limit.title]
        elif limit.peer in peers:
            title, whole = f"{title}, of {limit.peer}", peers[limit.peer][limit.title]
        elif limit.peer:
            continue
        figure = results["organ"][limit.title] / whole
        verdict = "met" if figure <= limit.highest else "NOT MET"
        print(f"| {title} | {limit.highest:.2f} | {figure:.3f} | {verdict} |")


def show_untouched(folder: Path, files: Mapping[str, Path]) -> None:
    """Print the stored bytes that a fine-tune of four blocks adds to its base, and those of its untouched tensors."""
    base, child = files["base-BF16"], files["four-blocks-BF16"]
    homes = [folder / "base-alone", folder / "with-four-blocks"]
    ingest(homes[0], [base])
    ingest(homes[1], [base, child])
    before, after = (_blobs(home) for home in homes)
    of_base, of_child = (
        {sha256(tensor.data).hexdigest() for tensor in read_tensors(path)[1]} for path in (base, child)
    )
    untouched, changed = of_base & of_child, of_child - of_base
    assert untouched <= before.keys()
    cost = sum(after[digest] - before[digest] for digest in untouched)
    print(
        f"\nfour blocks: {len(changed)} tensors changed, {len(after.keys() - before.keys())} blobs added, "
        f"{registry_bytes(homes[1]) - registry_bytes(homes[0]):,} bytes; of them {cost:,} bytes for "
        f"{len(untouched)} untouched tensors: {'met' if cost <= 0 else 'NOT MET'}"
    )


def _blobs(home: Path) -> dict[str, int]:
    """Return the stored bytes of each blob by digest."""
    with closing(sqlite3.connect(home / "registry.sqlite3")) as database:
        return dict(database.execute("SELECT digest, stored_bytes FROM blobs").fetchall())


def show_orders(folder: Path, files: Mapping[str, Path], count: int) -> None:
    """Ingest all files in several orders, and print each size after repack relative to the smallest."""
    names = list(SETS["all 14"])
    orders = {
        "as listed": names,
        "reversed": names[::-1],
        "quantisations first": sorted(names, key=lambda name: not name.rpartition("-")[2].startswith("Q")),
        "fine-tunes first": sorted(names, key=lambda name: name.startswith("base")),
    }
    for seed in range(count - len(orders)):
        orders[f"random {seed}"] = random.Random(seed).sample(names, len(names))
    sizes: dict[str, int] = {}
    for title, order in list(orders.items())[:count]:
        with tempfile.TemporaryDirectory(dir=folder) as store:
            sizes[title] = store_organ(Path(store), [files[name] for name in order])
    smallest = min(sizes.values())
    print("\n| order | stored bytes | of the smallest |\n|---|---:|---:|")
    for title, size in sizes.items():
        print(f"| {title} | {size:,} | {size / smallest:.4f} |")
    worst = max(sizes.values()) / smallest
    print(f"\nany order within 2% of the best: {worst - 1:.2%}, {'met' if worst <= 1.02 else 'NOT MET'}")


# Speeds

PAIRS = (
    ("code-BF16", None),
    ("code-BF16", "base-BF16"),
    ("base-F16", "base-BF16"),
    ("code-Q8_0", None),
    ("code-Q8_0", "base-Q8_0"),
    ("code-Q8_0", "code-BF16"),
    ("base-Q6_K", "base-BF16"),
    ("code-Q4_K_M", None),
    ("code-Q4_K_M", "base-Q4_K_M"),
    ("code-Q4_K_M", "code-BF16"),
    ("code-Q4_K_M", "code-Q8_0"),
)
"""Files, and the files whose tensors are the parents of theirs."""
REPEATS = 5


def show_speeds(files: Mapping[str, Path]) -> None:
    """Print the size of each encoding, and the MB of plain bytes for each second of processor time.

    An encoding is timed with its check, as an ingest does it; with a parent, without the decoding of the parent.
    """
    print("\n| file | parent | codec | stored | encode, numpy | decode, numpy | encode, numba | decode, numba |")
    print(f"|---|---|---|{'---:|' * 5}")
    fast.warm()
    compiled = fast.kernels()
    for name, parent in PAIRS:
        for codec, plain, values in _chunks_of(files, name, parent):
            fast.use(None)
            share, *speeds = _speeds(codec, plain, values)
            fast.use(compiled)
            speeds += _speeds(codec, plain, values)[1:] if compiled is not None else ()
            cells = [f"{share:.3f}", *(f"{speed:,.0f}" for speed in speeds)]
            print(f"| {name} | {parent or ''} | {codec.name} | {' | '.join(cells)} |", flush=True)


def _chunks_of(
    files: Mapping[str, Path], name: str, parent: str | None
) -> Iterator[tuple[Codec, bytes, memoryview | None]]:
    """Yield a chunk of the matrices of each quantised or 16-bit type in a file, with the values of its parent."""
    own = {tensor.name: tensor for tensor in read_tensors(files[name])[1]}
    other = {} if parent is None else {tensor.name: tensor for tensor in read_tensors(files[parent])[1]}
    by_types: dict[tuple[str, str], list[str]] = {}
    for tensor in own.values():
        if len(tensor.shape) > 1:
            of_parent = other[tensor.name].dtype.name if parent else ""
            by_types.setdefault((tensor.dtype.name, of_parent), []).append(tensor.name)
    for (dtype, source), names in by_types.items():
        if parent is None:
            codec = codec_for(dtype)
        elif source == dtype:
            codec = delta_codec(dtype)
        elif can_derive(dtype_by_name(source), dtype_by_name(dtype)):
            codec = derive_codec(dtype, source)
        else:
            continue
        plain = b"".join(own[title].data for title in names)[: codec.chunk_bytes]
        if len(plain) < codec.chunk_bytes:
            continue
        values = None
        if parent is not None:
            values = memoryview(b"".join(other[title].data for title in names))[: codec.source_bytes(len(plain))]
        yield codec, plain, values


def _speeds(codec: Codec, plain: bytes, values: memoryview | None) -> tuple[float, float, float]:
    """Return the stored share of a chunk, and the speeds of encoding and decoding in MB/s."""
    chunk = encode_chunk(codec, plain, values)
    begun = time.process_time()
    for _ in range(REPEATS):
        chunk = encode_chunk(codec, plain, values)
    encoding = time.process_time() - begun
    stored = b"".join(chunk.pieces)
    place = BlobChunk("chunk", 0, 0, len(plain), chunk.entry)
    out = memoryview(bytearray(len(plain)))
    decode_chunk(codec, place, stored, out, values)
    begun = time.process_time()
    for _ in range(REPEATS):
        decode_chunk(codec, place, stored, out, values)
    decoding = time.process_time() - begun
    megabytes = REPEATS * len(plain) / 1e6
    return len(stored) / len(plain), megabytes / encoding, megabytes / decoding


if __name__ == "__main__":
    main()
