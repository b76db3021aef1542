"""Tests of the limits of submissions: the quota, the stored data of ended ones, and the number of tensors."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sqlalchemy import update

from organs.ingest import dissect
from organs.ingest.contributions.manifest import (
    BadManifest,
    parse_stated_metadata,
)
from organs.ingest.contributions.submissions import withdraw
from organs.ingest.contributions.uploads import (
    look_up,
    open_upload,
    tidy_uploads,
)
from organs.ingest.jobs.kinds import COMPOSE
from organs.registry.catalog.queries.accounts import (
    PIECE_ROW_BYTES,
    quota_of,
)
from organs.registry.catalog.queries.jobs import job_by_id
from organs.registry.catalog.queries.submissions import SubmissionWithJob, known_contributor_id
from organs.registry.catalog.register import submissions
from organs.registry.catalog.register.accounts import LOCAL, add_contributor, set_quota
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.submissions import remove_expired_upload, renew_uploads
from organs.registry.catalog.tables import ContributorRow, SubmissionRow, UploadRow, now
from organs.registry.digest import digest_of
from organs.registry.entities.submission import PackPiece, UploadRequest
from organs.registry.errors import OverQuota
from organs.registry.gguf import MemorySource, TensorSpec, read_header
from organs.registry.local import LocalRegistry
from tests.gguf_files import F32, file_bytes
from tests.registry_templates import RegistryTemplates, add_three_models
from tests.small_models import Tensors, block_metadata, small_model, small_shards, weight_tensor
from tests.submissions import (
    assert_no_upload_is_left,
    file_of_pieces,
    process_and_read,
    put_upload,
    submission_row,
    submit_and_process,
    submit_model,
    whole_file,
)

LITTLE = small_model()


def ann(registry: LocalRegistry, quota_bytes: int) -> int:
    with registry.catalog.writing() as session:
        add_contributor(session, "ann")
        return set_quota(session, "ann", quota_bytes).id


def test_repeated_bytes_of_a_file_count_each_time(registry: LocalRegistry) -> None:
    spec, data = weight_tensor("blk.0.ffn_up.weight", (64, 64))
    tensors = [(replace(spec, name=f"blk.{block}.ffn_up.weight"), data) for block in range(20)]
    file = file_bytes(block_metadata("Often", 20), tensors)
    header = read_header(MemorySource(file))
    spans = [
        (0, header.data_offset),
        *((header.data_offset + tensor.offset, tensor.size_bytes) for tensor in header.tensors),
    ]
    ann(registry, len(file) + 2 * PIECE_ROW_BYTES - 1)
    put_upload(registry, "ann", [file[: header.data_offset], data])
    with pytest.raises(OverQuota, match=r"exceeds the quota of .* by 1$"):
        submit_model(registry, "ann/often", [file_of_pieces(file, spans)])


def test_an_upload_counts_for_each_open_submission_that_uses_it(registry: LocalRegistry) -> None:
    ann(registry, 2 * len(LITTLE))
    sent = whole_file(registry, "ann", LITTLE)
    first = submit_model(registry, "ann/one", [sent])
    submit_model(registry, "ann/two", [sent], publish=False)
    with pytest.raises(OverQuota):
        submit_model(registry, "ann/three", [sent])
    withdraw(registry, "ann", first)
    submit_model(registry, "ann/three", [sent])


def test_a_contributor_with_too_many_open_submissions_must_withdraw_one_first(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("organs.ingest.contributions.submissions.OPEN_SUBMISSIONS_MAX", 1)
    first = submit_model(registry, "ann/one", [whole_file(registry, "ann", LITTLE)], publish=False)
    other = whole_file(registry, "ann", small_model("Other"))
    with pytest.raises(OverQuota, match="1 submissions are open: publish or withdraw some first"):
        submit_model(registry, "ann/two", [other])
    withdraw(registry, "ann", first)
    submit_model(registry, "ann/two", [other])


@pytest.mark.long
def test_an_inspected_submission_is_published_when_it_is_submitted_again(registry: LocalRegistry) -> None:
    sent = whole_file(registry, "ann", LITTLE)
    looked_at = submit_model(registry, "ann/tiny", [sent], publish=False)
    assert process_and_read(registry, looked_at, publish=False).row.state == "ready"
    assert submit_model(registry, "ann/tiny", [sent], publish=False) == looked_at
    assert submission_row(registry, looked_at).row.state == "ready"
    assert submit_model(registry, "ann/tiny", [sent]) == looked_at
    assert submission_row(registry, looked_at).row.state == "publishing"
    with registry.catalog.reading() as session:
        assert job_by_id(session, submission_row(registry, looked_at).row.job_id or 0).kind == "publish"
    assert process_and_read(registry, looked_at).row.state == "published"


@pytest.mark.long
def test_an_ended_submission_has_no_manifest(registry: LocalRegistry) -> None:
    published = submit_and_process(registry, "ann/one", LITTLE).row
    refused = submit_and_process(registry, "ann/two", b"no model at all").row
    assert (published.state, refused.state) == ("published", "refused")
    withdrawn = submit_model(registry, "ann/three", [whole_file(registry, "ann", small_model("Three"))])
    withdraw(registry, "ann", withdrawn)
    with registry.catalog.reading() as session:
        for number in (published.id, refused.id, withdrawn):
            assert session.get_one(SubmissionRow, number).manifest == "{}"


@pytest.mark.parametrize("field", ["title", "license", "base", "tags", "description"])
def test_a_manifest_is_refused_for_the_same_text_as_an_edit(field: str) -> None:
    bad = {"title": "a\nb", "license": "MIT\x07", "base": "a\x1b[31m", "tags": ["a\nb"], "description": "a\x00b"}
    with pytest.raises(BadManifest, match=f"metadata.{field}"):
        parse_stated_metadata({field: bad[field]})


def test_an_upload_renewed_during_the_cleanup_is_kept(registry: LocalRegistry) -> None:
    name = put_upload(registry, "ann", [b"piece"], "piece")
    with registry.catalog.writing() as session:
        session.execute(update(UploadRow).values(expires_at=now()))
        owner = known_contributor_id(session, "ann") or 0
        renew_uploads(session, owner, (), [name])  # by a submission, after the cleanup has listed it
        assert not remove_expired_upload(session, 1)
    assert tidy_uploads(registry).expired_uploads == 0
    assert look_up(registry, owner, name).state == "complete"


def test_a_contributor_without_quota_cannot_compose(registry: LocalRegistry, templates: RegistryTemplates) -> None:
    templates.fill(registry, add_three_models)
    recipe = {"base": "local/base", "grafts": [{"from": "local/tuned", "type": "organ", "blocks": [0]}]}
    arguments = COMPOSE.settled(registry, {"recipe": recipe}, "local")
    assert arguments.plan
    ann(registry, 1000)
    with pytest.raises(OverQuota):
        COMPOSE.settled(registry, {"recipe": recipe}, "ann")
    with pytest.raises(OverQuota):
        COMPOSE.run(registry, arguments, lambda _share, _note: None, "ann")


def test_the_local_contributor_has_no_quota(registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        owner_id = contributor_id(session, LOCAL)
        session.get_one(ContributorRow, owner_id).quota_bytes = 10
    opened = open_upload(registry, owner_id, UploadRequest(kind="piece", size_bytes=11, digest=digest_of(b"x")))
    assert opened.size_bytes == 11


def test_a_pack_counts_with_the_rows_of_its_pieces(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    owner_id = ann(registry, 1000)
    digests = [digest_of(bytes([number])) for number in range(4)]
    pack = [
        UploadRequest(
            kind="pack",
            size_bytes=many,
            pieces=tuple(PackPiece(size_bytes=1, digest=digest) for digest in digests[:many]),
        )
        for many in range(1, 5)
    ]
    with pytest.raises(OverQuota, match="counts as 1,028"):
        open_upload(registry, owner_id, pack[3])
    open_upload(registry, owner_id, pack[1])
    with registry.catalog.reading() as session:
        assert quota_of(session, session.get_one(ContributorRow, owner_id), 0).used_bytes == 2 + 2 * PIECE_ROW_BYTES
    monkeypatch.setattr(submissions, "PACKED_PIECES_MAX", 2)
    with pytest.raises(OverQuota, match="pieces"):
        open_upload(registry, owner_id, pack[0])
    open_upload(registry, owner_id, UploadRequest(kind="piece", size_bytes=1, digest=digests[0]))


# The number of tensors.

LARGE = (64, 16)
"""The shape of a tensor of 4,096 bytes, which does not count as free."""


def model(tensors: Tensors) -> bytes:
    return file_bytes(block_metadata(blocks=0), tensors)


def different(count: int) -> Tensors:
    return [weight_tensor(f"t{number}", LARGE, dtype="F32") for number in range(count)]


def repeated(count: int) -> Tensors:
    _, data = weight_tensor("same", LARGE, dtype="F32")
    return [(TensorSpec(f"t{number}", LARGE, F32), data) for number in range(count)]


def refused_with(after: SubmissionWithJob) -> tuple[str, str]:
    """Return the code and sentence of the finding that refused a submission."""
    assert (after.row.state, after.model) == ("refused", None)
    (first,) = json.loads(after.row.findings)
    assert first["severity"] == "refuse"
    return first["code"], first["sentence"]


def test_thousands_of_one_element_tensors_are_refused_by_their_header(registry: LocalRegistry) -> None:
    tensors = [(TensorSpec(f"t{number}", (1,), F32), bytes(4)) for number in range(dissect.FREE_TENSORS + 1)]
    code, sentence = refused_with(submit_and_process(registry, "eve/many", model(tensors)))
    assert code == "too-many-tensors"
    assert sentence == (
        "model.gguf: more than 4,096 of its tensors are smaller than 4,096 bytes or repeat another of its tensors: "
        "a model with so many tensors must have more bytes"
    )
    assert_no_upload_is_left(registry)


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


def test_the_tensors_of_all_shards_are_counted_together(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = small_shards("split", 2)
    monkeypatch.setattr(dissect, "TENSORS_MAX", 10)
    files = [whole_file(registry, "ann", data, name) for name, data in shards.items()]
    after = process_and_read(registry, submit_model(registry, "ann/split", files))
    assert refused_with(after) == ("too-many-tensors", "split: it has 11 tensors; the limit is 10")
