"""Settings of a registry: its folders, its database and its limits.

The command line and the server read them once from the environment and pass them on as one frozen value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import platformdirs

from organs.registry.amounts import parse_size
from organs.registry.errors import BadInput, BadSetting
from organs.registry.upload_limits import QUOTA_BYTES, UPLOAD_MAX_BYTES

HOME_VARIABLE = "ORGAN_HOME"
DATABASE_VARIABLE = "ORGAN_DATABASE_URL"
BLOBS_VARIABLE = "ORGAN_BLOBS_URL"
DEBUG_VARIABLE = "ORGAN_DEBUG"
REGISTRY_VARIABLE = "ORGAN_REGISTRY"
TOKEN_VARIABLE = "ORGAN_TOKEN"  # noqa: S105  # the name of a variable, not a token
REVIEW_VARIABLE = "ORGAN_REVIEW"
QUOTA_VARIABLE = "ORGAN_QUOTA"
UPLOAD_MAX_VARIABLE = "ORGAN_UPLOAD_MAX"
SANDBOX_VARIABLE = "ORGAN_SANDBOX"
REFERENCES_VARIABLE = "ORGAN_REFERENCES"
REVIEWS = ("auto", "manual")
SANDBOXES = ("auto", "require")
SWITCH = ("on", "off")


GRACE = timedelta(hours=24)
"""How long a sweep keeps a blob that nothing needs (the grace period)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one registry."""

    home: Path
    """The folder of the registry; it is created by the first write."""
    database_url: str
    """An SQLAlchemy URL."""
    blobs: Path
    """The folder of the local blob store."""
    review: str = "auto"
    """Whether contributions become visible after the check (`auto`) or after an administrator's review (`manual`)."""
    quota_bytes: int = QUOTA_BYTES
    """Bytes that an account without its own quota may store, including unfinished uploads."""
    upload_max_bytes: int = UPLOAD_MAX_BYTES
    """The largest model that may be uploaded."""
    sandbox: str = "auto"
    """Whether untrusted data is read on a system that cannot fully confine a process: `auto` yes, `require` no."""

    references: bool = True
    """Whether organs may be stored by their difference to other organs; otherwise each is stored alone."""

    @property
    def requires_sandbox(self) -> bool:
        """Whether work that needs a fully confined process is refused if the system cannot confine it."""
        return self.sandbox == "require"

    @property
    def uploads(self) -> Path:
        """The folder of uploads that are not checked yet."""
        return self.home / "uploads"

    @property
    def spool(self) -> Path:
        """The folder of files on servers that an ingest is fetching."""
        return self.home / "spool"

    @classmethod
    def in_folder(cls, home: Path) -> Settings:
        """Return the default settings of a registry in the folder `home`: SQLite and local blobs."""
        home = home.expanduser().absolute()
        database = quote(str(home / "registry.sqlite3"))  # the name of a folder may have ? and %
        return cls(home, f"sqlite:///{database}", home / "blobs")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Return the settings in `environment`; the default home is the user's data folder (XDG).

        Raises BadSetting for invalid values, and for a URL of blobs that this version does not support.
        """
        home = environment.get(HOME_VARIABLE) or platformdirs.user_data_dir("organ-registry")
        defaults = cls.in_folder(Path(home))
        return cls(
            defaults.home,
            environment.get(DATABASE_VARIABLE) or defaults.database_url,
            _blobs_folder(environment.get(BLOBS_VARIABLE)) or defaults.blobs,
            _choice(environment, REVIEW_VARIABLE, REVIEWS) or defaults.review,
            _size(environment, QUOTA_VARIABLE) or defaults.quota_bytes,
            _size(environment, UPLOAD_MAX_VARIABLE) or defaults.upload_max_bytes,
            _choice(environment, SANDBOX_VARIABLE, SANDBOXES) or defaults.sandbox,
            _choice(environment, REFERENCES_VARIABLE, SWITCH) != "off",
        )


def _blobs_folder(text: str | None) -> Path | None:
    if not text:
        return None
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        raise BadSetting(f"{BLOBS_VARIABLE} is {text[:80]!r}: blobs are stored in a folder; set it to the path of one")
    return Path(rest if separator else text).expanduser().absolute()


def _choice(environment: Mapping[str, str], variable: str, choices: tuple[str, ...]) -> str | None:
    text = environment.get(variable)
    if text and text not in choices:
        raise BadSetting(f"{variable} is {text[:80]!r}: it must be {' or '.join(choices)}")
    return text or None


def _size(environment: Mapping[str, str], variable: str) -> int | None:
    text = environment.get(variable)
    if not text:
        return None
    try:
        return parse_size(text)
    except BadInput as error:
        raise BadSetting(f"{variable}: {error}") from error
