"""Published models: versions, whose chimeras have their organs, and the lists of the hub's routes."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from sqlalchemy import Select, exists, func, select, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.queries.events import was_seen, yanked_by
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.queries.relatives import parents_of
from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Chimera, Contributor, Lineage, Model, ModelFile, Placement
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import Digest
from organs.registry.entities.plan import ACTS
from organs.registry.entities.published import (
    Descendant,
    DescendantPage,
    ModelVersion,
    ModelVersions,
    PublishedModel,
    VersionChanges,
)
from organs.registry.names import ModelName


def donors_of(chimera_id: int) -> Select[int | None]:
    """SELECT of the ids of the models, but for its base, that a chimera has organs or an adapter of; of others none."""
    return (
        select(Lineage.parent_model_id)
        .join(Chimera, Chimera.model_id == Lineage.child_model_id)
        .where(Chimera.model_id == chimera_id, Lineage.evidence == "recorded")
        .where(Lineage.parent_model_id.is_not(None), Lineage.parent_model_id != Chimera.base_model_id)
        .distinct()
    )


def is_reachable(session: Session, model_id: int) -> bool:
    """Whether the model may be shown."""
    found = select(Model.id).where(Model.id == model_id, Model.state.in_(REACHABLE_STATES))
    return session.scalar(found) is not None


def removed_with_digest(session: Session, digest: Digest) -> Model | None:
    """What is left of a model of exactly these bytes that was removed: its name and the reason; the newest of several.
    One that nobody had seen, because it was refused or withdrawn before, counts as one that never was.

    Ask it before the same bytes are published once more.
    """
    statement = select(Model).where(Model.digest == digest, Model.state == "removed", was_seen())
    return session.scalars(statement.order_by(Model.id.desc()).limit(1)).one_or_none()


def yanked_with_digest(session: Session, digest: Digest) -> Model | None:
    """A model of exactly these bytes that somebody else than its namespace's owner yanked; the newest of several."""
    statement = select(Model).where(Model.digest == digest, Model.state == "yanked").order_by(Model.id.desc())
    for model in session.scalars(statement).all():
        yanker = yanked_by(session, model.id)
        if yanker is not None and yanker.lower() != model.namespace.lower():
            return model
    return None


VERSIONS_MAX = 100
COMPARED_MAX = 100_000
"""Tensors of the versions on a page that are compared with each other. Older versions are listed without changes."""
OWN_STATES = (*REACHABLE_STATES, "quarantined")
"""Of models that their owner and administrators are told of."""


def published_model(session: Session, model: Model) -> PublishedModel:
    """Return what the owner of `model` may change, and its state."""
    declared = parents_of(session, [model.id], ("declared",))
    return PublishedModel(
        name=model.full_name,
        state=model.state,
        state_reason=model.state_reason,
        changed_at=model.changed_at,
        title=model.title,
        description=model.description,
        license=model.license,
        tags=tuple(json.loads(model.tags)),
        base=(declared[0].parent_text or None) if declared else None,
    )


def own_model(session: Session, name: ModelName, first: str = "visible") -> Model:
    """The model of that name, quarantined ones among them: the version that is asked for, else the newest in the state
    `first`, else the newest visible, yanked or other one. Raises NotFound, with the sentence that anybody is told."""
    statement = select(Model).where(
        Model.namespace == name.namespace, Model.name == name.name, Model.state.in_(OWN_STATES)
    )
    if name.version is not None:
        statement = statement.where(Model.version == name.version)
    order = (Model.state != first, Model.state != "visible", Model.state != "yanked", Model.version.desc())
    model = session.scalars(statement.order_by(*order).limit(1)).one_or_none()
    return model_by_name(session, name) if model is None else model


def versions(session: Session, model: Model, states: Sequence[str], limit: int) -> ModelVersions:
    """Return the newest `limit` versions of the name of `model` that are in one of `states`."""
    named = (Model.namespace == model.namespace, Model.name == model.name, Model.state.in_(states))
    # One more than is shown: the last is compared with it.
    rows = session.scalars(select(Model).where(*named).order_by(Model.version.desc()).limit(limit + 1)).all()
    left, items = COMPARED_MAX, []
    for one, before in zip_longest(rows[:limit], rows[1:]):
        left -= one.tensors
        compared = before is not None and left >= before.tensors
        items.append(_version(one, _changes(session, one, before) if compared else None))
    count = session.scalar(select(func.count()).select_from(Model).where(*named)) or 0
    return ModelVersions(items=tuple(items), left_out=count - len(items))


