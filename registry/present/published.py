"""What became of a model after it was published, as plain values: its versions, its state, and who grafted from it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.published import Changed, DescendantsPage, Versions
from organs.registry.catalog.register.editing import declared_base
from organs.registry.catalog.tables import Chimera, Model
from organs.registry.entities.plan import ACTS
from organs.registry.present.values import Values


def published_values(session: Session, model: Model) -> Values:
    """What its owner may change of a model, and its state."""
    return {
        "name": model.full_name,
        "state": model.state,
        "state_reason": model.state_reason,
        "changed_at": None if model.changed_at is None else model.changed_at.isoformat(),
        "title": model.title,
        "description": model.description,
        "license": model.license,
        "tags": json.loads(model.tags),
        "base": declared_base(session, model) or None,
    }


def versions_values(found: Versions) -> Values:
    """Versions, newest first; `left_out` counts the older ones."""
    return {"items": [_version(model, changed) for model, changed in found.items], "left_out": found.left_out}


def descendants_values(model: Model, page: DescendantsPage) -> Values:
    """Chimeras that have organs of `model`, newest first."""
    return {"items": [_descendant(model, *row) for row in page.items], "next": page.next}


def _version(model: Model, changed: Changed | None) -> Values:
    return {
        "name": model.full_name,
        "version": model.version,
        "state": model.state,
        "state_reason": model.state_reason,
        "title": model.title,
        "digest": model.digest,
        "size_bytes": model.size_bytes,
        "tensors": model.tensors,
        "downloads": model.downloads,
        "grafts": model.grafts,
        "created_at": model.created_at.isoformat(),
        "changes": None
        if changed is None
        else {
            "since": changed.before.full_name,
            "size_bytes": model.size_bytes - changed.before.size_bytes,
            "changed": changed.changed,
            "added": changed.added,
            "gone": changed.gone,
        },
    }


def _descendant(model: Model, child: Model, chimera: Chimera, maker: str, relations: Sequence[str]) -> Values:
    acts, organs = _share(model, child, chimera, relations)
    return {
        "name": child.full_name,
        "title": child.title,
        "lock_id": chimera.lock_id,
        "contributor": maker,
        "role": "base" if chimera.base_model_id == model.id else "donor",
        "acts": [act for act in ACTS if act in acts],
        "organs": organs,
        "created_at": child.created_at.isoformat(),
    }


def _share(model: Model, child: Model, chimera: Chimera, relations: Sequence[str]) -> tuple[set[str], int]:
    """By which acts a chimera came from `model`, and how many of its organs did; of an adapter, how many it changed."""
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
