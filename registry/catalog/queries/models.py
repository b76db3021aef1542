"""Models by name or digest, with files, placements and versions; removed models; lists for the routes of the hub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import TypeVar

from sqlalchemy import ColumnElement, Row, Select, and_, case, exists, func, or_, select, true, tuple_, union_all
from sqlalchemy.orm import Session, aliased

from organs.registry.amounts import count_text
from organs.registry.catalog.cursor import PageEnd, check_limit, cursor_text, next_cursor, parse_cursor
from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.events import was_public, yanked_by
from organs.registry.catalog.queries.relatives import parents_of
from organs.registry.catalog.tables import (
    Blob,
    BlobPart,
    Chimera,
    Contributor,
    Expert,
    FilePart,
    Ingest,
    KnownFile,
    Lineage,
    Model,
    ModelFile,
    ModelMetadata,
    Organ,
    OtherName,
    Placement,
    RuntimeText,
)
from organs.registry.catalog.vocabulary import CHIMERA, OTHER_NAMES_MAX, PARTIAL, REACHABLE_STATES
from organs.registry.digest import Digest, looks_like_prefix, parse_prefix
from organs.registry.entities import model as entities
from organs.registry.entities.gain import MeasuredGain
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
from organs.registry.errors import (
    Ambiguous,
    BadDigest,
    BadName,
    Incomplete,
    NotFound,
    NothingRegistered,
    Removed,
    SeveralModels,
)
from organs.registry.kinds import WEIGHT_KINDS
from organs.registry.measures import FEW_NUMBERS, caution_of_mean, theta_caution
from organs.registry.names import (
    LOCAL,
    ModelName,
    check_new_name,
    is_digest_name,
    nearest,
    parse_model_name,
    split_quantisation,
)

T = TypeVar("T")

REMOVALS_MAX = 1000
"""The most removed versions of a name that are read: the newest."""


def removed_versions(session: Session, name: ModelName) -> Sequence[Model]:
    """Return the removed versions of a name, or the removed version in `name`, newest first.

    Removed models that had the name as another one follow. Versions that were never public are left out, as if they
    had never existed.
    """
    same_name = (Model.namespace == name.namespace, Model.name == name.name)
    statement = select(Model).where(*same_name, Model.state == "removed", was_public())
    if name.version is not None:
        statement = statement.where(Model.version == name.version)
    own = session.scalars(statement.order_by(Model.version.desc()).limit(REMOVALS_MAX)).all()
    others = models_of_other_name(name).where(Model.state == "removed", was_public()).limit(REMOVALS_MAX)
    return [*own, *session.scalars(others)]


def removal(model: Model) -> Removed:
    """Return the error for requests for a removed model, with the day and the reason."""
    day = None if model.changed_at is None else model.changed_at.date().isoformat()
    return Removed(model.full_name, model.state_reason or "", day)


def is_withdrawn() -> ColumnElement[bool]:
    """Return the condition that a Model was yanked, or that it was removed after it was public."""
    return or_(Model.state == "yanked", and_(Model.state == "removed", was_public()))


def withdrawn_models(session: Session, full_names: Collection[str]) -> dict[str, Model]:
    """Return the models among `full_names` (`acme/tiny@1`) that were yanked or removed, by name.

    Models that were removed before they were public are left out, and so are texts that are not full names.
    """
    keys = sorted({key for name in full_names if (key := _version_key(name)) is not None})
    models: dict[str, Model] = {}
    for batch in batches(keys):
        has_key = tuple_(Model.namespace, Model.name, Model.version).in_(batch)
        models |= {model.full_name: model for model in session.scalars(select(Model).where(has_key, is_withdrawn()))}
    return models


def _version_key(full_name: str) -> tuple[str, str, int] | None:
    try:
        name = parse_model_name(full_name)
    except BadName:
        return None
    return None if name.version is None else (name.namespace, name.name, name.version)


NAMES_MAX = 5000
"""The most names that are compared to suggest a similar name: the newest."""
NAME_CUTOFF = 0.8
"""The least similarity of a suggested name by `difflib`, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A slice of a blob, and its offset in a file."""

    offset_bytes: int
    size_bytes: int
    blob_id: int
    blob_offset_bytes: int
    content: str
    """The name of a tensor, or `header` for all bytes around the tensors."""


def model_by_name(session: Session, name: ModelName) -> Model:
    """Return the model of `find_model`, or the only one that `name` can mean; raises NotFound with a similar name.

    Raises SeveralModels for a name that can mean several models, Incomplete for a split model of which some shards are
    missing, and Removed for a removed model.
    """
    model = _known_model(session, name)
    if model is not None:
        return model
    names = _names(session)
    if not names:
        raise NothingRegistered(f"no model is registered as {name}")
    close = _similar_name(name, names)
    hint = f"; did you mean {close}?" if close else ""
    raise NotFound(f"no model is registered as {name}{hint}")


def _known_model(session: Session, name: ModelName) -> Model | None:
    """Return the model of that name, or None if there is none; raises the other errors of `model_by_name`."""
    model = find_model(session, name)
    if model is not None:
        return model
    is_explained = or_(Model.state == "incomplete", and_(Model.state == "removed", was_public()))
    if _has_row(session, is_explained, lambda table: and_(table.namespace == name.namespace, table.name == name.name)):
        begun = incomplete_model(session, name)
        if begun is not None:
            raise incompleteness(session, begun)
        removed = removed_versions(session, name)
        if removed:
            raise removal(removed[0])
    meant = meant_models(session, name)
    if len(meant) > 1:
        raise SeveralModels(str(name), sorted(meant))
    return next(iter(meant.values()), None)


def _has_row(
    session: Session,
    has_state: ColumnElement[bool],
    condition: Callable[[type[Model | OtherName]], ColumnElement[bool]],
) -> bool:
    """Return whether the name, or another name, of a model whose state meets `has_state` meets a condition.

    A name that only hidden models have is answered like an unknown one, with the same statements: a further one would
    show in the time of the answer that it exists.
    """
    own = exists().where(condition(Model), has_state)
    other = exists().where(condition(OtherName), OtherName.model_id == Model.id, has_state)
    return session.scalar(select(or_(own, other))) or False


def models_by_name(session: Session, names: Iterable[ModelName]) -> list[Model]:
    """Return the models of `model_by_name`; raises NotFound that reports all names without a model together."""
    return _all_found(partial(model_by_name, session), names)


def models_by_text(session: Session, texts: Iterable[str]) -> list[Model]:
    """Return the models of `model_by_text`; raises NotFound that reports all texts without a model together."""
    return _all_found(partial(model_by_text, session), texts)


def _all_found(find: Callable[[T], Model], wanted: Iterable[T]) -> list[Model]:
    models, errors = [], list[NotFound]()
    for item in wanted:
        try:
            models.append(find(item))
        except NotFound as error:
            errors.append(error)
    if not errors:
        return models
    raise errors[0] if len(errors) == 1 else NotFound("; ".join(dict.fromkeys(map(str, errors))))


def incomplete_model(session: Session, name: ModelName) -> Model | None:
    """Return the newest incomplete model of that name, or None."""
    statement = select(Model).where(
        Model.namespace == name.namespace, Model.name == name.name, Model.state == "incomplete"
    )
    if name.version is not None:
        statement = statement.where(Model.version == name.version)
    return session.scalars(statement.order_by(Model.version.desc()).limit(1)).one_or_none()


def incompleteness(session: Session, model: Model) -> Incomplete:
    """Return the error for requests for an incomplete model, with the shards that are missing."""
    assert model.shards is not None, "an incomplete model has a number of shards"
    positions = session.scalars(select(ModelFile.position).where(ModelFile.model_id == model.id))
    return Incomplete(model.full_name, model.shards, {position + 1 for position in positions})


INCOMPLETE_MAX = 10
"""The most incomplete models in the notes of a list."""


def incomplete_models(session: Session) -> list[Incomplete]:
    """Return the newest INCOMPLETE_MAX incomplete models, each as the error for requests for it."""
    statement = select(Model).where(Model.state == "incomplete").order_by(Model.created_at.desc(), Model.id.desc())
    return [incompleteness(session, model) for model in session.scalars(statement.limit(INCOMPLETE_MAX))]


def visible_model_with_file(
    session: Session, name: ModelName | None, number: int, files: int, *matches: ColumnElement[bool]
) -> Model | None:
    """Return the oldest visible model, of that name if it is not None, whose file `number` of `files` files matches.

    `number` counts from 0; `matches` are conditions on the ModelFile.
    """
    count = select(func.count()).select_from(ModelFile).where(ModelFile.model_id == Model.id).scalar_subquery()
    candidates = select(ModelFile.model_id).where(ModelFile.position == number, *matches)
    statement = select(Model).where(Model.id.in_(candidates), Model.state == "visible")
    if name is not None:
        statement = statement.where(Model.namespace == name.namespace, Model.name == name.name)
    return session.scalars(statement.where(count == files).order_by(Model.id).limit(1)).one_or_none()


def has_file(session: Session, model_id: int, number: int, *matches: ColumnElement[bool]) -> bool:
    """Return whether the file `number`, from 0, of a model matches the conditions `matches` on the ModelFile."""
    statement = select(ModelFile.id).where(ModelFile.model_id == model_id, ModelFile.position == number, *matches)
    return session.scalar(statement) is not None


def check_model_name(session: Session, name: ModelName) -> None:
    """Raise BadName if `name` is new in this registry and stock clients would refuse it.

    Existing names may get further versions, and existing namespaces further names, because earlier versions of this
    program registered names that are refused now.
    """
    in_namespace = select(Model.id).where(Model.namespace == name.namespace).limit(1)
    if session.scalar(in_namespace.where(Model.name == name.name)) is not None:
        return
    check_new_name(name.name)
    is_contributor = select(Contributor.id).where(Contributor.name == name.namespace)
    if session.scalar(is_contributor) is None and session.scalar(in_namespace) is None:
        check_new_name(name.namespace, "namespace")


def _similar_name(name: ModelName, full_names: Sequence[str]) -> str | None:
    """Return the same or a similar name, in any namespace.

    Namespaces are not compared: all names of one namespace would be similar.
    """
    by_name = {full.partition("/")[2].casefold(): full for full in reversed(full_names)}
    close = nearest(name.name, by_name, NAME_CUTOFF)
    return by_name[close] if close else None


def find_model(session: Session, name: ModelName) -> Model | None:
    """Return the visible or yanked model of that name, or else the one that has it as another name; else None.

    Without a version in `name`, it is the newest visible version, or the newest yanked version if none is visible.
    """
    statement = select(Model).where(
        Model.namespace == name.namespace, Model.name == name.name, Model.state.in_(REACHABLE_STATES)
    )
    if name.version is not None:
        statement = statement.where(Model.version == name.version)
    order = (Model.state != "visible", Model.version.desc())
    found = session.scalars(statement.order_by(*order).limit(1)).one_or_none()
    return model_of_other_name(session, name) if found is None else found


def model_of_other_name(session: Session, name: ModelName) -> Model | None:
    """Return the visible or yanked model that has this name beside its own, or None."""
    statement = models_of_other_name(name).where(Model.state.in_(REACHABLE_STATES)).limit(1)
    return session.scalars(statement).one_or_none()


def models_of_other_name(name: ModelName) -> Select[Model]:
    """Return a SELECT of the models that have this name beside their own, visible ones and newest versions first."""
    names = select(OtherName).where(OtherName.namespace == name.namespace, OtherName.name == name.name)
    if name.version is not None:
        names = names.where(OtherName.version == name.version)
    other = names.subquery()
    statement = select(Model).join(other, other.c.model_id == Model.id)
    return statement.order_by(Model.state != "visible", other.c.version.desc())


MEANT_MAX = 200
"""The most models that a name without its namespace or its quantisation may mean."""


def meant_models(session: Session, name: ModelName) -> dict[str, Model]:
    """Return the models that may be meant by a name that no model has, by their names in full.

    They are the quantisations of the model `name`. If there are none, and the namespace is that of names that state
    none, they are the models of all namespaces with this name, or else their quantisations: only those that the user
    of this machine registered, so that other accounts cannot give a meaning to a name.
    """
    stem = split_quantisation(name.name)[0]
    if not _has_row(session, Model.state == "visible", lambda table: table.stem.in_((stem, name.name))):
        return {}
    own = (Model.namespace == name.namespace, OtherName.namespace == name.namespace)
    meant = _quantised(session, name, *own) if name.version is None else {}
    if meant or name.namespace != LOCAL:
        return meant
    is_local = Model.contributor_id.in_(select(Contributor.id).where(Contributor.name == LOCAL))
    same = (
        and_(Model.stem == stem, Model.name == name.name, is_local),
        and_(OtherName.stem == stem, OtherName.name == name.name, is_local),
    )
    if name.version is not None:
        return _meant(session, *same, name.version)
    return _meant(session, *same) or _quantised(session, name, is_local, is_local)


def _quantised(
    session: Session, name: ModelName, own: ColumnElement[bool], other: ColumnElement[bool]
) -> dict[str, Model]:
    """Return the models that are quantisations of the model `name`, in the namespaces of the conditions."""
    return _meant(
        session,
        and_(Model.stem == name.name, Model.quantisation.is_not(None), own),
        and_(OtherName.stem == name.name, OtherName.name != name.name, other),
    )


def _meant(
    session: Session, own: ColumnElement[bool], other: ColumnElement[bool], version: int | None = None
) -> dict[str, Model]:
    """Return the visible models whose own name meets a condition, or else one of their other names.

    They have this version, or are the newest of their names.
    """
    is_version = is_newest() if version is None else Model.version == version
    own_names = select(Model).where(own, Model.state == "visible", is_version).order_by(Model.namespace, Model.name)
    models = {f"{model.namespace}/{model.name}": model for model in session.scalars(own_names.limit(MEANT_MAX))}
    others = select(Model, OtherName.namespace, OtherName.name).join(OtherName, OtherName.model_id == Model.id)
    others = others if version is None else others.where(OtherName.version == version)
    others = others.where(other, Model.state == "visible").order_by(OtherName.version.desc()).limit(MEANT_MAX)
    known = {model.id for model in models.values()}
    for model, namespace, name in session.execute(others):
        if model.id not in known and models.setdefault(f"{namespace}/{name}", model) is model:
            known.add(model.id)
    return models


def other_names(session: Session, model: Model) -> list[str]:
    """Return the names that lead to `model` beside its own, sorted; names that are only a digest come last."""
    taken = aliased(Model)
    has_name = (taken.namespace == OtherName.namespace, taken.name == OtherName.name)
    is_taken = exists().where(*has_name, taken.state.in_(REACHABLE_STATES))
    statement = select(OtherName.namespace, OtherName.name).where(OtherName.model_id == model.id, ~is_taken)
    names = {ModelName(namespace, name) for namespace, name in session.execute(statement.limit(OTHER_NAMES_MAX))}
    return [str(name) for name in sorted(names, key=lambda name: (is_digest_name(name), str(name)))]


def free_names(session: Session, model: Model, names: Iterable[ModelName]) -> list[ModelName]:
    """Return the `names` that lead to no model, as many as `model` may have beside its own and those it has already."""
    used = select(func.count()).select_from(OtherName).where(OtherName.model_id == model.id)
    room = max(0, OTHER_NAMES_MAX - (session.scalar(used) or 0))
    return [name for name in dict.fromkeys(names) if _is_free(session, name)][:room]


def _is_free(session: Session, name: ModelName) -> bool:
    """Return whether no model has or had the name, in any state, and none has it as another name."""
    own = select(Model.id).where(Model.namespace == name.namespace, Model.name == name.name).limit(1)
    return session.scalar(own) is None and model_of_other_name(session, name) is None


def _names(session: Session) -> list[str]:
    statement = select(Model.namespace, Model.name).where(Model.state == "visible").order_by(Model.id.desc())
    return [f"{namespace}/{name}" for namespace, name in session.execute(statement.limit(NAMES_MAX))]


def visible_model_with_digest(session: Session, digest: Digest, name: ModelName | None) -> Model | None:
    """Return the oldest visible model of exactly these bytes, of that name if it is not None."""
    statement = select(Model).where(Model.digest == digest, Model.state == "visible")
    if name is not None:
        statement = statement.where(Model.namespace == name.namespace, Model.name == name.name)
    return session.scalars(statement.order_by(Model.id).limit(1)).one_or_none()


def newest_reachable(session: Session, name: ModelName) -> Model | None:
    """Return the newest version of that name that is visible or yanked; None if no model has it as its own name."""
    same_name = (Model.namespace == name.namespace, Model.name == name.name, Model.state.in_(REACHABLE_STATES))
    return session.scalars(select(Model).where(*same_name).order_by(Model.version.desc()).limit(1)).one_or_none()


def next_version(session: Session, name: ModelName) -> int:
    """Return the version that new bytes get under that name.

    Numbers of removed versions and of other names are not used again.
    """
    newest = select(func.max(Model.version)).where(Model.namespace == name.namespace, Model.name == name.name)
    other = select(func.max(OtherName.version)).where(
        OtherName.namespace == name.namespace, OtherName.name == name.name
    )
    return max(session.scalar(newest) or 0, session.scalar(other) or 0) + 1


def has_visible_model_of_size(session: Session, size_bytes: int) -> bool:
    """Return whether the files of a visible model have that total size."""
    same = select(Model.id).where(Model.state == "visible", Model.size_bytes == size_bytes).limit(1)
    return session.scalar(same) is not None


def quarantined_model(session: Session, digest: Digest, name: ModelName, contributor: str) -> Model | None:
    """Return the oldest quarantined model of `contributor` with exactly these bytes and that name."""
    statement = select(Model).join(Contributor, Contributor.id == Model.contributor_id)
    same = (Model.digest == digest, Model.namespace == name.namespace, Model.name == name.name)
    statement = statement.where(*same, Model.state == "quarantined", Contributor.name == contributor)
    return session.scalars(statement.order_by(Model.id).limit(1)).one_or_none()


def visible_models(session: Session, limit: int = 1000) -> Sequence[Model]:
    """Return visible models, newest first."""
    statement = select(Model).where(Model.state == "visible").order_by(Model.created_at.desc(), Model.id.desc())
    return session.scalars(statement.limit(limit)).all()


def is_composed() -> ColumnElement[bool]:
    """Return the condition that a Model was composed in this registry.

    Rankings leave these models out, because they rank the models that the organs come from.
    """
    return select(Chimera.model_id).where(Chimera.model_id == Model.id).exists()


def models_in_any_state(session: Session, model_ids: Collection[int]) -> dict[int, Model]:
    """Return the models with these ids, also hidden ones."""
    models: dict[int, Model] = {}
    for batch in batches(list(model_ids)):
        models.update((model.id, model) for model in session.scalars(select(Model).where(Model.id.in_(batch))))
    return models


def composed_among(session: Session, model_ids: Collection[int]) -> frozenset[int]:
    """Return the `model_ids` that were composed in this registry."""
    found: set[int] = set()
    for batch in batches(list(model_ids)):
        found.update(session.scalars(select(Chimera.model_id).where(Chimera.model_id.in_(batch))))
    return frozenset(found)


def model_summaries(
    session: Session,
    models: Sequence[Model],
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
        _model_summary(
            model,
            composed=model.id in composed,
            caution=caution_of_types(figures.get(model.id, ())),
            likeness=likeness.get(model.id),
            change=changes.get(model.id),
            gain=gains.get(model.id),
        )
        for model in models
    )


def _model_summary(
    model: Model,
    *,
    composed: bool,
    caution: str,
    likeness: float | None,
    change: float | None,
    gain: MeasuredGain | None,
) -> ModelSummary:
    return ModelSummary(
        name=model.full_name,
        title=model.title,
        kind=model_kind(model, composed=composed),
        architecture=model.architecture,
        parameters=model.parameters,
        tensors=model.tensors,
        size_bytes=model.size_bytes,
        mean_theta=model.mean_theta,
        theta_caution=caution,
        mean_signal=model.mean_signal,
        license=model.license,
        complete=model.complete,
        digest=Digest(model.digest),
        created_at=model.created_at,
        state=model.state,
        downloads=model.downloads,
        grafts=model.grafts,
        nonfinite_tensors=model.nonfinite_tensors,
        likeness=likeness,
        change=change,
        gain=gain,
    )


def model_kind(model: Model, *, composed: bool) -> str:
    """Return the kind of a model in the query language."""
    if not model.complete:
        return PARTIAL
    return CHIMERA if composed else model.kind


def ranked_models(session: Session, limit: int = 1000, *, chimeras: bool = False) -> Sequence[Model]:
    """Return visible, complete models by falling mean θ, then by id; models without θ come last.

    Models that were composed here are left out, unless `chimeras` is true.
    """
    statement = select(Model).where(Model.state == "visible", Model.complete, Model.kind == "model")
    if not chimeras:
        statement = statement.where(~is_composed())
    order = (Model.mean_theta.is_(None), Model.mean_theta.desc(), Model.id)
    return session.scalars(statement.order_by(*order).limit(limit)).all()


def files_of(session: Session, model_id: int) -> Sequence[ModelFile]:
    """Return the files of a model in order."""
    return session.scalars(select(ModelFile).where(ModelFile.model_id == model_id).order_by(ModelFile.position)).all()


def parts_of(session: Session, file_id: int) -> list[Segment]:
    """Return header and padding of a file, by offset."""
    statement = select(FilePart).where(FilePart.file_id == file_id).order_by(FilePart.offset_bytes)
    return [
        Segment(part.offset_bytes, part.size_bytes, part.blob_id, part.blob_offset_bytes, "header")
        for part in session.scalars(statement)
    ]


def tensors_of(session: Session, file_id: int) -> list[Segment]:
    """Return the tensors of a file, by offset."""
    statement = (
        select(Placement.offset_bytes, Placement.size_bytes, Organ.blob_id, Placement.name)
        .join(Organ, Organ.id == Placement.organ_id)
        .where(Placement.file_id == file_id)
        .order_by(Placement.offset_bytes)
    )
    return [Segment(offset, size, blob_id, 0, name) for offset, size, blob_id, name in session.execute(statement)]


def tensor_blobs_of(session: Session, model_id: int) -> dict[str, int]:
    """Return the blob ids of all tensors of a model, by name."""
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

    Each row also has shape, digest, and number of NaN and infinite values of its organ.
    """
    statement = (
        select(Placement, Organ.shape, Blob.digest, Organ.nonfinite)
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .where(Placement.model_id == model_id)
        .order_by(Placement.position)
    )
    return session.execute(statement.limit(limit)).all()


