"""A registry and its server: figures and totals, the root of the API, and for administrators event log and health."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.columns import CellKind, Column, data_only
from organs.registry.entities.base import (
    WHOLE_MAX,
    Bytes,
    Count,
    Counts,
    Entity,
    Items,
    ModelText,
    Page,
    Text,
    Time,
    Word,
)
from organs.registry.entities.job import JobSummary


class Figures(Entity):
    """The public numbers of the registry, which count only visible models.

    The size of everything that is stored is not public. It would disclose how large a model in quarantine is, and its
    growth would disclose whether the bytes of an upload are registered already.
    """

    models: Count
    placements: Annotated[Count, Meta(description="Places of tensors in these models.")]
    organs: Annotated[Count, Meta(description="Different tensors at these places.")]
    size_bytes: Annotated[Bytes, Meta(description="Bytes of the files of these models.")]


class RegistryTotals(Entity, kw_only=False):
    """The totals of everything that is stored, for administrators. Blobs that will be removed do not count."""

    models: Annotated[Count, Meta(description="Visible models.")]
    placements: Annotated[Count, Meta(description="Places of tensors in these models.")]
    organs: Annotated[Count, Meta(description="Different tensors at these places.")]
    blobs: Count
    size_bytes: Annotated[Bytes, Meta(description="Plain bytes of the blobs.")]
    stored_bytes: Annotated[Bytes, Meta(description="Bytes of the blobs as they are stored.")]


class Root(Entity):
    """The root of the API."""

    name: Text
    version: Annotated[Text, Meta(description="The version of the program.")]
    figures: Figures
    links: Annotated[dict[Text, Text], Meta(max_length=100, description="Addresses by name.")]


class Event(Entity):
    """An action in the event log."""

    id: Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
    at: Annotated[Time, Meta(description="In UTC.")]
    contributor: Annotated[
        Word, Meta(description="The account that did it; `local` is a user of the registry's machine.")
    ]
    action: Annotated[Word, Meta(description="A few words: `yank`.")]
    model: ModelText | None
    text: Annotated[Text, Meta(description="The object of the action, and the reason. Never a token or an address.")]


EVENT_COLUMNS = (
    *data_only("id"),
    Column("at", "time (UTC)", CellKind.SECOND),
    Column("contributor", rank=1),
    Column("action"),
    *data_only("model"),
    Column("text", "details"),
)


class EventPage(Page[Event]):
    """A page of the event log, newest first."""


class AdminOverview(Entity):
    """The registry in numbers, with the newest events, for administrators."""

    waiting: Annotated[Count, Meta(description="Submissions that wait for review.")]
    models: Annotated[Counts, Meta(description="Models by state.")]
    contributors: Annotated[Counts, Meta(description="Contributors by state.")]
    uploads: Annotated[Count, Meta(description="Uploads that are open, or not published yet.")]
    upload_bytes: Annotated[Bytes, Meta(description="The sum of the declared sizes of the uploads.")]
    events: Annotated[tuple[Event, ...], Meta(max_length=1000)]


class JobCount(Entity):
    """The number of jobs of one kind in one state."""

    kind: Word
    state: Word
    jobs: Count


class QueueHealth(Entity):
    """The queue of jobs."""

    jobs: Annotated[Items[JobCount], Meta(description="Jobs by state and kind.")]
    waiting: Count
    running: Count
    failed: Annotated[Count, Meta(description="Jobs that failed in the last 24 hours.")]
    waiting_since: Annotated[Time, Meta(description="When the oldest waiting job was requested, in UTC.")] | None


class IntakeHealth(Entity):
    """What contributors send, and what waits for a decision."""

    uploads: Annotated[Count, Meta(description="Uploads whose bytes have not all arrived.")]
    upload_bytes: Annotated[Bytes, Meta(description="The sum of their declared sizes.")]
    received_bytes: Annotated[Bytes, Meta(description="How much of it has arrived.")]
    submissions: Annotated[Counts, Meta(description="Submissions by state; `quarantined` waits for a review.")]
    models: Annotated[Counts, Meta(description="Models by state.")]


class DiskSpace(Entity):
    """The disk of a folder of this server."""

    name: Annotated[Word, Meta(description="`registry`, `temporary files`, and `blobs` or `cache`.")]
    free_bytes: Bytes
    size_bytes: Bytes


class StorageHealth(Entity):
    """What is stored, and the disks of this server."""

    totals: RegistryTotals
    corrupt_blobs: Annotated[Count, Meta(description="Blobs whose stored bytes are wrong or missing.")]
    is_bucket: Annotated[bool, Meta(description="Whether the blobs are in a bucket.")]
    cache_bytes: Annotated[Bytes, Meta(description="Bytes in the local cache of a bucket.")] | None
    disks: Annotated[tuple[DiskSpace, ...], Meta(max_length=100)]


class DatabaseHealth(Entity):
    """The database of the registry."""

    engine: Annotated[Text, Meta(description="`SQLite` or `PostgreSQL`, with its version.")]
    size_bytes: Bytes
    revision: Annotated[Word, Meta(description="The version of the schema.")]


class SlowStatement(Entity):
    """A statement of SQL that took long."""

    at: Annotated[Time, Meta(description="When it ended, in UTC.")]
    connection: Annotated[Word, Meta(description="`reader` or `writer`.")]
    seconds: Annotated[float, Meta(ge=0, description="Seconds.")]
    is_stopped: Annotated[bool, Meta(description="Whether it failed, for example because of its time limit.")]
    statement: Annotated[Text, Meta(description="Its text without the values of parameters; long texts are cut.")]


class LoggedError(Entity):
    """An error in the log of the server, without its traceback."""

    at: Annotated[Time, Meta(description="In UTC.")]
    logger: Annotated[Text, Meta(description="The part of the program that logged it.")]
    message: Annotated[Text, Meta(description="Long messages are cut.")]


class ProcessHealth(Entity):
    """What went wrong in the process that answers. The server's other processes have their own lists."""

    process: Annotated[Count, Meta(description="The id of the process.")]
    since: Annotated[Time, Meta(description="When it began to record, in UTC.")]
    slow_statements: Annotated[
        tuple[SlowStatement, ...], Meta(max_length=100, description="The newest slow statements, newest first.")
    ]
    slow_count: Annotated[Count, Meta(description="All slow statements of this process.")]
    errors: Annotated[tuple[LoggedError, ...], Meta(max_length=100, description="The newest errors, newest first.")]
    error_count: Annotated[Count, Meta(description="All errors that this process logged.")]


class HealthCheck(Entity):
    """The result of a check of the server."""

    name: Word
    state: Annotated[Word, Meta(description="`ok`, `warning` or `failed`.")]
    sentence: Annotated[Text, Meta(description="What was found, and what to do.")]
    address: Annotated[Text, Meta(description="A page with more.")] | None = None


class ServerHealth(Entity):
    """The health of the server."""

    checks: Annotated[
        tuple[HealthCheck, ...], Meta(max_length=100, description="What needs action is first: failed, warning, ok.")
    ]
    queue: QueueHealth
    failed_jobs: Annotated[
        tuple[JobSummary, ...], Meta(max_length=100, description="The jobs that failed last, newest first.")
    ]
    intake: IntakeHealth
    storage: StorageHealth
    database: DatabaseHealth
    process: ProcessHealth
