"""A model cut into shards, taken in again and merged back: read by the reference, its tensors equal all the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from organs.registry.digest import digest_of
from organs.registry.gguf import KeyValue, RawKeyValue, TensorSpec, ValueType, dtype_by_name
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.gguf_files import array, every_value_type, file_bytes, text, unsigned
from tests.small_models import block_tensors, row_counts, token_array

SPLIT_KEYS = {"split.no", "split.count", "split.tensors.count"}
Q8_0 = dtype_by_name("Q8_0")


def original() -> bytes:
    """Metadata of every type, a vocabulary that is a blob, float and quantised tensors of many sizes."""
    kinds = {ValueType.UINT8, ValueType.INT8}  # the reference reads arrays of bytes as something else: left out
    entries: list[KeyValue | RawKeyValue] = [
        text("general.architecture", "llama"),
        unsigned("general.quantization_version", 2),
        *(entry for entry in every_value_type() if entry.element_type not in kinds),
        token_array([b"token %d" % number for number in range(2_000)]),
        array("tokenizer.ggml.token_type", ValueType.INT32, [1] * 2_000),
    ]
    quantised = [TensorSpec(f"blk.{block}.attn_v.weight", (64, 3 + block), Q8_0) for block in range(4)]
    blocks = [(spec, bytes(range(256)) * 40) for spec in quantised]
    return file_bytes(entries, [*block_tensors(4), *((spec, data[: spec.size_bytes]) for spec, data in blocks)])


def metadata(reader: gguf.GGUFReader) -> dict[str, Any]:
    return {
        key: field.contents()
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.") and key not in SPLIT_KEYS
    }


def tensors(reader: gguf.GGUFReader) -> dict[str, tuple[str, list[int], bytes]]:
    return {
        str(tensor.name): (tensor.tensor_type.name, tensor.shape.tolist(), tensor.data.tobytes())
        for tensor in reader.tensors
    }


@pytest.fixture
def source(organ: OrganCommand, tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(original())
    organ.done("ingest", path)
    return path


def shards(organ: OrganCommand, folder: Path, size: str = "60k") -> list[Path]:
    folder.mkdir()
    organ.done("assemble", "model", "--shards", size, "-o", folder / "cut.gguf")
    return sorted(folder.glob("cut-*.gguf"))


def test_the_reference_reads_every_shard_and_together_they_are_the_model(
    organ: OrganCommand, source: Path, tmp_path: Path
) -> None:
    whole = gguf.GGUFReader(source)
    paths = shards(organ, tmp_path / "out")
    assert len(paths) > 2
    readers = [gguf.GGUFReader(path) for path in paths]
    assert metadata(readers[0]) == metadata(whole)
    assert all(metadata(reader) == {} for reader in readers[1:])
    for number, reader in enumerate(readers):
        assert reader.fields["split.no"].contents() == number
        assert reader.fields["split.count"].contents() == len(paths)
        assert reader.fields["split.tensors.count"].contents() == len(whole.tensors)
    together = {name: found for reader in readers for name, found in tensors(reader).items()}
    assert together == tensors(whole)
    assert list(together) == list(tensors(whole))


def test_a_merged_file_is_the_original_for_the_reference_and_for_the_registry(
    organ: OrganCommand, source: Path, tmp_path: Path, registry: LocalRegistry
) -> None:
    shards(organ, tmp_path / "out")
    organ.done("ingest", tmp_path / "out")
    merged = tmp_path / "merged.gguf"
    organ.done("assemble", "cut", "--merge", "-o", merged)
    reader, whole = gguf.GGUFReader(merged), gguf.GGUFReader(source)
    assert tensors(reader) == tensors(whole)
    assert metadata(reader) == metadata(whole)
    assert not SPLIT_KEYS & set(reader.fields)
    assert merged.read_bytes() == source.read_bytes(), "our own writer made the original"
    before = row_counts(registry)
    organ.done("ingest", "--name", "local/merged", merged)
    after = row_counts(registry)
    assert [after[name] - before[name] for name in ("blobs", "organs", "models")] == [0, 0, 1]
    assert organ.done("ingest", merged).out.endswith(": already registered, nothing added\n")


@pytest.mark.long
def test_cutting_a_split_set_anew_and_merging_it_again_changes_no_tensor(
    organ: OrganCommand, source: Path, tmp_path: Path
) -> None:
    shards(organ, tmp_path / "out", "90k")
    organ.done("ingest", tmp_path / "out")
    organ.done("assemble", "cut", "--shards", "20k", "-o", tmp_path / "fine.gguf")
    fine = sorted(tmp_path.glob("fine-*.gguf"))
    assert len(fine) > len(list((tmp_path / "out").iterdir()))
    organ.done("ingest", fine[0])
    organ.done("assemble", "fine", "--merge", "-o", tmp_path / "again.gguf")
    assert digest_of((tmp_path / "again.gguf").read_bytes()) == digest_of(source.read_bytes())
