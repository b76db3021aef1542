"""Tests of measurements of files without a registry.

Split sets of which shards are missing are measured as they come, in any order, deleted on request, never mixed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from organs.ingest import measuring
from organs.ingest.measuring import (
    MeasureOptions,
    Wanted,
    find_measured_set,
    measure_model,
    open_journal,
    plan_reads,
    set_journal_path,
)
from organs.ingest.stored import stored_model
from organs.registry.anatomy import OrganType
from organs.registry.errors import BadSource, BadSplit, Busy, StoreUnwritable
from organs.registry.gguf import KeyValue, ValueType
from organs.registry.local import LocalRegistry
from organs.registry.measure import Measurable
from organs.registry.names import parse_model_name
from tests.gguf_files import file_bytes
from tests.ingest.one_source import source_of
from tests.small_models import (
    Tensors,
    block_metadata,
    block_tensors,
    content_of,
    ingest_file,
    weight_tensor,
)

COUNT = 4


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def tensors_of_set(seed: int = 0) -> Tensors:
    """Return the tensors of a model with a stack of three experts in its second shard."""
    tensors = block_tensors(blocks=2, seed=seed)
    return [*tensors[:4], weight_tensor("blk.0.ffn_up_exps.weight", (64, 32, 3), seed), *tensors[4:]]


def shard_bytes(number: int, seed: int = 0, announced: int | None = None) -> bytes:
    """Return shard `number` (from 1) of COUNT."""
    tensors = tensors_of_set(seed)
    own = tensors[(number - 1) * 3 : number * 3] if number < COUNT else tensors[(COUNT - 1) * 3 :]
    keys = [
        KeyValue("split.no", ValueType.UINT16, number - 1),
        KeyValue("split.count", ValueType.UINT16, COUNT),
        KeyValue("split.tensors.count", ValueType.INT32, announced or len(tensors)),
    ]
    return file_bytes([*(block_metadata("Set") if number == 1 else []), *keys], own)


def write_shard(folder: Path, number: int, seed: int = 0, announced: int | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"m-{number:05d}-of-{COUNT:05d}.gguf"
    path.write_bytes(shard_bytes(number, seed, announced))
    return path


def deleting(deleted: list[Path], *, experts: bool = False, wanted: Wanted | None = None) -> MeasureOptions:
    return MeasureOptions(wanted, experts, delete_after=True, on_delete=deleted.append)


@pytest.mark.parametrize("order", list(itertools.permutations(range(1, COUNT + 1)))[::5])
def test_shards_measured_in_any_order_and_deleted_give_the_report_of_the_whole_set(
    order: Sequence[int], tmp_path: Path
) -> None:
    whole = [write_shard(tmp_path / "whole", number) for number in range(1, COUNT + 1)]
    expected = measure_model(source_of(whole[0]), MeasureOptions(experts=True))
    assert (len(expected.tensors), len(expected.experts), expected.missing_shards) == (11, 3, ())
    deleted: list[Path] = []
    for seen, number in enumerate(order, 1):
        path = write_shard(tmp_path / "room for one", number)
        model = measure_model(source_of(path), deleting(deleted, experts=True))
        assert deleted[-1] == path
        assert os.listdir(path.parent) == []
        assert model.missing_shards == tuple(sorted(set(range(1, COUNT + 1)) - set(order[:seen])))
        assert model.set_tensor_count == 11
    assert content_of(model) == content_of(expected)
    assert [file.shard for file in model.files] == [1, 2, 3, 4]


def test_the_report_of_a_deleted_set_can_be_printed_again(tmp_path: Path) -> None:
    for number in range(1, COUNT + 1):
        path = write_shard(tmp_path / "set", number)
        model = measure_model(source_of(path), deleting([]))
    source = find_measured_set(str(path))
    assert source is not None
    assert measure_model(source) == model
    assert plan_reads(source).reads == 0
    assert find_measured_set(str(tmp_path / "set" / "other-00001-of-00004.gguf")) is None
    with_experts = measure_model(source, MeasureOptions(experts=True))
    assert with_experts.missing_shards == (2,), "the experts of its stack were not measured"


def test_a_renamed_shard_is_measured_as_the_shard_that_its_header_names(tmp_path: Path) -> None:
    named, renamed = write_shard(tmp_path / "set", 3), tmp_path / "third part.gguf"
    renamed.write_bytes(named.read_bytes())
    deleted: list[Path] = []
    model = measure_model(source_of(renamed), deleting(deleted))
    assert (deleted, content_of(model)) == ([renamed], content_of(measure_model(source_of(named))))
    assert model.missing_shards == (1, 2, 4)
    other = tmp_path / "other.gguf"
    other.write_bytes(shard_bytes(1))
    assert measure_model(source_of(other)).missing_shards == (2, 3, 4), "it does not join the journal of another file"


def test_a_set_without_a_completely_measured_shard_is_refused(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "set", 1)
    measure_model(source_of(path), MeasureOptions(lambda name, _: name == "token_embd.weight"))
    path.unlink()
    source = find_measured_set(str(path))
    assert source is not None
    with pytest.raises(BadSource, match="no shard is on the disk, and none was measured completely before"):
        measure_model(source)


def test_a_selection_of_an_incomplete_set_counts_only_shards_that_were_measured_completely(tmp_path: Path) -> None:
    first, third = (write_shard(tmp_path / "set", number) for number in (1, 3))

    def is_norm(_name: str, place: object) -> bool:
        return getattr(place, "type", None) is OrganType.NORM

    part = measure_model(source_of(third), MeasureOptions(is_norm))
    assert [tensor.name for tensor in part.tensors] == ["blk.0.attn_norm.weight", "blk.1.attn_norm.weight"]
    first.unlink()
    assert measure_model(source_of(third)).missing_shards == (1, 2, 4)
    deleted: list[Path] = []
    assert measure_model(source_of(third), deleting(deleted, wanted=is_norm)).missing_shards == (1, 2, 4)
    assert deleted == [third], "all its tensors are in the journal"
    second = write_shard(tmp_path / "set", 2)
    measure_model(source_of(second), deleting(deleted, wanted=is_norm))
    assert second.exists(), "it was not measured completely"


def test_a_shard_of_another_model_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    measure_model(source_of(write_shard(tmp_path / "set", 1)), deleting([]))
    for number, seed, announced, sentence in (
        (2, 0, 10, r"m-00002-of-00004\.gguf says 10 for split.tensors.count, but .*m-00001-of-00004\.gguf says 11;"),
        (1, 1, None, r"m-00001-of-00004\.gguf has other values in its samples than shard 1 had when it was measured"),
        (1, 1, None, r"m-00001-of-00004\.gguf has other values in its samples than shard 1 had when it was measured"),
    ):
        path = write_shard(tmp_path / "set", number, seed, announced)
        with pytest.raises(BadSplit, match=sentence) as raised:
            measure_model(source_of(path), deleting([]))
        assert str(set_journal_path(source_of(path))) in str(raised.value)
        assert path.exists()
        path.unlink()
    model = measure_model(source_of(write_shard(tmp_path / "set", 1)))
    assert model.missing_shards == (2, 3, 4)


def test_only_regular_files_that_are_shards_are_deleted(tmp_path: Path) -> None:
    real = write_shard(tmp_path / "real", 1)
    (tmp_path / "set").mkdir()
    link = tmp_path / "set" / real.name
    link.symlink_to(real)
    single = tmp_path / "single.gguf"
    single.write_bytes(file_bytes(block_metadata("Single"), tensors_of_set()))
    for path, sentence in ((link, "not a regular file"), (single, "not a shard of a split model")):
        with pytest.raises(BadSource, match=sentence):
            measure_model(source_of(path), deleting([]))
        assert path.exists()
    assert real.exists()


def test_a_shard_that_is_replaced_meanwhile_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_shard(tmp_path / "set", 1)

    def replace() -> None:
        path.unlink()
        write_shard(tmp_path / "set", 1)

    monkeypatch.setattr("organs.ingest.measuring.Journal.sync", lambda _journal: replace())
    with pytest.raises(BadSource, match="changed while it was measured; it was not deleted"):
        measure_model(source_of(path), deleting([]))
    assert path.exists()


def test_nothing_is_deleted_if_the_journal_is_not_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_shard(tmp_path / "set", 1)

    def fail(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnwritable, match="Input/output error"):
        measure_model(source_of(path), deleting([]))
    assert path.exists()


def test_a_journal_of_another_version_of_the_program_is_not_discarded(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "set", 1)
    journal = set_journal_path(source_of(path))
    assert journal is not None
    journal.parent.mkdir(parents=True)
    journal.write_bytes(b"organ measure 1 z0 mp0\n{}\n" + b"x" * 80)
    with pytest.raises(BadSource, match="of another version of the program; move it away"):
        measure_model(source_of(path))
    assert journal.read_bytes().startswith(b"organ measure 1 z0")
    journal.unlink()
    with open_journal(journal), pytest.raises(Busy, match="another process"):
        measure_model(source_of(path))


def test_an_expert_is_measured_as_a_matrix_of_its_own_and_one_stack_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, measure = list[Sequence[Measurable]](), measuring.measure_together
    monkeypatch.setattr(measuring, "measure_together", lambda group: (together.append(group), measure(group))[1])
    stack, data = weight_tensor("blk.0.ffn_up_exps.weight", (64, 32, 3))
    single = [
        (weight_tensor(f"ffn_up.{number}", (64, 32))[0], data[number * 4096 : (number + 1) * 4096])
        for number in range(3)
    ]
    (tmp_path / "stack.gguf").write_bytes(file_bytes([], [(stack, data), weight_tensor("blk.0.x_exps", (64, 32, 2))]))
    (tmp_path / "single.gguf").write_bytes(file_bytes([], single))
    model = measure_model(source_of(tmp_path / "stack.gguf"), MeasureOptions(experts=True))
    assert sorted([one.is_stack for one in group] for group in together) == [[False, False, False, True], [True]]
    alone = measure_model(source_of(tmp_path / "single.gguf"))
    assert [(expert.name, expert.expert, expert.shape) for expert in model.experts] == [
        (stack.name, number, (64, 32)) for number in range(3)
    ]
    assert [expert.measurement for expert in model.experts] == [tensor.measurement for tensor in alone.tensors]
    assert [expert.size_bytes for expert in model.experts] == [4096] * 3
    plan = plan_reads(source_of(tmp_path / "stack.gguf"), MeasureOptions(experts=True))
    assert (plan.tensors, plan.experts) == (2, 3)


ZOO = Path(__file__).parents[2] / "examples" / "zoo"


def written(folder: Path, data: bytes, name: str = "a.gguf") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


@pytest.mark.parametrize("name", ["Zoo-C-1M-v1.0-Q8_0", "Zoo-A-2M-Code-LoRA-v1.0-F32"])
def test_the_measures_equal_those_that_an_ingest_records(name: str, registry: LocalRegistry) -> None:
    path = ZOO / f"{name}.gguf"
    model = measure_model(source_of(path))
    ingest_file(registry, path)
    full_name, stored = stored_model(registry, parse_model_name(name))
    assert (str(full_name), stored.architecture, stored.title) == (f"local/{name}@1", model.architecture, model.title)
    for measured, recorded in zip(model.tensors, stored.tensors, strict=True):
        assert (measured.name, measured.dtype, measured.shape) == (recorded.name, recorded.dtype, recorded.shape)
        assert recorded.measurement == replace(measured.measurement, nonfinite=0), "an ingest reads all the data"
