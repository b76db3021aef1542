"""`add_model`: add one model to a registry, local or remote, from a script."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from organs.ingest.adapted_base import chosen_base
from organs.ingest.service import always, ingest_model, never, with_base
from organs.ingest.sources import ModelSource, find_sources
from organs.registry.errors import BadSource
from organs.registry.interface import Registry
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name


@dataclass(frozen=True, slots=True)
class AddedModel:
    """The result of `add_model`."""

    model: str | None
    """The full name with the version; None while the model is not published."""
    created: bool
    """False if the registry had the model already."""
    state: str
    """`published`, or `incomplete` if shards are missing; of a remote registry also `quarantined`, `ready` and
    `refused`."""
    reasons: tuple[str, ...] = ()
    """Why it is not published, in sentences."""


def add_model(
    registry: Registry,
    path: str | Path | ModelSource,
    *,
    name: str | None = None,
    new_version: bool = False,
    base: str | None = None,
) -> AddedModel:
    """Add the model in a GGUF file, a split set, an organ directory or an adapter folder to `registry`.

    A local registry reads and measures the file; a remote one receives only the organs that it lacks, and checks them.
    `name` is `namespace/name`; by default the name of the file, in `local` or in the namespace of your account. Adding
    the same file again changes nothing. In a local registry, another file under a name that is taken raises NameTaken,
    unless `new_version` is set; a remote registry always adds a version. `base` is the base of an adapter folder: a
    registered model, a GGUF file, or a folder with its `config.json`. Raises BadSource if `path` is not one model,
    BadInput for a file that is refused, StoreError, and for a remote registry NotAllowed, OverQuota and Unreachable.
    """
    sources = [path] if isinstance(path, ModelSource) else find_sources([str(path)], "add")
    if len(sources) != 1:
        raise BadSource(f"{path}: it has {len(sources)} models; add one at a time")
    (source,) = sources
    if base is not None:
        source = replace(source, base=chosen_base(registry, base))
    if isinstance(registry, LocalRegistry):
        model_name = None if name is None else parse_model_name(name)
        report = ingest_model(registry, source, model_name, new_version=always if new_version else never)
        if report.incomplete:
            return AddedModel(report.model, report.created, "incomplete", (report.incomplete,))
        return AddedModel(report.model, report.created, "published")
    from organs.ingest.contributions.push import ALREADY_THERE, PushOptions, SilentProgress, push
    from organs.ingest.contributions.sending import user_memory
    from organs.registry.client.remote import RemoteRegistry  # loads HTTP, which local registries do not need

    assert isinstance(registry, RemoteRegistry)
    source = with_base(registry, source)
    pushed = push(registry.connection, source, PushOptions(name), user_memory(), SilentProgress())
    reasons = (*([pushed.reason] if pushed.reason else []), *(finding.sentence for finding in pushed.findings))
    if pushed.state == ALREADY_THERE:
        return AddedModel(pushed.model, False, "published", reasons)
    return AddedModel(pushed.model, pushed.model is not None, pushed.state, reasons)
