"""Uploads, and submissions: models on their way into the catalog, from what was sent to what became of it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from organs.registry.entities.base import (
    ITEMS_MAX,
    WHOLE_MAX,
    Bytes,
    Count,
    Digest,
    Entity,
    ModelText,
    Page,
    Request,
    Share,
    Text,
    Texts,
    Theta,
    Time,
    Word,
)
from organs.registry.entities.published import ModelStatements
from organs.registry.upload_limits import (
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
    Word, Meta(description="`piece`: one piece of a model's file. `pack`: many small ones. `file`: a whole file.")
]
Size = Annotated[int, Meta(ge=1, le=(1 << 62) - 1, description="Bytes.")]


class ChunkSizes(Entity, frozen=True, kw_only=True):
    """How large a chunk may be. Chunks smaller than `least` are accepted too, and take longer."""

    least: Size
    most: Size


class Upload(Entity, frozen=True, kw_only=True):
    """An upload, and how much of it has arrived."""

    id: UploadId
    kind: Kind
    name: Annotated[str, Meta(max_length=UPLOAD_NAME_MAX_LENGTH, description="The name of the file.")] | None
    digest: Digest | None
    """SHA-256 of all bytes, where it is known."""
    size_bytes: Size
    received_bytes: Annotated[Bytes, Meta(description="What is on the disk: the next chunk begins here.")]
    state: Annotated[Word, Meta(description="`open` or `complete`.")]
    expires_at: Annotated[Time, Meta(description="When it is removed, unless more arrives or a model is made of it.")]
    chunk_bytes: ChunkSizes

    @property
    def is_complete(self) -> bool:
        """Whether the upload is finished."""
        return self.state == "complete"


class UploadPage(Page[Upload], frozen=True, kw_only=True):
    """The uploads of an account that are open, newest first. There is one page."""


class KnownDigests(Entity, frozen=True, kw_only=True):
    """Which digests need not be sent."""

    known: Annotated[
        tuple[Digest, ...], Meta(max_length=ITEMS_MAX, description="Digests of pieces that are here already.")
    ]


class PackPiece(Request, frozen=True, array_like=True):
    """A piece of a pack: its size in bytes and its digest."""

    size_bytes: Annotated[int, Meta(ge=1, le=PACK_PIECE_MAX_BYTES)]
    digest: Digest


class UploadRequest(Request, frozen=True, kw_only=True):
    """What will be sent."""

    kind: Annotated[
        Literal["piece", "pack", "file"],
        Meta(description="`piece`: one piece of a model's file. `pack`: many small ones. `file`: a whole file."),
    ]
    size_bytes: Size
    digest: Digest | None = None
    """SHA-256 of all bytes. A piece must have it."""
    name: Annotated[
        str, Meta(min_length=1, max_length=UPLOAD_NAME_MAX_LENGTH, description="The name of a file, no path.")
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
"""States in which the registry does no more by itself."""

SubmissionId = Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
State = Annotated[
    Word,
    Meta(
        description="`checking`, `ready`, `publishing`, `quarantined`, `published`, `refused` or `withdrawn`.",
    ),
]
PagePath = Annotated[
    str, Meta(max_length=1000, pattern="^/", description="The path of its page, once everybody can see it.")
]


class SubmissionFinding(Entity, frozen=True):
    """Something that was found in what was sent."""

    severity: Annotated[Word, Meta(description="`refuse`, `warn` or `note`.")]
    code: Annotated[Word, Meta(description="The kind of the finding, for programs.")]
    sentence: Annotated[str, Meta(max_length=FINDING_MAX_LENGTH, description="For people.")]


Findings = Annotated[
    tuple[SubmissionFinding, ...],
    Meta(max_length=FINDINGS_MAX, description="Refusals first, then warnings, then notes."),
]


class ProposedModel(Entity, frozen=True, kw_only=True):
    """What a submission would be listed as: the words of its headers, replaced by those of its contributor."""

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
    complete: Annotated[bool, Meta(description="Whether all organs are there that the header announces.")]


class Submission(Entity, frozen=True, kw_only=True):
    """A model on its way into the catalog."""

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
    progress: Annotated[Share, Meta(description="From 0 to 1, of its inspection and publication.")]
    note: Annotated[Text, Meta(description="What is being done.")]
    created_at: Time
    changed_at: Time

    @property
    def has_ended(self) -> bool:
        """Whether the registry does no more by itself."""
        return self.state in ENDED


class SubmissionPage(Page[Submission], frozen=True, kw_only=True):
    """A page of submissions, newest first."""


class SubmittedModel(Entity, frozen=True, kw_only=True):
    """The model that was made of a submission."""

    name: ModelText
    state: Word
    title: Text | None
    description: Annotated[Text, Meta(description="Markdown.")] | None
    license: Text | None
    tags: Texts
    base: Annotated[Text, Meta(description="The parent that it names.")] | None
    kind: Annotated[Word, Meta(description="`model`, `adapter` or `vocabulary`.")]
    complete: Annotated[bool, Meta(description="False for a partial model, which has only some of its organs.")]
    architecture: Text | None
    parameters: Count
    tensors: Count
    size_bytes: Bytes
    organs: Annotated[Count, Meta(description="Different organs.")]
    organs_new: Annotated[Count, Meta(description="Those of them that no visible or yanked model has.")]
    mean_theta: Theta | None


class SubmissionReview(Entity, frozen=True, kw_only=True):
    """A submission as administrators see it."""

    id: SubmissionId
    contributor: Annotated[Word, Meta(description="Who sent it.")]
    name: Annotated[Word, Meta(description="`namespace/name`.")]
    state: State
    reason: Text | None
    size_bytes: Annotated[Bytes, Meta(description="Of its files.")]
    findings: Findings
    model: SubmittedModel | None
    """None until the model is made."""
    created_at: Time
    changed_at: Time


class SubmissionReviewPage(Page[SubmissionReview], frozen=True, kw_only=True):
    """A page of submissions that wait for an administrator, the longest waiting first."""


class Decision(Entity, frozen=True, kw_only=True):
    """What an administrator decided about a submission."""

    id: SubmissionId
    name: Annotated[Word, Meta(description="`namespace/name`.")]
    state: State
    model: ModelText | None
    address: PagePath | None
    reason: Text | None


class FilePiece(Request, frozen=True, array_like=True):
    """A piece of a file: offset in the file, size in bytes, and digest. Pieces are in rising order."""

    offset: Count
    size_bytes: Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
    digest: Digest


FileName = Annotated[str, Meta(max_length=FILE_NAME_MAX_BYTES, description="Without a path; it ends in `.gguf`.")]


class SubmissionFile(Request, frozen=True, kw_only=True):
    """A file: either its pieces, with zeros between them, or a finished upload of the whole file."""

    name: FileName
    size_bytes: Annotated[int, Meta(ge=1, le=WHOLE_MAX)] | None = None
    sha256: Digest | None = None
    pieces: Annotated[tuple[FilePiece, ...], Meta(max_length=SUBMISSION_PIECES_MAX)] | None = None
    upload: Annotated[Word, Meta(description="The id of a finished upload of the whole file.")] | None = None


Accepted = Annotated[
    tuple[Word, ...],
    Meta(
        max_length=16,
        description="Codes of the findings that you accept: `non-finite-weights`. Without them the submission stays "
        "`ready`.",
    ),
]


class SubmissionMetadata(ModelStatements, frozen=True, kw_only=True):
    """What the contributor states of a model, in addition to its header."""


class SubmissionRequest(Request, frozen=True, kw_only=True):
    """A model to submit, made of what was sent and what is here."""

    files: Annotated[tuple[SubmissionFile, ...], Meta(min_length=1, max_length=SUBMISSION_FILES_MAX)]
    metadata: SubmissionMetadata | None = None
    publish: Annotated[bool, Meta(description="False to inspect it only.")] = True
    accept: Accepted | None = None


class PublicationRequest(Request, frozen=True, kw_only=True):
    """What the contributor says of the model, and its name if it changes."""

    metadata: SubmissionMetadata | None = None
    name: Word | None = None
    accept: Accepted | None = None


class RefusalRequest(Request, frozen=True, kw_only=True):
    """Why a submission is refused."""

    reason: Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"\S", description="Why, for people.")]
