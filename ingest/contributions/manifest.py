"""Readers of the manifest of a submission and of the metadata of a model, with an error for each field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from organs.ingest.contributions.findings import MUST_ACCEPT
from organs.registry.catalog.records import (
    Edits,
)
from organs.registry.catalog.vocabulary import checked_text
from organs.registry.compose.licenses import license_problem
from organs.registry.digest import Digest
from organs.registry.entities.published import BASE_MAX, DESCRIPTION_MAX, LICENSE_MAX, TAG_MAX, TAGS_MAX, TITLE_MAX
from organs.registry.entities.submission import FilePiece, SubmissionFile, SubmissionMetadata, SubmissionRequest
from organs.registry.errors import BadInput, BadValue, field_errors
from organs.registry.gguf.types import SIZE_MAX
from organs.registry.upload_limits import FILE_NAME_MAX_BYTES, SUBMISSION_FILES_MAX, SUBMISSION_PIECES_MAX

FIELDS = ("title", "description", "license", "base", "tags")

BREAKS = "\n\t"
"""Control characters that a description can have."""
_HARMLESS = "\u00a0\u200c\u200d"
"""A no-break space and joiners, which Python counts as not printable."""

Wrong = tuple[str, str]
"""A field and a sentence."""


def read_edits(values: Mapping[str, object]) -> tuple[Edits, list[Wrong]]:
    """Return the edits in `values` of the fields in `FIELDS`, with all errors.

    An absent field is unchanged; null, an empty text and an empty list remove its value. If there are errors, the edits
    must not be used.
    """
    errors: list[Wrong] = []
    edits: dict[str, Any] = {}
    for name, reader in _READERS.items():
        if name in values:
            try:
                edits[name] = reader("" if values[name] is None else values[name])
            except BadValue as error:
                errors.append((name, _sentence(str(error))))
    return (Edits() if errors else Edits(**edits)), errors


def has_controls(text: str, breaks: str = "") -> bool:
    """Return whether `text` has control characters, such as line breaks, other than `breaks`."""
    return any(not (character.isprintable() or character in breaks or character in _HARMLESS) for character in text)


def _line_reader(name: str, limit: int) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = _read_text(value, name, limit)
        if has_controls(text):
            raise BadValue(f"{name} must be one line of plain text, without control characters")
        return text

    return read


def _read_description(value: object) -> str:
    text = _read_text(value, "the description", DESCRIPTION_MAX)
    if has_controls(text, BREAKS):
        raise BadValue("the description has control characters; only line breaks and tabs are allowed")
    return text


def _read_license(value: object) -> str:
    text = " ".join(_read_text(value, "the license", TITLE_MAX).split())
    problem = license_problem(text) if text else None
    if problem is not None:
        raise BadValue(problem)
    return text


def _read_tags(value: object) -> tuple[str, ...]:
    if value == "":
        return ()
    if not isinstance(value, list):
        raise BadValue("the tags must be a list of texts")
    if len(value) > TAGS_MAX:
        raise BadValue(f"{len(value)} tags; at most {TAGS_MAX} are allowed")
    tags = [_line_reader("a tag", TAG_MAX)(tag) for tag in value]
    return tuple(dict.fromkeys(tag for tag in tags if tag))


def _read_text(value: object, name: str, limit: int) -> str:
    if not isinstance(value, str):
        raise BadValue(f"{name} must be a text")
    text = value.replace("\r\n", "\n").replace("\r", "\n").strip()
    return checked_text(text, name, limit)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


_READERS: dict[str, Callable[[object], object]] = {
    "title": _line_reader("the title", TITLE_MAX),
    "description": _read_description,
    "license": _read_license,
    "base": _line_reader("the base", BASE_MAX),
    "tags": _read_tags,
}


REASONS_MAX = 20
"""Limit of reasons in a message; the others are counted."""
MEMBERS = ("files", "metadata", "publish", "accept")
METADATA_MEMBERS = ("title", "description", "license", "base", "tags")
_PIECES_MEMBERS = frozenset(("name", "size_bytes", "sha256", "pieces"))
_UPLOAD_MEMBERS = frozenset(("name", "upload"))

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_UPLOAD = re.compile(r"[0-9A-Za-z_-]{22}", re.ASCII)
_FORBIDDEN = re.compile(r'[/\\:*?"<>|]')

Reason = tuple[str, str]
"""A field such as `files[0].pieces[3]`, and a sentence."""


class BadManifest(BadInput, code="bad-manifest"):
    """The manifest of a submission, or the stated metadata of a model, is invalid; with all errors."""

    def __init__(self, reasons: list[Reason]) -> None:
        listed = (f"{where}: {sentence}" if where else sentence for where, sentence in reasons)
        super().__init__("; ".join(listed), errors=field_errors(self.code, reasons))

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """All errors."""
        return tuple((error.field or "", error.detail) for error in self.errors)


def parse_manifest(values: Mapping[str, object]) -> SubmissionRequest:
    """Return the request in `values`; raises BadManifest with every reason."""
    reasons = _Reasons()
    reasons.check_members(values, MEMBERS, "")
    files = _read_files(values.get("files"), reasons)
    stated = _read_stated(values.get("metadata"), reasons)
    publish = values.get("publish", True)
    if not isinstance(publish, bool):
        reasons.add("publish", "publish must be true or false")
    accepted = _read_accepted(values.get("accept"), reasons)
    reasons.settle()
    return SubmissionRequest(files=files, metadata=stated, publish=bool(publish), accept=accepted)


def parse_accepted(values: Any) -> tuple[str, ...]:
    """Return the codes of findings that `values` accept. Raises BadManifest."""
    reasons = _Reasons()
    codes = _read_accepted(values, reasons)
    reasons.settle()
    return codes


def parse_stated_metadata(values: Any) -> SubmissionMetadata:
    """Return the stated metadata in `values`. Raises BadManifest with all reasons."""
    reasons = _Reasons()
    stated = _read_stated(values, reasons)
    reasons.settle()
    return stated


@dataclass(slots=True)
class _Reasons:
    reasons: list[Reason] = field(default_factory=list)
    more: int = 0

    def add(self, where: str, sentence: str) -> None:
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append((where, sentence))
        else:
            self.more += 1

    def check_members(self, values: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for name in values:
            if name not in known:
                self.add(f"{where}{name[:80]}", f"unknown member {name[:80]!r}; use {', '.join(known)}")

    def settle(self) -> None:
        if self.reasons:
            raise BadManifest([*self.reasons, *([("", f"and {self.more} more")] if self.more else [])])


def _read_accepted(values: Any, reasons: _Reasons) -> tuple[str, ...]:
    if values is None:
        return ()
    known = sorted(MUST_ACCEPT)
    if not isinstance(values, list) or not all(isinstance(value, str) and value in MUST_ACCEPT for value in values):
        reasons.add("accept", f"accept must be a list of codes of findings: {', '.join(known)}")
        return ()
    return tuple(sorted(set(values)))


def _read_files(values: Any, reasons: _Reasons) -> tuple[SubmissionFile, ...]:
    if not isinstance(values, list) or not 1 <= len(values) <= SUBMISSION_FILES_MAX:
        reasons.add("files", f"files must be a list of 1 to {SUBMISSION_FILES_MAX:,} files")
        return ()
    counts = [
        len(value["pieces"]) for value in values if isinstance(value, dict) and isinstance(value.get("pieces"), list)
    ]
    if sum(counts) > SUBMISSION_PIECES_MAX:
        reasons.add(
            "files", f"the files have {sum(counts):,} pieces together; at most {SUBMISSION_PIECES_MAX:,} are allowed"
        )
        return ()
    files_or_none = [_read_file(value, f"files[{number}]", reasons) for number, value in enumerate(values)]
    files = tuple(file for file in files_or_none if file is not None)
    names = [file.name.lower() for file in files]
    if len(set(names)) != len(names):
        reasons.add("files", "two files have the same name")
    uploads = [file.upload for file in files if file.upload is not None]
    if len(set(uploads)) != len(uploads):
        reasons.add("files", "two files name the same upload")
    return files


def _read_file(value: Any, where: str, reasons: _Reasons) -> SubmissionFile | None:
    if not isinstance(value, dict) or set(value) not in (_PIECES_MEMBERS, _UPLOAD_MEMBERS):
        reasons.add(where, "a file must have name, size_bytes, sha256 and pieces, or name and upload")
        return None
    name = value["name"]
    is_valid = _check_name(name, where, reasons)
    if "upload" in value:
        if not isinstance(value["upload"], str) or not _UPLOAD.fullmatch(value["upload"]):
            reasons.add(f"{where}.upload", "upload must be the id of an upload")
            return None
        return SubmissionFile(name=name, upload=value["upload"]) if is_valid else None
    size, sha256 = value["size_bytes"], value["sha256"]
    if type(size) is not int or not 0 < size <= SIZE_MAX:
        reasons.add(f"{where}.size_bytes", "size_bytes must be the size of the file, a whole number from 1")
        return None
    if not _is_digest(sha256):
        reasons.add(f"{where}.sha256", "sha256 must be the file's SHA-256: 64 lower-case hexadecimal characters")
        return None
    pieces = _read_pieces(value["pieces"], size, f"{where}.pieces", reasons)
    return SubmissionFile(name=name, size_bytes=size, sha256=Digest(sha256), pieces=pieces) if is_valid else None


def _check_name(name: Any, where: str, reasons: _Reasons) -> bool:
    """Check that `name` is the name of a GGUF file, without a path, and valid on every system."""
    is_short_line = (
        isinstance(name, str) and name.isprintable() and 0 < len(name.encode("utf-8", "replace")) <= FILE_NAME_MAX_BYTES
    )
    if not is_short_line or _FORBIDDEN.search(name) or not name.lower().endswith(".gguf") or name[0] in ".- ":
        sentence = "name must be a file name without a path, at most 255 bytes, that ends in .gguf"
        reasons.add(f"{where}.name", sentence)
        return False
    return True


def _read_pieces(values: Any, size_bytes: int, where: str, reasons: _Reasons) -> tuple[FilePiece, ...]:
    if not isinstance(values, list):
        reasons.add(where, "pieces must be a list of [offset_bytes, size_bytes, digest]")
        return ()
    pieces, position = [], 0
    for number, value in enumerate(values):
        if not (isinstance(value, list) and len(value) == 3 and type(value[0]) is type(value[1]) is int):
            reasons.add(f"{where}[{number}]", "a piece must be [offset_bytes, size_bytes, digest]")
            continue
        offset, size, digest = value
        if not _is_digest(digest):
            reasons.add(f"{where}[{number}]", "the digest must be 64 lower-case hexadecimal characters")
        elif offset < position:
            reasons.add(
                f"{where}[{number}]", f"it begins at {_format_number(offset)}, before the end of the previous piece"
            )
        elif size <= 0 or offset + size > size_bytes:
            reasons.add(f"{where}[{number}]", f"it has {_format_number(size)} bytes; it must lie within the file")
        else:
            pieces.append(FilePiece(offset=offset, size_bytes=size, digest=Digest(digest)))
            position = offset + size
    return tuple(pieces)


def _read_stated(values: Any, reasons: _Reasons) -> SubmissionMetadata:
    if values is None:
        return SubmissionMetadata()
    if not isinstance(values, dict):
        reasons.add("metadata", "metadata must be an object")
        return SubmissionMetadata()
    reasons.check_members(values, METADATA_MEMBERS, "metadata.")
    limits = {"title": TITLE_MAX, "description": DESCRIPTION_MAX, "license": LICENSE_MAX, "base": BASE_MAX}
    texts = {
        name: _read_manifest_text(
            values.get(name), limit, f"metadata.{name}", reasons, BREAKS if name == "description" else ""
        )
        for name, limit in limits.items()
    }
    tags = _read_manifest_tags(values.get("tags"), reasons)
    problem = license_problem(texts["license"]) if texts["license"] else None
    if problem is not None:
        reasons.add("metadata.license", problem.rstrip("."))
    return SubmissionMetadata(**texts, tags=tags)


def _read_manifest_text(value: Any, limit: int, where: str, reasons: _Reasons, breaks: str = "") -> str | None:
    """Return a stripped text of one line, except for `breaks`; None if it is absent or empty."""
    if value is None:
        return None
    if not isinstance(value, str):
        reasons.add(where, "must be a text")
        return None
    try:
        text = checked_text(value.replace("\r\n", "\n").strip(), "it", limit)
    except BadValue as error:
        reasons.add(where, str(error))
        return None
    if has_controls(text, breaks):
        reasons.add(where, "it has control characters" + ("" if breaks else " or line breaks"))
        return None
    return text or None


def _read_manifest_tags(value: Any, reasons: _Reasons) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > TAGS_MAX:
        reasons.add("metadata.tags", f"tags must be a list of at most {TAGS_MAX} words")
        return None
    for number, entry in enumerate(value):
        if entry is None:  # null means "not stated" for a field, but not for a tag
            reasons.add(f"metadata.tags[{number}]", "must be a text")
    tags = [
        _read_manifest_text(item, TAG_MAX, f"metadata.tags[{number}]", reasons) for number, item in enumerate(value)
    ]
    return tuple(dict.fromkeys(item for item in tags if item))


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _format_number(number: int) -> str:
    """Return the number as text, shortened: a number from outside can have thousands of digits."""
    return f"{number:,}" if abs(number) <= SIZE_MAX else "far too many"
