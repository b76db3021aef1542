"""One tree for everything that goes wrong, each leaf carrying the data a caller can act on.

OrganError                  everything below; its text is one sentence for a person
├── BadInput                what came from outside is refused; nothing was kept
│   ├── BadGguf             a GGUF file: source, field, offset
│   ├── BadSplit            a split set: the list of what is wrong with it
│   ├── BadDirectory        an organ directory: the list of what is wrong with it
│   ├── TooManyTensors      a model with more tensors than its bytes pay for
│   ├── BadSource           a path that is no regular file, or changed while it was read
│   ├── BadDigest           not a digest, or a prefix too short to be one
│   ├── BadName             a model name that breaks the rules of names
│   ├── BadOrgan            an organ whose values cannot be computed with
│   ├── BadQuery            a search that means nothing: the term, and the nearest one that would
│   ├── BadRecipe           a recipe: the list of what is wrong with it, each with the field
│   ├── BadLock             a lock that is none, or not in canonical form
│   └── TooCostly           more work than one request may ask for: the estimated seconds, and those that are allowed
├── BadSetting              a setting that means nothing here
├── NoSandbox               processes cannot be confined here as ORGAN_SANDBOX=require wants it: what is missing
├── UnsupportedDType        no kernel for this tensor type here
├── NotFound                no such model, organ or blob
│   └── Removed             a model that was there, and was removed: when, and why
├── Ambiguous               a digest prefix that fits several
├── StoreError              the blob store
│   ├── CorruptBlob         stored bytes that do not give what their name promises
│   ├── EncodingFault       encoded bytes that do not decode to what they were made from
│   ├── MissingBlob         a row without its file
│   ├── DiskFull            no room for what must be written
│   └── StoreUnwritable     the folder cannot be written: permissions, read-only
├── CatalogError            the database
│   ├── SchemaTooNew        written by a newer version of this program
│   └── BadValue            a value that one of the databases would refuse
├── NotAllowed              who asks may not do this
│   └── BadToken            a token that is missing, mistyped, unknown, revoked or expired
├── TooMany                 asked too often: the seconds to wait
├── OverQuota               more than may be kept for a contributor: what is allowed, and what it would be
├── Busy                    another process holds the lock that this one needs
│   └── QueueFull           as many jobs wait as may
├── Conflict                what is asked for does not go with how things stand: the state, or another who is at it
│   └── NameTaken           a name that stands for other bytes: the name, by which model, the version that is next
├── Unreachable             a registry elsewhere that does not answer, or not as a registry does
│   └── BadReply            it answers something else than it promised: other bytes, another length, another form
├── TooSlow                 a question to the database that was stopped: the seconds that it was given
├── NotAssemblable          the model cannot be written as a GGUF, and why
└── NotComposable           a plan that must not be made: what was found that refuses it, or is not accepted
"""

from __future__ import annotations

from collections.abc import Sequence


class OrganError(Exception):
    """Base of every error that this project raises on purpose."""


class BadInput(OrganError):
    """Something from outside is refused."""


class BadGguf(BadInput):
    """A GGUF file that is refused, naming the file, the field and the offset in bytes."""

    def __init__(self, source: str, field: str, offset: int, reason: str) -> None:
        super().__init__(f"{source}: {field} at byte {offset}: {reason}")
        self.source = source
        self.field = field
        self.offset = offset
        self.reason = reason


class BadSplit(BadInput):
    """A split set that is refused as a whole, with everything that is wrong with it."""

    def __init__(self, name: str, reasons: Sequence[str]) -> None:
        super().__init__(f"{name}: not a complete split set: {'; '.join(reasons)}")
        self.reasons = tuple(reasons)


class BadDirectory(BadInput):
    """An organ directory that is refused as a whole, with everything that is wrong with it."""

    def __init__(self, path: str, reasons: Sequence[str]) -> None:
        super().__init__(f"{path}: not a sound organ directory: {'; '.join(reasons)}")
        self.reasons = tuple(reasons)


class TooManyTensors(BadInput):
    """A model that has more tensors than its bytes pay for."""


class BadSource(BadInput):
    """A path that cannot be read as a file, or that changed while it was read."""


class BadDigest(BadInput):
    """Text that is no SHA-256 digest, nor an acceptable prefix of one."""


class BadName(BadInput):
    """A model name or namespace that breaks the rules of names."""


class BadOrgan(BadInput):
    """An organ whose values cannot be computed with, or would not fit what they are to be written as."""


class BadQuery(BadInput):
    """A query, or a part of it, that means nothing here."""

    def __init__(self, term: str, reason: str) -> None:
        super().__init__(f"{term[:80]!r}: {reason}")
        self.term = term
        self.reason = reason


class BadRecipe(BadInput):
    """A recipe that is refused as a whole, with everything that is wrong with it.

    `reasons` are pairs of a field, such as `grafts[1].blocks` (empty for the text as a whole), and a sentence.
    """

    def __init__(self, where: str, reasons: Sequence[tuple[str, str]]) -> None:
        said = [f"{field}: {sentence}" if field else sentence for field, sentence in reasons]
        super().__init__(f"{where}: {'; '.join(said)}")
        self.where = where
        self.reasons = tuple(reasons)


