"""A registered model as a value for scripts: what it says, its organs in order, its relatives, and its recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from organs.registry import notebook
from organs.registry.amounts import count_text, share_text, size_text, theta_text
from organs.registry.catalog.queries.composing import chimera_of
from organs.registry.catalog.queries.models import shown_kind
from organs.registry.catalog.queries.organs import organs_of_model
from organs.registry.catalog.search import nearest
from organs.registry.catalog.tables import Model
from organs.registry.digest import Digest
from organs.registry.entities.organ import PlacedOrgan, organs_html
from organs.registry.errors import NotFound
from organs.registry.relatives.lineage import lineage_of

if TYPE_CHECKING:
    from organs.registry.compose.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Relative:
    """One edge of a model's lineage."""

    direction: str
    """`parent`, `child`, or `relative` where only the weights tell."""
    model: str | None
    """`namespace/name@version`; None for a parent that is not registered."""
    text: str | None
    """As the model names it."""
    relation: str
    """By which act: `finetune`, `quantized`, `grafted`, `purified`..."""
    evidence: str
    """`declared`, `recorded` or `measured`."""
    likeness: float | None
    """Mean correlation of the weights, -1 to 1; None where it was not measured."""


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """A model of a registry, with everything in it, as it was when it was asked for."""

    name: str
    """`namespace/name@version`."""
    digest: Digest
    """Of its bytes."""
    title: str | None
    description: str | None
    kind: str
    """`model`, `adapter` or `vocabulary`; `partial` where organs are missing, `chimera` if composed here."""
    architecture: str | None
    license: str | None
    complete: bool
    """False where only some of its organs are here."""
    parameters: int
    size_bytes: int
    mean_theta: float | None
    """Degrees, over its tensors."""
    created_at: datetime
    organs: tuple[PlacedOrgan, ...]
    """All of them, in the order of its files."""
    relatives: tuple[Relative, ...]
    """Parents first, then children, then the most alike."""
    recipe: Recipe | None = None
    """What it was composed by; None of a model that came in as a file."""
    lock_id: Digest | None = None
    """SHA-256 of its lock; None likewise."""
    _by_name: Mapping[str, PlacedOrgan] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Frozen, so what is looked up all the time is set once, here.
        object.__setattr__(self, "_by_name", {organ.name: organ for organ in self.organs})

    @property
    def recipe_yaml(self) -> str | None:
        """The recipe as text; None of a model that came in as a file."""
        if self.recipe is None:
            return None
        from organs.registry.compose.recipe_io import recipe_yaml

        return recipe_yaml(self.recipe)

    @property
    def is_chimera(self) -> bool:
        """Whether it was composed here."""
        return self.recipe is not None

    def organ(self, name: str) -> PlacedOrgan:
        """The organ at the place `name`, such as `output_norm.weight`. Raises NotFound with the nearest name."""
        if name not in self._by_name:
            close = nearest(name, self._by_name)
            raise NotFound(f"{self.name} has no organ {name!r}{f'; did you mean {close}?' if close else ''}")
        return self._by_name[name]

    def __repr__(self) -> str:
        size, theta = size_text(self.size_bytes), theta_text(self.mean_theta)
        return f"<{self.name}: {self.kind}, {len(self.organs)} organs, {size}, mean θ {theta}>"

    def _repr_html_(self) -> str:
        facts: tuple[tuple[str, notebook.Cell], ...] = (
            ("title", self.title),
            ("kind", self.kind),
            ("architecture", self.architecture),
            ("licence", self.license),
            ("parameters", count_text(self.parameters)),
            ("size", size_text(self.size_bytes)),
            ("mean θ", theta_text(self.mean_theta)),
            ("digest", self.digest),
        )
        relatives = [
            (one.direction, one.model or one.text, one.relation, one.evidence, share_text(one.likeness))
            for one in self.relatives
        ]
        columns = ("", "model", "by", "evidence", "alike")
        return notebook.document(
            notebook.heading(self.name),
            notebook.facts(facts),
            notebook.table(columns, relatives, ("alike",)) if relatives else "",
            organs_html(self.organs),
        )


def registered_value(session: Session, model: Model) -> RegisteredModel:
    """`model` with its organs, its lineage and, of a chimera, its recipe."""
    chimera = chimera_of(session, model.id)
    recipe = None
    if chimera is not None:
        from organs.registry.compose.recipe import recipe_from_json

        recipe = recipe_from_json(chimera.recipe)
    return RegisteredModel(
        name=model.full_name,
        digest=Digest(model.digest),
        title=model.title,
        description=model.description,
        kind=shown_kind(model, composed=chimera is not None),
        architecture=model.architecture,
        license=model.license,
        complete=model.complete,
        parameters=model.parameters,
        size_bytes=model.size_bytes,
        mean_theta=model.mean_theta,
        created_at=model.created_at,
        organs=organs_of_model(session, model),
        relatives=_relatives(session, model),
        recipe=recipe,
        lock_id=None if chimera is None else Digest(chimera.lock_id),
    )


def _relatives(session: Session, model: Model) -> tuple[Relative, ...]:
    return tuple(
        Relative(
            direction=edge.direction,
            model=edge.model,
            text=edge.text,
            relation=edge.relation,
            evidence=edge.evidence,
            likeness=edge.likeness,
        )
        for edge in lineage_of(session, model).edges
    )
