"""Models: one by name, with files, placements and versions; removed ones; the lists for the hub's routes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from sqlalchemy import ColumnElement, Row, Select, and_, exists, func, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.amounts import count_text
from organs.registry.catalog.cursor import (
    Cursor,
    check_limit,
    cursor_text,
    parse_cursor,
)
from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.events import was_seen, yanked_by
from organs.registry.catalog.queries.relatives import parents_of
from organs.registry.catalog.search import (
    CHIMERA,
    PARTIAL,
    nearest,
)
from organs.registry.catalog.tables import (
    Blob,
    Chimera,
    Contributor,
    FilePart,
    Ingest,
    Lineage,
    Model,
    ModelFile,
    ModelMetadata,
    Organ,
    Placement,
)
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import Digest
from organs.registry.entities.model import ModelSummary, TypeSummary
from organs.registry.entities.plan import ACTS
from organs.registry.entities.published import (
    Descendant,
    DescendantPage,
    ModelVersion,
    ModelVersions,
    PublishedModel,
    VersionChanges,
)
from organs.registry.errors import BadName, NotFound, NothingRegistered, Removed
from organs.registry.names import ModelName, check_new_name, parse_model_name

REMOVALS_MAX = 1000
"""The newest versions, of which it is told."""


def removed_versions(session: Session, name: ModelName) -> Sequence[Model]:
    """The removed versions of a name, or that of the version, newest first.

    One that was never published is none of them: it is answered for as if it never was.
    """
    named = (Model.namespace == name.namespace, Model.name == name.name, Model.state == "removed", was_seen())
    statement = select(Model).where(*named)
    if name.version is not None:
        statement = statement.where(Model.version == name.version)
    return session.scalars(statement.order_by(Model.version.desc()).limit(REMOVALS_MAX)).all()


def removal(model: Model) -> Removed:
    """What to tell who asks for it: when it was removed, and why."""
    day = None if model.changed_at is None else model.changed_at.date().isoformat()
    return Removed(model.full_name, model.state_reason or "", day)


def withdrawn_models(session: Session, full_names: Collection[str]) -> dict[str, Model]:
    """Return the models among `full_names` (`acme/tiny@1`) that were yanked or removed, by name.

    One that was removed before it was published is left out, as is whatever has no such name.
    """
    wanted = sorted({key for name in full_names if (key := _version_key(name)) is not None})
    gone = or_(Model.state == "yanked", and_(Model.state == "removed", was_seen()))
    found: dict[str, Model] = {}
    for batch in batches(wanted):
        named = tuple_(Model.namespace, Model.name, Model.version).in_(batch)
        found |= {model.full_name: model for model in session.scalars(select(Model).where(named, gone))}
    return found


def _version_key(full_name: str) -> tuple[str, str, int] | None:
    try:
        name = parse_model_name(full_name)
    except BadName:
        return None
    return None if name.version is None else (name.namespace, name.name, name.version)


NAMES_MAX = 5000
"""The newest names, among which the one that was meant is looked for."""
NEAR_NAME = 0.8
"""The least likeness of a name that is suggested, as `difflib` counts it: 1 is the same."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A slice of a blob at an offset of a file."""

    offset_bytes: int
    size_bytes: int
    blob_id: int
    blob_offset_bytes: int
    what: str
    """A tensor's name, or `header` for all that stands around the tensors."""


def model_by_name(session: Session, name: ModelName) -> Model:
    """Return what `find_model` does; raises NotFound with the nearest name, and Removed for what was taken away."""
    model = find_model(session, name)
    if model is None:
        removed = removed_versions(session, name)
        if removed:
            raise removal(removed[0])
        known = _names(session)
        if not known:
            raise NothingRegistered(f"no model is registered as {name}")
        close = _near_name(name, known)
        meant = f"; did you mean {close}?" if close else ""
        raise NotFound(f"no model is registered as {name}{meant}")
    return model


