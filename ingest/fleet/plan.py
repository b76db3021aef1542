"""Plans of fleets: a TOML file that lists work, and the units that it becomes.

name = "zoo"

[[work]]
do = "ingest"
from = ["models/", "hf://acme/tiny"]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from organs.ingest.sources import ModelSource, find_sources
from organs.ingest.urls import Hub, is_url
from organs.registry.catalog.queries.fleet import model_names
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.register.fleet import UNITS_MAX, NewUnit
from organs.registry.catalog.vocabulary import TEXT_MAX
from organs.registry.client.address import without_secrets
from organs.registry.digest import digest_of
from organs.registry.errors import BadInput, BadSource, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.quantizing.search import bands_of
from organs.registry.relatives.families import listed_families
from organs.registry.validation.run import compared_with

PLAN_MAX_BYTES = 16 * 1024 * 1024
REPACK_TEXT_MAX = 2000
"""The most characters of the names of models that one unit repacks."""

Entries = Annotated[list[Annotated[str, Meta(min_length=1, max_length=TEXT_MAX)]], Meta(min_length=1)]


class PlannedWork(msgspec.Struct, forbid_unknown_fields=True, rename={"sources": "from"}):
    """A table `[[work]]` of a plan."""

    do: Literal["ingest", "measure", "repack", "validate", "sensitivity"]
    sources: Entries | None = None
    """Files, folders, patterns and addresses to ingest. Paths are relative to the folder of the plan."""
    models: Entries | None = None
    """Names or patterns of registered models to measure, to repack, or whose sensitivity is measured."""
    chimeras: Entries | None = None
    """Names of chimeras to validate."""


class FleetPlan(msgspec.Struct, forbid_unknown_fields=True):
    """A plan as it is written."""

    name: Annotated[str, Meta(min_length=1, max_length=96)]
    work: Annotated[list[PlannedWork], Meta(min_length=1, max_length=10_000)]

    @property
    def has_addresses(self) -> bool:
        """Whether a `Hub` must read them."""
        return any(is_url(source) for work in self.work for source in work.sources or ())


_FORM = (
    "a plan has a name, and tables [[work]] with a list: do = 'ingest' with from, 'measure', 'repack' or "
    "'sensitivity' with models, 'validate' with chimeras"
)
_LISTS = {"ingest": "from", **dict.fromkeys(("measure", "repack", "sensitivity"), "models"), "validate": "chimeras"}
"""The list that each kind of work needs."""


@dataclass(frozen=True, slots=True)
class ExpandedPlan:
    """A plan as a list of units."""

    name: str
    units: tuple[NewUnit, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the name, the units, and the state of their files: plans with the same digest are the same run."""
        rows = [self.name, *([unit.work, unit.source, unit.size_bytes, unit.stamp] for unit in self.units)]
        return digest_of(json.dumps(rows).encode())


