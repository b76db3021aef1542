"""A recipe as lines of Python, step by step."""

from __future__ import annotations

from collections.abc import Mapping

from organs.registry.compose.recipe import ENCODINGS, AdapterMerge, Graft, Purification, Recipe, Selection


def script(recipe: Recipe, file_name: str) -> str:
    """A program that writes the chimera to `file_name` in the folder where it is run."""
    calls = [
        *(_call("graft", _graft(one)) for one in recipe.grafts),
        *(_call("adapter", _adapter(one)) for one in recipe.adapters),
        *(_call("purify", _purify(one)) for one in recipe.purify),
        *([_call("encode", {"": recipe.encode})] if recipe.encode != ENCODINGS[0] else []),
        *(f"metadata({one.key!r}, {_plain(one.value)!r})" for one in recipe.metadata),
        *([f"accept({', '.join(map(repr, recipe.accept))})"] if recipe.accept else []),
        *([_call("named", {"": recipe.name})] if recipe.name is not None else []),
    ]
    lines = [
        "from organs.registry import Registry",
        "",
        "with Registry.open() as registry:",
        f"    chimera = registry.compose({recipe.base!r})",
        *(f"    chimera = chimera.{call}" for call in calls),
        f"    chimera.plan().assemble({file_name!r})",
    ]
    return "\n".join(lines) + "\n"


def _call(verb: str, arguments: Mapping[str, object]) -> str:
    """A call; what is empty or None is left out, and under no name stands what is given by its place."""
    given = {name: value for name, value in arguments.items() if value not in (None, "")}
    return f"{verb}({', '.join(f'{name}={value!r}' if name else repr(value) for name, value in given.items())})"


def _graft(graft: Graft) -> dict[str, object]:
    return {"": graft.donor, "where": graft.where, **_selection(graft.selection), "sort": graft.sort}


def _adapter(merge: AdapterMerge) -> dict[str, object]:
    return {"": merge.adapter, "scale": None if merge.scale == 1 else merge.scale}


def _purify(step: Purification) -> dict[str, object]:
    return {"": step.method.value, "where": step.where, **_selection(step.selection), "keep": step.keep}


def _selection(selection: Selection) -> dict[str, object]:
    blocks = [str(first) if first == last else f"{first}-{last}" for first, last in selection.blocks]
    return {"type": ",".join(selection.types), "slot": ",".join(selection.slots), "blocks": ",".join(blocks)}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