def check_model_name(session: Session, name: ModelName) -> None:
    """Raise BadName if `name` is new here and stock clients would refuse it.

    A name that has a model already may get further versions, and a namespace that is in use may get further names:
    earlier versions of this program registered names that are refused now.
    """
    in_namespace = select(Model.id).where(Model.namespace == name.namespace).limit(1)
    if session.scalar(in_namespace.where(Model.name == name.name)) is not None:
        return
    check_new_name(name.name)
    is_contributor = select(Contributor.id).where(Contributor.name == name.namespace)
    if session.scalar(is_contributor) is None and session.scalar(in_namespace) is None:
        check_new_name(name.namespace, "namespace")


def _near_name(name: ModelName, known: Sequence[str]) -> str | None:
    """Return the known name that was probably meant: the same in another namespace, or one that differs little.

    Namespaces are not compared: every name of a namespace would look alike.
    """
    by_name = {full.partition("/")[2].casefold(): full for full in reversed(known)}
    close = nearest(name.name, by_name, NEAR_NAME)
    return by_name[close] if close else None


def find_model(session: Session, name: ModelName) -> Model | None:
    """Return the visible or yanked model of that name, or None.

    It is the version in `name`, else the newest visible one, else the newest.
    """
    statement = select(Model).where(
        Model.namespace == name.namespace, Model.name == name.name, Model.state.in_(REACHABLE_STATES)
    )
    if name.version is not None:
        statement = statement.where(Model.version == name.version)
    order = (Model.state != "visible", Model.version.desc())
    return session.scalars(statement.order_by(*order).limit(1)).one_or_none()


def _names(session: Session) -> list[str]:
    statement = select(Model.namespace, Model.name).where(Model.state == "visible").order_by(Model.id.desc())
    return [f"{namespace}/{name}" for namespace, name in session.execute(statement.limit(NAMES_MAX))]


def visible_model_with_digest(session: Session, digest: Digest, name: ModelName | None) -> Model | None:
    """A visible model of exactly these bytes, of that name if one is given; the oldest of several."""
    statement = select(Model).where(Model.digest == digest, Model.state == "visible")
    if name is not None:
        statement = statement.where(Model.namespace == name.namespace, Model.name == name.name)
    return session.scalars(statement.order_by(Model.id).limit(1)).one_or_none()


def newest_reachable(session: Session, name: ModelName) -> Model | None:
    """Return the newest version under that name that is visible or yanked; None for a name that is free."""
    named = (Model.namespace == name.namespace, Model.name == name.name, Model.state.in_(REACHABLE_STATES))
    return session.scalars(select(Model).where(*named).order_by(Model.version.desc()).limit(1)).one_or_none()


def next_version(session: Session, name: ModelName) -> int:
    """Return the version that other bytes get under that name: the numbers of removed versions are not used again."""
    named = (Model.namespace == name.namespace, Model.name == name.name)
    return (session.scalar(select(func.max(Model.version)).where(*named)) or 0) + 1


def has_visible_model_of_size(session: Session, size_bytes: int) -> bool:
    """Return whether a visible model has files of that many bytes together."""
    same = select(Model.id).where(Model.state == "visible", Model.size_bytes == size_bytes).limit(1)
    return session.scalar(same) is not None


def quarantined_model(session: Session, digest: Digest, name: ModelName, contributor: str) -> Model | None:
    """The quarantined model of exactly these bytes and that name that `contributor` sent; the oldest of several."""
    statement = select(Model).join(Contributor, Contributor.id == Model.contributor_id)
    same = (Model.digest == digest, Model.namespace == name.namespace, Model.name == name.name)
    mine = statement.where(*same, Model.state == "quarantined", Contributor.name == contributor)
    return session.scalars(mine.order_by(Model.id).limit(1)).one_or_none()


def visible_models(session: Session, limit: int = 1000) -> Sequence[Model]:
    """Visible models, newest first."""
    statement = select(Model).where(Model.state == "visible").order_by(Model.created_at.desc(), Model.id.desc())
    return session.scalars(statement.limit(limit)).all()


