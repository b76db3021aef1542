"""Findings on files: what keeps llama.cpp from loading them, and what mends it."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from bench.checks import ZOO, Case, Whole, agree, cases, checked, loaded, written
from organs.ingest.checking import CODES, check_model
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.ingest.stored import check_stored
from organs.registry.chat_templates import TEMPLATE_CODES
from organs.registry.entities.finding import NONFINITE, Severity
from organs.registry.gguf import MemorySource, read_header
from organs.registry.local import LocalRegistry
from tests.gguf_files import text

ALL = cases()


@pytest.mark.parametrize("case", ALL, ids=[case.name for case in ALL])
def test_what_is_wrong_with_a_file_is_found_and_nothing_else(case: Case, tmp_path: Path) -> None:
    found = checked(written(case, tmp_path))
    assert {item.code for item in found.findings if item.severity is not Severity.INFO} - {"partial-model"} == (
        case.codes - {"partial-model"}
    ) | ({"missing-keys"} if "unknown-architecture" in case.codes else set())
    assert all(item.mend for item in found.findings if item.severity is not Severity.INFO)
    assert found.loads == (not any(CODES[code].severity is Severity.REFUSE for code in case.codes))


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=[case.name for case in ALL])
def test_llama_cpp_loads_what_the_check_says(case: Case, tmp_path: Path) -> None:
    path = written(case, tmp_path)
    assert agree(checked(path), loaded(path))


def test_every_code_is_explained_with_what_mends_it() -> None:
    assert set(TEMPLATE_CODES) <= CODES.keys()
    page = (ZOO.parents[1] / "docs" / "check.md").read_text(encoding="utf-8")
    table, remarks = page.split("## Findings")[1].split("The remarks (`info`)")
    rows = {row[0]: row[1:] for row in re.findall(r"^\| `([a-z-]+)` \| (\w+) \| .+ \| (.+) \|$", table, re.MULTILINE)}
    urgent = {name: code for name, code in CODES.items() if code.severity is not Severity.INFO}
    assert rows == {name: (code.severity.value, code.mend[:1].upper() + code.mend[1:]) for name, code in urgent.items()}
    assert set(re.findall(r"`([a-z-]+)`", remarks.partition("\n\n")[0])) == CODES.keys() - urgent.keys()


def commands_in(mend: str) -> Iterator[str]:
    """Yield the shell commands at the end of an act."""
    yield from mend.partition(": ")[2].split("; ")


def test_joined_shards_are_split_by_the_commands_that_are_named(tmp_path: Path) -> None:
    case = next(case for case in ALL if case.codes == {"joined-files"})
    path = written(case, tmp_path)
    (item,) = checked(path).findings
    for command in commands_in(item.mend):
        subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert checked(tmp_path / f"{path.stem}-00002-of-00003.gguf").loads


def test_a_file_is_mended_by_the_command_that_is_named(registry: LocalRegistry, tmp_path: Path) -> None:
    case = next(case for case in ALL if case.codes == {"bytes-after-end"})
    path = written(case, tmp_path)
    (item,) = checked(path).findings
    command = item.mend.removesuffix(" cuts them off").replace("NEW.gguf", shlex.quote(str(tmp_path / "new.gguf")))
    subprocess.run(command, shell=True, check=True)
    assert checked(tmp_path / "new.gguf").findings == ()
    (source,) = find_sources([str(tmp_path / "new.gguf")])
    assert ingest_model(registry, source).flags == ()


def test_a_truncated_file_is_still_checked_as_far_as_its_header_goes(tmp_path: Path) -> None:
    zoo = Whole.of(ZOO / "Zoo-A-2M-v1.0-F16.gguf")
    data = zoo.variant([text("tokenizer.chat_template", "{{ broken ")], drops=["llama.context_length"])
    (tmp_path / "cut.gguf").write_bytes(data[:-1000])
    assert [item.code for item in checked(tmp_path / "cut.gguf").findings] == [
        "truncated",
        "missing-keys",
        "template-broken",
    ]


def test_a_header_that_announces_everything_costs_nothing(tmp_path: Path) -> None:
    data = b"GGUF" + (3).to_bytes(4, "little") + (1 << 60).to_bytes(8, "little") + (1).to_bytes(8, "little")
    (tmp_path / "huge.gguf").write_bytes(data)
    assert [item.code for item in checked(tmp_path / "huge.gguf").findings] == ["broken-header"]


def test_an_ingest_and_the_checks_of_a_file_and_of_a_registered_model_find_the_same(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    case = next(case for case in ALL if case.codes == {"fewer-blocks"})
    zoo = Whole.of(written(case, tmp_path))
    norm = next(tensor for tensor in zoo.header.tensors if tensor.name == "output_norm.weight")
    values = {norm.name: b"\xff" * norm.size_bytes}
    data = bytearray(zoo.variant([text("tokenizer.chat_template", "{{ broken ")], values=values))
    header = read_header(MemorySource(bytes(data)))
    assert header.end < header.data_offset
    data[header.end] = 1  # padding that is not zero
    path = tmp_path / "odd.gguf"
    path.write_bytes(data)
    (source,) = find_sources([str(path)])
    report = ingest_model(registry, source)
    of_file, of_model = check_model(source), check_stored(registry, report.model)
    assert {item.code for item in of_file.findings} == {"fewer-blocks", "template-broken", NONFINITE, "odd-padding"}
    assert set(report.flags) == {item.text for item in of_file.findings if item.code != NONFINITE}
    assert set(registry.model(report.model).flags) == {item.text for item in of_file.findings}
    assert "a recipe with metadata: {tokenizer.chat_template" in of_file.findings[1].text
    assert of_model == structs.replace(of_file, files=(), name="local/odd@1")
