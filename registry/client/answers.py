"""Answers of a registry elsewhere to the values that scripts get of any: searches, counts, models."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING

from organs.registry.catalog.search import FacetCounts, FoundModel, FoundOrgan, ModelsPage, SearchPage
from organs.registry.catalog.search.fields import CHIMERA, PARTIAL
from organs.registry.client.shape import (
    Each,
    Maybe,
    Members,
    Named,
    Values,
    anything,
    check,
    digest,
    flag,
    moment,
    number,
    text,
    whole,
    word,
)
from organs.registry.digest import Digest
from organs.registry.errors import BadRecipe, BadReply, NotAssemblable

if TYPE_CHECKING:
    from organs.registry.compose.recipe import Recipe
    from organs.registry.present.registered import RegisteredModel

_COUNTED = ("type", "slot", "dtype", "arch", "license")
_PLACED: Members = {
    "name": text,
    "type": text,
    "tower": text,
    "block": Maybe(whole),
    "slot": text,
    "dtype": text,
    "size_bytes": whole,
    "theta": Maybe(number),
    "magnitude": Maybe(number),
    "signal": Maybe(number),
    "spectral_signal": Maybe(number),
    "stable_rank": Maybe(number),
}
_FOUND: Members = {
    **_PLACED,
    "digest": digest,
    "model": text,
    "shape": Each(whole, 8),
    "architecture": Maybe(text),
    "license": Maybe(text),
    "likeness": Maybe(number),
    "nonfinite": Maybe(whole),
}
_PAGE: Members = {"next": Maybe(text), "notes": Each(text)}
ORGANS: Members = {**_PAGE, "items": Each(_FOUND)}
PLACEMENTS: Members = {**_PAGE, "items": Each({**_PLACED, "digest": digest, "shape": text, "nonfinite": Maybe(whole)})}
FACETS: Members = {
    "total": Maybe(whole),
    "exact": flag,
    "uncounted": Each(text),
    "hurried": flag,
    **dict.fromkeys(_COUNTED, Named(whole)),
    "theta": Each({"from": Maybe(whole), "count": whole}),
}
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
MODELS: Members = {**_PAGE, "items": Each(SUMMARY)}
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


def search_page(values: Values) -> SearchPage:
    """A page of organs."""
    check(values, ORGANS, "organs")
    items = tuple(_found(one) for one in values["items"])
    return SearchPage(items, values["next"], tuple(values["notes"]))


def facet_counts(values: Values) -> FacetCounts:
    """How a search's findings are spread."""
    check(values, FACETS, "facets")
    return FacetCounts(
        total=values["total"],
        fields={name: values[name] for name in _COUNTED},
        theta={one["from"]: one["count"] for one in values["theta"]},
        exact=values["exact"],
        uncounted=tuple(values["uncounted"]),
        hurried=values["hurried"],
    )


def models_page(values: Values) -> ModelsPage:
    """A page of models."""
    check(values, MODELS, "models")
    return ModelsPage(tuple(_found_model(one) for one in values["items"]), values["next"], tuple(values["notes"]))


def partial_recipe(values: Values) -> Recipe | None:
    """Of a checked model that has only some organs, its base with these; None of any other.

    As `registry.compose.partial` has it; raises NotAssemblable where no base of it is registered.
    """
    edges = [one for one in values["lineage"] if (one["direction"], one["evidence"]) == ("parent", "declared")]
    if values["kind"] != "model" or values["complete"] or not edges:
        return None
    from organs.registry.compose.recipe import Graft, Recipe, Selection

    base = next((one["model"] for one in edges if one["model"] is not None), None)
    if base is None:
        named = ", ".join(one["text"] or "" for one in edges)
        reason = f"it has only some organs, and its base, {named}, is not registered there"
        raise NotAssemblable(values["name"], [reason])
    return Recipe(base, grafts=(Graft(Selection(), donor=values["name"]),))


def registered_model(values: Values, placements: list[Values]) -> RegisteredModel:
    """A model out of its own answer and those for its organs, all of which were checked."""
    from organs.registry.present.registered import RegisteredModel, Relative  # with the tables, which searches need not

    composed = values["composed"]
    return RegisteredModel(
        name=values["name"],
        digest=Digest(values["digest"]),
        title=values["title"],
        description=values["description"],
        kind="model" if values["kind"] == CHIMERA else values["kind"],
        architecture=values["architecture"],
        license=values["license"],
        complete=values["complete"],
        parameters=values["parameters"],
        size_bytes=values["size_bytes"],
        mean_theta=values["mean_theta"],
        created_at=datetime.fromisoformat(values["created_at"]),
        organs=tuple(_placed(one, values) for one in placements),
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


def _found(values: Values) -> FoundOrgan:
    return FoundOrgan(**{name: values[name] for name in _ORGAN_FIELDS} | {"shape": tuple(values["shape"])})


def _found_model(values: Values) -> FoundModel:
    kept = {name: values[name] for name in _MODEL_FIELDS}
    kind = values["kind"] if values["complete"] else PARTIAL
    return FoundModel(**kept | {"kind": kind, "created_at": datetime.fromisoformat(values["created_at"])})


def _placed(values: Values, model: Values) -> FoundOrgan:
    own = {name: values[name] for name in (*_PLACED, "digest", "nonfinite")}
    try:
        shape = tuple(map(int, values["shape"].split("x")))
    except ValueError as error:
        raise BadReply(f"the registry does not answer as one does: {values['shape'][:40]!r} is no shape") from error
    return FoundOrgan(
        **own, model=model["name"], shape=shape, architecture=model["architecture"], license=model["license"]
    )


def _recipe(values: Values) -> Recipe:
    from organs.registry.compose.recipe_io import read_recipe

    try:
        return read_recipe(json.dumps(values, ensure_ascii=False), "the recipe that the registry gives")
    except BadRecipe as error:
        raise BadReply(str(error)) from error


_ORGAN_FIELDS = tuple(field.name for field in fields(FoundOrgan))
_MODEL_FIELDS = tuple(field.name for field in fields(FoundModel))