def is_composed() -> ColumnElement[bool]:
    """Whether a model was composed here: such ones are in no ranking, which their parts are in already."""
    return select(Chimera.model_id).where(Chimera.model_id == Model.id).exists()


def composed_among(session: Session, model_ids: Collection[int]) -> frozenset[int]:
    """Which of `model_ids` were composed here."""
    return frozenset(session.scalars(select(Chimera.model_id).where(Chimera.model_id.in_(model_ids))))


def model_summary(model: Model, *, composed: bool) -> ModelSummary:
    """Return `model` as a line of a list; `composed` is whether it was composed here."""
    return ModelSummary(
        name=model.full_name,
        title=model.title,
        kind=shown_kind(model, composed=composed),
        architecture=model.architecture,
        parameters=model.parameters,
        tensors=model.tensors,
        size_bytes=model.size_bytes,
        mean_theta=model.mean_theta,
        mean_signal=model.mean_signal,
        license=model.license,
        complete=model.complete,
        digest=Digest(model.digest),
        created_at=model.created_at,
        state=model.state,
        downloads=model.downloads,
        grafts=model.grafts,
        nonfinite_tensors=model.nonfinite_tensors,
    )


def shown_kind(model: Model, *, composed: bool) -> str:
    """Return the kind of a model as the query language has it."""
    if not model.complete:
        return PARTIAL
    return CHIMERA if composed else model.kind


def ranked_models(session: Session, limit: int = 1000) -> Sequence[Model]:
    """Visible, complete models by falling mean θ; those without a θ last, then by id, so that the order is total."""
    statement = select(Model).where(Model.state == "visible", Model.complete, Model.kind == "model", ~is_composed())
    order = (Model.mean_theta.is_(None), Model.mean_theta.desc(), Model.id)
    return session.scalars(statement.order_by(*order).limit(limit)).all()


def files_of(session: Session, model_id: int) -> Sequence[ModelFile]:
    """The files of a model in order."""
    return session.scalars(select(ModelFile).where(ModelFile.model_id == model_id).order_by(ModelFile.position)).all()


def parts_of(session: Session, file_id: int) -> list[Segment]:
    """Header and padding of a file, by offset."""
    statement = select(FilePart).where(FilePart.file_id == file_id).order_by(FilePart.offset_bytes)
    return [
        Segment(part.offset_bytes, part.size_bytes, part.blob_id, part.blob_offset_bytes, "header")
        for part in session.scalars(statement)
    ]


def tensors_of(session: Session, file_id: int) -> list[Segment]:
    """The tensors of a file, by offset."""
    statement = (
        select(Placement.offset_bytes, Placement.size_bytes, Organ.blob_id, Placement.name)
        .join(Organ, Organ.id == Placement.organ_id)
        .where(Placement.file_id == file_id)
        .order_by(Placement.offset_bytes)
    )
    return [Segment(offset, size, blob_id, 0, name) for offset, size, blob_id, name in session.execute(statement)]


def tensor_blobs_of(session: Session, model_id: int) -> dict[str, int]:
    """Tensor name to blob id, over all files of a model."""
    statement = (
        select(Placement.name, Organ.blob_id)
        .join(Organ, Organ.id == Placement.organ_id)
        .where(Placement.model_id == model_id)
    )
    return dict(session.execute(statement).all())


def placements_of(
    session: Session, model_id: int, limit: int | None = None
) -> Sequence[Row[Placement, str, str, int | None]]:
    """Return the placements in order, all or the first `limit`.

    Each comes with its organ's shape, digest, and count of values that are NaN or infinite.
    """
    statement = (
        select(Placement, Organ.shape, Blob.digest, Organ.nonfinite)
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .where(Placement.model_id == model_id)
        .order_by(Placement.position)
    )
    return session.execute(statement.limit(limit)).all()


