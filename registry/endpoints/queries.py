"""Queries: suggestions while they are typed, and queries that an account has saved."""

from __future__ import annotations

from typing import Annotated

from organs.registry.endpoints.declaration import ANY, Group
from organs.registry.endpoints.parameters import choice_note, limit_note, note
from organs.registry.entities.query import (
    LISTS,
    SUGGESTED,
    SUGGESTIONS_DEFAULT,
    SUGGESTIONS_MAX,
    TYPED_MAX_LENGTH,
    SavedQueries,
    SavedQuery,
    SavedQueryRequest,
    Suggestions,
)
from organs.registry.names import QUERY_NAME_MAX_LENGTH, QUERY_NAME_PATTERN

GROUP = Group("Queries", "Suggestions while a query is typed, and saved queries.")
_EXAMPLE_BODY = '{"query": "kind:model params<10G"}'

Typed = Annotated[
    str,
    note("The text that was typed; of a query, only the word at the cursor.", "zoo", max_length=TYPED_MAX_LENGTH),
]
Suggested = Annotated[
    str,
    choice_note(
        "What is typed: `names` is the name of a model, `all` a search for anything, `models` and `organs` a query for "
        "these.",
        SUGGESTED,
        "organs",
    ),
]
SuggestionLimit = Annotated[int, limit_note("Suggestions", SUGGESTIONS_MAX)]
QueriedList = Annotated[str, choice_note("The list that the query is for.", LISTS, "models")]
QueryName = Annotated[
    str,
    note("The name of the saved query.", "small", pattern=f"^{QUERY_NAME_PATTERN}$", max_length=QUERY_NAME_MAX_LENGTH),
]


@GROUP.get("/suggestions", "Suggest what is meant", example="q=zoo&limit=2")
def suggestions(q: Typed = "", of: Suggested = "all", limit: SuggestionLimit = SUGGESTIONS_DEFAULT) -> Suggestions:
    """Return names of visible models, tags, architectures, and fields and values of the query language that begin with
    a text; a model is also found by the other words of its name and its title.
    """


@GROUP.get("/saved-queries", "List your saved queries", scope=ANY)
def saved_queries() -> SavedQueries:
    """Return the queries that the account of the token has saved, by name."""


@GROUP.write("put", "/saved-queries/{kind}/{saved}", "Save a query", example=_EXAMPLE_BODY, scope=ANY)
def save_query(kind: QueriedList, saved: QueryName, body: SavedQueryRequest) -> SavedQuery:
    """Save a query of the account of the token under a name, in the place of a query of this name. An account can have
    100 queries.
    """


@GROUP.write("delete", "/saved-queries/{kind}/{saved}", "Delete a saved query", scope=ANY, refusals=(404,))
def delete_query(kind: QueriedList, saved: QueryName) -> SavedQuery:
    """Delete a saved query of the account of the token, and return it."""
