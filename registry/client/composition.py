"""Compose in a remote registry: plans and jobs run on the server; the file is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from organs.registry.client.address import check_file_name, gguf_path
from organs.registry.client.connection import Connection
from organs.registry.client.fetching import FileToFetch, fetch
from organs.registry.client.files import file_of_lock
from organs.registry.compose.api import NO_LOCK_YET, RecipeBuilder, RecipePlan
from organs.registry.compose.build import Progress
from organs.registry.compose.lock import Lock, parse_lock
from organs.registry.compose.recipe import Recipe, recipe_values
from organs.registry.endpoints import chimeras, jobs
from organs.registry.entities.base import E
from organs.registry.entities.job import Job
from organs.registry.entities.plan import MadeChimera, PlannedRecipe
from organs.registry.entities.problem import INTERNAL, error_of_document
from organs.registry.errors import BadLock, BadRecipe, BadReply, NotComposable, NotFound, Unreachable
from organs.registry.output_files import OutputFiles
from organs.registry.progress import StepProgress
from organs.registry.store.files import Files, check_room, placing_error, translating

if TYPE_CHECKING:
    from organs.registry.client.remote import RemoteRegistry

FIRST_SECONDS, LAST_SECONDS, GROWTH = 0.05, 2.0, 1.4
"""The first and the longest wait between two requests for a job, and the factor by which the wait grows."""


def job_result(connection: Connection, kind: type[E], job: Job, progress: StepProgress) -> E:
    """Wait until `job`, which was started, has finished, and return its result.

    The job continues if the wait is interrupted. Raises the error of a job that failed; Unreachable for a job that was
    cancelled, met an error of the server, or lost its runner; BadReply for a result that is not an entity of `kind`.
    """
    seconds = FIRST_SECONDS
    while job.is_active:
        connection.sleep(seconds)
        seconds = min(seconds * GROWTH, LAST_SECONDS)
        job = jobs.job(connection, job.id)
        progress(job.progress, job.note)
    if job.state == "failed" and job.problem is not None and job.problem.get("status") != INTERNAL:
        raise error_of_document(job.problem, connection.url)
    if job.state != "finished" or job.result is None:
        reason = f": {job.note[:1000]}" if job.note else ""
        raise Unreachable(f"job {job.id} of {connection.url} is {job.state}{reason}")
    try:
        return job.result_as(kind)
    except ValueError as error:
        raise BadReply(f"{connection.url} does not answer as a registry does: {str(error)[:300]}") from error


@dataclass(frozen=True, slots=True, repr=False)
class RemoteComposition(RecipeBuilder):
    """A recipe on the models of a remote registry."""

    registry: RemoteRegistry

    def plan(self) -> RemotePlan:
        """Return the plan, which the server makes; it makes nothing else. Raises NotFound for an unknown base."""
        planned = chimeras.plan(self.registry.connection, recipe_values(self.recipe), every_part=True)
        if planned.plan is None:
            if [finding.code for finding in planned.findings] == ["unknown-base"]:
                raise NotFound(planned.findings[0].sentence)
            raise BadRecipe("recipe", [(finding.field, finding.sentence) for finding in planned.findings])
        return RemotePlan(self.recipe, planned, self.registry)


class RemotePlan(RecipePlan):
    """The plan of a recipe on the models of a remote registry."""

    def __init__(self, recipe: Recipe, planned: PlannedRecipe, registry: RemoteRegistry) -> None:
        super().__init__(recipe, planned)
        self._registry, self._connection = registry, registry.connection

    @property
    def file_name(self) -> str:
        """The name of the file; raises BadReply for a name that is not safe."""
        return check_file_name(super().file_name)

    def accepting_all(self) -> RemotePlan:
        """Return the plan of the same recipe with all of its warnings accepted; the server plans it again."""
        codes = dict.fromkeys((*self.recipe.accept, *self.planned.unaccepted))
        return RemoteComposition(structs.replace(self.recipe, accept=tuple(codes)), self._registry).plan()

    def work_bytes(self, *, with_file: bool) -> int:
        """Return the size of the file in bytes, counted twice if the file is also downloaded."""
        return self.size_bytes * (2 if with_file else 1)

    def lock(self) -> Lock:
        """Return the lock; nothing is made. Raises NotComposable if the plan cannot be made or computes organs."""
        self.check()
        planned = chimeras.plan(self._connection, recipe_values(self.recipe), lock=True)
        if planned.lock is None:
            raise NotComposable([NO_LOCK_YET], [])
        try:
            return parse_lock(planned.lock)
        except BadLock as error:
            raise BadReply(f"{self._connection.url} gives an invalid lock: {error}") from error

    def files(self) -> OutputFiles:
        """Return the file of the chimera, which this machine assembles from its parts; nothing is registered."""
        return file_of_lock(self._registry, self.lock())

    def register(self, progress: Progress | None = None) -> MadeChimera:
        """Make and register the chimera on the server; no file is sent. Raises as `assemble` does."""
        self.check()
        reported_bytes = 0

        def report(share: float, note: str) -> None:
            nonlocal reported_bytes
            done_bytes = int(share * self.size_bytes)
            if progress is not None and done_bytes > reported_bytes:
                progress(note, done_bytes - reported_bytes)
                reported_bytes = done_bytes

        job = chimeras.compose(self._connection, recipe_values(self.recipe))
        return job_result(self._connection, MadeChimera, job, report)

    def assemble(self, path: str | Path, progress: Progress | None = None) -> MadeChimera:
        """Make and register the chimera on the server, and download its file to `path`, replacing an existing file.

        Raises NotComposable for refusals and warnings that are not accepted, NotAllowed, Unreachable, DiskFull; then
        `path` is unchanged. If the chimera is already registered then, it stays registered.
        """
        target = Path(path)
        self.check()
        with translating(target, placing_error):  # before the chimera is made
            check_room(target.parent, self.size_bytes, Files())
        made = self.register(progress)
        file = FileToFetch(gguf_path(made.model), made.size_bytes, made.sha256)
        fetch(self._connection, file, target, lambda size: progress("fetch", size) if progress is not None else None)
        return made
