"""Tests of the rules of the code: functions, layers, forbidden words, and the entries of the top folder."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

BODY_MAX_LINES = 100
TRACKED_MAX_BYTES = 6 * 1024 * 1024

TOP = {
    *("registry", "migrations", "web", "ingest", "cli", "tests", "bench", "docs", "examples"),
    *(
        "pyproject.toml",
        "src",
        "Makefile",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        ".ci",
        ".gitignore",
        ".dockerignore",
    ),
}
NOT_OURS = re.compile(r"\.(?!ci$|gitignore$|dockerignore$)|__pycache__$|build$|dist$|.*\.egg-info$|PKG-INFO$")
"""Entries of a folder that are not part of the project, for use without git."""

CODE = ("registry", "ingest", "cli", "web", "migrations", "bench", "examples")
PRODUCT = ("registry", "ingest", "cli", "web")
PORTIONS = (*PRODUCT, "migrations")
"""The folders that are installed below one name, as `organs.registry` and so on."""
WITHOUT_A_FACE = ("registry", "ingest", "migrations")

OLD_NAMES: dict[str, str] = {
    "metadata_given": "A column of the database, which migrations named.",
}
"""Old names that stay: name to the reason."""
MORE_FACES: dict[str, str] = {
    "migrations/new.py": "A contributor runs it by hand to write a migration; no other module imports it.",
    "registry/sandbox/confine.py": "A program of its own: it confines itself, then becomes the one that it is given.",
    "ingest/contributions/inspector.py": "A program of its own: it parses and measures what was sent, confined.",
    "registry/chat_trial.py": "A program of its own: it tries a chat template, confined.",
    "ingest/image_encoder.py": "A program of its own: it reads an image and writes it again, confined.",
    "registry/validation/child.py": "A part of programs of their own, which run llama.cpp in a confined child.",
    "registry/validation/decoder.py": "A part of these programs: it writes llama.cpp's errors to the log.",
    "registry/client/remote.py": "RemoteRegistry.open() is that of scripts too: it takes the token of the environment.",
    "ingest/tools/places.py": "Commands and scripts find the models of other tools where their variables say.",
    "registry/local.py": "LocalRegistry.open() is the face of scripts: it opens what the environment names.",
}
"""Modules outside the user interfaces that may read the command line or the environment: path to the reason."""

OPEN_VALUES: dict[str, str] = {
    "registry/entities/base.py": "A JSON Schema is an open document: any keyword with any value.",
    "web/api/document.py": "The OpenAPI document and its examples are JSON of any shape.",
    "web/params.py": "Arguments of a call: the endpoint's parameters have the types.",
    "web/server/gateway.py": "PEP 3333 defines the WSGI environment as a dictionary of any values.",
    "registry/entities/job.py": "The arguments and the result of a job, which its kind knows.",
    "web/pages/routes.py": "The context of a template: only Jinja reads it.",
}
"""Modules with public functions that take or return `dict[str, Any]`, or with a name for it: path to the reason."""


@cache
def files() -> tuple[Path, ...]:
    """Return every file of the project, relative to its root: files that git tracks or would add; without git, all
    files.
    """
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard", "-z")
    if listed is not None and _git("rev-parse", "--show-prefix") == "\n":
        paths = [Path(name) for name in listed.split("\0") if name]
        return tuple(sorted(path for path in paths if (ROOT / path).is_file()))
    return tuple(sorted(path.relative_to(ROOT) for path in _walk(ROOT)))


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def _walk(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if NOT_OURS.match(entry.name):
            continue
        if entry.is_dir():
            yield from _walk(entry)
        else:
            yield entry


def modules(*folders: str) -> list[Path]:
    """Return the Python files below `folders`."""
    return [path for path in files() if path.suffix == ".py" and path.parts[0] in folders]


@cache
def source(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(source(path), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


def dotted(node: ast.AST) -> str:
    """Return a dotted name such as `os.path.join` for an attribute; a part that is not a name is empty."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def at(path: Path, node: ast.AST) -> str:
    return f"{path}:{getattr(node, 'lineno', 0)}"


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call in a module with the dotted name of the called function."""
    for node in nodes(path):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def imported(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yield every import of a module, as `package.name`."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_the_top_folder_has_only_the_listed_entries() -> None:
    entries = {path.parts[0] for path in files()} | {"src"}  # its entries are links to folders
    assert entries - TOP == set()
    if (ROOT / ".git").exists():
        assert TOP - entries == set()


def test_the_import_package_has_a_link_to_each_of_its_folders() -> None:
    links = {path.name: path for path in (ROOT / "src" / "organs").iterdir() if path.name != "__pycache__"}
    assert set(links) == {*PORTIONS, "docs"}
    for name, link in links.items():
        assert link.is_symlink()
        assert link.resolve() == (ROOT / name).resolve()


def test_the_product_is_imported_below_the_name_organs() -> None:
    bare = re.compile(rf"(?:^|[;\"'])\s*(?:from|import) (?:{'|'.join(PORTIONS)})\b", re.MULTILINE)
    assert bare.search('script = """\nfrom registry import store\n"""')
    violations = [str(path) for path in modules(*CODE, "tests") if path.name != Path(__file__).name]
    violations = [path for path in violations if bare.search(source(Path(path)).replace("import web, organs.web", ""))]
    assert violations == [], "such an import finds a second copy of the module, or nothing: write organs.registry"


def test_no_function_body_is_longer_than_100_lines() -> None:
    long = {
        f"{path}::{node.name}": body_lines(node)
        for path in modules(*CODE)
        if path.parts[:2] != ("migrations", "versions")
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > BODY_MAX_LINES
    }
    assert long == {}


def public_functions(body: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a module, and the methods of its classes, whose names have no leading underscore."""
    for statement in body:
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
            yield from public_functions(statement.body)
        elif isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
            yield statement


