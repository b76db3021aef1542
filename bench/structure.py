"""Measure the structure of the code: how much of it there is, what is defined twice, and the ways of five tasks.

    python -m bench.structure
    python -m bench.structure --names
    python -m bench.structure --walk search

A walk runs one task on a small model and records each function of the product when it is entered for the first time.
Its figures are the functions, the files that they stand in, and the returns: how often the next new function stands in
a file that was left before. `--walk` prints a walk file by file. Tokens are those of Python's tokenizer, without
comments, docstrings and ends of lines.
"""

from __future__ import annotations

import argparse
import ast
import collections
import inspect
import io
import sys
import tempfile
import threading
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "examples" / "zoo"
FOLDERS = ("registry", "ingest", "cli", "web", "migrations")
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
BASE, DONOR = "local/Zoo-A-2M-v1.0-F16", "local/Zoo-A-2M-Code-v1.0-F16"


def main() -> None:
    """Print the figures of each folder, then those of the walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="list the class names that are defined more than once")
    parser.add_argument("--walk", choices=tuple(WALKS), help="print one walk, file by file")
    options = parser.parse_args()
    if options.walk is not None:
        print_walk(options.walk)
        return
    print_sizes(list_names=options.names)
    print(f"\n{'walk':<10} {'functions':>9} {'files':>6} {'returns':>8}")
    for name in WALKS:
        functions = walked(name)
        files = [file for file, _ in functions]
        print(f"{name:<10} {len(functions):>9} {len(set(files)):>6} {returns(files):>8}", flush=True)


def print_sizes(*, list_names: bool) -> None:
    """Print files, lines, tokens, classes and private functions of each folder, and the names defined twice."""
    totals: collections.Counter[str] = collections.Counter()
    places: dict[str, list[str]] = {}
    print(f"{'folder':<22} {'files':>6} {'lines':>8} {'tokens':>8} {'classes':>8} {'private':>8} {'used once':>10}")
    for folder in (
        *FOLDERS,
        *sorted(f"registry/{path.name}" for path in (ROOT / "registry").iterdir() if path.is_dir()),
    ):
        figures: collections.Counter[str] = collections.Counter()
        for path in sorted((ROOT / folder).rglob("*.py")):
            figures += figures_of(path.read_text(encoding="utf-8"))
            if folder in FOLDERS:
                for name in class_names(path):
                    places.setdefault(name, []).append(str(path.relative_to(ROOT)))
        if figures["files"]:
            print_row(folder, figures)
        if folder in FOLDERS:
            totals += figures
    print_row("all", totals)
    repeated = {name: paths for name, paths in places.items() if len(paths) > 1}
    print(f"{len(repeated)} class names are defined more than once")
    for name, paths in sorted(repeated.items()) if list_names else ():
        print(f"  {name:<20} {' '.join(paths)}")


def print_row(folder: str, figures: collections.Counter[str]) -> None:
    """Print the figures of one folder."""
    print(
        f"{folder:<22} {figures['files']:>6,} {figures['lines']:>8,} {figures['tokens']:>8,} {figures['classes']:>8,} "
        f"{figures['private']:>8,} {figures['once']:>10,}"
    )


def figures_of(source: str) -> collections.Counter[str]:
    """Return the figures of one module: a private function is used once if its name stands once in its module."""
    nodes = list(ast.walk(ast.parse(source)))
    documentation = {
        (node.value.lineno, node.value.col_offset)
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    used = collections.Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    )
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("_")]
    private = [node for node in functions if not node.name.startswith("__")]
    return collections.Counter(
        files=1,
        lines=source.count("\n"),
        tokens=sum(
            token.type not in LAYOUT and not (token.type == tokenize.STRING and token.start in documentation)
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
        ),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        private=len(private),
        once=sum(used[node.name] == 1 and not node.decorator_list for node in private),
    )


def class_names(path: Path) -> Iterator[str]:
    """Yield the names of the classes that a module defines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            yield node.name


def returns(files: list[str]) -> int:
    """Return how often a walk goes on in a file that it left before."""
    seen = set()
    count = 0
    for before, file in zip([None, *files], files, strict=False):
        count += file != before and file in seen
        seen.add(file)
    return count


def print_walk(name: str) -> None:
    """Print each stay of a walk in a file, with the functions that are new."""
    before = None
    for file, function in walked(name):
        print(f"\n{file}" if file != before else "", end="")
        print(f" {function}", end="")
        before = file
    print()


def walked(name: str) -> list[tuple[str, str]]:
    """Return the functions of the product that a task enters, in the order of their first call: file and name."""
    seen: dict[tuple[str, str], None] = {}

    def enter(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            code = frame.f_code
            is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
            if is_function and code.co_filename in ours:
                seen.setdefault((ours[code.co_filename], code.co_qualname))

    ours = {}
    for file in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for way in (file, ROOT / "src" / "organs" / file.relative_to(ROOT)):
            ours[str(way)] = str(file.relative_to(ROOT))

    @contextmanager
    def recording() -> Iterator[None]:
        threading.setprofile(enter)
        sys.setprofile(enter)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    with tempfile.TemporaryDirectory(prefix="organ-bench-") as folder:
        WALKS[name](Path(folder), recording)
    return list(seen)


def _filled(folder: Path) -> Path:
    from organs.ingest.add import add_model
    from organs.registry import LocalRegistry

    home = folder / "home"
    with LocalRegistry.open(home) as registry:
        for name in (BASE, DONOR):
            add_model(registry, ZOO / f"{name.removeprefix('local/')}.gguf")
    return home


def walk_ingest(folder: Path, recording: Callable[[], object]) -> None:
    """Add one model."""
    from organs.ingest.add import add_model
    from organs.registry import LocalRegistry

    with LocalRegistry.open(folder / "home") as registry, recording():
        add_model(registry, ZOO / f"{BASE.removeprefix('local/')}.gguf")


def walk_assemble(folder: Path, recording: Callable[[], object]) -> None:
    """Write one model to a file."""
    from organs.registry import open_registry

    with open_registry(_filled(folder)) as registry, recording():
        registry.assemble(BASE, folder / "out.gguf")


def walk_search(folder: Path, recording: Callable[[], object]) -> None:
    """Search organs by type and θ."""
    from organs.registry import open_registry

    with open_registry(_filled(folder)) as registry, recording():
        registry.search("type:organ theta>10 sort:-theta")


def walk_plan(folder: Path, recording: Callable[[], object]) -> None:
    """Plan a chimera with one graft."""
    from organs.registry import open_registry

    with open_registry(_filled(folder)) as registry, recording():
        registry.compose(BASE).graft(DONOR, type="organ").plan()


def walk_push(folder: Path, recording: Callable[[], object]) -> None:
    """Push one model to a server of its own process."""
    from bench.load import served
    from organs.ingest.contributions.push import PushOptions, SilentProgress, push
    from organs.ingest.contributions.sending import Memory
    from organs.ingest.sources import find_sources
    from organs.registry.client.connection import Connection

    (source,) = find_sources([str(ZOO / f"{BASE.removeprefix('local/')}.gguf")], "push")
    with served(folder / "home") as server:
        connection = Connection(f"http://127.0.0.1:{server.port}")
        with recording():
            push(connection, source, PushOptions(), Memory(folder / "cache"), SilentProgress())


WALKS = {"ingest": walk_ingest, "assemble": walk_assemble, "search": walk_search, "plan": walk_plan, "push": walk_push}


if __name__ == "__main__":
    main()
