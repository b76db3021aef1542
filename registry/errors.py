"""Errors of this project, each with a stable code, an HTTP status and an exit code.

A class has its row of the table in its definition:

    class Removed(NotFound, code="removed", status=410): ...

`ERRORS` is the table of all classes by code; docs/errors.md lists it for users. Programs should use the class, or the
code if an error comes over the network. They should never read the text of an error, which is for people.

The annotated attributes of a class (`seconds: Seconds`) are its data. A problem document has them as members beside
`code` and `detail`. A client checks them against their annotations (`registry.entities.problem`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

CODE_MAX_LENGTH = 64
FIELD_MAX_LENGTH = 200
DETAIL_MAX_LENGTH = 2000
"""The most characters of a sentence in an answer. Longer ones are cut by the sender, and refused by the reader."""
WAIT_MAX_SECONDS = 366 * 24 * 3600
MISSING_MAX = 20
"""The most numbers of missing shards in an error."""
NAMES_MAX = 16
"""The most names of models in an error."""

Code = Annotated[
    str,
    Meta(
        pattern="^[a-z][a-z0-9-]*$",
        max_length=CODE_MAX_LENGTH,
        description="A stable name of what happened, for programs. docs/errors.md lists all codes.",
    ),
]
Detail = Annotated[str, Meta(max_length=DETAIL_MAX_LENGTH, description="What happened, in words for a person.")]
Text = Annotated[str, Meta(max_length=DETAIL_MAX_LENGTH)]
Seconds = Annotated[float, Meta(ge=0, le=WAIT_MAX_SECONDS)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class FieldError(Struct, frozen=True, kw_only=True):
    """A single fault of a request, a recipe or a file."""

    field: Annotated[
        Annotated[str, Meta(max_length=FIELD_MAX_LENGTH)] | None,
        Meta(description="The parameter or member, such as `grafts[1].blocks`; null for the whole request."),
    ] = None
    code: Code
    detail: Detail


class OrganError(Exception):
    """Base of every error that this project raises on purpose."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    """The HTTP status of an answer. Details of errors with status 500 stay in the server's log."""
    exit_code: ClassVar[int] = 1
    """The exit status of a command that fails with this error."""

    detail: str
    """What happened, in one sentence for a person."""
    errors: tuple[FieldError, ...]
    """All faults, for errors that can have several."""

    def __init__(self, detail: str = "", *, errors: Sequence[FieldError] = (), reasons: Sequence[str] = ()) -> None:
        """`reasons` are faults of the whole input, as sentences; `errors` are faults of its fields."""
        super().__init__(detail)
        self.detail = detail
        self.errors = (*errors, *field_errors(self.code, [("", reason) for reason in reasons]))

    def __init_subclass__(cls, *, code: str, status: int | None = None, exit_code: int | None = None) -> None:
        """Add the class to `ERRORS`. Status and exit code that are not stated are inherited.

        Raises TypeError for a code that another class has.
        """
        super().__init_subclass__()
        if code in ERRORS:
            raise TypeError(f"{cls.__name__} has the code {code!r} of {ERRORS[code].__name__}")
        ERRORS[code] = cls
        cls.code = code
        if status is not None:
            cls.status = status
        if exit_code is not None:
            cls.exit_code = exit_code


ERRORS: dict[str, type[OrganError]] = {OrganError.code: OrganError}
"""All error classes of the imported modules by code. This module has all classes that an answer can name."""


def field_errors(code: str, reasons: Sequence[tuple[str, str]]) -> tuple[FieldError, ...]:
    """Return entries of `errors` with `code` from pairs of a field (empty for the whole input) and a sentence."""
    return tuple(FieldError(field=field or None, code=code, detail=sentence) for field, sentence in reasons)


class BadInput(OrganError, code="bad-input", status=400):
    """Input from outside is refused. Nothing of it is stored."""


