"""`LocalRegistry`: a registry in a folder. It implements `registry.interface.Registry`."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from organs.registry.catalog.cursor import check_limit
from organs.registry.catalog.engine import COUNTS_SECONDS, SEARCH_SECONDS, Catalog, open_catalog
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest
from organs.registry.catalog.queries.model_lists import VERSIONS_MAX, versions
from organs.registry.catalog.queries.model_names import model_by_text, models_by_text
from organs.registry.catalog.queries.organs import organ_detail, organs_by_prefix, organs_of_model
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.entities.model import ModelPage
from organs.registry.entities.organ import FacetCounts, Organ, OrganPage, PlacedOrgan
from organs.registry.entities.query import ANYTHING, SUGGESTIONS_DEFAULT
from organs.registry.interface import VERSIONS_DEFAULT, TextProgress, job_steps
from organs.registry.names import LOCAL, check_query_name
from organs.registry.progress import Progress, no_progress
from organs.registry.search.counts import count_organs, search_and_count
from organs.registry.search.language import MODELS, Query, check_typed, parse_query, vocabulary_of
from organs.registry.search.models import search_models
from organs.registry.search.rows import search_organs
from organs.registry.settings import Settings

if TYPE_CHECKING:
    from organs.registry.assembly import AssembledFiles
    from organs.registry.compose.api import Composition
    from organs.registry.compose.lock import Lock
    from organs.registry.compose.recipe import Recipe
    from organs.registry.digest import Digest
    from organs.registry.entities.chimera import Chimera
    from organs.registry.entities.comparison import Comparison, Proof
    from organs.registry.entities.evolution import Evolution, EvolutionPage, EvolutionSummary
    from organs.registry.entities.extraction import ExtractedAdapter
    from organs.registry.entities.gain import Leaderboard
    from organs.registry.entities.job import Job, JobPage
    from organs.registry.entities.plan import Compatibility, FittingModels, RecipeFile
    from organs.registry.entities.published import ModelVersions
    from organs.registry.entities.query import SavedQueries, SavedQuery, Suggestions
    from organs.registry.entities.report import Report
    from organs.registry.entities.server import Figures, RegistryTotals
    from organs.registry.entities.sizes import QuantizationRequest, SizeCurve, SizedModel
    from organs.registry.entities.storage import Storage
    from organs.registry.entities.validation import QuickLook, VerdictReport
    from organs.registry.evolving.space import SearchSpace
    from organs.registry.models import RegisteredModel
    from organs.registry.store import BlobBackend, BlobStore
    from organs.registry.store.bucket import BlobBucket
    from organs.registry.validation.comparison import ValidationBudget
    from organs.registry.validation.quick import LookBudget
    from organs.registry.validation.runtime import Runtime
    from organs.registry.validation.texts import ScoredText


class LocalRegistry:
    """A registry in a folder: its catalog and its blobs. A context manager.

    `LocalRegistry.open()` opens the folder that the environment names; `LocalRegistry.open(folder)` opens `folder`.
    """

    def __init__(self, settings: Settings, catalog: Catalog, blobs: BlobStore | None = None) -> None:
        self.settings = settings
        self.catalog = catalog
        self._blobs = blobs
        self._object_folders: dict[str, BlobBucket] = {}
        self._opening = threading.Lock()

    @classmethod
    def open(cls, home: str | Path | None = None) -> LocalRegistry:
        """Open the registry in the folder `home`, by default the folder that the environment names.

        A missing registry is created. Raises CatalogError if the database cannot be used, SchemaTooNew if a newer
        version wrote it.
        """
        settings = Settings.from_environment(os.environ) if home is None else Settings.in_folder(Path(home))
        return cls.from_settings(settings)

    @classmethod
    def from_settings(cls, settings: Settings) -> LocalRegistry:
        """Open the registry that `settings` describe."""
        # Migrations import the tables of this package. Only this function imports them in the other direction.
        from organs import migrations

        catalog = open_catalog(settings.database_url, migrations.migrate, migrations.HEAD)
        return cls(settings, catalog)

    @property
    def blobs(self) -> BlobStore:
        """The blob store. It is opened at the first access, so that searches never load the codecs."""
        if self._blobs is None:
            from organs.registry.store import BlobStore
            from organs.registry.upkeep import take_back

            place: Path | BlobBackend = self.settings.blobs
            if self.settings.bucket is not None:
                from organs.registry.catalog.work import exclusive
                from organs.registry.store.bucket import BlobBucket, PieceCache

                limit_bytes = self.settings.blob_cache_bytes
                place = BlobBucket(
                    self.settings.bucket,
                    PieceCache(self.settings.blob_cache, limit_bytes) if limit_bytes else None,
                    lock=partial(exclusive, self.catalog, "sweep"),  # a lease: sweeps exclude each other
                    spool=self.settings.spool,
                    allows_http=self.settings.bucket_allows_http,
                )
            self._blobs = BlobStore(place, on_recovered=partial(take_back, self.catalog), current=self._current_blob)
        return self._blobs

    def object_folder(self, name: str) -> BlobBucket | None:
        """Return the folder `name` of the bucket, for bytes that are not blobs; None if blobs are in a local folder."""
        if self.settings.bucket is None:
            return None
        from organs.registry.store.bucket import BlobBucket

        with self._opening:
            if name not in self._object_folders and isinstance(self.blobs.backend, BlobBucket):
                self._object_folders[name] = self.blobs.backend.folder(name)
            return self._object_folders.get(name)

    def _current_blob(self, digest: Digest) -> KnownBlob | None:
        with self.catalog.reading() as session:
            return blobs_by_digest(session, [digest]).get(digest)

    @property
    def location(self) -> str:
        """The folder of the registry."""
        return str(self.settings.home)

    def __repr__(self) -> str:
        return f"<LocalRegistry in {self.location!r}>"

    def __enter__(self) -> LocalRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(self, query: str = "", *, limit: int = 50, after: str | None = None) -> OrganPage:
        """Return a page of organs: `registry.search("type:organ theta>=40 sort:-theta")`."""
        with self.catalog.reading() as session:
            return search_organs(session, parse_query(query), limit, after)

    def count(self, query: str = "") -> FacetCounts:
        """Return how many organs match, by type, slot, dtype, architecture, license and θ."""
        with self.catalog.reading() as session:
            return count_organs(session, parse_query(query))

    def search_page(
        self,
        query: str | Query,
        *,
        limit: int = 50,
        after: str | None = None,
        counts: bool = True,
        search_seconds: float = SEARCH_SECONDS,
        counts_seconds: float = COUNTS_SECONDS,
    ) -> tuple[OrganPage, FacetCounts | None]:
        """Return a page of organs and its counts, both from one state of the catalog, for a server.

        Raises the errors of `search`, and TooSlow if the database needs longer than `search_seconds`. Counts that take
        longer than `counts_seconds` are left out, and are marked as `hurried`.
        """
        parsed = parse_query(query) if isinstance(query, str) else query
        with self.catalog.reading(search_seconds) as session:
            if counts:
                return search_and_count(session, parsed, limit, after, counts_seconds)
            return search_organs(session, parsed, limit, after), None

    def models(self, query: str = "", *, limit: int = 50, after: str | None = None) -> ModelPage:
        """Return a page of models: `registry.models("coder license:mit sort:-theta")`."""
        with self.catalog.reading() as session:
            return search_models(session, parse_query(query, MODELS), limit, after)

    def ranked_models(self, query: str = "", *, limit: int = 50, after: str | None = None) -> ModelPage:
        """Return a page of complete models by falling mean θ, without adapters and chimeras."""
        with self.catalog.reading() as session:
            return search_models(session, parse_query(query, MODELS, "-theta"), limit, after, ranked=True)

    def suggestions(self, text: str, *, of: str = ANYTHING, limit: int = SUGGESTIONS_DEFAULT) -> Suggestions:
        """Return what `text` may mean: `registry.suggestions("typ", of="organs")`."""
        from organs.registry.search.suggestions import suggestions

        check_typed(text, of, limit)
        with self.catalog.reading() as session:
            return suggestions(session, text, of, limit)

    def saved_queries(self) -> SavedQueries:
        """Return the queries that the users of this machine have saved, by name."""
        from organs.registry.catalog.queries.accounts import saved_queries_of

        with self.catalog.reading() as session:
            return saved_queries_of(session, LOCAL)

    def save_query(self, kind: str, name: str, query: str) -> SavedQuery:
        """Save a query for `models` or `organs` under a name, in the place of a query of this name."""
        from organs.registry.catalog.register.accounts import store_query

        parse_query(query, vocabulary_of(kind))
        with self.catalog.writing() as session:
            return store_query(session, LOCAL, kind, name, query)

    def delete_query(self, kind: str, name: str) -> SavedQuery:
        """Delete a saved query and return it."""
        from organs.registry.catalog.register.accounts import delete_saved_query

        vocabulary_of(kind)
        check_query_name(name)
        with self.catalog.writing() as session:
            return delete_saved_query(session, LOCAL, kind, name)

    def model(self, name: str) -> RegisteredModel:
        """Return a model with its organs and relatives: `registry.model("acme/tiny").organs`."""
        # Imported here because it loads numpy, which searches do not need.
        from organs.registry.models import registered_model

        with self.catalog.reading() as session:
            return registered_model(session, model_by_text(session, name))

    def organs_of(self, name: str) -> tuple[PlacedOrgan, ...]:
        """Return all organs of a model, in the order of its files."""
        with self.catalog.reading() as session:
            return organs_of_model(session, model_by_text(session, name))

    def versions(self, name: str, *, limit: int = VERSIONS_DEFAULT) -> ModelVersions:
        """Return the newest versions of a model's name."""

        check_limit(limit, VERSIONS_MAX)
        with self.catalog.reading() as session:
            return versions(session, model_by_text(session, name), REACHABLE_STATES, limit)

    def organ(self, prefix: str) -> Organ:
        """Return the organ whose digest begins with `prefix`."""
        with self.catalog.reading() as session:
            return organ_detail(session, prefix, shows_storage=True)

    def compare(self, first: str, second: str) -> Comparison:
        """Return two models side by side: how similar their weights are, and what else differs."""
        from organs.registry.relatives.comparison import compare_registered

        with self.catalog.reading() as session:
            own, other = models_by_text(session, (first, second))
            return compare_registered(session, own, other)[0]

    def prove(
        self,
        quantised: str,
        source: str | None = None,
        *,
        importances: str | Path | None = None,
        progress: Progress = no_progress,
    ) -> Proof:
        """Prove from which model a quantisation was made: encode that one again, compare all blocks, and record it.

        Without a source, that relative is taken of which most sampled blocks are equal. `importances` is the file of an
        importance matrix, or the name of a registered one; `progress` gets sizes in bytes. Raises NotFound if no
        relative is the source, BadInput if nothing of the source can be encoded as the quantisation is, or if it was
        decoded from it, or if the file is no importance matrix; Conflict if a model was removed meanwhile.
        """
        from tempfile import TemporaryDirectory

        from organs.registry.gguf.importance import read_importances
        from organs.registry.input_files import FileSource
        from organs.registry.relatives.sources import likely_source, prove_source

        with self.catalog.reading() as session:
            model, *named = models_by_text(session, [quantised] if source is None else [quantised, source])
        matrix = None
        if importances is not None:
            with TemporaryDirectory(prefix="organ-") as folder:
                path = Path(importances)
                if not path.exists():
                    path = Path(folder) / "importances"
                    self.assemble(str(importances), path)
                with FileSource(path) as file:
                    matrix = read_importances(file)
        made_from = named[0] if named else likely_source(self.catalog, self.blobs, model, matrix)
        return prove_source(self.catalog, self.blobs, model, made_from, matrix, progress)

    def extract_lora(
        self,
        child: str,
        base: str,
        *,
        rank: int | Sequence[int] = 16,
        keep: float | None = None,
        path: Path | None = None,
        progress: Progress = no_progress,
    ) -> ExtractedAdapter:
        """Return which share of the difference of two models a LoRA of `rank` keeps; write it to `path` as a GGUF file.

        Of several ranks, the largest is written. With `keep`, each matrix gets the smallest rank that keeps this share
        of its change. The adapter is not registered: `add_model` does this. `progress` gets sizes in bytes. Raises
        BadInput with all reasons if the models do not have the same tensors, or if nothing that a LoRA can change
        differs; BadOrgan for weights that are not finite, StoreError.
        """
        from organs.registry.compose.extraction import extract_adapter, registered_model

        with self.catalog.reading() as session:
            tuned, origin = (registered_model(session, self.blobs, name) for name in (child, base))
        ranks = (rank,) if isinstance(rank, int) else rank
        return extract_adapter(tuned, origin, ranks, keep=keep, target=path, progress=progress)

    def report(self, model: str | None = None, *, limit: int | None = None) -> Report:
        """Return the report on the registry, or on a model; a list has at most `limit` rows."""
        from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT
        from organs.registry.reports.dissection import model_report
        from organs.registry.reports.overview import registry_report

        with self.catalog.reading() as session:
            if model is None:
                return registry_report(session, limit or ROWS_DEFAULT, complete=True)
            return model_report(session, model_by_text(session, model), limit or ORGANS_DEFAULT, complete=True)

    def figures(self) -> Figures:
        """Return the numbers of visible models and of their organs, and the size of their files."""
        from organs.registry.catalog.queries.reports import public_figures

        with self.catalog.reading() as session:
            return public_figures(session)

    def totals(self) -> RegistryTotals:
        """Return the totals of everything that is stored."""
        from organs.registry.catalog.queries.reports import running_totals

        with self.catalog.reading() as session:
            return running_totals(session)

    def storage(self, *, limit: int | None = None) -> Storage:
        """Return what is stored how and what this saves, by family, model and encoding, the largest first."""
        from organs.registry.entities.storage import ROWS_DEFAULT
        from organs.registry.relatives.storage import storage

        with self.catalog.reading() as session:
            return storage(session, ROWS_DEFAULT if limit is None else limit)

    def leaderboard(
        self, base: str | None = None, *, on: str | None = None, limit: int = 50, after: str | None = None
    ) -> Leaderboard:
        """Return a page of validated chimeras with their donors, the largest measured gain first."""
        from organs.registry.compose.chimeras import leaderboard

        with self.catalog.reading() as session:
            return leaderboard(session, None if base is None else model_by_text(session, base), on, limit, after)

    def fitting(self, base: str, *, limit: int = 50) -> FittingModels:
        """Return the models with organs that fit the model `base`, by type, the most similar first."""
        from organs.registry.search.fitting import fitting_models

        with self.catalog.reading() as session:
            return fitting_models(session, model_by_text(session, base), limit)

    def compatibility(self, base: str, donor: str) -> Compatibility:
        """Return whether organs of the model `donor` fit into the model `base`, type by type, with all findings."""
        from organs.registry.compose.compatibility import check_compatibility
        from organs.registry.compose.parents import RegisteredLibrary

        with self.catalog.reading() as session:
            library = RegisteredLibrary(session, self.blobs)
            return check_compatibility(library.parent(base), library.parent(donor))

    def compose(self, base: str | Recipe | RecipeFile) -> Composition:
        """Begin a chimera: `registry.compose("acme/base").graft("acme/coder", type="organ").plan()`."""
        from organs.registry.compose.api import Composition  # loads the codecs, which searches do not need
        from organs.registry.compose.recipe import recipe_of

        return Composition(recipe_of(base), self, self.catalog, lambda: self.blobs)

    def chimera(self, lock: str) -> Chimera:
        """Return the chimera whose lock has a digest that begins with `lock`."""
        from organs.registry.compose.chimeras import chimera_by_lock

        with self.catalog.reading() as session:
            return chimera_by_lock(session, lock)

    def lock_text(self, lock: str) -> str:
        """Return the lock whose digest begins with `lock`, as text."""
        from organs.registry.catalog.queries.chimeras import chimeras_by_lock
        from organs.registry.compose.build import lock_of_model

        with self.catalog.reading() as session:
            stored = lock_of_model(session, self.blobs, chimeras_by_lock(session, lock)[0])
        assert stored is not None, "every chimera has a lock"
        return stored.canonical()

    def partial_recipe(self, name: str) -> Recipe | None:
        """Return the recipe that grafts a model with only some organs into its base; None for any other model."""
        from organs.registry.catalog.queries.model_names import model_by_text
        from organs.registry.compose.parents import is_partial, partial_recipe

        with self.catalog.reading() as session:
            model = model_by_text(session, name)
            return partial_recipe(session, model) if is_partial(session, model) else None

    def validate(
        self,
        chimera: str,
        *,
        budget: ValidationBudget | None = None,
        texts: Sequence[ScoredText] | None = None,
        runtime: Runtime | None = None,
        progress: TextProgress | None = None,
    ) -> VerdictReport:
        """Run a chimera, its base, its donors and a control; store the verdict and return it."""
        from organs.registry.validation.llama import LlamaCpp
        from organs.registry.validation.run import run_chimera
        from organs.registry.validation.texts import built_in_texts

        return run_chimera(
            self.catalog,
            self.blobs,
            chimera,
            built_in_texts() if texts is None else texts,
            LlamaCpp(requires_sandbox=self.settings.requires_sandbox) if runtime is None else runtime,
            budget,
            job_steps(progress),
        )

    def quick_look(
        self,
        chimera: str,
        *,
        budget: LookBudget | None = None,
        texts: Sequence[ScoredText] | None = None,
        progress: TextProgress | None = None,
    ) -> QuickLook:
        """Run a chimera and its base on a few windows of a few texts; store the result and return it."""
        from organs.registry.validation.llama import LlamaCpp
        from organs.registry.validation.run import look_at_chimera

        runtime = LlamaCpp(requires_sandbox=self.settings.requires_sandbox)
        return look_at_chimera(self.catalog, self.blobs, chimera, runtime, budget, texts, job_steps(progress))

    def quantize(self, request: QuantizationRequest, progress: TextProgress | None = None) -> SizedModel:
        """Make the model that differs least from its source within what `request` allows, register and measure it."""
        from organs.registry.quantizing.search import quantize
        from organs.registry.validation.llama import LlamaCpp

        runtime = LlamaCpp(requires_sandbox=self.settings.requires_sandbox)
        return quantize(self.catalog, self.blobs, request, runtime, job_steps(progress))

    def begin_evolution(
        self, space: SearchSpace | Mapping[str, object], *, texts: Sequence[ScoredText] | None = None
    ) -> int:
        """Check a space, measure its base and begin an evolution; return its number."""
        from organs.registry.evolving.search import begin_evolution, chosen_texts
        from organs.registry.evolving.space import as_space
        from organs.registry.validation.llama import LlamaCpp

        wanted = as_space(space)
        named, found = (wanted, texts) if texts is not None else chosen_texts(wanted, Path())
        runtime = LlamaCpp(requires_sandbox=self.settings.requires_sandbox)
        return begin_evolution(self.catalog, self.blobs, named, found, runtime)

    def evolve(
        self,
        space: SearchSpace | Mapping[str, object],
        *,
        texts: Sequence[ScoredText] | None = None,
        progress: TextProgress | None = None,
    ) -> Evolution:
        """Search for the best chimera of a space, make it, and measure it on parts of the texts that no trial used."""
        return self.continue_evolution(self.begin_evolution(space, texts=texts), progress=progress)

    def continue_evolution(self, evolution: int, *, progress: TextProgress | None = None) -> Evolution:
        """Do what is left of an evolution, and return it."""
        from organs.registry.evolving.search import evolve
        from organs.registry.validation.llama import LlamaCpp

        runtime = LlamaCpp(requires_sandbox=self.settings.requires_sandbox)
        evolve(self.catalog, self.blobs, evolution, runtime, job_steps(progress))
        return self.evolution(evolution)

    def evolution(self, evolution: int) -> Evolution:
        """Return an evolution with its trials and its result."""
        from organs.registry.evolving.overview import evolution_of

        with self.catalog.reading() as session:
            return evolution_of(session, evolution)

    def evolutions(self, *, limit: int = 50, after: str | None = None) -> EvolutionPage:
        """Return a page of evolutions, newest first."""
        from organs.registry.catalog.queries.evolutions import newest_evolutions

        with self.catalog.reading() as session:
            return newest_evolutions(session, limit, after)

    def trial_recipe(self, evolution: int, trial: int | None = None) -> Recipe:
        """Return the recipe of a trial, by default of the best one."""
        from organs.registry.evolving.search import standing_of

        with self.catalog.reading() as session:
            return standing_of(session, evolution).recipe(trial)

    def remove_evolution(self, evolution: int) -> EvolutionSummary:
        """Remove an evolution with its trials and its texts, and return it; the chimera that it made stays."""
        from organs.registry.evolving.search import removed

        return removed(self.catalog, evolution)

    def sizes(self, model: str) -> SizeCurve:
        """Return the measured sizes of a model: how far each file is from the source, the smallest first."""
        from organs.registry.catalog.queries.sizes import size_curve

        with self.catalog.reading() as session:
            return size_curve(session, model_by_text(session, model))

    def assemble(self, name: str, path: str | Path, progress: Progress = no_progress) -> Digest:
        """Write the file of a model to `path`, replacing an existing file; return its SHA-256."""
        target = Path(path)
        (digest,) = self.files(name, merge=True, stem=target.name.removesuffix(".gguf")).place([target], progress)
        assert digest is not None, "a file that was written has a digest"
        return digest

    def files(
        self, name: str, *, merge: bool = False, shard_bytes: int | None = None, stem: str | None = None
    ) -> AssembledFiles:
        """Return the files of a model, ready to be written: the original files, or new ones."""
        from organs.registry.assembly import AssembledFiles, plan_merged, plan_model, plan_shards
        from organs.registry.catalog.queries.chimeras import chimera_of
        from organs.registry.compose.chimeras import findings_beside_file, stored_license
        from organs.registry.compose.licenses import is_license_in_file
        from organs.registry.output_files import SourceModel

        with self.catalog.reading() as session:
            model = model_by_text(session, name)
            stem = model.name if stem is None else stem
            if shard_bytes is not None:
                plans = plan_shards(session, self.blobs, model, stem, shard_bytes)
            elif merge:
                plans = plan_merged(session, self.blobs, model, f"{stem}.gguf")
            else:
                plans = plan_model(session, model)
            yanked = (model.state_reason or "") if model.state == "yanked" else None
            source = SourceModel(
                model.full_name,
                chimera_of(session, model.id) is not None,
                yanked,
                tuple(findings_beside_file(session, model)),
                is_license_in_file(model.license, stored_license(session, model)),
            )
            return AssembledFiles(self.blobs, plans, source)

    def card(self, name: str) -> str:
        """Return the card of a model as Markdown, as in downloads; verdicts are left out."""
        from organs.registry.compose.chimeras import card

        with self.catalog.reading() as session:
            return card(session, model_by_text(session, name))

    def lock_files(self, lock: Lock) -> AssembledFiles:
        """Return the file of a lock, ready to be written; nothing is registered."""
        from organs.registry.assembly import AssembledFiles
        from organs.registry.compose.build import plan_lock

        with self.catalog.reading() as session:
            return AssembledFiles(self.blobs, [plan_lock(session, self.blobs, lock, f"{lock.id}.gguf")])

    def organ_files(self, prefix: str) -> AssembledFiles:
        """Return the plain bytes of an organ as a file, ready to be written."""
        from organs.registry.assembly import AssembledFiles, plan_organ

        with self.catalog.reading() as session:
            _, blob = organs_by_prefix(session, prefix)[0]
            (row,) = blobs_by_digest(session, [blob.digest]).values()
            return AssembledFiles(self.blobs, [plan_organ(row)])

    def jobs(self, *, limit: int = 50, after: str | None = None) -> JobPage:
        """Return a page of jobs, newest first."""
        from organs.registry.catalog.queries.jobs import newest_jobs

        with self.catalog.reading() as session:
            return newest_jobs(session, limit, after)

    def job(self, job: int) -> Job:
        """Return a job with its result."""
        from organs.registry.catalog.queries.jobs import job_by_id

        with self.catalog.reading() as session:
            return job_by_id(session, job)

    def cancel_job(self, job: int) -> Job:
        """Cancel a job and return it; a job that has ended does not change."""
        from organs.registry.catalog.queries.jobs import job_by_id
        from organs.registry.catalog.register.jobs import cancel_job

        with self.catalog.writing() as session:
            cancel_job(session, job)
            return job_by_id(session, job)

    def close(self) -> None:
        """Close the database connections."""
        self.catalog.close()
