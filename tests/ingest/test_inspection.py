"""Tests of the inspector of submissions: it receives only bytes, and its answers are checked."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from sqlalchemy import select

from organs.ingest.contributions import (
    inspection,
)
from organs.ingest.contributions.inspection import (
    Inspection,
    InspectionStopped,
    InspectorProcess,
)
from organs.ingest.contributions.messages import (
    BATCH_ENTRIES,
    JSON_MAX_BYTES,
    BadMessage,
    BytesRead,
    Channel,
    Fields,
    FrontAnswer,
    FrontReader,
    Inspect,
    MeasureTensor,
    Tensors,
    decoded,
    front_messages,
    measurement_values,
    read_measurement,
)
from organs.ingest.dissect import read_front
from organs.registry.catalog.queries.submissions import SubmissionWithJob
from organs.registry.catalog.tables import Fingerprint, MeasurementRow
from organs.registry.gguf import MemorySource, ValueType, dtype_by_name
from organs.registry.gguf.types import SIZE_MAX
from organs.registry.input_files import (
    BytesInMemory,
    ComposedFile,
    Section,
)
from organs.registry.local import LocalRegistry
from organs.registry.measure import Measurement, measure, required_reads
from organs.registry.sandbox.process import ProcessLimits
from tests.faults.failing import blob_rows
from tests.gguf_files import array, file_bytes, raw_file, text, unsigned
from tests.small_models import block_metadata, block_tensors, small_model, token_array, weight_tensor
from tests.submissions import (
    assert_no_upload_is_left,
    inspector_thread,
    submit_and_process,
)

Values = dict[str, Any]

MODEL = small_model(
    more=[
        token_array([b"<0x0A>", b"\xff", b"c"] * 700),
        array("tokenizer.ggml.token_type", ValueType.INT32, [1] * 2100),
        text("general.note", "no UTF-8 at all"),
    ]
).replace(b"no UTF-8 at all", b"\xff\xfe UTF-8 at all")


@contextmanager
def running(limits: ProcessLimits) -> Iterator[Inspection]:
    """Yield a conversation with a real inspector."""
    process = InspectorProcess(limits)
    conversation = Inspection(process.channel, process.how_it_ended, process.kill)
    try:
        yield conversation
    finally:
        conversation.end()
        process.wait()
        conversation.close()


def own_inspector() -> Path:
    """Return the /proc folder of the inspector that this process has started."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    own = [os.getpid()]
    for ancestor in own:  # the list grows during the loop
        own += [pid for pid, parent in parents.items() if parent == ancestor]
    found = [
        Path(f"/proc/{pid}")
        for pid in own
        if b"organs.ingest.contributions.inspector" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return found[-1]


def memory_file(data: bytes) -> ComposedFile:
    return ComposedFile(Path("model.gguf"), len(data), [Section(0, len(data), BytesInMemory(data))])


def test_the_inspector_has_no_path_address_or_descriptor_of_the_database(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORGAN_HOME", str(registry.settings.home))
    monkeypatch.setenv("ORGAN_DATABASE_URL", registry.settings.database_url)
    with registry.catalog.reading(), running(ProcessLimits()) as conversation:
        assert conversation.front(memory_file(MODEL), lambda: None) == read_front(MemorySource(MODEL, "model.gguf"))
        inspector_folder = own_inspector()
        opened = [os.readlink(path).partition(":")[0] for path in (inspector_folder / "fd").iterdir()]
        words = (inspector_folder / "cmdline").read_bytes() + (inspector_folder / "environ").read_bytes()
        assert os.readlink(inspector_folder / "cwd") == "/"
    assert opened == ["pipe"] * 5, "three standard ones, and two for the conversation"
    for secret in (str(registry.settings.home), registry.settings.database_url, "sqlite", "ORGAN_"):
        assert secret.encode() not in words


def test_the_inspector_receives_only_names_sizes_shapes_and_types(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Inspect | BytesRead | MeasureTensor] = []
    send = Channel.send

    def noted(self: Channel, message: object, *data: bytes | memoryview, timeout_seconds: float | None = None) -> None:
        if isinstance(message, Inspect | BytesRead | MeasureTensor):
            requests.append(message)
        send(self, message, *data, timeout_seconds=timeout_seconds)

    monkeypatch.setattr(Channel, "send", noted)
    assert submit_and_process(registry, "ann/tiny", MODEL).row.state == "published"
    assert {type(request) for request in requests} == {Inspect, BytesRead, MeasureTensor}
    assert {request.name for request in requests if isinstance(request, Inspect)} == {"model.gguf"}
    types = {
        (name, type(value))
        for request in requests
        for name, value in structs.asdict(request).items()
        if name not in ("dtype", "shape")
    }
    assert types == {("name", str), ("size_bytes", int), ("number", int)}


def test_a_header_and_a_measurement_are_transferred_unchanged() -> None:
    split = [unsigned("split.no", 0, ValueType.UINT16), unsigned("general.alignment", 64)]
    for data in (
        MODEL,
        file_bytes([*block_metadata(), *split], block_tensors(), 64),
        raw_file([], [], b""),
    ):
        source = MemorySource(data)
        front = read_front(source)
        reader = FrontReader(source)
        assert taken(reader, through_json(front_messages(front))) == front
    for shape, dtype in (((64, 64), "F32"), ((600, 400), "F16"), ((16,), "BF16"), ((256, 4, 3), "Q4_K"), ((5,), "I64")):
        data = weight_tensor("blk.0.ffn_up.weight", shape, dtype="F32")[1] if dtype == "F32" else b""
        measurement = measure(_reader(shape, dtype, data), shape, dtype_by_name(dtype))
        assert read_measurement(measurement_values(measurement)) == measurement


def _reader(shape: tuple[int, ...], dtype: str, data: bytes) -> Callable[[int, int], bytes]:
    """Return a reader of `data`, or of bytes that follow from the offset; only announced ranges are read."""
    due = set(required_reads(shape, dtype_by_name(dtype)))

    def read(offset: int, size: int) -> bytes:
        assert (offset, size) in due
        return data[offset : offset + size] if data else bytes((offset + index * 7) % 251 for index in range(size))

    return read


def through_json(messages: Any) -> list[Values]:
    return [json.loads(msgspec.json.encode(message)) for message in messages]


def taken(reader: FrontReader, messages: list[Values]) -> Any:
    """Return the result of messages about a header."""
    front = None
    for values in messages:
        message = decoded(json.dumps(values).encode(), FrontAnswer)
        if isinstance(message, Fields):
            reader.add_fields(message)
        elif isinstance(message, Tensors):
            reader.add_tensors(message)
        else:
            front = reader.finish(message)
    return front


GOOD = through_json(front_messages(read_front(MemorySource(MODEL))))
FIELDS, TENSORS, LAST = GOOD
"""The three messages of the inspector for MODEL."""
KEY, TYPE, ELEMENT, COUNT, OFFSET, SIZE, EAGER = range(7)
_ARRAY = next(number for number, one in enumerate(FIELDS["entries"]) if one[KEY] == "tokenizer.ggml.token_type")
NONSENSE: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "no fields at all": (("fields", "entries"), []),
    "too many fields at once": (("fields", "entries"), [[]] * (BATCH_ENTRIES + 1)),
    "a field with more members": (("fields", "entries", 0), [1] * 8),
    "an empty key": (("fields", "entries", 0, KEY), ""),
    "a key that ends a line": (("fields", "entries", 0, KEY), "a\n"),
    "a key that stands twice": (("fields", "entries", 1, KEY), FIELDS["entries"][0][KEY]),
    "an unknown type": (("fields", "entries", 0, TYPE), 13),
    "a text with elements": (("fields", "entries", 0, ELEMENT), 4),
    "an array without a type": (("fields", "entries", _ARRAY, ELEMENT), None),
    "an array of arrays": (("fields", "entries", _ARRAY, ELEMENT), 9),
    "a count below zero": (("fields", "entries", _ARRAY, COUNT), -1),
    "a huge count": (("fields", "entries", _ARRAY, COUNT), 2**40),
    "a count that its size does not hold": (("fields", "entries", _ARRAY, COUNT), 7),
    "two values of one": (("fields", "entries", 0, COUNT), 2),
    "an offset in the counts": (("fields", "entries", 0, OFFSET), 3),
    "an offset in the value before": (("fields", "entries", 1, OFFSET), FIELDS["entries"][0][OFFSET]),
    "an offset behind the file": (("fields", "entries", 0, OFFSET), len(MODEL) + 1),
    "a size that reaches behind the file": (("fields", "entries", 0, SIZE), len(MODEL)),
    "an array that is read": (("fields", "entries", _ARRAY, EAGER), True),
    "a tensor with a digest": (("tensors", "entries", 0), [*TENSORS["entries"][0], "0" * 64]),
    "a tensor without a name": (("tensors", "entries", 0, 0), ""),
    "a tensor with a long name": (("tensors", "entries", 0, 0), "a" * 128),
    "a tensor whose name has a NUL": (("tensors", "entries", 0, 0), "a\0b"),
    "two tensors of one name": (("tensors", "entries", 1, 0), TENSORS["entries"][0][0]),
    "a tensor without a shape": (("tensors", "entries", 0, 1), []),
    "a tensor of five dimensions": (("tensors", "entries", 0, 1), [1] * 5),
    "a tensor without elements": (("tensors", "entries", 0, 1), [0]),
    "a tensor of more than all elements": (("tensors", "entries", 0, 1), [2**40, 2**40]),
    "a tensor of an unknown type that is too large for its values": (("tensors", "entries", 0), ["a", [1], 4, 0]),
    "a tensor whose rows are no blocks": (("tensors", "entries", 0, 2), 8 if TENSORS["entries"][0][1][0] % 32 else 10),
    "a tensor that is elsewhere": (("tensors", "entries", 1, 3), 0),
    "a tensor that is too large for the file": (("tensors", "entries", -1, 1), [2**50]),
    "a tensor that is smaller than its bytes": (("tensors", "entries", -1, 1), [1]),
    "an unknown version": (("front", "version"), 9),
    "an end behind the file": (("front", "end"), SIZE_MAX),
    "an end before the tensors": (("front", "end"), FIELDS["entries"][-1][OFFSET] + FIELDS["entries"][-1][SIZE]),
    "another number of tensors": (("front", "tensors"), 2**40),
    "a hundred thousand tags": (("front", "tags"), ["x"] * 100_000),
    "a reason of a megabyte": (("front", "unassemblable"), ["x" * 900_000]),
    "a lock that is no digest": (("front", "lock"), "sha256:" + "0" * 57),
    "a lock with a line behind it": (("front", "lock"), "0" * 64 + "\n"),
}


def changed(messages: list[Values], path: tuple[str | int, ...], value: Any) -> list[Values]:
    """Return the messages with another value at one path."""
    messages = deepcopy(messages)
    target: Any = next(message for message in messages if message["type"] == path[0])
    for step in path[1:-1]:
        target = target[step]
    target[path[-1]] = value
    return messages


@pytest.mark.parametrize(("path", "value"), NONSENSE.values(), ids=list(NONSENSE))
def test_an_inconsistent_header_is_refused(path: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(BadMessage):
        taken(FrontReader(MemorySource(MODEL)), changed(GOOD, path, value))


def places(value: Any) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each value in lists and objects."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (key,)
        yield from ((key, *path) for path in places(value[key]))


@pytest.mark.parametrize("value", [True, 40.5, "8", [1], {"a": 1}, 10**4000, float("nan")], ids=type)
def test_a_value_of_another_kind_is_refused_anywhere_in_the_messages_about_a_header(value: Any) -> None:
    for message in GOOD:
        for path in places({name: part for name, part in message.items() if name != "type"}):
            was = message
            for step in path:
                was = was[step]
            if type(value) is type(was):
                continue
            with pytest.raises(BadMessage):
                taken(FrontReader(MemorySource(MODEL)), changed(GOOD, (message["type"], *path), value))
    with pytest.raises(BadMessage):
        taken(FrontReader(MemorySource(MODEL)), changed(GOOD, ("front", "digest"), value))


def test_a_header_that_ends_early_is_refused() -> None:
    for messages in ([LAST], [FIELDS, LAST], [TENSORS, LAST], [FIELDS, TENSORS, TENSORS, LAST]):
        with pytest.raises(BadMessage):
            taken(FrontReader(MemorySource(MODEL)), messages)


def test_every_value_of_a_measurement_is_checked_against_its_range() -> None:
    spec, data = weight_tensor("blk.0.ffn_up.weight", (64, 64))
    measured = measure(lambda offset, size: data[offset : offset + size], spec.shape, spec.dtype)
    good = json.loads(bytes(measurement_values(measured)))
    assert isinstance(read_measurement(json.dumps(good).encode()), Measurement)
    unbounded = ("entropy", "kurtosis", "coherence", "mean", "minimum", "maximum")
    wrong: list[object] = [good | {"digest": "0" * 64}, {}, [], None, "z1", dict(list(good.items())[1:])]
    wrong.append(good | {"nan_count": good["sample_size"], "infinite_count": 1})
    for field in fields(Measurement):
        bad = [float("nan"), float("inf"), 10**400, [], {}, "x" * 1000, "\n"]
        bad += [] if field.name in unbounded else [-(10**30)]
        wrong += [good | {field.name: value} for value in bad]
    for values in wrong:
        with pytest.raises(BadMessage):
            read_measurement(json.dumps(values).encode())


def test_requests_for_bytes_and_refusals_are_checked() -> None:
    bad: list[object] = [{"type": "read", "offset": 0}, []]
    ranges = ((0, 2**21), (-1, 2), (2**64, 1))
    bad += [{"type": "read", "offset": offset, "size_bytes": size_bytes} for offset, size_bytes in ranges]
    refusals = ({"code": "A", "sentence": "x"}, {"code": "a", "sentence": ""}, {"code": "a\n", "sentence": "x"})
    bad += [{"type": "refused", **refusal} for refusal in refusals]
    for values in bad:
        with pytest.raises(BadMessage):
            decoded(json.dumps(values).encode(), FrontAnswer)
    refusal = decoded(b'{"type":"refused","code":"bad-gguf","sentence":"a\\u001b[31m\\nb"}', FrontAnswer)
    assert (refusal.code, refusal.printable) == ("bad-gguf", "a [31m b")


def framed(text: bytes, announced: int | None = None, behind: int = 0) -> bytes:
    return struct.pack(">II", len(text) if announced is None else announced, behind) + text


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        framed(b"{", 2),
        framed(b"", JSON_MAX_BYTES + 1),
        framed(b"{}", behind=1),
        framed(b"[" * 100_000),
        framed(b"[1]"),
        framed(b'{"a":NaN}'),
        framed(b'{"a":-Infinity}'),
        framed(b'{"a":' + b"9" * 5000 + b"}"),
        framed(b"\xff{}"),
        framed(b"{}{}"),
    ],
)
def test_an_invalid_message_is_refused(data: bytes) -> None:
    reads, writes = os.pipe()
    channel = Channel(reads, -1)
    try:
        os.set_blocking(writes, False)  # what does not fit into the pipe is not read
        os.write(writes, data)
        os.close(writes)
        with pytest.raises(BadMessage):
            channel.receive(dict[str, Any])
    finally:
        channel.close()


