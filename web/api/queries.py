"""Suggestions while a query is typed, and the saved queries of the account of the sent token."""

from __future__ import annotations

from organs.registry.catalog.queries.accounts import saved_queries_of
from organs.registry.catalog.register.accounts import delete_saved_query, store_query
from organs.registry.endpoints import queries as endpoints
from organs.registry.entities.query import SavedQueries, SavedQuery, SavedQueryRequest, Suggestions
from organs.registry.search.language import VOCABULARIES, parse_query
from organs.registry.search.suggestions import suggestions as suggested
from organs.web.api.operation import serves
from organs.web.auth import ANY, need
from organs.web.permissions import user_name
from organs.web.responses import registry, searching


@serves(endpoints.suggestions)
def suggestions(q: str, of: str, limit: int) -> Suggestions:
    with searching() as session:
        return suggested(session, q, of, limit)


@serves(endpoints.saved_queries)
def saved_queries() -> SavedQueries:
    with searching() as session:
        return saved_queries_of(session, need(ANY).name or "")


@serves(endpoints.save_query)
def save_query(kind: str, saved: str, body: SavedQueryRequest) -> SavedQuery:
    parse_query(body.query, VOCABULARIES[kind])
    with registry().catalog.writing() as session:
        return store_query(session, user_name(), kind, saved, body.query)


@serves(endpoints.delete_query)
def delete_query(kind: str, saved: str) -> SavedQuery:
    with registry().catalog.writing() as session:
        return delete_saved_query(session, user_name(), kind, saved)
