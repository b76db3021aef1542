"""Where parents come from: the models of a registry, read from its catalog and its blobs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy.orm import Session

from organs.registry.catalog.edits import LICENSE_MAX
from organs.registry.catalog.queries.composing import model_by_text, names_of_chimeras, tensor_rows
from organs.registry.catalog.queries.search import search_organs
from organs.registry.catalog.queries.shared_organs import models_in_common
from organs.registry.catalog.search import FoundOrgan, parse_query
from organs.registry.catalog.tables import Model
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.chimera.layout import first_header
from organs.registry.compose.cost import CANDIDATE_COST, COMMON_COST, QUERY_COST, Budget, read_cost
from organs.registry.compose.parent import Parent, Part
from organs.registry.digest import Digest
from organs.registry.gguf import dtype_by_name
from organs.registry.lineage import Slot
from organs.registry.store import BlobStore

PAGE = 1000


class Library(Protocol):
    """Gives models by what people call them, and organs by query."""

    def parent(self, text: str) -> Parent:
        """The model that `text` means; raises NotFound, Ambiguous, BadName, BadDigest, StoreError."""
        ...

    def organs(self, query: str) -> Iterator[FoundOrgan]:
        """All that `query` finds, in its order; raises BadQuery."""
        ...

    def in_common(self, base: Parent) -> Mapping[Slot, Collection[str]]:
        """For places of `base`, the other models that have its very organ there."""
        ...


@dataclass(slots=True)
class RegisteredLibrary:
    """The models of a registry, as one session sees them. What is read is charged to `budget`, which may refuse it."""

    session: Session
    store: BlobStore
    budget: Budget = field(default_factory=Budget)
    _held: dict[int, Parent] = field(default_factory=dict)
    _common: dict[int, Mapping[Slot, Collection[str]]] = field(default_factory=dict)
    _chimeras: frozenset[str] | None = None

    def parent(self, text: str) -> Parent:
        """Return the model of that name, or whose bytes, file or lock has that digest; raises TooCostly."""
        model = model_by_text(self.session, text)
        if model.id not in self._held:
            self.budget.spend(read_cost(self.session, model))
            self._held[model.id] = self._read(model)
        return self._held[model.id]

    def organs(self, query: str) -> Iterator[FoundOrgan]:
        """All that `query` finds, a page at a time; organs of chimeras only where it names models.

        Else what a recipe makes would be found by the same recipe the next time, and be made of itself. Raises
        TooCostly.
        """
        asked = parse_query(query)
        self.budget.spend(QUERY_COST)
        left_out = frozenset() if asked.choices("model") else self._names_of_chimeras()
        after = None
        while True:
            page = search_organs(self.session, asked, PAGE, after)
            self.budget.spend(CANDIDATE_COST * len(page.items))
            yield from (organ for organ in page.items if organ.model not in left_out)
            if page.next is None:
                return
            after = page.next

    def in_common(self, base: Parent) -> Mapping[Slot, Collection[str]]:
        """For places of `base`, the other visible models that have its very organ there."""
        if base.model_id is None:
            return {}
        if base.model_id not in self._common:
            self._common[base.model_id] = found = models_in_common(self.session, base.model_id)
            self.budget.spend(COMMON_COST * sum(map(len, found.values())))
        return self._common[base.model_id]

    def _names_of_chimeras(self) -> frozenset[str]:
        if self._chimeras is None:
            self._chimeras = names_of_chimeras(self.session)
        return self._chimeras

    def _read(self, model: Model) -> Parent:
        read = first_header(self.session, self.store, model)
        return Parent(
            label=model.full_name,
            header=read.header,
            source=read.source,
            header_digest=Digest(read.file.header_sha256),
            parts=tuple(parts_of(self.session, model.id)),
            unassemblable=tuple(json.loads(model.unassemblable)),
            complete=model.complete,
            model_id=model.id,
            yanked=_yanked(model),
            licence_said=_licence_said(model, read.header.text("general.license")),
        )


def _yanked(model: Model) -> tuple[str | None, str] | None:
    if model.state != "yanked":
        return None
    return None if model.changed_at is None else model.changed_at.date().isoformat(), model.state_reason or ""


def _licence_said(model: Model, in_header: str | None) -> str | None:
    """What was said of a model beside its header, or edited later."""
    kept = None if in_header is None else shown_text(in_header, LICENSE_MAX)
    return None if model.license == kept else model.license


def parts_of(session: Session, model_id: int) -> list[Part]:
    """The tensors of a registered model, in the order of its files."""
    return [
        Part(
            row.name, row.place, dtype_by_name(row.dtype), row.shape, row.digest,
            row.theta, row.spectral_signal, row.fingerprint, row.mean, row.standard_deviation, row.nonfinite,
        )
        for row in tensor_rows(session, model_id)
    ]  # fmt: skip
