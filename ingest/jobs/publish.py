"""The job kinds `inspect` and `publish`: a submission is inspected, or published as a model."""

from __future__ import annotations

from organs.ingest.contributions.intake import process_submission, settle_abandoned
from organs.ingest.contributions.submissions import INSPECT as INSPECT_NAME
from organs.ingest.contributions.submissions import PUBLISH as PUBLISH_NAME
from organs.ingest.jobs.kind import INTAKE, JobKind, ReportProgress
from organs.registry.entities.job import SubmissionArguments, SubmissionJobResult
from organs.registry.local import LocalRegistry


def _kind(name: str) -> JobKind[SubmissionArguments]:
    def run(
        registry: LocalRegistry, arguments: SubmissionArguments, report_progress: ReportProgress, _contributor: str
    ) -> SubmissionJobResult:
        settle_abandoned(registry)
        return process_submission(registry, arguments.submission, report_progress, publish=name == PUBLISH_NAME)

    return JobKind(name, INTAKE, SubmissionArguments, run)


INSPECT = _kind(INSPECT_NAME)
"""Takes `submission`, an id; returns it with its `state`."""
PUBLISH = _kind(PUBLISH_NAME)
"""Takes and returns the same as `inspect`, and registers a model unless the submission is refused."""
