"""Fleets: plans of work for many processes, and how far they are."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.entities.base import WHOLE_MAX, Bytes, Count, Entity, Page, Text, Time, Word

RunId = Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
LISTED_MAX = 1000


class FleetRunSummary(Entity):
    """A run as a line of a list."""

    id: RunId
    name: Annotated[Word, Meta(description="The name of the plan.")]
    units: Annotated[Count, Meta(description="Units of work.")]
    queued: Annotated[Count, Meta(description="Units that wait for a worker.")]
    running: Annotated[Count, Meta(description="Units that a worker does now.")]
    done: Annotated[Count, Meta(description="Units that are done.")]
    failed: Annotated[Count, Meta(description="Units with an error.")]
    set_aside: Annotated[Count, Meta(description="Units whose worker died several times.")]
    size_bytes: Annotated[Bytes, Meta(description="Bytes of the files of all units, as far as they are known.")]
    done_bytes: Annotated[Bytes, Meta(description="Bytes of the files of the units that are done.")]
    units_a_minute: Annotated[
        float, Meta(ge=0, description="Units that were done in a minute, in the last ten minutes; at the end: in all.")
    ]
    bytes_a_second: Annotated[float, Meta(ge=0, description="Bytes of these units in a second.")]
    created_at: Annotated[Time, Meta(description="When the run began, in UTC.")]
    ends_at: Annotated[Time, Meta(description="When it will probably end, or when it ended; null if unknown.")] | None

    @property
    def is_over(self) -> bool:
        """Whether no unit waits or runs."""
        return self.queued == self.running == 0


class FleetRunPage(Page[FleetRunSummary]):
    """A page of runs, newest first."""


class FleetFailure(Entity):
    """A unit that failed, or was set aside."""

    number: Annotated[Count, Meta(description="Its place in the plan.")]
    work: Annotated[Word, Meta(description="`ingest`, `measure`, `repack` or `validate`.")]
    source: Annotated[Text, Meta(description="A path, an address, or names of models.")]
    state: Annotated[Word, Meta(description="`failed` or `set_aside`.")]
    note: Annotated[Text, Meta(description="The reason.")]
    worker: Annotated[Text, Meta(description="The process that did it last.")] | None
    finished_at: Time | None


class FleetWorker(Entity):
    """A process that did units of a run."""

    name: Text
    version: Annotated[Text, Meta(description="The versions of the program and of its codecs.")] | None
    units: Annotated[Count, Meta(description="Units that it did last.")]
    running: Annotated[Count, Meta(description="Units that it does now.")]
    seen_at: Annotated[Time, Meta(description="When it last began or ended a unit.")] | None


class FleetRun(FleetRunSummary):
    """A run with its failures and its workers."""

    dashboard: Annotated[Text, Meta(description="The address of Dask's page about the work.")] | None
    failures: Annotated[tuple[FleetFailure, ...], Meta(max_length=LISTED_MAX)]
    failures_left_out: Count
    workers: Annotated[tuple[FleetWorker, ...], Meta(max_length=LISTED_MAX)]
    workers_left_out: Count
