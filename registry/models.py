"""Models with all recorded data: the result of `registry.model(name)`, the page of a model, and its JSON."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta
from sqlalchemy.orm import Session

from organs.registry import notebook
from organs.registry.amounts import count_text, size_text, theta_text
from organs.registry.catalog import tables
from organs.registry.catalog.queries.accounts import contributor_name
from organs.registry.catalog.queries.card_images import card_images
from organs.registry.catalog.queries.chimeras import chimera_of, stored_origins
from organs.registry.catalog.queries.model_contents import (
    count_experts,
    dtype_counts,
    facts_of,
    files_of,
    ingest_of,
    metadata_of,
    runtime_texts,
    type_summaries,
)
from organs.registry.catalog.queries.model_lists import descendants_of, model_summaries
from organs.registry.catalog.queries.model_names import other_names
from organs.registry.catalog.queries.organs import organs_of_model
from organs.registry.catalog.queries.storage import model_storage
from organs.registry.catalog.rows import count, entity_of
from organs.registry.compose.chimeras import from_source_of, license_findings, stored_license
from organs.registry.compose.recipe import read_recipe, recipe_file, recipe_from_json, recipe_yaml
from organs.registry.digest import Digest
from organs.registry.entities.base import ITEMS_MAX, Count, encode, prepared
from organs.registry.entities.chimera import Chimera
from organs.registry.entities.lineage import EDGE_COLUMNS, LineageEdge
from organs.registry.entities.model import Composed, IngestSummary, MetadataEntry, Model, ModelFile
from organs.registry.entities.organ import PlacedOrgan, organs_html
from organs.registry.entities.published import ModelVersion
from organs.registry.errors import BadRecipe, BadReply, NotFound
from organs.registry.names import nearest
from organs.registry.relatives.lineage import lineage_of

if TYPE_CHECKING:
    from organs.registry.compose.recipe import Recipe


class RegisteredModel(Model, dict=True):
    """A model with its organs, in its state at the time of the request."""

    organs: Annotated[tuple[PlacedOrgan, ...], Meta(max_length=ITEMS_MAX)]
    """All organs, in the order of the files."""

    @property
    def relatives(self) -> tuple[LineageEdge, ...]:
        """The lineage of the model: parents first, then children, then the most alike models."""
        return self.lineage

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe of a composed model; None for a model that was ingested.

        Raises BadReply if the recipe from a remote registry cannot be read.
        """
        if self.composed is None:
            return None
        try:
            return read_recipe(encode(self.composed.recipe).decode(), f"the recipe of {self.name}")
        except BadRecipe as error:
            raise BadReply(str(error)) from error

    @property
    def recipe_yaml(self) -> str | None:
        """The recipe as YAML; None for a model that was ingested."""
        return None if self.recipe is None else recipe_yaml(self.recipe)

    @cached_property
    def _by_name(self) -> dict[str, PlacedOrgan]:
        return {organ.name: organ for organ in self.organs}

    def organ(self, name: str) -> PlacedOrgan:
        """Return the organ called `name`, such as `output_norm.weight`. Raises NotFound with the nearest name."""
        if name not in self._by_name:
            close = nearest(name, self._by_name)
            raise NotFound(f"{self.name} has no tensor {name!r}{f'; did you mean {close}?' if close else ''}")
        return self._by_name[name]

    def __repr__(self) -> str:
        size, theta = size_text(self.size_bytes), theta_text(self.mean_theta, self.theta_caution)
        return f"<{self.name}: {self.kind}, {len(self.organs)} tensors, {size}, mean θ {theta}>"

    def _repr_html_(self) -> str:
        facts = (
            ("title", self.title),
            ("kind", self.kind),
            ("architecture", self.architecture),
            ("license", self.license),
            ("parameters", count_text(self.parameters)),
            ("size", size_text(self.size_bytes)),
            ("mean θ", theta_text(self.mean_theta, self.theta_caution)),
            ("digest", self.digest),
        )
        return notebook.document(
            notebook.heading(self.name),
            notebook.facts(facts),
            notebook.table(EDGE_COLUMNS, self.lineage) if self.lineage else "",
            organs_html(self.organs),
        )


class ModelDetails(RegisteredModel, dict=True):
    """A model with its organs and its other versions; with its chimera if it was composed."""

    versions: Annotated[tuple[ModelVersion, ...], Meta(max_length=ITEMS_MAX)]
    """The newest versions of its name, newest first."""
    versions_left_out: Count
    chimera: Chimera | None


def model_page(session: Session, row: tables.ModelRow, *, shows_storage: bool = False) -> Model:
    """Return all recorded data of a model, without its organs; with `shows_storage`, also how these are stored."""
    metadata = metadata_of(session, row.id)
    lineage = lineage_of(session, row)
    (summary,) = model_summaries(session, [row])
    ingest, chimera = ingest_of(session, row.id), chimera_of(session, row.id)
    report = composed = None
    if ingest is not None and ingest.report:
        report = msgspec.json.decode(ingest.report, type=prepared(IngestSummary))
        if report.organs is not None:  # a model that came shard by shard has the report of its last shard
            report = msgspec.structs.replace(report, organs=row.tensors, size_bytes=row.size_bytes)
    if chimera is not None:
        composed = Composed(
            lock_id=Digest(chimera.lock_id),
            parents=stored_origins(chimera).parents,
            recipe=recipe_file(recipe_from_json(chimera.recipe)),
        )
    return entity_of(
        Model,
        row,
        **msgspec.structs.asdict(summary),
        other_names=tuple(other_names(session, row)),
        chimeras=count(session, descendants_of(row.id).subquery()),
        contributor=contributor_name(session, row.contributor_id),
        types=type_summaries(session, row.id),
        experts=count_experts(session, row.id),
        files=tuple(entity_of(ModelFile, file) for file in files_of(session, row.id)),
        facts=facts_of(row, metadata, dtype_counts(session, row.id)),
        metadata=tuple(entity_of(MetadataEntry, entry) for entry in metadata),
        texts=runtime_texts(session, [row.id])[row.id],
        images=card_images(session, row.id),
        ingest=report,
        composed=composed,
        from_source=from_source_of(session, row.id),
        lineage=lineage.edges,
        lineage_left_out=lineage.left_out,
        storage=model_storage(session, row.id) if shows_storage else None,
        findings=(*license_findings(row, stored_license(session, row)), *lineage.findings),
    )


def registered_model(session: Session, row: tables.ModelRow) -> RegisteredModel:
    """Return a model with its organs, and how these are stored."""
    return with_organs(model_page(session, row, shows_storage=True), organs_of_model(session, row))


def with_organs(model: Model, organs: tuple[PlacedOrgan, ...]) -> RegisteredModel:
    """Return `model` together with its organs."""
    return RegisteredModel(**msgspec.structs.asdict(model), organs=organs)