def answering(front: list[Values], measured: Callable[[MeasureTensor], Any]) -> Callable[[Channel], None]:
    """Return an inspector that answers the first request with `front` and each later one with `measured`."""

    def answer(channel: Channel) -> None:
        while (request := channel.receive(Inspect | BytesRead | MeasureTensor, 2**26)) is not None:
            if isinstance(request[0], Inspect):
                for message in front:
                    channel.send(message)
            elif isinstance(request[0], MeasureTensor) and (said := measured(request[0])) is not None:
                channel.send(said)

    return answer


MEASURED = json.loads(bytes(measurement_values(Measurement(sample_size=64, theta=1.0, fingerprint=bytes(256)))))


def answer_to(request: MeasureTensor, **values: Any) -> Values:
    """Return an answer of an inspector to a request for a measurement."""
    return {"type": "measured", "number": request.number, "measurement": MEASURED} | values


READ = {"type": "read", "offset": 0, "size_bytes": 1}
NO = {"type": "refused", "code": "bad-gguf", "sentence": "No."}
LIES: dict[str, tuple[list[Values], Callable[[MeasureTensor], Any], str, str]] = {
    "nothing but requests": ([READ] * 10_000, lambda _: None, "crashed", "same bytes"),
    "bytes of other files": ([READ | {"offset": len(MODEL)}], lambda _: None, "crashed", "outside the file"),
    "endless fields": ([FIELDS] * 3, lambda _: None, "crashed", "a metadata key appears twice"),
    "a refusal of its own": ([NO], lambda _: None, "bad-gguf", "No."),
    "an offset that is none": (
        *(changed(GOOD, ("tensors", "entries", 1, 3), 7), lambda _: None),
        *("crashed", "not where it must be"),
    ),
    "a measurement of nothing": (GOOD, lambda request: answer_to(request, number=10**6), "crashed", "not requested"),
    "no measurement": (GOOD, lambda request: answer_to(request, measurement=None), "crashed", "Expected `object`"),
    "a shape of θ": (
        *(GOOD, lambda request: answer_to(request, measurement=MEASURED | {"theta": 1e9})),
        *("crashed", "theta"),
    ),
    "an end": (GOOD, lambda _: os.read(-1, 0), "crashed", "It ended."),
}


