"""A model as a README for those who download it: what the registry knows, in Markdown, with nothing from outside in it
that could be more than text."""

from __future__ import annotations

import re
from html import escape

from registry.catalog.tables import Model, ModelFile
from registry.present.text import count_text, size_text, theta_text

CARD_VERSION = 1
"""Raised when cards change: a revision that has been handed out keeps its text."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", re.ASCII)
_SPECIAL = re.compile(r"[\\`*_{}\[\]#!|~@$^]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""What begins markup, a table's cell, an entity or a link, in the Markdown of the hub."""


def card(model: Model, files: list[tuple[str, ModelFile]]) -> str:
    """The README of `model`, whose `files` stand with the names under which they are handed out."""
    lines = [*_front_matter(model), f"# {_text(model.title or model.name)}", ""]
    if model.description:
        lines += [_text(model.description), ""]
    lines += ["| | |", "|---|---|", *(f"| {label} | {_text(value)} |" for label, value in _facts(model)), ""]
    lines += ["| file | size | SHA-256 |", "|---|---|---|"]
    lines += [f"| {_text(name)} | {size_text(file.size_bytes)} | `{file.sha256}` |" for name, file in files]
    lines += ["", "Written by the organ registry from what is registered. θ is the shape of a weight distribution,"]
    lines += ["from even noise (0°) to few strong weights (90°); it is no mark for a model.", ""]
    return "\n".join(lines)


def _front_matter(model: Model) -> list[str]:
    """Only values that are one plain word: a README's front matter is read by machines."""
    lines = ["---", "library_name: gguf"]
    if model.license and _PLAIN.fullmatch(model.license):
        lines.append(f'license: "{model.license.lower()}"')
    if model.architecture and _PLAIN.fullmatch(model.architecture):
        lines += ["tags:", f'- "{model.architecture.lower()}"']
    return [*lines, "---", ""]


def _facts(model: Model) -> list[tuple[str, str]]:
    rows = [
        ("registered as", model.full_name),
        ("digest", f"sha256:{model.digest}"),
        ("architecture", model.architecture or "not said"),
        ("licence", model.license or "not said"),
        ("parameters", count_text(model.parameters)),
        ("tensors", str(model.tensors)),
        ("size", size_text(model.size_bytes)),
        ("mean θ", theta_text(model.mean_theta)),
    ]
    return rows if model.complete else [*rows, ("complete", "no: it has only some of its model's organs")]


def _text(value: str) -> str:
    """`value` on one line, with everything escaped that means something in Markdown or HTML."""
    line = " ".join("".join(one if one.isprintable() else " " for one in value).split())
    return escape(_SPECIAL.sub(r"\\\g<0>", line), quote=False)
