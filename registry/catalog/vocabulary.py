"""The values that columns may have, the actions of the event log, the bins of θ, and texts that databases accept."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from enum import StrEnum

from organs.registry.anatomy import OrganType, Tower
from organs.registry.errors import BadValue
from organs.registry.kinds import FileKind

TEXT_MAX = 4096
"""The most characters of a text in the catalog. The exact bytes of metadata are in blobs and may be longer."""

ORGAN_TYPES = tuple(kind.value for kind in OrganType)
GRAFTED_TYPES = tuple(kind.value for kind in (OrganType.SKELETON, OrganType.ORGAN, OrganType.EMBED, OrganType.NORM))
"""The types that a graft may select."""
TOWERS = tuple(tower.value for tower in Tower)
STACK_CODEC = "stack"
"""The codec of blobs that are only recorded: their plain bytes are those of other blobs, one after another."""
BLOB_STATES = ("present", "doomed", "corrupt")
INGEST_STATES = ("running", "finished", "failed", "interrupted")
MODEL_STATES = ("visible", "quarantined", "yanked", "removed", "incomplete")
"""`incomplete`: a split model of which some shards are stored. It becomes visible when the last shard arrives."""
REACHABLE_STATES = ("visible", "yanked")
"""States of models that are shown and served by exact name. Searches find only visible models."""
MODEL_KINDS = tuple(kind.value for kind in FileKind)
PARTIAL = "partial"
"""The kind shown for a partial model."""
CHIMERA = "chimera"
"""The kind shown for a model that was composed in this registry."""
RUNTIME_TEXT_KINDS = ("template", "parameters", "license", "system", "messages", "renderer")
PRIVATE_TEXT_KINDS = ("system", "messages")
"""Kinds of texts that stay on this machine: a server never shows or sends them."""
RUNTIME_TEXT_MAX = 65_536
"""The most characters of a text that another tool keeps beside a model. Longer ones are cut."""
RUNTIME_TEXTS_MAX = 16
"""The most such texts of a model."""
INSTALLED, RECLAIMED = "installed", "reclaimed"
OUTSIDE_STATES = (INSTALLED, RECLAIMED)
"""States of files outside of the registry: written by it, or removed from the disk until they are restored."""
CACHE = "cache"
"""What files that `organ run` keeps have in place of a tool."""
MODEL_FILE, TEXT_FILE, LINK = "model", "text", "link"
OUTSIDE_KINDS = (MODEL_FILE, TEXT_FILE, LINK)
OTHER_NAMES_MAX = 50
"""The most names of a model beside its own."""
RELATIONS = (
    *("finetune", "quantized", "adapter", "grafted", "purified", "merged", "dissected", "relative"),
    *("placed", "pruned", "edited"),
)
VERDICTS = ("broken", "undecided", "inert", "degraded", "gains", "coherent", "writes")
SIZE_KINDS = ("chosen", "plain")
"""A mix of tensor types that was chosen for its size, or one that llama.cpp has under a name."""
TEXT_GROUPS = {
    "code": ("python", "javascript"),
    "prose": ("documentation", "encyclopedic", "narrative"),
}
"""Kinds of built-in texts that `on:` accepts under one name."""
CONTRIBUTOR_STATES = ("active", "suspended")
READ, UPLOAD, ADMIN, MANAGE_TOKENS = "read", "upload", "admin", "tokens"
SCOPE_MEANINGS = {
    READ: "see the account; reading the catalog needs no token",
    UPLOAD: "send models to the own namespace, edit and yank them, compose, start jobs",
    ADMIN: "administer the registry: approve, refuse, remove, read the event log",
    MANAGE_TOKENS: "list the tokens of the account, create more, revoke those that it created",
}
"""What a token allows. No scope includes another: `admin` does not allow uploads, and only `tokens` allows to create,
list and revoke other tokens."""
SCOPES = tuple(SCOPE_MEANINGS)
UPLOAD_KINDS = ("piece", "pack", "file")
"""One piece of a file, a pack of many small pieces, or a complete file."""
UPLOAD_STATES = ("open", "complete")
SUBMISSION_STATES = ("checking", "ready", "publishing", "quarantined", "published", "refused", "withdrawn")
"""`ready` waits for its contributor, `quarantined` for an administrator. In `checking` and `publishing`, a job works
on it. The last three states are final."""
JOB_STATES = ("queued", "running", "finished", "failed", "cancelled")
ANSWER_STATES = ("queued", "running", "finished", "failed")
FLEET_WORK = ("ingest", "measure", "repack", "validate", "sensitivity", "evolve")
"""The kinds of work in the plan of a fleet."""
FLEET_UNIT_STATES = ("queued", "running", "done", "failed", "set_aside")
"""`set_aside`: its worker died several times. `retry` queues failed units, and those that were set aside, again."""
EVOLUTION_STATES = ("running", "finished", "failed")
TRIAL_STATES = ("queued", "running", "done", "failed", "set_aside")
TRIAL_ROLES = ("start", "proposed", "check", "without")
"""`start`: donors as they are, and their mean; `proposed` by the sampler; `check`: a good trial again, on further
windows; `without`: the best trial without one of its parts."""
MATRIX_DTYPES_REFUSED = frozenset({"F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"})
"""llama.cpp crashes with a matrix of one of these types, or refuses the file (Q8_1)."""
VECTOR_DTYPES = frozenset({"F32"})
"""llama.cpp crashes with a norm of any other type, including F16 and BF16."""
FOREIGN_BEGINNING, FOREIGN_ENDING = "TYPE_", "_BE"
"""The beginning of the names of unknown tensor types, and the ending of those of big-endian ones: never grafted."""
EVIDENCE = ("declared", "recorded", "measured")

_SURROGATE = re.compile("[\ud800-\udfff]")


def shown_text(text: str, limit: int = TEXT_MAX) -> str:
    """Return `text` so that every database accepts it: NUL and invalid UTF-8 as visible characters, cut at `limit`."""
    # A file name that is not UTF-8 contains surrogates (PEP 383), which databases cannot encode.
    clean = text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "backslashreplace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def checked_text(text: str, name: str, limit: int = TEXT_MAX) -> str:
    """Return `text` unchanged; raises BadValue, with the `name` of the value, if a database would refuse or cut it."""
    if "\0" in text:
        raise BadValue(f"{name} has a NUL character, which databases refuse")
    if _SURROGATE.search(text):
        raise BadValue(f"{name} is not valid UTF-8")
    if len(text) > limit:
        raise BadValue(f"{name} has {len(text)} characters; {limit} are allowed")
    return text


class Action(StrEnum):
    """An action in the event log; at most 32 characters."""

    INGEST = "ingest"
    COMPOSE = "compose"
    SUBMIT = "submit"
    """Uploaded bytes were submitted for the check, or a model was registered in quarantine."""
    FAIL_CHECKS = "fail checks"
    """The automatic check refused a submission."""
    WITHDRAW = "withdraw"
    APPROVE = "approve"
    REFUSE = "refuse"
    PUBLISH = "publish"
    EDIT = "edit"
    RENAME = "rename"
    """A model whose name was a digest got a name."""
    QUARANTINE = "quarantine"
    YANK = "yank"
    RESTORE = "restore"
    REMOVE = "remove"
    REMOVE_WITHDRAWN = "remove withdrawn"
    """A model in quarantine was removed because its contributor withdrew it."""
    SET_ASIDE = "set aside blob"
    """Stored bytes are wrong or missing."""
    TAKE_BACK = "take back blob"
    """Stored bytes that were set aside are right again."""
    ADD_CONTRIBUTOR = "add contributor"
    SUSPEND_CONTRIBUTOR = "suspend contributor"
    RESUME_CONTRIBUTOR = "resume contributor"
    SET_QUOTA = "set quota"
    CREATE_TOKEN = "create token"  # noqa: S105  # an action, not a token
    REVOKE_TOKEN = "revoke token"  # noqa: S105
    LOG_IN = "log in"


BIN_DEGREES = 5
THETA_MAX_DEGREES = 90
UNMEASURED = -1
"""The bin of organs without θ."""


def theta_bin(theta: float | None) -> int:
    """Return the lower edge of the bin of `theta`, in degrees. 90 belongs to the last bin."""
    if theta is None:
        return UNMEASURED
    lower = int(theta // BIN_DEGREES) * BIN_DEGREES
    return max(0, min(lower, THETA_MAX_DEGREES - BIN_DEGREES))


WORD_MAX = 64
"""The most characters of a word in the index. Longer words are cut."""
WORDS_MAX = 1000
"""The most words of one model in the index. A description may have more words; the others are not found."""

_WORD = re.compile(r"[^\W_]+")


def folded_words(text: str) -> list[str]:
    """Return the words of `text` in order: `Zoo-A v1.0` gives zoo, a, v1, 0. Words are cut at 64 characters."""
    split = unicodedata.normalize("NFKD", text)
    plain = "".join(char for char in split if not unicodedata.combining(char)).casefold()
    return [word[:WORD_MAX] for word in _WORD.findall(plain)]


def unique_words(texts: Iterable[str | None]) -> list[str]:
    """Return each word of `texts` once, in order, at most `WORDS_MAX`."""
    words: dict[str, None] = {}
    for text in texts:
        words.update(dict.fromkeys(folded_words(text or "")))
    return list(words)[:WORDS_MAX]


TAG_WIDTH = 96
"""The most characters of a tag in the index. Longer tags are cut."""


def folded_tag(text: str) -> str:
    """Return the tag `text` as the index has it: without case, and without space at its ends."""
    return shown_text(text.strip().casefold())[:TAG_WIDTH].strip()
