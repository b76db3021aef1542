"""Downloads: organs in three formats, models as original files or as one file, and the texts of chimeras."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from flask import Blueprint, Response, abort, current_app, request
from flask.blueprints import BlueprintSetupState
from sqlalchemy.orm import Session

from organs.ingest.directory.layout import encode_head
from organs.ingest.jobs.packs import has_pack, open_pack
from organs.registry.assembly import (
    FilePlan,
    FileStream,
    NpyStream,
    PlannedSlice,
    check_assemblable,
    clipped,
    first_header,
    plan_digest,
    plan_file,
    plan_merged,
    plan_npy,
)
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_id
from organs.registry.catalog.queries.card_images import image_blob
from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.queries.jobs import JobFile, file_of_job
from organs.registry.catalog.queries.model_contents import files_of, name_of_organ
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.organs import organs_by_prefix
from organs.registry.catalog.tables import ModelFileRow, ModelRow
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.compose.chimeras import chimera_of_model
from organs.registry.compose.lock import lock_of
from organs.registry.compose.parents import refuse_partial
from organs.registry.digest import Digest, digest_of, parse_prefix
from organs.registry.entities.published import IMAGE_FORMATS
from organs.registry.errors import CorruptBlob, MissingBlob, NotFound, UnsupportedDType
from organs.registry.gguf import DType, TensorSpec, dtype_by_name
from organs.registry.names import parse_model_name
from organs.registry.store.backend import OpenBlob
from organs.web.file_responses import (
    IMMUTABLE,
    STREAMS_KEY,
    THREADS,
    BodySource,
    FileContent,
    allow_streams,
    hand_out,
    is_plain_name,
    streams,
)
from organs.web.params import parsed_number
from organs.web.permissions import known_model, whose_jobs
from organs.web.responses import (
    conditional,
    reading,
    registry,
    searching,
)

FULL_DIGEST_LENGTH = 64
SUFFIX = ".gguf"


@dataclass(frozen=True, slots=True)
class ChosenOrgan:
    """A requested organ, and whether its address can name another organ later."""

    organ_id: int
    blob: KnownBlob
    dtype: DType
    shape: tuple[int, ...]
    is_full_digest: bool
    is_unambiguous: bool
    """Whether the request names the dtype and the shape: the same bytes may be registered with others."""

    @property
    def digest(self) -> Digest:
        return self.blob.digest


def chosen_organ(session: Session, text: str, dtype: str | None, shape: str | None) -> ChosenOrgan:
    """Return the oldest visible organ whose digest begins with `text`.

    `dtype` and `shape` select one of several organs with the same bytes. Raises BadDigest, NotFound, Ambiguous.
    """
    rows = organs_by_prefix(session, text, visible=True)
    matches = [organ for organ, _ in rows if dtype in (None, organ.dtype) and shape in (None, organ.shape)]
    if not matches:
        known = ", ".join(f"{organ.dtype} of {organ.shape}" for organ, _ in rows[:5])
        raise NotFound(f"these bytes are {known}: request one of these")
    organ = matches[0]
    return ChosenOrgan(
        organ.id,
        blobs_by_id(session, [organ.blob_id])[organ.blob_id],
        dtype_by_name(organ.dtype),
        tuple(int(length) for length in organ.shape.split("x")),
        is_full_digest=len(parse_prefix(text)) == FULL_DIGEST_LENGTH,
        is_unambiguous=dtype is not None and shape is not None,
    )


def organ_content(session: Session, organ: ChosenOrgan, form: str, name: str | None) -> FileContent:
    """Return an organ in one of three forms.

    raw: the plain bytes.
    bin: a file of organ directories: a head, then the plain bytes. `name` selects a tensor name if the organ has
         several. Raises NotFound for an unknown name, UnsupportedDType for big-endian values: the format has none.
    npy: the values as a NumPy file of float32. Raises UnsupportedDType if the registry cannot decode the dtype.
    """
    label, file_name = f"tensor {organ.digest[:12]}", f"{organ.digest[:16]}.{form}"
    immutable = organ.is_full_digest and (organ.is_unambiguous or form == "raw")
    if form == "npy":
        values = plan_npy(label, organ.blob, organ.dtype, organ.shape)

        def open_values(begin: int, end: int) -> BodySource:
            return NpyStream(registry().blobs, values, begin, end, streams().pool)

        tag = digest_of(values.head + f"{organ.dtype.name} {organ.digest}".encode("ascii"))
        return FileContent(file_name, values.size_bytes, tag, open_values, immutable=immutable)
    head, size = b"", organ.blob.size_bytes
    if form == "bin":
        if organ.dtype.is_big_endian:
            raise UnsupportedDType(f"values of {organ.dtype.name} are big-endian: download the tensor as .raw")
        tensor_name = name_of_organ(session, organ.organ_id, name)
        if tensor_name is None:
            raise NotFound("no model has this tensor under that name")
        head = encode_head(TensorSpec(tensor_name, organ.shape, organ.dtype))
        immutable = immutable and name is not None
    slices = (PlannedSlice(len(head), size, organ.blob, 0, label),) if size else ()
    plan = FilePlan(file_name, len(head) + size, None, head, slices)
    digest = None if head else organ.digest
    return _content_of_plan(plan, digest or plan_digest(plan), sha256=digest, immutable=immutable)


def model_file(model: ModelRow, file: ModelFileRow, name: str, *, immutable: bool) -> FileContent:
    """Return an original file of `model` under the name `name`. Raises NotAssemblable."""
    check_assemblable(model)
    digest = Digest(file.sha256)

    def open_file(begin: int, end: int) -> BodySource:
        with reading() as session:
            plan = plan_file(session, file, begin, end)
        return FileStream(registry().blobs, plan, pool=streams().pool)

    model_id = model.id if file.position == 0 else None
    return FileContent(name, file.size_bytes, digest, open_file, digest, immutable, model_id)


def whole_model(session: Session, model: ModelRow, *, immutable: bool) -> FileContent:
    """Return `model` as one file, merged from its shards; raises NotAssemblable, CorruptBlob, MissingBlob."""
    refuse_partial(session, model)
    files = files_of(session, model.id)
    name = whole_name(model.full_name, [file.name for file in files])
    if len(files) == 1:
        return model_file(model, files[0], name, immutable=immutable)
    (plan,) = plan_merged(session, registry().blobs, model, name)
    return replace(_content_of_plan(plan, plan_digest(plan), immutable=immutable), model_id=model.id)


def whole_name(model: str, files: Sequence[str]) -> str:
    """Return the name of a model's single file: the original name if it is plain, or a name made from the model's."""
    if len(files) == 1 and files[0].lower().endswith(SUFFIX) and is_plain_name(files[0]):
        return files[0]
    return f"{model.partition('/')[2].rpartition('@')[0]}{SUFFIX}"


def literal_file(name: str, data: bytes, *, immutable: bool = False, tag: str | None = None) -> FileContent:
    """Return a file that consists of `data`; its ETag is `tag`, by default its digest."""
    digest = digest_of(data)
    plan, sha256 = FilePlan(name, len(data), digest, data, ()), digest if tag is None else None
    return _content_of_plan(plan, tag or digest, sha256=sha256, immutable=immutable)


def public_names(own: Sequence[str]) -> list[str]:
    """Return the public names of a model's files; `own` has their own names.

    A name that is plain and unique is kept. Any other file is named `file-N.gguf`; N is its position in the list, or
    the next number that is free.
    """
    names: list[str] = []
    used = {name for name in own if is_plain_name(name)}
    for position, name in enumerate(own, 1):
        is_kept = is_plain_name(name) and name not in names
        numbered = (f"file-{number}{SUFFIX}" for number in count(position))
        names.append(name if is_kept else next(other for other in numbered if other not in used))
        used.add(names[-1])
    return names


@contextmanager
def explaining_faults(label: str) -> Iterator[None]:
    """Answer 500, with the remedy, if a blob is found to be damaged before the first byte is sent."""
    try:
        yield
    except (CorruptBlob, MissingBlob) as error:
        abort(500, f"{label} cannot be sent: {error}. To repair it, ingest a file that contains it again.")


def _content_of_plan(plan: FilePlan, tag: str, *, sha256: Digest | None = None, immutable: bool) -> FileContent:
    def open_plan(begin: int, end: int) -> BodySource:
        part = clipped(plan, begin, end)
        return FileStream(registry().blobs, part, pool=streams().pool)

    return FileContent(plan.name, plan.size_bytes, tag, open_plan, sha256, immutable)


downloads = Blueprint("downloads", __name__)

BODY_MAX_BYTES = 4096
"""The largest body of a GET, HEAD or OPTIONS request. It is ignored; no client has a reason to send one."""


@downloads.record_once
def _allow_streams(state: BlueprintSetupState) -> None:
    if STREAMS_KEY not in state.app.extensions:
        assert not isinstance(state.app, Blueprint)
        allow_streams(state.app, THREADS)  # type: ignore[arg-type]


@downloads.before_app_request
def _refuse_bodies() -> None:
    """Refuse compressed bodies, and bodies of GET, HEAD and OPTIONS requests."""
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        abort(415, "The body must not be compressed.")
    if request.method in ("GET", "HEAD", "OPTIONS"):
        chunked = "Transfer-Encoding" in request.headers
        if chunked or (request.content_length or 0) > BODY_MAX_BYTES:
            abort(413, "GET, HEAD and OPTIONS requests must not have a body.")


@downloads.get("/organs/<digest>.<any(raw,bin,npy):form>")
def organ(digest: str, form: str) -> Response:
    """Send an organ in one of three formats."""
    with reading() as session:
        chosen = chosen_organ(session, digest, request.args.get("dtype"), request.args.get("shape"))
        content = organ_content(session, chosen, form, request.args.get("name"))
    with explaining_faults(content.name):
        return hand_out(content)


@downloads.get("/models/<namespace>/<name>.gguf")
def model(namespace: str, name: str) -> Response:
    """Send a model as one file: the original, or its shards merged."""
    requested = parse_model_name(f"{namespace}/{name}")
    with explaining_faults(str(requested)):
        with reading() as session:
            content = whole_model(session, model_by_name(session, requested), immutable=requested.version is not None)
        return hand_out(content)


@downloads.get("/models/<namespace>/<name>/files/<file>")
def file_of_model(namespace: str, name: str, file: str) -> Response:
    """Send an original file of a model."""
    requested = parse_model_name(f"{namespace}/{name}")
    with reading() as session:
        row = model_by_name(session, requested)
        files = files_of(session, row.id)
        file_row = dict(zip(public_names([listed.name for listed in files]), files, strict=True)).get(file)
        if file_row is None:
            raise NotFound(f"{row.full_name} has no file of that name")
        content = model_file(row, file_row, file, immutable=requested.version is not None)
    with explaining_faults(content.name):
        return hand_out(content)


IMAGE_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"
"""An image that a browser opens alone loads and runs nothing."""


@downloads.get(f"/models/<namespace>/<name>/images/<image>.<any({', '.join(IMAGE_FORMATS)}):ending>")
def card_image(namespace: str, name: str, image: str, ending: str) -> Response:
    """Send an image of a card to those who may see the model."""
    requested = parse_model_name(f"{namespace}/{name}")
    with reading() as session:
        row = known_model(session, requested)
        blob = image_blob(session, row.id, image, ending)
        if blob is None:
            raise NotFound(f"{row.full_name} has no image of that name")
        is_public = row.state in REACHABLE_STATES
    with explaining_faults("the image"), registry().blobs.open(blob) as stored:
        answer = current_app.response_class(stored.read(), mimetype=f"image/{ending}")
    answer.headers["Content-Disposition"] = f'inline; filename="image.{ending}"'
    answer.headers["Content-Security-Policy"] = IMAGE_POLICY
    answer.headers["Cache-Control"] = IMMUTABLE if is_public else "private, no-cache"
    return conditional(answer)


artifacts = Blueprint("artifacts", __name__)

LOCK_FILE = "lock.json"
TEXTS = {"recipe.yaml": "recipe_yaml", "card.md": "card", "Modelfile": "modelfile"}
"""The text files of a chimera, and the member of the entity that has the text."""
READ_BYTES = 256 * 1024


@artifacts.get('/chimeras/<lock>/<any("recipe.yaml", "lock.json", "card.md", "Modelfile"):text>')
def chimera_text(lock: str, text: str) -> Response:
    """Send a text of a chimera. Only the lock can be cached forever."""
    with searching() as session, explaining_faults(text):
        model = chimeras_by_lock(session, lock)[0]
        if text == LOCK_FILE:
            first = first_header(session, registry().blobs, model)
            parsed = lock_of(first.header, first.source)
            content = None if parsed is None else parsed.canonical()
        else:
            chimera = chimera_of_model(session, model)
            content = None if chimera is None else str(getattr(chimera, TEXTS[text]))
    if content is None:
        raise NotFound(f"{model.full_name} has no {text}")
    immutable = text == LOCK_FILE and len(parse_prefix(lock)) == FULL_DIGEST_LENGTH
    return hand_out(literal_file(text, content.encode("utf-8"), immutable=immutable))


@artifacts.get("/jobs/<job>/files/<file>")
def job_file(job: str, file: str) -> Response:
    """Send a file that a job has written."""
    whose = whose_jobs()
    with searching() as session:
        written = file_of_job(session, parsed_number(job, "job"), whose)
    if written is None or written.name != file or not has_pack(registry(), written):
        raise NotFound(f"job {job} has no such file: files of jobs are kept for one day")
    digest, open_range = written.sha256, partial(_FileRange, written)
    return hand_out(FileContent(file, written.size_bytes, digest, open_range, digest))


class _FileRange:
    """A range of bytes of an open file, without its end (`web.file_responses.BodySource`)."""

    def __init__(self, file: JobFile, begin: int, end: int) -> None:
        self.faults: list[KnownBlob] = []
        self._file = file
        self._begin, self._end = begin, end
        self._opened: OpenBlob | None = None

    def wasted_seconds(self, sent_bytes: int) -> float:
        return 0.0

    def __enter__(self) -> BodySource:
        self._opened = open_pack(registry(), self._file)
        if self._opened is None:
            raise NotFound("this file was just removed: files of jobs are kept for one day")
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def __iter__(self) -> Iterator[memoryview]:
        assert self._opened is not None
        for offset in range(self._begin, self._end, READ_BYTES):
            yield memoryview(self._opened.read_at(offset, min(READ_BYTES, self._end - offset)))