class BadGguf(BadInput, code="bad-gguf"):
    """A GGUF file is not valid. The error names the field, its offset in bytes and the reason."""

    source: Text
    field: Text
    offset: Count
    reason: Text

    def __init__(
        self, source: str, field: str, offset: int, reason: str, fault: str = "broken-header", end: int | None = None
    ) -> None:
        """`fault` is the code of a finding (`ingest.checking`), `end` where a sound file would end, if it is known."""
        super().__init__(f"{source}: {field} at byte {offset}: {reason}")
        self.fault, self.end = fault, end
        self.source = source
        self.field = field
        self.offset = offset
        self.reason = reason


class BadSplit(BadInput, code="bad-split"):
    """A split set has faults. It is refused as a whole, with a list of all faults."""

    def __init__(self, name: str, reasons: Sequence[str], fault: str = "not a complete split set") -> None:
        super().__init__(f"{name}: {fault}: {'; '.join(reasons)}", reasons=reasons)


class BadDirectory(BadInput, code="bad-directory"):
    """An organ directory has faults. It is refused as a whole, with a list of all faults."""

    def __init__(self, path: str, reasons: Sequence[str]) -> None:
        super().__init__(f"{path}: not a sound organ directory: {'; '.join(reasons)}", reasons=reasons)


class BadAdapter(BadInput, code="bad-adapter"):
    """A folder of PEFT or MLX cannot be converted to an adapter. It is refused as a whole, with all reasons."""

    def __init__(self, path: str, reasons: Sequence[str]) -> None:
        super().__init__(f"{path}: this folder cannot become an adapter: {'; '.join(reasons)}", reasons=reasons)


class UnknownBase(BadInput, code="base-unknown"):
    """The conversion of an adapter folder needs facts about its base model, and nothing on this machine has them."""


class ConversionFailed(BadInput, code="conversion-failed"):
    """A program that converts models to GGUF is missing, or it failed."""


class TooManyTensors(BadInput, code="too-many-tensors"):
    """A model has more tensors than are accepted for its size."""


class BadSource(BadInput, code="bad-source"):
    """A path is not a readable file, or the file changed while it was read."""


class BadDigest(BadInput, code="bad-digest"):
    """A text is neither a SHA-256 digest nor a long enough prefix of a digest."""


class BadName(BadInput, code="bad-name"):
    """A name of a model or a namespace breaks the rules of names."""


class BadImage(BadInput, code="bad-image"):
    """An image of a card is refused: its format, its size, its name, or damaged bytes."""


class BadOrgan(BadInput, code="bad-organ"):
    """The values of a tensor cannot be used in a computation, or do not fit the tensor type of the result."""


class TooLittleTime(BadInput, code="too-little-time"):
    """A search for a size cannot measure the model in the minutes that are allowed."""

    minutes: Count
    """How many minutes are enough, about."""

    def __init__(self, detail: str, minutes: int) -> None:
        super().__init__(detail)
        self.minutes = minutes


class BadQuery(BadInput, code="bad-query"):
    """A term of a search query is not valid."""

    term: Text
    reason: Text

    def __init__(self, term: str, reason: str) -> None:
        super().__init__(f"{term[:80]!r}: {reason}")
        self.term = term
        self.reason = reason


class BadRequest(BadInput, code="bad-request"):
    """Parameters, headers or members of the body of a request are missing, unknown or not valid."""

    def __init__(self, field: str | None, detail: str, more: Sequence[tuple[str | None, str]] = ()) -> None:
        """`field` and `detail` describe the first fault; `more` has pairs of both for the others."""
        faults = [(field or "", detail), *((name or "", sentence) for name, sentence in more)]
        super().__init__(detail, errors=field_errors(self.code, faults))


class BadRecipe(BadInput, code="bad-recipe"):
    """A recipe has faults. It is refused as a whole, with a list of all faults."""

    where: Text

    def __init__(self, where: str, reasons: Sequence[tuple[str, str]]) -> None:
        """`reasons` are pairs of a field, such as `grafts[1].blocks` (empty for the whole text), and a sentence."""
        sentences = [f"{field}: {sentence}" if field else sentence for field, sentence in reasons]
        super().__init__(f"{where}: {'; '.join(sentences)}", errors=field_errors(self.code, reasons))
        self.where = where

    @property
    def reasons(self) -> tuple[tuple[str, str], ...]:
        """All faults, as pairs of a field and a sentence."""
        return tuple((error.field or "", error.detail) for error in self.errors)