def test_any_wrong_answer_of_an_inspector_gives_one_refusal_and_leaves_nothing(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "READS_BASE_BYTES", 0)
    for number, (name, (front, measured, code, words)) in enumerate(LIES.items()):
        start = partial(inspector_thread, serve=answering(front, measured))
        after = submit_and_process(registry, f"eve{number}/lies", MODEL, start_inspector=start)
        first, *others = json.loads(after.row.findings)
        assert (after.row.state, first["severity"], first["code"]) == ("refused", "refuse", code), name
        assert words in first["sentence"], name
        assert all(finding["severity"] != "refuse" for finding in others), name
        assert str(registry.settings.home) not in first["sentence"]
        assert_no_upload_is_left(registry)
        assert after.model is None
    assert blob_rows(registry) == []


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("inspection.FRONTS_MAX_BYTES", "."),
        ("submissions.LITERALS_MAX_BYTES", "model.gguf: its header has more than 100 bytes of short values."),
    ],
    ids=["too many names", "too many short values"],
)
def test_a_header_that_is_too_long_for_memory_is_refused(
    place: str, sentence: str, registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"organs.ingest.contributions.{place}", 100)
    after = submit_and_process(registry, "eve/large", MODEL)
    assert (after.row.state, codes(after)) == ("refused", ["too-large"])
    assert (after.row.reason or "").endswith(sentence)
    assert_no_upload_is_left(registry)


