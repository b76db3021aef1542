"""Whose a model is: what its owner, and an administrator, may do with it; everybody else learns what anybody would."""

from __future__ import annotations

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.events import yanked_by
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.queries.published import own_model
from organs.registry.catalog.tables import Model
from organs.registry.errors import Conflict, NotAllowed
from organs.registry.names import ModelName
from organs.web.identity import ADMIN, UPLOAD, identity
from organs.web.writing import may_write

NOT_YOURS = "This model is in the namespace of somebody else."


def is_shown_all(namespace: str) -> bool:
    """Whether who asks is told of quarantined models in `namespace`."""
    return identity().owns(namespace) or identity().may(ADMIN)


def may_edit(namespace: str) -> bool:
    """Whether who asks may change what is said of the models in `namespace`."""
    return identity().owns(namespace) and may_write(UPLOAD)


def may_yank(namespace: str) -> bool:
    """Whether who asks may yank and restore the models in `namespace`."""
    return may_edit(namespace) or may_write(ADMIN)


def known_model(session: Session, name: ModelName, first: str = "visible") -> Model:
    """The model of that name, as far as who asks may know of it; raises NotFound, with one sentence for all.

    Where no version is named its owner means the newest in the state `first`.
    """
    return own_model(session, name, first) if is_shown_all(name.namespace) else model_by_name(session, name)


def model_to_edit(session: Session, name: ModelName) -> Model:
    """The same for who may edit it: raises NotFound, NotAllowed (403) where it is somebody else's."""
    return _checked(known_model(session, name), may_edit(name.namespace))


def model_to_yank(session: Session, name: ModelName) -> Model:
    """The same for who may yank it. Raises Conflict for one that an administrator yanked: that word stands."""
    model = _checked(known_model(session, name), may_yank(name.namespace))
    _check_yanker(session, model)
    return model


def model_to_restore(session: Session, name: ModelName) -> Model:
    """The same for who may restore it. Raises Conflict for one that waits for an administrator, but to that one, and
    for one that an administrator yanked."""
    model = _checked(known_model(session, name, "yanked"), may_yank(name.namespace))
    if model.state == "quarantined" and not may_write(ADMIN):
        raise Conflict(f"{model.full_name} waits for an administrator, who publishes it or refuses it")
    _check_yanker(session, model)
    return model


def _check_yanker(session: Session, model: Model) -> None:
    """What its owner yanked, or who asks, the owner has a say in; what an administrator did, administrators alone."""
    yanker = yanked_by(session, model.id) if model.state == "yanked" else None
    own = (model.namespace.lower(), (identity().name or "").lower())
    if yanker is not None and yanker.lower() not in own and not may_write(ADMIN):
        raise Conflict(f"{model.full_name} was yanked by an administrator, who alone restores it")


def _checked(model: Model, may: bool) -> Model:
    if not may:
        raise NotAllowed(_why(model.namespace))
    return model


def _why(namespace: str) -> str:
    return f"this needs a token with the scope {UPLOAD}" if identity().owns(namespace) else NOT_YOURS
