"""`organ login`."""

from __future__ import annotations

import os
import sys

import click

from organs.cli.console import plain, print_json
from organs.cli.place import address
from organs.registry.client.address import parse_address
from organs.registry.client.connection import API, Connection
from organs.registry.client.shape import Each, Maybe, Members, Values, check, text, word
from organs.registry.client.tokens import KeptToken, forget_token, keep_token, kept_tokens, tokens_path
from organs.registry.errors import BadSetting, BadToken
from organs.registry.settings import TOKEN_VARIABLE
from organs.registry.tokens import parse_token

TYPED_MAX_BYTES = 256
"""Of a line; a token has 63 characters."""
ACCOUNT: Members = {
    "contributor": Maybe(word),
    "scopes": Each(word),
    "token": Maybe({"id": text, "label": text, "expires_at": Maybe(text)}),
}


@click.command()
@click.argument("url", required=False, metavar="URL")
@click.option("--token-stdin", is_flag=True, help="Read the token from stdin instead of asking for it.")
@click.option("--insecure", is_flag=True, help="Let the token travel over plain http, where others can read it.")
@click.option("--list", "lists", is_flag=True, help="List the registries for which a token is kept.")
@click.option("--forget", "forgets", metavar="URL", help="Forget the token for that registry.")
@click.option("--json", "as_json", is_flag=True, help="What is told as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors; with --list, print addresses only.")
def login(
    url: str | None, token_stdin: bool, insecure: bool, lists: bool, forgets: str | None, as_json: bool, quiet: bool
) -> None:
    """Remember the token for the registry at URL, in a file that only you can read.

    Whoever runs the registry gives you a token, or its account page does. It is sent to that address alone, and over
    plain http only to this machine. ORGAN_TOKEN goes before what is kept.
    """
    if sum((lists, forgets is not None, url is not None)) > 1:
        raise click.UsageError("give a URL, or --list, or --forget URL")
    if lists:
        _list(as_json=as_json, quiet=quiet)
    elif forgets is not None:
        _forget(forgets, quiet=quiet)
    else:
        place = url or address()
        if place is None:
            raise click.UsageError("give the URL of a registry")
        _log_in(place, from_stdin=token_stdin, insecure=insecure, as_json=as_json, quiet=quiet)


def _log_in(url: str, *, from_stdin: bool, insecure: bool, as_json: bool, quiet: bool) -> None:
    where = str(parse_address(url))
    token = _asked(where, from_stdin=from_stdin)
    connection = Connection(where, token, plain_http=insecure)
    try:
        account = connection.get(f"{API}/account")
    finally:
        connection.close()
    check(account, ACCOUNT, "account")
    if account["contributor"] is None:
        raise BadToken(f"{where} does not know whose token this is; nothing was kept")
    keep_token(where, KeptToken(token, insecure))
    values = {"registry": where, "contributor": account["contributor"], "scopes": account["scopes"]}
    if as_json:
        print_json(values)
    elif not quiet:
        click.echo(f"{where}: you are {values['contributor']}, {_scopes(values)}")
        click.echo(f"the token is kept in {plain(tokens_path())}", err=True)
        if os.environ.get(TOKEN_VARIABLE):
            click.echo(f"note: {TOKEN_VARIABLE} is set, and goes before it", err=True)


def _asked(where: str, *, from_stdin: bool) -> str:
    """The token, as it is typed without being shown, or piped; raises BadToken for one that is mistyped."""
    if from_stdin:
        told = sys.stdin.buffer.readline(TYPED_MAX_BYTES).decode("ascii", "replace").strip()
    elif sys.stdin.isatty():
        told = click.prompt(f"Token for {where}", hide_input=True, err=True).strip()
    else:
        raise BadSetting("nobody is there to type a token: give --token-stdin")
    parse_token(told)
    return str(told)


def _scopes(values: Values) -> str:
    return f"for {', '.join(values['scopes'])}" if values["scopes"] else "for nothing in particular"


def _list(*, as_json: bool, quiet: bool) -> None:
    """Addresses alone: of a token not a letter is shown."""
    kept = kept_tokens()
    if as_json:
        items = [{"registry": url, "plain_http": one.plain_http} for url, one in sorted(kept.items())]
        print_json({"items": items, "next": None})
        return
    for url, one in sorted(kept.items()):
        click.echo(plain(url) + (" (also over plain http)" if one.plain_http and not quiet else ""))
    if not kept and not quiet:
        click.echo("No tokens are kept. Try: organ login URL", err=True)


def _forget(url: str, *, quiet: bool) -> None:
    if not forget_token(url):
        raise BadSetting(f"no token is kept for {parse_address(url)}")
    if not quiet:
        click.echo("forgotten here; it stays good until it is revoked or expires", err=True)
