"""A model that was kept back becomes visible, and finds its place among the others."""

from __future__ import annotations

from sqlalchemy.orm import Session

from organs.registry.catalog.register.states import show_model
from organs.registry.catalog.tables import Model
from organs.registry.relatives import record_relatives, resolve_declared


def publish_model(session: Session, model: Model, by: str) -> None:
    """Show a quarantined or yanked model, look for its relatives, and lead what it declares, and what may mean it.

    Nothing of that was done while nobody was to know of it; what came in meanwhile has not looked at it either. One
    that is visible already stays as it is. Raises Conflict for a model that was removed.
    """
    if model.state == "visible":
        return
    show_model(session, model, by)
    record_relatives(session, model)
    resolve_declared(session, model)
