"""Organs: search, counts, get by digest, look-up of many digests."""

from __future__ import annotations

from flask import g
from msgspec import structs

from organs.registry.catalog.queries.organs import known_organs, organ_detail
from organs.registry.digest import parse_digest
from organs.registry.endpoints import organs as endpoints
from organs.registry.entities.organ import Digests, FacetCounts, KnownOrgans, Organ, OrganPage
from organs.registry.search.counts import count_organs
from organs.registry.search.language import ORGANS, Query, parse_query
from organs.web.api.operation import serves
from organs.web.permissions import may_see_storage
from organs.web.responses import (
    reading,
    registry,
    searching,
    settings,
)


@serves(endpoints.organs)
def organs(q: str, limit: int, after: str | None, counts: bool) -> OrganPage:
    page, counted = searched_organs(parse_query(q, ORGANS), limit, after, counts=counts)
    return structs.replace(page, facets=counted)


def searched_organs(
    query: Query, limit: int, after: str | None, *, counts: bool = True
) -> tuple[OrganPage, FacetCounts | None]:
    """Return a page of the results of `query`, and the counts if they are wanted and need not too long."""
    limits = settings()
    page, counted = registry().search_page(
        query,
        limit=limit,
        after=after,
        counts=counts,
        search_seconds=limits.search_seconds,
        counts_seconds=limits.counts_seconds,
    )
    g.not_cached = counted is not None and counted.hurried  # the next request may be fast enough
    return page, counted


@serves(endpoints.organ)
def organ(digest: str) -> Organ:
    with searching() as session:
        return organ_detail(session, digest, visible=True, shows_storage=may_see_storage())


@serves(endpoints.lookup)
def lookup(body: Digests) -> KnownOrgans:
    with searching() as session:
        return known_organs(session, [parse_digest(text) for text in body.digests])


@serves(endpoints.facets)
def facets(q: str) -> FacetCounts:
    query = parse_query(q, ORGANS)
    limits = settings()
    with reading(limits.search_seconds) as session:
        counts = count_organs(session, query, limits.counts_seconds)
    g.not_cached = counts.hurried
    return counts
