"""The texts that models are scored on: two built-in ones, written for this project, or a file of the user's."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from organs.registry.digest import Digest, digest_of
from organs.registry.errors import BadSource

TEXT_MAX_BYTES = 1024 * 1024
WORDS_MIN = 8
"""A perplexity of fewer words has no meaning."""
TEXT_NAME_MAX_LENGTH = 80

BUILT_IN_NAMES = ("code", "prose")

_FOLDER = Path(__file__).with_name("texts")


@dataclass(frozen=True, slots=True)
class Text:
    """A text to score: its name, content, and the SHA-256 of its UTF-8 bytes."""

    name: str
    text: str
    digest: Digest


def built_in_texts() -> tuple[Text, ...]:
    """Return a text of Python code and one of documentation, a few hundred tokens each."""
    return tuple(_named(name, (_FOLDER / f"{name}.txt").read_bytes()) for name in BUILT_IN_NAMES)


def read_text(path: Path) -> Text:
    """Return the text in the file `path`, named after it.

    Raises BadSource if it is not a regular file, larger than 1 MiB, not UTF-8, has a NUL, or fewer than 8 words.
    """
    try:
        data = _bytes(path)
    except OSError as error:
        raise BadSource(f"{path}: {error.strerror}") from error
    if len(data) > TEXT_MAX_BYTES:
        raise BadSource(f"{path}: a text to score has at most {TEXT_MAX_BYTES} bytes")
    try:
        text = _named(path.stem[:TEXT_NAME_MAX_LENGTH] or "text", data)
    except UnicodeDecodeError as error:
        raise BadSource(f"{path}: not UTF-8 at byte {error.start}: a text to score is plain text") from error
    if "\0" in text.text:
        raise BadSource(f"{path}: holds a NUL: a text to score is plain text")
    if len(text.text.split()) < WORDS_MIN:
        raise BadSource(f"{path}: too short to score: fewer than {WORDS_MIN} words")
    return text


def _bytes(path: Path) -> bytes:
    """Return the content of the file, at most one byte more than allowed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadSource(f"{path}: not a regular file")
        return file.read(TEXT_MAX_BYTES + 1)


def _named(name: str, data: bytes) -> Text:
    return Text(name, data.decode("utf-8"), digest_of(data))
