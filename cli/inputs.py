"""Models that commands read: files, folders, addresses, and the models of other tools of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.console import F, is_chosen, is_for_people, kept_flag, plain, print_remark, status_line
from organs.cli.outputs import SUFFIX
from organs.registry.amounts import plural_text, size_text
from organs.registry.errors import BadName, BadSource
from organs.registry.names import parse_model_name

if TYPE_CHECKING:
    from organs.ingest.adapted_base import AdaptedBase
    from organs.ingest.sources import ModelSource
    from organs.ingest.tools.findings import Findings
    from organs.ingest.urls import Hub

TOKEN_MAX_BYTES = 4096

TOOL_NAMES = {
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
    "llama-cpp": "llama.cpp",
    "hf-cache": "the Hugging Face tools",
    "gpt4all": "GPT4All",
}
"""The tools by their options, in the order of the help."""


def place_text(tool: str, folder: object) -> str:
    """Return the name of a tool, or the folder if it is a plain one."""
    return TOOL_NAMES.get(tool, str(folder))


def tool_options(verb: str) -> Callable[[F], F]:
    """Add an option for each tool, and one for all of them."""

    def decorate(command: F) -> F:
        options = {**TOOL_NAMES, "all-tools": "all these tools"}
        for tool, name in reversed(options.items()):
            command = kept_flag(f"--{tool}", help=f"{verb} {name}.")(command)
        return command

    return decorate


def chosen_tools() -> list[str]:
    """Return the tools of which options were given."""
    return [tool for tool in TOOL_NAMES if is_chosen(tool.replace("-", "_")) or is_chosen("all_tools")]


def tool_models(tools: Sequence[str], *, required: bool) -> tuple[list[ModelSource], bool]:
    """Return the models of `tools`, and whether some of their models cannot be read; print which.

    Raises BadSource if there are none and some are `required`.
    """
    from organs.ingest.tools import find_tool_models, sources_of
    from organs.ingest.tools.places import this_machine

    findings = list(find_tool_models(this_machine(), tools))
    print_problems(findings)
    print_notes(findings)
    sources = sources_of(findings)
    if required and not sources:
        places = "; ".join(f"{part.folder}: {'no GGUF file' if part.is_there else 'not there'}" for part in findings)
        raise BadSource(f"no model of {' or '.join(TOOL_NAMES[tool] for tool in tools)} on this machine: {places}")
    return sources, any(part.problems for part in findings)


def print_problems(findings: Sequence[Findings], more: Sequence[str] = ()) -> None:
    """Print on stderr which models of the tools cannot be read, and the sentences `more`."""
    for sentence in (*(problem for part in findings for problem in part.problems), *more):
        click.echo(f"organ: {plain(sentence)}", err=True)


def print_notes(findings: Sequence[Findings]) -> None:
    """Print on stderr the notes on the models of the tools."""
    for note in (note for part in findings for note in part.notes):
        click.echo(f"note: {plain(note)}", err=True)


def is_file(text: str) -> bool:
    """Return whether `text` is a GGUF file or a folder with a model, not the name of a registered model."""
    from organs.ingest.directory.opening import is_organ_directory
    from organs.ingest.peft import is_adapter_folder

    path = Path(text)
    return text.endswith(SUFFIX) or path.is_file() or is_organ_directory(path) or is_adapter_folder(path)


def may_be_registered(text: str, *, digests: bool = False) -> bool:
    """Return whether `text` is no file, folder, pattern or address, and can be the name of a model, or a digest."""
    if os.path.lexists(text) or text.lower().endswith(SUFFIX):
        return False
    try:
        return (digests and text.startswith("sha256:")) or bool(parse_model_name(text))
    except BadName:
        return False


def one_source(text: str, purpose: str) -> ModelSource:
    """Return the single model in the files `text`. Raises BadSource, with the verb `purpose` in its message."""
    from organs.ingest.sources import find_sources

    sources = find_sources([text], purpose)
    if len(sources) != 1:
        raise click.UsageError(f"give one model; {text} has {len(sources)}")
    return sources[0]


def with_bases(sources: Sequence[ModelSource], base: AdaptedBase) -> list[ModelSource]:
    """Return `sources` with the `base` of their adapter folders."""
    return [source if source.adapter is None else replace(source, base=base) for source in sources]


@contextmanager
def hub_of_environment() -> Iterator[Hub]:
    """Open connections for models at addresses; HF_ENDPOINT names another hub than huggingface.co."""
    from organs.ingest.urls import HUB, Hub
    from organs.registry.client.ranges import RangeClient

    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
    allows_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
    object_endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    with RangeClient() as client:
        yield Hub(client, endpoint, _hub_token(), allows_http, object_endpoint)


def _hub_token() -> str | None:
    """Return the token of the Hugging Face tools: HF_TOKEN, or the file that `hf auth login` writes."""
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    from organs.ingest.tools.places import hub_home, this_machine

    path = Path(os.environ.get("HF_TOKEN_PATH") or hub_home(this_machine()) / "token").expanduser()
    try:
        with path.open("rb") as file:
            token = file.read(TOKEN_MAX_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return token or None


@contextmanager
def download_line(
    source: ModelSource, label: str, done: str, *, quiet: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """Show on stderr how much of `source` was downloaded and `done`; print how much was downloaded at the end."""
    client = source.remote[0].hub.client
    requests, received_bytes, begin = client.requests, client.received_bytes, time.monotonic()
    done_bytes = 0

    def downloaded() -> str:
        count = plural_text(client.requests - requests, "request", "requests")
        return f"{size_text(client.received_bytes - received_bytes)} in {count}"

    with status_line(label, quiet=quiet) as say:

        def advance(size_bytes: int) -> None:
            nonlocal done_bytes
            done_bytes += size_bytes
            say(f"{size_text(done_bytes)} {done}, downloaded {downloaded()}")

        yield advance
    is_shown = is_for_people() if quiet is None else not quiet
    if is_shown and client.received_bytes > received_bytes:
        print_remark(f"{source.label}: downloaded {downloaded()}, {time.monotonic() - begin:.0f} s")
