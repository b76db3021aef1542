"""Checks of the installation of a registry for its operator: settings, folders, database, bucket, clocks.

The checks change nothing, except that a small object is written to the bucket and removed again.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from organs.registry import settings as names
from organs.registry.amounts import size_text
from organs.registry.catalog.engine import parse_database_url
from organs.registry.entities.server import DiskSpace
from organs.registry.errors import OrganError, StoreUnreachable
from organs.registry.settings import Settings
from organs.registry.store.codec import fast

FREE_MIN_BYTES, FREE_MIN_SHARE = 2 * 10**9, 0.05
"""Less free space than both of these is a warning."""
KEY_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""One of these is set where programs get the credentials of S3 from their environment."""
CLOCK_MAX_SECONDS = 5.0
"""The times of models and events, and the signatures of requests to a bucket, need clocks that differ by less."""
SLOW_SECONDS = 0.05
"""A statement that does nothing and takes longer makes pages slow: they need some dozens of statements."""

State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    sentence: str
    """What was found, and what to do if it is not ok."""


def check_installation(settings: Settings, environment: Mapping[str, str], head: str) -> list[Check]:
    """Return the results of all checks. `head` is the newest revision of the schema. Faults never raise."""
    checks = [*check_machine(settings, environment), _check_compiled_code()]
    checks += _caught("database", lambda: _check_database(settings, head))
    if settings.bucket is not None:
        checks += _caught("bucket", lambda: _check_bucket(settings, environment))
    return checks


def check_machine(settings: Settings, environment: Mapping[str, str]) -> list[Check]:
    """Return the results of the checks that need no connection: settings, program, folder, free space."""
    program = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {platform.system()}."
    checks = [_check_names(environment), _limits(settings), Check("program", "ok", program), _check_mode(settings.home)]
    for disk, folder in _disks(settings):
        is_low = disk.free_bytes < FREE_MIN_BYTES and disk.free_bytes < FREE_MIN_SHARE * disk.size_bytes
        sentence = f"{size_text(disk.free_bytes)} of {size_text(disk.size_bytes)} are free on the disk of {folder}."
        if is_low:
            sentence = f"{sentence} Uploads and ingests are refused on a full disk."
        checks.append(Check(f"space: {disk.name}", "warning" if is_low else "ok", sentence))
    return checks


def disk_spaces(settings: Settings) -> tuple[DiskSpace, ...]:
    """Return the space on the disks of the registry's folders on this machine."""
    return tuple(disk for disk, _ in _disks(settings))


def _check_names(environment: Mapping[str, str]) -> Check:
    known = {value for name, value in vars(names).items() if name.endswith("_VARIABLE")}
    unknown = sorted(name for name in environment if name.startswith("ORGAN_") and name not in known)
    if unknown:
        sentence = f"{', '.join(unknown)[:200]}: no such setting. The guide lists all settings."
        return Check("settings", "warning", sentence)
    return Check("settings", "ok", "All variables that begin with ORGAN_ are known.")


def _limits(settings: Settings) -> Check:
    """Return what contributors may send."""
    review = "held for review" if settings.review == "manual" else "published after their check"
    quota, longest = size_text(settings.quota_bytes), size_text(settings.upload_max_bytes)
    sentence = (
        f"In this process, submissions are {review}, a contributor's quota is {quota} by default, and the largest "
        f"upload {longest}."
    )
    return Check("contributions", "ok", sentence)


def _check_compiled_code() -> Check:
    """Return whether the compiled kernels of the codecs can be used, or why numpy does their work."""
    name = "compiled code"
    if importlib.util.find_spec("numba") is None:
        return Check(name, "ok", "The extra fast is not installed: numpy does the work, which is slower.")
    try:
        has_cache = fast.has_cache()
    except ImportError as error:
        return Check(name, "warning", f"numba cannot be loaded, so numpy does the work: {_first_line(error)}.")
    if not has_cache:
        return Check(name, "warning", f"{fast.NO_CACHE}.")
    return Check(name, "ok", "numba compiles the inner loops, and keeps the result for other processes.")


def _check_mode(home: Path) -> Check:
    """Return whether other users of this machine can read the registry's folder."""
    try:
        mode = home.stat().st_mode & 0o777
    except OSError as error:
        return Check("folder", "ok", f"{home}: {error.strerror}; the folder is created when something is stored.")
    if mode & 0o077:
        sentence = f"{home} has mode {mode:04o}: other users of this machine can read it. To prevent this: chmod 700."
        return Check("folder", "failed", sentence)
    if not os.access(home, os.W_OK | os.X_OK):
        return Check("folder", "failed", f"{home} cannot be written by this user. Change its owner.")
    return Check("folder", "ok", f"{home} has mode {mode:04o}: other users of this machine cannot read it.")


