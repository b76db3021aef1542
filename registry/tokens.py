"""Tokens of accounts and sessions.

Scanners can recognise the text of a token. Mistyped tokens are refused without reading the database. Only the SHA-256
of a token is stored.

    orgp_ + 9 characters of id + 43 of secret + 6 of checksum      for a contributor's programs and for logging in
    orgs_ + 43 characters of secret + 6 of checksum                for the pages of a browser session

All characters are base 62. The secret has 256 random bits (43 · log2 62), so a plain SHA-256 protects it. The
checksum is the CRC-32 of all characters before it; it only detects typing errors.
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
class SentToken:
    """A well-formed token of a request. Only the catalog can tell whether it is valid."""

    public_id: str
    """Empty for the token of a session."""
    sha256: str

    @property
    def is_of_page(self) -> bool:
        return not self.public_id


@dataclass(frozen=True, slots=True)
class NewToken(SentToken):
    """A new token: its text, which is shown once, and the values that are stored."""

    text: str

    def __repr__(self) -> str:
        return f"<NewToken {self.public_id}>"  # the text must not appear in logs


def new_token() -> NewToken:
    """Return a new random token for a contributor."""
    public_id = _random(ID_LENGTH)
    return _new_token(PREFIX + public_id + _random(SECRET_LENGTH), public_id)


def new_page_token() -> NewToken:
    """Return a new random token for a browser session."""
    return _new_token(PAGE_PREFIX + _random(SECRET_LENGTH), "")


def parse_token(text: str) -> SentToken:
    """Return the token in `text`; raises BadToken, without the text in its message, if it is mistyped."""
    match = _SHAPE.fullmatch(text)
    if match is None and text.startswith(PREFIX):
        length = len(PREFIX) + ID_LENGTH + SECRET_LENGTH + CHECKSUM_LENGTH
        raise BadToken(f"the token is cut or mistyped: a complete token has {length} characters, including {PREFIX}")
    if match is None:
        raise BadToken(f"this is not a token: tokens begin with {PREFIX}")
    if _checksum(text[:-CHECKSUM_LENGTH]) != text[-CHECKSUM_LENGTH:]:
        raise BadToken("the token is mistyped: its checksum is wrong")
    return SentToken(match["id"] or "", secret_sha256(text))


def secret_sha256(text: str) -> str:
    """Return the SHA-256 by which a secret is stored."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _new_token(body: str, public_id: str) -> NewToken:
    text = body + _checksum(body)
    return NewToken(public_id, secret_sha256(text), text)


def _checksum(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), ""
    for _ in range(CHECKSUM_LENGTH):  # 62 to the 6th is more than 2 to the 32nd
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