class BadLock(BadInput, code="bad-lock"):
    """A text is not a lock, or not in canonical form."""


class TooCostly(BadInput, code="too-costly", status=413):
    """A request asks for more work than is allowed. Both figures are seconds of processor time.

    `seconds` is an estimate. The estimate stops when it exceeds the limit; the request would take at least as long.
    """

    seconds: Seconds
    limit_seconds: Seconds

    def __init__(self, seconds: float, limit_seconds: float, reason: str = "") -> None:
        super().__init__(
            f"this is too much work for one request: {reason or f'more than {limit_seconds:g} s of processor time'}; "
            "name fewer or smaller models, or fewer steps"
        )
        self.seconds = seconds
        self.limit_seconds = limit_seconds


class BadSetting(OrganError, code="bad-setting"):
    """A setting from the environment cannot be used."""


class MissingExtra(OrganError, code="missing-extra"):
    """A package that this program does not need for everything is not installed; `extra` is the extra that has it."""

    extra: Text

    def __init__(self, message: str, extra: str) -> None:
        super().__init__(message)
        self.extra = extra


class NoSandbox(OrganError, code="no-sandbox"):
    """ORGAN_SANDBOX requires confined processes, and this system cannot confine them."""

    def __init__(self, missing: Sequence[str]) -> None:
        """`missing` has a sentence for each protection that is missing."""
        detail = f"ORGAN_SANDBOX is `require`, and a process cannot be confined here. {' '.join(missing)}"
        super().__init__(detail, reasons=missing)


class UnsupportedDType(OrganError, code="unsupported-dtype", status=409):
    """The values of a tensor type cannot be read or written by this version."""


class EncoderMissing(UnsupportedDType, code="encoder-missing", status=409):
    """Weights can be written in this tensor type only with the extra `quantize`, which is not installed."""


class NotFound(OrganError, code="not-found", status=404, exit_code=3):
    """No model, tensor or other resource has this name or digest, or the user may not see it."""


class Removed(NotFound, code="removed", status=410):
    """A model that was public was removed."""

    reason: Text
    removed_on: Annotated[str, Meta(max_length=10)] | None
    """The day, such as 2026-01-31; None if unknown."""

    def __init__(self, name: str, reason: str, removed_on: str | None = None) -> None:
        day = "" if removed_on is None else f" on {removed_on}"
        super().__init__(f"{name} was removed{day}: {reason}")
        self.reason = reason
        self.removed_on = removed_on


class Incomplete(NotFound, code="incomplete-model"):
    """Only some shards of a split model are stored. It can be used when the last shard has been ingested."""

    name: Text
    shards: Count
    """The number of shards of the complete model."""
    missing: Annotated[tuple[Count, ...], Meta(max_length=MISSING_MAX)]
    """The numbers of missing shards, from 1; the first ones of a long list."""

    def __init__(self, name: str, shards: int, stored: Collection[int]) -> None:
        """Make the error for the model `name`, with the numbers of its `stored` shards, from 1."""
        absent = (number for number in range(1, shards + 1) if number not in stored)
        self.missing = tuple(islice(absent, MISSING_MAX))
        left_out = shards - len(stored) - len(self.missing)
        numbers = ", ".join(map(str, self.missing)) + (f" and {left_out} more" if left_out > 0 else "")
        super().__init__(f"{name} is incomplete: {len(stored)} of {shards} shards; missing {numbers}")
        self.name = name
        self.shards = shards