def codes(submission: SubmissionWithJob) -> list[str]:
    return [finding["code"] for finding in json.loads(submission.row.findings)]


def test_a_lying_inspector_changes_no_existing_organ_and_no_byte(registry: LocalRegistry) -> None:
    assert submit_and_process(registry, "ann/tiny", MODEL).row.state == "published"

    def measured_rows() -> list[tuple[object, ...]]:
        with registry.catalog.reading() as session:
            prints = [(row.organ_id, row.values) for row in session.scalars(select(Fingerprint))]
            return [*prints, *((row.organ_id, row.theta) for row in session.scalars(select(MeasurementRow)))]

    before, blobs = measured_rows(), {row.digest for row in blob_rows(registry)}
    tuned = MODEL[:-1] + bytes([MODEL[-1] ^ 1])
    lies = answering(through_json(front_messages(read_front(MemorySource(tuned)))), answer_to)
    second = submit_and_process(registry, "eve/tuned", tuned, start_inspector=partial(inspector_thread, serve=lies))
    assert (second.row.state, second.row.reason) == ("published", None)
    after = measured_rows()
    assert set(before) <= set(after)
    assert len(after) == len(before) + 2, "its own tensor alone, by what it was said to be"
    assert len({row.digest for row in blob_rows(registry)} - blobs) == 1


