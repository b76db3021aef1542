"""After models made to be slow, everything stays below a bound: a short form of `make worst-shapes`."""

from __future__ import annotations

from pathlib import Path

from registry.registry import Registry
from tests.faults.worst_shapes import Scale, build, counting
from tests.kin import kin_file, kin_tensors
from tests.submitting import asked_for, attended, whole

LITTLE = Scale(tensors=500, repeats=2000, models=50)
STEPS_MAX = 1_000_000
"""Of one step at this scale. What is quadratic in the repeats takes ten million and more."""


def test_line_127_one_organ_at_very_many_places_slows_nobody_s_submission(registry: Registry, tmp_path: Path) -> None:
    build(registry, tmp_path, LITTLE)
    data = kin_file("Small", kin_tensors(seed=3))
    with counting(registry) as costs, costs.of("submission of a small model"):
        submission_id = asked_for(registry, "ann/small", [whole(registry, "ann", data)])
        assert attended(registry, submission_id).row.state == "published"
    assert 0 < costs.taken[0].steps < STEPS_MAX, costs.taken
