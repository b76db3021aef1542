"""Which model a name, a text or a digest means; names that were removed, that are free, and that are similar."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.queries.events import was_public, yanked_by
from organs.registry.catalog.rows import count, first, is_named, rows_among, scalars_among
from organs.registry.catalog.tables import (
    ChimeraRow,
    ContributorRow,
    ModelFileRow,
    ModelRow,
    OtherName,
)
from organs.registry.catalog.vocabulary import OTHER_NAMES_MAX, REACHABLE_STATES
from organs.registry.digest import Digest, is_digest, parse_prefix
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


def removed_versions(session: Session, name: ModelName) -> Sequence[ModelRow]:
    """Return the removed versions of a name, or the removed version in `name`, newest first.

    Removed models that had the name as another one follow. Versions that were never public are left out, as if they
    had never existed.
    """
    is_removed = (ModelRow.state == "removed", was_public())
    own = select(ModelRow).where(is_named(name), *is_removed).order_by(ModelRow.version.desc())
    others = models_of_other_name(name).where(*is_removed)
    return [row for statement in (own, others) for row in session.scalars(statement.limit(REMOVALS_MAX))]


def removal(model: ModelRow) -> Removed:
    """Return the error for requests for a removed model, with the day and the reason."""
    day = None if model.changed_at is None else model.changed_at.date().isoformat()
    return Removed(model.full_name, model.state_reason or "", day)


def is_withdrawn() -> ColumnElement[bool]:
    """Return the condition that a ModelRow was yanked, or that it was removed after it was public."""
    return or_(ModelRow.state == "yanked", and_(ModelRow.state == "removed", was_public()))


def withdrawn_models(session: Session, full_names: Collection[str]) -> dict[str, ModelRow]:
    """Return the models among `full_names` (`acme/tiny@1`) that were yanked or removed, by name.

    Models that were removed before they were public are left out, and so are texts that are not full names.
    """
    keys = []
    for full_name in full_names:
        with suppress(BadName):
            name = parse_model_name(full_name)
            keys.append((name.namespace, name.name, name.version or 0))  # versions begin with 1
    key = tuple_(ModelRow.namespace, ModelRow.name, ModelRow.version)
    return {
        model.full_name: model for model in scalars_among(session, select(ModelRow).where(is_withdrawn()), key, keys)
    }


NAMES_MAX = 5000
"""The most names that are compared to suggest a similar name: the newest."""

NAME_CUTOFF = 0.8
"""The least similarity of a suggested name by `difflib`, 0 to 1."""
BEGIN_MIN = 3
"""The fewest letters for which a name that begins with them is suggested."""


def model_by_name(session: Session, name: ModelName) -> ModelRow:
    """Return the model of `find_model`, or the only one that `name` can mean; raises NotFound with a similar name.

    Raises SeveralModels for a name that can mean several models, Incomplete for a split model of which some shards are
    missing, and Removed for a removed model.
    """
    model = _known_model(session, name)
    if model is not None:
        return model
    statement = (
        select(ModelRow.namespace, ModelRow.name).where(ModelRow.state == "visible").order_by(ModelRow.id.desc())
    )
    names = session.execute(statement.limit(NAMES_MAX)).all()
    if not names:
        raise NothingRegistered(f"no model is registered as {name}")
    # Namespaces are not compared: all names of one namespace would be similar.
    by_name = {own.casefold(): f"{namespace}/{own}" for namespace, own in reversed(names)}
    typed = name.name.casefold()
    close = _same_size(typed, by_name) or nearest(name.name, by_name, NAME_CUTOFF) or _continued(typed, by_name)
    raise NotFound(f"no model is registered as {name}{f'; did you mean {by_name[close]}?' if close else ''}")


def _same_size(typed: str, words: Iterable[str]) -> str | None:
    """Return the shortest of `words` that begins and ends as a name with a quantisation: `tiny.q4_1-q4_0` for
    `tiny.q4_0`; else None."""
    stem, quantisation = split_quantisation(typed)
    ending = "" if quantisation is None else quantisation.casefold()
    same = [word for word in words if ending and word.startswith(stem) and word.endswith(ending)]
    return min(same, key=len, default=None)


def _continued(begin: str, words: Iterable[str]) -> str | None:
    """Return the shortest of `words` that begins with `begin`, which must be long enough to mean one; else None."""
    longer = [word for word in words if word.startswith(begin)] if len(begin) >= BEGIN_MIN else []
    return min(longer, key=len, default=None)


def _known_model(session: Session, name: ModelName) -> ModelRow | None:
    """Return the model of that name, or None if there is none; raises the other errors of `model_by_name`."""
    model = find_model(session, name)
    if model is not None:
        return model
    is_explained = or_(ModelRow.state == "incomplete", and_(ModelRow.state == "removed", was_public()))
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
    condition: Callable[[type[ModelRow | OtherName]], ColumnElement[bool]],
) -> bool:
    """Return whether the name, or another name, of a model whose state meets `has_state` meets a condition.

    A name that only hidden models have is answered like an unknown one, with the same statements: a further one would
    show in the time of the answer that it exists.
    """
    own = exists().where(condition(ModelRow), has_state)
    other = exists().where(condition(OtherName), OtherName.model_id == ModelRow.id, has_state)
    return session.scalar(select(or_(own, other))) or False


def models_by_name(session: Session, names: Iterable[ModelName]) -> list[ModelRow]:
    """Return the models of `model_by_name`; raises NotFound that reports all names without a model together."""
    return _all_found(partial(model_by_name, session), names)


def models_by_text(session: Session, texts: Iterable[str]) -> list[ModelRow]:
    """Return the models of `model_by_text`; raises NotFound that reports all texts without a model together."""
    return _all_found(partial(model_by_text, session), texts)


def _all_found(find: Callable[[T], ModelRow], wanted: Iterable[T]) -> list[ModelRow]:
    models, errors = [], list[NotFound]()
    for item in wanted:
        try:
            models.append(find(item))
        except NotFound as error:
            errors.append(error)
    if not errors:
        return models
    raise errors[0] if len(errors) == 1 else NotFound("; ".join(dict.fromkeys(map(str, errors))))


def incomplete_model(session: Session, name: ModelName) -> ModelRow | None:
    """Return the newest incomplete model of that name, or None."""
    own = select(ModelRow).where(is_named(name), ModelRow.state == "incomplete")
    return first(session, own.order_by(ModelRow.version.desc()))


def incompleteness(session: Session, model: ModelRow) -> Incomplete:
    """Return the error for requests for an incomplete model, with the shards that are missing."""
    assert model.shards is not None, "an incomplete model has a number of shards"
    positions = session.scalars(select(ModelFileRow.position).where(ModelFileRow.model_id == model.id))
    return Incomplete(model.full_name, model.shards, {position + 1 for position in positions})


INCOMPLETE_MAX = 10
"""The most incomplete models in the notes of a list."""


def incomplete_models(session: Session) -> list[Incomplete]:
    """Return the newest INCOMPLETE_MAX incomplete models, each as the error for requests for it."""
    statement = (
        select(ModelRow).where(ModelRow.state == "incomplete").order_by(ModelRow.created_at.desc(), ModelRow.id.desc())
    )
    return [incompleteness(session, model) for model in session.scalars(statement.limit(INCOMPLETE_MAX))]


def visible_model_with_file(
    session: Session, name: ModelName | None, number: int, files: int, *matches: ColumnElement[bool]
) -> ModelRow | None:
    """Return the oldest visible model, of that name if it is not None, whose file `number` of `files` files matches.

    `number` counts from 0; `matches` are conditions on ModelFileRow.
    """
    has_files = (
        select(func.count()).select_from(ModelFileRow).where(ModelFileRow.model_id == ModelRow.id).scalar_subquery()
    )
    candidates = select(ModelFileRow.model_id).where(ModelFileRow.position == number, *matches)
    statement = select(ModelRow).where(ModelRow.id.in_(candidates), ModelRow.state == "visible", has_files == files)
    return first(session, (statement if name is None else statement.where(is_named(name))).order_by(ModelRow.id))


def has_file(session: Session, model_id: int, number: int, *matches: ColumnElement[bool]) -> bool:
    """Return whether the file `number`, from 0, of a model matches the conditions `matches` on ModelFileRow."""
    statement = select(ModelFileRow.id).where(
        ModelFileRow.model_id == model_id, ModelFileRow.position == number, *matches
    )
    return session.scalar(statement) is not None


def check_model_name(session: Session, name: ModelName) -> None:
    """Raise BadName if `name` is new in this registry and stock clients would refuse it.

    Existing names may get further versions, and existing namespaces further names, because earlier versions of this
    program registered names that are refused now.
    """
    in_namespace = select(ModelRow.id).where(ModelRow.namespace == name.namespace).limit(1)
    if session.scalar(in_namespace.where(ModelRow.name == name.name)) is not None:
        return
    check_new_name(name.name)
    is_contributor = select(ContributorRow.id).where(ContributorRow.name == name.namespace)
    if session.scalar(is_contributor) is None and session.scalar(in_namespace) is None:
        check_new_name(name.namespace, "namespace")


def find_model(session: Session, name: ModelName) -> ModelRow | None:
    """Return the visible or yanked model of that name, or else the one that has it as another name; else None.

    Without a version in `name`, it is the newest visible version, or the newest yanked version if none is visible.
    """
    own = select(ModelRow).where(is_named(name), ModelRow.state.in_(REACHABLE_STATES))
    found = first(session, own.order_by(ModelRow.state != "visible", ModelRow.version.desc()))
    return model_of_other_name(session, name) if found is None else found


def model_of_other_name(session: Session, name: ModelName) -> ModelRow | None:
    """Return the visible or yanked model that has this name beside its own, or None."""
    return first(session, models_of_other_name(name).where(ModelRow.state.in_(REACHABLE_STATES)))


def models_of_other_name(name: ModelName) -> Select[ModelRow]:
    """Return a SELECT of the models that have this name beside their own, visible ones and newest versions first."""
    other = select(OtherName).where(is_named(name, OtherName)).subquery()
    statement = select(ModelRow).join(other, other.c.model_id == ModelRow.id)
    return statement.order_by(ModelRow.state != "visible", other.c.version.desc())


MEANT_MAX = 200
"""The most models that a name without its namespace or its quantisation may mean."""


def meant_models(session: Session, name: ModelName) -> dict[str, ModelRow]:
    """Return the models that may be meant by a name that no model has, by their names in full.

    They are the quantisations of the model `name`. If there are none, and the namespace is that of names that state
    none, they are the models of all namespaces with this name, or else their quantisations: only those that the user
    of this machine registered, so that other accounts cannot give a meaning to a name.
    """
    stem = split_quantisation(name.name)[0]
    if not _has_row(session, ModelRow.state == "visible", lambda table: table.stem.in_((stem, name.name))):
        return {}
    own = (ModelRow.namespace == name.namespace, OtherName.namespace == name.namespace)
    meant = _quantised(session, name, *own) if name.version is None else {}
    if meant or name.namespace != LOCAL:
        return meant
    is_local = ModelRow.contributor_id.in_(select(ContributorRow.id).where(ContributorRow.name == LOCAL))
    same = (
        and_(ModelRow.stem == stem, ModelRow.name == name.name, is_local),
        and_(OtherName.stem == stem, OtherName.name == name.name, is_local),
    )
    if name.version is not None:
        return _meant(session, *same, name.version)
    return _meant(session, *same) or _quantised(session, name, is_local, is_local)


def _quantised(
    session: Session, name: ModelName, own: ColumnElement[bool], other: ColumnElement[bool]
) -> dict[str, ModelRow]:
    """Return the models that are quantisations of the model `name`, in the namespaces of the conditions."""
    return _meant(
        session,
        and_(ModelRow.stem == name.name, ModelRow.quantisation.is_not(None), own),
        and_(OtherName.stem == name.name, OtherName.name != name.name, other),
    )


def _meant(
    session: Session, own: ColumnElement[bool], other: ColumnElement[bool], version: int | None = None
) -> dict[str, ModelRow]:
    """Return the visible models whose own name meets a condition, or else one of their other names.

    They have this version, or are the newest of their names.
    """
    is_version = is_newest() if version is None else ModelRow.version == version
    own_names = (
        select(ModelRow).where(own, ModelRow.state == "visible", is_version).order_by(ModelRow.namespace, ModelRow.name)
    )
    models = {f"{model.namespace}/{model.name}": model for model in session.scalars(own_names.limit(MEANT_MAX))}
    others = select(ModelRow, OtherName.namespace, OtherName.name).join(OtherName, OtherName.model_id == ModelRow.id)
    others = others if version is None else others.where(OtherName.version == version)
    others = others.where(other, ModelRow.state == "visible").order_by(OtherName.version.desc()).limit(MEANT_MAX)
    known = {model.id for model in models.values()}
    for model, namespace, name in session.execute(others):
        if model.id not in known and models.setdefault(f"{namespace}/{name}", model) is model:
            known.add(model.id)
    return models


def other_names(session: Session, model: ModelRow) -> list[str]:
    """Return the names that lead to `model` beside its own, sorted; names that are only a digest come last."""
    taken = aliased(ModelRow)
    has_name = (taken.namespace == OtherName.namespace, taken.name == OtherName.name)
    is_taken = exists().where(*has_name, taken.state.in_(REACHABLE_STATES))
    statement = select(OtherName.namespace, OtherName.name).where(OtherName.model_id == model.id, ~is_taken)
    names = {ModelName(namespace, name) for namespace, name in session.execute(statement.limit(OTHER_NAMES_MAX))}
    return [str(name) for name in sorted(names, key=lambda name: (is_digest_name(name), str(name)))]


def free_names(session: Session, model: ModelRow, names: Iterable[ModelName]) -> list[ModelName]:
    """Return the `names` that lead to no model, as many as `model` may have beside its own and those it has already.

    A name is free if no model has or had it, in any state, and none has it as another name.
    """
    room = max(0, OTHER_NAMES_MAX - count(session, OtherName, OtherName.model_id == model.id))
    free = [
        name
        for name in dict.fromkeys(names)
        if first(session, select(ModelRow.id).where(is_named(ModelName(name.namespace, name.name)))) is None
        and model_of_other_name(session, name) is None
    ]
    return free[:room]


def visible_model_with_digest(session: Session, digest: Digest, name: ModelName | None) -> ModelRow | None:
    """Return the oldest visible model of exactly these bytes, of that name if it is not None."""
    statement = select(ModelRow).where(ModelRow.digest == digest, ModelRow.state == "visible").order_by(ModelRow.id)
    return first(
        session, statement if name is None else statement.where(is_named(ModelName(name.namespace, name.name)))
    )


def newest_reachable(session: Session, name: ModelName) -> ModelRow | None:
    """Return the newest version of that name that is visible or yanked; None if no model has it as its own name."""
    own = select(ModelRow).where(is_named(ModelName(name.namespace, name.name)), ModelRow.state.in_(REACHABLE_STATES))
    return first(session, own.order_by(ModelRow.version.desc()))


def next_version(session: Session, name: ModelName) -> int:
    """Return the version that new bytes get under that name.

    Numbers of removed versions and of other names are not used again.
    """
    same_name = ModelName(name.namespace, name.name)
    newest = (select(func.max(table.version)).where(is_named(same_name, table)) for table in (ModelRow, OtherName))
    return max(session.scalar(statement) or 0 for statement in newest) + 1


def has_visible_model_of_size(session: Session, size_bytes: int) -> bool:
    """Return whether the files of a visible model have that total size."""
    return (
        first(session, select(ModelRow.id).where(ModelRow.state == "visible", ModelRow.size_bytes == size_bytes))
        is not None
    )


def quarantined_model(session: Session, digest: Digest, name: ModelName, contributor: str) -> ModelRow | None:
    """Return the oldest quarantined model of `contributor` with exactly these bytes and that name."""
    statement = select(ModelRow).join(ContributorRow, ContributorRow.id == ModelRow.contributor_id)
    same = (
        ModelRow.digest == digest,
        is_named(ModelName(name.namespace, name.name)),
        ContributorRow.name == contributor,
    )
    return first(session, statement.where(*same, ModelRow.state == "quarantined").order_by(ModelRow.id))


def models_in_any_state(session: Session, model_ids: Collection[int]) -> dict[int, ModelRow]:
    """Return the models with these ids, also hidden ones."""
    return {model.id: model for model in scalars_among(session, select(ModelRow), ModelRow.id, model_ids)}


def registered_digests(session: Session, digests: Collection[Digest]) -> dict[Digest, str]:
    """Return the name of a visible model with a file of each of these SHA-256s, if there is one."""
    names: dict[Digest, str] = {}
    statement = select(ModelFileRow.sha256, ModelRow).join(ModelRow, ModelRow.id == ModelFileRow.model_id)
    statement = statement.where(ModelRow.state == "visible").order_by(ModelRow.id)
    for sha256, model in rows_among(session, statement, ModelFileRow.sha256, digests):
        names.setdefault(Digest(sha256), model.full_name)
    return names


def removed_with_digest(session: Session, digest: Digest) -> ModelRow | None:
    """Return the newest removed model of exactly these bytes, or None. Its row has little more than name and reason.

    Models that were never public are left out. Callers check this before they publish the same bytes again.
    """
    statement = select(ModelRow).where(ModelRow.digest == digest, ModelRow.state == "removed", was_public())
    return first(session, statement.order_by(ModelRow.id.desc()))


def yanked_with_digest(session: Session, digest: Digest) -> ModelRow | None:
    """Return the newest model of exactly these bytes that another account than its owner's yanked, or None."""
    statement = (
        select(ModelRow).where(ModelRow.digest == digest, ModelRow.state == "yanked").order_by(ModelRow.id.desc())
    )
    for model in session.scalars(statement).all():
        yanker = yanked_by(session, model.id)
        if yanker is not None and yanker.lower() != model.namespace.lower():
            return model
    return None


