"""Tensors: search, counts, get by digest, look-up of many digests."""

from __future__ import annotations

from typing import Annotated

from organs.registry.endpoints.declaration import Group
from organs.registry.endpoints.parameters import LIMIT_DEFAULT, After, Limit, OrganDigest, OrganQuery, note
from organs.registry.entities.organ import Digests, FacetCounts, KnownOrgans, Organ, OrganPage

GROUP = Group("Tensors", "Search, count and look up the tensors of models.")
Counted = Annotated[bool, note("1 to include counts for the whole search.", 1)]
EXAMPLE_DIGESTS = '{"digests": ["aadb682ed7753b5fec72a33fc389862b81da701ff48d253886e5f8e37c7ca6d3"]}'


@GROUP.get("/organs", "Search tensors", example="q=type:organ+sort:-spectral&limit=2", refusals=(404, 409))
def organs(
    q: OrganQuery = "", limit: Limit = LIMIT_DEFAULT, after: After | None = None, counts: Counted = False
) -> OrganPage:
    """Return the tensors that match a query, with their places in models; sorted by descending θ unless the query
    sorts. 404 and 409 are for a `like:` that matches no tensor, or several.
    """


@GROUP.get("/organs/{digest}", "Get a tensor", refusals=(404, 409))
def organ(digest: OrganDigest) -> Organ:
    """Return the measurements of a tensor, and the models that contain it. 409 when several digests have this
    beginning."""


@GROUP.ask("/organs/lookup", "Look up digests", example=EXAMPLE_DIGESTS)
def lookup(body: Digests) -> KnownOrgans:
    """Return which of up to 1,000 digests the registry has, so that a client sends only the others. Tensors that the
    user may not see count as absent.
    """


@GROUP.get("/facets", "Count the results of a search", example="q=type:organ", refusals=(404, 409))
def facets(q: OrganQuery = "") -> FacetCounts:
    """Return counts by type, slot, dtype, architecture, license and interval of θ. `like:` and `unique:` have no
    effect.
    """