def descendants_page(session: Session, model: Model, limit: int, after: str | None = None) -> DescendantPage:
    """Return the next `limit` visible chimeras after the place `after` that were made of `model`. Raises BadQuery."""
    check_limit(limit)
    listed = f"descendants of {model.full_name}"
    made = select(Lineage.child_model_id).where(Lineage.parent_model_id == model.id, Lineage.evidence == "recorded")
    statement = (
        select(Model, Chimera, Contributor.name)
        .join(Chimera, Chimera.model_id == Model.id)
        .join(Contributor, Contributor.id == Model.contributor_id)
        .where(Model.id.in_(made), Model.state == "visible")
    )
    if after is not None:
        statement = statement.where(Model.id < parse_cursor(listed, after).id)
    rows = session.execute(statement.order_by(Model.id.desc()).limit(limit + 1)).all()
    shown = rows[:limit]
    relations = _relations(session, model, [child.id for child, _, _ in shown])
    items = tuple(_descendant(model, child, chimera, maker, relations[child.id]) for child, chimera, maker in shown)
    more = len(rows) > limit
    return DescendantPage(items=items, next=cursor_text(listed, Cursor(None, shown[-1][0].id)) if more else None)


def count_descendants(session: Session, model: Model) -> int:
    """How many visible chimeras were made of `model`, as their base or a donor."""
    made = select(Lineage.child_model_id).where(Lineage.parent_model_id == model.id, Lineage.evidence == "recorded")
    statement = select(func.count()).select_from(Chimera).join(Model, Model.id == Chimera.model_id)
    return session.scalar(statement.where(Model.id.in_(made), Model.state == "visible")) or 0


def _relations(session: Session, model: Model, children: Collection[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {child: [] for child in children}
    statement = select(Lineage.child_model_id, Lineage.relation).where(
        Lineage.parent_model_id == model.id, Lineage.evidence == "recorded", Lineage.child_model_id.in_(children)
    )
    for child, relation in session.execute(statement.order_by(Lineage.id)):
        found[child or 0].append(relation)
    return found


def _version(model: Model, changes: VersionChanges | None) -> ModelVersion:
    return ModelVersion(
        name=model.full_name,
        version=model.version,
        state=model.state,
        state_reason=model.state_reason,
        title=model.title,
        digest=Digest(model.digest),
        size_bytes=model.size_bytes,
        tensors=model.tensors,
        downloads=model.downloads,
        grafts=model.grafts,
        created_at=model.created_at,
        changes=changes,
    )


def _changes(session: Session, model: Model, before: Model) -> VersionChanges:
    own, old = (_organs_by_name(session, one.id) for one in (model, before))
    common = own.keys() & old.keys()
    return VersionChanges(
        since=before.full_name,
        size_bytes=model.size_bytes - before.size_bytes,
        changed=sum(1 for name in common if own[name] != old[name]),
        added=len(own) - len(common),
        gone=len(old) - len(common),
    )


def _descendant(model: Model, child: Model, chimera: Chimera, maker: str, relations: Sequence[str]) -> Descendant:
    acts, organs = _share(model, child, chimera, relations)
    return Descendant(
        name=child.full_name,
        title=child.title,
        lock_id=Digest(chimera.lock_id),
        contributor=maker,
        role="base" if chimera.base_model_id == model.id else "donor",
        acts=tuple(act for act in ACTS if act in acts),
        organs=organs,
        created_at=child.created_at,
    )


def _share(model: Model, child: Model, chimera: Chimera, relations: Sequence[str]) -> tuple[set[str], int]:
    """Return the acts by which `child` has organs of `model`, and how many; of an adapter, how many it changed."""
    origins = json.loads(chimera.origins)
    numbers = {label: number for number, label in enumerate(origins["parents"])}
    own = numbers.get(model.full_name)
    of_own = [acts for number, *acts in origins["parts"].values() if number == own]
    if chimera.base_model_id == model.id:
        others = len(origins["parts"]) - len(of_own)
        return {act for acts in of_own for act in acts}, child.tensors - others
    if not of_own and "adapter" in relations:
        return {"adapter"}, sum("adapter" in acts for _, *acts in origins["parts"].values())
    return {act for acts in of_own for act in acts} | set(relations), len(of_own)


def _organs_by_name(session: Session, model_id: int) -> dict[str, int]:
    return dict(session.execute(select(Placement.name, Placement.organ_id).where(Placement.model_id == model_id)).all())


LISTED_VERSIONS_MAX = 1000
"""The newest versions, which can be asked for as tags and by commit."""


def versions_of(session: Session, name: ModelName) -> Sequence[Model]:
    """The versions of a model: visible ones, newest first, then yanked ones."""
    statement = select(Model).where(
        Model.namespace == name.namespace, Model.name == name.name, Model.state.in_(REACHABLE_STATES)
    )
    return session.scalars(
        statement.order_by(Model.state != "visible", Model.version.desc()).limit(LISTED_VERSIONS_MAX)
    ).all()


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
