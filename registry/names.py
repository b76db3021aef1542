"""Model names: `namespace/name`, with `@version` where it matters. Made so that they fit in a path and an address."""

from __future__ import annotations

import re
from dataclasses import dataclass

from registry.errors import BadName

NAME_MAX_LENGTH = 96
MODEL_TEXT_MAX_LENGTH = 210
"""Of a whole name as it is typed, with namespace and version."""
RESERVED_NAMESPACES = frozenset(
    {
        "account",
        "admin",
        "api",
        "chimeras",
        "compare",
        "compose",
        "contributors",
        "healthz",
        "jobs",
        "lineage",
        "login",
        "logout",
        "metrics",
        "models",
        "organs",
        "reports",
        "search",
        "static",
        "submissions",
        "upload",
        "uploads",
        "v2",
    }
)
RESERVED_ENDINGS = (".json", ".csv", ".gguf")

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_UNWANTED = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelName:
    """A checked name; `version` is None where the newest is meant."""

    namespace: str
    name: str
    version: int | None = None

    def __str__(self) -> str:
        plain = f"{self.namespace}/{self.name}"
        return plain if self.version is None else f"{plain}@{self.version}"


def parse_model_name(text: str) -> ModelName:
    """The name written in `text`; without a namespace it is in `local`. Raises BadName with the rule that is broken."""
    path, at, version = text.partition("@")
    namespace, slash, name = path.rpartition("/")
    namespace = namespace if slash else "local"
    for part, what in ((namespace, "namespace"), (name, "name")):
        if len(part) > NAME_MAX_LENGTH or not _NAME.fullmatch(part) or ".." in part:
            raise BadName(
                f"{part[:100]!r} is no {what}: letters and digits, . _ - between them, at most {NAME_MAX_LENGTH}"
            )
    if namespace.lower() in RESERVED_NAMESPACES:
        raise BadName(f"the namespace {namespace!r} is an address of the catalog: choose another")
    if name.lower().endswith(RESERVED_ENDINGS):
        raise BadName(f"a name does not end in {', '.join(RESERVED_ENDINGS)}: leave that out of {name!r}")
    if at and not (version.isascii() and version.isdigit() and 0 < len(version) < 10 and int(version)):
        raise BadName(f"{version[:20]!r} is no version: a whole number from 1")
    return ModelName(namespace, name, int(version) if at else None)


def namespace_from_text(text: str) -> str:
    """The nearest allowed namespace to `text`, which may be anything; one that is an address gets a prefix."""
    clean = name_from_text(text)
    return f"by-{clean}" if clean.lower() in RESERVED_NAMESPACES else clean


def name_from_text(text: str) -> str:
    """The nearest allowed name to `text`, which may be anything: for names made from file names and metadata."""
    clean = re.sub(r"\.{2,}", ".", _UNWANTED.sub("-", text))
    clean = clean[:NAME_MAX_LENGTH].strip("._-")
    while clean.lower().endswith(RESERVED_ENDINGS):
        clean = clean.rpartition(".")[0].strip("._-")
    return clean or "unnamed"
