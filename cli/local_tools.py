"""The options that select other tools of this machine, `--ollama` and the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

TOOL_NAMES = {
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
    "llama-cpp": "llama.cpp",
    "hf-cache": "the Hugging Face tools",
    "gpt4all": "GPT4All",
}
"""The tools by their options, in the order of the help."""
ALL_TOOLS = "all-tools"

F = TypeVar("F", bound=Callable[..., Any])


def tool_options(verb: str) -> Callable[[F], F]:
    """Add an option for each tool, and one for all of them. The command gets the chosen tools as `tools`."""

    def decorate(command: F) -> F:
        options = {**TOOL_NAMES, ALL_TOOLS: "all these tools"}
        for tool, name in reversed(options.items()):
            option = click.option(
                f"--{tool}", is_flag=True, expose_value=False, callback=_collect, help=f"{verb} {name}."
            )
            command = option(command)
        return command

    return decorate


def _collect(context: click.Context, option: click.Parameter, is_chosen: bool) -> None:
    chosen: tuple[str, ...] = context.params.get("tools", ())
    tool = str(option.name).replace("_", "-")
    added = tuple(TOOL_NAMES) if tool == ALL_TOOLS else (tool,)
    context.params["tools"] = tuple(dict.fromkeys([*chosen, *added])) if is_chosen else chosen
