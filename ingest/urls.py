"""Models at addresses: on a web server, in a Hugging Face hub, or in an object store.

They are `https://HOST/FILE.gguf`, `hf://NAMESPACE/NAME[/FILE][@REVISION]`, `s3://BUCKET/KEY`, `gs://BUCKET/KEY` and
`az://CONTAINER/KEY`. Any registry of this project has the hub's routes too. Only the person who runs a command names
addresses. Shards of a split model are found by the name of one of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from organs.registry.client.address import ADDRESS_MAX_LENGTH, Address, url_origin, without_secrets
from organs.registry.entities.base import prepared
from organs.registry.errors import BadSetting, BadSource, NoSuchFile
from organs.registry.gguf.split import ShardName, parse_shard_name

if TYPE_CHECKING:
    from organs.registry.client.ranges import RangeClient, RangedFile

HUB = "https://huggingface.co"
_OBJECT_SCHEMES = ("s3", "gs", "az")
_SCHEMES = ("http", "https", "hf", *_OBJECT_SCHEMES)
_HUB_ADDRESS = re.compile(
    r"hf://(?P<name>[\w.-]{1,96}/[\w.-]{1,96})(?:@(?P<revision>[^/@]{1,200}))?(?:/(?P<file>.+))?",
    re.ASCII | re.IGNORECASE,
)
LISTED_MAX = 8
"""The names in a message about a model with several files."""


@dataclass(frozen=True, slots=True)
class Hub:
    """A server with the routes of the Hugging Face hub, and the client that reads from it."""

    client: RangeClient
    endpoint: str = HUB
    token: str | None = field(default=None, repr=False)
    allows_http: bool = False
    """Whether requests to object stores may be without encryption."""
    object_endpoint: str = ""
    """The address of another store with the protocol of S3, if the environment names one."""

    @property
    def headers(self) -> dict[str, str]:
        """The header with the token, which is sent to the hub only."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A GGUF file at an address; nothing was requested yet."""

    hub: Hub = field(repr=False)
    url: str
    label: str
    """The address as people write it, without secrets."""
    name: str
    """The name of the file."""
    is_hub_file: bool = False
    commit: str = ""
    """The commit of a file in a hub."""

    @property
    def address(self) -> str:
        """The address with which `find_remote` finds exactly this file again; it may have secrets."""
        return f"{self.label}@{self.commit}" if self.is_hub_file else self.url

    def __str__(self) -> str:
        return self.label

    def open(self) -> RangedFile:
        """Request the beginning of the file; raises as `HttpFile` and `ObjectFile` do."""
        from organs.registry.client.ranges import HttpFile, ObjectFile  # with urllib3, which local files do not need

        if _scheme(self.url) in _OBJECT_SCHEMES:
            return ObjectFile(self.hub.client, self.url, allows_http=self.hub.allows_http)
        headers = self.hub.headers if self.is_hub_file else {}
        return HttpFile(self.hub.client, self.url, label=self.label, headers=headers)


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """The files of one model: one GGUF file, or all shards of a split model."""

    files: tuple[RemoteFile, ...]
    namespace: str | None = None
    """The namespace in the hub; None for other addresses."""

    @property
    def stem(self) -> str:
        """The name of the file without its ending and its number."""
        name = self.files[0].name
        shard = parse_shard_name(name)
        return shard.stem if shard is not None else name[: -len(".gguf")]


def is_url(argument: str) -> bool:
    """Return whether `argument` is an address that this module reads, such as `hf://NAMESPACE/NAME`."""
    return _scheme(argument) in _SCHEMES


def _scheme(address: str) -> str:
    """Return the scheme of an address in lower case; an empty text if it has none."""
    scheme, separator, _ = address.partition("://")
    return scheme.lower() if separator else ""


def find_remote(argument: str, hub: Hub) -> RemoteModel:
    """Return the model at the address `argument`, with all its shards.

    The files of a model in a hub are listed with one request, and fixed to the commit of the answer. Raises BadSource
    for an invalid address and for several models, BadSetting, NoSuchFile, NotAllowed, BadHubToken, Unreachable.
    """
    if len(argument) > ADDRESS_MAX_LENGTH or not argument.isprintable():
        raise BadSource(f"{without_secrets(argument)!r}: not a valid address")
    if _scheme(argument) == "hf":
        return _hub_model(argument, hub)
    if _scheme(argument) in _OBJECT_SCHEMES:
        return _object_model(argument, hub)
    return _model_at(argument, hub)


def _model_at(url: str, hub: Hub) -> RemoteModel:
    if url_origin(url) is None:
        raise BadSource(f"{without_secrets(url)}: not a valid address")
    parts = urlsplit(url)
    folder, _, quoted_name = parts.path.rpartition("/")
    name = unquote(quoted_name)
    shard = parse_shard_name(name)
    names = [name] if shard is None else _shard_names(shard)
    if not name.lower().endswith(".gguf"):
        raise BadSource(f"{without_secrets(url)}: the address does not end with the name of a GGUF file")
    files = []
    for other in names:
        address = urlunsplit(parts._replace(path=f"{folder}/{quote(other)}", fragment=""))
        files.append(RemoteFile(hub, address, without_secrets(address), other))
    return RemoteModel(tuple(files))


def _shard_names(shard: ShardName) -> list[str]:
    return [str(ShardName(shard.stem, number, shard.count)) for number in range(1, shard.count + 1)]