class SeveralModels(NotFound, code="several-models"):
    """A name without its namespace or its quantisation can mean several models."""

    name: Text
    names: Annotated[tuple[Text, ...], Meta(max_length=NAMES_MAX)]
    """The names of these models, or the first ones of a long list."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self.name = name
        self.names = tuple(names[:NAMES_MAX])
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        super().__init__(f"{name} can mean several models: name one of {', '.join(self.names)}{more}")


class NothingRegistered(NotFound, code="nothing-registered"):
    """The model is not registered, and no other model is."""


class NoSuchFile(NotFound, code="no-such-file"):
    """A file or a model at an address does not exist."""


class NoSuchJob(NotFound, code="no-such-job"):
    """No job has this number, or it was removed."""


class NoSuchAnswer(NotFound, code="no-such-answer"):
    """No answer has this key, it was deleted after a day, or another account asked for it."""


class NoSuchRun(NotFound, code="no-such-run"):
    """No run of a fleet has this number or this name, or none has begun."""


class NoSuchEvolution(NotFound, code="no-such-evolution"):
    """No evolution has this number, or the user may not see it."""


class NoSuchContributor(NotFound, code="no-such-contributor"):
    """No contributor has this name, or the user may not see them."""


class NoSuchToken(NotFound, code="no-such-token"):
    """No token has this id, or it belongs to another account."""


class NoSuchSubmission(NotFound, code="no-such-submission"):
    """No submission has this number, or it was removed."""


class NotComposedHere(NotFound, code="not-composed-here"):
    """The model is not a chimera of this registry, and no quantisation of a model that is registered."""


class Ambiguous(OrganError, code="ambiguous", status=409, exit_code=5):
    """The prefix of a digest fits more than one digest."""


class StoreError(OrganError, code="store-error"):
    """The blob store failed."""


class CorruptBlob(StoreError, code="corrupt-blob", exit_code=7):
    """Stored bytes do not give the plain bytes that their digest names."""

    where: Text
    reason: Text

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"corrupt blob {where}: {reason}")
        self.where = where
        self.reason = reason


class FaultyParent(CorruptBlob, code="faulty-parent", exit_code=7):
    """A blob cannot be decoded because the bytes of its parent are wrong or missing. Its own bytes may be right."""

    parent: Text

    def __init__(self, where: str, parent: str, fault: str) -> None:
        self.where = where
        self.reason = f"its parent {parent[:12]} is faulty: {fault}"
        self.parent = parent
        self.fault = fault  # not data of the error: the reason contains it
        StoreError.__init__(self, f"the bytes of {where} cannot be decoded: {self.reason}")


class MissingBlob(StoreError, code="missing-blob", exit_code=7):
    """A blob is in the database, and its stored bytes are missing."""


class EncodingFault(StoreError, code="encoding-fault"):
    """Encoded bytes do not decode to the bytes that they were made from. Nothing is written."""


class DiskFull(StoreError, code="disk-full"):
    """The file system has no room for the bytes to be written."""


class StoreUnwritable(StoreError, code="store-unwritable"):
    """A folder cannot be written: no permission, a read-only file system, or a file with the name of the folder."""


class StoreUnreachable(StoreError, code="store-unreachable", status=503, exit_code=6):
    """The object store with the blobs does not answer. Try again later."""


class CatalogError(OrganError, code="catalog-error"):
    """The database failed or cannot be used."""


class DatabaseUnreachable(CatalogError, code="database-unreachable", status=503, exit_code=6):
    """The database server does not answer, or takes no more connections. Try again later."""


OUTAGES = (StoreUnreachable, DatabaseUnreachable)
"""Errors that end without a change of the registry: the same work can succeed later."""


class SchemaTooNew(CatalogError, code="schema-too-new"):
    """The database was migrated by a newer version of this program."""


class BadValue(CatalogError, BadInput, code="bad-value", status=400):
    """A supported database would refuse or change a value."""


class NotAllowed(OrganError, code="not-allowed", status=403, exit_code=4):
    """The user may not do this."""


class BadToken(NotAllowed, code="bad-token", status=401):
    """A token is missing, mistyped, unknown, revoked or expired. The message never contains the token."""


class BadHubToken(BadToken, code="bad-hub-token"):
    """A server of model files requires a valid token."""


class TooMany(OrganError, code="too-many-requests", status=429, exit_code=6):
    """Too many requests of one user; `seconds` is how long to wait."""

    seconds: Seconds

    def __init__(self, detail: str, seconds: float) -> None:
        super().__init__(detail)
        self.seconds = seconds


class OverQuota(OrganError, code="over-quota", status=413, exit_code=5):
    """The stored bytes or the uploads of an account would exceed a limit."""


class Busy(OrganError, code="busy", status=503, exit_code=6):
    """Another process holds a lock, or the server has too much to do."""


class QueueFull(Busy, code="queue-full"):
    """The queue takes no more jobs or prompts."""

    waiting: Count
    """The number of waiting jobs, or of waiting prompts."""

    def __init__(self, waiting: int, detail: str | None = None) -> None:
        super().__init__(detail or f"{waiting} jobs wait already: wait until some are done, or cancel some")
        self.waiting = waiting


class Conflict(OrganError, code="conflict", status=409, exit_code=5):
    """The request does not fit the present state, or another request changes the same thing."""


class NameTaken(Conflict, code="name-taken"):
    """The name belongs to another model with other bytes, and no new version was requested."""

    name: Text
    taken_by: Text
    """The model that has the name."""
    version: Count
    """The version that the new model would get under that name."""

    def __init__(self, name: str, taken_by: str, version: int) -> None:
        super().__init__(f"the name {name} is taken by {taken_by}, which is another file")
        self.name = name
        self.taken_by = taken_by
        self.version = version


class Unreachable(OrganError, code="unreachable", status=502, exit_code=6):
    """A remote registry does not answer, or reports an internal error."""


class BadReply(Unreachable, code="bad-reply", exit_code=1):
    """A remote registry sends other bytes than promised, or another form. Nothing is stored; a retry does not help."""


class NoRegistry(BadReply, code="no-registry", exit_code=1):
    """The answers at an address are not those of an organ registry."""


class TooSlow(OrganError, code="too-slow", status=503, exit_code=6):
    """A query of the database exceeded the time limit and was stopped."""

    seconds: Seconds
    """The limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the search took longer than {seconds:g} s and was stopped; narrow it")
        self.seconds = seconds


