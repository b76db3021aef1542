"""The texts that models are scored on: the built-in suite, written for this project, or files of the user's.

A text is cut into windows of tokens by the tokenizer of each model. `spread_order` is the order in which the windows
of a text are scored: however many are scored, they are spread over the whole text.
"""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from organs.registry.digest import Digest, digest_of
from organs.registry.errors import BadSource
from organs.registry.names import nearest

CHAT = "chat"
KINDS = (CHAT, "python", "javascript", "documentation", "encyclopedic", "narrative", "dialogue", "reasoning", "german")
"""The kinds of text of the built-in suite: about 20 kB each. CHAT is the dialogue in the base's own chat template; a
base without one has no such text."""

SAMPLE_MAX_BYTES = 1024 * 1024
"""Of a longer text, sections that are spread over it are scored."""
SECTION_BYTES = 16 * 1024
FILES_MAX = 10_000
WORDS_MIN = 8
"""A perplexity of fewer words has no meaning."""
TEXT_NAME_MAX_LENGTH = 80

_FOLDER = Path(__file__).with_name("texts")
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 inside of a character."""


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text to score: its name, its content (at most SAMPLE_MAX_BYTES), and the SHA-256 of its UTF-8 bytes."""

    name: str
    text: str
    digest: Digest
    is_chat: bool = False
    """Whether `text` has conversations (see `conversations`) that are scored in the base's chat template."""
    template: str = ""
    """The chat template; empty until it is known."""


def built_in_texts(kinds: Sequence[str] = KINDS) -> tuple[ScoredText, ...]:
    """Return texts of the built-in suite, which has texts of the `KINDS`."""
    texts = []
    for kind in kinds:
        name = "dialogue" if kind == CHAT else kind
        texts.append(replace(_named(kind, (_FOLDER / f"{name}.txt").read_bytes()), is_chat=kind == CHAT))
    return tuple(texts)


def fitted_texts(texts: Sequence[ScoredText], template: str | None) -> tuple[ScoredText, ...]:
    """Return `texts`, with the chat template of a base in its chat texts; without chat texts if it has none.

    The digest of a chat text depends on the template, because its tokens do.
    """
    if not template:
        return tuple(text for text in texts if not text.is_chat)
    return tuple(
        replace(text, template=template, digest=digest_of(f"{text.digest} in {template}".encode()))
        if text.is_chat
        else text
        for text in texts
    )


def conversations(text: str) -> list[list[tuple[str, str]]]:
    """Return the conversations in `text`: each a list of roles, `user` and `assistant`, with what they say.

    An empty line ends a conversation, and a line begins a turn with `User: ` or `Assistant: `.
    """
    found = []
    for block in text.strip().split("\n\n"):
        turns: list[tuple[str, str]] = []
        for line in block.splitlines():
            role, mark, rest = line.partition(": ")
            if mark and role in ("User", "Assistant"):
                turns.append((role.lower(), rest))
            elif turns:
                turns[-1] = (turns[-1][0], f"{turns[-1][1]}\n{line}")
        if turns:
            found.append(turns)
    return found