def read_plan(path: Path) -> FleetPlan:
    """Return the plan in the file `path`. Raises BadInput, BadSource for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(PLAN_MAX_BYTES + 1)
    except OSError as error:
        raise BadSource(f"{path}: {error.strerror}") from error
    if len(data) > PLAN_MAX_BYTES:
        raise BadInput(f"{path}: a plan has at most {PLAN_MAX_BYTES:,} bytes")
    try:
        plan = msgspec.toml.decode(data, type=FleetPlan)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {error}; {_FORM}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path} is not a TOML file: {error}") from error
    if not (plan.name.isascii() and plan.name.isprintable() and any(map(str.isalpha, plan.name))):
        raise BadInput(f"{path}: the name of a plan has only printable ASCII characters, and a letter")
    for number, work in enumerate(plan.work, 1):
        lists = {"from": work.sources, "models": work.models, "chimeras": work.chimeras}
        needed = _LISTS[work.do]
        if lists.pop(needed) is None:
            raise BadInput(f"{path}: work {number}: {work.do} needs the list {needed!r}")
        for name, entries in lists.items():
            if entries is not None:
                raise BadInput(f"{path}: work {number}: {work.do} takes {needed!r}, not {name!r}")
    return plan


def expand_plan(registry: LocalRegistry, plan: FleetPlan, folder: Path, hub: Hub | None = None) -> ExpandedPlan:
    """Return the units of the plan; `folder` is the folder of its file, and `hub` reads addresses.

    A model, or a shard of a split model, is a unit; models of one family are repacked by one unit. Raises BadInput,
    NotFound for a model that is not registered, Unreachable.
    """
    units: dict[tuple[str, str], NewUnit] = {}
    for work in plan.work:
        for unit in _units(registry, work, folder, hub):
            units.setdefault((unit.work, unit.source), unit)
            if len(units) > UNITS_MAX:
                raise BadInput(f"a plan has at most {UNITS_MAX:,} units of work; write several plans")
    return ExpandedPlan(plan.name, tuple(units.values()))


def _units(registry: LocalRegistry, work: PlannedWork, folder: Path, hub: Hub | None) -> Iterator[NewUnit]:
    if work.do == "ingest":
        yield from _files(work.sources or (), folder, hub)
    elif work.do == "validate":
        with registry.catalog.reading() as session:
            for text in work.chimeras or ():
                model = model_by_text(session, text)
                compared_with(session, model)
                yield NewUnit("validate", model.full_name)
    else:
        with registry.catalog.reading() as session:
            known = model_names(session, UNITS_MAX + 1)
            families = listed_families(session) if work.do == "repack" else []
        names = _matching(known, work.models or ())
        if work.do == "sensitivity":
            for name in names:
                yield from (
                    NewUnit(work.do, f"{name} {band}") for band in bands_of(registry.catalog, registry.blobs, name)
                )
            return
        groups = [[name] for name in names] if work.do == "measure" else _grouped(names, known, families)
        yield from (NewUnit(work.do, " ".join(group)) for group in groups)


def _files(sources: Sequence[str], folder: Path, hub: Hub | None) -> Iterator[NewUnit]:
    """Yield a unit for each file of the models: shards are stored one at a time, by any worker."""
    for source in sources:
        # The ledger and its readers must not see a password or a signature.
        if is_url(source) and ("@" in source.partition("://")[2].partition("/")[0] or "?" in source or "#" in source):
            problem = f"{without_secrets(source)}: an address in a plan has no user, password, query or fragment"
            raise BadInput(f"{problem}; give the workers their credentials in their environment")
        argument = source if is_url(source) else str(folder / Path(source).expanduser())
        for model in find_sources([argument], hub=hub):
            for remote in model.remote:
                yield NewUnit("ingest", remote.address)
            for path in model.paths:
                size = path.stat().st_size if path.is_file() else None
                yield NewUnit("ingest", str(path), size, _stamp(path))


def _stamp(path: Path) -> str:
    """Return a text that changes when the size or the time of the file, or of a file in the folder, changes."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    rows = []
    for file in files:
        with suppress(OSError):  # the unit will fail
            status = file.stat()
            rows.append([str(file.relative_to(path)), status.st_size, status.st_mtime_ns])
    return digest_of(json.dumps(rows).encode())


def _matching(known: Mapping[str, int], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of the patterns, in the order of the registry; raises NotFound."""
    chosen: set[str] = set()
    for pattern in patterns:
        names = [name for name in known if fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("@")[0], pattern)]
        if not names:
            raise NotFound(f"no registered model has the name {pattern[:200]!r}; use namespace/name, or a pattern")
        chosen.update(names)
    return [name for name in known if name in chosen]


def _grouped(names: Sequence[str], known: Mapping[str, int], families: Sequence[Sequence[int]]) -> list[list[str]]:
    """Return the names by family, so that two workers do not repack the same family; long ones in several groups."""
    family_of = {model_id: number for number, family in enumerate(families) for model_id in family}
    members: dict[object, list[str]] = {}
    for name in names:
        members.setdefault(family_of.get(known[name], name), []).append(name)
    groups: list[list[str]] = []
    for family in members.values():
        groups.append([])
        for name in family:
            if sum(len(other) + 1 for other in groups[-1]) + len(name) > REPACK_TEXT_MAX:
                groups.append([])
            groups[-1].append(name)
    return groups


def source_of(text: str, hub: Hub | None) -> ModelSource:
    """Return the source of a unit of ingest: a model, or one shard of a split model. Raises BadSource, Unreachable."""
    (model,) = find_sources([text], hub=hub)
    if len(model.paths) + len(model.remote) == 1:
        return model
    paths = tuple(path for path in model.paths if str(path) == text)
    remote = tuple(file for file in model.remote if file.address == text)
    return ModelSource(paths, model.name, remote)