def count_experts(session: Session, model_id: int) -> int:
    """Return the number of experts of a model that are recorded one by one."""
    experts = select(func.count()).select_from(Expert).where(Expert.model_id == model_id)
    return session.scalar(experts.with_hint(Expert, "INDEXED BY ix_experts_model", "sqlite")) or 0


def dtype_counts(session: Session, model_id: int) -> dict[str, int]:
    """Return the number of tensors of each dtype in a model."""
    counted = select(Placement.dtype, func.count()).where(Placement.model_id == model_id).group_by(Placement.dtype)
    return dict(session.execute(counted).all())


def metadata_of(session: Session, model_id: int) -> Sequence[ModelMetadata]:
    """Return the metadata in header order."""
    statement = select(ModelMetadata).where(ModelMetadata.model_id == model_id).order_by(ModelMetadata.position)
    return session.scalars(statement).all()


def metadata_of_models(
    session: Session, model_ids: Collection[int], keys: Collection[str]
) -> dict[int, dict[str, str]]:
    """Return the stored values of `keys` in the headers of each model, of any type, by key."""
    values: dict[int, dict[str, str]] = {model_id: {} for model_id in model_ids}
    for batch in batches(sorted(model_ids)):
        statement = select(ModelMetadata.model_id, ModelMetadata.key, ModelMetadata.value).where(
            ModelMetadata.model_id.in_(batch), ModelMetadata.key.in_(sorted(keys))
        )
        for model_id, key, value in session.execute(statement):
            values[model_id].setdefault(key, value)
    return values


