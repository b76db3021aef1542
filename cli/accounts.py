"""`organ contributor`, `organ token` and `organ login`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from organs.cli.arguments import registry_address
from organs.cli.console import plain, print_json, print_table
from organs.cli.main import CommandGroup
from organs.registry.amounts import parse_size, size_text
from organs.registry.catalog.vocabulary import (
    SCOPES,
)
from organs.registry.client.address import API, parse_address
from organs.registry.client.tokens import KeptToken, forget_token, keep_token, kept_tokens, tokens_path
from organs.registry.entities.account import (
    TOKEN_DAYS_DEFAULT,
    TOKEN_DAYS_MAX,
    Account,
    AccountToken,
    AccountTokenPage,
    ContributorAccount,
    ContributorAccountPage,
    CreatedToken,
    ListedToken,
    ListedTokenPage,
    TokenRequest,
)
from organs.registry.entities.base import Page
from organs.registry.errors import BadInput, BadSetting, NoSuchToken, NotFound
from organs.registry.settings import REGISTRY_VARIABLE, TOKEN_VARIABLE
from organs.registry.tokens import ID_LENGTH, PREFIX, parse_token

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from organs.registry.catalog.tables import Contributor
    from organs.registry.client.remote import RemoteRegistry

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
    from organs.registry.catalog.register.accounts import add_contributor

    _done(lambda session: add_contributor(session, name, quota_bytes=quota))
    click.echo(f"now make a token: organ token create {plain(name)} --scope upload", err=True)


@contributor.command("list")
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print names only.")
def list_contributors(as_json: bool, quiet: bool) -> None:
    """List the contributors by name; `local` is whoever works at this machine."""
    from organs.registry.catalog.queries.accounts import contributor_account, contributors_in_order
    from organs.registry.local import LocalRegistry

    with LocalRegistry.open() as registry, registry.catalog.reading() as session:
        default_bytes = registry.settings.quota_bytes
        found = [contributor_account(session, one, default_bytes) for one in contributors_in_order(session)]
    if as_json:
        print_json(ContributorAccountPage(items=tuple(found), next=None))
    elif quiet:
        for one in found:
            click.echo(plain(one.name))
    elif found:
        print_table(
            ("contributor", "state", "used", "quota", "since"), [_contributor_row(one) for one in found], _NUMBERS
        )
    else:
        click.echo("Nobody yet. Try: organ contributor add NAME", err=True)


@contributor.command()
@click.argument("name")
def suspend(name: str) -> None:
    """Let a contributor in no more; what they have published stays.

    Their tokens and log-ins are good for nothing from the next request on.
    """
    from organs.registry.catalog.register.accounts import set_contributor_state

    _done(lambda session: set_contributor_state(session, name, "suspended"))


@contributor.command()
@click.argument("name")
def resume(name: str) -> None:
    """Let a contributor in again, with the tokens that they had."""
    from organs.registry.catalog.register.accounts import set_contributor_state

    _done(lambda session: set_contributor_state(session, name, "active"))


@contributor.command()
@click.argument("name")
@click.argument("size", callback=_size, metavar="SIZE|default")
def quota(name: str, size: int | None) -> None:
    """Say how much may be kept for a contributor, such as 50G."""
    from organs.registry.catalog.register.accounts import set_quota

    _done(lambda session: set_quota(session, name, size))


def _done(change: Callable[[Session], Contributor]) -> None:
    from organs.registry.catalog.queries.accounts import contributor_account
    from organs.registry.local import LocalRegistry

    with LocalRegistry.open() as registry, registry.catalog.writing() as session:
        account = contributor_account(session, change(session), registry.settings.quota_bytes)
    used = f"{size_text(account.quota.used_bytes)} of {size_text(account.quota.limit_bytes)} used"
    click.echo(f"{plain(account.name)} is {account.state}, {used}", err=True)
    click.echo(plain(account.name))


def _contributor_row(one: ContributorAccount) -> tuple[object, ...]:
    from organs.registry.catalog.register.accounts import LOCAL

    limit = NO_QUOTA if one.name == LOCAL else size_text(one.quota.limit_bytes)
    return (one.name, one.state, size_text(one.quota.used_bytes), limit, f"{one.since:%Y-%m-%d}")


TOKENS_PATH = f"{API}/account/tokens"
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
    from organs.registry.catalog.queries.accounts import contributor_by_name
    from organs.registry.catalog.register.accounts import create_token
    from organs.registry.local import LocalRegistry

    if forever and days is not None:
        raise click.UsageError("--days and --forever exclude each other")
    lasting = None if forever else days or TOKEN_DAYS_DEFAULT
    elsewhere = os.environ.get(REGISTRY_VARIABLE)
    if elsewhere:
        if contributor is not None:
            raise click.UsageError("a registry elsewhere makes tokens of your own account alone: leave CONTRIBUTOR out")
        wanted = TokenRequest(scopes=scopes, label=label, days=lasting)
        with _remote(elsewhere) as remote:
            made = remote.connection.post(CreatedToken, TOKENS_PATH, wanted)
        text = made.token
        if made.expires_at is not None:
            click.echo(f"expires {made.expires_at:%Y-%m-%d}", err=True)
    else:
        if contributor is None:
            raise click.UsageError("say whose token it is to be: organ token create CONTRIBUTOR")
        with LocalRegistry.open() as registry, registry.catalog.writing() as session:
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
        with _remote(elsewhere) as remote:
            page: Page[Any] = remote.connection.read(AccountTokenPage, TOKENS_PATH)
    else:
        page = _listed(contributor)
    found: Sequence[AccountToken] = page.items
    if as_json:
        print_json(page)
    elif quiet:
        for one in found:
            click.echo(plain(one.id))
    elif found:
        whose = () if elsewhere else ("contributor",)  # elsewhere all are one's own
        columns = ("token", *whose, "label", "scopes", "state", "expires", "created by", "last used")
        print_table(columns, [_token_row(one) for one in found])
    else:
        click.echo("No tokens.", err=True)


@token.command()
@click.argument("token_id", metavar="ID", callback=_id)
def revoke(token_id: str) -> None:
    """Revoke a token and those that it created. ID is the nine characters after `orgp_`; `organ token list` shows it.

    With --registry URL a token can revoke itself, and with the scope `tokens` those that it created.
    """
    from organs.registry.catalog.register.accounts import revoke_token
    from organs.registry.local import LocalRegistry

    elsewhere = os.environ.get(REGISTRY_VARIABLE)
    if elsewhere:
        try:
            with _remote(elsewhere) as remote:
                ended = remote.connection.delete(AccountToken, f"{TOKENS_PATH}/{token_id}").id
        except NotFound as error:
            raise NoSuchToken(str(error)) from error
    else:
        with LocalRegistry.open() as registry, registry.catalog.writing() as session:
            ended = revoke_token(session, token_id).public_id
    click.echo(f"{plain(ended)} is revoked, and so are the tokens that it created", err=True)


def _listed(contributor: str | None) -> ListedTokenPage:
    """Return the tokens of a contributor, or of all."""
    from organs.registry.catalog.queries.accounts import contributor_by_name, contributors_in_order, tokens_of
    from organs.registry.local import LocalRegistry

    with LocalRegistry.open() as registry, registry.catalog.reading() as session:
        owners = contributors_in_order(session) if contributor is None else [contributor_by_name(session, contributor)]
        return ListedTokenPage(
            next=None,
            items=tuple(
                ListedToken(**structs.asdict(one), contributor=owner.name)
                for owner in owners
                for one in tokens_of(session, owner.id)
            ),
        )


def _remote(url: str) -> RemoteRegistry:
    from organs.registry.client.remote import RemoteRegistry

    return RemoteRegistry.open(url)


def _token_row(one: AccountToken) -> tuple[object, ...]:
    return (
        one.id,
        *((one.contributor,) if isinstance(one, ListedToken) else ()),
        one.label or "–",
        ", ".join(one.scopes),
        one.state,
        "for ever" if one.expires_at is None else f"{one.expires_at:%Y-%m-%d}",
        one.created_by or "–",
        "–" if one.last_used_at is None else f"{one.last_used_at:%Y-%m-%d}",
    )


TYPED_MAX_BYTES = 256
"""Of a line; a token has 63 characters."""


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
        place = url or registry_address()
        if place is None:
            raise click.UsageError("give the URL of a registry")
        _log_in(place, from_stdin=token_stdin, insecure=insecure, as_json=as_json, quiet=quiet)


def _log_in(url: str, *, from_stdin: bool, insecure: bool, as_json: bool, quiet: bool) -> None:
    from organs.registry.client.connection import Connection

    where = str(parse_address(url))
    token = _token_to_keep(where, from_stdin=from_stdin)
    connection = Connection(where, token, plain_http=insecure)
    try:
        account = connection.read(Account, f"{API}/account")
    finally:
        connection.close()
    keep_token(where, KeptToken(token, insecure))
    if as_json:
        print_json({"registry": where, "contributor": account.contributor, "scopes": account.scopes})
    elif not quiet:
        click.echo(f"{where}: you are {plain(account.contributor)}, {_scopes(account)}")
        click.echo(f"the token is kept in {plain(tokens_path())}", err=True)
        if os.environ.get(TOKEN_VARIABLE):
            click.echo(f"note: {TOKEN_VARIABLE} is set, and goes before it", err=True)


def _token_to_keep(where: str, *, from_stdin: bool) -> str:
    """The token, as it is typed without being shown, or piped; raises BadToken for one that is mistyped."""
    if from_stdin:
        told = sys.stdin.buffer.readline(TYPED_MAX_BYTES).decode("ascii", "replace").strip()
    elif sys.stdin.isatty():
        told = click.prompt(f"Token for {where}", hide_input=True, err=True).strip()
    else:
        raise BadSetting("nobody is there to type a token: give --token-stdin")
    parse_token(told)
    return str(told)


def _scopes(account: Account) -> str:
    return f"for {plain(', '.join(account.scopes))}" if account.scopes else "for nothing in particular"


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
