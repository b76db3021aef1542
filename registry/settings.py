"""Settings of a registry: its folders, its database and its limits.

The command line and the server read them once from the environment and pass them on as one frozen value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
TO_DATABASE_VARIABLE = "ORGAN_TO_DATABASE_URL"
TO_BLOBS_VARIABLE = "ORGAN_TO_BLOBS_URL"
ALLOW_HTTP_VARIABLE = "AWS_ALLOW_HTTP"
CACHE_VARIABLE = "ORGAN_BLOB_CACHE"
DEBUG_VARIABLE = "ORGAN_DEBUG"
REGISTRY_VARIABLE = "ORGAN_REGISTRY"
TOKEN_VARIABLE = "ORGAN_TOKEN"  # noqa: S105  # the name of a variable, not a token
REVIEW_VARIABLE = "ORGAN_REVIEW"
QUOTA_VARIABLE = "ORGAN_QUOTA"
UPLOAD_MAX_VARIABLE = "ORGAN_UPLOAD_MAX"
SANDBOX_VARIABLE = "ORGAN_SANDBOX"
REFERENCES_VARIABLE = "ORGAN_REFERENCES"
LOG_VARIABLE = "ORGAN_LOG"
REVIEWS = ("auto", "manual")
SANDBOXES = ("auto", "require")
SWITCH = ("on", "off")
LOG_FORMATS = ("text", "json")
BUCKET_SCHEMES = ("s3", "gs", "az")
BUCKET_ADDRESS = re.compile(r"(s3|gs|az)://[a-z0-9][a-z0-9._-]{1,254}(/[A-Za-z0-9._/-]{0,500})?", re.ASCII)
"""The address of a bucket, or of a folder in it."""


BLOB_CACHE_BYTES = 10 * 10**9
"""The default size of the local cache for blobs in a bucket."""
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
    """The folder of the local blob store. It is not used with `bucket`."""
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

    bucket: str | None = None
    """The address of the bucket with the blobs (`s3://BUCKET/FOLDER`); None if they are in the folder `blobs`."""
    bucket_allows_http: bool = False
    """Whether requests to the bucket may be unencrypted."""
    blob_cache_bytes: int = BLOB_CACHE_BYTES
    """The size of the local cache for blobs in a bucket; 0 for none."""
    log: str = "text"
    """The format of the log of a server: `text`, or `json` for one JSON object a line."""

    @property
    def blobs_location(self) -> str:
        """The bucket or the folder of the blobs."""
        return self.bucket or str(self.blobs)

    @property
    def blob_cache(self) -> Path:
        """The folder of the local cache for blobs in a bucket."""
        return self.home / "cache"

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
        blobs_folder, bucket = parse_blobs_location(environment.get(BLOBS_VARIABLE), BLOBS_VARIABLE)
        cache_bytes = defaults.blob_cache_bytes
        if environment.get(CACHE_VARIABLE):
            cache_bytes = 0 if environment[CACHE_VARIABLE] == "0" else _size(environment, CACHE_VARIABLE) or 0
        return cls(
            defaults.home,
            environment.get(DATABASE_VARIABLE) or defaults.database_url,
            blobs_folder or defaults.blobs,
            _choice(environment, REVIEW_VARIABLE, REVIEWS) or defaults.review,
            _size(environment, QUOTA_VARIABLE) or defaults.quota_bytes,
            _size(environment, UPLOAD_MAX_VARIABLE) or defaults.upload_max_bytes,
            _choice(environment, SANDBOX_VARIABLE, SANDBOXES) or defaults.sandbox,
            _choice(environment, REFERENCES_VARIABLE, SWITCH) != "off",
            bucket,
            environment.get(ALLOW_HTTP_VARIABLE, "").lower() in ("true", "1"),
            cache_bytes,
            _choice(environment, LOG_VARIABLE, LOG_FORMATS) or defaults.log,
        )


def moved(settings: Settings, database_url: str | None, blobs_url: str | None) -> Settings:
    """Return the same settings with another database and another place for blobs; None leaves it as it is.

    Raises BadSetting.
    """
    folder, bucket = parse_blobs_location(blobs_url, "the new place of the blobs")
    if folder is not None or bucket is not None:
        settings = replace(settings, blobs=folder or settings.blobs, bucket=bucket)
    return replace(settings, database_url=database_url or settings.database_url)


def parse_blobs_location(text: str | None, name: str) -> tuple[Path | None, str | None]:
    """Return the folder or the bucket that `text` names, in this order; (None, None) for an empty text.

    Raises BadSetting for other addresses, about the setting `name`. The text is not shown: it may have credentials.
    """
    if not text:
        return None, None
    scheme, separator, rest = text.partition("://")
    if separator and scheme in BUCKET_SCHEMES:
        if not BUCKET_ADDRESS.fullmatch(text):
            raise BadSetting(f"{name}: write the address of a bucket as {scheme}://BUCKET or {scheme}://BUCKET/FOLDER")
        return None, text.rstrip("/")
    if separator and scheme != "file":
        schemes = ", ".join(f"{known}://" for known in BUCKET_SCHEMES)
        raise BadSetting(f"{name}: set it to the path of a folder, or to a bucket ({schemes})")
    return Path(rest if separator else text).expanduser().absolute(), None


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
