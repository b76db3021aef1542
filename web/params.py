"""Parameters of addresses: how each is described in the document of the API, and how its text is read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from flask import request
from sqlalchemy.orm import Session

from organs.registry.catalog.cursor import CURSOR_MAX_LENGTH, PAGE_MAX
from organs.registry.catalog.queries.chimeras import ORDERS as CHIMERA_ORDERS
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.base import Schema
from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT
from organs.registry.entities.storage import ROWS_DEFAULT as STORAGE_ROWS_DEFAULT
from organs.registry.errors import BadQuery, NotFound
from organs.registry.names import parse_model_name
from organs.registry.relatives.families import FAMILIES_DEFAULT, FAMILIES_MAX
from organs.registry.search.language import MODELS, ORGANS, QUERY_MAX_LENGTH, Query, Vocabulary, parse_query
from organs.web.responses import wants_csv

LIMIT_DEFAULT = 50
ID_MAX = 2**63 - 1
PLACE_MAX = 1_000_000


def requested_query(vocabulary: Vocabulary, default_sort: str | None = None) -> Query:
    """Return the query in `q`. Raises BadQuery."""
    return parse_query(request.args.get("q", ""), vocabulary, default_sort)


def requested_limit(default: int = LIMIT_DEFAULT, most: int = PAGE_MAX) -> int:
    """Return the number of requested results: `limit`, otherwise `most` for CSV and `default` for other answers.

    Raises BadQuery.
    """
    text = request.args.get("limit", str(most if wants_csv(request.path) else default))
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= most):
        raise BadQuery("limit", f"a whole number from 1 to {most}")
    return int(text)


def requested_page(default: int = LIMIT_DEFAULT) -> tuple[int, str | None]:
    """Return the limit, and the parameter `after`, which is the `next` of the previous page. Raises BadQuery."""
    return requested_limit(default), request.args.get("after") or None


def requested_gains() -> tuple[str | None, str | None]:
    """Return the base and the kinds of text that a leaderboard is about: `base` and `on`; None for all."""
    base, on = (request.args.get(name, "").strip() or None for name in ("base", "on"))
    return base, on


def requested_place() -> int:
    """Return the number of items before the requested page, for a list whose `next` is a number. Raises BadQuery."""
    text = request.args.get("after", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and int(text) <= PLACE_MAX):
        raise BadQuery("after", "a whole number, the `next` of the previous page")
    return int(text)


def requested_choice(name: str, choices: Sequence[str]) -> str:
    """Return the parameter `name`, one of `choices`; the first choice if it is missing. Raises BadQuery."""
    value = request.args.get(name) or choices[0]
    if value not in choices:
        raise BadQuery(name, f"one of {', '.join(choices)}")
    return value


def requested_switch(name: str) -> bool:
    """Return whether the parameter `name` is 1; a missing parameter counts as 0. Raises BadQuery."""
    value = request.args.get(name, "0")
    if value not in ("0", "1"):
        raise BadQuery(name, "0 or 1")
    return value == "1"


def parsed_number(text: str, thing: str, refusal: type[NotFound] = NotFound) -> int:
    """Return the number in an address of a `thing`, such as a job. Raises `refusal` for an invalid number."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 1 <= int(text) <= ID_MAX):
        raise refusal(f"{text[:40]!r} is not the number of a {thing}")
    return int(text)


