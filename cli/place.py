"""Where the registry is that a command works on: a folder of this machine, or elsewhere, at an address."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from organs.registry.errors import BadSetting, OrganError
from organs.registry.registry import Registry
from organs.registry.settings import REGISTRY_VARIABLE, TOKEN_VARIABLE

if TYPE_CHECKING:
    from organs.registry.client.remote import RemoteRegistry

INSTEAD = {
    "ingest": "organ push FILE sends a model to the registry there",
    "verify": "of a registry elsewhere organ pull MODEL checks every byte that comes",
    "sweep": "a registry elsewhere is swept by whoever runs it",
    "backup": "of a registry elsewhere organ pull MODEL keeps a model; whoever runs it backs it all up",
    "admin": "administrators of a registry elsewhere have its page /admin",
    "work": "a registry elsewhere does its jobs itself, and organ jobs lists them",
    "serve": "a registry elsewhere is served already: open its address in a browser",
}
"""What does it there, or who."""


def address() -> str | None:
    """The address of the registry elsewhere that --registry or the environment names, if one does."""
    return os.environ.get(REGISTRY_VARIABLE) or None


def folder_registry(what: str | None = None) -> Registry:
    """The registry in the folder that the environment names, open.

    Raises BadSetting where a registry elsewhere is named, for `what` (the command, unless told otherwise) asks more
    than one can answer.
    """
    if address() is not None:
        command = _command()
        instead = INSTEAD.get(command.partition(" ")[0])
        raise BadSetting(
            f"{what or f'organ {command}'} works on a registry's folder only: give --home FOLDER, or leave out "
            f"--registry and {REGISTRY_VARIABLE}" + (f"; {instead}" if instead else "")
        )
    return Registry.open()


def remote_registry() -> RemoteRegistry | None:
    """The registry elsewhere that is named; None where a folder is meant. Raises BadSetting for what is no address."""
    url = address()
    if url is None:
        return None
    from organs.registry.client.remote import RemoteRegistry  # with HTTP, which a folder needs not

    return RemoteRegistry.open(url)


def named_remote() -> RemoteRegistry:
    """The registry elsewhere that must be named; raises BadSetting."""
    remote = remote_registry()
    if remote is None:
        raise BadSetting(f"which registry? give --registry URL, or set {REGISTRY_VARIABLE}")
    return remote


def any_registry() -> Registry | RemoteRegistry:
    """Whichever is named, open."""
    return remote_registry() or folder_registry()


def reading_on() -> str:
    """How to go on without the token that was sent to the registry elsewhere; empty where none was."""
    from organs.registry.client.address import parse_address
    from organs.registry.client.tokens import kept_token

    url = address()
    if url is None:
        return ""
    if os.environ.get(TOKEN_VARIABLE):
        return f"; without {TOKEN_VARIABLE} reading goes on, without an account"
    with suppress(OrganError):
        if kept_token(url) is not None:
            return f", or organ login --forget {parse_address(url)}, which goes on reading without an account"
    return ""


def _command() -> str:
    """The words of the command that runs, behind `organ`."""
    words: list[str] = []
    context = click.get_current_context(silent=True)
    while context is not None and context.parent is not None:
        words.insert(0, context.info_name or "")
        context = context.parent
    return " ".join(words)
