"""A plan made: organs computed, the lock closed, the file written or only hashed, and the chimera registered.

Everything that the chimera needs is leased while it is made, as by an ingest; nothing of it is visible before the last
transaction, and whatever fails leaves nothing but what a sweep removes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from organs.registry import notebook
from organs.registry.amounts import share_text, size_text, theta_text
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.blobs import BlobRow, blobs_by_digest
from organs.registry.catalog.queries.composing import computed_organs
from organs.registry.catalog.queries.models import check_model_name
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.blobs import lease_blobs, record_blobs
from organs.registry.catalog.register.ingests import begin_ingest, end_ingest, renew_lease
from organs.registry.chimera.layout import plan_new_file
from organs.registry.chimera.place import place_file
from organs.registry.chimera.plan import FilePlan, check_readable
from organs.registry.chimera.stream import FileStream
from organs.registry.compose.computing import ComputedOrgan, compute_organ
from organs.registry.compose.lock import Lock
from organs.registry.compose.plan import Plan
from organs.registry.compose.recipe import Recipe
from organs.registry.compose.recording import LockedFile, record_chimera
from organs.registry.digest import Digest
from organs.registry.errors import MissingBlob, NotAllowed, OrganError, StoreUnwritable
from organs.registry.measure import Measurement
from organs.registry.names import ModelName, name_from_text, parse_model_name
from organs.registry.store import BlobStore, StoredBlob
from organs.registry.store.files import Files
from organs.registry.store.placing import check_room, placing_error

Progress = Callable[[str, int], None]
"""Told what is being done, and how many bytes of it have been dealt with since it was told last."""


@dataclass(frozen=True, slots=True)
class Made:
    """A chimera that is registered."""

    model: str
    """`namespace/name@version`."""
    lock_id: Digest
    sha256: Digest
    size_bytes: int
    created: bool
    """False where the same bytes were registered under that name already."""
    computed: Mapping[str, Measurement] = field(default_factory=dict, repr=False)
    """What was measured of the organs that were computed now, by the names of their tensors."""

    def __repr__(self) -> str:
        state = "" if self.created else ", registered before"
        return f"<{self.model}: {size_text(self.size_bytes)}, lock {self.lock_id[:12]}{state}>"

    def _repr_html_(self) -> str:
        facts: tuple[tuple[str, notebook.Cell], ...] = (
            ("lock", self.lock_id),
            ("sha256", self.sha256),
            ("size", size_text(self.size_bytes)),
            ("", "registered now" if self.created else "registered before"),
        )
        rows = [(name, theta_text(one.theta), share_text(one.spectral_signal)) for name, one in self.computed.items()]
        computed = notebook.table(("computed", "θ", "spectral"), rows, ("θ", "spectral")) if rows else ""
        return notebook.document(notebook.heading(self.model), notebook.facts(facts), computed)


def make(
    catalog: Catalog,
    store: BlobStore,
    plan: Plan,
    *,
    path: Path | None = None,
    progress: Progress | None = None,
    contributor: str = LOCAL,
) -> Made:
    """Make the chimera that `plan` describes and register it as the contributor's; with `path`, write its file there.

    Its name is the recipe's, or one by convention; a name that stands for other bytes gets the next version. Raises
    NotComposable for a plan that must not be made, NotAllowed for a name in the namespace of somebody else, BadOrgan,
    StoreError, DiskFull; then nothing is registered and `path` is as it was. The file is written first: should the
    catalog fail after that, it is there and not registered.
    """
    name = chimera_name(plan.recipe, plan.stem, contributor)
    check_own(name, contributor)
    with catalog.reading() as session:
        check_model_name(session, name)
    plan.check()
    if path is not None:
        _check_place(path, plan.size_bytes)
    tell = progress or _no_progress
    with catalog.writing() as session:
        ingest_id = begin_ingest(session, f"composed as {name}")
    workshop = _Workshop(catalog, store, plan, ingest_id, tell, contributor)
    try:
        return workshop.make(name, path)
    except BaseException as error:
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with suppress(OrganError), catalog.writing() as session:
            end_ingest(session, ingest_id, state, json.dumps({"error": str(error)[:1000]}))
        raise


def chimera_name(recipe: Recipe, stem: str, contributor: str = LOCAL) -> ModelName:
    """The name that the recipe gives, or that of the file by convention, whose `stem` it is.

    Where none gives a namespace, it is the contributor's, which is spelt as the contributor is.
    """
    if recipe.name is None:
        return ModelName(contributor, name_from_text(stem))
    name = parse_model_name(recipe.name)
    is_own = "/" not in recipe.name or (contributor != LOCAL and name.namespace.lower() == contributor.lower())
    return replace(name, namespace=contributor) if is_own else name


def check_own(name: ModelName, contributor: str) -> None:
    """Raise NotAllowed for a namespace that is not the contributor's; `local` may use any."""
    if contributor not in (LOCAL, name.namespace):
        raise NotAllowed(f"{name.namespace} is not your namespace: a chimera of yours is {contributor}/{name.name}")