def _object_model(argument: str, hub: Hub) -> RemoteModel:
    """Return the model in an object store: by the key of a file, by a pattern, or the only one in a folder."""
    from organs.registry.client.ranges import list_objects, parse_object_address

    parsed = parse_object_address(argument if "/" in argument.partition("://")[2] else f"{argument}/")
    if parsed is None:
        raise BadSource(
            f"{without_secrets(argument)}: write {_scheme(argument)}://BUCKET/KEY.gguf, or the address of a folder"
        )
    if _scheme(argument) == "s3" and _scheme(hub.object_endpoint) == "http" and not hub.allows_http:
        problem = f"{without_secrets(hub.object_endpoint)} is an http address"
        raise BadSetting(f"{problem}; to allow requests without encryption, set AWS_ALLOW_HTTP=true")
    bucket, key = parsed
    if has_magic(key) or not key.lower().endswith(".gguf"):
        fixed = key[: min(key.find(letter) for letter in "*?[" if letter in key)] if has_magic(key) else f"{key}/"
        folder = fixed.rpartition("/")[0].strip("/")
        keys = list_objects(hub.client, bucket, folder, allows_http=hub.allows_http)
        files = [path for path in keys if path.lower().endswith(".gguf")]
        chosen = _one_model(argument[:200], files, key if has_magic(key) else None)
    else:
        path = PurePosixPath(key)
        shard = parse_shard_name(path.name)
        chosen = [key] if shard is None else [str(path.with_name(name)) for name in _shard_names(shard)]
    addresses = [f"{bucket}/{path}" for path in chosen]
    remote = tuple(RemoteFile(hub, address, address, PurePosixPath(address).name) for address in addresses)
    return RemoteModel(remote)


class _Sibling(msgspec.Struct, frozen=True):
    rfilename: str


class _Listing(msgspec.Struct, frozen=True):
    sha: str
    siblings: list[_Sibling]


def _hub_model(argument: str, hub: Hub) -> RemoteModel:
    from organs.registry.client.ranges import HubListing

    check_endpoint(hub)
    name, revision, pattern = parse_hub_address(argument)
    url = f"{hub.endpoint}/api/models/{name}/revision/{quote(revision, safe='')}"
    document = HubListing(hub.client, url, f"hf://{name}", hub.headers)
    try:
        listing = msgspec.json.decode(document.read(), type=prepared(_Listing))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"{hub.endpoint} does not answer as a hub does; check HF_ENDPOINT"
        raise BadSource(f"hf://{name}: {reason}: {str(error)[:200]}") from error
    if not re.fullmatch(r"[0-9a-f]{40,64}", listing.sha):
        raise BadSource(f"hf://{name}: {hub.endpoint} does not name a commit; check HF_ENDPOINT")
    paths = [sibling.rfilename for sibling in listing.siblings if sibling.rfilename.lower().endswith(".gguf")]
    chosen = _one_model(f"hf://{name}", paths, pattern)
    files = tuple(
        RemoteFile(
            hub,
            f"{hub.endpoint}/{name}/resolve/{listing.sha}/{quote(path)}",
            f"hf://{name}/{path}",
            PurePosixPath(path).name,
            is_hub_file=True,
            commit=listing.sha,
        )
        for path in chosen
    )
    return RemoteModel(files, name.partition("/")[0])


def check_endpoint(hub: Hub) -> None:
    """Raise BadSetting for an HF_ENDPOINT that is invalid, or to which the token would be sent unencrypted."""
    origin = url_origin(hub.endpoint)
    if origin is None or without_secrets(hub.endpoint) != hub.endpoint:
        raise BadSetting(f"HF_ENDPOINT is not the address of a hub; write for example {HUB}")
    if hub.token is not None and not Address(*origin).is_private:
        problem = f"HF_ENDPOINT is {hub.endpoint}: a token is not sent over plain http to another machine"
        raise BadSetting(f"{problem}; use https")


def parse_hub_address(argument: str) -> tuple[str, str, str | None]:
    """Return the name, the revision and the file (or pattern) of `hf://NAMESPACE/NAME[@REVISION][/FILE][@REVISION]`."""
    match = _HUB_ADDRESS.fullmatch(argument)
    if match is None:
        raise BadSource(
            f"{without_secrets(argument)}: write hf://NAMESPACE/NAME, hf://NAMESPACE/NAME/FILE.gguf, or add @REVISION"
        )
    revision, file = match["revision"], match["file"]
    if file is not None and "@" in file:
        file, _, last = file.rpartition("@")
        if revision is not None or not last:
            raise BadSource(f"{without_secrets(argument)}: give one revision")
        revision = last
    return match["name"], unquote(revision or "main"), file


def _one_model(label: str, paths: Sequence[str], pattern: str | None) -> list[str]:
    """Return the paths of one model among `paths`, shards in order; raises NoSuchFile, BadSource."""
    wanted = [path for path in paths if pattern is None or path == pattern or fnmatchcase(path, pattern)]
    groups: dict[str, list[str]] = {}
    for path in sorted(wanted):
        shard = parse_shard_name(PurePosixPath(path).name)
        key = path if shard is None else str(PurePosixPath(path).with_name(f"{shard.stem} {shard.count}"))
        groups.setdefault(key, []).append(path)
    if not groups:
        if pattern is not None and paths:
            raise NoSuchFile(f"{label}: it has no GGUF file {pattern[:200]}; it has {_few(paths)}")
        raise NoSuchFile(f"{label}: it has no GGUF file")
    if len(groups) > 1:
        firsts = [files[0] for files in groups.values()]
        raise BadSource(f"{label}: it has {len(groups)} GGUF models; name one: {_few(firsts)}")
    (files,) = groups.values()
    shard = parse_shard_name(PurePosixPath(files[0]).name)
    if shard is None:
        return files
    return [str(PurePosixPath(files[0]).with_name(name)) for name in _shard_names(shard)]


def _few(names: Sequence[str]) -> str:
    more = len(names) - LISTED_MAX
    return ", ".join(name[:120] for name in names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
