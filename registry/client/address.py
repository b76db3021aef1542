"""The address of a remote registry, and its names as parts of URLs and of paths. All are checked before use."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from organs.registry.errors import BadName, BadReply, BadSetting
from organs.registry.names import ModelName, parse_model_name

API = "/api/v1"
ADDRESS_MAX_LENGTH = 2048
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """A checked address of a registry."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def is_private(self) -> bool:
        """Whether nobody on the way can read along: it is encrypted, or never leaves this machine."""
        return self.scheme == "https" or _is_loopback(self.host)

    def of(self, path: str) -> str:
        """The whole address of `path`, which begins with a slash."""
        assert path.startswith("/"), path
        return f"{self}{path}"

    def redirected(self, here: str, location: str) -> str | None:
        """Where `location` leads from the address `here`; None when that is another origin."""
        there = urljoin(here, location[:ADDRESS_MAX_LENGTH])
        return there if _origin(there) == (self.scheme, self.host, self.port) else None


def parse_address(text: str) -> Address:
    """The address in `text`, `https://host[:port]`; raises BadSetting for anything else."""
    origin = _origin(text)
    parts = _split(text)
    if origin is None or parts is None or parts.query or parts.fragment or "@" in parts.netloc:
        raise BadSetting(f"{text[:80]!r} is no address of a registry: give one like https://registry.example")
    address = Address(*origin)
    if parts.path.rstrip("/"):  # nearly always the address of one of its pages
        raise BadSetting(f"{text[:80]!r} has a path, and no registry is served below one: give {address}")
    return address


def _origin(text: str) -> tuple[str, str, int] | None:
    parts = _split(text)
    if parts is None or parts.scheme not in _PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]


def _split(text: str) -> SplitResult | None:
    if len(text) > ADDRESS_MAX_LENGTH or not text.isascii() or not text.isprintable() or " " in text:
        return None
    try:
        parts = urlsplit(text)
        _ = parts.port, parts.hostname  # a port that is no number is refused when it is asked for
    except ValueError:
        return None
    return parts


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_PLAIN_FILE = re.compile(r"[A-Za-z0-9_+@][A-Za-z0-9._+@ -]{0,179}", re.ASCII)


def parse_full_name(text: str) -> ModelName:
    """The model of that full name, as a registry gives it; raises BadReply for anything else."""
    try:
        name = parse_model_name(text)
    except BadName as error:
        raise BadReply(f"the registry gives a model the name {text[:80]!r}: {error}") from error
    if name.version is None or str(name) != text:
        raise BadReply(f"the registry gives a model the name {text[:80]!r}, which is no full one")
    return name


def model_path(name: ModelName) -> str:
    """Where the API has the model."""
    return f"/models/{quote(str(name), safe='/@')}"


def gguf_path(full_name: str) -> str:
    """Where a model is as one file, by its full name as a registry gives it; raises BadReply for what is no name."""
    return f"{model_path(parse_full_name(full_name))}.gguf"


def file_path(full_name: str, file: str) -> str:
    """Where a model's own file is; `file` is a name as `check_file_name` lets it pass."""
    return f"{model_path(parse_full_name(full_name))}/files/{quote(file, safe='')}"


def check_file_name(text: str) -> str:
    """A file's name that a registry gives, if a file can have it on any disk; raises BadReply for anything else."""
    if not _PLAIN_FILE.fullmatch(text) or text[-1] in ". ":
        raise BadReply(f"the registry names a file {text[:80]!r}, which is no plain name of a file")
    return text


def whole_file_name(text: str, model: ModelName) -> str:
    """How the only file of `model`, called `text`, is called here: by the model's name if that is no plain one."""
    plain = _PLAIN_FILE.fullmatch(text) and text.endswith(".gguf")
    return text if plain else f"{model.name}.gguf"
