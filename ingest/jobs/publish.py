"""The job kinds `inspect` and `publish`: a submission is inspected, or published as a model."""

from __future__ import annotations

from organs.ingest.contributions.intake import (
    process_submission,
    settle_abandoned,
)
from organs.ingest.contributions.submissions import INSPECT as INSPECT_NAME
from organs.ingest.contributions.submissions import PUBLISH as PUBLISH_NAME
from organs.ingest.jobs.kind import (
    INTAKE,
    Inputs,
    JobKind,
    ReportProgress,
    check_members,
    whole_number,
)
from organs.registry.entities.job import SubmissionArguments, SubmissionJobResult
from organs.registry.local import LocalRegistry

ID_MAX = 2**63 - 1


def _check(arguments: Inputs) -> SubmissionArguments:
    check_members(arguments, ("submission",))
    return SubmissionArguments(submission=whole_number(arguments, "submission", 0, 1, ID_MAX))


def _inspect(
    registry: LocalRegistry, arguments: SubmissionArguments, report_progress: ReportProgress, _contributor: str
) -> SubmissionJobResult:
    settle_abandoned(registry)
    return process_submission(registry, arguments.submission, report_progress, publish=False)


def _publish(
    registry: LocalRegistry, arguments: SubmissionArguments, report_progress: ReportProgress, _contributor: str
) -> SubmissionJobResult:
    settle_abandoned(registry)
    return process_submission(registry, arguments.submission, report_progress, publish=True)


INSPECT = JobKind(INSPECT_NAME, INTAKE, SubmissionArguments, _check, _inspect)
"""Takes `submission`, an id; returns it with its `state`."""
PUBLISH = JobKind(PUBLISH_NAME, INTAKE, SubmissionArguments, _check, _publish)
"""Takes and returns the same as `inspect`, and registers a model unless the submission is refused."""
