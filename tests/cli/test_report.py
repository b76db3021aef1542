"""`organ report`."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.cli.in_process import OrganCommand


def test_a_report_is_prose_with_tables_and_on_a_model_its_dissection(filled: OrganCommand) -> None:
    out = filled.done("report").out
    assert out.startswith("Report on the registry\n======================\n")
    for expected in ("Ranking of models\n-----------------", "local/little@1", "θ is not a grade."):
        assert expected in out
    assert max(map(len, filled.done("report", "--table", "ranking").lines)) < 120
    dissection = filled.done("report", "little").out
    assert dissection.startswith("Dissection of local/little@1\n")
    assert "blk.1.ffn_down.weight" in dissection


def test_json_has_every_number_unrounded_under_a_name_with_its_unit(filled: OrganCommand) -> None:
    values = filled.done("report", "--json").values
    (item,) = values["sections"]["ranking"]["items"]
    (listed,) = filled.done("models", "--json").values["items"]
    assert item["mean_theta_degrees"] == listed["mean_theta"]
    assert item["parameters_count"] == listed["parameters"]
    assert values == filled.done("report", "--format", "json").values
    assert filled.done("report", "little", "--json", "--table", "types").values["sections"].keys() == {"types"}


def test_csv_is_one_tidy_table_by_default_the_ranking(filled: OrganCommand) -> None:
    (row,) = csv.DictReader(io.StringIO(filled.done("report", "--csv").out))
    assert row["model"] == "local/little@1"
    assert 0 < float(row["mean_theta_degrees"]) < 90
    types = csv.DictReader(io.StringIO(filled.done("report", "--csv", "--table", "types").out))
    assert [row["type"] for row in types] == ["embed", "norm", "organ", "skeleton"]


@pytest.mark.parametrize(
    ("name", "form"), [("r.md", "markdown"), ("r.json", "json"), ("r.csv", "csv"), ("r", "text"), ("r.pdf", "text")]
)
def test_a_file_has_the_format_of_its_suffix(name: str, form: str, filled: OrganCommand, tmp_path: Path) -> None:
    explicit = ("--format", form) if name == "r.pdf" else ()
    ended = filled.done("report", "-o", tmp_path / name, *explicit)
    assert (ended.out, ended.err) == ("", f"written to {tmp_path / name}\n")
    assert (tmp_path / name).read_text("utf-8") == filled.done("report", "--format", form).out


@pytest.mark.parametrize("name", ["r.pdf", "nowhere/report.txt.x", "nowhere/", "little.gguf/report.md"])
def test_an_unknown_format_or_a_file_that_cannot_be_written_leaves_nothing(
    name: str, filled: OrganCommand, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    ended = filled("report", "-o", f"{tmp_path}/{name}")
    assert (ended.status, ended.out) == (1, "")
    if name == "r.pdf":
        assert "text (.txt), Markdown (.md), JSON (.json)" in ended.err
    assert sorted(tmp_path.rglob("*")) == before
