"""What a registry holds, for its first page: families of models, with quantisations under their model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.chimeras import mixed_among
from organs.registry.catalog.queries.relatives import models_by_id
from organs.registry.catalog.queries.storage import (
    GroupSize,
    duplicate_models,
    group_size,
    newest_outside,
    shared_organ_bytes,
)
from organs.registry.catalog.tables import ModelRow
from organs.registry.names import family_name
from organs.registry.relatives.families import listed_families, model_families

FAMILIES_SHOWN = 6
MODELS_SHOWN = 8
"""Models of a family, each with its quantisations."""
MEMBERS_READ = 200
"""The most members of a family that are read: those with the most edges."""
VARIANTS_SHOWN = 12
SINGLES_SHOWN = 8
SINGLES_READ = 400
"""The newest models among which those without relatives are searched."""
COMPARED_TENSORS_MAX = 20_000
"""The most tensors, of all listed families together, whose equal organs are counted: a tenth of a second."""


@dataclass(frozen=True, slots=True)
class HeldVariant:
    """A registered file of a model, such as one of its quantisations."""

    name: str
    label: str
    """The quantisation and, from the second one on, the version: `Q8_0 @2`; empty if neither tells it from others."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HeldModel:
    """A model with all of its quantisations, the largest first."""

    name: str
    """`namespace/name`, without the quantisation."""
    kind: str
    title: str | None
    license: str | None
    parameters: int
    variants: tuple[HeldVariant, ...]
    variants_left_out: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HeldFamily:
    """A family of models."""

    name: str
    member: str
    """The full name of a member, for the address of its lineage."""
    architecture: str | None
    models: tuple[HeldModel, ...]
    models_left_out: int
    """Models of the family that are not listed. Chimeras are not counted."""
    chimeras: int
    size_bytes: int
    shared_bytes: int | None
    """Bytes of equal organs that are stored once instead of several times; None if they were not counted."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a registry holds."""

    families: tuple[HeldFamily, ...]
    families_count: int
    singles: tuple[HeldModel, ...]
    """The newest models without relatives."""
    duplicates: int
    """Models whose files are registered under another name too."""
    duplicate_bytes: int


def holdings(session: Session) -> Holdings:
    """Return the largest families and the newest models without relatives; chimeras are only counted."""
    return cached(session, "holdings", lambda: _holdings(session))


def _holdings(session: Session) -> Holdings:
    kin, listed = model_families(session), listed_families(session)
    families, budget = [], COMPARED_TENSORS_MAX
    for members in listed[:FAMILIES_SHOWN]:
        size = group_size(session, members)
        is_compared = size.tensors <= budget
        budget -= size.tensors if is_compared else 0
        if (family := _family(session, members, kin.edges, size, is_compared=is_compared)) is not None:
            families.append(family)
    related = {model_id for family in listed for model_id in family}
    singles = _folded(newest_outside(session, related, SINGLES_READ))
    duplicates = duplicate_models(session)
    return Holdings(
        families=tuple(families),
        families_count=len(listed),
        singles=tuple(singles[:SINGLES_SHOWN]),
        duplicates=duplicates.models,
        duplicate_bytes=duplicates.size_bytes,
    )


def _family(
    session: Session, family: Sequence[int], edges: Mapping[int, int], size: GroupSize, *, is_compared: bool
) -> HeldFamily | None:
    """Return a family with its first models; None if no model of it is visible and was ingested."""
    central = sorted(family, key=lambda model_id: (-edges.get(model_id, 0), model_id))[:MEMBERS_READ]
    mixed = mixed_among(session, central)
    members = [model for model in models_by_id(session, central).values() if model.state == "visible"]
    models = sorted((model for model in members if model.id not in mixed), key=lambda model: model.id)
    if not models:
        return None
    folded = _folded(models)
    shown = sorted(folded, key=lambda model: (model.kind != "model", model.name.lower()))[:MODELS_SHOWN]
    listed = sum(len(model.variants) + model.variants_left_out for model in shown)
    return HeldFamily(
        name=family_name([model.name.partition("/")[2] for model in folded]),
        member=models[0].full_name,
        architecture=models[0].architecture,
        models=tuple(shown),
        models_left_out=max(0, size.models - size.chimeras - listed),
        chimeras=size.chimeras,
        size_bytes=size.size_bytes,
        shared_bytes=shared_organ_bytes(session, family) if is_compared else None,
    )


def _folded(models: Sequence[ModelRow]) -> list[HeldModel]:
    """Return `models` with the quantisations and versions of each under its name, in the order of the first ones."""
    groups: dict[str, list[ModelRow]] = {}
    for model in models:
        groups.setdefault(f"{model.namespace}/{model.stem}", []).append(model)
    folded = []
    for name, group in groups.items():
        ordered = sorted(group, key=lambda model: (-model.size_bytes, -model.id))
        first = ordered[0]
        variants = []
        for model in ordered[:VARIANTS_SHOWN]:
            is_versioned = model.version > 1 or (model.quantisation is None and len(group) > 1)
            label = [model.quantisation, f"@{model.version}" if is_versioned else None]
            variants.append(HeldVariant(model.full_name, " ".join(filter(None, label)), model.size_bytes))
        held = HeldModel(
            name=name,
            kind=first.kind if first.complete else "partial",
            title=first.title,
            license=next((model.license for model in ordered if model.license), None),
            parameters=first.parameters,
            variants=tuple(variants),
            variants_left_out=max(0, len(group) - VARIANTS_SHOWN),
            size_bytes=sum(model.size_bytes for model in group),
        )
        folded.append(held)
    return folded
