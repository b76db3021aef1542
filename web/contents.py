"""What can be handed out: organs in three forms, a model's files, a model as one file. Rows to `Content`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from flask import abort
from sqlalchemy.orm import Session

from organs.ingest.directory.layout import encode_head
from organs.registry.catalog.queries.blobs import BlobRow, blobs_by_id
from organs.registry.catalog.queries.models import files_of
from organs.registry.catalog.queries.organs import organs_by_prefix
from organs.registry.catalog.queries.published import name_of_organ
from organs.registry.catalog.tables import Model, ModelFile, Organ
from organs.registry.chimera.layout import plan_merged
from organs.registry.chimera.npy import NpyStream, plan_npy
from organs.registry.chimera.plan import (
    FilePlan,
    PlannedSlice,
    check_assemblable,
    clipped,
    plan_digest,
    plan_file,
)
from organs.registry.chimera.stream import FileStream
from organs.registry.compose.partial import refuse_partial
from organs.registry.digest import Digest, digest_of, parse_prefix
from organs.registry.errors import CorruptBlob, MissingBlob, NotFound
from organs.registry.gguf import DType, TensorSpec, dtype_by_name
from organs.web.responses import (
    reading,
    registry,
)
from organs.web.streams import ByteSource, Content, is_plain_name, streams

FULL_DIGEST_LENGTH = 64
SUFFIX = ".gguf"


@dataclass(frozen=True, slots=True)
class ChosenOrgan:
    """An organ that was asked for, and whether the words that asked for it can mean another one day."""

    organ_id: int
    blob: BlobRow
    dtype: DType
    shape: tuple[int, ...]
    is_full_digest: bool
    is_told_apart: bool
    """By dtype and shape, from what else the bytes may stand for."""

    @property
    def digest(self) -> Digest:
        return self.blob.digest


def chosen_organ(session: Session, text: str, dtype: str | None, shape: str | None) -> ChosenOrgan:
    """The visible organ whose digest begins with `text`, of `dtype` and `shape` where they are given.

    The oldest of several. Raises BadDigest, NotFound, Ambiguous.
    """
    rows = organs_by_prefix(session, text, visible=True)
    fitting = [organ for organ, _ in rows if dtype in (None, organ.dtype) and shape in (None, organ.shape)]
    if not fitting:
        raise NotFound(f"these bytes stand as {_listed([organ for organ, _ in rows])}: ask for one of these")
    organ = fitting[0]
    return ChosenOrgan(
        organ.id,
        blobs_by_id(session, [organ.blob_id])[organ.blob_id],
        dtype_by_name(organ.dtype),
        tuple(int(length) for length in organ.shape.split("x")),
        is_full_digest=len(parse_prefix(text)) == FULL_DIGEST_LENGTH,
        is_told_apart=dtype is not None and shape is not None,
    )


def raw_organ(organ: ChosenOrgan) -> Content:
    """The plain bytes."""
    plan = _organ_plan(organ, b"")
    return _of_plan(plan, organ.digest, sha256=organ.digest, immutable=organ.is_full_digest)


def organ_file(session: Session, organ: ChosenOrgan, name: str | None) -> Content:
    """The file that organ directories have: a head, then the plain bytes. Raises NotFound for a name of no place."""
    found = name_of_organ(session, organ.organ_id, name)
    if found is None:
        raise NotFound("this organ sits at no place of that name")
    head = encode_head(TensorSpec(found, organ.shape, organ.dtype))
    plan = _organ_plan(organ, head)
    immutable = organ.is_full_digest and organ.is_told_apart and name is not None
    return _of_plan(plan, plan_digest(plan), immutable=immutable)


def organ_values(organ: ChosenOrgan) -> Content:
    """The values as a NumPy file of float32; raises UnsupportedDType where no kernel reads them."""
    what = f"organ {organ.digest[:12]}"
    plan = plan_npy(what, organ.blob, organ.dtype, organ.shape)

    def open_values(begin: int, end: int) -> ByteSource:
        return NpyStream(registry().blobs, plan, begin, end, streams().pool)

    tag = digest_of(plan.head + f"{organ.dtype.name} {organ.digest}".encode("ascii"))
    immutable = organ.is_full_digest and organ.is_told_apart
    return Content(f"{organ.digest[:16]}.npy", plan.size_bytes, tag, open_values, immutable=immutable)


def model_file(model: Model, file: ModelFile, name: str, *, immutable: bool) -> Content:
    """A file of `model` as it came in, called `name`; raises NotAssemblable."""
    check_assemblable(model)
    digest = Digest(file.sha256)

    def open_file(begin: int, end: int) -> ByteSource:
        with reading() as session:
            plan = plan_file(session, file, begin, end)
        return FileStream(registry().blobs, plan, pool=streams().pool)

    model_id = model.id if file.position == 0 else None
    return Content(name, file.size_bytes, digest, open_file, digest, immutable, model_id)


def whole_model(session: Session, model: Model, *, immutable: bool) -> Content:
    """`model` as one file, merged if it came in shards; raises NotAssemblable, CorruptBlob, MissingBlob."""
    refuse_partial(session, model)
    files = files_of(session, model.id)
    name = whole_name(model.full_name, [file.name for file in files])
    if len(files) == 1:
        return model_file(model, files[0], name, immutable=immutable)
    (plan,) = plan_merged(session, registry().blobs, model, name)
    return replace(_of_plan(plan, plan_digest(plan), immutable=immutable), model_id=model.id)


def whole_name(model: str, files: Sequence[str]) -> str:
    """How `namespace/name@version` is called as one file: as its only file is, if that is a plain name for one."""
    if len(files) == 1 and files[0].lower().endswith(SUFFIX) and is_plain_name(files[0]):
        return files[0]
    return f"{model.partition('/')[2].rpartition('@')[0]}{SUFFIX}"


def literal_file(name: str, data: bytes, *, immutable: bool) -> Content:
    """A file of these bytes."""
    digest = digest_of(data)
    return _of_plan(FilePlan(name, len(data), digest, data, ()), digest, sha256=digest, immutable=immutable)


def public_names(own: Sequence[str]) -> list[str]:
    """The names under which the files of a model are handed out: their own, where anybody can make a file of that name.

    A name that is no plain one, or that another file has already, gives way to one by position, or the next free one.
    """
    names: list[str] = []
    taken = {name for name in own if is_plain_name(name)}
    for position, name in enumerate(own, 1):
        fits = is_plain_name(name) and name not in names
        others = (f"file-{number}{SUFFIX}" for number in count(position))
        names.append(name if fits else next(one for one in others if one not in taken))
        taken.add(names[-1])
    return names


@contextmanager
def told_in_words(what: str) -> Iterator[None]:
    """A faulty blob that is found before the first byte is told to the client: 500, with what heals it."""
    try:
        yield
    except (CorruptBlob, MissingBlob) as error:
        abort(500, f"{what} cannot be handed out: {error}. A new ingest of a file that has it heals it.")


def _organ_plan(organ: ChosenOrgan, head: bytes) -> FilePlan:
    what = f"organ {organ.digest[:12]}"
    size = organ.blob.size_bytes
    slices = (PlannedSlice(len(head), size, organ.blob, 0, what),) if size else ()
    ending = ".bin" if head else ".raw"
    return FilePlan(f"{organ.digest[:16]}{ending}", len(head) + size, None, head, slices)


def _of_plan(plan: FilePlan, tag: Digest, *, sha256: Digest | None = None, immutable: bool) -> Content:
    def open_plan(begin: int, end: int) -> ByteSource:
        part = clipped(plan, begin, end)
        return FileStream(registry().blobs, part, pool=streams().pool)

    return Content(plan.name, plan.size_bytes, tag, open_plan, sha256, immutable)


def _listed(organs: Sequence[Organ]) -> str:
    return ", ".join(f"{organ.dtype} of {organ.shape}" for organ in organs[:5])