def header_text(session: Session, model_id: int, key: str) -> str | None:
    """Return the stored value of a text in a model's header; None if the header does not have it."""
    statement = select(ModelMetadata.value).where(ModelMetadata.model_id == model_id, ModelMetadata.key == key)
    return session.scalar(statement.order_by(ModelMetadata.position).limit(1))


def runtime_texts(session: Session, model_ids: Collection[int]) -> dict[int, tuple[entities.RuntimeText, ...]]:
    """Return the texts that other tools keep beside each model."""
    texts: dict[int, tuple[entities.RuntimeText, ...]] = dict.fromkeys(model_ids, ())
    for batch in batches(sorted(model_ids)):
        statement = select(RuntimeText).where(RuntimeText.model_id.in_(batch))
        for row in session.scalars(statement.order_by(RuntimeText.model_id, RuntimeText.position)):
            texts[row.model_id] += (entities.RuntimeText(kind=row.kind, source=row.source, text=row.text),)
    return texts


def known_digests(session: Session, stamps: Collection[str]) -> dict[str, Digest]:
    """Return the SHA-256 of the files with these stamps that an ingest has read."""
    digests: dict[str, Digest] = {}
    for batch in batches(sorted(stamps)):
        rows = session.execute(select(KnownFile.stamp, KnownFile.sha256).where(KnownFile.stamp.in_(batch)))
        digests |= {stamp: Digest(sha256) for stamp, sha256 in rows}
    return digests


