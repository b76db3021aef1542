"""A model that has only some organs: what it is with its base.

Such a model is what was trained and nothing else. Its file is kept as it came in, and no runtime loads it; put together
with its base, all of its organs grafted, it is a chimera like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy.orm import Session

from organs.registry.anatomy import place_of
from organs.registry.catalog.queries.relatives import models_by_id, parents_of
from organs.registry.catalog.tables import Model
from organs.registry.compose.findings import listed
from organs.registry.compose.models import effective_shape, parts_of
from organs.registry.compose.recipe import Graft, Recipe, Selection
from organs.registry.errors import NotAssemblable
from organs.registry.gguf import TensorSpec


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


def why_unfit(session: Session, base: Model, organs: Iterable[TensorSpec]) -> str | None:
    """Why `organs` cannot be grafted into `base`, which lacks a place for some or has another shape there.

    One sentence with the first few names; None where every one of them has a place. What only a plan finds out, such as
    organs that work in groups, is left to it.
    """
    parts = {part.slot: part for part in parts_of(session, base.id)}
    lacking, unlike = [], []
    for organ in organs:
        place = place_of(organ.name)
        part = parts.get((place.tower.value, place.block, place.slot))
        if part is None:
            lacking.append(organ.name)
        elif effective_shape(part.shape) != effective_shape(organ.shape):
            unlike.append(f"{organ.name} ({_shape(organ.shape)}, there {_shape(part.shape)})")
    reasons = [f"that has no place for {listed(lacking)}"] if lacking else []
    reasons += [f"other shapes are due for {listed(unlike)}"] if unlike else []
    return f"Its organs do not fit into its base, {base.full_name}: {'; '.join(reasons)}." if reasons else None


def refuse_partial(session: Session, model: Model) -> None:
    """Raise NotAssemblable for a model that is none without its base, with what to do instead."""
    if is_partial(session, model):
        base = partial_base(session, model)
        how = "its base is not registered here" if base is None else f"graft it into its base, {base.full_name}"
        reason = f"it has only some organs: {how}, or fetch the file that came in, as it is"
        raise NotAssemblable(model.full_name, [reason])


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(str(length) for length in shape)