def dtype_counts(session: Session, model_id: int) -> dict[str, int]:
    """Return how many tensors of a model there are of each dtype."""
    counted = select(Placement.dtype, func.count()).where(Placement.model_id == model_id).group_by(Placement.dtype)
    return dict(session.execute(counted).all())


def metadata_of(session: Session, model_id: int) -> Sequence[ModelMetadata]:
    """The metadata in header order."""
    statement = select(ModelMetadata).where(ModelMetadata.model_id == model_id).order_by(ModelMetadata.position)
    return session.scalars(statement).all()


def type_summaries(session: Session, model_id: int) -> tuple[TypeSummary, ...]:
    """Return what a model has of each type, in the order of the types' names."""
    statement = (
        select(
            Placement.type,
            func.count(),
            func.sum(Placement.size_bytes),
            func.avg(Placement.theta),
            func.avg(Placement.spectral_signal),
        )
        .where(Placement.model_id == model_id)
        .group_by(Placement.type)
        .order_by(Placement.type)
    )
    return tuple(
        TypeSummary(
            type=kind,
            tensors=count,
            size_bytes=int(size),
            mean_theta=theta,
            mean_spectral_signal=spectral,
        )
        for kind, count, size, theta, spectral in session.execute(statement)
    )


def ingest_of(session: Session, model_id: int) -> Ingest | None:
    """The ingest that made the model."""
    return session.scalars(select(Ingest).where(Ingest.model_id == model_id).order_by(Ingest.id).limit(1)).one_or_none()


def count_models(session: Session) -> int:
    """How many models are visible."""
    return session.scalar(select(func.count()).select_from(Model).where(Model.state == "visible")) or 0


DTYPES_SHOWN = 6
"""Dtypes that are listed among the facts of a model."""


def facts_of(
    model: Model, metadata: Iterable[ModelMetadata], dtypes: Iterable[str] | Mapping[str, int]
) -> dict[str, str]:
    """Return at most ten facts of a model as short texts, by what they are about and in the order of display.

    `dtypes` has the name of the dtype of each tensor, or how many tensors there are of each dtype.
    """
    texts = {row.key: row.value for row in metadata}
    prefix = f"{model.architecture}."
    found = {
        "kind": model.kind if model.complete else "partial",
        "architecture": model.architecture,
        "licence": model.license,
        "parameters": count_text(model.parameters),
        "dtypes": _counted(dtypes),
        "blocks": texts.get(prefix + "block_count"),
        "embedding length": _grouped(texts.get(prefix + "embedding_length")),
        "context length": _grouped(texts.get(prefix + "context_length")),
        "vocabulary": _grouped(_vocabulary(texts, prefix)),
        "tokenizer": _tokenizer(texts),
    }
    return {name: text for name, text in found.items() if text}


def _counted(dtypes: Iterable[str] | Mapping[str, int]) -> str:
    """`29 Q8_0, 9 F32`, the most frequent first."""
    counts = sorted(Counter(dtypes).items(), key=lambda pair: (-pair[1], pair[0]))
    shown = [f"{count:,} {dtype}" for dtype, count in counts[:DTYPES_SHOWN]]
    return ", ".join(shown + ["…"] * (len(counts) > DTYPES_SHOWN))


def _vocabulary(texts: Mapping[str, str], prefix: str) -> str | None:
    """Return how many tokens there are, or are declared. A list is stored as `[2048 × string]`."""
    tokens = texts.get("tokenizer.ggml.tokens", "")
    return tokens[1:].split(" ", 1)[0] if tokens.startswith("[") else texts.get(prefix + "vocab_size")


def _tokenizer(texts: Mapping[str, str]) -> str:
    kinds = (texts.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    return ", ".join(dict.fromkeys(kind for kind in kinds if kind))


def _grouped(text: str | None) -> str | None:
    """Return a whole number with separators; anything else as it is."""
    return f"{int(text):,}" if text is not None and text.isascii() and text.isdigit() else text


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