def registered_digests(session: Session, digests: Collection[Digest]) -> dict[Digest, str]:
    """Return the name of a visible model with a file of each of these SHA-256s, if there is one."""
    names: dict[Digest, str] = {}
    for batch in batches(sorted(digests)):
        statement = select(ModelFile.sha256, Model).join(Model, Model.id == ModelFile.model_id)
        statement = statement.where(ModelFile.sha256.in_(batch), Model.state == "visible").order_by(Model.id)
        for sha256, model in session.execute(statement):
            names.setdefault(Digest(sha256), model.full_name)
    return names


def has_damaged_blobs(session: Session, model_id: int) -> bool:
    """Return whether a blob of the model was set aside because its stored bytes are wrong or missing."""
    damaged = select(Blob.id).where(Blob.state == "corrupt")
    files = select(ModelFile.id).where(ModelFile.model_id == model_id)
    in_parts = select(FilePart.blob_id).where(FilePart.file_id.in_(files), FilePart.blob_id.in_(damaged))
    stacked = select(BlobPart.blob_id).where(BlobPart.part_id.in_(damaged))
    in_places = (
        select(Organ.blob_id)
        .join(Placement, Placement.organ_id == Organ.id)
        .where(Placement.model_id == model_id, or_(Organ.blob_id.in_(damaged), Organ.blob_id.in_(stacked)))
    )
    return any(session.scalar(statement.limit(1)) is not None for statement in (in_parts, in_places))


