"""What the address of a compose page asks for: a recipe's steps, what of the base is looked at; and other addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

from flask import request, url_for
from werkzeug.datastructures import MultiDict

from organs.registry.compose.recipe import Graft, Recipe
from organs.registry.compose.selecting import TYPES
from organs.registry.compose.steps import LISTS, PARAMETERS, Step, read_steps, step_paths, step_text, step_texts
from organs.registry.errors import BadQuery, BadRecipe
from organs.registry.present.composing import ALIKE, Cell
from organs.registry.present.values import Values

ORDERS = {ALIKE: "alike", "-theta": "θ", "-spectral": "spectral signal", "-rank": "stable rank"}
"""What candidates are ranked by, the largest first; only likeness has been seen to say how a graft ends."""
STEP_FIELDS = {
    "graft": ("from", "where", "sort", "type", "slot", "blocks"),
    "adapter": ("from", "scale"),
    "purify": ("method", "where", "type", "slot", "blocks", "keep"),
}
"""The fields of the forms that add a step, as a recipe calls them."""
BLOCK_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Asked:
    """The steps as they were typed, and what is looked at."""

    steps: tuple[Step, ...]
    cell: str = ""
    order: str = next(iter(ORDERS))

    @property
    def base(self) -> str:
        """The model that receives; empty where none is chosen."""
        return next((text.strip() for parameter, text in self.steps if parameter == "base"), "")

    def recipe(self) -> Recipe:
        """What the steps say; raises BadRecipe."""
        return read_steps(self.steps)

    def readable(self) -> Recipe:
        """What those of the steps say that can be read, where not all can."""
        base = ("base", self.base)
        kept = [step for step in self.steps if step[0] != "base" and _reads([base, step])]
        return read_steps([base, *kept]) if _reads([base, *kept]) else Recipe(self.base)

    def address(self, *, cell: str | None = None, order: str | None = None, anchor: str = "") -> str:
        """The page of these steps, with another cell or order."""
        looked = {"cell": self.cell if cell is None else cell, "order": order or self.order}
        kept = [*self.steps, *((name, text) for name, text in looked.items() if text and text != next(iter(ORDERS)))]
        return compose_address(kept) + (f"#{anchor}" if anchor else "")

    def with_recipe(self, recipe: Recipe) -> Asked:
        """The same with the steps of `recipe`."""
        return replace(self, steps=tuple(step_texts(recipe)))

    def without(self, place: int) -> Asked:
        """The same without the step at `place`."""
        return replace(self, steps=(*self.steps[:place], *self.steps[place + 1 :]))

    def having(self, parameter: str, text: str) -> Asked:
        """The same with one more step; of what stands there once, with another."""
        kept = [one for one in self.steps if parameter in LISTS or one[0] != parameter]
        return replace(self, steps=(*kept, (parameter, text)))

    def paths(self) -> list[str]:
        """Under which path findings speak of each step: `grafts[0]`."""
        return list(step_paths(self.steps))


def asked_of(given: MultiDict[str, str]) -> Asked:
    """What the parameters of an address, or the fields of a form, ask for; raises BadQuery for an order.

    Empty ones and those of other names say nothing.
    """
    steps = [(name, text.strip()) for name in PARAMETERS for text in given.getlist(name) if text.strip()]
    order = given.get("order") or next(iter(ORDERS))
    if order not in ORDERS:
        raise BadQuery("order", f"one of {', '.join(ORDERS)}")
    return Asked(tuple(steps), given.get("cell", ""), order)


def compose_address(steps: Sequence[Step], endpoint: str = "pages.compose") -> str:
    """A page of composing with these parameters, of which several may have one name."""
    query = urlencode(steps, safe=":,/*>=<-@[]")
    return quote(url_for(endpoint), safe="/@:+~") + (f"?{query}" if query else "")


def twin(endpoint: str = "pages.compose_json") -> str:
    """The JSON twin of a page of composing, which may have several parameters of one name."""
    return compose_address(list(request.args.items(multi=True)), endpoint)


def parsed_cell(text: str) -> Cell:
    """The cell that `text` names: `organ:2`, `embed:none`, `norm:3:vision`; raises BadQuery."""
    kind, _, rest = text.partition(":")
    block, _, tower = rest.partition(":")
    is_number = block.isascii() and block.isdigit() and len(block) <= BLOCK_DIGITS
    if not kind or not (is_number or block == "none"):
        raise BadQuery("cell", "a type and a block of the base, such as organ:2")
    return Cell(kind, int(block) if is_number else None, tower or "text")


def filled_step(given: MultiDict[str, str]) -> Step:
    """The step that a form adds; raises BadQuery for what is no such form."""
    kind = given.get("add", "")
    if kind in STEP_FIELDS:
        return kind, step_text({name: given[name].strip() for name in STEP_FIELDS[kind] if given.get(name, "").strip()})
    if kind == "encode":
        return kind, given.get("dtype", "")
    if kind == "meta":
        return kind, f"{given.get('key', '').strip()}={given.get('value', '').strip()}"
    raise BadQuery("add", f"one of {', '.join((*STEP_FIELDS, 'encode', 'meta'))}")


def cell_graft(model: str, cell: Values, towers: Sequence[str]) -> Step:
    """The step that takes all of a cell from `model`.

    A recipe's blocks are those of every tower, so where the base has several a query keeps to one. What stands outside
    the blocks is named by its slots.
    """
    place = {"slot": ",".join(cell["slots"])} if cell["block"] is None else {"type": cell["type"]}
    block = {} if cell["block"] is None else {"blocks": str(cell["block"])}
    if len(towers) > 1:
        return "graft", step_text({"where": f"model:{model} tower:{cell['tower']}", **place, **block})
    return "graft", step_text({"from": model, **place, **block})


def type_graft(model: str, kind: str) -> Step:
    """The step that takes all organs of a type from `model`."""
    return "graft", step_text({"from": model, "type": kind})


def graft_address(place: Values) -> str | None:
    """The page on which a base is chosen for the organ at `place`; None of what is no organ of a model by itself."""
    if place["type"] not in TYPES:
        return None
    block = {} if place["block"] is None else {"blocks": str(place["block"])}
    return compose_address([("graft", step_text({"from": place["model"], "slot": place["slot"], **block}))])


def replacing(recipe: Recipe, step: Step) -> Recipe:
    """`recipe` with the graft `step`, instead of those that select the very same places."""
    (graft,) = read_steps([("base", recipe.base), step]).grafts
    return replace(recipe, grafts=(*_others(recipe, graft), graft))


def _others(recipe: Recipe, graft: Graft) -> list[Graft]:
    return [one for one in recipe.grafts if one.selection != graft.selection]


def _reads(steps: Sequence[Step]) -> bool:
    try:
        read_steps(steps)
    except BadRecipe:
        return False
    return True
