"""Organs: search, counts, get by digest, look-up of many digests."""

from __future__ import annotations

from flask import g
from msgspec import structs

from organs.registry.catalog.queries.organs import known_organs, organ_detail
from organs.registry.digest import Digest, parse_digest
from organs.registry.entities.organ import Digests, FacetCounts, KnownOrgans, Organ, OrganPage
from organs.registry.errors import BadDigest, BadRequest
from organs.registry.search.counts import count_organs
from organs.registry.search.language import ORGANS
from organs.web.api.operation import AFTER, COUNTS, DIGEST, LIMIT, ORGAN_QUERY, ROOT, json_body, operation
from organs.web.params import requested_after, requested_limit, requested_query, requested_switch
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
    "/organs",
    group=GROUP,
    summary="Search organs",
    parameters=(ORGAN_QUERY, LIMIT, AFTER, COUNTS),
    refusals=(404, 409),
    example=f"{ROOT}/organs?q=type:organ+sort:-spectral&limit=2",
)
def organs() -> OrganPage:
    """Return the organs that match a query, with their places in models; sorted by descending θ unless the query sorts.
    404 and 409 are for a `like:` that matches no organ, or several.
    """
    query, limit, after = requested_query(ORGANS), requested_limit(), requested_after()
    counted = requested_switch("counts")
    limits = settings()
    page, counts = registry().search_page(
        query,
        limit=limit,
        after=after,
        counts=counted,
        search_seconds=limits.search_seconds,
        counts_seconds=limits.counts_seconds,
    )
    g.not_cached = counts is not None and counts.hurried
    return structs.replace(page, facets=counts)


@operation(
    "/organs/{digest}",
    group=GROUP,
    summary="Get an organ",
    parameters=(DIGEST,),
    refusals=(404, 409),
)
def organ(digest: str) -> Organ:
    """Return the measurements of an organ, and the models that contain it. 409 when several digests have this
    beginning."""
    with searching() as session:
        return organ_detail(session, digest, visible=True, shows_storage=may_see_storage())


@operation(
    "/organs/lookup",
    group=GROUP,
    summary="Look up digests",
    body=Digests,
    example='{"digests": ["aadb682ed7753b5fec72a33fc389862b81da701ff48d253886e5f8e37c7ca6d3"]}',
)
def lookup() -> KnownOrgans:
    """Return which of up to 1,000 digests the registry has, so that a client sends only the others. Organs that the
    user may not see count as absent.
    """
    digests = requested_digests(json_body(("digests",)).get("digests"))
    with searching() as session:
        return known_organs(session, digests)


@operation(
    "/facets",
    group=GROUP,
    summary="Count the results of a search",
    parameters=(ORGAN_QUERY,),
    refusals=(404, 409),
    example=f"{ROOT}/facets?q=type:organ",
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


def requested_digests(value: object) -> list[Digest]:
    """Return the requested digests. Raises BadRequest with all that are not valid."""
    if not isinstance(value, list) or not value:
        raise BadRequest("digests", f"digests must be a list of 1 to {DIGESTS_MAX:,} texts.")
    if len(value) > DIGESTS_MAX:
        raise BadRequest("digests", f"digests has {len(value):,} entries; at most {DIGESTS_MAX:,} are allowed.")
    digests, errors = [], []
    for place, text in enumerate(value):
        try:
            digests.append(parse_digest(text) if isinstance(text, str) else _no_text())
        except BadDigest as error:
            errors.append((f"digests[{place}]", f"{error}."))
    if errors:
        raise BadRequest(*errors[0], more=errors[1:])
    return digests


def _no_text() -> Digest:
    raise BadDigest("a digest is a text of 64 hexadecimal characters")