@dataclass(frozen=True, slots=True)
class TypeFigures:
    """The tensors of one type and one tensor type in a model."""

    model_id: int
    type: str
    dtype: str
    tensors: int
    measured: int
    theta_sum: float
    signal_sum: float
    few: int
    """Measured tensors with few values."""


def type_figures(session: Session, model_ids: Collection[int]) -> list[TypeFigures]:
    """Return a row for each type and tensor type in these models, by model and type."""
    theta = Placement.theta
    few = case((and_(theta.is_not(None), Organ.elements < FEW_NUMBERS), 1), else_=0)
    sums = (
        func.count(),
        func.count(theta),
        func.coalesce(func.sum(theta), 0.0),
        func.coalesce(func.sum(Placement.signal), 0.0),
        func.sum(few),
    )
    keys = (Placement.model_id, Placement.type, Placement.dtype)
    statement = select(*keys, *sums).join(Organ, Organ.id == Placement.organ_id).group_by(*keys).order_by(*keys)
    return [
        TypeFigures(*row)
        for batch in batches(sorted(model_ids))
        for row in session.execute(statement.where(keys[0].in_(batch)))
    ]


def caution_of_types(parts: Iterable[TypeFigures]) -> str:
    """Return why the mean θ over `parts` is uncertain; empty if it is not."""
    rows = list(parts)
    uncertain = sum(row.measured if theta_caution(0.0, row.dtype, FEW_NUMBERS) else row.few for row in rows)
    return caution_of_mean(uncertain, sum(row.measured for row in rows))


def type_summaries(session: Session, model_id: int) -> tuple[TypeSummary, ...]:
    """Return a summary of each type in a model, by the name of the type."""
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
    parts = type_figures(session, [model_id])
    return tuple(
        TypeSummary(
            type=kind,
            tensors=count,
            size_bytes=int(size),
            mean_theta=theta,
            theta_caution=caution_of_types(part for part in parts if part.type == kind),
            mean_spectral_signal=spectral,
        )
        for kind, count, size, theta, spectral in session.execute(statement)
    )


def ingest_reports(session: Session, model_id: int) -> Sequence[str]:
    """Return the reports of the finished ingests of a model, as JSON, in order."""
    statement = select(Ingest.report).where(Ingest.model_id == model_id, Ingest.state == "finished")
    return [report for report in session.scalars(statement.order_by(Ingest.id)) if report is not None]


def organ_sizes_of(session: Session, model_id: int) -> Sequence[Row[int, int]]:
    """Return the id and the size in bytes of the organ of each tensor of a model."""
    return session.execute(select(Placement.organ_id, Placement.size_bytes).where(Placement.model_id == model_id)).all()


def nonfinite_organs(session: Session, model_id: int) -> dict[str, int]:
    """Return the number of NaN and infinite values of the tensors that have any, by name, in the order of the model."""
    statement = select(Placement.name, Organ.nonfinite).join(Organ, Organ.id == Placement.organ_id)
    statement = statement.where(Placement.model_id == model_id, Organ.nonfinite > 0).order_by(Placement.position)
    return {name: count or 0 for name, count in session.execute(statement)}


def ingest_of(session: Session, model_id: int) -> Ingest | None:
    """Return the ingest that registered the model, or None."""
    return session.scalars(select(Ingest).where(Ingest.model_id == model_id).order_by(Ingest.id).limit(1)).one_or_none()


def count_models(session: Session) -> int:
    """Return the number of visible models."""
    return session.scalar(select(func.count()).select_from(Model).where(Model.state == "visible")) or 0


DTYPES_MAX = 6
"""The most dtypes in the facts of a model."""