def addressed_model(session: Session, namespace: str, name: str) -> ModelRow:
    """Return the visible model with the name in the address. Raises BadName, NotFound, Removed."""
    return model_by_name(session, parse_model_name(f"{namespace}/{name}"))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the path, the query or a header."""

    name: str
    description: str
    schema: Schema
    example: str
    where: str = "query"
    required: bool = False
    is_repeatable: bool = False

    @property
    def is_in_path(self) -> bool:
        return self.where == "path"


path_parameter = partial(Parameter, where="path", required=True)
MODEL_TEXT: Schema = {"type": "string", "maxLength": 203}
"""The schema of the name of a model, or of `sha256:` and a digest."""


def number_parameter(name: str, example: str = "1") -> Parameter:
    """Return a parameter in the path: the number of a job, a submission or the like."""
    schema: Schema = {"type": "string", "pattern": "^[0-9]{1,19}$"}
    return path_parameter(name, f"The number of the {name}.", schema, example)


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
    return f"{fields}. {sorts}, descending with a minus: `sort:-theta`. Other words are searched in names and texts."


def _limit(default: int, label: str) -> Parameter:
    schema: Schema = {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": default}
    return Parameter("limit", f"{label}, from 1 to {PAGE_MAX:,}.", schema, "2")


ORGAN_QUERY = Parameter("q", f"The query. {_fields(ORGANS)}", _QUERY, "type:organ sort:-spectral")
MODEL_QUERY = Parameter("q", f"The query. {_fields(MODELS)}", _QUERY, "kind:model sort:-theta")
LIMIT = _limit(LIMIT_DEFAULT, "Results on a page")
ROWS = _limit(ROWS_DEFAULT, "Rows of a table of models")
ORGAN_ROWS = _limit(ORGANS_DEFAULT, "Rows of a list of organs")
STORAGE_ROWS = _limit(STORAGE_ROWS_DEFAULT, "Families, and models")
AFTER = Parameter(
    "after",
    "The `next` of the previous page; valid for the same query only.",
    {"type": "string", "maxLength": CURSOR_MAX_LENGTH},
    "",
)
PLACE = Parameter(
    "after",
    "The `next` of the previous page: the number of items before this one.",
    {"type": "string", "pattern": "^[0-9]{1,7}$"},
    "",
)
FAMILIES = Parameter(
    "limit",
    f"Families on a page, from 1 to {FAMILIES_MAX}.",
    {"type": "integer", "minimum": 1, "maximum": FAMILIES_MAX, "default": FAMILIES_DEFAULT},
    "2",
)
COUNTS = Parameter("counts", "1 to include counts for the whole search.", _SWITCH, "1")
EVERY_PART = Parameter(
    "every_part", "1 to list every organ of the result in `parts`, also the unchanged ones.", _SWITCH, "0"
)
CHIMERA_ORDER = Parameter(
    "order",
    "`new` for the newest first, `gain` for the largest measured gain first.",
    {"type": "string", "enum": list(CHIMERA_ORDERS), "default": CHIMERA_ORDERS[0]},
    "gain",
)
ANY_BASE = Parameter(
    "base",
    "Only chimeras of this base: its name, or `sha256:` and a digest of its file.",
    MODEL_TEXT,
    "local/Zoo-A-2M-v1.0-F16",
)
ON_TEXTS = Parameter(
    "on",
    "Only gains on these kinds of text, separated by commas, such as `python` or `code`; without it, on any text.",
    _QUERY,
    "code",
)
LOCK_TOO = Parameter(
    "lock", "1 to include the lock, if the chimera can be made and no organ must be computed first.", _SWITCH, "0"
)
RANKED = Parameter("ranked", "1 for complete models only, by descending mean θ unless the query sorts.", _SWITCH, "1")
DIGEST = path_parameter(
    "digest",
    "The organ's digest, or at least its first 8 characters.",
    {"type": "string", "pattern": "^[0-9a-f]{8,64}$"},
    "aadb682ed7753b5f",
)
JOB = number_parameter("job")
NAMESPACE = path_parameter("namespace", "The model's namespace.", _NAME, "local")
NAME = path_parameter(
    "name", "The model's name, or `name@3` for a version; without one, the newest.", _VERSIONED, _EXAMPLE
)
FIRST = Parameter(
    "first", "A model, `namespace/name` or `namespace/name@version`.", _FULL_NAME, f"local/{_EXAMPLE}", required=True
)
SECOND = Parameter(
    "second", "The model that it is compared with.", _FULL_NAME, "local/Zoo-B-2M-v1.0-Q8_0", required=True
)
OF_MODEL = Parameter("model", "A model, to get only its family.", _FULL_NAME, "")
MODEL_DIGEST = Parameter(
    "digest",
    "The digest of a model, its file or its lock, or at least the first 8 characters, with or without `sha256:`.",
    {"type": "string", "pattern": "^(sha256:)?[0-9a-fA-F]{8,64}$"},
    "75ae85f27135e26b",
    required=True,
)
HEADER = path_parameter(
    "header",
    "The SHA-256 of a file's header, from its first byte to the last tensor info, as in locks.",
    {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "d517a753c035f3e0e718e07860437468c6bb95c4c74b68a7937177925b8e3bd3",
)
LOCK = path_parameter(
    "lock",
    "The digest of the chimera's lock, or at least its first 8 characters.",
    {"type": "string", "pattern": "^(sha256:)?[0-9a-fA-F]{8,64}$"},
    "75ae85f27135e26b",
)
BASE = Parameter(
    "base",
    "The model that receives organs: its name, or `sha256:` and a digest of its file.",
    MODEL_TEXT,
    "local/Zoo-A-2M-v1.0-F16",
    required=True,
)
DONOR = Parameter(
    "donor",
    "The model that gives organs, or an adapter.",
    MODEL_TEXT,
    "local/Zoo-B-2M-v1.0-Q8_0",
    required=True,
)
