"""Answers of a registry elsewhere to the values that scripts get of any: searches, counts, models."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from organs.registry.client.shape import (
    Each,
    Maybe,
    Members,
    Named,
    Values,
    anything,
    digest,
    flag,
    moment,
    number,
    text,
    whole,
    word,
)
from organs.registry.digest import Digest
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import BadRecipe, BadReply, NotAssemblable

if TYPE_CHECKING:
    from organs.registry.compose.recipe import Recipe
    from organs.registry.present.registered import RegisteredModel

SUMMARY: Members = {
    "name": word,
    "title": Maybe(text),
    "kind": word,
    "architecture": Maybe(text),
    "parameters": whole,
    "tensors": whole,
    "size_bytes": whole,
    "mean_theta": Maybe(number),
    "mean_signal": Maybe(number),
    "license": Maybe(text),
    "complete": flag,
    "digest": digest,
    "created_at": moment,
    "nonfinite_tensors": Maybe(whole),
}
_EDGE: Members = {
    "direction": text,
    "model": Maybe(text),
    "text": Maybe(text),
    "relation": text,
    "evidence": text,
    "likeness": Maybe(number),
    "compared": Maybe(whole),
}
_TYPE: Members = {
    "type": text,
    "tensors": whole,
    "size_bytes": whole,
    "mean_theta": Maybe(number),
    "mean_spectral_signal": Maybe(number),
}
MODEL: Members = {
    **SUMMARY,
    "state": word,
    "contributor": text,
    "state_reason": Maybe(text),
    "changed_at": Maybe(text),
    "downloads": whole,
    "grafts": whole,
    "description": Maybe(text),
    "flags": Each(text),
    "unassemblable": Each(text),
    "types": Each(_TYPE),
    "files": Each({"name": text, "size_bytes": whole, "sha256": digest}),
    "facts": Named(text),
    "lineage": Each(_EDGE),
    "lineage_left_out": whole,
    "findings": Each({"severity": text, "code": text, "sentence": text}),
    "composed": Maybe({"lock_id": digest, "parents": Each(text), "recipe": Named(anything)}),
}


def partial_recipe(values: Values) -> Recipe | None:
    """Of a checked model that has only some organs, its base with these; None of any other.

    As `registry.compose.models` has it; raises NotAssemblable where no base of it is registered.
    """
    edges = [one for one in values["lineage"] if (one["direction"], one["evidence"]) == ("parent", "declared")]
    if values["complete"] or not edges:
        return None
    from organs.registry.compose.recipe import Graft, Recipe, Selection

    base = next((one["model"] for one in edges if one["model"] is not None), None)
    if base is None:
        named = ", ".join(one["text"] or "" for one in edges)
        reason = f"it has only some organs, and its base, {named}, is not registered there"
        raise NotAssemblable(values["name"], [reason])
    return Recipe(base, grafts=(Graft(Selection(), donor=values["name"]),))


def registered_model(values: Values, organs: tuple[PlacedOrgan, ...]) -> RegisteredModel:
    """A model out of its own answer and those for its organs, all of which were checked."""
    from organs.registry.present.registered import RegisteredModel, Relative  # with the tables, which searches need not

    composed = values["composed"]
    return RegisteredModel(
        name=values["name"],
        digest=Digest(values["digest"]),
        title=values["title"],
        description=values["description"],
        kind=values["kind"],
        architecture=values["architecture"],
        license=values["license"],
        complete=values["complete"],
        parameters=values["parameters"],
        size_bytes=values["size_bytes"],
        mean_theta=values["mean_theta"],
        created_at=datetime.fromisoformat(values["created_at"]),
        organs=organs,
        relatives=tuple(
            Relative(
                direction=edge["direction"],
                model=edge["model"],
                text=edge["text"],
                relation=edge["relation"],
                evidence=edge["evidence"],
                likeness=edge["likeness"],
            )
            for edge in values["lineage"]
        ),
        recipe=None if composed is None else _recipe(composed["recipe"]),
        lock_id=None if composed is None else Digest(composed["lock_id"]),
    )


def _recipe(values: Values) -> Recipe:
    from organs.registry.compose.recipe_io import read_recipe

    try:
        return read_recipe(json.dumps(values, ensure_ascii=False), "the recipe that the registry gives")
    except BadRecipe as error:
        raise BadReply(str(error)) from error
