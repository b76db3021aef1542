"""Suggestions while a query or a name is typed, and queries that an account has saved."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.entities.base import Entity, Items, RequestBody, Text, Time, Word

TYPED_MAX_LENGTH = 200
LISTS = ("models", "organs")
"""The lists that a query can be for."""

ANYTHING, MODEL_NAMES = "all", "names"
SUGGESTED = (ANYTHING, MODEL_NAMES, *LISTS)
"""What may be typed: a search for anything, the name of a model, or a query for one of the lists."""
SUGGESTIONS_DEFAULT, SUGGESTIONS_MAX = 8, 20

QueryText = Annotated[Text, Meta(description="The query, as it was saved.")]
SavedName = Annotated[Word, Meta(description="The name of the query: letters, digits, `.`, `_` and `-`.", min_length=1)]


class Suggestion(Entity):
    """A text that may be meant."""

    kind: Annotated[
        Word,
        Meta(
            description="`model`, `tag`, `architecture`, `field` (a word of the query language that takes a value) or "
            "`value`."
        ),
    ]
    text: Annotated[Text, Meta(description="What replaces the text that was typed.")]
    meaning: Annotated[Text, Meta(description="A short explanation; may be empty.")]


class Suggestions(Entity):
    """The suggestions for a text, the best first."""

    items: Items[Suggestion]


class SavedQuery(Entity):
    """A query that an account has saved under a name."""

    name: SavedName
    kind: Annotated[Word, Meta(description="`models` or `organs`: the list that it is for.")]
    query: QueryText
    created_at: Time


class SavedQueries(Entity):
    """The saved queries of an account, by name."""

    items: Items[SavedQuery]


class SavedQueryRequest(RequestBody):
    """A query to save."""

    query: Annotated[Text, Meta(description="The query. It must be valid for the list.")]