def facts_of(
    model: Model, metadata: Iterable[ModelMetadata], dtypes: Iterable[str] | Mapping[str, int]
) -> dict[str, str]:
    """Return at most ten facts of a model as short texts, by name, in the order of display.

    `dtypes` has the dtype of each tensor, or the number of tensors of each dtype.
    """
    texts = {row.key: row.value for row in metadata}
    prefix = f"{model.architecture}."
    facts = {
        "kind": model.kind if model.complete else "partial",
        "architecture": model.architecture,
        "license": model.license,
        "parameters": count_text(model.parameters),
        "dtypes": _counted(dtypes),
        "blocks": texts.get(prefix + "block_count"),
        "embedding length": _grouped(texts.get(prefix + "embedding_length")),
        "context length": _grouped(texts.get(prefix + "context_length")),
        "vocabulary": _grouped(_vocabulary(texts, prefix)),
        "tokenizer": _tokenizer(texts),
    }
    return {name: text for name, text in facts.items() if text}


def _counted(dtypes: Iterable[str] | Mapping[str, int]) -> str:
    """Return dtypes with their counts, most frequent first: `29 Q8_0, 9 F32`."""
    counts = sorted(Counter(dtypes).items(), key=lambda pair: (-pair[1], pair[0]))
    texts = [f"{count:,} {dtype}" for dtype, count in counts[:DTYPES_MAX]]
    return ", ".join(texts + ["…"] * (len(counts) > DTYPES_MAX))


def _vocabulary(texts: Mapping[str, str], prefix: str) -> str | None:
    """Return the number of tokens in the list, or the declared number. A list is stored as `[2048 × string]`."""
    tokens = texts.get("tokenizer.ggml.tokens", "")
    return tokens[1:].split(" ", 1)[0] if tokens.startswith("[") else texts.get(prefix + "vocab_size")


