"""Readers of the request to submit a model and of statements about a model, with an error for each field."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from organs.ingest.contributions.findings import MUST_ACCEPT
from organs.registry.catalog.records import Edits
from organs.registry.catalog.vocabulary import checked_text
from organs.registry.compose.licenses import license_problem
from organs.registry.documents import BadDocument, Parse, Reason, convert, unknown_keys
from organs.registry.entities.published import BASE_MAX, DESCRIPTION_MAX, TAG_MAX, TAGS_MAX, TITLE_MAX
from organs.registry.entities.submission import SubmissionFile, SubmissionMetadata, SubmissionRequest, UploadId
from organs.registry.errors import BadInput, BadValue, field_errors
from organs.registry.upload_limits import FILE_NAME_MAX_BYTES, SUBMISSION_FILES_MAX, SUBMISSION_PIECES_MAX

BREAKS = "\n\t"
"""Control characters that a description can have."""
_HARMLESS = "\u00a0\u200c\u200d"
"""A no-break space and joiners, which Python counts as not printable."""
_FORBIDDEN = re.compile(r'[/\\:*?"<>|]')


class BadManifest(BadInput, code="bad-manifest"):
    """The manifest of a submission, or the stated metadata of a model, is invalid; with all errors."""

    def __init__(self, reasons: list[Reason]) -> None:
        listed = (f"{where}: {sentence}" if where else sentence for where, sentence in reasons)
        super().__init__("; ".join(listed), errors=field_errors(self.code, reasons))

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """All errors."""
        return tuple((error.field or "", error.detail) for error in self.errors)


def read_edits(values: Mapping[str, object]) -> tuple[Edits, list[Reason]]:
    """Return the edits in `values` of the fields in `FIELDS`, with all errors.

    An absent field is unchanged; null, an empty text and an empty list remove its value. If there are errors, the edits
    must not be used.
    """
    edits, reasons = _read_fields(values)
    errors = [(path.partition("[")[0], f"{text[:1].upper()}{text[1:].rstrip('.')}.") for path, text in reasons]
    return (Edits() if errors else Edits(**edits)), errors


def parse_stated_metadata(values: object) -> SubmissionMetadata:
    """Return the stated metadata in `values`; None for a field means the header's value.

    Raises BadManifest with all reasons.
    """
    try:
        return _read_metadata(values)
    except BadDocument as error:
        raise BadManifest([(f"metadata.{path}".rstrip("."), sentence) for path, sentence in error.reasons]) from error


def parse_accepted(values: object) -> tuple[str, ...]:
    """Return the codes of findings that `values` accept. Raises BadManifest."""
    try:
        return _read_accepted(values)
    except ValueError as error:
        raise BadManifest([("accept", str(error))]) from error


def parse_manifest(values: Mapping[str, object]) -> SubmissionRequest:
    """Return the request in `values`; raises BadManifest with every reason."""
    try:
        return convert(values, _SubmittedModel)
    except BadDocument as error:
        raise BadManifest(list(error.reasons)) from error


def _read_metadata(values: object) -> SubmissionMetadata:
    if values is None:
        return SubmissionMetadata()
    if not isinstance(values, dict):
        raise BadDocument([("", "metadata must be an object")])
    fields, reasons = _read_fields(values)
    reasons += unknown_keys(values, FIELDS)
    if reasons:
        raise BadDocument(reasons)
    # An empty text states nothing, as null does. An empty list of tags states that the model has none.
    has_no_tags = fields.get("tags") == () and values["tags"] is not None
    stated = {name: value or None for name, value in fields.items()}
    return SubmissionMetadata(**stated | ({"tags": ()} if has_no_tags else {}))


def _read_fields(values: Mapping[str, object]) -> tuple[dict[str, Any], list[Reason]]:
    """Return the statements in `values`, empty for null, and the reasons against those that are not valid."""
    fields: dict[str, Any] = {}
    reasons: list[Reason] = []
    for field, read in READERS.items():
        if field in values:
            try:
                fields[field] = read("" if values[field] is None else values[field])
            except BadValue as error:
                reasons.append((field, str(error)))
            except BadDocument as error:
                reasons += [(f"{field}{below}", sentence) for below, sentence in error.reasons]
    return fields, reasons


def _read_text(value: object, name: str, limit: int, breaks: str = "") -> str:
    """Return a text of one line, without white space at its ends; it may have `breaks`."""
    if not isinstance(value, str):
        raise BadValue(f"{name} must be a text")
    text = checked_text(value.replace("\r\n", "\n").replace("\r", "\n").strip(), name, limit)
    if any(not (character.isprintable() or character in breaks + _HARMLESS) for character in text):
        if breaks:
            raise BadValue(f"{name} has control characters; only line breaks and tabs are allowed")
        raise BadValue(f"{name} must be one line of plain text, without control characters")
    return text


def _read_license(value: object) -> str:
    text = " ".join(_read_text(value, "the license", TITLE_MAX).split())
    problem = license_problem(text) if text else None
    if problem is not None:
        raise BadValue(problem.rstrip("."))
    return text


def _read_tags(value: object) -> tuple[str, ...]:
    if value == "":
        return ()
    if not isinstance(value, list):
        raise BadValue("the tags must be a list of texts")
    if len(value) > TAGS_MAX:
        raise BadValue(f"{len(value)} tags; at most {TAGS_MAX} are allowed")
    tags: list[str] = []
    reasons: list[Reason] = []
    for number, tag in enumerate(value):
        try:
            tags.append(_read_text(tag, "a tag", TAG_MAX))
        except BadValue as error:
            reasons.append((f"[{number}]", str(error)))
    if reasons:
        raise BadDocument(reasons)
    return tuple(dict.fromkeys(tag for tag in tags if tag))


READERS: dict[str, Callable[[object], object]] = {
    "title": partial(_read_text, name="the title", limit=TITLE_MAX),
    "description": partial(_read_text, name="the description", limit=DESCRIPTION_MAX, breaks=BREAKS),
    "license": _read_license,
    "base": partial(_read_text, name="the base", limit=BASE_MAX),
    "tags": _read_tags,
}
"""The reader of each statement about a model."""
FIELDS = tuple(READERS)


def _read_accepted(values: object) -> tuple[str, ...]:
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str) and value in MUST_ACCEPT for value in values):
        raise ValueError(f"accept must be a list of codes of findings: {', '.join(sorted(MUST_ACCEPT))}")
    return tuple(sorted(set(values)))


def _read_file_name(name: str) -> str:
    """Return `name` if it is the name of a GGUF file, without a path, and valid on every system."""
    is_short_line = name.isprintable() and 0 < len(name.encode("utf-8", "replace")) <= FILE_NAME_MAX_BYTES
    if not is_short_line or _FORBIDDEN.search(name) or not name.lower().endswith(".gguf") or name[0] in ".- ":
        raise ValueError("name must be a file name without a path, at most 255 bytes, that ends in .gguf")
    return name


class _SubmittedFile(SubmissionFile):
    """A file of a submission with the checks of its values."""

    name: Annotated[str, Parse(_read_file_name)]
    upload: UploadId | None = None

    def faults(self) -> Iterator[Reason]:
        members = (self.size_bytes, self.sha256, self.pieces)
        if (self.upload is None and None in members) or (self.upload is not None and members != (None, None, None)):
            yield "", "a file must have name, size_bytes, sha256 and pieces, or name and upload"
            return
        position = 0
        for number, piece in enumerate(self.pieces or ()):
            if piece.offset < position:
                yield f"pieces[{number}]", f"it begins at {piece.offset:,}, before the end of the previous piece"
            elif piece.offset + piece.size_bytes > (self.size_bytes or 0):
                yield f"pieces[{number}]", f"it has {piece.size_bytes:,} bytes; it must lie within the file"
            else:
                position = piece.offset + piece.size_bytes


class _SubmittedModel(SubmissionRequest):
    """A submission with the checks of its values."""

    files: Annotated[tuple[_SubmittedFile, ...], Meta(min_length=1, max_length=SUBMISSION_FILES_MAX)]
    metadata: Annotated[SubmissionMetadata, Parse(_read_metadata, source=object)] = SubmissionMetadata()
    accept: Annotated[tuple[str, ...], Parse(_read_accepted, source=object)] = ()

    def faults(self) -> Iterator[Reason]:
        pieces = sum(len(file.pieces or ()) for file in self.files)
        if pieces > SUBMISSION_PIECES_MAX:
            yield "files", f"they have {pieces:,} pieces together; at most {SUBMISSION_PIECES_MAX:,} are allowed"
        if max(Counter(file.name.lower() for file in self.files).values()) > 1:
            yield "files", "two files have the same name"
        if max(Counter(file.upload for file in self.files if file.upload).values(), default=0) > 1:
            yield "files", "two files name the same upload"
