"""The anatomy of a model: its drawing coloured by a reading, and the grid of blocks and types for choosing parts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from organs.registry.amounts import NO_VALUE, share_text, size_text, weight_change_text
from organs.registry.anatomy import type_name
from organs.registry.entities.comparison import OrganChange
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.plan import GIVERS_SEPARATOR, PlanChange, PlanPart
from organs.registry.measures import CAUTIONS, THETA_LEGEND
from organs.web.charts.network import Drawable, Shape, network
from organs.web.pages.routes import Context
from organs.web.render import (
    SPECTRAL_MAX,
    THETA_MAX_DEGREES,
    change_tone,
    donor_class,
    share_class,
    spectral_class,
    theta_class,
)

ACTS = {
    "placed": "taken with their blocks",
    "grafted": "grafted",
    "merged": "blended",
    "adapter": "adapter added",
    "purified": "purified",
    "pruned": "experts pruned",
    "quantised": "quantised",
    "edited": "header edited",
    "source": "source of a quantisation",
}
"""Words for what a recipe did to an organ."""

Place = tuple[str, int | None, str]
"""Tower, block and slot."""


def acts_text(acts: Sequence[str]) -> str:
    """Return the words for `acts`: `grafted, then purified`."""
    return ", then ".join(ACTS[act] for act in acts)


@dataclass(frozen=True, slots=True)
class LegendLine:
    """A line of the legend: a letter, the models that gave organs, what was done to them, and how many organs."""

    mark: str
    models: tuple[str, ...]
    """The donor and the adapters, or the base."""
    is_base: bool
    acts: tuple[str, ...]
    organs: int
    tone: str = "gb"
    """The CSS class of the colour of `models`."""

    @property
    def model(self) -> str:
        """The names of `models` as text."""
        return GIVERS_SEPARATOR.join(self.models)

    @property
    def words(self) -> str:
        """Words for what was done to the organs."""
        return acts_text(self.acts)


def legend(parts: Iterable[PlanPart], base: str) -> list[LegendLine]:
    """Return a line for each pair of givers and acts, in the order of the parts. The same givers have one colour."""
    counts = Counter((part.givers, part.acts) for part in parts)
    tones = {models: donor_class(number) for number, models in enumerate(dict.fromkeys(models for models, _ in counts))}
    return [
        LegendLine(letter(number), models, models == (base,), acts, count, tones[models])
        for number, ((models, acts), count) in enumerate(counts.items())
    ]


def marks(parts: Iterable[PlanPart], shown: Iterable[LegendLine]) -> dict[str, LegendLine]:
    """Return the line of the legend `shown` for each part, by tensor name."""
    lines = {(line.models, line.acts): line for line in shown}
    return {part.name: lines[part.givers, part.acts] for part in parts}


def with_marks(runs: Iterable[PlanChange], shown: Iterable[LegendLine]) -> list[tuple[str, PlanChange]]:
    """Return the changes of runs of blocks, each with its letter in the legend `shown`."""
    letters = {(line.models, line.acts): line.mark for line in shown}
    return [(letters[run.givers, run.acts], run) for run in runs]


def letter(number: int) -> str:
    """Return A to Z, then A2 to Z2 and so on."""
    times, place = divmod(number, len(ascii_uppercase))
    return f"{ascii_uppercase[place]}{times + 1 if times else ''}"


CELLS_MAX = 20_000
"""The limit is for hostile files: their drawing can have a place for each pair of tensors."""
SLOTS_MAX = 400
"""Real architectures have at most about 60 slots."""
LISTED_MAX = 500
NUMBER_WIDTH, NUMBER_PITCH = 24.0, 24.0
"""The least size of a shape that shows its number, in the units of the drawing."""
LETTER_PITCH, TALL_PITCH = 12.0, 18.0
"""The least height of a block that has room for letters, and for large letters."""
FIT_WIDTH = 420.0
"""Wider drawings scroll in their frame."""
BASELINE = 2.6
"""From the middle of a text to its baseline."""
SHORT_DIGEST = 16
"""Digits of a digest in the address of an organ, which has to be short: a page can have thousands."""

READINGS = {
    "donor": "donor",
    "change": "change",
    "spectral": "spectral signal",
    "theta": "θ",
    "size": "size",
}
"""Readings that can colour a drawing, with their names. `donor` needs a chimera, `change` another model."""


def anatomy(
    organs: Sequence[PlacedOrgan],
    by: str,
    changes: Mapping[Place, OrganChange],
    donors: Mapping[str, LegendLine] | None = None,
    former: Mapping[int, int] | None = None,
) -> Context:
    """Return the drawing of `organs` coloured by a key of READINGS.

    `changes` has the change of each organ by its place, for the reading `change`. `donors` has the line of the legend
    for each organ that a chimera has from elsewhere, by its name, `former` the numbers that its blocks had before.
    """
    painter = _Painter(organs, by, changes, donors or {})
    drawing = network(organs, former=former) if can_be_drawn(organs) else None
    others = organs if drawing is None else drawing.others
    return {
        "drawing": drawing,
        "cells": [] if drawing is None else [painter.drawn(shape, drawing.pitch) for shape in drawing.shapes],
        "others": [painter.cell(organ) for organ in others[:LISTED_MAX]],
        "left_out": max(0, len(others) - LISTED_MAX),
        "legend": painter.legend(),
        "blocks": len({(organ.tower, organ.block) for organ in organs if organ.block is not None}),
        "fits": drawing is not None and drawing.width <= FIT_WIDTH,
    }


def can_be_drawn(organs: Sequence[Drawable]) -> bool:
    """Return whether a drawing of `organs` has a reasonable size."""
    blocks = {(organ.tower, organ.block) for organ in organs if organ.block is not None}
    slots = {organ.slot for organ in organs if organ.block is not None}
    return len(blocks) * len(slots) <= CELLS_MAX and len(slots) <= SLOTS_MAX


def tones(
    organs: Sequence[PlacedOrgan],
    by: str,
    changes: Mapping[Place, OrganChange],
    donors: Mapping[str, LegendLine] | None = None,
) -> dict[str, str]:
    """Return the CSS class of the colour of each organ by its name, as in `anatomy`."""
    painter = _Painter(organs, by, changes, donors or {})
    return {organ.name: painter.reading(organ)[1] for organ in organs}


def _short_size(size: float) -> str:
    """Return a size as a text that is short enough for a cell: `197k`."""
    for unit in ("", "k", "M", "G"):
        if size < 999.5:
            return f"{size:.3g}{unit}"
        size /= 1000
    return f"{size:.3g}T"


class _Painter:
    """Paints organs by one reading. The scale covers the whole model; that of θ covers each type."""

    def __init__(
        self,
        organs: Sequence[PlacedOrgan],
        by: str,
        changes: Mapping[Place, OrganChange],
        donors: Mapping[str, LegendLine],
    ) -> None:
        self.by = by
        self.changes = changes
        self.donors = donors
        sizes = [organ.size_bytes for organ in organs]
        self.size_min, self.size_max = min(sizes, default=1), max(sizes, default=1)
        self.spreads: dict[str, tuple[float, float]] = {}
        """The lowest and the highest θ of each type."""
        for organ in organs:
            if organ.theta is not None:
                low, high = self.spreads.get(organ.type, (organ.theta, organ.theta))
                self.spreads[organ.type] = (min(low, organ.theta), max(high, organ.theta))
        self.is_uncertain = any(organ.theta_caution for organ in organs)

    def drawn(self, shape: Shape[PlacedOrgan], pitch: float) -> Context:
        """Return a shape of the drawing with its colour, its text and its label."""
        cell = self.cell(shape.organ)
        mark = cell["mark"]
        is_cap = shape.look in ("head", "foot")
        is_high = is_cap or (shape.look != "bar" and pitch >= NUMBER_PITCH)
        text = cell["number"] if is_high and shape.width >= NUMBER_WIDTH and self.by != "donor" else ""
        text_class = ""
        if is_cap:
            text, text_class = f"{shape.organ.slot} {text}".rstrip(), "end"
        elif mark and shape.look not in ("thin", "bar") and pitch >= LETTER_PITCH:
            text_class = "" if text else "letter" if pitch >= TALL_PITCH else "letter flat"
            text = f"{mark} {text}".rstrip()
        middle = {"head": 0.3, "foot": 0.7}.get(shape.look, 0.5)  # of a cap, in its wide part
        return cell | {
            "path": shape.path,
            "look": shape.look,
            "text": text,
            "text_class": text_class,
            "x": round(shape.x + shape.width / 2, 1),
            "y": round(shape.y + middle * shape.height + BASELINE, 1),
        }

    def cell(self, organ: PlacedOrgan) -> Context:
        """Return the colour, the number and the label of an organ."""
        number, tone = self.reading(organ)
        line = self.donors.get(organ.name)
        label = f"{organ.name}: {READINGS[self.by]} {number}" if number else organ.name
        label = label if self.by == "theta" else f"{label}, θ {organ.theta_text}"
        warning = CAUTIONS.get(organ.theta_caution, "") if self.by == "theta" else ""
        if line is not None:
            source = "from the base" if line.is_base else f"from {line.model}"
            label = f"{line.mark}, {source}, {line.words}: {label}"
        return {
            "digest": organ.digest[:SHORT_DIGEST],
            "name": organ.name,
            "type": organ.type,
            "number": number,
            "tone": tone,
            "mark": "" if line is None else line.mark,
            "label": f"{label}{warning and f' (uncertain: {warning})'}",
        }

    def legend(self) -> Context:
        """Return the scale with the labels of its ends, and the ranges of θ by type."""
        if self.by == "theta":
            ranges = [f"{type_name(kind)} {low:.1f}–{high:.1f}°" for kind, (low, high) in sorted(self.spreads.items())]
            return {
                "low": "lowest of its type",
                "high": "highest of its type",
                "scale": "t",
                "ranges": ranges,
                "note": THETA_LEGEND if self.is_uncertain else "",
            }
        if self.by == "spectral":
            return {"low": "0 as random numbers", "high": f"{SPECTRAL_MAX:g} or more", "scale": "p"}
        if self.by == "size":
            return {"low": size_text(self.size_min), "high": size_text(self.size_max), "scale": "s"}
        if self.by == "donor":
            return {"scale": "", "low": "", "high": ""}
        return {"low": "1e-7", "middle": "about 3e-4", "high": "1 or more", "scale": "c", "has_same": True}

    def reading(self, organ: PlacedOrgan) -> tuple[str, str]:
        """Return the number of an organ as text, and the CSS class of its colour."""
        if self.by == "theta":
            low, high = self.spreads.get(organ.type, (0.0, 0.0))
            return organ.theta_text, theta_class(_share(organ.theta, low, high, THETA_MAX_DEGREES))
        if self.by == "spectral":
            return share_text(organ.spectral_signal), spectral_class(organ.spectral_signal)
        if self.by == "size":
            low, high, size = (math.log(max(n, 1)) for n in (self.size_min, self.size_max, organ.size_bytes))
            return _short_size(organ.size_bytes), share_class(_share(size, low, high, 1.0))
        if self.by == "donor":
            line = self.donors.get(organ.name)
            return "", "gb" if line is None else line.tone
        change = self.changes.get((organ.tower, organ.block, organ.slot))
        if change is None:
            return NO_VALUE, "tn"
        if change.identical:
            return "=", "same"
        return weight_change_text(change.change, change.likeness), change_tone(change.change, change.likeness)


def _share(value: float | None, low: float, high: float, whole: float) -> float | None:
    """Return the place of `value` between `low` and `high` as a share of `whole`; the middle if these are equal."""
    if value is None:
        return None
    return whole * (0.5 if high <= low else (value - low) / (high - low))


def letters(parents: Sequence[str]) -> dict[str, str]:
    """Return a letter for each parent except the first, which is the base."""
    return {name: letter(number) for number, name in enumerate(parents[1:])}