def test_no_public_signature_has_a_dictionary_of_any_values() -> None:
    open_values = re.compile(r"\b(?:dict|Mapping)\[str, Any\]")
    alias = re.compile(rf"^\w+ = .*{open_values.pattern}", re.MULTILINE)
    violations = {
        str(path)
        for path in modules(*PRODUCT)
        for function in public_functions(tree(path).body)
        if open_values.search(f"{ast.unparse(function.args)} {ast.unparse(function.returns or function.args)}")
    } | {str(path) for path in modules(*PRODUCT) if alias.search(source(path))}
    assert violations - OPEN_VALUES.keys() == set(), "return an entity; take Mapping[str, object] for JSON to check"
    assert OPEN_VALUES.keys() - violations == set(), "exceptions that are needed no more"


def test_names_are_the_standard_nouns_and_verbs() -> None:
    riddles = {"told", "asked", "said", "given", "whoever", "elsewhere", "owning", "trying", "looking", "tallies"}
    violations = [
        f"{at(path, node)} {name}"
        for path in modules(*PRODUCT)
        for node in nodes(path)
        for name in _bound(node)
        if riddles & set(re.findall("[a-z]+", re.sub("([A-Z])", r"_\1", name).lower())) and name not in OLD_NAMES
    ]
    assert violations == [], "write settings, requested, message, inputs, remote, permissions ..."


