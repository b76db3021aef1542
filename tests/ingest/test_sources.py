"""Tests of sources: files, folders, patterns, split sets from any shard, the cache of the hub."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from organs.ingest.service import ingest_model
from organs.ingest.sources import ModelSource, converted, find_sources, skipped_files
from organs.ingest.tools import find_tool_models, sources_of
from organs.ingest.tools.places import Machine
from organs.registry.errors import BadSource, BadSplit
from organs.registry.gguf import KeyValue, ValueType
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.gguf_files import file_bytes, tensor, text
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


def test_a_file_is_a_model_named_after_it(tmp_path: Path) -> None:
    touch(tmp_path / "Zoo-A.gguf")
    (source,) = find_sources([str(tmp_path / "Zoo-A.gguf")])
    assert source == ModelSource((tmp_path / "Zoo-A.gguf",), parse_model_name("local/Zoo-A"))
    assert source.label == str(tmp_path / "Zoo-A.gguf")


def test_a_file_of_any_suffix_is_accepted_when_it_is_named(tmp_path: Path) -> None:
    touch(tmp_path / "model.bin")
    assert names(find_sources([str(tmp_path / "model.bin")])) == ["local/model.bin"]


def test_a_folder_is_searched_recursively_for_gguf_files(tmp_path: Path) -> None:
    touch(tmp_path / "b.gguf", tmp_path / "deep" / "er" / "a.gguf", tmp_path / "notes.txt")
    assert names(find_sources([str(tmp_path)])) == ["local/b", "local/a"]


def test_a_suffix_in_upper_case_is_accepted(tmp_path: Path) -> None:
    touch(tmp_path / "UPPER.GGUF", tmp_path / "b.Gguf")
    assert names(find_sources([str(tmp_path)])) == ["local/UPPER", "local/b"]


def test_skipped_files_of_a_folder_are_counted(tmp_path: Path) -> None:
    touch(
        *(tmp_path / name for name in ("a.gguf", "deep/b.GGUF", "notes.txt", "deep/c.SafeTensors", ".git/x", ".hidden"))
    )
    assert skipped_files([str(tmp_path), str(tmp_path / "deep"), str(tmp_path / "notes.txt")]) == (2, 1)
    assert skipped_files([]) == skipped_files(["", str(tmp_path / "gone")]) == (0, 0)


def test_safetensors_are_refused_with_a_hint(registry: LocalRegistry, tmp_path: Path) -> None:
    touch(tmp_path / "model.safetensors")
    (source,) = find_sources([str(tmp_path / "model.safetensors")])
    with pytest.raises(BadSource, match=r"convert_hf_to_gguf\.py FOLDER"):
        ingest_model(registry, source)
    with pytest.raises(BadSource, match=r"nothing to ingest: .*convert_hf_to_gguf\.py FOLDER"):
        find_sources([str(tmp_path)])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x.gguf.part1of2", "x.gguf.part2of2"),
        ("x.gguf.part9", "x.gguf.part10"),
        ("x.gguf.part-aa", "x.gguf.part-ab"),
        ("x.gguf.partaa", "x.gguf.partab"),
        ("x.gguf-split-a", "x.gguf-split-b"),
        ("X.GGUF.001", "X.GGUF.002"),
        ("x.gguf.aa", "x.gguf.ab"),
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
        (source,) = find_sources([str(argument)])
        with pytest.raises(BadSource, match=re.escape(command)):
            ingest_model(registry, source)
    (folder / first).rename(folder / f"{whole}.part1of3")
    (folder / second).unlink()
    with pytest.raises(BadSource, match="only 1 of its 3 parts is here"):
        ingest_model(registry, *find_sources([str(folder)]))
    touch(folder / whole)
    assert names(find_sources([str(folder)])) == [f"local/{Path(whole).stem}"], "they were joined"


def test_other_names_after_gguf_are_no_parts(registry: LocalRegistry, tmp_path: Path) -> None:
    for name in ("x.gguf.sha256", "x.gguf.partial", "x.gguf.part", "x.gguf.tmp", "x.gguf.v1", "x.gguf.01"):
        touch(tmp_path / name)
    with pytest.raises(BadSource, match="nothing to ingest"):
        find_sources([str(tmp_path)])
    (tmp_path / "x.gguf.01").write_bytes(small_model())
    assert ingest_model(registry, *find_sources([str(tmp_path / "x.gguf.01")])).created, "it is a whole file"


SAME_SIZE = {"U8": np.uint8, "F16": np.float16, "I32": np.int32, "U32": np.uint32}
MLX_CONFIG = {"quantization": {"group_size": 64, "bits": 4, "lm_head": False}}


@pytest.mark.parametrize(
    ("config", "dtype", "named"),
    [
        (MLX_CONFIG, "U32", "MLX"),
        ({"quantization_config": {"group_size": 32, "bits": 8}}, "U32", "MLX"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "I32", "AWQ"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "U8", "bitsandbytes"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}, "I32", None),
        (MLX_CONFIG, "F16", None),
        ({"quantization": "odd"}, "U32", None),
    ],
    ids=["mlx", "mlx-as-transformers", "awq", "bitsandbytes", "the-converter-reads-gptq", "written-out", "odd"],
)
def test_quantised_safetensors_that_cannot_be_converted_say_so(
    config: dict[str, object], dtype: str, named: str | None, registry: LocalRegistry, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(
        safetensors_bytes({"layer.weight": np.zeros((2, 2), SAME_SIZE[dtype])}, {"layer.weight": dtype})
    )
    expected = r"Convert" if named is None else f"quantised by {named}, which convert_hf_to_gguf.py cannot read"
    with pytest.raises(BadSource, match=expected):
        find_sources([str(tmp_path)])
    with pytest.raises(BadSource, match=expected):
        ingest_model(registry, *find_sources([str(weights)]))
    if named is not None:
        with pytest.raises(BadSource, match=expected), converted(tmp_path, "no-program", "python", tmp_path):
            pass


def test_a_folder_with_the_name_of_a_file_is_searched(tmp_path: Path) -> None:
    touch(tmp_path / "folder.gguf" / "inside.gguf")
    assert names(find_sources([str(tmp_path)])) == ["local/inside"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.gguf", ["local/a", "local/b"]),
        ("[b]*", ["local/b"]),
        ("**/*.gguf", ["local/a", "local/b", "local/c"]),
        ("?.gguf", ["local/a", "local/b"]),
        ("*", ["local/a", "local/b"]),
    ],
)
def test_a_quoted_pattern_is_expanded(pattern: str, expected: list[str], tmp_path: Path) -> None:
    touch(tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "deep" / "c.gguf")
    assert names(find_sources([str(tmp_path / pattern)])) == expected


def test_a_file_name_with_pattern_characters_is_taken_literally(tmp_path: Path) -> None:
    touch(tmp_path / "a[b].gguf", tmp_path / "ab.gguf")
    assert names(find_sources([str(tmp_path / "a[b].gguf")])) == ["local/a-b"]


def test_a_file_named_several_times_is_taken_once(tmp_path: Path) -> None:
    touch(tmp_path / "a.gguf", tmp_path / "b.gguf")
    arguments = [str(tmp_path), str(tmp_path / "a.gguf"), f"{tmp_path}/./b.gguf", str(tmp_path / "*.gguf")]
    assert names(find_sources(arguments)) == ["local/a", "local/b"]


def test_files_of_one_name_in_two_folders_are_two_models(tmp_path: Path) -> None:
    touch(tmp_path / "one" / "a.gguf", tmp_path / "two" / "a.gguf")
    assert names(find_sources([str(tmp_path)])) == ["local/a", "local/a"]


@pytest.mark.parametrize("argument", ["", "missing.gguf", "missing/*.gguf", "x" * 5_000, "x" * 300 + "*", "a\nb"])
def test_an_argument_without_a_matching_file_is_refused(
    argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "here.gguf")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSource) as caught:
        find_sources(["here.gguf", argument])
    assert len(str(caught.value)) < 6_000


def test_a_folder_without_gguf_files_is_refused(tmp_path: Path) -> None:
    touch(tmp_path / "notes.txt")
    with pytest.raises(BadSource, match="nothing to ingest"):
        find_sources([str(tmp_path)])


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_shard_includes_its_siblings(number: int, tmp_path: Path) -> None:
    paths = [shard(tmp_path, index, 3) for index in (1, 2, 3)]
    touch(tmp_path / "m-00001-of-00002.gguf", tmp_path / "mm-00002-of-00003.gguf", tmp_path / "m.gguf")
    (source,) = find_sources([str(paths[number - 1])])
    assert source == ModelSource(tuple(paths), parse_model_name("local/m"))
    assert source.label == f"{paths[0]} and 2 more shards"


def test_a_folder_with_split_sets_and_single_files_gives_each_model_once(tmp_path: Path) -> None:
    for index in (1, 2):
        shard(tmp_path, index, 2)
        shard(tmp_path, index, 2, "other")
    touch(tmp_path / "single.gguf")
    assert names(find_sources([str(tmp_path)])) == ["local/m", "local/other", "local/single"]


def test_a_shard_name_with_pattern_characters_finds_only_its_own_siblings(tmp_path: Path) -> None:
    for index in (1, 2):
        shard(tmp_path, index, 2, "m[a]*")
        shard(tmp_path, index, 2, "ma")
    (source,) = find_sources([str(tmp_path / "m[[]a[]][*]-00001-of-00002.gguf")])
    assert [path.name for path in source.paths] == ["m[a]*-00001-of-00002.gguf", "m[a]*-00002-of-00002.gguf"]


def test_a_repeated_shard_a_wrong_count_and_a_foreign_file_are_all_reported(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for index in (1, 2, 3):
        shard(tmp_path, index, 3)
    (tmp_path / "m-00003-of-00003.gguf").write_bytes((tmp_path / "m-00002-of-00003.gguf").read_bytes())
    (tmp_path / "m-00004-of-00003.gguf").write_bytes(file_bytes([], [tensor("blk.0.attn_k.weight", (64,))]))
    (source,) = find_sources([str(tmp_path)])
    with pytest.raises(BadSplit) as caught:
        ingest_model(registry, source)
    reasons = "\n".join(fault.detail for fault in caught.value.errors)
    for expected in ("repeats shard 2", "m-00004-of-00003.gguf is not a shard"):
        assert expected in reasons


def test_files_named_like_shards_without_split_metadata_are_refused(registry: LocalRegistry, tmp_path: Path) -> None:
    for index in (1, 2):
        (tmp_path / f"m-{index:05d}-of-00002.gguf").write_bytes(file_bytes([], [tensor(f"blk.{index}.a", (8,))]))
    (source,) = find_sources([str(tmp_path)])
    with pytest.raises(BadSplit, match="no header says that its file is a shard"):
        ingest_model(registry, source)


def test_a_single_file_named_like_a_shard_is_a_model(registry: LocalRegistry, tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00001.gguf"
    path.write_bytes(file_bytes([text("general.name", "M")], [tensor("blk.0.a", (8,))]))
    (source,) = find_sources([str(path)])
    assert ingest_model(registry, source).model == "local/m@1"


def test_a_single_file_named_as_one_of_99999_shards_is_a_model(registry: LocalRegistry, tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-99999.gguf"
    path.write_bytes(file_bytes([], [tensor("blk.0.a", (8,))]))
    (source,) = find_sources([str(path)])
    assert ingest_model(registry, source).model == "local/m-00001-of-99999@1"


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_file_name_becomes_a_harmless_model_name(
    name: bytes, registry: LocalRegistry, tmp_path: Path
) -> None:
    path = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"in", name)))
    path.parent.mkdir()
    path.write_bytes(file_bytes([], [tensor("blk.0.a", (8,))]))
    (source,) = find_sources([str(path.parent)])
    report = ingest_model(registry, source)
    assert str(parse_model_name(report.model)) == report.model


def hub(cache: Path, owner: str, repo: str, files: dict[str, str], revision: str = "abc123") -> Path:
    """Create the layout of the Hugging Face cache: blobs by digest, snapshots of links to them."""
    folder = cache / f"models--{owner}--{repo}"
    for name, blob in files.items():
        target = folder / "blobs" / blob
        touch(target)
        link = folder / "snapshots" / revision / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(revision)
    return folder


def hub_sources(cache: Path) -> list[ModelSource]:
    """Return the models in a cache of the Hugging Face tools."""
    return sources_of(find_tool_models(Machine(cache, {"HF_HUB_CACHE": str(cache)}, "linux"), ["hf-cache"]))


def test_each_gguf_of_the_hub_cache_is_in_the_namespace_of_its_owner(tmp_path: Path) -> None:
    hub(tmp_path, "Qwen", "Qwen3-0.6B-GGUF", {"Qwen3-0.6B-Q8_0.gguf": "d1", "config.json": "d2"})
    hub(tmp_path, "unsloth", "stories--x", {"UD/stories-Q4_K_M.gguf": "d3"})
    touch(tmp_path / "datasets--a--b" / "snapshots" / "x" / "data.gguf", tmp_path / "version.txt")
    sources = hub_sources(tmp_path)
    assert names(sources) == ["Qwen/Qwen3-0.6B-Q8_0", "unsloth/stories-Q4_K_M"]
    assert sources[0].paths[0].parent.name == "abc123", "the link with its name, not the blob without one"


def test_a_split_set_in_the_hub_cache_is_one_model(tmp_path: Path) -> None:
    hub(tmp_path, "big", "model", {f"m-{number:05d}-of-00002.gguf": f"d{number}" for number in (1, 2)})
    (source,) = hub_sources(tmp_path)
    assert (str(source.name), len(source.paths)) == ("big/m", 2)


def test_an_unfinished_download_is_not_a_source(tmp_path: Path) -> None:
    folder = hub(tmp_path, "a", "b", {"whole.gguf": "d1", "gone.gguf": "d2"})
    (folder / "blobs" / "d2").unlink()
    touch(folder / "blobs" / "d3.incomplete")
    assert names(hub_sources(tmp_path)) == ["a/whole"]


def test_an_owner_name_reserved_for_a_page_gets_a_prefix(tmp_path: Path) -> None:
    hub(tmp_path, "models", "m", {"m.gguf": "d1"})
    (source,) = hub_sources(tmp_path)
    assert str(source.name) == "by-models/m"
    assert parse_model_name(str(source.name)) == source.name


def test_a_missing_cache_is_empty(tmp_path: Path) -> None:
    assert hub_sources(tmp_path / "nowhere") == []


def test_a_model_of_the_hub_cache_is_ingested_through_its_links(registry: LocalRegistry, tmp_path: Path) -> None:
    folder = hub(tmp_path, "Qwen", "Qwen3-GGUF", {"Qwen3-Q8_0.gguf": "d1"})
    (folder / "blobs" / "d1").write_bytes(file_bytes([text("general.name", "Qwen3")], [tensor("blk.0.a", (8,))]))
    (source,) = hub_sources(tmp_path)
    assert ingest_model(registry, source).model == "Qwen/Qwen3-Q8_0@1"
