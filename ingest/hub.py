"""Models in repositories of the Hugging Face hub: push with its own client, `huggingface_hub`, and pull by ranges.

A model of a registry is sent from its stored organs: no file is written. The token goes to the hub only; the hub's
storage gets signed addresses without it.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from organs.ingest.spool import spooled
from organs.ingest.urls import Hub, RemoteFile, check_endpoint, parse_hub_address
from organs.registry.assembly import FilePlan, FileStream, clipped
from organs.registry.digest import Digest
from organs.registry.errors import (
    BadHubToken,
    BadReply,
    BadSource,
    MissingExtra,
    NoSuchFile,
    NotAllowed,
    OrganError,
    TooMany,
    Unreachable,
)
from organs.registry.gguf import read_header
from organs.registry.progress import Progress
from organs.registry.store.blobs import BlobStore
from organs.registry.store.files import PUBLIC_FILE, placing_error, translating

if TYPE_CHECKING:
    from organs.registry.client.ranges import RangedFile

EXTRA = "hub"
README = "README.md"
SPOOL_FOLDER = ".organ-pull"
"""The folder beside the target in which an interrupted pull stays."""
UNSTATED_WAIT_SECONDS = 60.0
"""The wait after 429 if the hub states none."""


@dataclass(frozen=True, slots=True)
class HubTarget:
    """A repository of a hub, and the branch that gets a commit."""

    name: str
    branch: str

    def __str__(self) -> str:
        return f"hf://{self.name}" + ("" if self.branch == "main" else f"@{self.branch}")


@dataclass(frozen=True, slots=True)
class HubUpload:
    """A file to send: on the disk, from the organs of a registry, or in memory."""

    path: str
    """The path in the repository."""
    size_bytes: int
    content: Path | bytes | FilePlan


@dataclass(frozen=True, slots=True)
class PushedToHub:
    """The result of a push."""

    commit: str
    address: str
    """The address of the page of the commit."""


def hub_target(address: str, hub: Hub) -> HubTarget:
    """Return the repository at `hf://NAMESPACE/NAME[@BRANCH]`.

    Raises BadSource for another address, BadSetting for an HF_ENDPOINT to which no token may be sent, BadHubToken
    without a token.
    """
    name, branch, file = parse_hub_address(address)
    if file is not None:
        raise BadSource(f"{address}: write hf://NAMESPACE/NAME, without a file")
    check_endpoint(hub)
    if hub.token is None:
        raise BadHubToken(f"hf://{name}: a push needs a token of {hub.endpoint}")
    return HubTarget(name, branch)


@dataclass(frozen=True, slots=True)
class HubContent:
    """What a repository of a hub has: the names of its files, and whether it is private."""

    files: tuple[str, ...]
    is_private: bool


class HubRepository:
    """A repository of a hub that the client `huggingface_hub` writes to.

    All methods raise BadHubToken, NotAllowed, NoSuchFile, TooMany, Unreachable, BadReply.
    """

    def __init__(self, hub: Hub, target: HubTarget, *, shows_progress: bool) -> None:
        """Raises MissingExtra without the client, which shows its own progress bars if `shows_progress` is true."""
        try:
            from huggingface_hub import HfApi
            from huggingface_hub.utils.tqdm import disable_progress_bars
        except ImportError as error:
            message = f"a push to a hub needs its client: pip install 'organ-registry[{EXTRA}]'"
            raise MissingExtra(message, EXTRA) from error
        if not shows_progress:
            disable_progress_bars()
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it warns that Xet takes no file objects
        self._api = HfApi(endpoint=hub.endpoint, token=hub.token, library_name="organ-registry")
        self._hub, self.target = hub, target

    def content(self) -> HubContent | None:
        """Return what the repository has; None if there is no such repository."""
        try:
            with _translated(self._hub):
                is_private = bool(self._api.repo_info(self.target.name).private)
        except NoSuchFile:
            return None
        try:
            with _translated(self._hub):
                names = self._api.list_repo_files(self.target.name, revision=self.target.branch)
        except NoSuchFile:  # the branch is new
            names = []
        return HubContent(tuple(names), is_private)

    def push(
        self,
        uploads: Sequence[HubUpload],
        store: BlobStore | None,
        *,
        private: bool,
        advance: Progress,
    ) -> PushedToHub:
        """Create the repository if it is missing, and add `uploads` in one commit; `store` has the organs of plans.

        `advance` gets the bytes of plans as they are read: once for their digest, and once to send them. After an
        interruption, a file that the hub has completely is not sent again.
        """
        from huggingface_hub import CommitOperationAdd

        name, branch = self.target.name, self.target.branch
        message = f"Upload {', '.join(upload.path for upload in uploads)}"[:200]
        with ExitStack() as opened, _translated(self._hub):
            self._api.create_repo(name, private=private, exist_ok=True)
            operations = []
            for item in uploads:
                match item.content:
                    case Path() as file:
                        content: str | bytes | BinaryIO = str(file)
                    case FilePlan() as plan:
                        assert store is not None, "the tensors of a plan are in a store"
                        content = cast(BinaryIO, opened.enter_context(PlanStream(store, plan, advance)))
                    case data:
                        content = data
                operations.append(CommitOperationAdd(item.path, content))
            commit = self._api.create_commit(name, operations, commit_message=message, revision=branch)
        return PushedToHub(str(commit.oid), str(commit.commit_url))


class PlanStream(io.BufferedIOBase):
    """The bytes of a plan as a file that can be read from any position. They are read from the store, and checked."""

    def __init__(self, store: BlobStore, plan: FilePlan, advance: Progress) -> None:
        self._store, self._plan, self._advance = store, plan, advance
        self._position = 0
        self._stream: FileStream | None = None
        self._views: Iterator[memoryview] = iter(())
        self._rest = b""
        """Bytes from the position on that were decoded and not read."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position; raises ValueError for a position outside of the file."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._plan.size_bytes}[whence]
        position = start + offset
        if not 0 <= position <= self._plan.size_bytes:
            raise ValueError("a position outside of the file")
        if position != self._position:
            self._release()
            self._position = position
        return position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes, all if it is negative. Raises CorruptBlob, MissingBlob."""
        left = self._plan.size_bytes - self._position
        wanted = left if size is None or size < 0 else min(size, left)
        pieces, found = [self._rest], len(self._rest)
        while found < wanted:
            if self._stream is None:
                part = clipped(self._plan, self._position + len(self._rest), self._plan.size_bytes)
                self._stream = FileStream(self._store, part).__enter__()
                self._views = iter(self._stream)
            pieces.append(bytes(next(self._views)))
            found += len(pieces[-1])
        data = b"".join(pieces)
        self._rest = data[wanted:]
        self._position += wanted
        self._advance(wanted)
        return data[:wanted]

    def close(self) -> None:
        self._release()
        super().close()

    def _release(self) -> None:
        stream, self._stream, self._views, self._rest = self._stream, None, iter(()), b""
        if stream is not None:
            stream.__exit__()


@contextmanager
def _translated(hub: Hub) -> Iterator[None]:
    """Raise errors of the hub's client as errors of this project. Messages have neither tokens nor signed addresses."""
    from huggingface_hub.errors import HfHubHTTPError

    of_http = cast(type[Exception], HfHubHTTPError.__mro__[1])  # the base of all errors of its HTTP library
    try:
        yield
    except OrganError:
        raise
    except (of_http, OSError, RuntimeError, ValueError) as error:
        raise _error_of(error, hub) from None


