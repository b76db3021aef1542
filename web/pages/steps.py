"""The steps of a recipe as addresses and forms of the composing pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

from flask import request, url_for
from msgspec import structs
from werkzeug.datastructures import MultiDict

from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.compose.assignment import is_same_name
from organs.registry.compose.blend_steps import BLEND_DEFAULT
from organs.registry.compose.recipe import Recipe, recipe_of
from organs.registry.compose.steps import LISTS, PARAMETERS, Step, read_steps, step_text, step_texts
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.plan import ALIKE, CANDIDATE_ORDERS, RecipeFile
from organs.registry.errors import BadQuery, BadRecipe
from organs.registry.transform.blend import METHODS
from organs.registry.transform.blend import PARAMETERS as BLEND_PARAMETERS
from organs.web.pages.chimera_names import typed_name

STEP_FIELDS = {
    "layer": ("from", "blocks"),
    "graft": ("from", "where", "sort", "strangers", "type", "slot", "blocks", "experts"),
    "blend": ("method", "from", "weight", "density", "where", "type", "slot", "blocks"),
    "adapter": ("from", "scale"),
    "purify": ("method", "where", "type", "slot", "blocks", "experts", "keep"),
    "expert": ("keep", "drop", "blocks"),
    "quantize": ("as", "type", "slot", "blocks"),
}
"""Fields of the forms that add a step, with the names that a recipe uses."""
SINGLE_FIELDS = {"imatrix": "matrix", "encode": "dtype", "source": "weights"}
"""The fields of the forms that set a single value. They are not named as the value, which is in the address too."""
SHARE_MIN, SHARE_MAX = 0.05, 1.5
"""Limits of the weight of a donor on the page; recipes allow more."""
FIND_MAX = 300


@dataclass(frozen=True, slots=True)
class RequestedSteps:
    """The steps as typed, and what is selected on the page."""

    steps: tuple[Step, ...]
    donor: str = ""
    """The donor whose parts a click gives; empty if none is selected."""
    share: float | None = None
    """The weight of that donor; None for the weight that it has already, or else 1."""
    cell: str = ""
    """The cell whose donors are listed; empty for those of the whole base."""
    order: str = ALIKE
    find: str = ""

    @property
    def base(self) -> str:
        """The model that receives organs; empty if none is chosen."""
        return next((text.strip() for parameter, text in self.steps if parameter == "base"), "")

    def recipe(self) -> Recipe:
        """Return the recipe of the steps. Raises BadRecipe."""
        return read_steps(self.steps)

    def readable(self) -> Recipe:
        """Return the recipe of the valid steps."""
        base = ("base", self.base)
        valid = [step for step in self.steps if step[0] != "base" and _is_readable([base, step])]
        return read_steps([base, *valid]) if _is_readable([base, *valid]) else Recipe(self.base)

    def selection(self, **changed: str) -> list[Step]:
        """Return the selection as parameters, without empty ones and defaults. `changed` replaces some of them."""
        share = "" if self.share is None else f"{self.share:g}"
        shown = {"donor": self.donor, "share": share, "cell": self.cell, "order": self.order, "find": self.find}
        return [(name, text) for name, text in (shown | changed).items() if text and text != ALIKE]

    def address(self, *, anchor: str = "", **changed: str) -> str:
        """Return the address of the page of these steps. `changed` replaces parts of the selection."""
        return compose_address([*self.steps, *self.selection(**changed)]) + (f"#{anchor}" if anchor else "")

    def without(self, place: int) -> RequestedSteps:
        """Return a copy without the step at `place`."""
        return replace(self, steps=(*self.steps[:place], *self.steps[place + 1 :]))

    def having(self, parameter: str, text: str) -> RequestedSteps:
        """Return a copy with one more step, which replaces a step that can occur only once."""
        kept = [step for step in self.steps if parameter in LISTS or step[0] != parameter]
        return replace(self, steps=(*kept, (parameter, text)))

    def with_adapter(self, name: str, text: str) -> RequestedSteps:
        """Return a copy with the adapter `name`, which replaces an earlier step with the same adapter."""
        kept = [step for step in self.steps if step[0] != "adapter" or not is_same_name(adapter_of(step[1]), name)]
        return replace(self, steps=tuple(kept)).having("adapter", text)

    def of_recipe(self, recipe: Recipe) -> RequestedSteps:
        """Return a copy with the steps of `recipe`."""
        return replace(self, steps=tuple(step_texts(recipe)))


def requested_steps(form: MultiDict[str, str]) -> RequestedSteps:
    """Return the steps and the selection in the parameters of an address or in the fields of a form. Raises BadQuery
    for an unknown order.

    Empty fields and fields with other names are ignored. A name of the chimera becomes a valid one.
    """
    steps = [(name, text.strip()) for name in PARAMETERS for text in form.getlist(name) if text.strip()]
    steps = [(name, typed_name(text) if name == "name" else text) for name, text in steps]
    order = form.get("order") or ALIKE
    if order not in CANDIDATE_ORDERS:
        raise BadQuery("order", f"one of {', '.join(CANDIDATE_ORDERS)}")
    find = form.get("find", "").strip()[:FIND_MAX]
    return RequestedSteps(
        tuple(steps), form.get("donor", "").strip(), _share(form.get("share")), form.get("cell", ""), order, find
    )


def _share(text: str | None) -> float | None:
    """Return the weight of a donor within its limits; None if there is no number."""
    try:
        share = float(text or "")
    except ValueError:
        return None
    return round(min(max(share, SHARE_MIN), SHARE_MAX), 3) if share == share else None  # NaN is no number


def compose_address(steps: Sequence[Step], endpoint: str = "pages.compose") -> str:
    """Return the address of a composing page with these parameters. A name may occur more than once."""
    query = urlencode(steps, safe=":,/*>=<-@[]")
    return quote(url_for(endpoint), safe="/@:+~") + (f"?{query}" if query else "")


def twin(endpoint: str = "pages.compose_json") -> str:
    """Return the JSON address of the requested composing page. It keeps all parameters, also repeated ones."""
    return compose_address(list(request.args.items(multi=True)), endpoint)


def filled_step(form: MultiDict[str, str]) -> Step:
    """Return the step that a form adds. Raises BadQuery for an unknown form."""
    kind = form.get("add", "")
    if kind in STEP_FIELDS:
        filled = {name: form[name].strip() for name in STEP_FIELDS[kind] if form.get(name, "").strip()}
        method = METHODS.get(filled.get("method", BLEND_DEFAULT))
        if kind == "blend" and method is not None:  # the weight of one donor is its share, whatever the method names it
            names = {"weight": "weight" if "weight" in method.defaults else "t"}
            filled = {names.get(name, name): value for name, value in filled.items()}
            filled = {
                name: value for name, value in filled.items() if name not in BLEND_PARAMETERS or name in method.defaults
            }
            donors = [name.strip() for name in filled.get("from", "").split(",") if name.strip()]
            if len(donors) > 1:
                del filled["from"]
                filled["models"] = json.dumps([{"from": name} for name in donors], separators=(",", ":"))
        return kind, step_text(filled)
    if kind in SINGLE_FIELDS:
        return kind, form.get(SINGLE_FIELDS[kind], "")
    if kind == "meta":
        return kind, f"{form.get('key', '').strip()}={form.get('value', '').strip()}"
    raise BadQuery("add", f"one of {', '.join((*STEP_FIELDS, *SINGLE_FIELDS, 'meta'))}")


def graft_address(place: PlacedOrgan) -> str | None:
    """Return the address to choose a base for the organ at `place`; None for an organ that cannot be grafted."""
    if place.type not in GRAFTED_TYPES:
        return None
    block = {} if place.block is None else {"blocks": str(place.block)}
    expert = {} if place.expert is None else {"experts": str(place.expert)}
    return compose_address([("graft", step_text({"from": place.model, "slot": place.slot, **block, **expert}))])


def recipe_address(file: RecipeFile) -> str:
    """Return the address of the composing page with the steps of a recipe, without its name."""
    return compose_address(step_texts(structs.replace(recipe_of(file), name=None)))


def _is_readable(steps: Sequence[Step]) -> bool:
    try:
        read_steps(steps)
    except BadRecipe:
        return False
    return True


def adapter_of(text: str) -> str:
    """Return the name of the adapter in the text of a step; empty if it cannot be read."""
    try:
        return read_steps([("base", "any"), ("adapter", text)]).adapters[0].adapter
    except (BadRecipe, IndexError):
        return ""
