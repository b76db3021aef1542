"""The job kinds `inspect` and `publish`: a submission is inspected, or made a model of."""

from __future__ import annotations

from organs.ingest.contributions.intake import (
    process_submission,
    settle_abandoned,
)
from organs.ingest.contributions.submissions import INSPECT as INSPECT_NAME
from organs.ingest.contributions.submissions import PUBLISH as PUBLISH_NAME
from organs.ingest.jobs.kind import (
    INTAKE,
    JobKind,
    Tell,
    Values,
    check_members,
    whole_number,
)
from organs.registry.local import LocalRegistry

ID_MAX = 2**63 - 1


def _checked(arguments: Values) -> Values:
    check_members(arguments, ("submission",))
    return {"submission": whole_number(arguments, "submission", 0, 1, ID_MAX)}


def _inspect(registry: LocalRegistry, arguments: Values, tell: Tell, _contributor: str) -> Values:
    settle_abandoned(registry)
    return process_submission(registry, arguments["submission"], tell, publish=False)


def _publish(registry: LocalRegistry, arguments: Values, tell: Tell, _contributor: str) -> Values:
    settle_abandoned(registry)
    return process_submission(registry, arguments["submission"], tell, publish=True)


INSPECT = JobKind(INSPECT_NAME, INTAKE, _checked, _inspect)
"""Takes `submission`, an id; the result has it with its `state`."""
PUBLISH = JobKind(PUBLISH_NAME, INTAKE, _checked, _publish)
"""The same, and a model comes of it unless it is refused."""
