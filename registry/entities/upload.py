"""Uploads: bytes on their way in."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from organs.registry.entities.base import ITEMS_MAX, Bytes, Digest, Entity, Page, Request, Time, Word

CHUNK_LEAST_BYTES = 8 * 1024 * 1024
"""Advice: each chunk waits once for the disk, so smaller ones take longer."""
CHUNK_MOST_BYTES = 64 * 1024 * 1024
PACK_MAX_BYTES = 64 * 1024 * 1024
PACK_PIECE_MAX_BYTES = 64 * 1024
"""A piece in a pack is smaller than this."""
PACK_PIECES_MAX = 3000
"""As many as fit into a body of JSON."""
NAME_MAX_LENGTH = 255

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
    name: Annotated[str, Meta(max_length=NAME_MAX_LENGTH, description="The name of the file.")] | None
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

    size_bytes: Annotated[int, Meta(ge=1, le=PACK_PIECE_MAX_BYTES - 1)]
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
    name: Annotated[str, Meta(min_length=1, max_length=NAME_MAX_LENGTH, description="The name of a file, no path.")] | (
        None
    ) = None
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