def test_an_inspector_that_is_slow_or_crashes_is_reported() -> None:
    file = memory_file(MODEL)
    with (
        running(ProcessLimits(wall_seconds=0.1)) as conversation,
        pytest.raises(InspectionStopped, match=r"it took longer than 0.1 s") as slow,
    ):
        conversation.front(file, lambda: None)
    assert slow.value.is_limit
    with running(ProcessLimits()) as conversation:
        with pytest.raises(InspectionStopped, match="ended by SIGSEGV") as dead:
            conversation.front(file, lambda: os.kill(int(own_inspector().name), signal.SIGSEGV))
        assert not dead.value.is_limit
        with pytest.raises(InspectionStopped, match="ended by SIGSEGV"):
            conversation.measure(lambda _offset, size: bytes(size), (64, 64), dtype_by_name("F32"))
    with running(ProcessLimits()) as conversation, pytest.raises(InspectionStopped, match="ended without an answer"):
        conversation.measure(lambda _offset, size: bytes(size + 1), (64, 64), dtype_by_name("F32"))


def test_an_inspector_that_stops_answering_is_stopped_after_its_limit(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "ANSWER_SECONDS", 0.05)

    def stops_in_the_middle(channel: Channel) -> None:
        channel.receive(Inspect)
        os.write(channel._writes, HALF_A_MESSAGE)
        channel.receive(Inspect)

    answers = [*(answering(front, lambda _: None) for front in ([], GOOD)), stops_in_the_middle]
    for number, serve in enumerate(answers):
        start = partial(inspector_thread, serve=serve)
        after = submit_and_process(registry, f"eve{number}/slow", MODEL, start_inspector=start)
        assert after.row.reason == "The inspection was stopped: no answer for 0.05 s."
        assert codes(after)[0] == "limit"
        assert_no_upload_is_left(registry)


