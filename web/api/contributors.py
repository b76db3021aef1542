"""Contributors, as everybody may see them."""

from __future__ import annotations

from organs.registry.catalog.queries.contributors import contributors_page, works_of
from organs.registry.present.accounts import contributor_values, contributors_values
from organs.registry.present.values import Values
from organs.web.answers import reading, settings
from organs.web.api.accounts import GROUP
from organs.web.api.blueprint import ROOT
from organs.web.api.operation import Parameter, operation
from organs.web.api.parameters import AFTER, LIMIT
from organs.web.asked import asked_after, asked_limit

CONTRIBUTOR = Parameter(
    "contributor",
    "The contributor's name, however it is capitalised.",
    {"type": "string", "maxLength": 96},
    "local",
    where="path",
    required=True,
)


@operation(
    "/contributors",
    group=GROUP,
    summary="Who has contributed",
    parameters=(LIMIT, AFTER),
    answer="Contributors",
    example=f"{ROOT}/contributors?limit=1",
)
def contributors() -> Values:
    """Contributors with visible models, the newest contributor first, and what their models are used for."""
    limit, after = asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        return contributors_values(contributors_page(session, limit, after))


@operation(
    "/contributors/{contributor}",
    group=GROUP,
    summary="One contributor",
    parameters=(CONTRIBUTOR,),
    answer="Contributor",
    refusals=(404,),
    example=f"{ROOT}/contributors/local",
)
def contributor(contributor: str) -> Values:
    """Since when, and what their models are used for. Who has no visible model counts as absent."""
    with reading(settings().search_seconds) as session:
        return contributor_values(works_of(session, contributor))
