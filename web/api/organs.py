"""Organs: search, counts, get by digest, look-up of many digests."""

from __future__ import annotations

from flask import g
from msgspec import structs

from organs.registry.catalog.queries.organs import known_organs, organ_detail
from organs.registry.digest import Digest, parse_digest
from organs.registry.entities.organ import Digests, FacetCounts, KnownOrgans, Organ, OrganPage
from organs.registry.errors import BadDigest, BadRequest
from organs.registry.search.counts import count_organs
from organs.registry.search.language import ORGANS, Query
from organs.web.api.operation import ROOT, json_body, operation
from organs.web.params import (
    AFTER,
    COUNTS,
    DIGEST,
    LIMIT,
    ORGAN_QUERY,
    requested_page,
    requested_query,
    requested_switch,
)
from organs.web.permissions import may_see_storage
from organs.web.responses import (
    reading,
    registry,
    searching,
    settings,
)

GROUP = "Organs"
DIGESTS_MAX = 1000


@operation(
    GROUP,
    "/organs",
    "Search organs",
    ORGAN_QUERY,
    LIMIT,
    AFTER,
    COUNTS,
    example=f"{ROOT}/organs?q=type:organ+sort:-spectral&limit=2",
    refusals=(404, 409),
)
def organs() -> OrganPage:
    """Return the organs that match a query, with their places in models; sorted by descending θ unless the query sorts.
    404 and 409 are for a `like:` that matches no organ, or several.
    """
    page, counts = searched_organs(requested_query(ORGANS), counts=requested_switch("counts"))
    return structs.replace(page, facets=counts)


def searched_organs(query: Query, *, counts: bool = True) -> tuple[OrganPage, FacetCounts | None]:
    """Return the requested page of the results of `query`, and the counts if they are wanted and need not too long."""
    limits, (limit, after) = settings(), requested_page()
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


@operation(GROUP, "/organs/{digest}", "Get an organ", DIGEST, refusals=(404, 409))
def organ(digest: str) -> Organ:
    """Return the measurements of an organ, and the models that contain it. 409 when several digests have this
    beginning."""
    with searching() as session:
        return organ_detail(session, digest, visible=True, shows_storage=may_see_storage())


@operation(
    GROUP,
    "/organs/lookup",
    "Look up digests",
    body=Digests,
    example='{"digests": ["aadb682ed7753b5fec72a33fc389862b81da701ff48d253886e5f8e37c7ca6d3"]}',
)
def lookup() -> KnownOrgans:
    """Return which of up to 1,000 digests the registry has, so that a client sends only the others. Organs that the
    user may not see count as absent.
    """
    digests = requested_digests()
    with searching() as session:
        return known_organs(session, digests)


@operation(
    GROUP,
    "/facets",
    "Count the results of a search",
    ORGAN_QUERY,
    example=f"{ROOT}/facets?q=type:organ",
    refusals=(404, 409),
)
def facets() -> FacetCounts:
    """Return counts by type, slot, dtype, architecture, license and interval of θ. `like:` and `unique:` have no
    effect.
    """
    query = requested_query(ORGANS)
    limits = settings()
    with reading(limits.search_seconds) as session:
        counts = count_organs(session, query, limits.counts_seconds)
    g.not_cached = counts.hurried
    return counts


def requested_digests() -> list[Digest]:
    """Return the digests in the body. Raises BadRequest with all that are not valid."""
    value = json_body(Digests).get("digests")
    if not isinstance(value, list) or not value:
        raise BadRequest("digests", f"digests must be a list of 1 to {DIGESTS_MAX:,} texts.")
    if len(value) > DIGESTS_MAX:
        raise BadRequest("digests", f"digests has {len(value):,} entries; at most {DIGESTS_MAX:,} are allowed.")
    digests, errors = [], []
    for place, text in enumerate(value):
        try:
            if not isinstance(text, str):
                raise BadDigest("a digest is a text of 64 hexadecimal characters")
            digests.append(parse_digest(text))
        except BadDigest as error:
            errors.append((f"digests[{place}]", f"{error}."))
    if errors:
        raise BadRequest(*errors[0], more=errors[1:])
    return digests