HALF_A_MESSAGE = framed(b"{}")[:2]


def test_receiving_an_endless_message_byte_by_byte_stops_at_its_deadline() -> None:
    (reads, writes), over = os.pipe(), threading.Event()
    channel = Channel(reads, -1)

    def drip() -> None:
        for byte in framed(b"[" * 10_000):
            os.write(writes, bytes([byte]))
            if over.wait(0.02):
                return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(TimeoutError):
            channel.receive(Inspect, timeout_seconds=0.2)
        assert channel.waited_seconds < 30
    finally:
        over.set()
        thread.join()
        channel.close()
        os.close(writes)


def test_sending_an_unread_message_stops_at_its_deadline() -> None:
    reads, writes = os.pipe()
    channel = Channel(-1, writes)
    try:
        with pytest.raises(TimeoutError):
            channel.send({}, bytes(1 << 20), timeout_seconds=0.05)
    finally:
        channel.close()
        os.close(reads)


def test_messages_work_with_descriptors_above_1024() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    try:
        low = os.pipe()
        channel = Channel(*(fcntl.fcntl(descriptor, fcntl.F_DUPFD, 1030) for descriptor in low))
        for low_descriptor in low:
            os.close(low_descriptor)
        channel.send({"a": 1}, b"data", timeout_seconds=60)
        assert channel.receive(dict[str, int], 4, timeout_seconds=60) == ({"a": 1}, b"data")
        with pytest.raises(TimeoutError):
            channel.receive(Inspect, timeout_seconds=0.01)
        channel.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_inspector_that_does_not_read_is_killed_and_blocks_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "ANSWER_SECONDS", 0.1)
    killed = threading.Event()

    def measure_large() -> Measurement:
        """Request more bytes than a pipe holds."""
        return conversation.measure(lambda _offset, size: bytes(size), (1024, 512), dtype_by_name("F32"))

    with (
        inspector_thread(0, False, lambda _: killed.wait(60)) as conversation,
        ThreadPoolExecutor(3) as threads,
    ):
        monkeypatch.setattr(conversation, "_kill", killed.set)
        errors = [future.exception(60) for future in [threads.submit(measure_large) for _ in range(3)]]
        assert all("no answer for 0.1 s" in str(error) for error in errors)
        assert killed.is_set()
        with pytest.raises(InspectionStopped):
            measure_large()


def test_many_slow_answers_share_one_time_limit(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "FRONTS_SECONDS", 0.1)
    monkeypatch.setattr(inspection, "MEASURED_SECONDS_LEAST", 0.03)
    monkeypatch.setattr(inspection, "MEASURED_SECONDS_EACH", 0.001)

    def dripping(channel: Channel) -> None:
        while channel.receive(Inspect | BytesRead, 1) is not None:
            time.sleep(0.02)
            channel.send(READ)

    def measured(request: MeasureTensor) -> Values:
        time.sleep(0.02)
        return answer_to(request)

    for name, serve, words in (
        ("headers", dripping, r"reading the headers took longer than 0.1 s"),
        ("tensors", answering(GOOD, measured), r"\d+ measurements took longer than 0.0\d+ s"),
    ):
        start = partial(inspector_thread, serve=serve)
        after = submit_and_process(registry, f"eve/{name}", MODEL, start_inspector=start)
        assert re.fullmatch(rf"The inspection was stopped: {words}\.", after.row.reason or ""), after.row.reason
        assert codes(after)[0] == "limit"
        assert_no_upload_is_left(registry)
