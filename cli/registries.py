"""The registry that --home, --registry and the environment select: in a folder, or remote."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from organs.cli import fast_imports
from organs.cli.console import print_remark
from organs.registry.errors import BadSetting, DatabaseUnreachable, OrganError
from organs.registry.settings import REGISTRY_VARIABLE, TOKEN_VARIABLE, Settings

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.interface import Registry
    from organs.registry.local import LocalRegistry


REMOTE_ALTERNATIVES = {
    "ingest": "organ push FILE sends a model to a remote registry",
    "measure": "organ show MODEL prints the measures of a model in a remote registry",
    "verify": "organ pull MODEL checks every byte of a model that it downloads",
    "repack": "the server does it when it has no other work",
    "sweep": "the administrator of a remote registry runs it there",
    "backup": "organ pull MODEL downloads one model; the administrator of a remote registry runs organ backup there",
    "migrate-store": "the administrator of a remote registry runs organ migrate-store there",
    "admin": "use the page /admin of a remote registry",
    "fleet": "organ push FILE sends a model to a remote registry",
    "work": "a remote registry runs its own jobs; organ jobs lists them",
    "extract-lora": "organ pull both models, and give their files",
    "check": "organ show MODEL prints what was found in a model of a remote registry",
    "memory": "organ pull MODEL, and give its file",
    "install": "organ pull MODEL -o FOLDER/ writes its file; ollama pull and llama-cli -hf read a remote registry",
    "run": "organ pull MODEL, and give its file",
    "imatrix": "organ pull MODEL, and give its file",
    "serve": "open the address of a remote registry in a browser",
}
"""By command, what to do instead with a remote registry."""

DATABASE_SECONDS = 60.0
"""How long a command that runs for long waits at its start for a database server."""
DATABASE_PAUSE_SECONDS = 0.5


def registry_address() -> str | None:
    """Return the address of the remote registry in --registry or the environment, if there is one."""
    return os.environ.get(REGISTRY_VARIABLE) or None


def local_registry(purpose: str | None = None, *, waits: bool = False) -> LocalRegistry:
    """Open the registry in the folder that --home or the environment names.

    Commands that run for long pass `waits`: they wait DATABASE_SECONDS for a database server that is starting. Raises
    BadSetting if a remote registry is selected. `purpose`, by default the command, begins the message.
    """
    with fast_imports():
        from organs.registry.local import LocalRegistry

    if registry_address() is not None:
        command = _command()
        alternative = REMOTE_ALTERNATIVES.get(command.partition(" ")[0])
        raise BadSetting(
            f"{purpose or f'organ {command}'} works on a local registry only: give --home FOLDER, or leave out "
            f"--registry and {REGISTRY_VARIABLE}" + (f"; {alternative}" if alternative else "")
        )
    if waits:
        _await_database()
    return LocalRegistry.open()


@contextmanager
def local_session(*, writes: bool = False) -> Iterator[Session]:
    """Open the local registry for one transaction on its database."""
    with local_registry() as registry:
        transaction = registry.catalog.writing if writes else registry.catalog.reading
        with transaction() as session:
            yield session


def _await_database() -> None:
    """Wait until the database server accepts connections; raises DatabaseUnreachable after DATABASE_SECONDS."""
    from organs.registry.catalog.engine import is_unavailable

    settings = Settings.from_environment(os.environ)
    until, is_first = time.monotonic() + DATABASE_SECONDS, True
    while is_unavailable(settings.database_url):
        if time.monotonic() >= until:
            message = f"the database server has not accepted connections for {DATABASE_SECONDS:.0f} s: is it running?"
            raise DatabaseUnreachable(message)
        if is_first:
            sentence = f"The database does not answer yet: waiting for up to {DATABASE_SECONDS:.0f} s"
            if settings.log == "json":
                from organs.web.logs import configure_logs

                configure_logs("json")
                logging.getLogger("organs.database").warning(sentence)
            else:
                print_remark(sentence)
        is_first = False
        time.sleep(DATABASE_PAUSE_SECONDS)


def remote_registry() -> RemoteRegistry:
    """Open the remote registry in --registry or the environment; raises BadSetting without one."""
    with fast_imports():
        from organs.registry.client.remote import RemoteRegistry  # loads HTTP, which local registries do not need

    url = registry_address()
    if url is None:
        command = f"organ --registry URL {_command()}"
        raise BadSetting(f"this command needs a remote registry: write {command}, or set {REGISTRY_VARIABLE}")
    return RemoteRegistry.open(url)


def selected_registry() -> Registry:
    """Open the registry that the options or the environment name, local or remote."""
    return local_registry() if registry_address() is None else remote_registry()


def anonymous_hint() -> str:
    """Return how to read without the token that was sent to the remote registry; empty if none was sent."""
    from organs.registry.client.address import parse_address
    from organs.registry.client.tokens import kept_token

    url = registry_address()
    if url is None:
        return ""
    if os.environ.get(TOKEN_VARIABLE):
        return f"; without {TOKEN_VARIABLE} you can read without an account"
    with suppress(OrganError):
        if kept_token(url) is not None:
            return f", or organ login --forget {parse_address(url)} to read without an account"
    return ""


def _command() -> str:
    """Return the words of the running command after `organ`."""
    context = click.get_current_context(silent=True)
    return "" if context is None else context.command_path.removeprefix(context.find_root().command_path).strip()
