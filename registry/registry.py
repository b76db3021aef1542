"""`Registry`: the one object that scripts and faces hold."""

from __future__ import annotations

import os
from pathlib import Path

from registry.catalog.engine import Catalog, open_catalog
from registry.settings import Settings
from registry.store import BlobStore


class Registry:
    """A registry that is open: its catalog and its blobs. A context manager.

    `Registry.open()` opens the one that the environment names, or a folder that is given.
    """

    def __init__(self, settings: Settings, catalog: Catalog, blobs: BlobStore) -> None:
        self.settings = settings
        self.catalog = catalog
        self.blobs = blobs

    @classmethod
    def open(cls, home: str | Path | None = None) -> Registry:
        """Open the registry in the folder `home`, or the one that the environment names; it is made if it is not there.

        Raises CatalogError when the database cannot be used, SchemaTooNew when a newer version wrote it.
        """
        settings = Settings.from_environment(os.environ) if home is None else Settings.in_folder(Path(home))
        return cls.from_settings(settings)

    @classmethod
    def from_settings(cls, settings: Settings) -> Registry:
        """Open the registry that `settings` describe."""
        import migrations  # above us in the layers: it needs the tables; loaded here so that nobody else must know

        catalog = open_catalog(settings.database_url, migrations.migrate, migrations.HEAD)
        return cls(settings, catalog, BlobStore(settings.blobs))

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the database connections back."""
        self.catalog.close()
