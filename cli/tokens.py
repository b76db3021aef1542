"""`organ token`: make, list and revoke tokens, in the registry's folder or of one's own account elsewhere."""

from __future__ import annotations

import os
from typing import Any

import click

from organs.cli.console import plain, print_json, print_table
from organs.cli.main import CommandGroup
from organs.registry.catalog.queries.accounts import contributor_by_name, contributors_in_order, tokens_of
from organs.registry.catalog.register.accounts import TOKEN_DAYS_DEFAULT, TOKEN_DAYS_MAX, create_token, revoke_token
from organs.registry.catalog.vocabulary import SCOPES
from organs.registry.errors import NoSuchToken, NotFound
from organs.registry.present.accounts import token_values
from organs.registry.present.values import Values
from organs.registry.registry import Registry
from organs.registry.settings import REGISTRY_VARIABLE
from organs.registry.tokens import ID_LENGTH, PREFIX

SHOWN_ONCE = "this is the only time that it is shown; give it to: organ login URL"


def _id(_context: click.Context, _argument: click.Parameter, given: str) -> str:
    """What a token is called by; of a whole token, that part of it."""
    called = given.removeprefix(PREFIX)[:ID_LENGTH] if given.startswith(PREFIX) else given
    if not (called.isascii() and called.isalnum() and len(called) == ID_LENGTH):
        raise click.BadParameter(f"a token is called by {ID_LENGTH} letters and digits; organ token list shows them")
    return called


@click.group(cls=CommandGroup)
def token() -> None:
    """Create, list or revoke tokens.

    In the registry's folder these commands need no token and manage all tokens. With --registry URL they manage those
    of your account there, and your token needs the scope `tokens`; without it, it can only revoke itself.
    """


@token.command()
@click.argument("contributor", required=False)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(SCOPES),
    default=("upload",),
    show_default="upload",
    help="What it allows. Repeatable.",
)
@click.option("--label", default="", help="For its owner, to know it by.")
@click.option("--days", type=click.IntRange(1, TOKEN_DAYS_MAX), help=f"How long. [default: {TOKEN_DAYS_DEFAULT}]")
@click.option("--forever", is_flag=True, help="Never expires; with --registry, only with the token that creates it.")
def create(contributor: str | None, scopes: tuple[str, ...], label: str, days: int | None, forever: bool) -> None:
    """Print a new token of a CONTRIBUTOR. Its text is not stored.

    With --registry URL it is a token of your own account: its scopes are some of your token's, it expires with your
    token at the latest, and it is revoked with it.
    """
    if forever and days is not None:
        raise click.UsageError("--days and --forever exclude each other")
    lasting = None if forever else days or TOKEN_DAYS_DEFAULT
    elsewhere = os.environ.get(REGISTRY_VARIABLE)
    if elsewhere:
        if contributor is not None:
            raise click.UsageError("a registry elsewhere makes tokens of your own account alone: leave CONTRIBUTOR out")
        made = _asked(elsewhere, "POST", "", {"label": label, "scopes": list(scopes), "days": lasting})
        text = str(made["token"])
        if made["expires_at"]:
            click.echo(f"expires {plain(made['expires_at'][:10])}", err=True)
    else:
        if contributor is None:
            raise click.UsageError("say whose token it is to be: organ token create CONTRIBUTOR")
        with Registry.open() as registry, registry.catalog.writing() as session:
            owner = contributor_by_name(session, contributor)
            text = create_token(session, owner.id, scopes, label, lasting).text
    click.echo(plain(text))
    click.echo(SHOWN_ONCE, err=True)


@token.command("list")
@click.argument("contributor", required=False)
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
def list_tokens(contributor: str | None, as_json: bool, quiet: bool) -> None:
    """List tokens, those of everybody or of a CONTRIBUTOR, newest first; of none is the text known."""
    elsewhere = os.environ.get(REGISTRY_VARIABLE)
    if elsewhere:
        if contributor is not None:
            raise click.UsageError("a registry elsewhere lists the tokens of your own account alone")
        found = _asked(elsewhere, "GET", "")["items"]
    else:
        found = _kept(contributor)
    if as_json:
        print_json({"items": found, "next": None})
    elif quiet:
        for one in found:
            click.echo(plain(one["id"]))
    elif found:
        whose = () if elsewhere else ("contributor",)  # elsewhere all are one's own
        columns = ("token", *whose, "label", "scopes", "state", "expires", "created by", "last used")
        print_table(columns, [_row(one, whose) for one in found])
    else:
        click.echo("No tokens.", err=True)


@token.command()
@click.argument("token_id", metavar="ID", callback=_id)
def revoke(token_id: str) -> None:
    """Revoke a token and those that it created. ID is the nine characters after `orgp_`; `organ token list` shows it.

    With --registry URL a token can revoke itself, and with the scope `tokens` those that it created.
    """
    elsewhere = os.environ.get(REGISTRY_VARIABLE)
    if elsewhere:
        try:
            ended = str(_asked(elsewhere, "DELETE", f"/{token_id}")["id"])
        except NotFound as error:
            raise NoSuchToken(str(error)) from error
    else:
        with Registry.open() as registry, registry.catalog.writing() as session:
            ended = revoke_token(session, token_id).public_id
    click.echo(f"{plain(ended)} is revoked, and so are the tokens that it created", err=True)


def _kept(contributor: str | None) -> list[Values]:
    """Of everybody, or of one."""
    with Registry.open() as registry, registry.catalog.reading() as session:
        owners = contributors_in_order(session) if contributor is None else [contributor_by_name(session, contributor)]
        return [
            {"contributor": owner.name} | token_values(session, one)
            for owner in owners
            for one in tokens_of(session, owner.id)
        ]


def _asked(url: str, method: str, path: str, body: Any = None) -> Values:
    """What the registry elsewhere answers of one's own tokens, with the shape that it must have."""
    from organs.registry.client.connection import API
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.client.shape import Each, Maybe, Members, check, text

    token: Members = {"id": text, "label": text, "scopes": Each(text), "state": text}
    token |= {"created_by": Maybe(text), "expires_at": Maybe(text), "last_used_at": Maybe(text)}
    shapes: dict[str, Members] = {"GET": {"items": Each(token)}, "POST": token | {"token": text}, "DELETE": token}
    where = f"{API}/account/tokens{path}"
    with RemoteRegistry.open(url) as remote:
        values = remote.connection.send(method, where, body)
    check(values, shapes[method], where)
    return values


def _row(one: Values, whose: tuple[str, ...]) -> tuple[object, ...]:
    until = (one["expires_at"] or "for ever")[:10]
    last = (one["last_used_at"] or "–")[:10]
    return (
        one["id"],
        *(one[column] for column in whose),
        one["label"] or "–",
        ", ".join(one["scopes"]),
        one["state"],
        until,
        one["created_by"] or "–",
        last,
    )
