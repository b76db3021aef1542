"""A model has no more tensors than its bytes pay for."""

from __future__ import annotations

import json

import pytest

from organs.ingest import dissect
from organs.registry.gguf import TensorSpec, ValueType
from organs.registry.local import LocalRegistry
from tests.gguf_files import F32, file_bytes, unsigned
from tests.small_models import Tensors, block_metadata, weights
from tests.submissions import asked_for, assert_nothing_is_left, attended, found, of_pieces, put_upload, whole

LARGE = (64, 16)
"""The shape of a tensor of 4,096 bytes: one that pays for itself."""


def model(tensors: Tensors) -> bytes:
    return file_bytes(block_metadata(blocks=0), tensors)


def different(count: int) -> Tensors:
    return [weights(f"t{number}", LARGE, dtype="F32") for number in range(count)]


def repeated(count: int) -> Tensors:
    _, data = weights("same", LARGE, dtype="F32")
    return [(TensorSpec(f"t{number}", LARGE, F32), data) for number in range(count)]


def refused_with(registry: LocalRegistry, submission_id: int) -> tuple[str, str]:
    """Code and sentence of the finding that refused a submission."""
    after = attended(registry, submission_id)
    assert (after.row.state, after.model) == ("refused", None)
    (first,) = json.loads(found(registry, submission_id).row.findings)
    assert first["severity"] == "refuse"
    return first["code"], first["sentence"]


def test_line_127_thousands_of_one_element_tensors_are_refused_by_their_header(registry: LocalRegistry) -> None:
    tensors = [(TensorSpec(f"t{number}", (1,), F32), bytes(4)) for number in range(dissect.FREE_TENSORS + 1)]
    code, sentence = refused_with(registry, asked_for(registry, "eve/many", [whole(registry, "eve", model(tensors))]))
    assert code == "too-many-tensors"
    assert sentence == (
        "model.gguf: more than 4,096 of its tensors are smaller than 4,096 bytes or repeat another of its tensors: "
        "a model with so many tensors must bring more bytes"
    )
    assert_nothing_is_left(registry)


def test_no_model_has_more_tensors_than_the_largest_that_is_accepted(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dissect, "TENSORS_MAX", 8)
    largest = asked_for(registry, "ann/most", [whole(registry, "ann", model(different(8)))])
    assert attended(registry, largest).row.state == "published"
    over = asked_for(registry, "ann/over", [whole(registry, "ann", model(different(9)))])
    assert refused_with(registry, over) == (
        "too-many-tensors",
        "model.gguf: it has 9 tensors; the limit is 8",
    )


def test_a_push_that_names_one_tensor_many_times_is_refused_although_few_bytes_are_sent(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dissect, "FREE_TENSORS", 5)
    for count, state in ((7, "refused"), (6, "published")):
        data = model(repeated(count))
        begin = len(data) - 4096 * count
        put_upload(registry, "eve", [data[:begin], data[begin : begin + 4096]])
        spans = [(0, begin), *((begin + 4096 * number, 4096) for number in range(count))]
        submission_id = asked_for(registry, f"eve/repeats{count}", [of_pieces(data, spans)])
        after = attended(registry, submission_id)
        assert after.row.state == state, after.row.reason
        assert ("repeat another" in (after.row.reason or "")) is (state == "refused")


def test_a_push_of_many_known_tensors_that_are_different_passes(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dissect, "FREE_TENSORS", 2)
    base = asked_for(registry, "acme/base", [whole(registry, "acme", model(different(12)))])
    assert attended(registry, base).row.state == "published"
    tuned = model([*different(11), weights("own", LARGE, seed=3, dtype="F32")])
    begin = len(tuned) - 4096 * 12
    put_upload(registry, "ann", [tuned[:begin], tuned[-4096:]])
    spans = [(0, begin), *((begin + 4096 * number, 4096) for number in range(12))]
    assert attended(registry, asked_for(registry, "ann/tuned", [of_pieces(tuned, spans)])).row.state == "published"


def test_the_tensors_of_all_shards_are_counted_together(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = different(6)
    count = [
        unsigned("split.count", 2, ValueType.UINT16),
        unsigned("split.tensors.count", len(tensors), ValueType.INT32),
    ]
    first = file_bytes([*block_metadata("Split"), unsigned("split.no", 0, ValueType.UINT16), *count], tensors[:3])
    second = file_bytes([unsigned("split.no", 1, ValueType.UINT16), *count], tensors[3:])
    files = {"split-00001-of-00002.gguf": first, "split-00002-of-00002.gguf": second}
    monkeypatch.setattr(dissect, "TENSORS_MAX", 5)
    submission_id = asked_for(
        registry, "ann/split", [whole(registry, "ann", data, name) for name, data in files.items()]
    )
    assert refused_with(registry, submission_id) == (
        "too-many-tensors",
        "split: it has 6 tensors; the limit is 5",
    )