OWN_STATES = (*REACHABLE_STATES, "quarantined")
"""States of models that their owner and administrators can see."""


def own_model(session: Session, name: ModelName, first_state: str = "visible") -> ModelRow:
    """Return the model of that name, also if it is quarantined; raises NotFound as `model_by_name` does.

    Without a version, a version in `first_state` is preferred, then a visible one, then a yanked one; among equal
    states, the newest.
    """
    own = select(ModelRow).where(is_named(name), ModelRow.state.in_(OWN_STATES))
    order = (
        ModelRow.state != first_state,
        ModelRow.state != "visible",
        ModelRow.state != "yanked",
        ModelRow.version.desc(),
    )
    return first(session, own.order_by(*order)) or model_by_name(session, name)


LISTED_VERSIONS_MAX = 1000
"""The most versions that the hub serves as tags and by commit: the newest."""


def versions_of(session: Session, name: ModelName) -> Sequence[ModelRow]:
    """Return the versions of a model: visible ones, newest first, then yanked ones."""
    own = select(ModelRow).where(is_named(ModelName(name.namespace, name.name)), ModelRow.state.in_(REACHABLE_STATES))
    ordered = own.order_by(ModelRow.state != "visible", ModelRow.version.desc())
    found = session.scalars(ordered.limit(LISTED_VERSIONS_MAX)).all()
    other = None if found else model_of_other_name(session, name)
    return found if other is None else [other]


