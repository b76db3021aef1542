"""Tests of the warnings about θ: some tensor types change it, others do not."""

from __future__ import annotations

from organs.registry.gguf.types import DTYPES
from organs.registry.measures import COARSE, FEW, UNTESTED, caution_of_mean, theta_caution


def test_a_theta_is_uncertain_for_few_values_and_for_types_that_were_measured_to_change_it() -> None:
    few = [theta_caution(40.0, dtype, elements) for dtype, elements in (("F32", 999), ("Q2_K", 256), ("F32", 1000))]
    assert few == [FEW, FEW, ""]
    of_type = {dtype.name: theta_caution(40.0, dtype.name, 1 << 20) for dtype in DTYPES.values()}
    fine = {"F64", "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q4_K", "Q4_1"}
    assert {name for name, caution in of_type.items() if not caution} == fine
    assert {of_type[name] for name in ("Q3_K", "IQ4_NL", "Q5_0", "Q4_0", "Q2_K", "MXFP4")} == {COARSE}
    assert (of_type["NVFP4"], theta_caution(40.0, "Q99_X", 1 << 20)) == (UNTESTED, UNTESTED)
    assert theta_caution(None, "Q2_K", 16) == ""
    assert [caution_of_mean(uncertain, 4) for uncertain in (0, 2, 3)] == ["", "", "most"]