def _check_place(path: Path, size_bytes: int) -> None:
    """Raise what placing the file would, as far as it can be known before anything is computed for it."""
    try:
        if path.is_dir():
            raise StoreUnwritable(f"{path}: a folder is there")
        if not path.parent.is_dir():
            raise StoreUnwritable(f"{path.parent}: no such folder")
        check_room(path.parent, size_bytes, Files())
    except OSError as error:
        raise placing_error(error, path) from error


@dataclass(slots=True)
class _Workshop:
    """One plan in the making."""

    catalog: Catalog
    store: BlobStore
    plan: Plan
    ingest_id: int
    tell: Progress
    contributor: str
    computed: dict[str, ComputedOrgan] = field(default_factory=dict)
    """What was computed now, by the names of the tensors."""
    known: dict[str, Digest] = field(default_factory=dict)
    """What had been computed before."""

    def make(self, name: ModelName, path: Path | None) -> Made:
        self._compute()
        file = LockedFile.of(self.plan, self.known | {tensor: one.digest for tensor, one in self.computed.items()})
        rows = self._stored([file.literal, *file.values], file.lock)
        tensors = [one.spec for one in file.lock.tensors]
        blobs = [rows[one.digest] for one in file.lock.tensors]
        planned = plan_new_file(self.plan.file_name, file.header_bytes, tensors, file.header.alignment, blobs)
        sha256 = self._write(planned, path)
        measured = {tensor: one.measurement for tensor, one in self.computed.items()}
        with self.catalog.writing() as session:
            registered = record_chimera(session, file, name, sha256, measured, self.contributor)
            report = json.dumps({"lock": file.lock.id, "size_bytes": planned.size_bytes})
            end_ingest(session, self.ingest_id, "finished", report, registered.model.id)
        model = registered.model.full_name
        return Made(model, file.lock.id, sha256, planned.size_bytes, registered.created, measured)

    def _compute(self) -> None:
        wanted = self.plan.computations
        with self.catalog.reading() as session:
            there = computed_organs(session, {one.key for one in wanted.values()})
            rows = blobs_by_digest(session, {one.digest for made in wanted.values() for one in made.ingredients})
        self._lease([row.id for row in rows.values()])
        for tensor, computation in wanted.items():
            if computation.key in there:
                self.known[tensor] = there[computation.key]
                continue
            one = compute_organ(self.store, computation, rows)
            self.computed[tensor] = one
            self._record([one.blob])
            self.tell("compute", one.size_bytes)

    def _stored(self, pieces: Sequence[bytes], lock: Lock) -> dict[Digest, BlobRow]:
        """The rows of the header's pieces, stored now, and of all tensors, leased."""
        self._record([self.store.put(piece) for piece in pieces if piece])
        wanted = {one.digest for one in lock.tensors}
        with self.catalog.writing() as session:
            renew_lease(session, self.ingest_id)
            rows = blobs_by_digest(session, wanted)
            lease_blobs(session, self.ingest_id, [row.id for row in rows.values()])
        for one in lock.tensors:
            if one.digest not in rows:
                raise MissingBlob(f"{one.spec.name} ({one.digest[:12]}) was swept meanwhile: run it again")
            check_readable(self.store, rows[one.digest], one.spec.name)
        return rows

    def _write(self, file: FilePlan, path: Path | None) -> Digest:
        if path is not None:
            return place_file(self.store, file, path, lambda size_bytes: self.tell("write", size_bytes))
        digest = hashlib.sha256()
        with FileStream(self.store, file) as stream:
            for view in stream:
                digest.update(view)
                self.tell("hash", len(view))
        return Digest(digest.hexdigest())

    def _lease(self, blob_ids: Sequence[int]) -> None:
        if blob_ids:
            with self.catalog.writing() as session:
                lease_blobs(session, self.ingest_id, blob_ids)

    def _record(self, blobs: Sequence[StoredBlob]) -> None:
        with self.catalog.writing() as session:
            renew_lease(session, self.ingest_id)
            unused = record_blobs(session, self.ingest_id, blobs)
        for file in unused:
            self.store.local.remove(self.store.local.path(file))


def _no_progress(_what: str, _size_bytes: int) -> None:
    """Nobody watches."""
