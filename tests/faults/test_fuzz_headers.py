"""Tests of damaged headers, a short form of a million: no crash, hang, excessive memory or wrong acceptance."""

from __future__ import annotations

from organs.registry.gguf import ValueType, read_header
from organs.registry.gguf.types import DTYPES
from tests.faults.fuzzing.header_parts import assemble
from tests.faults.fuzzing.header_promises import Upload
from tests.faults.fuzzing.header_seeds import header_seeds
from tests.faults.fuzzing.run import fuzz
from tests.faults.fuzzing.worker import CASE_MAX_SECONDS, EXTRA_MAX_BYTES
from tests.faults.hostile.fuzz import ACCEPTED_SHARES
from tests.gguf_files import assert_invariants

CASES = 20_000


def test_damaged_headers_are_refused_with_a_sentence_or_keep_every_promise() -> None:
    tally = fuzz("headers", CASES)
    assert [f"case {failure.case}: {failure.text}" for failure in tally.failures] == []
    assert tally.cases == CASES
    low, high = ACCEPTED_SHARES
    assert low <= tally.accepted_share <= high
    assert tally.slowest_seconds <= CASE_MAX_SECONDS
    assert tally.extra_bytes <= EXTRA_MAX_BYTES
    assert tally.unheard is not None
    assert len(tally.unheard) <= 3, "refusals that no case provokes"


def test_the_seeds_have_every_tensor_type_and_every_value_type() -> None:
    dtypes, kinds, elements, versions, alignments = set(), set(), set(), set(), set()
    for parts in header_seeds():
        data = bytes(assemble(parts).data)
        header = read_header(Upload(data, len(data)))
        assert_invariants(header)
        dtypes |= {tensor.dtype.id for tensor in header.tensors}
        kinds |= {field.type for field in header.fields}
        elements |= {field.element_type for field in header.fields if field.is_array}
        versions.add(header.version)
        alignments.add(header.alignment)
    assert dtypes == set(DTYPES)
    assert kinds == set(ValueType)
    assert elements == set(ValueType) - {ValueType.ARRAY}
    assert versions == {2, 3}
    assert len(alignments) >= 5