def ids_of_name(session: Session, name: ModelName) -> set[int]:
    """Return the ids of all versions of a name, or of its version, in any state."""
    return set(session.scalars(select(ModelRow.id).where(is_named(name))))


def is_newest() -> ColumnElement[bool]:
    """Return the condition that a ModelRow has no newer visible version."""
    newer = aliased(ModelRow)
    return ~exists().where(
        newer.namespace == ModelRow.namespace,
        newer.name == ModelRow.name,
        newer.version > ModelRow.version,
        newer.state == "visible",
    )


def reachable_file(session: Session, sha256: Digest) -> tuple[ModelRow, ModelFileRow] | None:
    """Return a file with this SHA-256 and its model, which is visible or yanked; a visible one first, then the oldest.

    Models that loaders cannot open are left out.
    """
    statement = (
        select(ModelRow, ModelFileRow)
        .join(ModelFileRow, ModelFileRow.model_id == ModelRow.id)
        .where(ModelFileRow.sha256 == sha256, ModelRow.state.in_(REACHABLE_STATES), ModelRow.unassemblable == ())
    )
    row = session.execute(statement.order_by(ModelRow.state != "visible", ModelRow.id).limit(1)).one_or_none()
    return None if row is None else (row[0], row[1])


def model_by_digest(session: Session, prefix: str) -> ModelRow:
    """Return the oldest visible model with a digest that begins with `prefix`: of its bytes, its file or its lock.

    Raises BadDigest, NotFound, Ambiguous if several digests begin with it.
    """
    bare = parse_prefix(prefix)
    conditions: list[ColumnElement[bool]] = [
        ModelRow.digest.startswith(bare),
        ModelRow.id.in_(select(ModelFileRow.model_id).where(ModelFileRow.sha256.startswith(bare))),
        ModelRow.id.in_(select(ChimeraRow.model_id).where(ChimeraRow.lock_id.startswith(bare))),
    ]
    for condition in conditions:
        statement = select(ModelRow).where(condition, ModelRow.state.in_(REACHABLE_STATES))
        models = session.scalars(statement.order_by(ModelRow.state != "visible", ModelRow.id).limit(100)).all()
        if len({model.digest for model in models}) > 1:
            raise Ambiguous(f"the digests of several models begin with {bare}: type more digits")
        if models:
            return models[0]
    raise NotFound(f"no model or chimera has a digest that begins with {bare}")


def model_by_text(session: Session, text: str) -> ModelRow:
    """Return the model with a name, or with `sha256:` and a digest of its bytes, its file or its lock.

    Raises BadName, BadDigest, NotFound, Ambiguous.
    """
    return model_by_digest(session, text) if is_digest(text) else model_by_name(session, parse_model_name(text))


def find_model_by_text(session: Session, text: str) -> ModelRow | None:
    """Return the model as `model_by_text` does, or None; it does not search for the nearest name, which is slow."""
    try:
        if is_digest(text):
            return model_by_digest(session, text)
        return _known_model(session, parse_model_name(text))
    except (NotFound, Ambiguous, BadName, BadDigest, Incomplete, Removed, SeveralModels):
        return None


def model_with_header(session: Session, header: Digest) -> ModelRow | None:
    """Return the oldest model whose first file has the header `header`, a visible model if possible."""
    statement = select(ModelRow).join(ModelFileRow, ModelFileRow.model_id == ModelRow.id)
    is_first = (ModelFileRow.header_sha256 == header, ModelFileRow.position == 0, ModelRow.state.in_(REACHABLE_STATES))
    return first(session, statement.where(*is_first).order_by(ModelRow.state != "visible", ModelRow.id))
