"""Tests of a job killed at any transaction of a submission: the next run of the job has the normal result."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests.faults.failing import MomentCatalog, assert_sweeps_leave_no_rest
from tests.small_models import assemble_model, small_model
from tests.submissions import process_and_read, submission_row, submit_model, whole_file

STEPS_MAX = 60


@pytest.mark.slow
def test_a_submission_whose_job_is_killed_at_any_commit_is_published_by_the_next_run(tmp_path: Path) -> None:
    data = small_model("Killed")
    killed = 0
    for steps in range(1, STEPS_MAX):
        home = tmp_path / f"home{steps}"
        with LocalRegistry.open(home) as registry:
            submission_id = submit_model(registry, "ann/tiny", [whole_file(registry, "ann", data)])
        if not _killed(home, submission_id, steps):
            break
        killed += 1
        with LocalRegistry.open(home) as registry:
            after = process_and_read(registry, submission_id)
            assert (after.row.state, after.row.reason) == ("published", None), steps
            assert_sweeps_leave_no_rest(registry)
            assert assemble_model(registry, "ann/tiny", home / "out")[0].read_bytes() == data
            assert len(registry.models().items) == 1, steps
    assert killed >= 10, "as many commits as an intake has, before and behind each"
    with LocalRegistry.open(home) as registry:
        assert submission_row(registry, submission_id).row.state == "published"


def _killed(home: Path, submission_id: int, steps: int) -> bool:
    """Return whether a process that works on the submission was killed after this number of steps."""
    moments = count(1)

    def kill(moment: str) -> None:
        if moment in ("commit", "committed") and next(moments) == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if not pid:
        with LocalRegistry.open(home) as registry:
            killing = LocalRegistry(registry.settings, MomentCatalog(registry.catalog, kill), registry.blobs)
            process_and_read(killing, submission_id)
            os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)
