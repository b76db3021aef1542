"""A model that has only some organs: what it is with its base.

Such a model is what was trained and nothing else. Its file is kept as it came in, and no runtime loads it; put together
with its base, all of its organs grafted, it is a chimera like any other.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from registry.catalog.queries.relatives import models_by_id, parents_of
from registry.catalog.tables import Model
from registry.compose.recipe import Graft, Recipe, Selection
from registry.errors import NotAssemblable


def is_partial(session: Session, model: Model) -> bool:
    """Whether `model` has only some organs, and names a base that has the others."""
    return model.kind == "model" and not model.complete and bool(parents_of(session, [model.id], ("declared",)))


def partial_base(session: Session, model: Model) -> Model | None:
    """The first parent that `model` declares and that is registered here."""
    edges = parents_of(session, [model.id], ("declared",))
    known = models_by_id(session, {edge.parent_model_id for edge in edges if edge.parent_model_id is not None})
    return next((known[edge.parent_model_id] for edge in edges if edge.parent_model_id in known), None)


def partial_recipe(session: Session, model: Model) -> Recipe:
    """The base of `model` with all of its organs; raises NotAssemblable where no base of it is registered."""
    base = partial_base(session, model)
    if base is None:
        named = ", ".join(edge.parent_text or "" for edge in parents_of(session, [model.id], ("declared",)))
        reason = f"it has only some organs, and its base, {named}, is not registered here"
        raise NotAssemblable(model.full_name, [reason])
    return Recipe(base.full_name, grafts=(Graft(Selection(), donor=model.full_name),))


def refuse_partial(session: Session, model: Model) -> None:
    """Raise NotAssemblable for a model that is none without its base, with what to do instead."""
    if is_partial(session, model):
        base = partial_base(session, model)
        how = "its base is not registered here" if base is None else f"graft it into its base, {base.full_name}"
        reason = f"it has only some organs: {how}, or fetch the file that came in, as it is"
        raise NotAssemblable(model.full_name, [reason])
