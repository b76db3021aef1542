"""`organ compat`: what fits what, and why not."""

from __future__ import annotations

from contextlib import ExitStack

import click

from organs.cli.console import print_json, print_table
from organs.cli.elsewhere import fits_there, fitting_there
from organs.cli.findings import print_findings
from organs.cli.given import GivenModels, is_file
from organs.cli.place import folder_registry, remote_registry
from organs.cli.prose import print_sentence
from organs.registry.catalog.queries.composing import model_by_text
from organs.registry.catalog.queries.fitting import FittingModels, TypeFit, fitting_models
from organs.registry.catalog.search.cursor import PAGE_MAX
from organs.registry.compose.finding import Severity
from organs.registry.present.compatibility import compatibility_values
from organs.registry.present.composing import fitting_values
from organs.registry.present.text import share_text
from organs.registry.present.values import Values

_NUMBERS = ("fit", "of")


@click.command()
@click.argument("base", metavar="BASE")
@click.argument("donor", required=False, metavar="[DONOR]")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, PAGE_MAX), help="Models at most.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the types that fit, or the models' names, only.")
def compat(base: str, donor: str | None, limit: int, as_json: bool, quiet: bool) -> None:
    """Say whether the organs of DONOR fit into BASE, type by type, and why not.

    Without a DONOR, list the registered models that have organs which fit, relatives first: organs of strangers fit by
    shape alone. BASE and DONOR are registered models, by name or by sha256: and a digest; with a DONOR also GGUF files
    and organ directories.
    """
    if donor is None:
        _print_models(base, limit, as_json=as_json, quiet=quiet)
        return
    remote = None if is_file(base) and is_file(donor) else remote_registry()
    if remote is not None and (is_file(base) or is_file(donor)):
        raise click.UsageError("a registry elsewhere compares models of its own: give two names, or two files")
    if remote is not None:
        with remote:
            values = fits_there(remote, base, donor)
    else:
        with ExitStack() as opened:
            given = GivenModels(opened)
            ours, theirs = given.parent(base), given.parent(donor)
            values = compatibility_values(ours, theirs) | {"left_out": {}}
    if as_json:
        print_json(values)
    elif quiet:
        for one in values["types"]:
            if one["fitting"] == one["total"]:
                click.echo(one["type"])
    else:
        _print_pair(values)


def _print_pair(values: Values) -> None:
    rows = [(one["type"], one["fitting"], one["total"], _reasons(one)) for one in values["types"]]
    if rows:
        print_table(("type", "fit", "of", "but"), rows, _NUMBERS)
        click.echo()
    print_findings(values["findings"])
    refused = any(one["severity"] == Severity.REFUSE for one in values["findings"])
    if rows and refused and any(one["fitting"] for one in values["types"]):
        print_sentence("What refuses one type says nothing against the others.")


def _reasons(one: Values) -> str:
    """The codes of what speaks against a type, what refuses first."""
    codes = [finding["code"] for finding in one["findings"] if finding["severity"] != Severity.INFO]
    return ", ".join(dict.fromkeys(codes)) or ("" if one["fitting"] == one["total"] else "see below")


def _print_models(base: str, limit: int, *, as_json: bool, quiet: bool) -> None:
    remote = remote_registry()
    if remote is not None:
        with remote:
            name, found = fitting_there(remote, base, limit)
    else:
        with folder_registry() as registry, registry.catalog.reading() as session:
            model = model_by_text(session, base)
            name, found = model.full_name, fitting_models(session, model.id, limit)
    if as_json:
        print_json({"base": name, "next": None} | fitting_values(found))
    elif quiet:
        for one in found.items:
            click.echo(one.name)
    elif not found.items:
        click.echo(f"Nothing that is registered fits into {name}.", err=True)
    else:
        kinds = list(dict.fromkeys(kind for one in found.items for kind in one.types if kind in _kinds(found)))
        rows = [
            (one.name, share_text(one.alike), *(_fit_text(one.types.get(kind)) for kind in kinds))
            for one in found.items
        ]
        print_table(("model", "alike", *kinds), rows, ("alike", *kinds))
        click.echo(f"why, and what is to be said of it: organ compat {name} MODEL", err=True)
    if found.more and not as_json:
        click.echo("there may be more: --limit", err=True)


def _kinds(found: FittingModels) -> set[str]:
    """The types of which anything fits."""
    return {kind for one in found.items for kind, fit in one.types.items() if fit.fitting or fit.equal}


def _fit_text(fit: TypeFit | None) -> str:
    if fit is None:
        return "–"
    return f"{fit.fitting + fit.equal}/{fit.total}" + (f" ({fit.equal} equal)" if fit.equal else "")