class NotAssemblable(OrganError, code="not-assemblable", status=409, exit_code=5):
    """A model cannot be written as a GGUF file."""

    model: Text

    def __init__(self, model: str, reasons: Sequence[str]) -> None:
        super().__init__(f"{model} cannot be assembled: {'; '.join(reasons)}", reasons=reasons)
        self.model = model


class NotComposable(OrganError, code="not-composable", status=409, exit_code=5):
    """A plan cannot be carried out: it is refused, or it has warnings that the recipe does not accept.

    In `errors`, a reason for the refusal has the field `recipe`; a warning to accept has the field `accept` and its
    code.
    """

    def __init__(self, refusals: Sequence[str], unaccepted: Sequence[str], warned: Sequence[str] = ()) -> None:
        """`refusals` are sentences, `unaccepted` the codes of warnings, `warned` their sentences."""
        codes = ", ".join(unaccepted)
        accepting = f"accept {codes} to make it all the same"
        if warned:
            accepting = f"{' '.join(warned)} To make it all the same, accept {codes}"
        faults = [FieldError(field="recipe", code=self.code, detail=sentence) for sentence in refusals]
        faults += [FieldError(field="accept", code=code, detail=f"Accept {code} to make it.") for code in unaccepted]
        refused = "; ".join(sentence.removesuffix(".") for sentence in refusals)
        super().__init__(refused or accepting, errors=faults)

    @property
    def refusals(self) -> tuple[str, ...]:
        """The reasons for the refusal of the plan, as sentences."""
        return tuple(error.detail for error in self.errors if error.field == "recipe")

    @property
    def unaccepted(self) -> tuple[str, ...]:
        """The codes of the warnings that the recipe does not accept."""
        return tuple(error.code for error in self.errors if error.field == "accept")
