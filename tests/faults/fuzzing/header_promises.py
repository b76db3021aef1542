"""The invariants of an accepted file, and of the message that refuses another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, cast

from organs.ingest.checking import header_findings
from organs.ingest.dissect import DissectedFile, dissect
from organs.ingest.pipeline import FileDigests, Gathered
from organs.ingest.records import model_record
from organs.registry.digest import digest_of
from organs.registry.errors import BadGguf
from organs.registry.gguf import Header, carry_over, encode_header
from organs.registry.gguf.types import VERSION_WRITTEN
from organs.registry.measure import measure
from organs.registry.names import ModelName
from tests.ingest.test_dissect import put_together

if TYPE_CHECKING:
    from organs.registry.input_files import FileSource

NAME = "fuzz.gguf"
DIGEST = digest_of(b"whatever the file holds")
REFUSAL_MAX = 1000
"""The length limit of a refusal, in characters."""
MEASURED_MAX_ELEMENTS = 1 << 15


@dataclass(slots=True)
class Upload:
    """The bytes of a case, followed by zeros up to `size_bytes`. A read outside is a fault of the reader."""

    data: bytes
    size_bytes: int
    name: str = NAME
    path: Path = Path(NAME)

    def read_at(self, offset: int, size: int) -> bytes:
        assert size >= 0
        assert 0 <= offset <= offset + size <= self.size_bytes, f"{size} bytes read at {offset} of {self.size_bytes}"
        data = self.data[offset : offset + size]
        return data if len(data) == size else data.ljust(size, b"\0")

    def origin(self, _organs: object) -> None:
        """Return None: the file is not derived from another."""


def refusal(error: BadGguf, source: Upload) -> str:
    """Return the message, after checking that it can be shown and names the position."""
    message = str(error)
    assert error.source == NAME
    assert error.field
    assert 0 <= error.offset <= source.size_bytes
    assert message.isprintable()
    assert len(message) < REFUSAL_MAX
    return error.reason


def check_measuring(source: Upload, header: Header, random: Random, *, every: bool) -> None:
    """Check that every tensor of the header can be measured, with any bytes."""
    tensors = [tensor for tensor in header.tensors if tensor.elements <= MEASURED_MAX_ELEMENTS]
    if not tensors or (not every and random.random() < 0.6):
        return
    for tensor in tensors if every else (random.choice(tensors),):
        begin = header.data_offset + tensor.offset
        data = source.read_at(begin, tensor.size_bytes)
        if random.random() < 0.3:
            data = random.randbytes(tensor.size_bytes)
        measurement = measure(_reader(data), tensor.shape, tensor.dtype)
        assert measurement.theta is None or 0 <= measurement.theta <= 90
        assert 0 <= measurement.sample_size <= tensor.elements


def _reader(data: bytes) -> Callable[[int, int], bytes]:
    def read(offset: int, size: int) -> bytes:
        assert 0 <= offset <= offset + size <= len(data)
        return data[offset : offset + size]

    return read


def check_pieces(source: Upload, header: Header) -> DissectedFile:
    """Check the dissected file: its pieces give the file, its header can be written again, its rows can be made."""
    file = dissect(cast("FileSource", source))
    assert (file.header.tensors, file.header.end) == (header.tensors, header.end)
    assert put_together(file) == source.data.ljust(source.size_bytes, b"\0")
    _check_writing(source, header)
    _check_recording(file)
    return file


def _check_recording(file: DissectedFile) -> None:
    """Check the records of the file: every tensor, and all metadata."""
    spans = [*file.arrays, *map(file.tensor_span, file.header.tensors)]
    gathered = Gathered(
        files=[FileDigests(DIGEST, DIGEST, DIGEST, {span.offset: DIGEST for span in spans})],
        nonfinite=defaultdict(int),
    )
    findings = header_findings([(file.front, bool(file.paddings))])
    assert all(item.sentence.isprintable() for item in findings)
    record = model_record(ModelName("local", "fuzz"), [file], gathered, findings)
    assert len(record.metadata) == len(file.header.fields)
    assert [placement.name for placement in record.files[0].placements] == [t.name for t in file.header.tensors]
    covered = sum(part.size_bytes for part in record.files[0].parts) + sum(t.size_bytes for t in file.header.tensors)
    assert covered <= file.header.file_size_bytes


def _check_writing(source: Upload, header: Header) -> None:
    """Check that our writer gives the same header, except for its padding. It does not write big-endian files."""
    if header.version == VERSION_WRITTEN and not header.is_big_endian:
        written = encode_header(
            (carry_over(source, field) for field in header.fields), header.tensors, header.alignment
        )
        assert written[: header.end] == source.read_at(0, header.end)
