"""`organ report`."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from organs.registry.reports.words import SPREAD, explanations
from tests.cli.in_process import OrganCommand

FORMATS = ("text", "markdown", "json", "csv")


def test_an_empty_registry_has_a_report_in_every_format(organ: OrganCommand) -> None:
    for form in FORMATS:
        assert organ.done("report", "--format", form).out
    assert "organ ingest FILE.gguf" in organ.done("report").out


def test_a_report_reads_like_prose_with_tables(filled: OrganCommand) -> None:
    out = filled.done("report").out
    assert out.startswith("Report on the registry\n======================\n")
    for expected in (
        "Ranking of models\n-----------------",
        "local/little@1",
        "θ is not a grade.",
        "does not show that",
    ):
        assert expected in out
    assert max(map(len, filled.done("report", "--format", "text", "--table", "ranking").lines)) < 120


def test_a_report_on_a_model_is_its_dissection(filled: OrganCommand) -> None:
    out = filled.done("report", "little").out
    assert out.startswith("Dissection of local/little@1\n")
    assert "blk.1.ffn_down.weight" in out


def test_json_has_every_number_unrounded_under_a_name_with_its_unit(filled: OrganCommand) -> None:
    values = filled.done("report", "--json").values
    (item,) = values["sections"]["ranking"]["items"]
    (listed,) = filled.done("models", "--json").values["items"]
    assert item["mean_theta_degrees"] == listed["mean_theta"]
    assert item["parameters_count"] == listed["parameters"]
    assert values == filled.done("report", "--format", "json").values
    assert filled.done("report", "little", "--json", "--table", "types").values["sections"].keys() == {"types"}


def test_csv_is_one_tidy_table_by_default_the_ranking(filled: OrganCommand) -> None:
    printed = filled.done("report", "--csv").out
    (row,) = csv.DictReader(io.StringIO(printed))
    assert row["model"] == "local/little@1"
    assert 0 < float(row["mean_theta_degrees"]) < 90
    assert filled.done("report", "--format", "csv").out == printed
    figures = csv.DictReader(io.StringIO(filled.done("report", "little", "--csv", "--table", "model").out))
    assert any("Little" in row.values() for row in figures)
    types = csv.DictReader(io.StringIO(filled.done("report", "--csv", "--table", "types").out))
    assert [row["type"] for row in types] == ["embed", "norm", "organ", "skeleton"]


@pytest.mark.parametrize(
    ("name", "begin"), [("r.md", "# Report"), ("r.json", "{"), ("r.csv", "rank,"), ("r", "Report")]
)
def test_a_file_has_the_format_of_its_suffix(name: str, begin: str, filled: OrganCommand, tmp_path: Path) -> None:
    ended = filled.done("report", "-o", tmp_path / name)
    assert (ended.out, ended.err) == ("", f"written to {tmp_path / name}\n")
    assert (tmp_path / name).read_text("utf-8").startswith(begin)
    form = {"r.md": "markdown", "r.json": "json", "r.csv": "csv", "r": "text"}[name]
    assert (tmp_path / name).read_text("utf-8") == filled.done("report", "--format", form).out


@pytest.mark.parametrize("name", ["r.pdf", "r.html", "r.docx"])
def test_an_unknown_format_is_refused_in_one_sentence(name: str, filled: OrganCommand, tmp_path: Path) -> None:
    ended = filled("report", "-o", tmp_path / name)
    assert (ended.status, ended.out) == (1, "")
    (line,) = ended.err.splitlines()
    for form in ("text (.txt)", "Markdown (.md)", "JSON (.json)", "CSV (.csv)"):
        assert form in line
    assert not (tmp_path / name).exists()
    filled.done("report", "--format", "text", "-o", tmp_path / name)
    assert (tmp_path / name).read_text("utf-8").startswith("Report")


def test_a_file_that_cannot_be_written_leaves_nothing(filled: OrganCommand, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for wrong in ("nowhere/report.txt.x", "nowhere/", "nowhere/report.md/", "little.gguf/report.md"):
        assert filled("report", "-o", f"{tmp_path}/{wrong}").status > 0
        assert sorted(tmp_path.rglob("*")) == before


def test_columns_that_a_narrow_terminal_leaves_out_are_not_explained(filled: OrganCommand) -> None:
    def printed(table: str, columns: int) -> str:
        environment = {"FORCE_COLOR": "1", "COLUMNS": str(columns), "TERM": "xterm"}
        return " ".join(filled("report", "--table", table, environment=environment).out.split())

    sentences = {
        "ranking": ("Signal is the sine", "Parameters is the count"),
        "types": ("The deviation is",),
    }
    for table, explained in sentences.items():
        wide, narrow = printed(table, 200), printed(table, 50)
        assert [sentence for sentence in explained if sentence not in wide] == []
        assert [sentence for sentence in explained if sentence in narrow] == []
    assert "Mean θ is the average" in printed("ranking", 50)


def test_a_sentence_about_two_columns_stays_while_one_of_them_is_shown() -> None:
    assert "A quarter of the tensors" in " ".join(explanations([SPREAD], ["25%"]))
    assert "A quarter of the tensors" not in " ".join(explanations([SPREAD], ["25%", "75%"]))
