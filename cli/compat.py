"""`organ compat`: which tensors fit into a model."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import click

from organs.cli.console import (
    is_for_people,
    merge_command,
    output_options,
    print_hint,
    print_remark,
    print_sentence,
    printed_for_programs,
    prints_json,
    status_line,
)
from organs.cli.inputs import is_file, one_source
from organs.cli.options import limit_option
from organs.cli.plans import print_architectures, print_findings
from organs.cli.registries import local_registry, registry_address, selected_registry
from organs.cli.tables import print_table
from organs.registry.amounts import NO_VALUE, weight_change_text
from organs.registry.columns import CellKind, Column
from organs.registry.entities.finding import Severity
from organs.registry.entities.plan import Compatibility, FittingModel, TypeCompatibility

SAME = "the same model"
"""Shown instead of the change of a model with the same tensors as the base."""


@click.command()
@click.argument("base", metavar="BASE")
@click.argument("donor", required=False, metavar="[DONOR]")
@limit_option("List at most N models.", 50)
@output_options(
    json="Print everything as JSON.", quiet="Print only the types that fit completely, or without DONOR the models."
)
def compat(base: str, donor: str | None, limit: int) -> None:
    """Show which tensors of DONOR fit into BASE, by type, and why others do not.

    Without DONOR, list the registered models with tensors that fit, the most similar model first. A model with the same
    tensors as BASE is listed as the same model. Tensors of an unrelated model fit by their shape only: such a chimera
    is seldom useful.

    BASE and DONOR are names of registered models, or `sha256:` and a digest. With a DONOR, they can also be GGUF files
    and organ directories.
    """
    if donor is None:
        _print_fitting(base, limit)
        return
    result = _compatibility(base, donor)
    if printed_for_programs(result, [row.type for row in result.types if row.fitting == row.total]):
        return
    findings = print_architectures(result.findings)
    columns = (
        Column("type"),
        Column("fitting", "fit", CellKind.COUNT),
        Column("total", "of", CellKind.COUNT),
        Column("relation", shown=lambda row: row.screen and row.screen.relation),
        Column("change", kind=CellKind.FIGURE, shown=_moved_text),
        Column("findings", "warnings", shown=_codes_text),
    )
    if result.types:
        print_table(columns, result.types)
        click.echo()
    print_findings(findings)
    is_refused = any(finding.severity is Severity.REFUSE for finding in result.findings)
    if is_refused and any(row.fitting for row in result.types):
        print_sentence("A refusal of one type does not affect the others.")
    is_adapter = not result.types and not is_refused
    if is_adapter and not is_file(base) and not is_file(donor):
        print_hint("Merge it into the base", merge_command(base, donor))


def _moved_text(row: TypeCompatibility) -> str:
    return NO_VALUE if row.screen is None else weight_change_text(row.screen.moved, row.screen.likeness)


def _codes_text(row: TypeCompatibility) -> str:
    codes = dict.fromkeys(finding.code for finding in row.findings if finding.severity is not Severity.INFO)
    return ", ".join(codes) or ("" if row.fitting == row.total else "see below")


def _compatibility(base: str, donor: str) -> Compatibility:
    are_files = [is_file(base), is_file(donor)]
    if not any(are_files):
        with selected_registry() as registry, status_line("compare"):
            return registry.compatibility(base, donor)
    from organs.ingest.sources import open_files
    from organs.ingest.transplant import parent_of_files
    from organs.registry.compose.compatibility import check_compatibility
    from organs.registry.compose.parents import RegisteredLibrary

    if registry_address() is not None and not all(are_files):
        raise click.UsageError("a remote registry cannot read your files: give the names of two models, or two files")
    with ExitStack() as opened, status_line("measure"):
        models = []
        for text in (base, donor):
            if is_file(text):
                models.append(parent_of_files(text, open_files(opened, one_source(text, "compare"))))
            else:
                local = opened.enter_context(local_registry())
                session = opened.enter_context(local.catalog.reading())
                models.append(RegisteredLibrary(session, local.blobs).parent(text))
        return check_compatibility(*models)


def _print_fitting(base: str, limit: int) -> None:
    with selected_registry() as registry, status_line("compare"):
        result = registry.fitting(base, limit=limit)
        is_empty = not result.items and is_for_people()
        is_adapter = is_empty and bool(registry.models(f"model:{result.base} kind:adapter", limit=1).items)
    if printed_for_programs(result, [model.model for model in result.items if not model.same]):
        pass
    elif is_empty:
        print_remark(f"No registered model fits into {result.base}.")
        if is_adapter:
            print_hint("It is an adapter: name its base first", f"organ compat BASE {result.base}")
    else:
        fitting = {kind for model in result.items for kind, fit in model.types.items() if fit.fitting or fit.equal}
        kinds = list(dict.fromkeys(kind for model in result.items for kind in model.types if kind in fitting))
        columns = [
            Column("model", kind=CellKind.NAME),
            Column("change", kind=CellKind.FIGURE, shown=_change_text),
            *(
                Column(kind, kind=CellKind.FIGURE, rank=rank, shown=partial(_fit_text, kind))
                for rank, kind in enumerate(kinds)
            ),
        ]
        print_table(columns, result.items)
        print_hint("Details", f"organ compat {result.base} MODEL")
    if result.more and not prints_json():
        print_remark("there may be more models: give a larger --limit")


def _change_text(model: FittingModel) -> str:
    return SAME if model.same else weight_change_text(model.change, model.likeness)


def _fit_text(kind: str, model: FittingModel) -> str | None:
    fit = model.types.get(kind)
    if fit is None:
        return None
    equal = "equal" if fit.equal == fit.total else f"{fit.equal} equal"
    return f"{fit.fitting + fit.equal}/{fit.total}" + (f" ({equal})" if fit.equal else "")
