"""`LocalRegistry`: the one object that scripts and faces hold."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from organs.registry.catalog.engine import (
    COUNTS_SECONDS,
    SEARCH_SECONDS,
    Catalog,
    open_catalog,
)
from organs.registry.catalog.queries.organs import organ_detail
from organs.registry.catalog.queries.search import (
    count_organs,
    search_and_count,
    search_models,
    search_organs,
)
from organs.registry.catalog.search import MODELS, Query, parse_query
from organs.registry.entities.model import ModelPage
from organs.registry.entities.organ import FacetCounts, Organ, OrganPage
from organs.registry.settings import Settings

if TYPE_CHECKING:
    from organs.registry.compose.api import Composition
    from organs.registry.compose.recipe import Recipe
    from organs.registry.digest import Digest
    from organs.registry.entities.chimera import Chimera
    from organs.registry.entities.comparison import Comparison
    from organs.registry.entities.plan import Compatibility, FittingModels
    from organs.registry.entities.report import Report
    from organs.registry.present.registered import RegisteredModel
    from organs.registry.store import BlobStore


class LocalRegistry:
    """A registry that is open: its catalog and its blobs. A context manager.

    `LocalRegistry.open()` opens the one that the environment names, or a folder that is given.
    """

    def __init__(self, settings: Settings, catalog: Catalog, blobs: BlobStore | None = None) -> None:
        self.settings = settings
        self.catalog = catalog
        self._blobs = blobs

    @classmethod
    def open(cls, home: str | Path | None = None) -> LocalRegistry:
        """Open the registry in the folder `home`, or the one that the environment names; it is made if it is not there.

        Raises CatalogError when the database cannot be used, SchemaTooNew when a newer version wrote it.
        """
        settings = Settings.from_environment(os.environ) if home is None else Settings.in_folder(Path(home))
        return cls.from_settings(settings)

    @classmethod
    def from_settings(cls, settings: Settings) -> LocalRegistry:
        """Open the registry that `settings` describe."""
        # Migrations need the tables and stand above this package; loading them here keeps that in one place.
        from organs import migrations

        catalog = open_catalog(settings.database_url, migrations.migrate, migrations.HEAD)
        return cls(settings, catalog)

    @property
    def blobs(self) -> BlobStore:
        """The stored bytes. Opened when they are first asked for: searches never load the codecs."""
        if self._blobs is None:
            from organs.registry.store import BlobStore
            from organs.registry.upkeep import take_back

            self._blobs = BlobStore(self.settings.blobs, on_recovered=partial(take_back, self.catalog))
        return self._blobs

    def __repr__(self) -> str:
        return f"<LocalRegistry in {str(self.settings.home)!r}>"

    def __enter__(self) -> LocalRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(self, query: str = "", *, limit: int = 50, after: str | None = None) -> OrganPage:
        """A page of organs: `registry.search("type:organ theta>=40 sort:-theta")`.

        `after` is the `next` of the page before; `limit` is from 1 to 1,000. Raises BadQuery (`registry.errors`) for a
        query that means nothing, NotFound or Ambiguous for a `like:` that names no organ.
        """
        with self.catalog.reading() as session:
            return search_organs(session, parse_query(query), limit, after)

    def count(self, query: str = "") -> FacetCounts:
        """How what `query` finds is spread over types, slots, dtypes, architectures, licences, θ; raises BadQuery.

        Organs are counted at all of their places: `like:` and `unique:` change nothing.
        """
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
        """A page of organs with the counts beside it, both of one state of the catalog: what a server asks.

        Raises what `search` does, and TooSlow when it all takes the database longer than `search_seconds`. Counts that
        take it longer than `counts_seconds` are left out, and are then `hurried`.
        """
        asked = parse_query(query) if isinstance(query, str) else query
        with self.catalog.reading(search_seconds) as session:
            if counts:
                return search_and_count(session, asked, limit, after, counts_seconds)
            return search_organs(session, asked, limit, after), None

    def models(self, query: str = "", *, limit: int = 50, after: str | None = None) -> ModelPage:
        """A page of models: `registry.models("coder license:mit sort:-theta")`. Raises BadQuery."""
        with self.catalog.reading() as session:
            return search_models(session, parse_query(query, MODELS), limit, after)

    def ranked_models(self, query: str = "", *, limit: int = 50, after: str | None = None) -> ModelPage:
        """A page of models as rankings compare them: complete, no adapters, no chimeras. Raises BadQuery."""
        with self.catalog.reading() as session:
            return search_models(session, parse_query(query, MODELS, "-theta"), limit, after, ranked=True)

    def organ(self, prefix: str) -> Organ:
        """Return the organ whose digest begins with `prefix`; raises BadDigest, NotFound, Ambiguous."""
        with self.catalog.reading() as session:
            return organ_detail(session, prefix)

    def model(self, name: str) -> RegisteredModel:
        """The model called `name`, with its organs and relatives: `registry.model("acme/tiny").organs`.

        `name` may also be `sha256:` and what the digest of a model, a file or a lock begins with. Raises NotFound, with
        the nearest name, Ambiguous, BadName, BadDigest.
        """
        # Imported here because it loads numpy, which searches do not need.
        from organs.registry.catalog.queries.composing import model_by_text
        from organs.registry.present.registered import registered_value

        with self.catalog.reading() as session:
            return registered_value(session, model_by_text(session, name))

    def fitting(self, base: str, *, limit: int = 50) -> FittingModels:
        """The models that have organs which fit the model called `base`, by type; the most alike first.

        `limit` is from 1 to 1,000; no more models are looked through. Raises what `model` does, BadQuery.
        """
        from organs.registry.catalog.queries.composing import fitting_models, model_by_text

        with self.catalog.reading() as session:
            return fitting_models(session, model_by_text(session, base), limit)

    def chimera(self, lock: str) -> Chimera:
        """Return the chimera whose lock has a digest that begins with `lock`. Raises NotFound, Ambiguous, BadDigest."""
        from organs.registry.compose.chimeras import chimera_by_lock

        with self.catalog.reading() as session:
            return chimera_by_lock(session, lock)

    def lock_text(self, lock: str) -> str:
        """Return the lock whose digest begins with `lock`, as text. Raises NotFound, Ambiguous, BadDigest."""
        from organs.registry.catalog.queries.chimeras import chimeras_by_lock
        from organs.registry.compose.build import lock_of_model

        with self.catalog.reading() as session:
            found = lock_of_model(session, self.blobs, chimeras_by_lock(session, lock)[0])
        assert found is not None, "every chimera carries its lock"
        return found.canonical()

    def compatibility(self, base: str, donor: str) -> Compatibility:
        """Return whether organs of the model `donor` fit into the model `base`, type by type, with all findings."""
        from organs.registry.compose.compatibility import check_compatibility
        from organs.registry.compose.models import RegisteredLibrary

        with self.catalog.reading() as session:
            library = RegisteredLibrary(session, self.blobs)
            return check_compatibility(library.parent(base), library.parent(donor))

    def compare(self, first: str, second: str) -> Comparison:
        """Return the models called `first` and `second` side by side: how alike they are, and what else differs.

        Raises what `model` does.
        """
        from organs.registry.catalog.queries.composing import model_by_text
        from organs.registry.relatives.comparison import compare_models, registered_model

        with self.catalog.reading() as session:
            sides = [registered_model(session, model_by_text(session, name)) for name in (first, second)]
        return compare_models(*sides)

    def report(self, model: str | None = None, *, limit: int | None = None) -> Report:
        """Return the report on the registry, or on the model called `model`; lists have at most `limit` rows.

        Raises what `model` does.
        """
        from organs.registry.catalog.queries.composing import model_by_text
        from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT
        from organs.registry.reports.dissection import model_report
        from organs.registry.reports.overview import registry_report

        with self.catalog.reading() as session:
            if model is None:
                return registry_report(session, limit or ROWS_DEFAULT)
            return model_report(session, model_by_text(session, model), limit or ORGANS_DEFAULT)

    def assemble(self, name: str, path: str | Path) -> Digest:
        """Write the file of the model called `name` to `path`, replacing what is there; the file's SHA-256.

        It is the file that came in, byte for byte; of a model that came in shards, one file of all of them. Raises what
        `model` does, NotAssemblable, StoreError, DiskFull; then `path` is as it was.
        """
        from organs.registry.assembly import place_file, plan_merged
        from organs.registry.catalog.queries.composing import model_by_text

        target = Path(path)
        with self.catalog.reading() as session:
            (plan,) = plan_merged(session, self.blobs, model_by_text(session, name), target.name)
        return place_file(self.blobs, plan, target)

    def compose(self, base: str | Recipe) -> Composition:
        """Begin a chimera: `registry.compose("acme/base").graft("acme/coder", type="organ").plan()`.

        `base` is a model's name, or a whole recipe (`registry.compose.recipe_io.read_recipe` reads one from text).
        """
        from organs.registry.compose.api import Composition  # with the codecs, which searches never load
        from organs.registry.compose.recipe import Recipe

        recipe = Recipe(base) if isinstance(base, str) else base
        return Composition(recipe, self.catalog, lambda: self.blobs)

    def close(self) -> None:
        """Give the database connections back."""
        self.catalog.close()
