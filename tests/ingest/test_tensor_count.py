"""Tests of the limit of tensors of a model by its number of bytes."""

from __future__ import annotations

import json

import pytest

from organs.ingest import dissect
from organs.registry.gguf import TensorSpec, ValueType
from organs.registry.local import LocalRegistry
from tests.gguf_files import F32, file_bytes, unsigned
from tests.small_models import Tensors, block_metadata, weight_tensor
from tests.submissions import (
    assert_no_upload_is_left,
    file_of_pieces,
    process_and_read,
    put_upload,
    submission_row,
    submit_model,
    whole_file,
)

LARGE = (64, 16)
"""The shape of a tensor of 4,096 bytes, which does not count as free."""


def model(tensors: Tensors) -> bytes:
    return file_bytes(block_metadata(blocks=0), tensors)


def different(count: int) -> Tensors:
    return [weight_tensor(f"t{number}", LARGE, dtype="F32") for number in range(count)]


def repeated(count: int) -> Tensors:
    _, data = weight_tensor("same", LARGE, dtype="F32")
    return [(TensorSpec(f"t{number}", LARGE, F32), data) for number in range(count)]


def refused_with(registry: LocalRegistry, submission_id: int) -> tuple[str, str]:
    """Return the code and sentence of the finding that refused a submission."""
    after = process_and_read(registry, submission_id)
    assert (after.row.state, after.model) == ("refused", None)
    (first,) = json.loads(submission_row(registry, submission_id).row.findings)
    assert first["severity"] == "refuse"
    return first["code"], first["sentence"]


def test_thousands_of_one_element_tensors_are_refused_by_their_header(registry: LocalRegistry) -> None:
    tensors = [(TensorSpec(f"t{number}", (1,), F32), bytes(4)) for number in range(dissect.FREE_TENSORS + 1)]
    code, sentence = refused_with(
        registry, submit_model(registry, "eve/many", [whole_file(registry, "eve", model(tensors))])
    )
    assert code == "too-many-tensors"
    assert sentence == (
        "model.gguf: more than 4,096 of its tensors are smaller than 4,096 bytes or repeat another of its tensors: "
        "a model with so many tensors must have more bytes"
    )
    assert_no_upload_is_left(registry)


def test_the_number_of_tensors_of_a_model_is_limited(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dissect, "TENSORS_MAX", 8)
    largest = submit_model(registry, "ann/most", [whole_file(registry, "ann", model(different(8)))])
    assert process_and_read(registry, largest).row.state == "published"
    over = submit_model(registry, "ann/over", [whole_file(registry, "ann", model(different(9)))])
    assert refused_with(registry, over) == (
        "too-many-tensors",
        "model.gguf: it has 9 tensors; the limit is 8",
    )


def test_a_push_that_repeats_one_tensor_many_times_is_refused(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dissect, "FREE_TENSORS", 5)
    for count, state in ((7, "refused"), (6, "published")):
        data = model(repeated(count))
        begin = len(data) - 4096 * count
        put_upload(registry, "eve", [data[:begin], data[begin : begin + 4096]])
        spans = [(0, begin), *((begin + 4096 * number, 4096) for number in range(count))]
        submission_id = submit_model(registry, f"eve/repeats{count}", [file_of_pieces(data, spans)])
        after = process_and_read(registry, submission_id)
        assert after.row.state == state, after.row.reason
        assert ("repeat another" in (after.row.reason or "")) is (state == "refused")


@pytest.mark.long
def test_a_push_of_many_different_known_tensors_is_accepted(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dissect, "FREE_TENSORS", 2)
    base = submit_model(registry, "acme/base", [whole_file(registry, "acme", model(different(12)))])
    assert process_and_read(registry, base).row.state == "published"
    tuned = model([*different(11), weight_tensor("own", LARGE, seed=3, dtype="F32")])
    begin = len(tuned) - 4096 * 12
    put_upload(registry, "ann", [tuned[:begin], tuned[-4096:]])
    spans = [(0, begin), *((begin + 4096 * number, 4096) for number in range(12))]
    assert (
        process_and_read(registry, submit_model(registry, "ann/tuned", [file_of_pieces(tuned, spans)])).row.state
        == "published"
    )


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
    submission_id = submit_model(
        registry, "ann/split", [whole_file(registry, "ann", data, name) for name, data in files.items()]
    )
    assert refused_with(registry, submission_id) == (
        "too-many-tensors",
        "split: it has 6 tensors; the limit is 5",
    )
