"""The training texts of the zoo, from the disk of a Unix machine with Python.

*Code* is Python's standard library. *Prose* is the documentation beside it: docstrings, `pydoc` topics, manual pages,
licenses and package notes. Nothing of it is shipped. A document goes to the held-out split by the digest of its name,
and the docstrings of a module belong to the split of the module; a repeated paragraph of prose is left out.
"""

import ast
import gzip
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MANUAL_FOLDER = Path("/usr/share/man")
DOC_FOLDER = Path("/usr/share/doc")
LICENSE_FOLDER = Path("/usr/share/common-licenses")
MANUAL_SECTIONS = ("man1", "man2", "man3", "man4", "man5", "man7", "man8")
SKIPPED_FOLDERS = frozenset({"site-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "encodings"})
GENERATED_FILES = frozenset({"pydoc_data/topics.py", "html/entities.py"})
SKIPPED_PAGES = ("gcloud",)  # the 17,000 generated pages of one program would be most of the text

HELD_OUT_ONE_IN = 32
PROSE_LIMIT_BYTES = 14_000_000
FILE_LIMIT_BYTES = 400_000
PARAGRAPH_MIN_CHARACTERS = 80
PARAGRAPH_MIN_LETTER_SHARE = 0.7

# Words that almost all English prose has: a paragraph with few of them is a table or a list of names.
COMMON_WORDS = frozenset({"the", "a", "is", "of", "to", "and", "in", "this", "that", "if", "it", "are", "be"})
COMMON_WORDS_NEEDED = 4


@dataclass(frozen=True, slots=True)
class Texts:
    """Documents by split. Each is plain text with Unix line ends."""

    code: list[str]
    prose: list[str]
    held_out_code: list[str]
    held_out_prose: list[str]


def collect() -> Texts:
    """Read every text, in the order of their names, so that two runs on one machine use the same bytes."""
    texts = Texts([], [], [], [])
    sources = dict(_code_files())
    for name, text in sources.items():
        (texts.held_out_code if _is_held_out(name) else texts.code).append(text)
    seen: set[bytes] = set()
    size_bytes = 0
    for name, text in _prose_files(sources):
        prose = _only_new_paragraphs(text, seen)
        if not prose:
            continue
        (texts.held_out_prose if _is_held_out(name) else texts.prose).append(prose)
        size_bytes += len(prose)
        if size_bytes > PROSE_LIMIT_BYTES:
            break
    return texts


def _is_held_out(name: str) -> bool:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % HELD_OUT_ONE_IN == 0


def _code_files() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED_FOLDERS & set(name.parts) or name.as_posix() in GENERATED_FILES:
            continue
        text = _read(path)
        if text:
            yield name.as_posix(), text


def _prose_files(sources: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Return every source of prose as (name, text); the richest first, because the total is limited."""
    yield from _topics(Path(sysconfig.get_paths()["stdlib"]) / "pydoc_data" / "topics.py")
    for name, source in sources.items():
        yield name, _docstrings(source)
    for path in sorted(LICENSE_FOLDER.glob("*")):
        yield f"license/{path.name}", _read(path)
    yield from _spread(list(_manual_pages()))
    for path in sorted(DOC_FOLDER.glob("*/README*")) + sorted(DOC_FOLDER.glob("*/copyright")):
        yield path.as_posix(), _read(path)


def _topics(path: Path) -> Iterator[tuple[str, str]]:
    """Return the help texts of `pydoc`: a module with one assignment of a dict literal."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Assign):
            topics: dict[str, str] = ast.literal_eval(node.value)
            yield from ((f"topics/{name}", text) for name, text in sorted(topics.items()))


def _manual_pages() -> Iterator[tuple[str, str]]:
    for section in reversed(MANUAL_SECTIONS):
        for path in sorted((MANUAL_FOLDER / section).glob("*")):
            if path.is_file() and not path.is_symlink() and not path.name.startswith(SKIPPED_PAGES):
                yield f"{section}/{path.name}", _plain_text_of_roff(_read(path))


def _spread(pages: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the documents in the order of the digests of their names: the limit then cuts a fair sample, not the end
    of the alphabet.
    """
    return sorted(pages, key=lambda page: hashlib.sha256(page[0].encode()).digest())


def _read(path: Path) -> str:
    """Return a file's text, unpacked if it is a `.gz`; empty if it cannot be read, is too long, or is not UTF-8."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = data.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError):
        return ""
    if len(text) > FILE_LIMIT_BYTES:
        return ""
    return text.replace("\r\n", "\n").replace("\t", "    ")


def _docstrings(source: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError:
        return ""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    organs = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, holders))
    return "\n\n".join(text for text in organs if text)


_SPACING_MACROS = frozenset({"PP", "P", "LP", "TP", "IP", "HP", "Pp", "It", "sp", "Sp", "RS", "RE"})
_PARAGRAPH_MACROS = _SPACING_MACROS | {"SH", "SS", "Sh", "Ss"}
_FONT_MACROS = frozenset({"B", "I", "BR", "RB", "IR", "RI", "BI", "IB", "SM", "SB"})
_ESCAPE = re.compile(r"\\(?:f(?:\[\w*\]|\(\w\w|.)|s[-+]?\d|[&,/|^%:]|\*\(\w\w|\*\[\w+\])")
_NAMED_CHARACTER = re.compile(r"\\(?:\((\w\w|[^\w\s]{2})|\[(\w+)\])")
_CHARACTERS = {"em": "--", "en": "-", "bu": "*", "co": "(c)", "ti": "~", "ha": "^", "rs": "\\"}
_CHARACTERS |= {"aq": "'", "cq": "'", "oq": "'", "lq": '"', "rq": '"', "dq": '"'}


def _plain_text_of_roff(page: str) -> str:
    """Return the text of a manual page: no macros, separate paragraphs, without literal blocks (`.nf` to `.fi`)."""
    lines: list[str] = []
    literal = False
    for line in page.split("\n"):
        if line.startswith((".", "'")):
            macro, _, rest = line[1:].strip().partition(" ")
            if macro in ("nf", "EX", "Bd", "TS", "de", "ig"):
                literal = True
            elif macro in ("fi", "EE", "Ed", "TE", ".", "e"):
                literal = False
            elif macro in _PARAGRAPH_MACROS:
                lines.append("")
            elif macro in _FONT_MACROS and not literal:
                joined = "" if len(macro) == 2 and macro not in ("SM", "SB") else " "
                lines.append(joined.join(_arguments(rest)))
        elif not literal:
            lines.append(line)
    return _unescaped("\n".join(lines))


def _arguments(rest: str) -> list[str]:
    return [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', rest)]


def _unescaped(text: str) -> str:
    text = _ESCAPE.sub("", text)
    text = _NAMED_CHARACTER.sub(lambda match: _CHARACTERS.get(match[1] or match[2], ""), text)
    return re.sub(r"\\([-(' .])", r"\1", text).replace("\\e", "\\")


def _only_new_paragraphs(text: str, seen: set[bytes]) -> str:
    """Return the new paragraphs of prose, each on one line."""
    kept: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(block.split())
        digest = hashlib.sha256(paragraph.encode("utf-8", "replace")).digest()[:12]
        if digest not in seen and _is_prose(paragraph):
            seen.add(digest)
            kept.append(paragraph)
    return "\n\n".join(kept)


def _is_prose(paragraph: str) -> bool:
    if len(paragraph) < PARAGRAPH_MIN_CHARACTERS or not paragraph.isascii():
        return False
    letters = sum(character.isalpha() for character in paragraph)
    words = paragraph.lower().split()
    common = sum(word in COMMON_WORDS for word in words)
    return letters / len(paragraph) > PARAGRAPH_MIN_LETTER_SHARE and common >= COMMON_WORDS_NEEDED
