"""Schemas of uploads."""

from __future__ import annotations

from organs.registry.catalog.register.submissions import (
    PACK_MAX_BYTES,
    PACK_PIECE_MAX_BYTES,
    PACK_PIECES_MAX,
)
from organs.registry.catalog.vocabulary import UPLOAD_KINDS, UPLOAD_STATES
from organs.web.api.schemas.values import BYTES, DIGEST, TEXT, TIME, Schema, described, list_of, nullable, record, ref

_KIND: Schema = {
    "type": "string",
    "enum": list(UPLOAD_KINDS),
    "description": "`piece`: one piece of a model's file. `pack`: many small ones. `file`: a whole file.",
}
_SIZE: Schema = {"type": "integer", "minimum": 1, "description": "Bytes."}
_UPLOAD: dict[str, Schema] = {
    "id": described(TEXT, "What its address ends in."),
    "kind": _KIND,
    "name": described(nullable(TEXT), "Of a file: what its sender calls it."),
    "digest": described(nullable(DIGEST), "SHA-256 of all of it, where it is known."),
    "size_bytes": _SIZE,
    "received_bytes": described(BYTES, "What has come and is on the disk: where the next chunk begins."),
    "state": {"type": "string", "enum": list(UPLOAD_STATES)},
    "expires_at": described(TIME, "When it is removed unless more comes, or a model is made of it."),
    "chunk_bytes": record(
        "How large a chunk may be. Smaller ones than `least` are taken too, and take longer.",
        {"least": _SIZE, "most": _SIZE},
    ),
}
_PIECE: Schema = {
    "type": "array",
    "prefixItems": [{"type": "integer", "minimum": 1, "maximum": PACK_PIECE_MAX_BYTES - 1}, DIGEST],
    "minItems": 2,
    "maxItems": 2,
}
_WANTED: dict[str, Schema] = {"kind": _KIND, "size_bytes": _SIZE}
_MORE: dict[str, Schema] = {
    "digest": described(nullable(DIGEST), "SHA-256 of all of it. A piece must have it."),
    "name": {"type": ["string", "null"], "minLength": 1, "maxLength": 255, "description": "Of a file; never a path."},
    "pieces": {
        "type": ["array", "null"],
        "items": _PIECE,
        "minItems": 1,
        "maxItems": PACK_PIECES_MAX,
        "description": f"Of a pack: size and digest of each, in order; at most {PACK_MAX_BYTES:,} bytes together.",
    },
}

UPLOAD_SCHEMAS: dict[str, Schema] = {
    "Upload": record("Bytes on their way in.", _UPLOAD),
    "Uploads": record(
        "The asker's uploads that are under way.",
        {"items": list_of(ref("Upload")), "next": described(nullable(TEXT), "Always null: they are one page.")},
    ),
    "UploadAsked": record("What is going to be sent.", {**_WANTED, **_MORE}, optional=_MORE),
    "UploadProblem": {
        "description": "What is wrong, as in Problem, and how far the upload is.",
        "allOf": [ref("Problem"), {"type": "object", "properties": _UPLOAD, "required": list(_UPLOAD)}],
    },
    "DigestsKnown": record(
        "Which digests need not be sent.",
        {"known": list_of(DIGEST, "Of pieces that are here already, for all that the asker may know.")},
    ),
}