def _tokenizer(texts: Mapping[str, str]) -> str:
    kinds = (texts.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    return ", ".join(dict.fromkeys(kind for kind in kinds if kind))


def _grouped(text: str | None) -> str | None:
    """Return a whole number with separators; any other text unchanged."""
    return f"{int(text):,}" if text is not None and text.isascii() and text.isdigit() else text


def donors_of(chimera_id: int) -> Select[int | None]:
    """Return a SELECT of the ids of the models, without the base, from which a chimera has organs or adapters."""
    return (
        select(Lineage.parent_model_id)
        .join(Chimera, Chimera.model_id == Lineage.child_model_id)
        .where(Chimera.model_id == chimera_id, Lineage.evidence == "recorded")
        .where(Lineage.parent_model_id.is_not(None), Lineage.parent_model_id != Chimera.base_model_id)
        .distinct()
    )


def is_reachable(session: Session, model_id: int) -> bool:
    """Return whether the model is visible or yanked."""
    statement = select(Model.id).where(Model.id == model_id, Model.state.in_(REACHABLE_STATES))
    return session.scalar(statement) is not None


def has_public_place() -> ColumnElement[bool]:
    """Return the condition that a visible or yanked model has the Organ of the outer statement."""
    places = select(Placement.id).join(Model, Model.id == Placement.model_id)
    experts = select(Expert.id).join(Model, Model.id == Expert.model_id)
    return or_(
        places.where(Placement.organ_id == Organ.id, Model.state.in_(REACHABLE_STATES)).exists(),
        experts.where(Expert.organ_id == Organ.id, Model.state.in_(REACHABLE_STATES)).exists(),
    )


def removed_with_digest(session: Session, digest: Digest) -> Model | None:
    """Return the newest removed model of exactly these bytes, or None. Its row has little more than name and reason.

    Models that were never public are left out. Callers check this before they publish the same bytes again.
    """
    statement = select(Model).where(Model.digest == digest, Model.state == "removed", was_public())
    return session.scalars(statement.order_by(Model.id.desc()).limit(1)).one_or_none()


def yanked_with_digest(session: Session, digest: Digest) -> Model | None:
    """Return the newest model of exactly these bytes that another account than its owner's yanked, or None."""
    statement = select(Model).where(Model.digest == digest, Model.state == "yanked").order_by(Model.id.desc())
    for model in session.scalars(statement).all():
        yanker = yanked_by(session, model.id)
        if yanker is not None and yanker.lower() != model.namespace.lower():
            return model
    return None


VERSIONS_MAX = 100
COMPARED_MAX = 100_000
"""The most tensors that are compared for the versions on a page. Older versions are listed without changes."""
OWN_STATES = (*REACHABLE_STATES, "quarantined")
"""States of models that their owner and administrators can see."""


def published_model(session: Session, model: Model) -> PublishedModel:
    """Return the state of `model`, and the values that its owner may change."""
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
    """Return the model of that name, also if it is quarantined; raises NotFound as `model_by_name` does.

    Without a version, a version in the state `first` is preferred, then a visible one, then a yanked one; among equal
    states, the newest.
    """
    statement = select(Model).where(
        Model.namespace == name.namespace, Model.name == name.name, Model.state.in_(OWN_STATES)
    )
    if name.version is not None:
        statement = statement.where(Model.version == name.version)
    order = (Model.state != first, Model.state != "visible", Model.state != "yanked", Model.version.desc())
    model = session.scalars(statement.order_by(*order).limit(1)).one_or_none()
    return model_by_name(session, name) if model is None else model


def versions(session: Session, model: Model, states: Sequence[str], limit: int) -> ModelVersions:
    """Return the newest `limit` versions of the name of `model` in one of `states`."""
    same_name = (Model.namespace == model.namespace, Model.name == model.name, Model.state.in_(states))
    # One row more than `limit` is read, because the last version is compared with it.
    rows = session.scalars(select(Model).where(*same_name).order_by(Model.version.desc()).limit(limit + 1)).all()
    budget, items = COMPARED_MAX, []
    for version, previous in zip_longest(rows[:limit], rows[1:]):
        budget -= version.tensors
        is_compared = previous is not None and budget >= previous.tensors
        items.append(_version(version, _changes(session, version, previous) if is_compared else None))
    count = session.scalar(select(func.count()).select_from(Model).where(*same_name)) or 0
    return ModelVersions(items=tuple(items), left_out=count - len(items))


def descendants_page(session: Session, model: Model, limit: int, after: str | None = None) -> DescendantPage:
    """Return the next `limit` visible chimeras of `model` after the cursor `after`. Raises BadQuery."""
    check_limit(limit)
    query = f"descendants of {model.full_name}"
    children = select(Lineage.child_model_id).where(Lineage.parent_model_id == model.id, Lineage.evidence == "recorded")
    statement = (
        select(Model, Chimera, Contributor.name)
        .join(Chimera, Chimera.model_id == Model.id)
        .join(Contributor, Contributor.id == Model.contributor_id)
        .where(Model.id.in_(children), Model.state == "visible")
    )
    if after is not None:
        statement = statement.where(Model.id < parse_cursor(query, after).id)
    rows = session.execute(statement.order_by(Model.id.desc()).limit(limit + 1)).all()
    ids = [child.id for child, _, _ in rows]
    relations = _relations(session, model, ids)
    items = tuple(
        _descendant(model, child, chimera, contributor, relations[child.id])
        for child, chimera, contributor in rows[:limit]
    )
    return DescendantPage(items=items, next=next_cursor(query, ids, limit))


def count_descendants(session: Session, model: Model) -> int:
    """Return the number of visible chimeras with `model` as base or donor."""
    children = select(Lineage.child_model_id).where(Lineage.parent_model_id == model.id, Lineage.evidence == "recorded")
    statement = select(func.count()).select_from(Chimera).join(Model, Model.id == Chimera.model_id)
    return session.scalar(statement.where(Model.id.in_(children), Model.state == "visible")) or 0


def _relations(session: Session, model: Model, children: Collection[int]) -> dict[int, list[str]]:
    relations: dict[int, list[str]] = {child: [] for child in children}
    statement = select(Lineage.child_model_id, Lineage.relation).where(
        Lineage.parent_model_id == model.id, Lineage.evidence == "recorded", Lineage.child_model_id.in_(children)
    )
    for child, relation in session.execute(statement.order_by(Lineage.id)):
        relations[child or 0].append(relation)
    return relations


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


def _changes(session: Session, model: Model, previous: Model) -> VersionChanges:
    new, old = (_organs_by_name(session, version.id) for version in (model, previous))
    common = new.keys() & old.keys()
    return VersionChanges(
        since=previous.full_name,
        size_bytes=model.size_bytes - previous.size_bytes,
        changed=sum(1 for name in common if new[name] != old[name]),
        added=len(new) - len(common),
        gone=len(old) - len(common),
    )


def _descendant(model: Model, child: Model, chimera: Chimera, contributor: str, relations: Sequence[str]) -> Descendant:
    acts, organs = _share(model, child, chimera, relations)
    return Descendant(
        name=child.full_name,
        title=child.title,
        lock_id=Digest(chimera.lock_id),
        contributor=contributor,
        role="base" if chimera.base_model_id == model.id else "donor",
        acts=tuple(act for act in ACTS if act in acts),
        organs=organs,
        created_at=child.created_at,
    )


def _share(model: Model, child: Model, chimera: Chimera, relations: Sequence[str]) -> tuple[set[str], int]:
    """Return the acts by which `child` got organs of `model`, and the number of these organs.

    For an adapter, it is the number of organs that the adapter changed.
    """
    origins = json.loads(chimera.origins)
    numbers = {label: number for number, label in enumerate(origins["parents"])}
    model_number = numbers.get(model.full_name)
    own_acts = [acts for number, *acts in origins["parts"].values() if number == model_number]
    if chimera.base_model_id == model.id:
        from_others = len(origins["parts"]) - len(own_acts)
        return {act for acts in own_acts for act in acts}, child.tensors - from_others
    if not own_acts and "adapter" in relations:
        return {"adapter"}, sum("adapter" in acts for _, *acts in origins["parts"].values())
    return {act for acts in own_acts for act in acts} | set(relations), len(own_acts)


def _organs_by_name(session: Session, model_id: int) -> dict[str, int]:
    return dict(session.execute(select(Placement.name, Placement.organ_id).where(Placement.model_id == model_id)).all())


LISTED_VERSIONS_MAX = 1000
"""The most versions that the hub serves as tags and by commit: the newest."""


def versions_of(session: Session, name: ModelName) -> Sequence[Model]:
    """Return the versions of a model: visible ones, newest first, then yanked ones."""
    statement = select(Model).where(
        Model.namespace == name.namespace, Model.name == name.name, Model.state.in_(REACHABLE_STATES)
    )
    ordered = statement.order_by(Model.state != "visible", Model.version.desc())
    found = session.scalars(ordered.limit(LISTED_VERSIONS_MAX)).all()
    other = None if found else model_of_other_name(session, name)
    return found if other is None else [other]


QUANTISATIONS_MAX = 200
"""The most models that are read to find the quantisations of one model."""
PROJECTOR = "mmproj"
"""The word in the names of the vision and audio parts of a model, which have files of their own."""


def quantisations_of(session: Session, name: ModelName) -> list[Model]:
    """Return the newest visible version of each quantisation of the model `name`, by name; its projectors come last.

    They are whole models whose names are `name`, a separator and a quantisation. A projector is such a model with
    `mmproj` before or after `name`; it may have no quantisation.
    """
    stems = (name.name, f"{PROJECTOR}-{name.name}", f"{name.name}-{PROJECTOR}")
    has_quantisation = or_(Model.stem != name.name, Model.quantisation.is_not(None))
    statement = select(Model).where(Model.namespace == name.namespace, Model.stem.in_(stems), has_quantisation)
    statement = statement.where(Model.state == "visible", Model.complete, Model.kind.in_(WEIGHT_KINDS), is_newest())
    statement = statement.where(Model.unassemblable == "[]")
    rows = session.scalars(statement.order_by(Model.name).limit(QUANTISATIONS_MAX)).all()
    return sorted(rows, key=lambda row: (is_projector(row), row.name))


def is_projector(model: Model) -> bool:
    """Return whether a model is called the vision or audio part of another model."""
    return model.stem.startswith(f"{PROJECTOR}-") or model.stem.endswith(f"-{PROJECTOR}")


def is_newest() -> ColumnElement[bool]:
    """Return the condition that a Model has no newer visible version."""
    newer = aliased(Model)
    return ~exists().where(
        newer.namespace == Model.namespace,
        newer.name == Model.name,
        newer.version > Model.version,
        newer.state == "visible",
    )


def files_by_model(session: Session, model_ids: Collection[int]) -> dict[int, list[ModelFile]]:
    """Return the files of each model, in their order."""
    files: dict[int, list[ModelFile]] = {model_id: [] for model_id in model_ids}
    for batch in batches(sorted(model_ids)):
        statement = select(ModelFile).where(ModelFile.model_id.in_(batch))
        for file in session.scalars(statement.order_by(ModelFile.model_id, ModelFile.position)):
            files[file.model_id].append(file)
    return files


def reachable_file(session: Session, sha256: Digest) -> tuple[Model, ModelFile] | None:
    """Return a file with this SHA-256 and its model, which is visible or yanked; a visible one first, then the oldest.

    Models that loaders cannot open are left out.
    """
    statement = (
        select(Model, ModelFile)
        .join(ModelFile, ModelFile.model_id == Model.id)
        .where(ModelFile.sha256 == sha256, Model.state.in_(REACHABLE_STATES), Model.unassemblable == "[]")
    )
    row = session.execute(statement.order_by(Model.state != "visible", Model.id).limit(1)).one_or_none()
    return None if row is None else (row[0], row[1])


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
    session: Session, query: RepositoryQuery, limit: int, after: str | None = None
) -> tuple[Sequence[Model], str | None]:
    """Return the newest visible version of each model that matches `query`, and the cursor of the next page.

    Raises BadQuery for a limit outside of 1 to PAGE_MAX, and for a cursor of another query.
    """
    check_limit(limit)
    statement = select(Model).where(Model.state == "visible", is_newest())
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
        cursor = parse_cursor(str(query), after, missing=False)
        is_after = tuple_(Model.downloads, Model.id) < tuple_(cursor.value, cursor.id)
        statement = statement.where(is_after if query.by_downloads else Model.id < cursor.id)
    order = (Model.downloads.desc(),) if query.by_downloads else ()
    rows = session.scalars(statement.order_by(*order, Model.id.desc()).limit(limit + 1)).all()
    if len(rows) <= limit:
        return rows, None
    last = rows[limit - 1]
    return rows[:limit], cursor_text(str(query), PageEnd(last.downloads if query.by_downloads else last.id, last.id))


