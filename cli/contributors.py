"""`organ contributor`: who may add models to this registry, and how much is kept for each."""

from __future__ import annotations

import os
from collections.abc import Callable

import click
from sqlalchemy.orm import Session

from organs.cli.console import plain, print_json, print_table
from organs.cli.main import CommandGroup
from organs.registry.amounts import parse_size, size_text
from organs.registry.catalog.queries.accounts import contributors_in_order
from organs.registry.catalog.register.accounts import LOCAL, add_contributor, set_contributor_state, set_quota
from organs.registry.catalog.tables import Contributor
from organs.registry.errors import BadInput
from organs.registry.present.accounts import contributor_account_values
from organs.registry.present.values import Values
from organs.registry.registry import Registry
from organs.registry.settings import REGISTRY_VARIABLE

DEFAULT, NO_QUOTA = "default", "none"
_NUMBERS = ("used", "quota")


def _size(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """Bytes; None for what the server gives to everybody."""
    if text is None or text == DEFAULT:
        return None
    try:
        return parse_size(text)
    except BadInput as error:
        raise click.BadParameter(str(error)) from error


@click.group(cls=CommandGroup)
def contributor() -> None:
    """Add, list or suspend contributors of this registry.

    These work on the registry's own folder, not over the network. A contributor's models are in the namespace of the
    same name.
    """
    if os.environ.get(REGISTRY_VARIABLE):
        raise click.UsageError(
            f"{REGISTRY_VARIABLE} names a registry elsewhere: give --home for one of your own; administrators of one "
            "elsewhere have its page /admin/contributors"
        )


@contributor.command()
@click.argument("name")
@click.option("--quota", metavar="SIZE", callback=_size, help="What may be kept for them, 50G; else ORGAN_QUOTA.")
def add(name: str, quota: int | None) -> None:
    """Add a contributor."""
    _done(lambda session: add_contributor(session, name, quota_bytes=quota))
    click.echo(f"now make a token: organ token create {plain(name)} --scope upload", err=True)


@contributor.command("list")
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print names only.")
def list_contributors(as_json: bool, quiet: bool) -> None:
    """List the contributors by name; `local` is whoever works at this machine."""
    with Registry.open() as registry, registry.catalog.reading() as session:
        default_bytes = registry.settings.quota_bytes
        found = [contributor_account_values(session, one, default_bytes) for one in contributors_in_order(session)]
    if as_json:
        print_json({"items": found, "next": None})
    elif quiet:
        for one in found:
            click.echo(plain(one["name"]))
    elif found:
        print_table(("contributor", "state", "used", "quota", "since"), [_row(one) for one in found], _NUMBERS)
    else:
        click.echo("Nobody yet. Try: organ contributor add NAME", err=True)


@contributor.command()
@click.argument("name")
def suspend(name: str) -> None:
    """Let a contributor in no more; what they have published stays.

    Their tokens and log-ins are good for nothing from the next request on.
    """
    _done(lambda session: set_contributor_state(session, name, "suspended"))


@contributor.command()
@click.argument("name")
def resume(name: str) -> None:
    """Let a contributor in again, with the tokens that they had."""
    _done(lambda session: set_contributor_state(session, name, "active"))


@contributor.command()
@click.argument("name")
@click.argument("size", callback=_size, metavar="SIZE|default")
def quota(name: str, size: int | None) -> None:
    """Say how much may be kept for a contributor, such as 50G."""
    _done(lambda session: set_quota(session, name, size))


def _done(change: Callable[[Session], Contributor]) -> None:
    with Registry.open() as registry, registry.catalog.writing() as session:
        values = contributor_account_values(session, change(session), registry.settings.quota_bytes)
    told = f"{size_text(values['quota']['used_bytes'])} of {size_text(values['quota']['limit_bytes'])} used"
    click.echo(f"{plain(values['name'])} is {values['state']}, {told}", err=True)
    click.echo(plain(values["name"]))


def _row(one: Values) -> tuple[object, ...]:
    held = one["quota"]
    used = size_text(held["used_bytes"])
    limit = NO_QUOTA if one["name"] == LOCAL else size_text(held["limit_bytes"])
    return (one["name"], one["state"], used, limit, one["since"][:10])
