"""A model as a README for those who download it: what the registry knows, in Markdown, with nothing from outside in it
that could be more than text."""

from __future__ import annotations

import re
from html import escape

from organs.registry.catalog.tables import Model, ModelFile
from organs.registry.present.text import count_text, size_text, theta_text
from organs.registry.present.values import Values

CARD_VERSION = 1
"""Raised when cards change: a revision that has been handed out keeps its text."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", re.ASCII)
_SPECIAL = re.compile(r"[\\`*_{}\[\]#!|~@$^]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""What begins markup, a table's cell, an entity or a link, in the Markdown of the hub."""


def card(model: Model, files: list[tuple[str, ModelFile]], chimera: Values | None = None) -> str:
    """The README of `model`, whose `files` stand with the names under which they are handed out.

    `chimera` has what is known of it because it was composed here, as `registry.present.chimera` gives it; its
    verdicts may be None, for a card that must not change.
    """
    lines = [*_front_matter(model), f"# {_text(model.title or model.name)}", ""]
    if model.description:
        lines += [_text(model.description), ""]
    lines += ["| | |", "|---|---|", *(f"| {label} | {_text(value)} |" for label, value in _facts(model)), ""]
    lines += ["| file | size | SHA-256 |", "|---|---|---|"]
    lines += [f"| {_text(name)} | {size_text(file.size_bytes)} | `{file.sha256}` |" for name, file in files]
    lines += [] if chimera is None else ["", *_chimera(chimera)]
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


def _chimera(values: Values) -> list[str]:
    """How it came to be: parents with their licences, findings, θ, what was predicted and shown, recipe, use."""
    lines = ["## Made of", "", "| model | licence | given |", "|---|---|---|"]
    lines += [_row(one["model"], one["license"] or "not said", _acts(one["acts"])) for one in values["parents"]]
    lines += ["", f"Licences: {_text(values['license'])}", ""]
    lines += ["| from | type | blocks | organs | done | θ before | θ after |", "|---|---|---|---|---|---|---|"]
    lines += [_change_row(one) for one in values["changes"]]
    findings = [one for one in values["findings"] if one["severity"] != "info"]
    findings += [one for one in values["findings"] if one["code"].startswith("licence-")]
    lines += ["", "## Findings", ""]
    lines += [f"- {one['severity']}, {_text(one['code'])}: {_text(one['sentence'])}" for one in findings]
    lines += [] if findings else ["Nothing was warned of."]
    lines += ["", "## Prediction and verdict", "", _text(values["prediction"]["sentence"])]
    lines += _verdict(values["verdicts"])
    lines += ["", "## Recipe", "", *_code(values["recipe_yaml"])]
    lines += ["", f"Its lock is `sha256:{values['lock_id']}`: the same lock gives the same bytes."]
    lines += ["", "## Use", "", *_code(values["llama_cli"]), "", "As a Modelfile:", "", *_code(values["modelfile"])]
    return lines


def _verdict(verdicts: list[Values] | None) -> list[str]:
    if verdicts is None:
        return []
    if not verdicts:
        return ["", "It was not run yet."]
    newest = verdicts[0]
    return ["", f"Run in {_text(newest['runtime'])}: {newest['verdict']}. {_text(newest['reason'])}"]


def _row(*cells: str) -> str:
    return f"| {' | '.join(map(_text, cells))} |"


def _acts(acts: list[str]) -> str:
    return ", ".join(acts) or "its own organs"


def _change_row(change: Values) -> str:
    first, last = change["first_block"], change["last_block"]
    blocks = "–" if first is None else str(first) if first == last else f"{first}-{last}"
    thetas = theta_text(change["theta_before"]), theta_text(change["theta"])
    return _row(change["from"], change["type"], blocks, str(change["organs"]), _acts(change["acts"]), *thetas)


def _code(text: str) -> list[str]:
    """Lines that are shown as they are, whatever stands in them: indented, as no fence can be broken out of."""
    return ["    " + "".join(one if one.isprintable() else " " for one in line) for line in text.splitlines()]


def _text(value: str) -> str:
    """`value` on one line, with everything escaped that means something in Markdown or HTML."""
    line = " ".join("".join(one if one.isprintable() else " " for one in value).split())
    return escape(_SPECIAL.sub(r"\\\g<0>", line), quote=False)