def _error_of(error: BaseException, hub: Hub) -> OrganError:
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    own = next((cause for cause in causes if isinstance(cause, OrganError)), None)
    if own is not None:
        return own
    response = next((found for cause in causes if (found := getattr(cause, "response", None)) is not None), None)
    if response is None:
        kind = type(causes[-1]).__name__
        if isinstance(causes[-1], ValueError | RuntimeError):
            return BadReply(f"{hub.endpoint} does not answer as a hub does ({kind}); check HF_ENDPOINT")
        return Unreachable(f"{hub.endpoint}: the connection failed ({kind}); run the same command again to continue")
    status = int(response.status_code)
    stated = response.headers.get("X-Error-Message", "")[:200]
    reason = f"{hub.endpoint} answers {status}" + (f": {stated}" if stated else "")
    if status == 401:
        return BadHubToken(f"{reason}; the token is missing or not valid")
    if status == 403:
        return NotAllowed(f"{reason}; the token may not write to this repository")
    if status == 404:
        return NoSuchFile(reason)
    if status == 429:
        return TooMany(reason, UNSTATED_WAIT_SECONDS)
    return BadReply(reason) if status < 500 else Unreachable(f"{reason}; run the same command again to continue")


def pull_from_hub(remote: RemoteFile, file: RangedFile, target: Path, progress: Progress) -> Digest | None:
    """Write the GGUF file `remote`, opened as `file`, to `target`, which is replaced.

    Return the SHA-256 that the hub states, which was checked; None if it states none. Each range and the header are
    checked too. Only then the file gets its name. An interrupted pull stays in SPOOL_FOLDER beside the target and
    continues. `progress` is called with 0 while it is fetched. Raises BadSource, BadGguf, NotAllowed, Unreachable,
    DiskFull, StoreUnwritable, Busy.
    """
    folder = target.parent / SPOOL_FOLDER
    sha256 = file.stated_sha256
    with spooled(folder, remote, file, sha256, progress) as copy:
        read_header(copy)
        named = folder / f"{copy.location.name}.done"
        with translating(target, placing_error):
            with suppress(FileNotFoundError):
                named.unlink()
            os.link(copy.location, named)
            named.chmod(PUBLIC_FILE)
            named.replace(target)
    with suppress(OSError):  # the pull of another file is in it
        folder.rmdir()
    return sha256