def _bound(node: ast.AST) -> Iterator[str]:
    """Return the name that a node binds: of a variable, a parameter, a function or a class."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name


def test_every_package_and_module_has_a_docstring() -> None:
    silent = [str(path) for path in modules(*CODE) if not (ast.get_docstring(tree(path)) or "").strip()]
    assert silent == []


def test_every_folder_with_modules_of_the_product_is_a_package() -> None:
    folders = {folder for path in modules(*PRODUCT) for folder in path.parents if folder != Path()}
    assert sorted(str(folder) for folder in folders if folder / "__init__.py" not in files()) == []


def test_a_flag_is_compared_with_a_constant_because_postgresql_has_no_is_with_a_parameter() -> None:
    literals = ("is_(True)", "is_(False)", "is_not(True)", "is_not(False)")
    assert [str(path) for path in modules(*PRODUCT) if any(literal in source(path) for literal in literals)] == []


def test_no_reminder_is_left_in_the_code() -> None:
    word = re.compile(r"\b(?:TO-?DO|FIX-?ME|X{3}|HACK)\b".replace("-?", ""))
    texts = [path for path in files() if path.suffix in {".py", ".html", ".css", ".js", ".toml", ".mako"}]
    assert word.search("a " + "TO" + "DO")
    assert [str(path) for path in texts if word.search(source(path)) and path.name != Path(__file__).name] == []


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    ways = {"skip", "skipif", "xfail", "importorskip", "skipTest", "skipUnless", "skipIf", "expectedFailure"}
    violations = [
        at(path, node)
        for path in modules("tests")
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and node.attr in ways
        and dotted(node).startswith(("pytest.", "unittest.", "self."))
    ]
    assert violations == []


@pytest.mark.long
def test_only_user_interfaces_print_exit_and_read_the_environment() -> None:
    verbs = {"print", "input", "exit", "quit", "sys.exit", "os._exit", "os.getenv", "breakpoint"}
    places = {"os.environ", "os.environb", "sys.argv", "sys.stdout", "sys.stderr", "sys.stdin"}
    violations = []
    for path in modules(*WITHOUT_A_FACE):
        if str(path) in MORE_FACES:
            continue
        violations += [at(path, node) for name, node in calls(path) if name in verbs]
        violations += [at(path, node) for node in nodes(path) if dotted(node) in places | {"SystemExit"}]
        violations += [at(path, node) for name, node in imported(path) if name in places | verbs]
    assert violations == []


def test_only_the_anatomy_knows_the_names_of_tensors() -> None:
    known = re.compile(r"blk\.|attn_|ffn_")
    violations = []
    for path in modules(*PRODUCT):
        documented = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
        violations += [
            at(path, node)
            for node in nodes(path)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and known.search(node.value)
            if path != Path("registry/anatomy.py") and id(node) not in documented
        ]
    assert violations == []


def test_only_the_catalog_and_the_search_use_sql() -> None:
    words = {"select", "insert", "update", "delete"}
    violations = []
    for path in modules(*PRODUCT):
        if path.parts[:2] in {("registry", "catalog"), ("registry", "search")}:
            continue
        violations += [
            at(path, node)
            for name, node in imported(path)
            if name.startswith("sqlalchemy.") and name.rpartition(".")[2] in words
        ]
        violations += [at(path, node) for name, node in calls(path) if _speaks_sql(name, words)]
    assert violations == []


def _speaks_sql(name: str, words: set[str]) -> bool:
    owner, _, verb = name.rpartition(".")
    if owner in {"sqlalchemy", "sa"}:
        return verb in words
    return owner.rpartition(".")[2].endswith("session") and verb in {"execute", "scalars", "scalar", "query"}


def test_no_module_decides_by_the_text_of_an_exception() -> None:
    """A decision needs a class or a code. Only texts of foreign exceptions may be shortened for people."""
    searches = "startswith|endswith|r?find|r?index|count|r?partition|split|lower"
    text = r"(?:(?:str|repr)\(error[\w.]*\)|\berror\.(?:args|detail)\b(?:\[\d\])?)"
    decision = re.compile(rf"{text}\s*(?:[=!]=|\.(?:{searches})\()|\bin {text}|re\.\w+\([^()]*, {text}")
    assert decision.search("if 'locked' in str(error): pass")
    assert [str(path) for path in modules(*PRODUCT) if decision.search(source(path))] == []


def test_types_are_prepared_before_msgspec_decodes() -> None:
    decoders = {"msgspec.json.decode", "msgspec.json.Decoder", "msgspec.convert"}
    violations = [
        at(path, node)
        for path in modules(*PRODUCT)
        for name, node in calls(path)
        if name in decoders and not _types_are_prepared(node) and str(path) != "registry/entities/base.py"
    ]
    assert violations == []


def _types_are_prepared(call: ast.Call) -> bool:
    """Return whether the type to decode or to convert to, if there is one, is the result of `prepared`."""
    kinds = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
    if not dotted(call.func).endswith("decode"):
        kinds += call.args[-1:]
    return all(isinstance(kind, ast.Call) and dotted(kind.func) == "prepared" for kind in kinds)


def test_templates_are_created_from_text_only_in_the_confined_program() -> None:
    verbs = {"from_string", "render_template_string", "Template"}
    violations = [
        at(path, node)
        for path in modules(*CODE)
        for name, node in calls(path)
        if name.rpartition(".")[2] in verbs and name != "string.Template"
        if str(path) != "registry/chat_trial.py"
    ]
    assert violations == []
    users = {str(path) for path in modules(*CODE) if "chat_trial import" in source(path)}
    assert users == {"registry/compose/metadata.py"}, "it imports what only parses"
    assert not [path for path in modules(*CODE) if "image_encoder import" in source(path)], "images are read confined"


def test_no_file_is_too_large_for_the_repository() -> None:
    large = {str(path): (ROOT / path).stat().st_size for path in files()}
    assert {path: size for path, size in large.items() if size >= TRACKED_MAX_BYTES} == {}
