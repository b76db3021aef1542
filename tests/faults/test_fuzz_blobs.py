"""Tests of damaged blobs, a short form of a hundred thousand: exact bytes or a typed refusal, and nothing else."""

from __future__ import annotations

from random import Random

from organs.registry.store.codec import CHUNK_TARGET_BYTES
from organs.registry.store.codec.planes import Coder, Encoding
from tests.faults.fuzzing.blob_check import FORGED
from tests.faults.fuzzing.blob_edits import BlobDamage
from tests.faults.fuzzing.blob_seeds import blob_seeds
from tests.faults.fuzzing.run import fuzz
from tests.faults.fuzzing.worker import CASE_MAX_SECONDS, EXTRA_MAX_BYTES
from tests.faults.hostile.fuzz import ACCEPTED_SHARES
from tests.store.codec_cases import ALL_CODECS

CASES = 4000


def test_damaged_blobs_give_the_exact_bytes_or_are_refused() -> None:
    tally = fuzz("blobs", CASES)
    assert [f"case {failure.case}: {failure.text}" for failure in tally.failures] == []
    assert tally.cases == CASES
    low, high = ACCEPTED_SHARES
    assert low <= tally.accepted_share <= high
    assert tally.outcomes[FORGED] > CASES // 100
    assert tally.slowest_seconds <= CASE_MAX_SECONDS
    assert tally.extra_bytes <= EXTRA_MAX_BYTES


def test_the_seeds_have_every_codec_encoded_raw_and_in_several_chunks() -> None:
    seeds = blob_seeds()
    assert {seed.codec for seed in seeds} >= set(ALL_CODECS)
    assert any(seed.codec.name == "raw" for seed in seeds)
    raw_flags = {flag for seed in seeds for chunk in seed.head.chunks for flag in chunk.entry.plane_is_raw}
    assert raw_flags == {True, False}
    assert max(len(seed.plain) for seed in seeds) > CHUNK_TARGET_BYTES
    assert min(len(seed.plain) for seed in seeds) == 0


def test_the_seeds_have_parents_of_both_kinds_two_in_a_row_and_sparse_planes() -> None:
    seeds = [seed for seed in blob_seeds() if seed.parent is not None]
    assert {seed.codec.encoding for seed in seeds} == {Encoding.DELTA, Encoding.DERIVE}
    assert any(seed.parent is not None and seed.parent.parent is not None for seed in seeds)
    assert any(
        seed.codec.coder is Coder.SPARSE and not all(chunk.entry.plane_is_raw)
        for seed in seeds
        for chunk in seed.head.chunks
    )
    damage = BlobDamage(blob_seeds())
    parents = [damage.case(Random(number)).row.parent for number in range(1000)]
    assert sum(parent is not None for parent in parents) > 100


def test_blobs_are_damaged_in_files_and_in_rows() -> None:
    damage = BlobDamage(blob_seeds())
    cases = [damage.case(Random(number)) for number in range(1000)]
    assert sum(case.row.inline is not None for case in cases) > 200
    assert sum(case.content is not None for case in cases) > 200
    assert {case.obstacle for case in cases} == {None, "folder", "link"}
    assert any(case.forged for case in cases)