def _disks(settings: Settings) -> Iterator[tuple[DiskSpace, Path]]:
    """Yield the space on the disk of each folder, and the folder."""
    folders = {"registry": settings.home, "temporary files": Path(tempfile.gettempdir())}
    if settings.bucket is None:
        folders["blobs"] = settings.blobs
    elif settings.blob_cache_bytes:
        folders["cache"] = settings.blob_cache
    for name, folder in folders.items():
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        usage = shutil.disk_usage(existing)
        yield DiskSpace(name=name, free_bytes=usage.free, size_bytes=usage.total), folder


def _caught(name: str, check: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """Yield the results of `check`; an error becomes a failed check."""
    try:
        yield from check()
    except (OrganError, SQLAlchemyError, sqlite3.Error, OSError, ModuleNotFoundError) as error:
        yield Check(name, "failed", f"{_first_line(getattr(error, 'orig', None) or error)}.")


def _first_line(failure: BaseException) -> str:
    return str(failure).strip().partition("\n")[0][:300]


def _check_database(settings: Settings, head: str) -> Iterator[Check]:
    url = parse_database_url(settings.database_url)
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        if not path.exists():
            yield Check("database", "ok", f"{path} does not exist yet; it is created when something is stored.")
            return
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        yield _check_revision(f"SQLite, {path} ({size_text(path.stat().st_size)})", revision, head)
        return
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as server:
        version = server.execute(text("SHOW server_version")).scalar_one()
        encoding = server.execute(text("SHOW server_encoding")).scalar_one()
        has_schema = server.execute(text("SELECT to_regclass('alembic_version') IS NOT NULL")).scalar_one()
        revision = server.execute(text("SELECT version_num FROM alembic_version")).scalar() if has_schema else None
        begin = time.monotonic()
        moment: datetime = server.execute(text("SELECT clock_timestamp()")).scalar_one()
        seconds = time.monotonic() - begin
        difference = abs((datetime.now(UTC) - moment).total_seconds())
    if encoding != "UTF8":
        yield Check("database", "failed", f"The database has the encoding {encoding}. Create one with UTF8.")
    yield _check_revision(f"PostgreSQL {version} at {url.host or 'a local socket'}", revision, head)
    state: State = "ok" if seconds < SLOW_SECONDS else "warning"
    yield Check("database speed", state, f"A statement takes {1000 * seconds:.1f} ms.")
    state = "ok" if difference < CLOCK_MAX_SECONDS else "failed"
    advice = "" if state == "ok" else " Synchronise the clocks of all machines (NTP)."
    yield Check("clock", state, f"This machine and the database differ by {difference:.1f} s.{advice}")


def _check_revision(place: str, revision: str | None, head: str) -> Check:
    if revision is None:
        return Check("database", "ok", f"{place} is empty; the first program that opens it creates the tables.")
    if revision > head:
        sentence = f"{place} has the schema {revision}, this program knows {head}. Upgrade the program."
        return Check("database", "failed", sentence)
    if revision < head:
        sentence = (
            f"{place} has the schema {revision}. The next program that opens it updates it to {head}: back it up."
        )
        return Check("database", "warning", sentence)
    return Check("database", "ok", f"{place}, schema {revision}.")


def _check_bucket(settings: Settings, environment: Mapping[str, str]) -> Iterator[Check]:
    from organs.registry.store.bucket import BlobBucket

    assert settings.bucket is not None
    bucket = BlobBucket(settings.bucket, allows_http=settings.bucket_allows_http)
    begin = time.monotonic()
    try:
        found = bucket.probe()
    except StoreUnreachable as error:
        advice, endpoint = "", environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL", "")
        if endpoint.startswith("http://") and not settings.bucket_allows_http:
            advice = f" The endpoint begins with http://: set {names.ALLOW_HTTP_VARIABLE}=true to allow that."
        elif settings.bucket.startswith("s3://") and not any(name in environment for name in KEY_VARIABLES):
            advice = " If this machine has no role in the cloud, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        yield Check("bucket", "failed", f"{_first_line(error.__cause__ or error)}.{advice}")
        return
    seconds = time.monotonic() - begin
    needed = {"ranges": found.reads_ranges, "sizes in listings": found.states_sizes}
    missing = [name for name, is_there in needed.items() if not is_there]
    if missing:
        yield Check("bucket", "failed", f"{settings.bucket} does not support {' and '.join(missing)}.")
        return
    conditional = "with" if found.creates_only else "without"
    sentence = (
        f"{settings.bucket} can be written, read, listed and removed ({seconds:.1f} s), {conditional} conditional"
    )
    yield Check("bucket", "ok", f"{sentence} writes, which the registry does not need.")
