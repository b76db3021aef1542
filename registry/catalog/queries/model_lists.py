"""Models as lines of lists: rankings, versions, descendants, quantisations, repositories."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType

from sqlalchemy import ColumnElement, Select, func, or_, select, true, tuple_, union_all
from sqlalchemy.orm import Session

from organs.registry.catalog.cursor import check_limit, next_cursor, parse_cursor
from organs.registry.catalog.queries.chimeras import is_composed, stored_origins
from organs.registry.catalog.queries.model_contents import TypeFigures, caution_of_types, organs_by_name, type_figures
from organs.registry.catalog.queries.model_names import is_newest
from organs.registry.catalog.queries.relatives import parents_of
from organs.registry.catalog.rows import count, entity_of, is_named, page_of_rows, scalars_among
from organs.registry.catalog.tables import (
    ChimeraRow,
    ContributorRow,
    Lineage,
    ModelRow,
)
from organs.registry.catalog.vocabulary import CHIMERA, PARTIAL
from organs.registry.digest import Digest
from organs.registry.entities.gain import MeasuredGain
from organs.registry.entities.model import ModelSummary
from organs.registry.entities.plan import ACTS, ADAPTER
from organs.registry.entities.published import (
    Descendant,
    DescendantPage,
    ModelVersion,
    ModelVersions,
    PublishedModel,
    VersionChanges,
)
from organs.registry.kinds import WEIGHT_KINDS
from organs.registry.names import (
    ModelName,
    size_in_tag,
)


def visible_models(session: Session, limit: int = 1000) -> Sequence[ModelRow]:
    """Return visible models, newest first."""
    statement = (
        select(ModelRow).where(ModelRow.state == "visible").order_by(ModelRow.created_at.desc(), ModelRow.id.desc())
    )
    return session.scalars(statement.limit(limit)).all()


def composed_among(session: Session, model_ids: Collection[int]) -> frozenset[int]:
    """Return the `model_ids` that were composed in this registry."""
    return frozenset(scalars_among(session, select(ChimeraRow.model_id), ChimeraRow.model_id, model_ids))


def model_summaries(
    session: Session,
    models: Sequence[ModelRow],
    *,
    likeness: Mapping[int, float | None] = MappingProxyType({}),
    changes: Mapping[int, float] = MappingProxyType({}),
    gains: Mapping[int, MeasuredGain] = MappingProxyType({}),
) -> tuple[ModelSummary, ...]:
    """Return `models` as lines of a list, with the values that are known by their ids."""
    ids = [model.id for model in models]
    composed = composed_among(session, ids)
    figures: dict[int, list[TypeFigures]] = {}
    for row in type_figures(session, ids):
        figures.setdefault(row.model_id, []).append(row)
    return tuple(
        entity_of(
            ModelSummary,
            model,
            kind=model_kind(model, composed=model.id in composed),
            theta_caution=caution_of_types(figures.get(model.id, ())),
            likeness=likeness.get(model.id),
            change=changes.get(model.id),
            gain=gains.get(model.id),
        )
        for model in models
    )


def model_kind(model: ModelRow, *, composed: bool) -> str:
    """Return the kind of a model in the query language."""
    if not model.complete:
        return PARTIAL
    return CHIMERA if composed else model.kind


def ranked_models(session: Session, limit: int = 1000, *, chimeras: bool = False) -> Sequence[ModelRow]:
    """Return visible, complete models by falling mean θ, then by id; models without θ come last.

    Models that were composed here are left out, unless `chimeras` is true.
    """
    statement = select(ModelRow).where(ModelRow.state == "visible", ModelRow.complete, ModelRow.kind == "model")
    if not chimeras:
        statement = statement.where(~is_composed())
    order = (ModelRow.mean_theta.is_(None), ModelRow.mean_theta.desc(), ModelRow.id)
    return session.scalars(statement.order_by(*order).limit(limit)).all()


def count_models(session: Session) -> int:
    """Return the number of visible models."""
    return count(session, ModelRow, ModelRow.state == "visible")


def donors_of(chimera_id: int) -> Select[int | None]:
    """Return a SELECT of the ids of the models, without the base, from which a chimera has organs or adapters."""
    return (
        select(Lineage.parent_model_id)
        .join(ChimeraRow, ChimeraRow.model_id == Lineage.child_model_id)
        .where(ChimeraRow.model_id == chimera_id, Lineage.evidence == "recorded")
        .where(Lineage.parent_model_id.is_not(None), Lineage.parent_model_id != ChimeraRow.base_model_id)
        .distinct()
    )


VERSIONS_MAX = 100

COMPARED_MAX = 100_000
"""The most tensors that are compared for the versions on a page. Older versions are listed without changes."""


def published_model(session: Session, model: ModelRow) -> PublishedModel:
    """Return the state of `model`, and the values that its owner may change."""
    return entity_of(PublishedModel, model, base=declared_base(session, model))


def declared_base(session: Session, model: ModelRow) -> str | None:
    """Return the text of the first parent that `model` declares; None if it declares none."""
    declared = parents_of(session, [model.id], ("declared",))
    return (declared[0].parent_text or None) if declared else None


def versions(session: Session, model: ModelRow, states: Sequence[str], limit: int) -> ModelVersions:
    """Return the newest `limit` versions of the name of `model` in one of `states`."""
    same_name = (is_named(ModelName(model.namespace, model.name)), ModelRow.state.in_(states))
    # One row more than `limit` is read, because the last version is compared with it.
    rows = session.scalars(select(ModelRow).where(*same_name).order_by(ModelRow.version.desc()).limit(limit + 1)).all()
    budget, items = COMPARED_MAX, []
    for version, previous in zip_longest(rows[:limit], rows[1:]):
        budget -= version.tensors
        changes = None
        if previous is not None and budget >= previous.tensors:
            new, old = (organs_by_name(session, row.id) for row in (version, previous))
            common = new.keys() & old.keys()
            changes = VersionChanges(
                since=previous.full_name,
                size_bytes=version.size_bytes - previous.size_bytes,
                changed=sum(1 for name in common if new[name] != old[name]),
                added=len(new) - len(common),
                gone=len(old) - len(common),
            )
        items.append(entity_of(ModelVersion, version, changes=changes))
    return ModelVersions(items=tuple(items), left_out=count(session, ModelRow, *same_name) - len(items))


def descendants_page(session: Session, model: ModelRow, limit: int, after: str | None = None) -> DescendantPage:
    """Return the next `limit` visible chimeras of `model` after the cursor `after`. Raises BadQuery."""
    query = f"descendants of {model.full_name}"
    statement = (
        descendants_of(model.id)
        .add_columns(ChimeraRow, ContributorRow.name)
        .join(ContributorRow, ContributorRow.id == ModelRow.contributor_id)
    )
    rows, following = page_of_rows(session, statement, query, limit, after)
    ids = [child.id for child, _, _ in rows]
    relations: dict[int | None, list[str]] = {child_id: [] for child_id in ids}
    recorded = select(Lineage.child_model_id, Lineage.relation).where(*_is_recorded_child_of(model.id))
    for child_id, relation in session.execute(recorded.where(Lineage.child_model_id.in_(ids)).order_by(Lineage.id)):
        relations[child_id].append(relation)
    items = []
    for child, chimera, contributor in rows:
        acts, organs = _share(model, child, chimera, relations[child.id])
        role = "base" if chimera.base_model_id == model.id else "donor"
        ordered = tuple(act for act in ACTS if act in acts)
        values = {"contributor": contributor, "role": role, "acts": ordered, "organs": organs}
        items.append(entity_of(Descendant, child, lock_id=Digest(chimera.lock_id), **values))
    return DescendantPage(items=tuple(items), next=following)


def descendants_of(model_id: int) -> Select[ModelRow]:
    """Return a SELECT of the visible chimeras with a model as base or donor."""
    children = select(Lineage.child_model_id).where(*_is_recorded_child_of(model_id))
    visible = select(ModelRow).join(ChimeraRow, ChimeraRow.model_id == ModelRow.id)
    return visible.where(ModelRow.id.in_(children), ModelRow.state == "visible")


def _is_recorded_child_of(model_id: int) -> tuple[ColumnElement[bool], ...]:
    return Lineage.parent_model_id == model_id, Lineage.evidence == "recorded"


def _share(model: ModelRow, child: ModelRow, chimera: ChimeraRow, relations: Sequence[str]) -> tuple[set[str], int]:
    """Return the acts by which `child` got organs of `model`, and the number of these organs.

    For an adapter, it is the number of organs that the adapter changed.
    """
    origins = stored_origins(chimera)
    numbers = {label: number for number, label in enumerate(origins.parents)}
    parts = origins.by_tensor().values()
    model_number = numbers.get(model.full_name)
    own_acts = [acts for number, acts in parts if number == model_number]
    if chimera.base_model_id == model.id:
        from_others = len(parts) - len(own_acts)
        return {act for acts in own_acts for act in acts}, child.tensors - from_others
    if not own_acts and ADAPTER in relations:
        return {ADAPTER}, sum(ADAPTER in acts for _, acts in parts)
    return {act for acts in own_acts for act in acts} | set(relations), len(own_acts)


QUANTISATIONS_MAX = 200
"""The most models that are read to find the quantisations of one model."""

PROJECTOR = "mmproj"
"""The word in the names of the vision and audio parts of a model, which have files of their own."""


def quantisations_of(session: Session, name: ModelName) -> list[ModelRow]:
    """Return the newest visible version of each quantisation of the model `name`, by name; its projectors come last.

    They are whole models whose names are `name`, a separator and a quantisation. A projector is such a model with
    `mmproj` before or after `name`; it may have no quantisation. Sizes follow the quantisations with a name, the
    shortest first: llama.cpp takes the first file with the tag anywhere in its name, and `2.5GB` is in `12.5GB`.
    """
    stems = (name.name, f"{PROJECTOR}-{name.name}", f"{name.name}-{PROJECTOR}")
    has_quantisation = or_(ModelRow.stem != name.name, ModelRow.quantisation.is_not(None))
    statement = select(ModelRow).where(ModelRow.namespace == name.namespace, ModelRow.stem.in_(stems), has_quantisation)
    statement = statement.where(
        ModelRow.state == "visible", ModelRow.complete, ModelRow.kind.in_(WEIGHT_KINDS), is_newest()
    )
    statement = statement.where(ModelRow.unassemblable == ())
    rows = session.scalars(statement.order_by(ModelRow.name).limit(QUANTISATIONS_MAX)).all()

    def place(row: ModelRow) -> tuple[bool, int, str]:
        is_size = row.quantisation is not None and size_in_tag(row.quantisation) is not None
        return is_projector(row), len(row.name) if is_size else 0, row.name

    return sorted(rows, key=place)


def is_projector(model: ModelRow) -> bool:
    """Return whether a model is called the vision or audio part of another model."""
    return model.stem.startswith(f"{PROJECTOR}-") or model.stem.endswith(f"-{PROJECTOR}")


@dataclass(frozen=True, slots=True)
class RepositoryQuery:
    """The filters and the order of a list of repositories. Empty values filter nothing."""

    search: str = ""
    """A part of `namespace/name`, in upper or lower case."""
    author: str = ""
    """The namespace, in upper or lower case."""
    architecture: str = ""
    license: str = ""
    by_downloads: bool = False
    """Sort by downloads; otherwise the newest models come first."""

    def __str__(self) -> str:
        return "\n".join((self.search, self.author, self.architecture, self.license, str(self.by_downloads)))


def repositories_page(
    session: Session, query: RepositoryQuery, limit: int, after: str | None
) -> tuple[Sequence[ModelRow], str | None]:
    """Return the newest visible version of each model that matches `query`, and the cursor of the next page.

    Raises BadQuery for a limit outside of 1 to PAGE_MAX, and for a cursor of another query.
    """
    statement = select(ModelRow).where(ModelRow.state == "visible", is_newest())
    if query.search:
        full_name = func.lower(ModelRow.namespace + "/" + ModelRow.name)
        statement = statement.where(full_name.contains(query.search.lower(), autoescape=True))
    if query.author:
        statement = statement.where(func.lower(ModelRow.namespace) == query.author.lower())
    if query.architecture:
        statement = statement.where(ModelRow.architecture == query.architecture)
    if query.license:
        statement = statement.where(func.lower(ModelRow.license) == query.license.lower())
    if not query.by_downloads:
        page, following = page_of_rows(session, statement, str(query), limit, after)
        return [row for (row,) in page], following
    check_limit(limit)
    if after is not None:
        cursor = parse_cursor(str(query), after, missing=False)
        statement = statement.where(tuple_(ModelRow.downloads, ModelRow.id) < tuple_(cursor.value, cursor.id))
    ordered = statement.order_by(ModelRow.downloads.desc(), ModelRow.id.desc())
    rows = session.scalars(ordered.limit(limit + 1)).all()
    return rows[:limit], next_cursor(str(query), [(row.downloads, row.id) for row in rows], limit)


def known_bases(session: Session, limit: int) -> tuple[ModelSummary, ...]:
    """Return visible complete models with parents, children or measured relatives, chimeras after the others.

    The models with the most relatives come first.
    """
    has_both_ends = Lineage.parent_model_id.is_not(None), Lineage.child_model_id.is_not(None)
    ends = union_all(
        *(
            select(end.label("model_id")).where(*has_both_ends)
            for end in (Lineage.parent_model_id, Lineage.child_model_id)
        )
    ).subquery()
    edges = func.count().label("edges")
    counted = select(ends.c.model_id, edges).group_by(ends.c.model_id).subquery()
    statement = (
        select(ModelRow)
        .join(counted, counted.c.model_id == ModelRow.id)
        .where(ModelRow.state == "visible", ModelRow.complete.is_(true()), ModelRow.kind.in_(WEIGHT_KINDS))
        .order_by(is_composed(), counted.c.edges.desc(), ModelRow.id.desc())
    )
    return model_summaries(session, session.scalars(statement.limit(limit)).all())
