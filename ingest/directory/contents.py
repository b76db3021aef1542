"""What is taken apart into an organ directory: GGUF files on the disk, or a model of the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from organs.ingest.buffers import BUFFER_BYTES
from organs.ingest.directory.manifest import Measures
from organs.ingest.dissect import DissectedFile
from organs.registry.catalog.queries.models import files_of, model_by_name, placements_of
from organs.registry.chimera.plan import FilePlan, plan_model
from organs.registry.chimera.stream import FileStream
from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob
from organs.registry.gguf import ByteSource, Header, HeaderSource, TensorInfo, read_header
from organs.registry.measure import measure
from organs.registry.names import ModelName
from organs.registry.registry import Registry
from organs.registry.store import BlobStore


@dataclass(frozen=True, slots=True)
class Content:
    """One GGUF file that is to be taken apart."""

    name: str
    header: Header
    head: ByteSource
    """Gives at least the header's bytes."""
    views: Callable[[], AbstractContextManager[Iterator[memoryview]]]
    """Opens the bytes of the whole file in order; a view is valid until the next is asked for."""
    measures: Callable[[TensorInfo], Measures]
    """Safe from several threads."""
    check: Callable[[Digest], None]
    """Called with the digest of what was read; raises when that is not what it should have been."""


def file_contents(files: Sequence[DissectedFile]) -> list[Content]:
    """The contents of files on the disk, which must stay the same until they are read; organs are measured."""
    return [
        Content(
            name=file.source.path.name,
            header=file.header,
            head=file.source,
            views=partial(_file_views, file),
            measures=partial(_measured, file),
            check=partial(_unchanged, file),
        )
        for file in files
    ]


def registered_contents(registry: Registry, name: ModelName) -> list[Content]:
    """The contents of a registered model, every chunk checked as it is read; measures are those of the registry.

    Raises NotFound, NotAssemblable, CorruptBlob, MissingBlob.
    """
    with registry.catalog.reading() as session:
        model = model_by_name(session, name)
        plans = plan_model(session, model)
        header_sizes = [file.header_bytes for file in files_of(session, model.id)]
        measures = {
            placement.name: Measures(
                placement.theta,
                placement.magnitude,
                placement.signal,
                placement.spectral_signal,
                placement.stable_rank,
            )
            for placement, *_ in placements_of(session, model.id)
        }
    return [_registered(registry.blobs, plan, size, measures) for plan, size in zip(plans, header_sizes, strict=True)]


@contextmanager
def _file_views(file: DissectedFile) -> Iterator[Iterator[memoryview]]:
    yield _views_of(file)


def _views_of(file: DissectedFile) -> Iterator[memoryview]:
    size = file.header.file_size_bytes
    buffer = memoryview(bytearray(min(BUFFER_BYTES, size)))
    for begin in range(0, size, BUFFER_BYTES):
        view = buffer[: min(BUFFER_BYTES, size - begin)]
        file.source.read_into(view, begin)
        yield view


def _measured(file: DissectedFile, tensor: TensorInfo) -> Measures:
    begin = file.tensor_span(tensor).offset

    def read(offset: int, size: int) -> bytes:
        return file.source.read_at(begin + offset, size)

    found = measure(read, tensor.shape, tensor.dtype)
    return Measures(found.theta, found.magnitude, found.signal, found.spectral_signal, found.stable_rank)


def _unchanged(file: DissectedFile, _found: Digest) -> None:
    file.source.check_unchanged()


def _registered(store: BlobStore, plan: FilePlan, header_bytes: int, measures: dict[str, Measures]) -> Content:
    begin = tuple(piece for piece in plan.slices if piece.offset_bytes < header_bytes)
    collected = bytearray()
    with FileStream(store, FilePlan(plan.name, header_bytes, None, b"", begin)) as stream:
        for view in stream:
            collected += view
    head = HeaderSource(bytes(collected), plan.size_bytes, plan.name)
    return Content(
        name=plan.name,
        header=read_header(head),
        head=head,
        views=partial(_plan_views, store, plan),
        measures=lambda tensor: measures[tensor.name],
        check=partial(_as_it_came, plan),
    )


@contextmanager
def _plan_views(store: BlobStore, plan: FilePlan) -> Iterator[Iterator[memoryview]]:
    with FileStream(store, plan) as stream:
        yield iter(stream)


def _as_it_came(plan: FilePlan, found: Digest) -> None:
    if plan.sha256 is not None and found != plan.sha256:
        raise CorruptBlob(plan.name, f"its SHA-256 would be {found}, {plan.sha256} is due; nothing was written")
