"""Tests of submissions from upload to model: published, held for review or refused, and invisible before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from organs.ingest.contributions.manifest import BadManifest, parse_manifest
from organs.ingest.contributions.pieces import (
    Sources,
    locate,
)
from organs.ingest.contributions.submissions import (
    approve_submission,
    publish,
    withdraw,
)
from organs.registry import input_files
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.organs import reachable_digests
from organs.registry.catalog.queries.reports import (
    counted_totals,
    running_totals,
)
from organs.registry.catalog.queries.submissions import SubmissionWithJob
from organs.registry.catalog.register.events import contributor_id
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
from tests.faults.failing import blob_rows, flip_bit, let_time_pass, run_sweep
from tests.gguf_files import array, file_bytes, text
from tests.related_models import model_file, parent_entries, related_tensors
from tests.small_models import (
    assemble_model,
    block_metadata,
    block_tensors,
    ingest_file,
    small_model,
    small_shards,
    token_array,
    weight_tensor,
)
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

    monkeypatch.setattr(Sources, "read_into", noted)
    assert submit_and_process(registry, "ann/once", data).row.state == "published"
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
    after = process_and_read(registry, submission_id, publish=False, report_progress=report_progress)
    assert after.row.state == "ready"
    assert shares == sorted(shares)
    assert len(set(shares)) > 50
    assert shares[-1] > 0.9


def codes(submission: SubmissionWithJob) -> set[str]:
    return {finding["code"] for finding in json.loads(submission.row.findings)}


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


def declared(registry: LocalRegistry, name: str) -> list[tuple[str, str]]:
    """Return the declared relatives of a model, with the relation."""
    edges = registry.model(name).relatives
    return [(str(edge.model), edge.relation) for edge in edges if edge.evidence == "declared"]


@pytest.mark.long
def test_known_pieces_need_not_be_sent(registry: LocalRegistry, tmp_path: Path) -> None:
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
    assert [parent for parent, _ in declared(registry, "ann/tuned")] == ["acme/base@1"]
    assert_no_upload_is_left(registry)


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


@pytest.mark.long
def test_a_split_set_can_be_submitted(registry: LocalRegistry, tmp_path: Path) -> None:
    without_nan = {name: data.replace(b"\xff\x7f", b"\0\0") for name, data in small_shards(count=2).items()}
    shards = dict(reversed(without_nan.items()))
    files = [whole_file(registry, "ann", data, name) for name, data in shards.items()]
    assert published(registry, "ann/split", files) == "ann/split@1"
    for path in assemble_model(registry, "ann/split", tmp_path / "split"):
        assert path.read_bytes() == shards.pop(path.name.replace("split", "m"))
    assert not shards


@pytest.mark.long
def test_a_partial_model_is_stored_unchanged_and_assembled_into_its_base(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    trained = [tensor for tensor in block_tensors(seed=9) if "ffn" in tensor[0].name]
    partial = file_bytes([*block_metadata("Partial"), *parent_entries("Base")], trained)
    after = submit_and_process(registry, "ann/part", partial)
    model = after.model
    assert model is not None
    assert not model.complete
    assert {"partial", "base-not-registered"} <= codes(after)
    with registry.catalog.reading() as session, pytest.raises(NotAssemblable, match="Base, is not in this registry"):
        partial_recipe(session, model)
    ingested(registry, tmp_path, "acme/base", BASE)
    with registry.catalog.reading() as session:
        recipe = partial_recipe(session, model)
    plan = registry.compose(structs.replace(recipe, accept=("unrelated-lineage",))).plan().plan
    brought = [part.spec.name for part in plan.parts if part.donor is not None]
    assert (plan.base.label, brought) == ("acme/base@1", [spec.name for spec, _ in trained])
    assert assemble_model(registry, "ann/part", tmp_path / "out")[0].read_bytes() == partial


MISFIT = file_bytes(
    [*block_metadata("Partial"), *parent_entries("Base")], [weight_tensor("blk.0.ffn_up.weight", (64, 32), dtype="F16")]
)
"""A partial model that names its base by the title of BASE, which has another shape at that place."""


def sentences(submission: SubmissionWithJob) -> dict[tuple[str, str], str]:
    """Return the sentences of the findings by severity and code."""
    findings = json.loads(submission.row.findings)
    return {(finding["severity"], finding["code"]): finding["sentence"] for finding in findings}


def test_a_partial_model_that_does_not_fit_a_newly_registered_base_is_not_published(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    manual = kept_back(registry)
    waits = submit_model(manual, "ann/waits", [whole_file(manual, "ann", MISFIT)], base="acme/base")
    after = process_and_read(manual, waits)
    assert after.row.state == "quarantined"
    assert sentences(after)["note", "base-not-registered"] == (
        "Its base 'acme/base' was not registered under that name at the inspection; when it is, the two are linked."
    )

    def meets_its_base(_share: float, note: str) -> None:
        if note == "comparing it with other models":
            ingested(registry, tmp_path, "acme/base", BASE)

    at_once = submit_model(registry, "ann/part", [whole_file(registry, "ann", MISFIT)], base="acme/base")
    after = process_and_read(registry, at_once, report_progress=meets_its_base)
    assert (after.row.state, "base-does-not-fit" in codes(after)) == ("refused", True)
    with pytest.raises(Conflict, match=r"^ann/waits@1 cannot be published: the tensors do not fit .*, not 64 × 128"):
        approve_submission(manual, waits, "local")
    after = submission_row(manual, waits)
    assert after.model is not None
    assert (after.row.state, after.model.state) == ("quarantined", "quarantined")
    assert [model.name for model in registry.models().items] == ["acme/base@1"]


def test_a_base_found_by_the_name_in_the_header_is_reported_and_causes_no_refusal(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingested(registry, tmp_path, "acme/loom", BASE)
    after = submit_and_process(registry, "ann/part", MISFIT)
    found = sentences(after)
    assert after.row.state == "published"
    assert found["note", "base-found"] == "Its base 'Base' was identified by the name in its header as acme/loom@1."
    assert ("warn", "base-does-not-fit") in found
    assert ("note", "base-not-registered") not in found
    assert declared(registry, "ann/part") == [("acme/loom@1", "finetune")]


@pytest.mark.long
def test_organs_are_attributed_to_their_origin_and_not_to_a_chimera(registry: LocalRegistry, tmp_path: Path) -> None:
    ingested(registry, tmp_path, "acme/base", BASE)
    ingested(registry, tmp_path, "acme/other", small_model("Other", seed=5))
    plan = registry.compose("acme/base").graft("acme/other", type="organ", blocks=0).accept("unrelated-lineage").plan()
    plan.assemble(tmp_path / "chimera.gguf")
    chimera = (tmp_path / "chimera.gguf").read_bytes()
    assert published(registry, "bob/coder", [whole_file(registry, "bob", chimera)]) == "bob/coder@1"
    edited = BASE[:-1] + bytes([BASE[-1] ^ 1])
    for name, whose in (("eve/edited", "acme/base@1"), ("acme/edited", None)):
        after = submit_and_process(registry, name, edited)
        assert after.row.state == "published"
        warning = sentences(after).get(("warn", "organs-of-another"))
        assert warning == (whose and f"9 of its 10 tensors are those of {whose}, which it does not name as its base.")


HOSTILE: dict[str, bytes] = {
    "no GGUF": b"MZ" + bytes(100),
    "nothing but zeros": bytes(64),
    "cut in the tensors": BASE[:-5000],
    "a flipped bit in the counts": flip_bit(BASE, 8 * 8 + 40),
    "a shard without its siblings": next(iter(small_shards().values())),
}


def test_hostile_files_are_refused_with_findings_and_leave_nothing(registry: LocalRegistry) -> None:
    for name, data in HOSTILE.items():
        after = submit_and_process(registry, "eve/bad", data)
        assert (after.row.state, after.model) == ("refused", None), name
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
    after = submit_and_process(registry, "ann/odd", data, publish=False)
    assert after.row.state == "ready"
    assert {"unassemblable", "chat-template", "template-broken", "unknown-license", "other-name"} <= codes(after)
    assert blob_rows(registry) == []
    publish(registry, "ann", after.row.id, SubmissionMetadata(license="MIT"), "little")
    model = process_and_read(registry, after.row.id).model
    assert model is not None
    assert (model.full_name, model.license) == ("ann/little@1", "MIT")
    with pytest.raises(NotAssemblable):
        assemble_model(registry, "ann/little", tmp_path / "out")
    with pytest.raises(Conflict):
        publish(registry, "ann", after.row.id, SubmissionMetadata())


def test_bytes_with_another_digest_than_announced_are_refused(registry: LocalRegistry) -> None:
    put_upload(registry, "ann", [BASE])
    file = file_of_pieces(BASE, [(0, len(BASE))]) | {"sha256": digest_of(b"another")}
    after = process_and_read(registry, submit_model(registry, "ann/wrong", [file]))
    assert after.row.state == "refused"
    assert "not the announced" in (after.row.reason or "")
    assert_no_upload_is_left(registry)
    for _ in range(2):
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


@pytest.mark.parametrize(
    ("error", "state"), [(DiskFull("the disk is full"), "refused"), (StoreUnreachable("no answer"), "publishing")]
)
def test_a_fault_of_the_store_during_an_inspection_loses_no_upload(
    error: Exception, state: str, registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage, the job begins again; another fault ends the submission, which can be sent again."""
    sent = whole_file(registry, "ann", BASE)
    submission_id = submit_model(registry, "ann/tiny", [sent])

    def fail(*_given: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(BlobWriter, "append", fail)
        with pytest.raises(type(error)):
            process_and_read(registry, submission_id)
    after = submission_row(registry, submission_id)
    assert (after.row.state, "our-fault" in codes(after)) == (state, state == "refused")
    again = submission_id if state == "publishing" else submit_model(registry, "ann/tiny", [sent])
    assert process_and_read(registry, again).row.state == "published"
    assert_no_upload_is_left(registry)


def test_a_submission_withdrawn_during_its_inspection_leaves_nothing(registry: LocalRegistry) -> None:
    submission_id = submit_model(registry, "ann/tiny", [whole_file(registry, "ann", BASE)])

    def withdraws(_share: float, note: str) -> None:
        if note == "reading the headers" and submission_row(registry, submission_id).row.state != "withdrawn":
            withdraw(registry, "ann", submission_id)

    assert process_and_read(registry, submission_id, report_progress=withdraws).row.state == "withdrawn"
    assert blob_rows(registry) == []


D = "0" * 64
FILE = {"name": "a.gguf", "size_bytes": 10, "sha256": D, "pieces": [[0, 4, D], [4, 6, D]]}
BAD: dict[str, tuple[Any, str]] = {
    "no files": ({}, "files"),
    "too many files": ({"files": [FILE] * 5000}, "files"),
    "too many pieces": ({"files": [FILE | {"pieces": [0] * (SUBMISSION_PIECES_MAX + 1)}]}, "files[0].pieces"),
    "a strange member": ({"files": [FILE], "owner": "eve"}, "owner"),
    "a file with more": ({"files": [FILE | {"path": "/etc"}]}, "files[0].path"),
    "a file of both kinds": ({"files": [FILE | {"upload": "a" * 22}]}, "files[0]"),
    "a path": ({"files": [FILE | {"name": "../a.gguf"}]}, "files[0].name"),
    "a hidden name": ({"files": [FILE | {"name": ".gguf"}]}, "files[0].name"),
    "another ending": ({"files": [FILE | {"name": "a.exe"}]}, "files[0].name"),
    "a name with a line": ({"files": [FILE | {"name": "a\r\nb.gguf"}]}, "files[0].name"),
    "a surrogate": ({"files": [FILE | {"name": "\ud800.gguf"}]}, "files[0].name"),
    "twice one name": ({"files": [FILE, FILE | {"name": "A.GGUF"}]}, "files"),
    "a size of 2^63": ({"files": [FILE | {"size_bytes": 2**63}]}, "files[0].size_bytes"),
    "no digest": ({"files": [FILE | {"sha256": "A" * 64}]}, "files[0].sha256"),
    "an overlap": ({"files": [FILE | {"pieces": [[0, 5, D], [4, 6, D]]}]}, "files[0].pieces[1]"),
    "backwards": ({"files": [FILE | {"pieces": [[4, 6, D], [0, 4, D]]}]}, "files[0].pieces[1]"),
    "before the file": ({"files": [FILE | {"pieces": [[-1, 4, D]]}]}, "files[0].pieces[0].offset"),
    "beyond the file": ({"files": [FILE | {"pieces": [[4, 7, D]]}]}, "files[0].pieces[0]"),
    "an empty piece": ({"files": [FILE | {"pieces": [[0, 0, D]]}]}, "files[0].pieces[0].size_bytes"),
    "a piece with more": ({"files": [FILE | {"pieces": [[0, 4, D, 1]]}]}, "files[0].pieces[0]"),
    "an upload's path": ({"files": [{"name": "a.gguf", "upload": "../../etc/passwd00000"}]}, "files[0].upload"),
    "a title of NULs": ({"files": [FILE], "metadata": {"title": "\0"}}, "metadata.title"),
    "a long license": ({"files": [FILE], "metadata": {"license": "x" * 97}}, "metadata.license"),
    "a license that nobody knows": ({"files": [FILE], "metadata": {"license": "mit-ish"}}, "metadata.license"),
    "many tags": ({"files": [FILE], "metadata": {"tags": ["x"] * 1000}}, "metadata.tags"),
    "a tag that is nothing": ({"files": [FILE], "metadata": {"tags": ["x", None]}}, "metadata.tags[1]"),
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
    assert parse_manifest(json.loads(encode(good))) == good


def test_a_stated_base_is_recorded_with_the_measured_relation(registry: LocalRegistry, tmp_path: Path) -> None:
    ingested(registry, tmp_path, "acme/base", model_file("Some", related_tensors()))
    other = model_file("Other", related_tensors(dtype="Q8_0"))
    name = published(registry, "ann/other", [whole_file(registry, "ann", other)], base="acme/base")
    assert declared(registry, name) == [("acme/base@1", "quantized")]


@pytest.mark.long
def test_a_license_unlike_the_header_is_a_finding_at_inspection_and_at_publication(
    registry: LocalRegistry,
) -> None:
    """The header says apache-2.0."""
    sent = whole_file(registry, "ann", BASE)
    for license in (None, "Apache-2.0"):
        submission_id = submit_model(registry, "ann/same", [sent], publish=False, license=license)
        assert "license-differs" not in codes(process_and_read(registry, submission_id, publish=False)), license
    publish(registry, "ann", submission_id, SubmissionMetadata(license="MIT"))
    found = sentences(process_and_read(registry, submission_id))
    (sentence,) = (sentence for (_, code), sentence in found.items() if code == "license-differs")
    assert "'MIT'" in sentence
    assert "'apache-2.0'" in sentence


def test_a_new_version_of_a_name_is_a_finding_and_the_same_file_is_not(registry: LocalRegistry, tmp_path: Path) -> None:
    ingested(registry, tmp_path, "ann/tiny", BASE)
    for data, is_new in ((BASE, False), (small_model("Base", seed=3), True)):
        after = submit_and_process(registry, "ann/tiny", data, publish=False)
        assert ("new-version" in codes(after)) is is_new
