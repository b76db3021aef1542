"""`organ measure`: numbers without a registry."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from organs.registry.catalog.tables import MeasurementRow
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.gguf_files import file_bytes, text
from tests.ingest.test_measuring import COUNT, write_shard
from tests.small_models import block_metadata, expert_tensors, small_model, weight_tensor


@pytest.fixture
def nowhere(tmp_path: Path) -> OrganCommand:
    """The command with a home that nobody can make: a file is in its way."""
    (tmp_path / "file").write_text("in the way")
    return OrganCommand(tmp_path / "file" / "home")


FORMS = ((), ("--tensors",), ("-q",), ("--csv",), ("--json",))


def test_measuring_needs_no_registry_and_creates_none(nowhere: OrganCommand, model: Path) -> None:
    assert nowhere("models").status == 1
    ended = nowhere.done("measure", model)
    assert ended.lines[0] == f"{model}: llama, 47.3 k parameters in 10 tensors, {model.stat().st_size / 1000:.1f} kB"
    assert ended.lines[1].startswith("mean θ: ")
    assert [line.split()[0] for line in ended.lines[3:8]] == ["type", "embed", "norm", "organ", "skeleton"]
    assert "Neither tells how good a model is." in " ".join(ended.err.split())
    assert "blk.1.ffn_down.weight" in nowhere.done("measure", "--tensors", model).out


def test_tensors_can_be_chosen_by_name_and_by_type(nowhere: OrganCommand, model: Path) -> None:
    values = nowhere.done("measure", model, "--json", "--tensor", "blk.0.*", "--type", "norm").values
    assert [tensor["tensor"] for tensor in values["tensors"]] == ["blk.0.attn_norm.weight"]
    assert values["tensors_count"] == 10
    for form in FORMS:
        ended = nowhere("measure", model, "--tensor", "nothing", *form)
        assert (ended.status, ended.err) == (1, "organ: no tensor matches --tensor and --type\n")


def test_a_bad_file_is_named_the_others_are_measured_and_the_status_is_1(nowhere: OrganCommand, model: Path) -> None:
    (model.parent / "bad.gguf").write_bytes(b"GGUFrubbish" * 9)
    for form in FORMS:
        ended = nowhere("measure", model.parent, *form)
        assert ended.status == 1
        assert str(model) in ended.out
        assert "bad.gguf" in (ended.out if form == ("--json",) else ended.err)


def test_quiet_prints_the_mean_and_csv_every_measure_of_each_tensor(
    nowhere: OrganCommand, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "words.gguf").write_bytes(file_bytes([text("general.architecture", "llama")]))
    ended = nowhere.done("measure", "-q", model, tmp_path / "words.gguf")
    theta, name, none, empty = "\t".join(ended.lines).split("\t")
    assert (name, none, empty, ended.err) == (str(model), "-", str(tmp_path / "words.gguf"), "")
    assert 0 < float(theta) < 90
    rows = list(csv.DictReader(io.StringIO(nowhere.done("measure", "--csv", model).out)))
    values = nowhere.done("measure", "--json", model).values["tensors"]
    assert len(rows) == len(values) == 10
    for row, tensor in zip(rows, values, strict=True):
        assert row.keys() == {"file", *tensor} - {"fingerprint"}
        assert float(row["theta_degrees"]) == tensor["theta_degrees"]


def test_a_hostile_tensor_is_harmless_on_a_terminal_and_in_a_spreadsheet(nowhere: OrganCommand, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(file_bytes([text("general.architecture", "\x1b[31m\u202e")], [weight_tensor("=1+1", (64, 64))]))
    for form in FORMS:
        assert not {"\x1b", "\u202e"} & set(nowhere.done("measure", path, *form).out)
    (row,) = csv.DictReader(io.StringIO(nowhere.done("measure", "--csv", path).out))
    assert row["tensor"] == "'=1+1"


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """The file of a small mixture of experts, not ingested."""
    path = tmp_path / "mixture.gguf"
    path.write_bytes(file_bytes(block_metadata("Mixture", blocks=3), expert_tensors()))
    return path


def test_a_mixture_of_experts_is_measured_by_component_too_and_a_dense_model_on_request(
    nowhere: OrganCommand, mixture: Path, model: Path
) -> None:
    def headings(*words: object) -> list[str]:
        lines = nowhere.done("measure", *words).lines
        return [line.split()[0] for line in lines if line.startswith(("component", "tower", "tensor ", "type "))]

    assert headings(mixture) == ["type", "component"]
    assert headings(model) == ["type"]
    tables = ("--table", "components", "--table", "blocks", "--table", "wells")
    assert headings(model, *tables) == ["component", "tower", "tensor"]


def test_the_stored_measures_of_a_model_are_printed_and_reported_like_those_of_its_file(
    organ: OrganCommand, mixture: Path
) -> None:
    organ.done("ingest", mixture)
    measured, stored = (organ.done("measure", name, "--json").values for name in (mixture, "local/mixture"))
    report = organ.done("report", "mixture", "--json").values["sections"]
    for name in ("types", "components", "blocks", "wells"):
        assert measured[name] == report[name]["items"]
        assert len(measured[name]) > 2
    for values in (measured, stored):  # which differ in the name, and in what only an ingest counts
        for place in (values, *values["shards"]):
            del place["file"]
        for tensor in values["tensors"]:
            del tensor["nonfinite"]
        del values["files"]
    assert stored == measured
    of_file, of_model = (organ.done("measure", name, "--tensors").lines for name in (mixture, "mixture"))
    assert of_model == [of_file[0].replace(str(mixture), "local/mixture@1"), *of_file[1:]]
    with LocalRegistry.open(organ.home) as registry, registry.catalog.writing() as session:
        session.execute(delete(MeasurementRow))
    assert organ.done("measure", "mixture", "--tensors").out.count("it was not measured") == len(expert_tensors())


def test_files_and_registered_models_are_measured_together_and_a_file_wins_over_a_model_of_its_name(
    filled: OrganCommand, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = filled("measure", "-q", "little", "nobody", model)
    assert ended.status == 1
    assert [line.split("\t")[1] for line in ended.lines] == [str(model), "local/little@1"]
    assert ended.err == "organ: no such file, and no model is registered as local/nobody\n       try: organ models\n"
    (tmp_path / "little").write_bytes(small_model("Other", blocks=3))
    assert filled.done("measure", "little").lines[0].startswith("little: llama, ")


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere: OrganCommand) -> OrganCommand:
    """The command with an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return nowhere


