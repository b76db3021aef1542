"""The card of a model, a README for those who download it, and how to use a chimera.

A card has what the registry knows, as Markdown. No text from outside can be more than text in it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from organs.registry.amounts import count_text, size_text, theta_text
from organs.registry.catalog.tables import Model, ModelFile
from organs.registry.entities.chimera import Chimera
from organs.registry.entities.finding import Severity
from organs.registry.entities.plan import PlanChange
from organs.registry.entities.verdict import Verdict

CARD_VERSION = 1
"""Raised when cards change: a revision that has been handed out keeps its text."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", re.ASCII)
_SPECIAL = re.compile(r"[\\`*_{}\[\]#!|~@$^]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""What begins markup, a table's cell, an entity or a link, in the Markdown of the hub."""


CONTEXT_MAX = 4096
"""Tokens of context that a Modelfile asks for at most: the default of runtimes."""
PROMPT = "Once upon a time"
TITLE_MAX = 100


@dataclass(frozen=True, slots=True)
class Usage:
    """How to use a chimera: a Modelfile, the line for llama.cpp, and the line that writes its file."""

    model: str
    """`namespace/name@version`."""
    file: str
    """The name of its file."""
    title: str
    """From outside: any text."""
    context_length: int | None
    """In tokens, if the header states it."""

    def llama_cli(self) -> str:
        """Return the command that runs it with llama.cpp."""
        return f"llama-cli -m {shlex.quote(self.file)} -p {shlex.quote(PROMPT)} -n 64"

    def assemble(self) -> str:
        """Return the command that writes its file."""
        return f"organ assemble {self.model} -o {shlex.quote(self.file)}"

    def modelfile(self) -> str:
        """Return three lines for runtimes that read Modelfiles; the file is expected beside it."""
        title = " ".join("".join(one if one.isprintable() else " " for one in self.title).split())
        tokens = min(self.context_length or CONTEXT_MAX, CONTEXT_MAX)
        return f"# {title[:TITLE_MAX]}, {self.model}\nFROM ./{self.file}\nPARAMETER num_ctx {tokens}\n"


def card(
    model: Model, files: Sequence[tuple[str, ModelFile]], chimera: Chimera | None = None, *, with_verdicts: bool = True
) -> str:
    """Return the README of `model`, whose `files` have the names under which they are sent.

    `chimera` is what is known of a model that was composed here. Without verdicts the text does not change later.
    """
    lines = [*_front_matter(model), f"# {_text(model.title or model.name)}", ""]
    if model.description:
        lines += [_text(model.description), ""]
    lines += ["| | |", "|---|---|", *(f"| {label} | {_text(value)} |" for label, value in _facts(model)), ""]
    lines += ["| file | size | SHA-256 |", "|---|---|---|"]
    lines += [f"| {_text(name)} | {size_text(file.size_bytes)} | `{file.sha256}` |" for name, file in files]
    lines += [] if chimera is None else ["", *_chimera(chimera, with_verdicts=with_verdicts)]
    lines += ["", "Written by the organ registry from what is registered. θ is the shape of a weight distribution,"]
    lines += ["from even noise (0°) to few strong weights (90°); it is no mark for a model.", ""]
    return "\n".join(lines)


def _front_matter(model: Model) -> list[str]:
    """Return only values that are one plain word: programs read the front matter."""
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


def _chimera(chimera: Chimera, *, with_verdicts: bool) -> list[str]:
    """Return how it came to be: parents with their licences, findings, θ, prediction, verdict, recipe and use."""
    lines = ["## Made of", "", "| model | licence | given |", "|---|---|---|"]
    lines += [_row(one.model, one.license or "not said", _acts(one.acts)) for one in chimera.parents]
    lines += ["", f"Licences: {_text(chimera.license)}", ""]
    lines += ["| from | type | blocks | organs | done | θ before | θ after |", "|---|---|---|---|---|---|---|"]
    lines += [_change_row(one) for one in chimera.changes]
    findings = [one for one in chimera.findings if one.severity is not Severity.INFO]
    findings += [one for one in chimera.findings if one.code.startswith("licence-")]
    lines += ["", "## Findings", ""]
    lines += [f"- {one.severity.value}, {_text(one.code)}: {_text(one.sentence)}" for one in findings]
    lines += [] if findings else ["Nothing was warned of."]
    lines += ["", "## Prediction and verdict", "", _text(chimera.prediction.sentence)]
    lines += _verdict(chimera.verdicts) if with_verdicts else []
    lines += ["", "## Recipe", "", *_code(chimera.recipe_yaml)]
    lines += ["", f"Its lock is `sha256:{chimera.lock_id}`: the same lock gives the same bytes."]
    lines += ["", "## Use", "", *_code(chimera.llama_cli), "", "As a Modelfile:", "", *_code(chimera.modelfile)]
    return lines


def _verdict(verdicts: Sequence[Verdict]) -> list[str]:
    if not verdicts:
        return ["", "It was not run yet."]
    newest = verdicts[0]
    return ["", f"Run in {_text(newest.runtime)}: {newest.verdict}. {_text(newest.reason)}"]


def _row(*cells: str) -> str:
    return f"| {' | '.join(map(_text, cells))} |"


def _acts(acts: Sequence[str]) -> str:
    return ", ".join(acts) or "its own organs"


def _change_row(change: PlanChange) -> str:
    first, last = change.first_block, change.last_block
    blocks = "–" if first is None else str(first) if first == last else f"{first}-{last}"
    thetas = theta_text(change.theta_before), theta_text(change.theta)
    return _row(change.model, change.type, blocks, str(change.organs), _acts(change.acts), *thetas)


def _code(text: str) -> list[str]:
    """Return lines that are shown as they are: indented, because a text can end a fence but not an indentation."""
    return ["    " + "".join(one if one.isprintable() else " " for one in line) for line in text.splitlines()]


def _text(value: str) -> str:
    """Return `value` on one line, with everything escaped that has a meaning in Markdown or HTML."""
    line = " ".join("".join(one if one.isprintable() else " " for one in value).split())
    return escape(_SPECIAL.sub(r"\\\g<0>", line), quote=False)