def read_text(path: Path) -> ScoredText:
    """Return the text in the file `path`, or in all text files of the folder `path` and its folders, named after it.

    Of more than SAMPLE_MAX_BYTES, sections of SECTION_BYTES are read, evenly spread over all files in the order of
    their paths. In a folder, hidden files and files that are not UTF-8 text are left out. Raises BadSource if there is
    no text, if a file is not UTF-8, has a NUL or fewer than WORDS_MIN words, and for more than FILES_MAX files.
    """
    try:
        status = path.stat()
        if not path.is_dir() and not stat.S_ISREG(status.st_mode):
            raise BadSource(f"{path}: neither a file nor a folder")
        files = _files_of(path) if path.is_dir() else [(path, status.st_size)]
        data = "\n\n".join(_sections(files)).encode()
    except OSError as error:
        raise BadSource(f"{error.filename or path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadSource(f"{path}: not UTF-8: a text to score is plain text") from error
    text = _named(path.absolute().stem[:TEXT_NAME_MAX_LENGTH] or "text", data)
    if "\0" in text.text:
        raise BadSource(f"{path}: holds a NUL: a text to score is plain text")
    if len(text.text.split()) < WORDS_MIN:
        raise BadSource(f"{path}: too short to score: fewer than {WORDS_MIN} words")
    return text


def named_text(text: str, folder: Path) -> ScoredText:
    """Return the built-in text of this name, or that of the path `text`, which begins in `folder`. Raises BadSource."""
    if text in KINDS:
        return built_in_texts((text,))[0]
    path = folder / os.path.expanduser(text)
    try:
        return read_text(path)
    except BadSource as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        close = nearest(text, KINDS)
        hint = f"did you mean {close}?" if close else f"built in are {', '.join(KINDS)}"
        raise BadSource(f"{path}: no such file or folder, and no built-in text; {hint}") from error


SEARCHED_MAX_BYTES, PROVED_MAX_BYTES = 64 * 1024, 256 * 1024
"""The most bytes of the two parts of a divided text."""
PART_BYTES = 1024
"""Of the sections that are dealt to the parts, at least."""
ENOUGH_BYTES = 10_000
"""A text of this size has more windows in both parts than an evolution needs."""
DEALT, SEARCHED_DEALT = 5, 2
"""Of so many sections in a row, the first ones go to the first part."""


def divided(text: ScoredText) -> tuple[ScoredText, ScoredText]:
    """Return two texts of the same name and kind without a common section: for a search, and for its result.

    Sections of whole lines, or of whole conversations, are dealt to both in turns, so both are spread over the text;
    lines that are longer than a section are cut at a space. Of a long text, sections that are evenly spread are kept.
    Raises BadSource for a text that is too short for two.
    """
    parts, sections = [], _joined_sections(text)
    for is_first, limit in ((True, SEARCHED_MAX_BYTES), (False, PROVED_MAX_BYTES)):
        own = [one for number, one in enumerate(sections) if (number % DEALT < SEARCHED_DEALT) == is_first]
        content = _spread_content(own, limit)
        if len(content.split()) < WORDS_MIN:
            sentence = f"{text.name}: too short to be divided into a part for the search and one for the result"
            raise BadSource(f"{sentence}; {ENOUGH_BYTES // 1000} kB are enough")
        parts.append(replace(text, text=content, digest=digest_of(content.encode())))
    return parts[0], parts[1]


def shortened(text: ScoredText, most_bytes: int) -> ScoredText:
    """Return a text with at most `most_bytes` as JSON: of a longer one, evenly spread sections."""
    limit = most_bytes
    while len(json.dumps(text.text, ensure_ascii=False).encode()) > most_bytes and limit > 0:
        content = _spread_content(_joined_sections(text), limit)[:limit]
        text = replace(text, text=content, digest=digest_of(content.encode()))
        limit = limit * 3 // 4  # what JSON escapes is longer
    return text


def _joined_sections(text: ScoredText) -> list[str]:
    """Return sections of whole lines, or of whole conversations, of at least PART_BYTES."""
    lines = (short for line in text.text.splitlines() for short in _cut(line, PART_BYTES))
    pieces, sections = (text.text.split("\n\n") if text.is_chat else lines), [""]
    joint = "\n\n" if text.is_chat else "\n"
    for piece in pieces:
        if len(sections[-1].encode()) >= PART_BYTES:
            sections.append("")
        sections[-1] += piece + joint
    return sections


def _spread_content(sections: Sequence[str], most_bytes: int) -> str:
    """Return evenly spread sections of at most `most_bytes` together, but at least one."""
    kept, size = set[int](), 0
    for number in spread_order(len(sections)):
        size += len(sections[number].encode())
        if kept and size > most_bytes:
            break
        kept.add(number)
    return "".join(sections[number] for number in sorted(kept))


def _cut(line: str, length: int) -> Iterator[str]:
    """Yield a line in pieces of at most `length` characters, which end after a space if there is one."""
    start = 0
    while len(line) - start > length:
        end = line.rfind(" ", start, start + length) + 1 or start + length
        yield line[start:end]
        start = end
    yield line[start:]


def spread_order(count: int) -> list[int]:
    """Return the numbers 0 to `count` - 1 in the order of the van der Corput sequence: any prefix is evenly spread."""
    bits = max(1, (count - 1).bit_length())
    return sorted(range(count), key=lambda number: int(f"{number:0{bits}b}"[::-1], 2))


def _files_of(folder: Path) -> list[tuple[Path, int]]:
    """Return the text files in `folder` and its folders, in the order of their paths, with their sizes in bytes."""
    files: list[tuple[Path, int]] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(place, name) for name in sorted(names) if not name.startswith("."))
        files += [(path, path.stat().st_size) for path in paths if path.is_file() and _is_text(path)]
        if len(files) > FILES_MAX:
            raise BadSource(f"{folder}: more than {FILES_MAX:,} files; name a folder with fewer")
    return files


def _is_text(path: Path) -> bool:
    """Return whether a file begins with UTF-8 text."""
    try:
        return "\0" not in _section(path, 0, SECTION_BYTES)
    except UnicodeDecodeError:
        return False


def _sections(files: Sequence[tuple[Path, int]]) -> Iterator[str]:
    """Return the whole text of `files`, or sections that are evenly spread over it."""
    total = sum(size for _, size in files)
    if total <= SAMPLE_MAX_BYTES:
        yield from (_section(path, 0, size) for path, size in files)
        return
    count = SAMPLE_MAX_BYTES // SECTION_BYTES
    starts, before = deque(total * number // count for number in range(count)), 0
    for path, size in files:
        while starts and starts[0] < before + size:
            yield _section(path, starts.popleft() - before, SECTION_BYTES)
        before += size


def _section(path: Path, start: int, size: int) -> str:
    """Return the text in up to `size` bytes from `start` on, without a line, word or character that is cut there."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(size)
        is_end = file.read(1) == b""
    if start:
        half = data[: size // 2]
        cut = half.find(b"\n") if b"\n" in half else half.find(b" ")
        data = data[cut + 1 :].lstrip(_CONTINUATION_BYTES)
    return codecs.getincrementaldecoder("utf-8")().decode(data, final=is_end)


def _named(name: str, data: bytes) -> ScoredText:
    return ScoredText(name, data.decode("utf-8"), digest_of(data))