def test_shards_are_measured_and_deleted_one_at_a_time(cached: OrganCommand, tmp_path: Path) -> None:
    whole, *_ = (write_shard(tmp_path / "whole", number) for number in range(1, COUNT + 1))
    for number in (3, 1, 4, 2):
        path = write_shard(tmp_path / "one", number)
        ended = cached.done("measure", path, "--delete-after")
        assert f"deleted {path}" in ended.err
        assert ("incomplete" in ended.err) == (number != 2)
        assert not path.exists()
    kept = r"the measurements are kept in \S+/measure/\w+\.jsonl; to forget them, delete this file"
    assert re.search(kept, ended.err)
    assert cached.done("measure", whole).lines[1:] == cached.done("measure", path).lines[1:]


def test_missing_shards_are_named(cached: OrganCommand, tmp_path: Path) -> None:
    path = write_shard(tmp_path / "set", 3)
    ended = cached.done("measure", path)
    assert f"{path}: incomplete: 1 of 4 shards were measured; missing: 00001, 00002, 00004\n" in ended.err
    assert cached.done("measure", path, "--json").values["missing_shards"] == [1, 2, 4]
    assert path.exists()
    planned = cached.done("measure", path, "--dry-run").out
    assert "3 tensors, 3 of them measured before; would read 0 bytes of" in planned


def test_experts_are_listed_with_their_numbers_and_summarised_by_stack(cached: OrganCommand, tmp_path: Path) -> None:
    path = write_shard(tmp_path, 2)
    values = cached.done("measure", path, "--experts", "--json").values
    thetas = [row["theta_degrees"] for row in values["experts"]]
    (stack,) = values["stacks"]
    assert (thetas[stack["minimum_expert"]], thetas[stack["maximum_expert"]]) == (min(thetas), max(thetas))
    rows = list(csv.DictReader(io.StringIO(cached.done("measure", path, "--experts", "--csv").out)))
    assert [(row["expert"], float(row["theta_degrees"])) for row in rows if row["expert"]] == [
        (str(number), theta) for number, theta in enumerate(thetas)
    ]
    assert "expert 2" in cached.done("measure", path, "--experts", "--tensors").out
    assert "stack of experts" in cached.done("measure", path, "--experts").out


