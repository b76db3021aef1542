"""`organ contributor`, `organ token` and `organ login`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click
from msgspec import structs

from organs.cli.console import (
    is_quiet,
    output_options,
    plain,
    print_facts,
    print_hint,
    print_remark,
    printed_for_programs,
)
from organs.cli.main import CommandGroup
from organs.cli.options import flag, size_bytes
from organs.cli.registries import local_registry, local_session, registry_address, remote_registry
from organs.cli.tables import print_page, print_table
from organs.registry.amounts import size_text
from organs.registry.catalog.vocabulary import SCOPE_MEANINGS, SCOPES
from organs.registry.client.address import parse_address
from organs.registry.client.tokens import KeptToken, forget_token, keep_token, kept_tokens, tokens_path
from organs.registry.columns import CellKind, Column
from organs.registry.endpoints import accounts as endpoints
from organs.registry.entities.account import (
    TOKEN_DAYS_DEFAULT,
    TOKEN_DAYS_MAX,
    AccountToken,
    ContributorAccount,
    ContributorAccountPage,
    ListedToken,
    ListedTokenPage,
    TokenRequest,
)
from organs.registry.entities.base import Page
from organs.registry.errors import BadSetting, NoSuchToken, NotFound
from organs.registry.settings import REGISTRY_VARIABLE, TOKEN_VARIABLE
from organs.registry.tokens import ID_LENGTH, PREFIX, parse_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from organs.registry.catalog.tables import ContributorRow

DEFAULT, NO_QUOTA = "default", "none"
SHOWN_ONCE = "copy the token now: it cannot be shown again; organ login URL stores it"
TYPED_MAX_BYTES = 256
"""The longest line that is read; a token has 63 characters."""


def _quota(text: str) -> int:
    """Return the size in bytes; 0 for the server's default."""
    return 0 if text == DEFAULT else size_bytes(text)


@click.group(cls=CommandGroup)
def contributor() -> None:
    """Add, list or suspend the accounts of contributors.

    A contributor is a person or a program with an account, who can publish models. Their models are in the namespace
    with the contributor's name. These commands work on the registry's folder, not over the network.
    """
    if registry_address() is not None:
        raise click.UsageError(
            f"{REGISTRY_VARIABLE} names a remote registry, but organ contributor works on a local registry only: give "
            "--home FOLDER, or use the page /admin/contributors of the remote registry"
        )


@contributor.command()
@click.argument("name")
@click.option(
    "--quota",
    metavar="SIZE",
    type=_quota,
    help="The most bytes to store for this contributor, such as 50G. [default: ORGAN_QUOTA]",
)
def add(name: str, quota: int | None) -> None:
    """Add the account of a contributor. Then create a token for it with `organ token create NAME`."""
    from organs.registry.catalog.register.accounts import add_contributor

    _change(lambda session: add_contributor(session, name, quota_bytes=quota or None))
    print_hint("create a token next", f"organ token create {name} --scope read --scope upload --scope tokens")
    print_remark("leave out the scopes that the token does not need, or add others; each allows one thing:")
    print_facts(SCOPE_MEANINGS.items(), err=True)


@contributor.command("list")
@output_options(json="Print the list as JSON.", quiet="Print names only.")
def list_contributors() -> None:
    """List the contributors by name.

    `local` stands for the users of this machine, who need no account. It is listed after their first ingest.
    """
    from organs.registry.catalog.queries.accounts import contributor_account, contributors_in_order

    columns = (
        Column("name", "contributor"),
        Column("state"),
        Column("quota.used_bytes", "used", CellKind.SIZE),
        Column("quota.limit_bytes", "quota", CellKind.SIZE, 1, shown=_limit),
        Column("since", rank=2),
    )
    with local_registry() as registry, registry.catalog.reading() as session:
        default_bytes = registry.settings.quota_bytes
        accounts = [contributor_account(session, row, default_bytes) for row in contributors_in_order(session)]
    page = ContributorAccountPage(items=tuple(accounts), next=None)
    empty = "No contributors. Try: organ contributor add NAME"
    print_page(page, lambda account: account.name, columns, empty=empty)


@contributor.command()
@click.argument("name")
def suspend(name: str) -> None:
    """Suspend a contributor. Requests with their tokens are refused; their published models stay."""
    from organs.registry.catalog.register.accounts import set_contributor_state

    _change(lambda session: set_contributor_state(session, name, "suspended"))


@contributor.command()
@click.argument("name")
def resume(name: str) -> None:
    """End the suspension of a contributor. The same tokens are valid again."""
    from organs.registry.catalog.register.accounts import set_contributor_state

    _change(lambda session: set_contributor_state(session, name, "active"))


