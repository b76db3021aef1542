"""Tokens: texts that are easy to find by scanners, refused offline when mistyped, and kept as a digest alone.

    orgp_ + 9 characters of id + 43 of secret + 6 of checksum      a contributor's, for programs and for logging in
    orgs_ + 43 characters of secret + 6 of checksum                a page's, for as long as its session

All characters are base 62. The secret has 256 random bits (43 · log2 62), so that a plain SHA-256 keeps it. The
checksum is the CRC-32 of all that stands before it: it finds typing errors and nothing else.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import zlib
from dataclasses import dataclass

from organs.registry.errors import BadToken

PREFIX, PAGE_PREFIX = "orgp_", "orgs_"
ID_LENGTH, SECRET_LENGTH, CHECKSUM_LENGTH = 9, 43, 6
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHAPE = re.compile(
    rf"(?:{PREFIX}(?P<id>[0-9A-Za-z]{{{ID_LENGTH}}})|{PAGE_PREFIX})[0-9A-Za-z]{{{SECRET_LENGTH + CHECKSUM_LENGTH}}}",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token as it is shown once, and what is kept of it."""

    text: str
    public_id: str
    """Empty for a page's."""
    sha256: str

    def __repr__(self) -> str:
        return f"<NewToken {self.public_id}>"  # its text belongs into no log


@dataclass(frozen=True, slots=True)
class SentToken:
    """A token that somebody sent, well-formed: whether it is good the catalog knows."""

    public_id: str
    """Empty for a page's."""
    sha256: str

    @property
    def is_of_page(self) -> bool:
        return not self.public_id


def new_token() -> NewToken:
    """A contributor's token that nobody has had before."""
    public_id = _random(ID_LENGTH)
    return _made(PREFIX + public_id + _random(SECRET_LENGTH), public_id)


def new_page_token() -> NewToken:
    """A page's token that nobody has had before."""
    return _made(PAGE_PREFIX + _random(SECRET_LENGTH), "")


def parse_token(text: str) -> SentToken:
    """The token in `text`; raises BadToken for what is none or is mistyped, without repeating it."""
    match = _SHAPE.fullmatch(text)
    if match is None and text.startswith(PREFIX):
        whole = len(PREFIX) + ID_LENGTH + SECRET_LENGTH + CHECKSUM_LENGTH
        raise BadToken(f"this token is cut or mistyped: a whole one has {whole} characters, {PREFIX} among them")
    if match is None:
        raise BadToken(f"this is no token: one begins with {PREFIX}")
    if _checksum(text[:-CHECKSUM_LENGTH]) != text[-CHECKSUM_LENGTH:]:
        raise BadToken("this token is mistyped: its checksum does not fit")
    return SentToken(match["id"] or "", secret_sha256(text))


def secret_sha256(text: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _made(body: str, public_id: str) -> NewToken:
    text = body + _checksum(body)
    return NewToken(text, public_id, secret_sha256(text))


def _checksum(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), ""
    for _ in range(CHECKSUM_LENGTH):  # 62 to the 6th is more than 2 to the 32nd
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