def file_names_of(session: Session, model_ids: Collection[int]) -> dict[int, list[str]]:
    """Return the names of the files of each model, in their order."""
    names: dict[int, list[str]] = {model_id: [] for model_id in model_ids}
    statement = select(ModelFile.model_id, ModelFile.name).where(ModelFile.model_id.in_(model_ids))
    for model_id, name in session.execute(statement.order_by(ModelFile.model_id, ModelFile.position)):
        names[model_id].append(name)
    return names


def name_of_organ(session: Session, organ_id: int, name: str | None) -> str | None:
    """Return the tensor name of the oldest public place of the organ, or None without a public place.

    An expert has the name of its stack. With `name`, only places with this tensor name count.
    """
    statement = select(Placement.name).join(Model, Model.id == Placement.model_id)
    statement = statement.where(Model.state.in_(REACHABLE_STATES)).order_by(Placement.id).limit(1)
    if name is not None:
        statement = statement.where(Placement.name == name)
    whole = session.scalars(statement.where(Placement.organ_id == organ_id)).one_or_none()
    if whole is not None:
        return whole
    experts = statement.join(Expert, Expert.placement_id == Placement.id).where(Expert.organ_id == organ_id)
    return session.scalars(experts).one_or_none()


def model_by_digest(session: Session, prefix: str) -> Model:
    """Return the oldest visible model with a digest that begins with `prefix`: of its bytes, its file or its lock.

    Raises BadDigest, NotFound, Ambiguous if several digests begin with it.
    """
    bare = parse_prefix(prefix)
    conditions: list[ColumnElement[bool]] = [
        Model.digest.startswith(bare),
        Model.id.in_(select(ModelFile.model_id).where(ModelFile.sha256.startswith(bare))),
        Model.id.in_(select(Chimera.model_id).where(Chimera.lock_id.startswith(bare))),
    ]
    for condition in conditions:
        statement = select(Model).where(condition, Model.state.in_(REACHABLE_STATES))
        models = session.scalars(statement.order_by(Model.state != "visible", Model.id).limit(100)).all()
        if len({model.digest for model in models}) > 1:
            raise Ambiguous(f"the digests of several models begin with {bare}: type more digits")
        if models:
            return models[0]
    raise NotFound(f"no model or chimera has a digest that begins with {bare}")


def is_digest(text: str) -> bool:
    """Return whether `text` is a digest: only with `sha256:`, because a name may look like a digest."""
    return text.startswith("sha256:") and looks_like_prefix(text)


def model_by_text(session: Session, text: str) -> Model:
    """Return the model with a name, or with `sha256:` and a digest of its bytes, its file or its lock.

    Raises BadName, BadDigest, NotFound, Ambiguous.
    """
    return model_by_digest(session, text) if is_digest(text) else model_by_name(session, parse_model_name(text))


def find_model_by_text(session: Session, text: str) -> Model | None:
    """Return the model as `model_by_text` does, or None; it does not search for the nearest name, which is slow."""
    try:
        if is_digest(text):
            return model_by_digest(session, text)
        return _known_model(session, parse_model_name(text))
    except (NotFound, Ambiguous, BadName, BadDigest, Incomplete, Removed, SeveralModels):
        return None


def model_with_header(session: Session, header: Digest) -> Model | None:
    """Return the oldest model whose first file has the header `header`, a visible model if possible."""
    statement = (
        select(Model)
        .join(ModelFile, ModelFile.model_id == Model.id)
        .where(ModelFile.header_sha256 == header, ModelFile.position == 0, Model.state.in_(REACHABLE_STATES))
        .order_by(Model.state != "visible", Model.id)
    )
    return session.scalars(statement.limit(1)).one_or_none()


def header_bytes_of(session: Session, model_id: int) -> int:
    """Return the size of the header of a model's first file."""
    statement = select(ModelFile.header_bytes).where(ModelFile.model_id == model_id, ModelFile.position == 0)
    return session.scalar(statement) or 0


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
        select(Model)
        .join(counted, counted.c.model_id == Model.id)
        .where(Model.state == "visible", Model.complete.is_(true()), Model.kind.in_(WEIGHT_KINDS))
        .order_by(is_composed(), counted.c.edges.desc(), Model.id.desc())
    )
    return model_summaries(session, session.scalars(statement.limit(limit)).all())
