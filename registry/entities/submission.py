"""Uploads, and submissions: models that contributors want to publish, from the upload to the decision."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from organs.registry.entities.base import (
    WHOLE_MAX,
    Bytes,
    Count,
    Digest,
    Entity,
    Items,
    ModelText,
    Page,
    RequestBody,
    Share,
    Text,
    Texts,
    Theta,
    Time,
    Word,
)
from organs.registry.entities.published import CardImage, ModelStatements, Reason
from organs.registry.upload_limits import (
    CARD_IMAGES_MAX,
    FILE_NAME_MAX_BYTES,
    FINDING_MAX_LENGTH,
    FINDINGS_MAX,
    PACK_MAX_BYTES,
    PACK_PIECE_MAX_BYTES,
    PACK_PIECES_MAX,
    SUBMISSION_FILES_MAX,
    SUBMISSION_PIECES_MAX,
    UPLOAD_NAME_MAX_LENGTH,
)

UploadId = Annotated[
    str,
    Meta(
        pattern="^[0-9A-Za-z_-]{22}$",
        max_length=22,
        description="The last part of the address of the upload.",
        examples=["exampleUploadOpen-0001"],
    ),
]
Kind = Annotated[
    Word, Meta(description="`piece`: one piece of a model's file. `pack`: many small pieces. `file`: a complete file.")
]
Size = Annotated[int, Meta(ge=1, le=(1 << 62) - 1, description="Bytes.")]


class ChunkSizes(Entity):
    """The sizes of a chunk. Smaller chunks than `least` take longer. An upload has at most 20,000 chunks."""

    least: Size
    most: Size


class Upload(Entity):
    """An upload, and the number of its bytes that have arrived."""

    id: UploadId
    kind: Kind
    name: Annotated[str, Meta(max_length=UPLOAD_NAME_MAX_LENGTH, description="The name of the file.")] | None
    digest: Digest | None
    """SHA-256 of all bytes, if it is known."""
    size_bytes: Size
    received_bytes: Annotated[Bytes, Meta(description="Bytes on the disk. The next chunk begins at this offset.")]
    state: Annotated[Word, Meta(description="`open` or `complete`.")]
    expires_at: Annotated[
        Time, Meta(description="When it is removed, unless more bytes arrive or a submission uses it.")
    ]
    chunk_bytes: ChunkSizes

    @property
    def is_complete(self) -> bool:
        """Whether the upload is finished."""
        return self.state == "complete"


class UploadPage(Page[Upload]):
    """The uploads of an account that are open, newest first. There is one page."""


class KnownDigests(Entity):
    """The digests of pieces that do not need to be sent."""

    known: Annotated[Items[Digest], Meta(description="Digests of pieces that the registry already has.")]


class PackPiece(RequestBody, kw_only=False, array_like=True):
    """A piece of a pack: its size in bytes and its digest."""

    size_bytes: Annotated[int, Meta(ge=1, le=PACK_PIECE_MAX_BYTES)]
    digest: Digest


class UploadRequest(RequestBody):
    """The upload to begin."""

    kind: Annotated[
        Literal["piece", "pack", "file"],
        Meta(description="`piece`: one piece of a model's file. `pack`: many small pieces. `file`: a complete file."),
    ]
    size_bytes: Size
    digest: Digest | None = None
    """SHA-256 of all bytes. A piece must have it."""
    name: Annotated[
        str, Meta(min_length=1, max_length=UPLOAD_NAME_MAX_LENGTH, description="The name of a file, without a path.")
    ] | (None) = None
    pieces: (
        Annotated[
            tuple[PackPiece, ...],
            Meta(
                min_length=1,
                max_length=PACK_PIECES_MAX,
                description=f"The pieces of a pack, in order; at most {PACK_MAX_BYTES:,} bytes together.",
            ),
        ]
        | None
    ) = None


ENDED = ("ready", "published", "quarantined", "refused", "withdrawn")
"""States in which the registry has finished, or waits for a person."""

SubmissionId = Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
State = Annotated[
    Word, Meta(description="`checking`, `ready`, `publishing`, `quarantined`, `published`, `refused` or `withdrawn`.")
]
PagePath = Annotated[str, Meta(max_length=1000, pattern="^/", description="The path of its page, when it is public.")]


class SubmissionFinding(Entity, kw_only=False):
    """A finding of the check of a submission."""

    severity: Annotated[Word, Meta(description="`refuse`, `warn` or `note`.")]
    code: Annotated[Word, Meta(description="The kind of the finding, for programs.")]
    sentence: Annotated[str, Meta(max_length=FINDING_MAX_LENGTH, description="The finding, for people.")]


Findings = Annotated[
    tuple[SubmissionFinding, ...],
    Meta(max_length=FINDINGS_MAX, description="Refusals first, then warnings, then notes."),
]


class ProposedModel(Entity):
    """The data of the future model. Statements of the contributor replace those of the headers."""

    title: Text | None
    description: Text | None
    license: Text | None
    base: Text | None
    tags: Texts
    architecture: Text | None
    parameters: Count
    tensors: Count
    size_bytes: Bytes
    kind: Annotated[Word, Meta(description="`model`, `adapter` or `vocabulary`.")]
    complete: Annotated[bool, Meta(description="Whether it has all tensors that the header declares.")]


class Submission(Entity):
    """A model that a contributor wants to publish, and its state."""

    id: SubmissionId
    namespace: Word
    name: Word
    state: State
    findings: Findings = ()
    proposed: ProposedModel | None = None
    """None until it is inspected."""
    model: ModelText | None
    address: PagePath | None
    reason: Annotated[Text, Meta(description="Why it was refused.")] | None
    job: Annotated[int, Meta(ge=1, le=WHOLE_MAX)] | None
    progress: Annotated[Share, Meta(description="The progress of its inspection and publication, from 0 to 1.")]
    note: Annotated[Text, Meta(description="The current step.")]
    created_at: Time
    changed_at: Time

    @property
    def has_ended(self) -> bool:
        """Whether the registry has finished, or waits for a person."""
        return self.state in ENDED


class SubmissionPage(Page[Submission]):
    """A page of submissions, newest first."""


class SubmittedModel(ProposedModel):
    """The model that was registered from a submission."""

    name: ModelText
    state: Word
    images: Annotated[tuple[CardImage, ...], Meta(max_length=CARD_IMAGES_MAX, description="Images of its card.")] = ()
    organs: Annotated[Count, Meta(description="Different tensors.")]
    organs_new: Annotated[Count, Meta(description="Tensors that no other visible or yanked model has.")]
    mean_theta: Theta | None


class SubmissionReview(Entity):
    """A submission as administrators see it."""

    id: SubmissionId
    contributor: Annotated[Word, Meta(description="The account that sent it.")]
    name: Annotated[Word, Meta(description="`namespace/name`.")]
    state: State
    reason: Text | None
    size_bytes: Annotated[Bytes, Meta(description="Bytes of its files.")]
    findings: Findings
    model: SubmittedModel | None
    """None until the model is registered."""
    created_at: Time
    changed_at: Time


class SubmissionReviewPage(Page[SubmissionReview]):
    """A page of submissions that wait for an administrator, the longest waiting first."""


class FilePiece(RequestBody, kw_only=False, array_like=True):
    """A piece of a file: offset in the file, size in bytes, and digest. Pieces are in rising order."""

    offset: Count
    size_bytes: Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
    digest: Digest


FileName = Annotated[
    str, Meta(max_length=FILE_NAME_MAX_BYTES, description="The name without a path; it ends in `.gguf`.")
]


class SubmissionFile(RequestBody):
    """A file: either its pieces, with zeros between them, or a finished upload of the complete file."""

    name: FileName
    size_bytes: Annotated[int, Meta(ge=1, le=WHOLE_MAX)] | None = None
    sha256: Digest | None = None
    pieces: Annotated[tuple[FilePiece, ...], Meta(max_length=SUBMISSION_PIECES_MAX)] | None = None
    upload: Annotated[Word, Meta(description="The id of a finished upload of the complete file.")] | None = None


Accepted = Annotated[
    tuple[Word, ...],
    Meta(
        max_length=16,
        description="Codes of the findings that you accept: `non-finite-weights`. Without them the submission stays "
        "`ready`.",
    ),
]


class SubmissionMetadata(ModelStatements):
    """The contributor's statements about a model, in addition to its header."""


class SubmissionRequest(RequestBody):
    """A model to submit, from uploaded and registered pieces."""

    files: Annotated[tuple[SubmissionFile, ...], Meta(min_length=1, max_length=SUBMISSION_FILES_MAX)]
    metadata: SubmissionMetadata | None = None
    publish: Annotated[bool, Meta(description="False to only inspect it.")] = True
    accept: Accepted | None = None


class PublicationRequest(RequestBody):
    """The contributor's statements about the model, and its name if it changes."""

    metadata: SubmissionMetadata | None = None
    name: Word | None = None
    accept: Accepted | None = None


class RefusalRequest(RequestBody):
    """The reason of a refusal."""

    reason: Reason
