"""Tests of submissions from upload to model: published, held for review or refused, and invisible before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import select

from organs.ingest.contributions.inspection import (
    Inspection,
    InspectionStopped,
)
from organs.ingest.contributions.manifest import BadManifest, parse_manifest
from organs.ingest.contributions.pieces import (
    Sources,
    locate,
)
from organs.ingest.contributions.submissions import (
    approve_submission,
    publish,
    refuse_submission,
    settle_abandoned,
    withdraw,
)
from organs.ingest.jobs.runner import Runner
from organs.registry import input_files
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.organs import reachable_digests
from organs.registry.catalog.queries.reports import (
    counted_totals,
    running_totals,
)
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.jobs import cancel_job
from organs.registry.catalog.tables import ModelRow
from organs.registry.compose.parents import partial_recipe
from organs.registry.digest import digest_of
from organs.registry.entities.base import encode
from organs.registry.entities.submission import SubmissionMetadata
from organs.registry.errors import Conflict, DiskFull, NotAssemblable, NotFound, StoreUnreachable
from organs.registry.gguf import MemorySource, ValueType, read_header
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.store import BlobWriter
from organs.registry.upload_limits import SUBMISSION_PIECES_MAX
from tests.faults.failing import assert_no_orphans, blob_rows, flip_bit, let_time_pass, run_sweep
from tests.gguf_files import array, file_bytes, raw_file, text, unsigned
from tests.related_models import model_file, parent_entries, related_tensors
from tests.small_models import (
    assemble_model,
    block_metadata,
    block_tensors,
    ingest_file,
    small_model,
    token_array,
    weight_tensor,
)
from tests.submissions import (
    assert_no_upload_is_left,
    file_of_pieces,
    process_and_read,
    put_upload,
    submission_row,
    submit_model,
    whole_file,
)

BASE = small_model("Base")


def spans_of(data: bytes) -> list[tuple[int, int]]:
    """Return the spans of the header with its padding and of each tensor."""
    header = read_header(MemorySource(data))
    tensors = [(header.data_offset + tensor.offset, tensor.size_bytes) for tensor in header.tensors]
    return [(0, header.data_offset), *tensors]


def test_a_published_submission_is_read_once(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_bytes(
        block_metadata(), [weight_tensor(f"blk.0.ffn_{part}.weight", (512, 512)) for part in ("up", "down")]
    )
    read_bytes, read_into = [0], Sources.read_into

    def noted(self: Sources, buffer: memoryview, at: Any, offset: int) -> None:
        read_bytes[0] += len(buffer)
        read_into(self, buffer, at, offset)

    submission_id = submit_model(registry, "ann/once", [whole_file(registry, "ann", data)])
    monkeypatch.setattr(Sources, "read_into", noted)
    assert process_and_read(registry, submission_id).row.state == "published"
    assert len(data) <= read_bytes[0] < 1.5 * len(data)


def test_the_check_for_nonfinite_weights_reports_progress_and_can_be_cancelled(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "BUFFER_BYTES", 1024)
    submission_id = submit_model(registry, "ann/tiny", [whole_file(registry, "ann", BASE)], publish=False)
    shares: list[float] = []

    def report_progress(share: float, note: str) -> None:
        if note == "checking all weights":
            shares.append(share)
            if cancel_after is not None and len(shares) > cancel_after:
                raise KeyboardInterrupt

    cancel_after: int | None = 10
    with pytest.raises(KeyboardInterrupt):
        process_and_read(registry, submission_id, publish=False, report_progress=report_progress)
    assert len(shares) == 11, "nothing was read after that"
    shares.clear()
    cancel_after = None
    assert (
        process_and_read(registry, submission_id, publish=False, report_progress=report_progress).row.state == "ready"
    )
    assert shares == sorted(shares)
    assert len(set(shares)) > 50
    assert shares[-1] > 0.9


def codes(registry: LocalRegistry, submission_id: int) -> set[str]:
    return {finding["code"] for finding in json.loads(submission_row(registry, submission_id).row.findings)}


def published(registry: LocalRegistry, name: str, files: list[dict[str, Any]], **metadata: Any) -> str:
    """Submit and publish a model; return its name."""
    after = process_and_read(registry, submit_model(registry, name, files, **metadata))
    assert (after.row.state, after.row.reason) == ("published", None)
    assert after.model is not None
    return after.model.full_name


def ingested(registry: LocalRegistry, folder: Path, name: str, data: bytes) -> None:
    path = folder / "in.gguf"
    path.write_bytes(data)
    ingest_file(registry, path, name)


@pytest.mark.long
def test_a_whole_file_is_dissected_in_a_child_process_and_published(registry: LocalRegistry, tmp_path: Path) -> None:
    sent = whole_file(registry, "ann", BASE)
    submission_id = submit_model(registry, "ann/tiny", [sent], title="Tiny", license="MIT", tags=["a", "b"])
    assert submit_model(registry, "ann/tiny", [sent], title="Tiny", license="MIT", tags=["a", "b"]) == submission_id
    assert Runner(registry, Event()).run(once=True)
    model = submission_row(registry, submission_id).model
    assert model is not None
    assert (model.full_name, model.state, model.title, model.license) == ("ann/tiny@1", "visible", "Tiny", "MIT")
    assert model.tags == ("a", "b")
    assert assemble_model(registry, "ann/tiny", tmp_path / "out")[0].read_bytes() == BASE
    assert_no_upload_is_left(registry)
    assert_no_orphans(registry)


@pytest.mark.long
def test_known_pieces_need_not_be_sent_and_the_same_file_again_is_the_same_model(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingested(registry, tmp_path, "acme/base", BASE)
    tuned = bytearray(small_model("Tuned"))
    spans = spans_of(bytes(tuned))
    offset, size = spans[3]
    tuned[offset : offset + size] = weight_tensor("other", (64, 64), seed=7)[1][:size]
    data = bytes(tuned)
    put_upload(registry, "ann", [data[begin : begin + size] for begin, size in (spans[0], spans[3])])
    file = file_of_pieces(data, spans)
    assert published(registry, "ann/tuned", [file], base="acme/base") == "ann/tuned@1"
    assert assemble_model(registry, "ann/tuned", tmp_path / "out")[0].read_bytes() == data
    parents = [edge.model for edge in registry.model("ann/tuned").relatives if edge.evidence == "declared"]
    assert parents == ["acme/base@1"]
    assert_no_upload_is_left(registry)
    # The bytes of the header are in two blobs now, so that one of them is sent again.
    put_upload(registry, "ann", [data[: spans[0][1]]])
    assert published(registry, "ann/tuned", [file], base="acme/base") == "ann/tuned@1"


def test_reading_a_file_of_pieces_at_any_offset_gives_its_bytes(registry: LocalRegistry, tmp_path: Path) -> None:
    ingested(registry, tmp_path, "acme/base", BASE)
    spans = spans_of(BASE)
    put_upload(registry, "ann", [BASE[: spans[0][1]]])
    manifest = parse_manifest({"files": [file_of_pieces(BASE, spans)]})
    with registry.catalog.writing() as session:
        owner = contributor_id(session, "ann")
    with registry.catalog.reading() as session:
        (file,) = locate(session, owner, manifest.files)
    chance = Random(1)
    with Sources(registry) as sources:
        read = sources.file(file)
        assert read.read_at(0, len(BASE)) == BASE
        for _ in range(200):
            begin, end = sorted(chance.randrange(len(BASE) + 1) for _ in range(2))
            assert read.read_at(begin, end - begin) == BASE[begin:end]


def shards() -> list[dict[str, bytes]]:
    tensors = block_tensors(seed=3)
    count = [
        unsigned("split.count", 2, ValueType.UINT16),
        unsigned("split.tensors.count", len(tensors), ValueType.INT32),
    ]
    first = file_bytes([*block_metadata("Split"), unsigned("split.no", 0, ValueType.UINT16), *count], tensors[:4])
    second = file_bytes([unsigned("split.no", 1, ValueType.UINT16), *count], tensors[4:])
    return [{"split-00002-of-00002.gguf": second}, {"split-00001-of-00002.gguf": first}]


@pytest.mark.long
def test_a_split_set_an_adapter_and_a_chimera_can_be_submitted(registry: LocalRegistry, tmp_path: Path) -> None:
    files = [whole_file(registry, "ann", data, name) for shard in shards() for name, data in shard.items()]
    assert published(registry, "ann/split", files) == "ann/split@1"
    assert [path.name for path in assemble_model(registry, "ann/split", tmp_path / "split")] == [
        "split-00001-of-00002.gguf",
        "split-00002-of-00002.gguf",
    ]
    low_rank = [
        weight_tensor(f"blk.0.attn_q.weight.lora_{end}", shape) for end, shape in (("a", (64, 4)), ("b", (4, 64)))
    ]
    entries = [text("general.architecture", "llama"), text("general.type", "adapter")]
    adapter = file_bytes([*entries, text("adapter.type", "lora")], low_rank)
    assert published(registry, "ann/lora", [whole_file(registry, "ann", adapter)], base="acme/base") == "ann/lora@1"
    ingested(registry, tmp_path, "acme/base", BASE)
    ingested(registry, tmp_path, "acme/other", small_model("Other", seed=5))
    plan = registry.compose("acme/base").graft("acme/other", type="organ").accept("unrelated-lineage").plan()
    plan.assemble(tmp_path / "chimera.gguf")
    chimera = (tmp_path / "chimera.gguf").read_bytes()
    assert published(registry, "ann/chimera", [whole_file(registry, "ann", chimera)]) == "ann/chimera@1"
    assert assemble_model(registry, "ann/chimera", tmp_path / "back")[0].read_bytes() == chimera


@pytest.mark.long
def test_a_partial_model_is_stored_unchanged_and_assembled_into_its_base(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    trained = [tensor for tensor in block_tensors(seed=9) if "ffn" in tensor[0].name]
    partial = file_bytes([*block_metadata("Partial"), *parent_entries("Base")], trained)
    submission_id = submit_model(registry, "ann/part", [whole_file(registry, "ann", partial)])
    model = process_and_read(registry, submission_id).model
    assert model is not None
    assert not model.complete
    assert {"partial", "base-not-registered"} <= codes(registry, submission_id)
    with registry.catalog.reading() as session, pytest.raises(NotAssemblable, match="Base, is not in this registry"):
        partial_recipe(session, model)
    ingested(registry, tmp_path, "acme/base", BASE)
    with registry.catalog.reading() as session:
        recipe = partial_recipe(session, model)
    plan = registry.compose(structs.replace(recipe, accept=("unrelated-lineage",))).plan().plan
    brought = [part.spec.name for part in plan.parts if part.donor is not None]
    assert (plan.base.label, brought) == ("acme/base@1", [spec.name for spec, _ in trained])
    assert assemble_model(registry, "ann/part", tmp_path / "out")[0].read_bytes() == partial


@pytest.mark.long
def test_a_partial_model_that_does_not_fit_its_base_is_refused_before_publication(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingested(registry, tmp_path, "acme/base", BASE)
    up, gate = "blk.0.ffn_up.weight", "blk.7.ffn_gate.weight"
    organs = [weight_tensor(up, (64, 32), dtype="F16"), *(weight_tensor(f"{gate}.{part}", (64,)) for part in range(5))]
    partial = file_bytes(block_metadata("Partial"), organs)
    looked = submit_model(registry, "ann/part", [whole_file(registry, "ann", partial)], base="acme/base", publish=False)
    assert process_and_read(registry, looked, publish=False).row.state == "ready", "another base may be named"
    assert "base-does-not-fit" in codes(registry, looked)
    publish(registry, "ann", looked, SubmissionMetadata())
    after = process_and_read(registry, looked)
    assert (after.row.state, after.model) == ("refused", None)
    assert after.row.reason == (
        f"The organs do not fit into their base, acme/base@1: it has no place for {gate}.0, {gate}.1, {gate}.2 and "
        f"2 more; it has other shapes at {up} (64 × 32, not 64 × 128)."
    )
    assert_no_upload_is_left(registry)
    other = submit_model(registry, "ann/part", [whole_file(registry, "ann", partial)], base="acme/elsewhere")
    assert process_and_read(registry, other).row.state == "published"
    assert "base-not-registered" in codes(registry, other)


MISFIT = file_bytes(
    [*block_metadata("Partial"), *parent_entries("Base")], [weight_tensor("blk.0.ffn_up.weight", (64, 32), dtype="F16")]
)
"""A partial model that names its base by the title of BASE, which has another shape at that place."""


def sentences(registry: LocalRegistry, submission_id: int) -> dict[tuple[str, str], str]:
    """Return the sentences of the findings by severity and code."""
    findings = json.loads(submission_row(registry, submission_id).row.findings)
    return {(finding["severity"], finding["code"]): finding["sentence"] for finding in findings}


def test_a_partial_model_that_does_not_fit_a_newly_registered_base_is_not_published(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    manual = kept_back(registry)
    waits = submit_model(manual, "ann/waits", [whole_file(manual, "ann", MISFIT)], base="acme/base")
    assert process_and_read(manual, waits).row.state == "quarantined"
    assert sentences(manual, waits)["note", "base-not-registered"] == (
        "Its base 'acme/base' was not registered under that name at the inspection; when it is, the two are linked."
    )

    def meets_its_base(_share: float, note: str) -> None:
        if note == "comparing it with other models":
            ingested(registry, tmp_path, "acme/base", BASE)

    at_once = submit_model(registry, "ann/part", [whole_file(registry, "ann", MISFIT)], base="acme/base")
    process_and_read(registry, at_once, report_progress=meets_its_base)
    assert (submission_row(registry, at_once).row.state, "base-does-not-fit" in codes(registry, at_once)) == (
        "refused",
        True,
    )
    with pytest.raises(Conflict, match=r"^ann/waits@1 cannot be published: the organs do not fit .*, not 64 × 128"):
        approve_submission(manual, waits, "local")
    after = submission_row(manual, waits)
    assert after.model is not None
    assert (after.row.state, after.model.state) == ("quarantined", "quarantined")
    assert [model.name for model in registry.models().items] == ["acme/base@1"]


def test_a_base_found_by_the_name_in_the_header_is_reported_and_causes_no_refusal(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingested(registry, tmp_path, "acme/loom", BASE)
    submission_id = submit_model(registry, "ann/part", [whole_file(registry, "ann", MISFIT)])
    after = process_and_read(registry, submission_id)
    found_sentences = sentences(registry, submission_id)
    expected = "Its base 'Base' was identified by the name in its header as acme/loom@1."
    assert (after.row.state, found_sentences["note", "base-found"]) == ("published", expected)
    assert ("warn", "base-does-not-fit") in found_sentences
    assert ("note", "base-not-registered") not in found_sentences
    assert [edge.model for edge in registry.model("ann/part").relatives if edge.evidence == "declared"] == [
        "acme/loom@1"
    ]


@pytest.mark.long
def test_organs_are_attributed_to_their_origin_and_not_to_a_chimera(registry: LocalRegistry, tmp_path: Path) -> None:
    ingested(registry, tmp_path, "acme/base", BASE)
    ingested(registry, tmp_path, "acme/other", small_model("Other", seed=5))
    plan = registry.compose("acme/base").graft("acme/other", type="organ", blocks=0).accept("unrelated-lineage").plan()
    plan.assemble(tmp_path / "chimera.gguf")
    ingested(registry, tmp_path, "bob/coder", (tmp_path / "chimera.gguf").read_bytes())
    edited = BASE[:-1] + bytes([BASE[-1] ^ 1])
    for name, whose in (("eve/edited", "acme/base@1"), ("acme/edited", None)):
        submission_id = submit_model(registry, name, [whole_file(registry, name.split("/")[0], edited)])
        assert process_and_read(registry, submission_id).row.state == "published"
        warning = sentences(registry, submission_id).get(("warn", "organs-of-another"))
        assert warning == (whose and f"9 of its 10 organs are those of {whose}, which it does not name as its base.")


HOSTILE: dict[str, bytes] = {
    "no GGUF": b"MZ" + bytes(100),
    "nothing but zeros": bytes(64),
    "cut in the header": BASE[:200],
    "cut in the tensors": BASE[:-5000],
    "far too many tensors": raw_file([], [b""], b"")[:8] + (2**60).to_bytes(8, "little") + bytes(32),
    "a flipped bit in the counts": flip_bit(BASE, 8 * 8 + 40),
    "a shard without its siblings": next(iter(shards()[1].values())),
}


def test_hostile_files_are_refused_with_findings_and_leave_nothing(registry: LocalRegistry) -> None:
    for name, data in HOSTILE.items():
        submission_id = submit_model(registry, "eve/bad", [whole_file(registry, "eve", data)])
        after = process_and_read(registry, submission_id)
        assert after.row.state == "refused", name
        assert after.model is None
        first = json.loads(after.row.findings)[0]
        assert (first["severity"], first["sentence"]) == ("refuse", after.row.reason), name
        assert str(registry.settings.home) not in first["sentence"]
        assert_no_upload_is_left(registry)
    assert blob_rows(registry) == []
    with registry.catalog.reading() as session:
        assert running_totals(session) == counted_totals(session)


def test_dangerous_content_is_reported_and_never_assembled(registry: LocalRegistry, tmp_path: Path) -> None:
    types = array("tokenizer.ggml.token_type", ValueType.INT8, [1, 1])
    data = small_model(more=[token_array([b"a", b"b"]), types, text("tokenizer.chat_template", "{% for %}")])
    data = data.replace(b"apache-2.0", b"my own one")
    submission_id = submit_model(registry, "ann/odd", [whole_file(registry, "ann", data)], publish=False)
    after = process_and_read(registry, submission_id, publish=False)
    assert after.row.state == "ready"
    assert {"unassemblable", "chat-template", "unknown-license", "other-name"} <= codes(registry, submission_id)
    proposed = json.loads(after.row.metadata_given)["proposed"]
    assert (proposed["license"], proposed["tensors"], proposed["complete"]) == ("my own one", 10, True)
    assert blob_rows(registry) == []
    publish(registry, "ann", submission_id, SubmissionMetadata(license="MIT"), "little")
    model = process_and_read(registry, submission_id).model
    assert model is not None
    assert (model.full_name, model.license) == ("ann/little@1", "MIT")
    with pytest.raises(NotAssemblable):
        assemble_model(registry, "ann/little", tmp_path / "out")
    with pytest.raises(Conflict):
        publish(registry, "ann", submission_id, SubmissionMetadata())


def test_bytes_with_another_digest_than_announced_are_refused(registry: LocalRegistry) -> None:
    put_upload(registry, "ann", [BASE])
    file = file_of_pieces(BASE, [(0, len(BASE))]) | {"sha256": digest_of(b"another")}
    submission_id = submit_model(registry, "ann/wrong", [file])
    assert process_and_read(registry, submission_id).row.state == "refused"
    assert "not the announced" in (submission_row(registry, submission_id).row.reason or "")
    assert_no_upload_is_left(registry)
    let_time_pass(registry)
    run_sweep(registry)
    let_time_pass(registry)
    run_sweep(registry)
    assert blob_rows(registry) == []


def kept_back(registry: LocalRegistry) -> LocalRegistry:
    """Return the same registry with manual review."""
    return LocalRegistry(replace(registry.settings, review="manual"), registry.catalog, registry.blobs)


@pytest.mark.long
def test_a_model_that_waits_for_review_is_invisible_and_its_bytes_are_not_reachable(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    manual = kept_back(registry)
    submission_id = submit_model(manual, "ann/tiny", [whole_file(manual, "ann", BASE)])
    assert process_and_read(manual, submission_id).row.state == "quarantined"
    organs = {row.digest for row in blob_rows(registry)}
    with registry.catalog.reading() as session:
        assert running_totals(session) == counted_totals(session)
        assert (running_totals(session).models, running_totals(session).organs) == (0, 0)
        assert reachable_digests(session, organs) == set()
        with pytest.raises(NotFound):
            model_by_name(session, parse_model_name("ann/tiny"))
    assert registry.search("").items == () == registry.models().items
    assert registry.count("").total == 0
    with pytest.raises(BadManifest, match="send them first"):
        submit_model(manual, "eve/tiny", [file_of_pieces(BASE, spans_of(BASE)[1:])])
    ingested(registry, tmp_path, "acme/kin", small_model("Kin"))
    assert not registry.model("acme/kin").relatives
    # A second submission of the same model waits for the same decision.
    again = submit_model(manual, "ann/tiny", [whole_file(manual, "ann", BASE)], title="Again")
    assert {process_and_read(manual, waiting_id).row.model_id for waiting_id in (again, submission_id)} == {1}
    approve_submission(manual, again, "local")
    assert {submission_row(manual, waiting_id).row.state for waiting_id in (again, submission_id)} == {"published"}
    assert registry.model("ann/tiny").relatives
    with pytest.raises(Conflict):
        approve_submission(manual, again, "local")


@pytest.mark.long
def test_a_refused_submission_is_removed_by_the_next_sweeps(registry: LocalRegistry) -> None:
    manual = kept_back(registry)
    refused, withdrawn = (
        submit_model(manual, f"ann/{name}", [whole_file(manual, "ann", small_model(name, seed=seed))])
        for seed, name in enumerate(("one", "two"))
    )
    for submission_id in (refused, withdrawn):
        assert process_and_read(manual, submission_id).row.state == "quarantined"
    refuse_submission(manual, refused, "No thanks.", "local")
    withdraw(manual, "ann", withdrawn)
    assert (submission_row(manual, refused).row.state, submission_row(manual, refused).row.reason) == (
        "refused",
        "No thanks.",
    )
    assert submission_row(manual, withdrawn).row.state == "withdrawn"
    for _ in range(2):
        let_time_pass(registry)
        run_sweep(registry)
    assert blob_rows(registry) == []
    with pytest.raises(NotFound):
        withdraw(manual, "eve", withdrawn)


@pytest.mark.parametrize(("is_limit", "code"), [(True, "limit"), (False, "crashed")])
def test_a_submission_is_refused_when_the_inspector_stops_or_crashes_while_measuring(
    is_limit: bool, code: str, registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: Inspection, *_tensor: object) -> None:
        raise InspectionStopped("It was stopped.", is_limit=is_limit)

    monkeypatch.setattr(Inspection, "measure", stopped)
    submission_id = submit_model(registry, "ann/tiny", [whole_file(registry, "ann", BASE)])
    assert process_and_read(registry, submission_id).row.state == "refused"
    assert code in codes(registry, submission_id)
    assert_no_upload_is_left(registry)


@pytest.mark.long
def test_an_internal_error_is_reported_as_such_and_the_upload_is_kept(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = whole_file(registry, "ann", BASE)
    submission_id = submit_model(registry, "ann/tiny", [sent])

    def full(*_given: object) -> None:
        raise DiskFull("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(BlobWriter, "append", full)
        with pytest.raises(DiskFull, match="the disk is full"):
            process_and_read(registry, submission_id)
    assert (submission_row(registry, submission_id).row.state, codes(registry, submission_id)) == (
        "refused",
        {"our-fault"},
    )
    again = submit_model(registry, "ann/tiny", [sent])
    job_id = submission_row(registry, again).row.job_id
    assert job_id is not None
    with registry.catalog.writing() as session:
        cancel_job(session, job_id)
    settle_abandoned(registry)
    assert submission_row(registry, again).row.state == "withdrawn"
    assert published(registry, "ann/tiny", [sent]) == "ann/tiny@1"


def test_an_outage_during_an_inspection_ends_nothing(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    submission_id = submit_model(registry, "ann/tiny", [whole_file(registry, "ann", BASE)])

    def unreachable(*_given: object) -> None:
        raise StoreUnreachable("the object store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(BlobWriter, "append", unreachable)
        with pytest.raises(StoreUnreachable):
            process_and_read(registry, submission_id)
    assert submission_row(registry, submission_id).row.state == "publishing"
    assert process_and_read(registry, submission_id).row.state == "published"
    assert_no_upload_is_left(registry)


def test_a_submission_withdrawn_during_its_inspection_leaves_nothing(registry: LocalRegistry) -> None:
    submission_id = submit_model(registry, "ann/tiny", [whole_file(registry, "ann", BASE)])

    def withdraws(_share: float, note: str) -> None:
        if note == "reading the headers" and submission_row(registry, submission_id).row.state != "withdrawn":
            withdraw(registry, "ann", submission_id)

    assert process_and_read(registry, submission_id, report_progress=withdraws).row.state == "withdrawn"
    assert blob_rows(registry) == []


def test_a_submission_that_ends_after_registration_leaves_no_model(registry: LocalRegistry) -> None:
    submission_id = submit_model(registry, "ann/tiny", [whole_file(registry, "ann", BASE)])

    def cancels(_share: float, note: str) -> None:
        if note == "comparing it with other models":
            with registry.catalog.writing() as session:
                cancel_job(session, submission_row(registry, submission_id).row.job_id or 0)
            settle_abandoned(registry)

    assert process_and_read(registry, submission_id, report_progress=cancels).row.state == "withdrawn"
    with registry.catalog.reading() as session:
        assert session.scalars(select(ModelRow.state)).all() == ["removed"]


D = "0" * 64
FILE = {"name": "a.gguf", "size_bytes": 10, "sha256": D, "pieces": [[0, 4, D], [4, 6, D]]}
BAD: dict[str, tuple[Any, str]] = {
    "no files": ({}, "files"),
    "an empty list": ({"files": []}, "files"),
    "too many files": ({"files": [FILE] * 5000}, "files"),
    "too many pieces": ({"files": [FILE | {"pieces": [0] * (SUBMISSION_PIECES_MAX + 1)}]}, "files[0].pieces"),
    "a strange member": ({"files": [FILE], "owner": "eve"}, "owner"),
    "a file that is no object": ({"files": [3]}, "files[0]"),
    "a file with more": ({"files": [FILE | {"path": "/etc"}]}, "files[0].path"),
    "a file without pieces": ({"files": [{"name": "a.gguf", "size_bytes": 10, "sha256": D}]}, "files[0]"),
    "a file of both kinds": ({"files": [FILE | {"upload": "a" * 22}]}, "files[0]"),
    "a path": ({"files": [FILE | {"name": "../a.gguf"}]}, "files[0].name"),
    "a hidden name": ({"files": [FILE | {"name": ".gguf"}]}, "files[0].name"),
    "another ending": ({"files": [FILE | {"name": "a.exe"}]}, "files[0].name"),
    "a name with a line": ({"files": [FILE | {"name": "a\r\nb.gguf"}]}, "files[0].name"),
    "a long name": ({"files": [FILE | {"name": "a" * 300 + ".gguf"}]}, "files[0].name"),
    "a surrogate": ({"files": [FILE | {"name": "\ud800.gguf"}]}, "files[0].name"),
    "twice one name": ({"files": [FILE, FILE | {"name": "A.GGUF"}]}, "files"),
    "a size that is true": ({"files": [FILE | {"size_bytes": True}]}, "files[0].size_bytes"),
    "a size of 2^63": ({"files": [FILE | {"size_bytes": 2**63}]}, "files[0].size_bytes"),
    "no digest": ({"files": [FILE | {"sha256": "A" * 64}]}, "files[0].sha256"),
    "an overlap": ({"files": [FILE | {"pieces": [[0, 5, D], [4, 6, D]]}]}, "files[0].pieces[1]"),
    "backwards": ({"files": [FILE | {"pieces": [[4, 6, D], [0, 4, D]]}]}, "files[0].pieces[1]"),
    "before the file": ({"files": [FILE | {"pieces": [[-1, 4, D]]}]}, "files[0].pieces[0].offset"),
    "beyond the file": ({"files": [FILE | {"pieces": [[4, 7, D]]}]}, "files[0].pieces[0]"),
    "far beyond it": ({"files": [FILE | {"pieces": [[4, 10**4000, D]]}]}, "files[0].pieces[0].size_bytes"),
    "an empty piece": ({"files": [FILE | {"pieces": [[0, 0, D]]}]}, "files[0].pieces[0].size_bytes"),
    "a piece with more": ({"files": [FILE | {"pieces": [[0, 4, D, 1]]}]}, "files[0].pieces[0]"),
    "an upload's path": ({"files": [{"name": "a.gguf", "upload": "../../etc/passwd00000"}]}, "files[0].upload"),
    "metadata of another kind": ({"files": [FILE], "metadata": []}, "metadata"),
    "a title of NULs": ({"files": [FILE], "metadata": {"title": "\0"}}, "metadata.title"),
    "a long license": ({"files": [FILE], "metadata": {"license": "x" * 97}}, "metadata.license"),
    "a license that nobody knows": ({"files": [FILE], "metadata": {"license": "mit-ish"}}, "metadata.license"),
    "many tags": ({"files": [FILE], "metadata": {"tags": ["x"] * 1000}}, "metadata.tags"),
    "a tag that is nothing": ({"files": [FILE], "metadata": {"tags": ["x", None]}}, "metadata.tags[1]"),
    "a maybe": ({"files": [FILE], "publish": "yes"}, "publish"),
}


@pytest.mark.parametrize(("values", "where"), BAD.values(), ids=list(BAD))
def test_a_hostile_manifest_is_refused_by_field(values: Any, where: str) -> None:
    with pytest.raises(BadManifest) as caught:
        parse_manifest(values)
    assert caught.value.reasons[0][0] == where
    assert all(sentence for _, sentence in caught.value.reasons)


def test_all_faults_of_a_manifest_are_reported_together_and_a_valid_one_reads_back() -> None:
    files = [FILE | {"name": "x", "pieces": [[0, 9, D], 7]}, FILE | {"pieces": [[0, 99, D]]}]
    bad = {"files": files, "metadata": {"title": 3}, "publish": None}
    with pytest.raises(BadManifest) as caught:
        parse_manifest(bad)
    assert [where for where, _ in caught.value.reasons] == [
        *("files[0].name", "files[0].pieces[1]", "files[1].pieces[0]", "metadata.title", "publish"),
    ]
    good = parse_manifest({"files": [FILE], "metadata": {"base": "acme/base", "tags": ["a", "a", ""]}})
    assert good.metadata == SubmissionMetadata(base="acme/base", tags=("a",))
    for tags, stated in ([], ()), (None, None):
        assert parse_manifest({"files": [FILE], "metadata": {"tags": tags}}).metadata.tags == stated
    assert parse_manifest(json.loads(encode(good))) == good


@pytest.mark.parametrize(("child", "parent", "relation"), [("Q8_0", "F16", "quantized"), ("F16", "Q8_0", "relative")])
def test_a_stated_base_is_recorded_with_the_measured_relation(
    registry: LocalRegistry, tmp_path: Path, child: str, parent: str, relation: str
) -> None:
    ingested(registry, tmp_path, "acme/base", model_file("Some", related_tensors(dtype=parent)))
    sent = whole_file(registry, "ann", model_file("Other", related_tensors(dtype=child)))
    name = published(registry, "ann/other", [sent], base="acme/base")
    edges = [edge for edge in registry.model(name).relatives if edge.model == "acme/base@1"]
    assert {(edge.evidence, edge.relation) for edge in edges} == {("declared", relation), ("measured", "quantized")}


@pytest.mark.long
def test_a_fine_tune_stays_a_fine_tune(registry: LocalRegistry, tmp_path: Path) -> None:
    ingested(registry, tmp_path, "acme/base", model_file("Some", related_tensors()))
    sent = whole_file(registry, "ann", model_file("Other", related_tensors(correlation=0.995, dtype="Q8_0")))
    name = published(registry, "ann/other", [sent], base="acme/base")
    declared = [edge for edge in registry.model(name).relatives if edge.evidence == "declared"]
    assert [edge.relation for edge in declared] == ["finetune"]


@pytest.mark.long
def test_a_license_unlike_the_header_is_a_finding_at_inspection_and_at_publication(
    registry: LocalRegistry,
) -> None:
    """The header says apache-2.0."""
    sent = whole_file(registry, "ann", BASE)
    for license in (None, "Apache-2.0"):
        submission_id = submit_model(registry, "ann/same", [sent], publish=False, license=license)
        process_and_read(registry, submission_id, publish=False)
        assert "license-differs" not in codes(registry, submission_id), license
    publish(registry, "ann", submission_id, SubmissionMetadata(license="MIT"))
    kept = json.loads(process_and_read(registry, submission_id).row.findings)
    (sentence,) = (finding["sentence"] for finding in kept if finding["code"] == "license-differs")
    assert "'MIT'" in sentence
    assert "'apache-2.0'" in sentence


def test_a_new_version_of_a_name_is_a_finding_and_the_same_file_is_not(registry: LocalRegistry, tmp_path: Path) -> None:
    ingested(registry, tmp_path, "ann/tiny", BASE)
    for data, is_new in ((BASE, False), (small_model("Base", seed=3), True)):
        submission_id = submit_model(registry, "ann/tiny", [whole_file(registry, "ann", data)], publish=False)
        process_and_read(registry, submission_id, publish=False)
        assert ("new-version" in codes(registry, submission_id)) is is_new
