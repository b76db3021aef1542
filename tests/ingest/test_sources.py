"""Tests of sources: files, folders, patterns, split sets from any shard, and what is not a GGUF file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from organs.ingest.sources import ModelSource, converted, find_sources
from organs.registry.errors import BadSource, BadSplit
from organs.registry.gguf import KeyValue, ValueType
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.gguf_files import file_bytes, tensor
from tests.ingest.one_source import ingest_path
from tests.ingest.peft_folders import safetensors_bytes
from tests.small_models import small_model

HOSTILE_NAMES = [
    b"\xff\xfe.gguf",
    b"a\x1b[31mred\x1b[0m.gguf",
    b"new\nline.gguf",
    b'it\'s "quoted".gguf',
    "日本.gguf".encode(),
    b"-o.gguf",
    b"..gguf",
    b"...gguf",
    b".gguf",
    b"%s%n{0}.gguf",
    b"a*b?[c].gguf",
    b"~.gguf",
    b"CON.gguf",
    b"x" * 250 + b".gguf",
    "e\u0301\u202ecod.gguf".encode(),
]


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(sources: list[ModelSource]) -> list[str]:
    return [str(source.name) for source in sources]


def shard(folder: Path, number: int, count: int, stem: str = "m", total: int | None = None) -> Path:
    """Write a shard with one tensor of its own."""
    entries = [
        KeyValue("split.no", ValueType.UINT16, number - 1),
        KeyValue("split.count", ValueType.UINT16, count),
        KeyValue("split.tensors.count", ValueType.INT32, count if total is None else total),
    ]
    path = folder / f"{stem}-{number:05d}-of-{count:05d}.gguf"
    path.write_bytes(file_bytes(entries, [tensor(f"blk.{number}.attn_q.weight", (64,))]))
    return path


TREE = (
    "Zoo-A.gguf",
    "a[b].gguf",
    "ab.gguf",
    "model.bin",
    "notes.txt",
    "one/x.gguf",
    "two/x.GGUF",
    "three.gguf/in.gguf",
)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["Zoo-A.gguf"], ["Zoo-A"], id="a file is named after itself"),
        pytest.param(["model.bin"], ["model.bin"], id="a named file may have any suffix"),
        pytest.param(["."], ["Zoo-A", "a-b", "ab", "x", "in", "x"], id="a folder is searched with all its folders"),
        pytest.param(["one", "two"], ["x", "x"], id="files of one name in two folders are two models"),
        pytest.param(["a[b].gguf"], ["a-b"], id="a name with pattern characters is taken literally"),
        pytest.param(["[Z]*"], ["Zoo-A"], id="a pattern of files"),
        pytest.param(["*"], ["Zoo-A", "a-b", "ab", "model.bin", "notes.txt"], id="a pattern leaves out folders"),
        pytest.param(["**/?.gguf"], ["x"], id="a pattern of files in all folders"),
        pytest.param(["one", "one/x.gguf", "./one/x.gguf", "one/*"], ["x"], id="a file is taken once"),
    ],
)
def test_arguments_select_files(
    arguments: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(*(tmp_path / name for name in TREE))
    monkeypatch.chdir(tmp_path)
    assert names(find_sources(arguments)) == [f"local/{name}" for name in expected]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x.gguf.part1of2", "x.gguf.part2of2"),
        ("x.gguf.part-aa", "x.gguf.part-ab"),
        ("x.gguf.partaa", "x.gguf.partab"),
        ("X.GGUF.001", "X.GGUF.002"),
    ],
)
def test_parts_of_bytes_are_refused_with_the_command_that_joins_them(
    first: str, second: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    folder = tmp_path / "my parts"
    touch(folder / second, folder / first)
    whole = first[: first.lower().index(".gguf") + 5]
    command = f"cat '{folder}/{first}' '{folder}/{second}' > '{folder}/{whole}'"
    for argument in (folder, folder / second):
        with pytest.raises(BadSource, match=re.escape(command)):
            ingest_path(registry, argument)
    (folder / first).rename(folder / f"{whole}.part1of3")
    (folder / second).unlink()
    with pytest.raises(BadSource, match="only 1 of its 3 parts is here"):
        ingest_path(registry, folder)
    touch(folder / whole)
    assert names(find_sources([str(folder)])) == [f"local/{Path(whole).stem}"], "they were joined"


def test_other_names_after_gguf_are_no_parts(registry: LocalRegistry, tmp_path: Path) -> None:
    for name in ("x.gguf.sha256", "x.gguf.partial", "x.gguf.part", "x.gguf.tmp", "x.gguf.v1", "x.gguf.01"):
        touch(tmp_path / name)
    with pytest.raises(BadSource, match="nothing to ingest"):
        find_sources([str(tmp_path)])
    (tmp_path / "x.gguf.01").write_bytes(small_model())
    assert ingest_path(registry, tmp_path / "x.gguf.01").created, "it is a whole file"


SAME_SIZE = {"F16": np.float16, "I32": np.int32, "U32": np.uint32}
MLX_CONFIG = {"quantization": {"group_size": 64, "bits": 4, "lm_head": False}}


@pytest.mark.parametrize(
    ("config", "dtype", "named"),
    [
        (MLX_CONFIG, "U32", "MLX"),
        ({"quantization_config": {"group_size": 32, "bits": 8}}, "U32", "MLX"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "I32", "AWQ"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}, "I32", None),
        (MLX_CONFIG, "F16", None),
        ({"quantization": "odd"}, "U32", None),
    ],
    ids=["mlx", "mlx-as-transformers", "awq", "the-converter-reads-gptq", "written-out", "odd"],
)
def test_quantised_safetensors_that_cannot_be_converted_say_so(
    config: dict[str, object], dtype: str, named: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = safetensors_bytes({"layer.weight": np.zeros((2, 2), SAME_SIZE[dtype])}, {"layer.weight": dtype})
    (tmp_path / "model.safetensors").write_bytes(weights)
    expected = r"Convert" if named is None else f"quantised by {named}, which convert_hf_to_gguf.py cannot read"
    with pytest.raises(BadSource, match=expected):
        find_sources([str(tmp_path)])
    if named is not None:
        with pytest.raises(BadSource, match=expected), converted(tmp_path, "no-program", "python", tmp_path):
            pass


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_shard_includes_its_siblings(number: int, tmp_path: Path) -> None:
    paths = [shard(tmp_path, index, 3) for index in (1, 2, 3)]
    touch(tmp_path / "m-00001-of-00002.gguf", tmp_path / "mm-00002-of-00003.gguf", tmp_path / "m.gguf")
    (source,) = find_sources([str(paths[number - 1])])
    assert source == ModelSource(tuple(paths), parse_model_name("local/m"))
    assert source.label == f"{paths[0]} and 2 more shards"
    assert names(find_sources([str(tmp_path)])) == ["local/m", "local/m", "local/m", "local/mm"], "each set once"


def test_a_shard_name_with_pattern_characters_finds_only_its_own_siblings(tmp_path: Path) -> None:
    for index in (1, 2):
        shard(tmp_path, index, 2, "m[a]*")
        shard(tmp_path, index, 2, "ma")
    (source,) = find_sources([str(tmp_path / "m[[]a[]][*]-00001-of-00002.gguf")])
    assert [path.name for path in source.paths] == ["m[a]*-00001-of-00002.gguf", "m[a]*-00002-of-00002.gguf"]


def test_files_named_like_shards_without_split_metadata_are_refused(registry: LocalRegistry, tmp_path: Path) -> None:
    for index in (1, 2):
        (tmp_path / f"m-{index:05d}-of-00002.gguf").write_bytes(file_bytes([], [tensor(f"blk.{index}.a", (8,))]))
    with pytest.raises(BadSplit, match="no header says that its file is a shard"):
        ingest_path(registry, tmp_path)


@pytest.mark.parametrize(("count", "model"), [("00001", "m"), ("99999", "m-00001-of-99999")])
def test_a_single_file_named_like_a_shard_is_a_model(
    count: str, model: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    path = tmp_path / f"m-00001-of-{count}.gguf"
    path.write_bytes(file_bytes([], [tensor("blk.0.a", (8,))]))
    assert ingest_path(registry, path).model == f"local/{model}@1"


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_file_name_becomes_a_harmless_model_name(name: bytes, tmp_path: Path) -> None:
    touch(Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))))
    (source,) = find_sources([str(tmp_path)])
    assert parse_model_name(str(source.name)) == source.name