@contributor.command()
@click.argument("name")
@click.argument("size", type=_quota, metavar="SIZE|default")
def quota(name: str, size: int) -> None:
    """Set the storage limit of the contributor NAME.

    SIZE is the most bytes to store for this contributor, such as 50G. `default` stands for the limit in ORGAN_QUOTA.
    """
    from organs.registry.catalog.register.accounts import set_quota

    _change(lambda session: set_quota(session, name, size or None))


def _change(change: Callable[[Session], ContributorRow]) -> None:
    from organs.registry.catalog.queries.accounts import contributor_account

    with local_registry() as registry, registry.catalog.writing() as session:
        account = contributor_account(session, change(session), registry.settings.quota_bytes)
    used = f"{size_text(account.quota.used_bytes)} of {size_text(account.quota.limit_bytes)} used"
    print_remark(f"{account.name} is {account.state}, {used}")
    click.echo(plain(account.name))


def _id(text: str) -> str:
    """Return the id of a token, which is a part of the whole token."""
    token_id = text.removeprefix(PREFIX)[:ID_LENGTH] if text.startswith(PREFIX) else text
    if not (token_id.isascii() and token_id.isalnum() and len(token_id) == ID_LENGTH):
        raise click.BadParameter(f"the id of a token has {ID_LENGTH} letters and digits; organ token list shows it")
    return token_id


