"""Queries of downloads and of the hub's routes: versions of a model, lists of repositories, names of organs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import exists, func, select, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Model, ModelFile, Placement
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.names import ModelName

VERSIONS_MAX = 1000
"""The newest versions, which can be asked for as tags and by commit."""


def versions_of(session: Session, name: ModelName) -> Sequence[Model]:
    """The versions of a model: visible ones, newest first, then yanked ones."""
    statement = select(Model).where(
        Model.namespace == name.namespace, Model.name == name.name, Model.state.in_(REACHABLE_STATES)
    )
    return session.scalars(statement.order_by(Model.state != "visible", Model.version.desc()).limit(VERSIONS_MAX)).all()


@dataclass(frozen=True, slots=True)
class RepositoryQuery:
    """Which models a list of repositories has. Empty fields exclude nothing."""

    search: str = ""
    """Text that stands in `namespace/name`, in upper or lower case."""
    author: str = ""
    """The namespace, in upper or lower case."""
    architecture: str = ""
    license: str = ""
    by_downloads: bool = False
    """Sort by downloads; otherwise the newest models come first."""

    def __str__(self) -> str:
        return "\n".join((self.search, self.author, self.architecture, self.license, str(self.by_downloads)))


def repositories_page(
    session: Session, query: RepositoryQuery, limit: int, after: str | None = None
) -> tuple[Sequence[Model], str | None]:
    """Return the newest visible version of each model that `query` finds, and the `after` of the next page if any.

    Raises BadQuery for a limit outside of 1 to PAGE_MAX and for an `after` that is not one of this query.
    """
    check_limit(limit)
    newer = aliased(Model)
    is_newest = ~exists().where(
        newer.namespace == Model.namespace,
        newer.name == Model.name,
        newer.version > Model.version,
        newer.state == "visible",
    )
    statement = select(Model).where(Model.state == "visible", is_newest)
    if query.search:
        full_name = func.lower(Model.namespace + "/" + Model.name)
        statement = statement.where(full_name.contains(query.search.lower(), autoescape=True))
    if query.author:
        statement = statement.where(func.lower(Model.namespace) == query.author.lower())
    if query.architecture:
        statement = statement.where(Model.architecture == query.architecture)
    if query.license:
        statement = statement.where(func.lower(Model.license) == query.license.lower())
    if after is not None:
        place = parse_cursor(str(query), after, missing=False)
        behind = tuple_(Model.downloads, Model.id) < tuple_(place.value, place.id)
        statement = statement.where(behind if query.by_downloads else Model.id < place.id)
    order = (Model.downloads.desc(),) if query.by_downloads else ()
    rows = session.scalars(statement.order_by(*order, Model.id.desc()).limit(limit + 1)).all()
    shown = rows[:limit]
    if len(rows) == len(shown):
        return shown, None
    last = shown[-1]
    return shown, cursor_text(str(query), Cursor(last.downloads if query.by_downloads else last.id, last.id))


def file_names_of(session: Session, model_ids: Collection[int]) -> dict[int, list[str]]:
    """Return the names of the files of each model, in their order."""
    names: dict[int, list[str]] = {model_id: [] for model_id in model_ids}
    statement = select(ModelFile.model_id, ModelFile.name).where(ModelFile.model_id.in_(model_ids))
    for model_id, name in session.execute(statement.order_by(ModelFile.model_id, ModelFile.position)):
        names[model_id].append(name)
    return names


def name_of_organ(session: Session, organ_id: int, name: str | None) -> str | None:
    """The tensor name of the oldest place of the organ, or `name` if it has a place of that name.

    Places in models that nobody may see do not count.
    """
    statement = select(Placement.name).join(Model, Model.id == Placement.model_id)
    statement = statement.where(Placement.organ_id == organ_id, Model.state.in_(REACHABLE_STATES))
    if name is not None:
        statement = statement.where(Placement.name == name)
    return session.scalars(statement.order_by(Placement.id).limit(1)).one_or_none()
