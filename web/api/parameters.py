"""The parameters that operations share, as the reference describes them."""

from __future__ import annotations

from organs.registry.catalog.search import MODELS, ORGANS, Vocabulary
from organs.registry.catalog.search.cursor import CURSOR_MAX_LENGTH, PAGE_MAX
from organs.registry.catalog.search.parse import QUERY_MAX_LENGTH
from organs.registry.reports.dissection import ORGANS_DEFAULT
from organs.registry.reports.overview import ROWS_DEFAULT
from organs.web.api.operation import Parameter
from organs.web.api.schemas.values import Schema
from organs.web.asked import LIMIT_DEFAULT

_EXAMPLE = "Zoo-A-2M-v1.0-Q8_0"
_SWITCH: Schema = {"type": "string", "enum": ["0", "1"], "default": "0"}
_QUERY: Schema = {"type": "string", "maxLength": QUERY_MAX_LENGTH}
_NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", "maxLength": 96}
_VERSIONED: Schema = {
    "type": "string",
    "pattern": "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(@[1-9][0-9]{0,8})?$",
    "maxLength": 106,
}
_FULL_NAME: Schema = {
    "type": "string",
    "pattern": "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(@[1-9][0-9]{0,8})?$",
    "maxLength": 203,
}


def _fields(vocabulary: Vocabulary) -> str:
    fields = "; ".join(f"`{field.name}:` {field.meaning}" for field in vocabulary.fields.values())
    sorts = ", ".join(f"`sort:{name}`" for name in vocabulary.sorts)
    return f"{fields}. {sorts}, the highest first with `sort:-theta`. Other words are looked for in names and texts."


def _limit(default: int, what: str) -> Parameter:
    schema: Schema = {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": default}
    return Parameter("limit", f"{what}, from 1 to {PAGE_MAX:,}.", schema, "2")


ORGAN_QUERY = Parameter("q", f"The query. {_fields(ORGANS)}", _QUERY, "type:organ sort:-spectral")
MODEL_QUERY = Parameter("q", f"The query. {_fields(MODELS)}", _QUERY, "kind:model sort:-theta")
LIMIT = _limit(LIMIT_DEFAULT, "Results on a page")
ROWS = _limit(ROWS_DEFAULT, "Rows of a table of models")
ORGAN_ROWS = _limit(ORGANS_DEFAULT, "Rows of a list of single organs")
AFTER = Parameter(
    "after",
    "Where the page before ended: its `next`. It is bound to the query that it came from.",
    {"type": "string", "maxLength": CURSOR_MAX_LENGTH},
    "",
)
COUNTS = Parameter("counts", "1 to have the facets beside the page.", _SWITCH, "1")
EVERY_PART = Parameter(
    "every_part", "1 to have every organ of the result among `parts`, also those that stay.", _SWITCH, "0"
)
LOCK_TOO = Parameter(
    "lock", "1 to have the lock beside the plan, where it can be made and nothing is to be computed.", _SWITCH, "0"
)
RANKED = Parameter("ranked", "1 for complete models alone, by falling mean θ unless the query sorts.", _SWITCH, "1")
DIGEST = Parameter(
    "digest",
    "The organ's digest, or 8 and more characters from its beginning.",
    {"type": "string", "pattern": "^[0-9a-f]{8,64}$"},
    "aadb682ed7753b5f",
    where="path",
    required=True,
)
JOB = Parameter(
    "job", "The number of the job.", {"type": "string", "pattern": "^[0-9]{1,19}$"}, "1", where="path", required=True
)
NAMESPACE = Parameter("namespace", "The model's namespace.", _NAME, "local", where="path", required=True)
NAME = Parameter(
    "name",
    "The model's name; `name@3` for a version, else the newest.",
    _VERSIONED,
    _EXAMPLE,
    where="path",
    required=True,
)
FIRST = Parameter(
    "first", "A model, `namespace/name` or `namespace/name@version`.", _FULL_NAME, f"local/{_EXAMPLE}", required=True
)
SECOND = Parameter(
    "second", "The model that it is compared with.", _FULL_NAME, "local/Zoo-B-2M-v1.0-Q8_0", required=True
)
MODEL_DIGEST = Parameter(
    "digest",
    "What the digest of a model, of its file or of its lock begins with, with or without `sha256:`.",
    {"type": "string", "pattern": "^(sha256:)?[0-9a-fA-F]{8,64}$"},
    "679541f31fd5790a",
    required=True,
)
HEADER = Parameter(
    "header",
    "The SHA-256 of a file's header, from its first byte to the last tensor info, as locks name it.",
    {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "d517a753c035f3e0e718e07860437468c6bb95c4c74b68a7937177925b8e3bd3",
    where="path",
    required=True,
)
LOCK = Parameter(
    "lock",
    "The digest of the chimera's lock, or 8 and more characters from its beginning.",
    {"type": "string", "pattern": "^(sha256:)?[0-9a-fA-F]{8,64}$"},
    "679541f31fd5790a",
    where="path",
    required=True,
)
BASE = Parameter(
    "base",
    "The model that receives: its name, or `sha256:` and a digest of its file.",
    {"type": "string", "maxLength": 203},
    "local/Zoo-A-2M-v1.0-F16",
    required=True,
)
DONOR = Parameter(
    "donor",
    "The model whose organs are held against it; an adapter is checked as one.",
    {"type": "string", "maxLength": 203},
    "local/Zoo-B-2M-v1.0-Q8_0",
    required=True,
)
