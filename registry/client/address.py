"""The address of a remote registry, and names from it as parts of URLs and of paths. All are checked before use."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from organs.registry.endpoints import downloads
from organs.registry.errors import BadName, BadReply, BadSetting
from organs.registry.names import ModelName, parse_model_name

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
        """Whether others cannot read the data: the connection is encrypted, or stays on this machine."""
        if self.scheme == "https" or self.host == "localhost" or self.host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def of(self, path: str) -> str:
        """Return the URL of `path`, which begins with a slash."""
        assert path.startswith("/"), path
        return f"{self}{path}"

    def redirected(self, url: str, location: str) -> str | None:
        """Return the URL of a redirect from `url` to `location`; None if it has another origin."""
        target = urljoin(url, location[:ADDRESS_MAX_LENGTH])
        return target if url_origin(target) == (self.scheme, self.host, self.port) else None


def parse_address(text: str) -> Address:
    """Return the address in `text`, `https://host[:port]`; raises BadSetting for anything else."""
    origin = url_origin(text)
    parts = _split(text)
    if origin is None or parts is None or parts.query or parts.fragment or "@" in parts.netloc:
        raise BadSetting(f"{text[:80]!r} is not the address of a registry: write for example https://registry.example")
    address = Address(*origin)
    if parts.path.rstrip("/"):  # usually the address of a page of the registry
        raise BadSetting(f"{text[:80]!r} has a path, but the address of a registry has none: give {address}")
    return address


def url_origin(text: str) -> tuple[str, str, int] | None:
    """Return the scheme, host and port of a URL; None if it is invalid, or neither http nor https."""
    parts = _split(text)
    if parts is None or parts.scheme not in _PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]


def without_secrets(url: str) -> str:
    """Return a URL for messages: without user, password, query and fragment, at most 300 characters.

    Of an invalid URL, which may have a password anywhere, only the scheme is returned.
    """
    parts = _split(url)
    if parts is None or not parts.hostname:
        scheme = re.match(r"[a-z0-9]{1,8}://", url, re.IGNORECASE)
        return f"{scheme[0] if scheme else ''}…"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:300]


def _split(text: str) -> SplitResult | None:
    if len(text) > ADDRESS_MAX_LENGTH or not text.isascii() or not text.isprintable() or " " in text:
        return None
    try:
        parts = urlsplit(text)
        _ = parts.port, parts.hostname  # an invalid port raises ValueError here
    except ValueError:
        return None
    return parts


_PLAIN_FILE = re.compile(r"[A-Za-z0-9_+@][A-Za-z0-9._+@ -]{0,179}", re.ASCII)


def parse_full_name(text: str) -> ModelName:
    """Return the full name of a model in an answer; raises BadReply for an invalid one."""
    try:
        name = parse_model_name(text)
    except BadName as error:
        raise BadReply(f"the registry gives a model the name {text[:80]!r}: {error}") from error
    if name.version is None or str(name) != text:
        raise BadReply(f"the registry gives a model the name {text[:80]!r}, which is not a full name")
    return name


def in_path(name: ModelName) -> tuple[str, str]:
    """Return the namespace, and the name with its version, as the paths of endpoints have them."""
    return name.namespace, str(name).partition("/")[2]


def gguf_path(full_name: str) -> str:
    """Return the path of a model as one file, by its full name in an answer; raises BadReply for an invalid name."""
    namespace, name = in_path(parse_full_name(full_name))
    return downloads.model_gguf.address(namespace=namespace, name=name)


def file_path(full_name: str, file: str) -> str:
    """Return the path of an original file of a model; `check_file_name` has accepted the name `file`."""
    namespace, name = in_path(parse_full_name(full_name))
    return downloads.model_file.address(namespace=namespace, name=name, file=file)


def check_file_name(text: str) -> str:
    """Return the name of a file in an answer; raises BadReply for a name that is not valid on every disk."""
    if not _PLAIN_FILE.fullmatch(text) or text[-1] in ". ":
        raise BadReply(f"the registry names a file {text[:80]!r}, which is not a safe file name")
    return text


def whole_file_name(text: str, model: ModelName) -> str:
    """Return the name for the single file of `model`: `text`, or the name of the model if `text` is not safe."""
    is_safe = _PLAIN_FILE.fullmatch(text) and text.endswith(".gguf")
    return text if is_safe else f"{model.name}.gguf"
