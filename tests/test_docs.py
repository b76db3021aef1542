"""Tests of the documentation: every block of code runs, every command and every setting is documented.

Blocks of `sh`, `console` and `python` in README.md and docs/*.md are run in the order of their document, in a folder of
its own that has the shipped examples in it, with an empty registry. In a `console` block, lines after `$ ` are
commands; the others are their output, in which numbers may differ and `...` means any omitted lines. A block that must
not run has `<!-- not run: the reason -->` on the line before it. For `make`, the test checks only that the targets
exist.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.real_models import TABLE, print_table
from organs.registry import settings
from tests import postgres
from tests.faults.hostile.__main__ import SUITES
from tests.preloaded_command import preloaded
from tests.registry_templates import RegistryTemplates

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTES = [*sorted((ROOT / "docs" / "design").glob("*.md")), *sorted((ROOT / "bench" / "results").glob("*.md"))]
PROSE = [*DOCUMENTS, *NOTES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
"""All pages, with those whose blocks of code are not run."""
FOLDERS = ("registry", "ingest", "web", "cli", "migrations", "tests", "bench", "docs", "examples")
NAMES_OF_OTHERS = {"convert_hf_to_gguf.py"}
SLOW_DOCUMENTS = ("original-tools", "models", "administration")
"""Documents whose blocks take ten seconds or more: `make test-slow` runs them."""
LANGUAGES = ("sh", "console", "python")
BEGINNINGS = ("organ ingest examples/zoo", "organ ingest -q examples/zoo")
"""Commands that many documents begin with."""

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>[a-z]*)")
_PATH = re.compile(rf"(?:^|\s)((?:{'|'.join(FOLDERS)})/[\w./-]*)")
_MODULE = re.compile(rf"(?:python -m |organs\.)((?:{'|'.join(FOLDERS)})[\w.]*)")
_NOT_RUN = re.compile(r" *<!-- not run: (?P<reason>.+) -->")
_NUMBER = re.compile(r"[0-9a-f]{8,64}|[0-9]+(?:[.,][0-9]+)*")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a document."""

    line: int
    language: str
    text: str
    not_run: str | None


