"""A systematic list of grafts between the models of the zoo, each as a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from organs.registry.compose.recipe import AdapterMerge, Graft, Purification, PurifyMethod, Recipe, Selection

MODELS = {
    "a": "Zoo-A-2M-v1.0-F16",
    "a-q8": "Zoo-A-2M-v1.0-Q8_0",
    "code": "Zoo-A-2M-Code-v1.0-F16",
    "prose": "Zoo-A-2M-Prose-v1.0-Q8_0",
    "step-270": "Zoo-A-2M-v0.3-Q8_0",
    "step-100": "Zoo-A-2M-v0.1-Q8_0",
    "branch": "Zoo-A-2M-Branch-v1.0-Q8_0",
    "b": "Zoo-B-2M-v1.0-Q8_0",
    "lora": "Zoo-A-2M-Code-LoRA-v1.0-F32",
}
ACCEPTED = ("unrelated-lineage", "likely-degraded", "lineage-unknown", "adapter-base-differs", "tokenizer-differs")

WHOLE = {
    "a": ("a-q8", "code", "prose", "step-270", "step-100", "branch", "b"),
    "a-q8": ("a", "code", "branch"),
    "code": ("a", "prose", "step-270", "branch", "b"),
    "prose": ("a", "code", "step-270"),
    "branch": ("a", "code", "step-100", "b"),
    "step-270": ("a", "step-100", "branch"),
    "b": ("a", "code"),
}
"""Grafts of the feed-forward organs of all blocks: by base, the donors."""
TYPES = {
    "skeleton": ("skeleton",),
    "both": ("organ", "skeleton"),
    "embed": ("embed",),
    "norm": ("norm",),
}
KIN = ("code", "step-270", "branch", "b")
STRETCHES = {"0": (0, 0), "3": (3, 3), "1-3": (1, 3)}
SCALES = (0.5, 1.0, 2.0, 4.0, 8.0, -1.0)
KEPT = (
    ("a", "organ", (), (0.99, 0.9, 0.7, 0.5, 0.3)),
    ("a", "skeleton", (), (0.9, 0.5)),
    ("a", "organ", ((0, 0),), (0.9, 0.5)),
    ("a", "embed", (), (0.9, 0.5)),
    ("code", "organ", (), (0.9,)),
    ("branch", "organ", (), (0.99,)),
)
"""Purifications: the model, the type and blocks of its organs, and the share of kept energy."""
MIXED = (("code", "prose"), ("code", "branch"), ("prose", "b"))


@dataclass(frozen=True, slots=True)
class Trial:
    """A graft of the list."""

    name: str
    group: str
    base: str
    donors: tuple[str, ...]
    """The donor; the base if its own organs are computed."""
    recipe: Recipe


def trials() -> list[Trial]:
    """Return the list of grafts, in a fixed order."""
    return [*_whole(), *_typed(), *_stretches(), *_adapted(), *_purified(), *_mixed()]


def _whole() -> Iterator[Trial]:
    for base, donors in WHOLE.items():
        for donor in donors:
            yield _transplant("whole", base, donor, ("organ",), "organ")


def _typed() -> Iterator[Trial]:
    for donor in KIN:
        for name, types in TYPES.items():
            yield _transplant("type", "a", donor, types, name)


def _stretches() -> Iterator[Trial]:
    for donor in KIN:
        for name, blocks in STRETCHES.items():
            yield _transplant("blocks", "a", donor, ("organ",), f"organ {name}", (blocks,))


def _adapted() -> Iterator[Trial]:
    for base, scales in (("a", SCALES), ("code", (1.0,)), ("branch", (1.0,)), ("b", (1.0,))):
        for scale in scales:
            merge = AdapterMerge(MODELS["lora"], scale)
            yield _trial(f"{base} + {scale:g} lora", "adapter", base, ("lora",), adapters=(merge,))
    graft = Graft(Selection(types=("organ",)), donor=MODELS["prose"])
    merge = AdapterMerge(MODELS["lora"])
    yield _trial("a <- prose organ + lora", "adapter", "a", ("prose", "lora"), grafts=(graft,), adapters=(merge,))


def _purified() -> Iterator[Trial]:
    for donor, kind, blocks, keeps in KEPT:
        selection = Selection(types=(kind,), blocks=blocks)
        grafts = () if donor == "a" else (Graft(selection, donor=MODELS[donor]),)
        where = " 0" if blocks else ""
        for keep in keeps:
            step = Purification(selection, PurifyMethod.SPECTRAL, keep=keep)
            name = f"a <- {donor} {kind}{where} keep {keep:g}"
            yield _trial(name, "purified", "a", (donor,), grafts=grafts, purify=(step,))
    for kind in ("organ", "skeleton"):
        step = Purification(Selection(types=(kind,)), PurifyMethod.FRACTAL)
        yield _trial(f"a <- a {kind} fractal", "purified", "a", ("a",), purify=(step,))


def _mixed() -> Iterator[Trial]:
    for first, second in MIXED:
        grafts = tuple(
            Graft(Selection(types=("organ",), blocks=(blocks,)), donor=MODELS[donor])
            for donor, blocks in ((first, (0, 1)), (second, (2, 3)))
        )
        yield _trial(f"a <- {first} organ 0-1, {second} 2-3", "mixed", "a", (first, second), grafts=grafts)


def _transplant(
    group: str, base: str, donor: str, types: Sequence[str], what: str, blocks: Sequence[tuple[int, int]] = ()
) -> Trial:
    graft = Graft(Selection(types=tuple(types), blocks=tuple(blocks)), donor=MODELS[donor])
    return _trial(f"{base} <- {donor} {what}", group, base, (donor,), grafts=(graft,))


def _trial(
    name: str,
    group: str,
    base: str,
    donors: tuple[str, ...],
    *,
    grafts: tuple[Graft, ...] = (),
    adapters: tuple[AdapterMerge, ...] = (),
    purify: tuple[Purification, ...] = (),
) -> Trial:
    recipe = Recipe(MODELS[base], grafts, adapters, purify, accept=ACCEPTED)
    return Trial(name, group, base, donors, recipe)
