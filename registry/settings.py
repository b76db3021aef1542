"""Settings: where the registry lives. Read once from the environment by a face, then passed on as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import platformdirs

from registry.errors import BadSetting

HOME_VARIABLE = "ORGAN_HOME"
DATABASE_VARIABLE = "ORGAN_DATABASE_URL"
BLOBS_VARIABLE = "ORGAN_BLOBS_URL"
DEBUG_VARIABLE = "ORGAN_DEBUG"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where one registry keeps its database and its blobs."""

    home: Path
    """The registry's folder; made when it is first written to."""
    database_url: str
    """An SQLAlchemy URL."""
    blobs: Path
    """The folder of the local blob store."""

    @classmethod
    def in_folder(cls, home: Path) -> Settings:
        """The defaults for a registry in the folder `home`: SQLite and local blobs."""
        home = home.expanduser().absolute()
        database = quote(str(home / "registry.sqlite3"))  # a folder may have ? and % in its name
        return cls(home, f"sqlite:///{database}", home / "blobs")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """The settings that `environment` gives; the default home is the user's data folder (XDG).

        Raises BadSetting for a place that this version cannot store blobs in.
        """
        home = environment.get(HOME_VARIABLE) or platformdirs.user_data_dir("organ-registry")
        defaults = cls.in_folder(Path(home))
        return cls(
            defaults.home,
            environment.get(DATABASE_VARIABLE) or defaults.database_url,
            _blobs_folder(environment.get(BLOBS_VARIABLE)) or defaults.blobs,
        )


def _blobs_folder(text: str | None) -> Path | None:
    if not text:
        return None
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        raise BadSetting(f"{BLOBS_VARIABLE} is {text[:80]!r}: blobs are kept in a folder; give its path")
    return Path(rest if separator else text).expanduser().absolute()
