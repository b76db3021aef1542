"""Uploads: a look-up of pieces that need no upload, and sessions that receive the others in chunks."""

from __future__ import annotations

from typing import Annotated

from organs.registry.catalog.vocabulary import UPLOAD
from organs.registry.endpoints.declaration import ACCEPTED, CREATED, Group, InHeader
from organs.registry.endpoints.organs import EXAMPLE_DIGESTS
from organs.registry.endpoints.parameters import note
from organs.registry.entities.organ import Digests
from organs.registry.entities.submission import KnownDigests, Upload, UploadPage, UploadRequest

GROUP = Group("Uploads", "Upload files and pieces in chunks; uploads can be resumed.")
EXAMPLES = {
    "open": "exampleUploadOpen-0001",
    "full": "exampleUploadFull-0001",
    "done": "exampleUploadDone-0001",
    "gone": "exampleUploadGone-0001",
}
EXAMPLE_BYTES = "organ"
"""All bytes of the uploads of the examples."""
EXAMPLE_DIGEST = "e0fb6e6c6305332dbd13cc4d4ee1f9782b60609b633b26510df200e9c311ea23"
RANGE_HEADER, DIGEST_HEADER = "Content-Range", "Content-Digest"
RANGE_PATTERN = "bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})"
DIGEST_PATTERN = "sha-256=:([0-9A-Za-z+/]{43}=):"
_ID_PATTERN = "^[0-9A-Za-z_-]{22}$"
_ID_TEXT = "The `id` of the upload."

FileDigest = Annotated[
    str, note("SHA-256 of the whole file, if it was not declared before.", pattern="^(sha256:)?[0-9a-f]{64}$")
]
ContentRange = Annotated[
    str,
    note(
        "The first and the last byte of the chunk, and the size of the whole upload.",
        "bytes 0-4/5",
        pattern=f"^{RANGE_PATTERN}$",
    ),
    InHeader(RANGE_HEADER),
]
ContentDigest = Annotated[
    str,
    note("SHA-256 of the chunk (RFC 9530); a damaged chunk is refused.", pattern=f"^{DIGEST_PATTERN}$"),
    InHeader(DIGEST_HEADER),
]


@GROUP.write("post", "/uploads/lookup", "Look up pieces that need no upload", example=EXAMPLE_DIGESTS, is_shadowed=True)
def lookup_uploads(body: Digests) -> KnownDigests:
    """Return which of up to 1,000 digests need no upload: tensors, header runs and metadata arrays of public models and
    of your own models, and pieces that you uploaded before.
    """


@GROUP.write(
    "post",
    "/uploads",
    "Start an upload",
    status=ACCEPTED,
    example=f'{{"kind": "piece", "size_bytes": 5, "digest": "{EXAMPLE_DIGEST}"}}',
)
def begin_upload(body: UploadRequest) -> Upload:
    """Declare a file or a piece to upload. If the same upload is open already, it is returned, so that a client can
    resume after a restart. 413 for more than the quota allows, 429 for too many open uploads.
    """


@GROUP.get("/uploads", "List open uploads", scope=UPLOAD)
def uploads() -> UploadPage:
    """Return your open uploads, newest first."""


@GROUP.get("/uploads/{upload}", "Get an upload", refusals=(404,), scope=UPLOAD)
def upload(upload: Annotated[str, note(_ID_TEXT, EXAMPLES["open"], pattern=_ID_PATTERN)]) -> Upload:
    """Return an upload. The next chunk begins at `received_bytes`. 404 for uploads of other contributors."""


@GROUP.write(
    "patch",
    "/uploads/{upload}",
    "Send a chunk",
    status=ACCEPTED,
    bytes_example=EXAMPLE_BYTES,
    refusals=(404, 409, 411, 416),
)
def receive_chunk(
    upload: Annotated[str, note(_ID_TEXT, EXAMPLES["full"], pattern=_ID_PATTERN)],
    content_range: ContentRange,
    content_digest: ContentDigest | None = None,
    *,
    data: bytes,
) -> Upload:
    """Send a chunk as the body. The answer comes when the bytes are durable. A repeated chunk is compared with the
    stored bytes: the same bytes get the same answer, other bytes get 409. A chunk that does not begin at
    `received_bytes` gets 416. A chunk that arrives while another one is being received gets 409. A refused chunk does
    not change the upload.
    """


@GROUP.write("put", "/uploads/{upload}", "Finish an upload", status=CREATED, refusals=(404, 409))
def finish_upload(
    upload: Annotated[str, note(_ID_TEXT, EXAMPLES["done"], pattern=_ID_PATTERN)], digest: FileDigest | None = None
) -> Upload:
    """Finish an upload whose bytes were all sent. The server reads the bytes again and compares them with the declared
    digests. 400 if they differ; then the upload does not change until it is deleted or expires. Finishing twice changes
    nothing.
    """


@GROUP.write("delete", "/uploads/{upload}", "Remove an upload", refusals=(404, 409))
def cancel_upload(upload: Annotated[str, note(_ID_TEXT, EXAMPLES["gone"], pattern=_ID_PATTERN)]) -> Upload:
    """Remove an upload with all its bytes, finished or not. Return it as it was."""
