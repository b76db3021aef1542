"""The words that columns may hold, the actions of the event log, the bins of θ, and which texts databases accept."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from enum import StrEnum

from organs.registry.anatomy import OrganType, Tower
from organs.registry.errors import BadValue

TEXT_MAX = 4096
"""Characters of any text that is shown; the exact bytes of metadata are kept in blobs, whatever their length."""

ORGAN_TYPES = tuple(kind.value for kind in OrganType)
GRAFTED_TYPES = tuple(kind.value for kind in (OrganType.SKELETON, OrganType.ORGAN, OrganType.EMBED, OrganType.NORM))
"""What a graft may select by type."""
TOWERS = tuple(tower.value for tower in Tower)
BLOB_STATES = ("present", "doomed", "corrupt")
INGEST_STATES = ("running", "finished", "failed", "interrupted")
MODEL_STATES = ("visible", "quarantined", "yanked", "removed")
REACHABLE_STATES = ("visible", "yanked")
"""Of models that are shown and handed out to who knows their names; searches find visible ones alone."""
MODEL_KINDS = ("model", "adapter", "vocabulary")
RELATIONS = ("finetune", "quantized", "adapter", "grafted", "purified", "merged", "dissected", "relative")
VERDICTS = ("broken", "undecided", "inert", "degraded", "gains", "coherent")
CONTRIBUTOR_STATES = ("active", "suspended")
MANAGE_TOKENS = "tokens"
SCOPES = ("read", "upload", "admin", MANAGE_TOKENS)
"""What a token allows. No scope includes another: `admin` uploads nothing, and only `tokens` creates, lists and revokes
other tokens."""
UPLOAD_KINDS = ("piece", "pack", "file")
"""One piece of a model's file, many small ones one after another, or a whole file."""
UPLOAD_STATES = ("open", "complete")
SUBMISSION_STATES = ("checking", "ready", "publishing", "quarantined", "published", "refused", "withdrawn")
"""Looked at; waiting for its contributor's word; taken apart; waiting for an administrator's; and how it ends."""
JOB_STATES = ("queued", "running", "finished", "failed", "cancelled")
MATRIX_DTYPES_REFUSED = frozenset({"F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"})
"""With one of these as a matrix llama.cpp was seen to crash, or to refuse the file (Q8_1)."""
VECTOR_DTYPES = frozenset({"F32"})
"""With a norm of any other type, F16 and BF16 among them, llama.cpp was seen to crash."""
EVIDENCE = ("declared", "recorded", "measured")

_SURROGATE = re.compile("[\ud800-\udfff]")


def shown_text(text: str, limit: int = TEXT_MAX) -> str:
    """`text` as every database takes it: NUL and what is no UTF-8 made visible, cut at `limit` with an ellipsis."""
    # A file name that is no UTF-8 reaches us with surrogates in it (PEP 383), which no database encodes.
    clean = text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "backslashreplace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def checked_text(text: str, what: str, limit: int = TEXT_MAX) -> str:
    """`text` unchanged; raises BadValue where a database would refuse or cut it."""
    if "\0" in text:
        raise BadValue(f"{what} has a NUL character, which databases refuse")
    if _SURROGATE.search(text):
        raise BadValue(f"{what} is no UTF-8")
    if len(text) > limit:
        raise BadValue(f"{what} has {len(text)} characters; {limit} are allowed")
    return text


class Action(StrEnum):
    """Something that is done; at most 32 characters."""

    INGEST = "ingest"
    COMPOSE = "compose"
    SUBMIT = "submit"
    """Bytes to be looked at, and then a model that is registered in quarantine."""
    FAIL_CHECKS = "fail checks"
    """What was submitted is not taken; nobody was asked."""
    WITHDRAW = "withdraw"
    APPROVE = "approve"
    REFUSE = "refuse"
    PUBLISH = "publish"
    EDIT = "edit"
    QUARANTINE = "quarantine"
    YANK = "yank"
    RESTORE = "restore"
    REMOVE = "remove"
    REMOVE_WITHDRAWN = "remove withdrawn"
    """A model that nobody had seen, because its contributor no longer wanted it."""
    SET_ASIDE = "set aside blob"
    """Stored bytes were found wrong or missing."""
    TAKE_BACK = "take back blob"
    """Stored bytes that were set aside are right again."""
    ADD_CONTRIBUTOR = "add contributor"
    SUSPEND_CONTRIBUTOR = "suspend contributor"
    RESUME_CONTRIBUTOR = "resume contributor"
    SET_QUOTA = "set quota"
    CREATE_TOKEN = "create token"  # noqa: S105  # what is done, no token
    REVOKE_TOKEN = "revoke token"  # noqa: S105
    LOG_IN = "log in"


BIN_DEGREES = 5
THETA_MAX_DEGREES = 90
UNMEASURED = -1
"""The bin of what has no θ."""


def theta_bin(theta: float | None) -> int:
    """The lower edge of the bin of `theta`, in degrees; 90 counts into the last bin."""
    if theta is None:
        return UNMEASURED
    lower = int(theta // BIN_DEGREES) * BIN_DEGREES
    return max(0, min(lower, THETA_MAX_DEGREES - BIN_DEGREES))


WORD_MAX = 64


WORDS_MAX = 1000
"""Of one model; a description has at most 4,096 characters."""


_WORD = re.compile(r"[^\W_]+")


def folded_words(text: str) -> list[str]:
    """The words of `text` in order: `Zoo-A v1.0` gives zoo, a, v1, 0. Words beyond 64 characters are cut."""
    split = unicodedata.normalize("NFKD", text)
    plain = "".join(sign for sign in split if not unicodedata.combining(sign)).casefold()
    return [word[:WORD_MAX] for word in _WORD.findall(plain)]


def different_words(texts: Iterable[str | None]) -> list[str]:
    """Each word of `texts` once, in order, at most `WORDS_MAX`."""
    found: dict[str, None] = {}
    for text in texts:
        found.update(dict.fromkeys(folded_words(text or "")))
    return list(found)[:WORDS_MAX]
