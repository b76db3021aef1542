"""The organ registry: keeps the parts of language models, and composes them.

    errors, digest, settings    what everything else stands on
    amounts, notebook           numbers as people read them, values as HTML for notebooks
    gguf                        the container format, pure
    anatomy                     tensor names to places
    measure, lineage            arrays in, numbers out
    store                       immutable blobs, compressed
    catalog                     the SQL: tables, queries, registrations
    chimera                     from plans to streams of bytes
    relatives                   who shares weights with whom, and who says so
    present                     the one shape that page, JSON and command show
    reports                     what was measured, in tables that explain themselves
    registry                    `Registry`, the object that scripts and faces hold
    client                      the same against a registry elsewhere, over HTTP

An *organ* is one tensor taken out of a model; a *placement* is an organ at its place in a model; a *blob* is immutable
bytes named by the SHA-256 of the plain bytes. `docs/words.md` has the whole glossary.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it: confined processes load this file, and `typing` takes its time

if TYPE_CHECKING:
    from pathlib import Path

    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.registry import Registry

__all__ = ["Registry", "opened"]


def opened(place: str | Path | None = None) -> Registry | RemoteRegistry:
    """The registry at `place`: a folder, or the address of one elsewhere, `https://registry.example`.

    Without a place it is the folder that the environment names (`Registry.open`). For an address the token is the one
    of the environment, or the one that `organ login` kept for it. A context manager.
    """
    if isinstance(place, str) and place.lower().startswith(("http://", "https://")):
        from organs.registry.client.remote import RemoteRegistry

        return RemoteRegistry.open(place)
    from organs.registry.registry import Registry

    return Registry.open(place)


def __getattr__(name: str) -> object:
    # Lazy, so that `import registry.gguf` never loads SQLAlchemy.
    if name == "Registry":
        from organs.registry.registry import Registry

        return Registry
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