class BadLock(BadInput):
    """A lock that is none, or not in canonical form."""


class TooCostly(BadInput):
    """More work than one request may ask for; both figures are seconds of processor time, `seconds` an estimate.

    The estimate ends where it exceeds the limit: the whole would take at least that long.
    """

    CODE = "too-costly"

    def __init__(self, seconds: float, limit_seconds: float, reason: str = "") -> None:
        super().__init__(
            f"this is too much work for one request: {reason or f'more than {limit_seconds:g} s of processor time'}; "
            "name fewer or smaller models, or fewer steps"
        )
        self.seconds = seconds
        self.limit_seconds = limit_seconds


class BadSetting(OrganError):
    """A setting from the environment that cannot be used."""


class NoSandbox(OrganError):
    """A process that must be confined, and cannot be on this system: `missing` has a sentence for each protection."""

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__(f"ORGAN_SANDBOX is `require`, and a process cannot be confined here. {' '.join(missing)}")
        self.missing = tuple(missing)


class UnsupportedDType(OrganError):
    """A tensor type whose values cannot be read or written here."""


class NotFound(OrganError):
    """Nothing is registered under this name or digest."""


class Removed(NotFound):
    """A model that was there for everybody and was removed: when, and why."""


class NothingRegistered(NotFound):
    """A model that is not registered, in a registry that has none at all."""


class NoSuchJob(NotFound):
    """A job that never was, or whose row is gone."""


class NoSuchContributor(NotFound):
    """A contributor that is not there, or of whom the asker may not know."""


class NoSuchToken(NotFound):
    """A token that is not there, or is somebody else's."""


class NoSuchSubmission(NotFound):
    """A submission that never was, or whose row is gone."""


class NotComposedHere(NotFound):
    """A model that is registered, but is no chimera of this registry."""


class Ambiguous(OrganError):
    """A digest prefix that fits more than one digest."""


class StoreError(OrganError):
    """The blob store failed."""


class CorruptBlob(StoreError):
    """Stored bytes that do not give the plain bytes that their digest names."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"corrupt blob {where}: {reason}")
        self.where = where
        self.reason = reason


class MissingBlob(StoreError):
    """A blob that has a row and no stored bytes."""


class EncodingFault(StoreError):
    """What was encoded does not decode to what it was made from: our mistake, or the machine's. Nothing is written."""


class DiskFull(StoreError):
    """The file system has no room for what must be written."""


class StoreUnwritable(StoreError):
    """The store's folder cannot be written."""


class CatalogError(OrganError):
    """The database failed or cannot be used."""


class SchemaTooNew(CatalogError):
    """The database was migrated by a newer version of this program."""


class BadValue(CatalogError, BadInput):
    """A value that a supported database would refuse or change."""


class NotAllowed(OrganError):
    """Who asks is known, or nobody, and may not do this."""


class BadToken(NotAllowed):
    """Who asks has no token, or one that is not good. Its text is never in the sentence."""


class TooMany(OrganError):
    """Asked too often; `seconds` is how long to wait."""

    def __init__(self, sentence: str, seconds: float) -> None:
        super().__init__(sentence)
        self.seconds = seconds


class OverQuota(OrganError):
    """More than may be kept for a contributor."""


class Busy(OrganError):
    """Another process holds the lock that this one needs."""


class QueueFull(Busy):
    """As many jobs wait as may; `waiting` is how many."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} jobs wait already: wait until some are done, or cancel some")
        self.waiting = waiting


class Conflict(OrganError):
    """What is asked for does not go with how things stand, or another is at it just now."""


class NameTaken(Conflict):
    """A model was to be registered under a name that stands for other bytes, and a new version was not asked for."""

    def __init__(self, name: str, taken_by: str, version: int) -> None:
        super().__init__(f"the name {name} is taken by {taken_by}, which is another file")
        self.name = name
        self.taken_by = taken_by
        self.version = version
        """What the model would get under that name."""


class Unreachable(OrganError):
    """A registry elsewhere that does not answer, answers with a fault of its own, or not as a registry does."""


class BadReply(Unreachable):
    """A registry elsewhere answers something else than it promised. Nothing of it is kept; asking again is no use."""


class TooSlow(OrganError):
    """A question to the database that took longer than it was given, and was stopped."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the search took longer than {seconds:g} s and was stopped; narrow it")
        self.seconds = seconds


class NotAssemblable(OrganError):
    """A model that cannot be written as a GGUF file, with the reasons."""

    def __init__(self, model: str, reasons: Sequence[str]) -> None:
        super().__init__(f"{model} cannot be assembled: {'; '.join(reasons)}")
        self.reasons = tuple(reasons)


class NotComposable(OrganError):
    """A plan that must not be made, with the sentences of what refuses it and the codes that are not accepted."""

    def __init__(self, refusals: Sequence[str], unaccepted: Sequence[str]) -> None:
        wanted = f"accept {', '.join(unaccepted)} to make it all the same" if unaccepted else ""
        super().__init__("; ".join([*refusals, *([wanted] if wanted else [])]))
        self.refusals = tuple(refusals)
        self.unaccepted = tuple(unaccepted)
