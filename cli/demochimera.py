"""The demo's chimera: composed from two of the shipped models, predicted, and run where a runtime is installed."""

from __future__ import annotations

import click

from cli.findings import print_findings
from cli.planned import print_changes
from cli.prose import print_sentence
from registry.compose.builder import ChimeraPlan
from registry.compose.trying import try_chimera
from registry.present.plan import plan_values
from registry.present.text import size_text
from registry.registry import Registry
from registry.validation.llama import LlamaCpp
from registry.validation.reading import NoRuntime
from registry.validation.texts import built_in_texts

BASE, DONOR, STRANGER = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-B-2M-v1.0-Q8_0"
NAME = "demo/coder"


def compose_chimera(registry: Registry) -> None:
    """One model's skeleton with another's organs: what is predicted, what it is called, what a runtime says of it."""
    wanted = registry.compose(BASE).graft(DONOR, type="organ").named(NAME)
    click.echo("The recipe:\n")
    click.echo("\n".join(f"    {line}" for line in wanted.yaml().splitlines()))
    click.echo()
    plan = wanted.plan()
    values = plan_values(plan.plan)
    print_changes(values["changes"])
    click.echo()
    print_sentence(plan.prediction.sentence())
    made = plan.register()
    click.echo(f"\n{made.model}: {size_text(made.size_bytes)}, lock sha256:{made.lock_id}")
    _run(registry, made.model)
    click.echo(f"\nThe same organs of {STRANGER}, which is no relative, are warned of before anything is read:\n")
    _warn(registry.compose(BASE).graft(STRANGER, type="organ").plan())


def _run(registry: Registry, model: str) -> None:
    try:
        runtime = LlamaCpp(requires_sandbox=registry.settings.requires_sandbox)
    except NoRuntime as error:
        click.echo(f"Not run: {error}.")
        return
    verdict = try_chimera(registry.catalog, registry.blobs, model, built_in_texts(), runtime).validation.verdict
    print_sentence(f"Run in llama.cpp: {verdict.kind.value}. {verdict.reason}")


def _warn(plan: ChimeraPlan) -> None:
    print_findings([one for one in plan_values(plan.plan)["findings"] if one["severity"] == "warn"])