def blocks(text: str) -> Iterator[Block]:
    """Return the fenced blocks of a Markdown text."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        reason = _NOT_RUN.fullmatch(lines[number - 1]) if number else None
        begin = number + 1
        number = next(index for index in range(begin, len(lines)) if lines[index].strip() == "```")
        inside = [line.removeprefix(fence["indent"]) for line in lines[begin:number]]
        yield Block(begin, fence["language"], "\n".join(inside) + "\n", reason and reason["reason"])
        number += 1


def commands(console: str) -> Iterator[tuple[str, list[str]]]:
    """Return the commands of a console block, each with its documented lines of output."""
    command, printed = "", list[str]()
    for line in console.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
        elif command.endswith("\\"):
            command = f"{command}\n{line.removeprefix('> ')}"
        else:
            printed.append(line)
    yield command, printed


def runnable(path: Path) -> list[Block]:
    return [block for block in blocks(path.read_text(encoding="utf-8")) if block.language in LANGUAGES]


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """Return the `organ` of this source."""
    with preloaded() as found:
        yield found


@pytest.fixture
def place(tmp_path: Path, program: Path) -> dict[str, str]:
    """Return a folder with the examples, two models and an environment in which `organ` is the one of this source."""
    for name in ("examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name, model in (("A", "Zoo-A-2M-v1.0-F16"), ("B", "Zoo-A-2M-Code-v1.0-F16")):
        (tmp_path / f"{name}.gguf").symlink_to(ROOT / "examples" / "zoo" / f"{model}.gguf")
    scripts = tmp_path / ".venv" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "organ").symlink_to(program)
    (scripts / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (scripts / "python").chmod(0o755)
    path = os.pathsep.join([str(scripts), os.environ["PATH"]])
    home = {**postgres.environment(tmp_path / ".registry"), "HF_HOME": str(tmp_path / ".hf")}
    home["XDG_CACHE_HOME"] = str(tmp_path / ".cache")
    return {
        **os.environ,
        **home,
        "PATH": path,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "NO_COLOR": "1",
        "COLUMNS": "160",
    }


def run(command: list[str], place: dict[str, str], where: str) -> str:
    folder = Path(place["ORGAN_HOME"]).parent
    done = subprocess.run(
        command, cwd=folder, env=place, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{where}: {command[-1]}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def normal(line: str) -> str:
    """Return a line without the parts that may differ: numbers, digests, the width of columns."""
    return " ".join(_NUMBER.sub("0", line).split())


def check_printed(expected: list[str], output: str, where: str) -> None:
    """Assert that every documented line was printed, in order."""
    left = [normal(line) for line in output.splitlines()]
    for line in expected:
        wanted = normal(line)
        if wanted in {"", "...", "…"}:
            continue
        assert wanted in left, f"{where}: {line!r} was not printed; this was:\n{output}"
        left = left[left.index(wanted) + 1 :]


def run_in_shell(command: str, place: dict[str, str], where: str, templates: RegistryTemplates) -> str:
    """Return the output of `command`. A command that begins many documents is run once, and its result is copied."""
    home = Path(place["ORGAN_HOME"])
    if command.strip() not in BEGINNINGS or home.exists():
        return run(["sh", "-e", "-c", command], place, where)

    def make(folder: Path) -> None:
        (folder / "printed").write_text(run(["sh", "-e", "-c", command], place, where))
        shutil.copytree(home, folder / "home")

    kept = templates.build_once(f"docs {BEGINNINGS.index(command.strip())}", make)
    shutil.copytree(kept / "home", home, dirs_exist_ok=True)
    return (kept / "printed").read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[
                *([pytest.mark.sqlite] if "organ backup copy" in path.read_text("utf-8") else []),
                *([pytest.mark.slow] if path.stem in SLOW_DOCUMENTS else []),
            ],
        )
        for path in DOCUMENTS
    ],
)
def test_every_block_of_code_runs(path: Path, place: dict[str, str], templates: RegistryTemplates) -> None:
    for block in runnable(path):
        where = f"{path.name}:{block.line}"
        if block.not_run is not None or _only_makes(block.text):
            continue
        if block.language == "python":
            run(["python", "-c", block.text], place, where)
        elif block.language == "sh":
            run_in_shell(block.text, place, where, templates)
        else:
            for command, printed in commands(block.text):
                check_printed(printed, run_in_shell(command, place, where, templates), where)


def _only_makes(text: str) -> bool:
    """Return whether a block has only calls of `make`, which build environments of their own and run these tests."""
    return all(line.startswith("make ") for line in text.splitlines())


def test_a_block_that_is_not_run_states_a_reason() -> None:
    for path in DOCUMENTS:
        for block in runnable(path):
            assert block.not_run is None or len(block.not_run.split()) >= 3, f"{path.name}:{block.line}"


def test_every_fence_names_its_language() -> None:
    nameless = [
        f"{path.name}:{block.line}"
        for path in DOCUMENTS
        for block in blocks(path.read_text(encoding="utf-8"))
        if not block.language
    ]
    assert nameless == [], "text is `text`"


def test_every_setting_is_in_the_guide() -> None:
    variables = {value for name, value in vars(settings).items() if name.endswith("_VARIABLE")}
    assert len(variables) >= 4
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    assert {name for name in variables if f"| `{name}`" not in guide} == set()


def test_no_document_names_an_unknown_setting() -> None:
    variables = {value for name, value in vars(settings).items() if name.endswith("_VARIABLE")}
    named = {name for path in DOCUMENTS for name in re.findall(r"\bORGAN_[A-Z_]+\b", path.read_text(encoding="utf-8"))}
    assert named - variables == set()


@pytest.mark.long
def test_the_picture_in_the_readme_equals_the_output_of_the_demo(tmp_path: Path) -> None:
    home = postgres.environment(tmp_path / "home")
    place = {**os.environ, **home, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    picture = next(
        block for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.language == "text"
    )
    printed = run([sys.executable, "-m", "organs.cli", "demo"], place, "README.md")
    assert len(picture.text.splitlines()) > 5
    check_printed(picture.text.splitlines(), printed, f"README.md:{picture.line}")
    assert re.search(r"^GET http://127\.0\.0\.1:\d+/: 200, ", printed, re.MULTILINE), "it looks at the catalog"


def test_every_target_that_a_document_names_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    documents = [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]
    named = {
        name
        for path in documents
        for name in re.findall(r"(?:^|[`$] ?)make ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named
    assert {name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)} == set()


def test_every_test_and_module_that_the_makefile_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    paths = set(re.findall(r"\btests/[\w/.:]+", makefile))
    modules = set(re.findall(r"-[mp] ((?:tests|bench|organs)\.[\w.]+)", makefile))
    suites = set(re.findall(r"-m tests\.faults\.hostile ([a-z-]+)", makefile))
    assert len(paths) > 8
    assert len(modules) + len(suites) > 8
    assert suites <= SUITES.keys()
    assert {path for path in paths if not _is_test(path)} == set()
    assert {name for name in modules if importlib.util.find_spec(name) is None} == set()


def _is_test(path: str) -> bool:
    """Return whether `path` is a file or a folder, and has the test function that follows `::`, if any."""
    file, _, function = path.partition("::")
    if not function:
        return (ROOT / file).exists()
    return f"def {function}(" in (ROOT / file).read_text(encoding="utf-8")


def test_every_link_between_documents_has_a_target() -> None:
    broken = []
    for path in PROSE:
        text = re.sub(r"`[^`\n]*`", "", path.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s]*)\)", text):
            file, _, anchor = target.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            linked = path.parent / file if file else path
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_file_of_the_project_that_a_document_names_exists() -> None:
    files = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")} | NAMES_OF_OTHERS
    missing = []
    for path in PROSE:
        if path.name == "CHANGELOG.md":
            continue  # the history names files that were removed later
        for quoted in re.findall(r"`([^`\n]+)`", path.read_text(encoding="utf-8")):
            named = [*_PATH.findall(quoted), *(module.replace(".", "/") for module in _MODULE.findall(quoted))]
            missing += [f"{path.relative_to(ROOT)}: {name}" for name in named if not exists(name)]
            if re.fullmatch(r"\w+\.py", quoted) and quoted not in files:
                missing.append(f"{path.relative_to(ROOT)}: {quoted}")
    assert missing == []


def exists(name: str) -> bool:
    """Return whether `name` is a file or folder of the project, a module without its suffix, or a name in a module."""
    module = (ROOT / name).parent.with_suffix(".py")
    return (ROOT / name).exists() or (ROOT / f"{name}.py").exists() or ("." not in name and module.exists())


@pytest.mark.parametrize("folder", ["docs/design", "bench/results"])
def test_every_note_is_in_the_list_of_its_folder(folder: str) -> None:
    listed = re.findall(r"\]\(([a-z-]+\.md)\)", (ROOT / folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.name for path in (ROOT / folder).glob("*.md") if path.name != "README.md")


def test_the_tables_of_the_real_model_are_those_of_the_bench(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    for path, is_short in (("README.md", True), ("bench/results/real-model.md", False)):
        print_table(rows, is_short=is_short)
        printed = capsys.readouterr().out.strip()
        assert printed in (ROOT / path).read_text(encoding="utf-8"), f"python -m bench.real_models --table: {path}"
