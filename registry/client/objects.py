"""Objects in S3, Google Cloud Storage and Azure Blob Storage, read by range through obstore (the extra `s3`).

Obstore takes credentials, the region and the address of the service from the environment variables of these services,
such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. It signs requests and repeats those that failed. The rest is checked
here, as for files at http addresses: each answer must be the requested range of the object that was opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from organs.registry.client.address import Address, url_origin, without_secrets
from organs.registry.client.ranges import (
    FIRST_BYTES,
    TAG_MAX_LENGTH,
    RangeClient,
    RangedFile,
    version_of,
)
from organs.registry.errors import BadSetting, BadSource, NoSuchFile, NotAllowed, Unreachable
from organs.registry.store.bucket import open_bucket, short_reason

if TYPE_CHECKING:
    from obstore.store import ObjectStore

LISTED_MAX = 10_000
"""The most objects of one listing."""
_ADDRESS = re.compile(r"(?P<bucket>(s3|gs|az)://[a-z0-9][a-z0-9._-]{1,254})/(?P<key>.*)", re.IGNORECASE | re.ASCII)
T = TypeVar("T")


def parse_object_address(address: str) -> tuple[str, str] | None:
    """Return the bucket (`s3://BUCKET`) and the key of an address `s3://`, `gs://` or `az://`; None for others."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return None
    scheme, _, name = match["bucket"].partition("://")
    return f"{scheme.lower()}://{name}", match["key"]


class ObjectFile(RangedFile):
    """An object in a store; several threads may read it. Nothing is written to disk."""

    def __init__(self, client: RangeClient, address: str, *, allows_http: bool = False) -> None:
        """Request the first bytes and the size of the object; `allows_http` permits unencrypted requests.

        Raises MissingExtra without obstore, BadSource for an invalid address, NoSuchFile, NotAllowed, Unreachable.
        """
        parsed = parse_object_address(address)
        self.name = address[:300]
        if parsed is None:
            raise BadSource(f"{self.name}: not the address of an object")
        self.path = PurePosixPath(parsed[1][-255:])
        self._client, self._key = client, parsed[1]
        self._store = _open_bucket(client, parsed[0], allows_http=allows_http)
        self.size_bytes = -1
        self.version = self._tag = ""
        self._first = self._read(0, FIRST_BYTES)

    def _read(self, offset: int, size: int) -> bytes:
        return _translated(self.name, lambda: self._request(offset, size))

    def _request(self, offset: int, size: int) -> bytes:
        import obstore

        # The condition makes the server refuse a changed object; weak tags cannot be compared.
        is_strong = self._tag and not self._tag.startswith("W/")
        self._client.count_request()
        result = obstore.get(
            self._store,
            self._key,
            options={"range": (offset, offset + size), **({"if_match": self._tag} if is_strong else {})},
        )
        meta = result.meta
        tag = (meta["e_tag"] or "")[:TAG_MAX_LENGTH]
        version = version_of(tag, meta["last_modified"].isoformat())
        if self.size_bytes < 0:
            self.size_bytes, self.version, self._tag = meta["size"], version, tag
        elif (meta["size"], version, tag) != (self.size_bytes, self.version, self._tag):
            raise _changed(self.name)
        expected = min(size, self.size_bytes - offset)
        if tuple(result.range) != (offset, offset + expected):
            raise BadSource(f"{self.name}: the server sends other bytes than those that were requested")
        data = bytes(result.bytes())
        self._client.count(len(data))
        if len(data) != expected:
            raise BadSource(f"{self.name}: the server sends {len(data):,} bytes for a range of {expected:,}")
        return data


def list_objects(client: RangeClient, bucket: str, folder: str, *, allows_http: bool = False) -> list[str]:
    """Return the keys of all objects below `folder` in a bucket (`s3://BUCKET`); an empty folder is the whole bucket.

    Raises MissingExtra without obstore, BadSource for more than LISTED_MAX objects, NoSuchFile, NotAllowed,
    Unreachable.
    """
    name = f"{bucket}/{folder}"[:300]
    store = _open_bucket(client, bucket, allows_http=allows_http)

    def read() -> list[str]:
        import obstore

        keys: list[str] = []
        client.count_request()
        for chunk in obstore.list(store, prefix=folder or None):
            keys += [entry["path"] for entry in chunk]
            if len(keys) > LISTED_MAX:
                raise BadSource(f"{name}: more than {LISTED_MAX:,} objects; name a smaller folder")
        return keys

    return sorted(_translated(name, read))


def _open_bucket(client: RangeClient, bucket: str, *, allows_http: bool) -> ObjectStore:
    """Return the connections to a bucket, which all its objects share."""
    if bucket not in client.stores:
        limits = client.limits
        try:
            client.stores[bucket] = open_bucket(
                bucket,
                allows_http=allows_http,
                connect_seconds=limits.silence_seconds,
                request_seconds=limits.total_seconds,
                retries=limits.tries - 1,
                retry_seconds=limits.total_seconds,
                purpose="read object stores",
            )
        except BadSetting as error:  # a person named the address
            raise BadSource(str(error)) from error
    return client.stores[bucket]


def _translated(name: str, request: Callable[[], T]) -> T:
    """Return the result of `request`; its errors become those of this program."""
    from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError

    try:
        return request()
    except FileNotFoundError as error:
        raise NoSuchFile(f"{name}: no such object, or no such bucket") from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise NotAllowed(f"{name}: access is not allowed; set the credentials of the store") from error
    except PreconditionError as error:
        raise _changed(name) from error
    except ValueError as error:
        raise BadSource(f"{name}: {short_reason(str(error))}") from error
    except (BaseError, OSError) as error:
        raise Unreachable(f"{name}{_server_in(str(error))}: {short_reason(str(error))}") from error


def _server_in(text: str) -> str:
    """Return ` at ` and the server that a message of obstore names; an empty text if it names none."""
    address = re.search(r"https?://[^\s]+", text.partition("\n")[0])
    origin = None if address is None else url_origin(without_secrets(address[0]))
    return "" if origin is None else f" at {Address(*origin)}"


def _changed(name: str) -> BadSource:
    return BadSource(f"{name}: the object changed while it was read; start again")