def reports_of(cached: OrganCommand, tmp_path: Path, numbers: Sequence[int], name: str, *options: str) -> Path:
    """Measure shards in a folder of their own; return the file with the report."""
    paths = [write_shard(tmp_path / name, number) for number in numbers]
    report = tmp_path / f"{name}.json"
    report.write_text(cached.done("measure", paths[0], "--json", *options).out)
    return report


def test_merged_reports_equal_the_report_of_the_whole_set(cached: OrganCommand, tmp_path: Path) -> None:
    parts = [
        reports_of(cached, tmp_path, numbers, f"part{index}", "--experts")
        for index, numbers in enumerate([(4, 2), (1, 2), (3,)])
    ]
    whole = json.loads(reports_of(cached, tmp_path, (1, 2, 3, 4), "whole", "--experts").read_text())
    merged = cached.done("measure", "--merge", *parts, "--json").values
    assert merged.keys() == whole.keys()
    for key in whole.keys() - {"file", "files", "shards"}:
        assert merged[key] == whole[key], key
    for one, other in zip(merged["shards"], whole["shards"], strict=True):
        assert one | {"file": ""} == other | {"file": ""}
    partly = cached.done("measure", "--merge", parts[0], parts[2])
    assert "\nincomplete: 1 of 4 shards missing: 00001\n" in partly.err
    again = tmp_path / "again.json"
    again.write_text(cached.done("measure", "--merge", *parts[:2], "--json").out)
    assert cached.done("measure", "--merge", again, parts[2], "--json").values == merged


def test_reports_of_selections_of_one_file_are_merged(cached: OrganCommand, model: Path, tmp_path: Path) -> None:
    for kind in ("norm", "organ", "embed", "skeleton"):
        (tmp_path / f"{kind}.json").write_text(cached.done("measure", model, "--json", "--type", kind).out)
    merged = cached.done("measure", "--merge", *tmp_path.glob("*.json"), "--json").values
    whole = cached.done("measure", model, "--json").values
    assert merged["types"] == whole["types"]
    assert (merged["tensors_count"], merged["size_bytes"]) == (whole["tensors_count"], whole["size_bytes"])


def edited(report: Path, edit: Callable[[Any], object]) -> Path:
    values = json.loads(report.read_text())
    edit(values)
    path = report.with_name("edited.json")
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda values: values.update(shards_count=3), "it is of another model than {0}: 3 shards instead of 4"),
        (lambda values: values["tensors"][0].update(theta_degrees=1.0), "token_embd.weight has other measures than"),
        (lambda values: values["tensors"][0].update(shape="64x32"), "token_embd.weight has another type or shape"),
        (lambda values: values["shards"][0].update(size_bytes=1), "shard 1 is not the same file as in another report"),
        (lambda values: values["shards"][0].update(shard=2), "token_embd.weight is in shard 2, but in another report"),
        (lambda values: values["tensors"].pop(), "line 1 is not a report of organ measure --json: the number of its"),
        (lambda values: values["tensors"][0].update(shape="9999999999x9999999999x99999"), "is not a shape of F16"),
        (lambda values: values["tensors"][0].update(dtype="Q9_9"), "tensor type 'Q9_9' is unknown"),
        (lambda values: values["tensors"][0].update(theta_degrees="1"), "Expected `float | null`, got `str`"),
        (lambda values: values.update(error="bad"), "the measurement failed"),
        (lambda values: values.pop("shards"), "does not list the measured files; measure them again"),
    ],
)
def test_reports_that_contradict_each_other_are_refused(
    edit: Callable[[Any], object], sentence: str, cached: OrganCommand, tmp_path: Path
) -> None:
    report = reports_of(cached, tmp_path, (1,), "part")
    ended = cached("measure", "--merge", report, edited(report, edit))
    assert ended.status == 1
    assert ended.out == ""
    assert ended.err.startswith(f"organ: {tmp_path / 'edited.json'}: ")
    assert sentence.format(report) in ended.err
    assert ended.err.count("\n") == 1


def test_a_file_that_is_no_report_is_refused(cached: OrganCommand, tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"\n", b"{", b"[" * 100_000, b"\xff", b"{}", b"1")):
        (tmp_path / f"{number}.json").write_bytes(content)
    for path in (*tmp_path.glob("*.json"), tmp_path / "none.json", tmp_path):
        ended = cached("measure", "--merge", path)
        assert (ended.status, ended.err.count("organ: ")) == (1, 1)
        assert ended.err.startswith(f"organ: {path}: ")
