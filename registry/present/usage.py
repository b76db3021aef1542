"""How to use a chimera: a Modelfile, the line for llama.cpp, and the one that writes its file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from organs.registry.present.values import Values

CONTEXT_MAX = 4096
"""What a Modelfile asks for of longer contexts: what runtimes take by themselves."""
PROMPT = "Once upon a time"
TITLE_MAX = 100


@dataclass(frozen=True, slots=True)
class Usage:
    """What the lines are made of."""

    model: str
    """`namespace/name@version`."""
    file: str
    """The name of its file."""
    title: str
    """From outside: any text."""
    context_length: int | None
    """In tokens, where the header says it."""

    def values(self) -> Values:
        """`modelfile`, `llama_cli` and `assemble`."""
        return {
            "modelfile": self.modelfile(),
            "llama_cli": f"llama-cli -m {shlex.quote(self.file)} -p {shlex.quote(PROMPT)} -n 64",
            "assemble": f"organ assemble {self.model} -o {shlex.quote(self.file)}",
        }

    def modelfile(self) -> str:
        """Three lines for runtimes that read Modelfiles; the file lies beside it."""
        title = " ".join("".join(one if one.isprintable() else " " for one in self.title).split())
        tokens = min(self.context_length or CONTEXT_MAX, CONTEXT_MAX)
        return f"# {title[:TITLE_MAX]}, {self.model}\nFROM ./{self.file}\nPARAMETER num_ctx {tokens}\n"
