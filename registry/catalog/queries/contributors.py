"""Contributors as everybody sees them: those with visible models, and what these are used for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Chimera, Contributor, Model
from organs.registry.errors import NoSuchContributor

MODELS_MAX = 100
"""Of one contributor that are listed."""
_LIST = "contributors"
"""What places in the list are bound to."""


@dataclass(frozen=True, slots=True)
class Works:
    """A contributor with the visible models in numbers, each version counted by itself."""

    contributor: Contributor
    models: int
    """Chimeras among them."""
    chimeras: int
    """Composed here."""
    downloads: int
    grafts: int
    """Visible chimeras that have organs of each, summed over the models."""


@dataclass(frozen=True, slots=True)
class WorksPage:
    """One page of contributors."""

    items: tuple[Works, ...]
    next: str | None


def contributors_page(session: Session, limit: int, after: str | None = None) -> WorksPage:
    """The next `limit` contributors behind `after` who have visible models, the newest contributor first.

    Who has none is nobody's business but an administrator's. Raises BadQuery.
    """
    check_limit(limit)
    seen = select(Model.id).where(Model.contributor_id == Contributor.id, Model.state == "visible")
    statement = select(Contributor).where(seen.exists())
    if after is not None:
        statement = statement.where(Contributor.id < parse_cursor(_LIST, after).id)
    rows = session.scalars(statement.order_by(Contributor.id.desc()).limit(limit + 1)).all()
    shown = rows[:limit]
    more = len(rows) > limit
    return WorksPage(tuple(_works(session, shown)), cursor_text(_LIST, Cursor(None, shown[-1].id)) if more else None)


def works_of(session: Session, name: str) -> Works:
    """The contributor of that name, however capitalised; raises NotFound, in one sentence for who is not there and for
    who has no visible model."""
    found = contributor_by_name(session, name)
    works = _works(session, [found])[0]
    if not works.models:
        raise NoSuchContributor(f"there is no contributor {name[:96]!r}")
    return works


def visible_models_of(session: Session, contributor_id: int) -> Sequence[Model]:
    """A contributor's visible models, newest first, MODELS_MAX at most."""
    statement = select(Model).where(Model.contributor_id == contributor_id, Model.state == "visible")
    return session.scalars(statement.order_by(Model.id.desc()).limit(MODELS_MAX)).all()


def _works(session: Session, contributors: Sequence[Contributor]) -> list[Works]:
    """In the same order."""
    numbers = _numbers(session, [one.id for one in contributors])
    return [Works(one, *numbers.get(one.id, (0, 0, 0, 0))) for one in contributors]


def _numbers(session: Session, ids: Collection[int]) -> dict[int, tuple[int, int, int, int]]:
    statement = (
        select(
            Model.contributor_id,
            func.count(Model.id),
            func.count(Chimera.model_id),
            func.sum(Model.downloads),
            func.sum(Model.grafts),
        )
        .outerjoin(Chimera, Chimera.model_id == Model.id)
        .where(Model.contributor_id.in_(ids), Model.state == "visible")
        .group_by(Model.contributor_id)
    )
    return {
        contributor_id: (models, chimeras, downloads, grafts)
        for contributor_id, models, chimeras, downloads, grafts in session.execute(statement)
    }


def contributor_name(session: Session, contributor_id: int) -> str:
    """The name of the contributor with that id."""
    return session.scalars(select(Contributor.name).where(Contributor.id == contributor_id)).one()
