"""The health of a server, for administrators: its queue, intake, storage and database, and what went wrong."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.entities.about import RegistryTotals
from organs.registry.entities.base import ITEMS_MAX, Bytes, Count, Counts, Entity, Text, Time, Word
from organs.registry.entities.job import JobSummary

Seconds = Annotated[float, Meta(ge=0, description="Seconds.")]


class JobCount(Entity, frozen=True, kw_only=True):
    """The number of jobs of one kind in one state."""

    kind: Word
    state: Word
    jobs: Count


class QueueHealth(Entity, frozen=True, kw_only=True):
    """The queue of jobs."""

    jobs: Annotated[tuple[JobCount, ...], Meta(max_length=ITEMS_MAX, description="Jobs by state and kind.")]
    waiting: Count
    running: Count
    failed: Annotated[Count, Meta(description="Jobs that failed in the last 24 hours.")]
    waiting_since: Annotated[Time, Meta(description="When the oldest waiting job was requested, in UTC.")] | None


class IntakeHealth(Entity, frozen=True, kw_only=True):
    """What contributors send, and what waits for a decision."""

    uploads: Annotated[Count, Meta(description="Uploads whose bytes have not all arrived.")]
    upload_bytes: Annotated[Bytes, Meta(description="The sum of their declared sizes.")]
    received_bytes: Annotated[Bytes, Meta(description="How much of it has arrived.")]
    submissions: Annotated[Counts, Meta(description="Submissions by state; `quarantined` waits for a review.")]
    models: Annotated[Counts, Meta(description="Models by state.")]


class DiskSpace(Entity, frozen=True, kw_only=True):
    """The disk of a folder of this server."""

    name: Annotated[Word, Meta(description="`registry`, `temporary files`, and `blobs` or `cache`.")]
    free_bytes: Bytes
    size_bytes: Bytes


class StorageHealth(Entity, frozen=True, kw_only=True):
    """What is stored, and the disks of this server."""

    totals: RegistryTotals
    corrupt_blobs: Annotated[Count, Meta(description="Blobs whose stored bytes are wrong or missing.")]
    is_bucket: Annotated[bool, Meta(description="Whether the blobs are in a bucket.")]
    cache_bytes: Annotated[Bytes, Meta(description="Bytes in the local cache of a bucket.")] | None
    disks: Annotated[tuple[DiskSpace, ...], Meta(max_length=100)]


class DatabaseHealth(Entity, frozen=True, kw_only=True):
    """The database of the registry."""

    engine: Annotated[Text, Meta(description="`SQLite` or `PostgreSQL`, with its version.")]
    size_bytes: Bytes
    revision: Annotated[Word, Meta(description="The version of the schema.")]


class SlowStatement(Entity, frozen=True, kw_only=True):
    """A statement of SQL that took long."""

    at: Annotated[Time, Meta(description="When it ended, in UTC.")]
    connection: Annotated[Word, Meta(description="`reader` or `writer`.")]
    seconds: Seconds
    is_stopped: Annotated[bool, Meta(description="Whether it failed, for example because of its time limit.")]
    statement: Annotated[Text, Meta(description="Its text without the values of parameters; long texts are cut.")]


class LoggedError(Entity, frozen=True, kw_only=True):
    """An error in the log of the server, without its traceback."""

    at: Annotated[Time, Meta(description="In UTC.")]
    logger: Annotated[Text, Meta(description="The part of the program that logged it.")]
    message: Annotated[Text, Meta(description="Long messages are cut.")]


class ProcessHealth(Entity, frozen=True, kw_only=True):
    """What went wrong in the process that answers. The server's other processes have their own lists."""

    process: Annotated[Count, Meta(description="The id of the process.")]
    since: Annotated[Time, Meta(description="When it began to record, in UTC.")]
    slow_statements: Annotated[
        tuple[SlowStatement, ...], Meta(max_length=100, description="The newest slow statements, newest first.")
    ]
    slow_count: Annotated[Count, Meta(description="All slow statements of this process.")]
    errors: Annotated[tuple[LoggedError, ...], Meta(max_length=100, description="The newest errors, newest first.")]
    error_count: Annotated[Count, Meta(description="All errors that this process logged.")]


class HealthCheck(Entity, frozen=True, kw_only=True):
    """The result of a check of the server."""

    name: Word
    state: Annotated[Word, Meta(description="`ok`, `warning` or `failed`.")]
    sentence: Annotated[Text, Meta(description="What was found, and what to do.")]
    address: Annotated[Text, Meta(description="A page with more.")] | None = None


class ServerHealth(Entity, frozen=True, kw_only=True):
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
