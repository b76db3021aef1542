"""Tokens for remote registries, stored in a file that only their owner can read.

`tokens.json` in the user's folder of settings maps the address of a registry to `{"token", "plain_http"}`. A token is
sent only to its address; `plain_http` is whether its owner allowed sending it without encryption.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec
import platformdirs

from organs.registry.client.address import parse_address
from organs.registry.entities.base import prepared
from organs.registry.errors import BadSetting

FILE_MAX_BYTES = 1024 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class KeptToken(msgspec.Struct, frozen=True):
    """The token for one registry."""

    token: str
    plain_http: bool = False
    """Whether it may be sent over http to another machine."""

    def __repr__(self) -> str:
        return "<KeptToken>"  # the token must not appear in logs


def tokens_path() -> Path:
    """Return the path of the file with the tokens."""
    return Path(platformdirs.user_config_dir("organ-registry")) / "tokens.json"


def kept_tokens() -> dict[str, KeptToken]:
    """Return the tokens by the addresses of their registries.

    Raises BadSetting for a file without valid tokens, and for one that other users can read.
    """
    path = tokens_path()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadSetting(f"{path}: it is not a regular file; move it away and log in again")
        if status.st_mode & _OTHERS:
            raise BadSetting(
                f"{path}: others can read the tokens in it; chmod 600 it, and revoke them if they may have"
            )
        data = file.read(FILE_MAX_BYTES + 1)
    try:
        return msgspec.json.decode(data if len(data) <= FILE_MAX_BYTES else b"", type=prepared(dict[str, KeptToken]))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path}: its content is not valid; move it away and log in again") from error


def kept_token(url: str) -> KeptToken | None:
    """Return the token for the registry at `url`; None without one. Raises BadSetting for an invalid address."""
    return kept_tokens().get(str(parse_address(url)))


def keep_token(url: str, token: KeptToken) -> None:
    """Store `token` for the registry at `url`, and replace an earlier one."""
    _write({**kept_tokens(), str(parse_address(url)): token})


def forget_token(url: str) -> bool:
    """Delete the token for the registry at `url`; return whether there was one."""
    tokens = kept_tokens()
    known = tokens.pop(str(parse_address(url)), None) is not None
    if known:
        _write(tokens)
    return known


def _write(tokens: Mapping[str, KeptToken]) -> None:
    """Replace the file atomically; other users can never read it, nor the temporary file."""
    from organs.registry.store.files import PRIVATE_FILE, PRIVATE_FOLDER, placed  # loads the store, for a login only

    path = tokens_path()
    data = msgspec.json.format(msgspec.json.encode(dict(sorted(tokens.items())))) + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
    with placed(path, len(data), mode=PRIVATE_FILE) as file:
        file.write(data)
