"""Errors as commands print them, with what the user can do about each."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from organs.cli.console import FAILURE, print_failure, print_remark
from organs.cli.registries import anonymous_hint
from organs.registry import errors
from organs.registry.errors import BadHubToken, BadName, BadQuery, BadSource, BadToken, OrganError, SchemaTooNew

PROJECT = "organ-registry"

_HINTS: dict[type[OrganError], str] = {
    errors.CorruptBlob: "try: organ verify --read-data --repair, then ingest a file that has the tensor",
    errors.MissingBlob: "try: organ verify --repair, then ingest a file that has the tensor",
    errors.DiskFull: "free some space, or choose another place",
    errors.StoreUnwritable: "check the owner and the permissions, or choose another place",
    BadQuery: "organ search --help and organ models --help list the fields",
    errors.Incomplete: (
        "organ ingest adds the missing shards; organ admin remove MODEL --reason TEXT -y removes the model"
    ),
    errors.NothingRegistered: (
        "nothing is registered yet; try: organ ingest FILE.gguf, or organ push FILE.gguf to a remote registry"
    ),
    errors.NoSuchJob: "try: organ jobs",
    errors.NoSuchEvolution: "try: organ evolutions",
    errors.NoSuchRun: "try: organ fleet run PLAN",
    errors.NoSuchContributor: "try: organ contributor list",
    errors.NoSuchToken: "try: organ token list",
    errors.NoSuchSubmission: "try: organ admin submissions",
    errors.NotComposedHere: "try: organ validate MODEL --base MODEL",
    errors.NoSuchFile: "",
    BadHubToken: "try: hf auth login, or set HF_TOKEN",
    errors.NotFound: "try: organ models",
    errors.NoRegistry: "check that the address is that of an organ registry",
    errors.BadReply: "",  # its message says what is wrong
    errors.Unreachable: "check the address, and that the server runs; try again later",
    errors.BadValue: "",  # its message says what to do
    errors.CatalogError: "check ORGAN_DATABASE_URL, or choose another folder with --home",
}
"""What the user can do about each class of errors; that of the nearest class counts."""


def print_error(error: Exception) -> None:
    """Print an error on stderr, and what the user can do about it."""
    print_failure(error)
    if hint := hint_for(error):
        print_remark(hint, " " * len(FAILURE))


def hint_for(error: Exception) -> str | None:
    """Return what the user can do about an error, or None."""
    if isinstance(error, BadToken) and not isinstance(error, BadHubToken):
        return f"try: organ login URL{anonymous_hint()}"
    extra = getattr(error, "extra", None)
    if extra is not None or isinstance(error, SchemaTooNew):
        return f"try: {install_command(extra)}"
    if isinstance(error, BadSource) and isinstance(error.__cause__, FileNotFoundError):
        return "check the path: relative paths begin in the current folder"
    if isinstance(error, BadName) and (hint := _path_hint(sys.argv[1:])) is not None:
        return hint
    if isinstance(error, errors.TooLittleTime):
        return f"try: --minutes {error.minutes}, or --type Q4_K_M in the place of the size"
    if isinstance(error, BadQuery) and error.term == "after":
        return "leave out --after to begin with the first page"
    return next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), None)


def _path_hint(words: Sequence[str]) -> str | None:
    """Return what to do about a path in the place of a model's name, if one of the arguments `words` is a path."""
    if "--name" in words:
        return None
    for before, word in pairwise(["", *words]):
        is_gguf = word.lower().endswith(".gguf")
        if before in ("-o", "--output") or word.startswith("-"):
            continue
        if os.path.isdir(word) or (is_gguf and os.path.isfile(word)):
            return f"a path is not the name of a registered model: organ ingest {shlex.quote(word)} registers it"
        if (word.startswith((".", "/")) or word.endswith("/") or is_gguf) and not os.path.lexists(word):
            return f"{word}: no such file or folder, and not the name of a registered model"
    return None


def install_command(extra: str | None = None) -> str:
    """Return the command that installs the program from its folder with `extra`, or a newer version without it.

    The project is on no package index. pip records the folder that it installed from (PEP 610, `direct_url.json`).
    """
    folder = None
    try:
        record = json.loads(distribution(PROJECT).read_text("direct_url.json") or "{}")
        url = urlsplit(record["url"]) if "dir_info" in record else None
    except (PackageNotFoundError, ValueError, KeyError):
        url = None
    if url is not None and url.scheme == "file":
        folder = Path(unquote(url.path))
    is_there = folder is not None and (folder / "pyproject.toml").is_file()
    requirement = (str(folder) if is_there else ".") + (f"[{extra}]" if extra else "")
    upgrade = "" if extra else "--upgrade "
    command = f"{shlex.quote(sys.executable)} -m pip install {upgrade}{shlex.quote(requirement)}"
    return command if is_there else f"{command} (in the project's folder)"


def exit_status(failures: Sequence[OrganError], source_count: int) -> int:
    """Return the exit status for a list of files: 1 if a file failed; for a single file, the status of its error."""
    if not failures:
        return 0
    return failures[0].exit_code if source_count == 1 else OrganError.exit_code
