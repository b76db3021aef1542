"""Write the tables of docs/errors.md from the error classes: `PYTHONPATH=. python -m tests.write_errors_page`."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator

from organs.registry.entities.problem import INTERNAL
from organs.registry.errors import ERRORS, OrganError
from tests.test_code_rules import PRODUCT, ROOT, modules, tree

TARGET = ROOT / "docs" / "errors.md"
BEGIN, END = "<!-- written by tests/write_errors_page.py -->\n", "<!-- end -->\n"


def all_errors() -> dict[str, type[OrganError]]:
    """Return the table with every error class of the product, after importing every module that defines one."""
    for path in modules(*PRODUCT):
        classes = (node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef))
        if any(keyword.arg == "code" for node in classes for keyword in node.keywords):
            importlib.import_module(".".join(("organs", *path.with_suffix("").parts)))
    return dict(sorted(ERRORS.items()))


def sentence(kind: type[OrganError]) -> str:
    """Return what happened: the first paragraph of the docstring of a class."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def data(kind: type[OrganError]) -> list[str]:
    """Return the names of the data of a class: the attributes that it and its parents annotate."""
    parents = [parent for parent in reversed(kind.mro()) if issubclass(parent, OrganError) and parent is not OrganError]
    return list(dict.fromkeys(name for parent in parents for name in inspect.get_annotations(parent)))


def table() -> Iterator[str]:
    """Yield the lines of the table of all classes by code."""
    yield "| code | status | exit status | class | what happened |\n|---|---|---|---|---|\n"
    for code, kind in all_errors().items():
        names = ", ".join(f"`{name}`" for name in data(kind)) if kind.status != INTERNAL else ""
        happened = sentence(kind) + (f" Data: {names}." if names else "")
        yield f"| `{code}` | {kind.status} | {kind.exit_code} | `{kind.__name__}` | {happened} |\n"


def written(page: str) -> str:
    """Return `page` with the table between its two marks written anew."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "".join(table()) + END + rest.partition(END)[2]


def main() -> None:
    """Write the page in the folder of the documentation."""
    TARGET.write_text(written(TARGET.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