@click.group(cls=CommandGroup)
def token() -> None:
    """Create, list or revoke tokens.

    On a local registry these commands manage the tokens of all contributors, and need no token. With --registry URL
    they manage the tokens of your account. Your own token then needs the scope `tokens`; without this scope it can only
    revoke itself.
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
    help=f"What a holder of the token can do. Repeatable. {'. '.join(map(': '.join, SCOPE_MEANINGS.items()))}.",
)
@click.option("--label", default="", help="A note to recognise the token by, such as the name of a machine.")
@click.option(
    "--days",
    type=click.IntRange(1, TOKEN_DAYS_MAX),
    help=f"Days until the token expires. [default: {TOKEN_DAYS_DEFAULT}]",
)
@flag("--forever", "Create a token that does not expire. With --registry, it expires together with your token.")
def create(contributor: str | None, scopes: tuple[str, ...], label: str, days: int | None, forever: bool) -> None:
    """Create a token for a CONTRIBUTOR and print it. The registry does not store the text of the token.

    With --registry URL, the token is for your own account; do not give CONTRIBUTOR. The new token cannot have a scope
    that your token lacks. It expires when your token expires, or earlier. It is revoked when your token is revoked.
    """
    from organs.registry.catalog.queries.accounts import contributor_by_name
    from organs.registry.catalog.register.accounts import create_token

    if forever and days is not None:
        raise click.UsageError("--days and --forever exclude each other")
    lifetime_days = None if forever else days or TOKEN_DAYS_DEFAULT
    if registry_address() is not None:
        if contributor is not None:
            raise click.UsageError("a remote registry creates tokens only for your own account: leave out CONTRIBUTOR")
        request = TokenRequest(scopes=scopes, label=label, days=lifetime_days)
        with remote_registry() as remote:
            created = endpoints.make_token(remote.connection, request)
        text = created.token
        if created.expires_at is not None:
            print_remark(f"expires {created.expires_at:%Y-%m-%d}")
    else:
        if contributor is None:
            raise click.UsageError("give the name of a contributor: organ token create CONTRIBUTOR")
        with local_session(writes=True) as session:
            owner = contributor_by_name(session, contributor)
            text = create_token(session, owner.id, scopes, label, lifetime_days).text
    click.echo(plain(text))
    print_remark(SHOWN_ONCE)


@token.command("list")
@click.argument("contributor", required=False)
@output_options(json="Print the list as JSON.", quiet="Print ids only.")
def list_tokens(contributor: str | None) -> None:
    """List all tokens, or the tokens of a CONTRIBUTOR, newest first. The texts of tokens are not stored."""
    from organs.registry.catalog.queries.accounts import contributor_by_name, contributors_in_order, tokens_of

    page: Page[Any]
    if registry_address() is not None:
        if contributor is not None:
            raise click.UsageError("a remote registry lists only the tokens of your own account: leave out CONTRIBUTOR")
        with remote_registry() as remote:
            page = endpoints.tokens(remote.connection)
    else:
        with local_session() as session:
            owners = (
                contributors_in_order(session) if contributor is None else [contributor_by_name(session, contributor)]
            )
            listed = [
                ListedToken(**structs.asdict(row), contributor=owner.name)
                for owner in owners
                for row in tokens_of(session, owner.id)
            ]
        page = ListedTokenPage(items=tuple(listed), next=None)
    print_page(cast(Page[AccountToken], page), lambda token: token.id, _print_tokens, empty="No tokens.")


def _limit(account: ContributorAccount) -> int | str:
    return account.quota.limit_bytes if account.is_limited else NO_QUOTA


def _print_tokens(tokens: Sequence[AccountToken]) -> None:
    columns = (
        Column("id", "token"),
        *((Column("contributor"),) if isinstance(tokens[0], ListedToken) else ()),
        Column("label", rank=2, shown=lambda token: token.label or None),
        Column("scopes"),
        Column("state"),
        Column("expires_at", "expires", rank=1, shown=lambda token: token.expires_at or "never"),
        Column("created_by", rank=4),
        Column("last_used_at", "last used", rank=3),
    )
    print_table(columns, tokens)


@token.command()
@click.argument("token_id", metavar="ID", type=_id)
def revoke(token_id: str) -> None:
    """Revoke a token, and all tokens that were created with it.

    ID is the nine characters after `orgp_` in the token; `organ token list` shows it. With --registry URL, a token can
    revoke itself; with the scope `tokens` it can also revoke tokens that were created with it.
    """
    from organs.registry.catalog.register.accounts import revoke_token

    if registry_address() is not None:
        try:
            with remote_registry() as remote:
                revoked = endpoints.revoke_token(remote.connection, token_id).id
        except NotFound as error:
            raise NoSuchToken(str(error)) from error
    else:
        with local_session(writes=True) as session:
            revoked = revoke_token(session, token_id).public_id
    print_remark(f"{revoked} is revoked, and so are all tokens that were created with it")


@click.command()
@click.argument("url", required=False, metavar="URL")
@flag("--token-stdin", "Read the token from stdin, not from the terminal.")
@flag("--insecure", "Allow http to another machine. It is not encrypted: others can read the token.")
@flag("--list", "lists", "List the registries with a stored token.")
@click.option("--forget", "forgets", metavar="URL", help="Delete the stored token for that registry.")
@output_options(json="Print the result as JSON.", quiet="Print only errors; with --list, only addresses.")
def login(url: str | None, token_stdin: bool, insecure: bool, lists: bool, forgets: str | None) -> None:
    """Check your token for the registry at URL, and store it in a file that only you can read.

    The administrator of the registry gives you a token, or you create it on the account page of the registry. Later
    commands send the token to this URL only. They send it without encryption only to this machine, unless you gave
    --insecure. If ORGAN_TOKEN is set, it is used instead of the stored token.
    """
    if sum((lists, forgets is not None, url is not None)) > 1:
        raise click.UsageError("give a URL, or --list, or --forget URL")
    if lists:
        stored = dict(sorted(kept_tokens().items()))
        items = [{"registry": url, "plain_http": entry.plain_http} for url, entry in stored.items()]
        if not printed_for_programs({"items": items, "next": None}, stored):
            for stored_url, entry in stored.items():
                click.echo(plain(stored_url) + (" (also without encryption)" if entry.plain_http else ""))
            if not stored:
                print_remark("No stored tokens. Try: organ login URL")
    elif forgets is not None:
        if not forget_token(forgets):
            raise BadSetting(f"no token is stored for {parse_address(forgets)}")
        if not is_quiet():
            print_remark("deleted from this machine; the token itself stays valid until it is revoked or expires")
    else:
        address = url or registry_address()
        if address is None:
            raise click.UsageError("give the URL of a registry")
        _log_in(address, from_stdin=token_stdin, insecure=insecure)


def _log_in(url: str, *, from_stdin: bool, insecure: bool) -> None:
    """Check a token from a hidden prompt or from stdin, and store it. Raises BadToken for a mistyped one."""
    from organs.registry.client.connection import Connection

    address = str(parse_address(url))
    if from_stdin:
        token = sys.stdin.buffer.readline(TYPED_MAX_BYTES).decode("ascii", "replace").strip()
    elif sys.stdin.isatty():
        token = str(click.prompt(f"Token for {address}", hide_input=True, err=True)).strip()
    else:
        raise BadSetting("there is no terminal to read the token from: give --token-stdin")
    parse_token(token)
    connection = Connection(address, token, plain_http=insecure)
    try:
        account = endpoints.account(connection)
    finally:
        connection.close()
    keep_token(address, KeptToken(token, insecure))
    values = {"registry": address, "contributor": account.contributor, "scopes": account.scopes}
    if not printed_for_programs(values):
        scopes = f"with the scopes {plain(', '.join(account.scopes))}" if account.scopes else "without scopes"
        click.echo(f"{address}: you are {plain(account.contributor)}, {scopes}")
        print_remark(f"the token is stored in {tokens_path()}")
        if os.environ.get(TOKEN_VARIABLE):
            print_remark(f"{TOKEN_VARIABLE} is set, and is used instead of the stored token", "note: ")
