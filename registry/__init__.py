"""The organ registry: stores the parts of language models, and composes new models from them.

    gguf        the GGUF container, pure: bytes in, values out, and back to the same bytes
    anatomy     tensor names to places
    store       the blob store: immutable bytes named by the SHA-256 of their plain form
    catalog     the SQL of the registry, and the queue of its work
    search      searches: their language, plan, rows and counts
    relatives   who is related to whom
    models      models with everything that is known of them, with their organs and recipes
    reports     reports: what was measured
    sbom        bills of materials: what a model was made from, as CycloneDX
    client      a remote registry, over HTTP
    amounts     numbers as people read them
    backup      a copy of the registry that is a registry itself
    card_text   the Markdown of cards, read within bounds, and the images that it names
    chat_templates  judges the chat templates of files; chat_trial is its confined program
    compose     composing: from words to a chimera
    documents   reads JSON and YAML of strangers, within limits, with all faults
    digest      SHA-256 digests: the only names that bytes have here
    errors      errors of this project, each with a stable code, an HTTP status and an exit code
    kinds       kinds of files: models, adapters, importance matrices
    similarity  how alike two organs or two models are, by their fingerprints: 256 values of each organ
    measure     measuring, pure: an organ's bytes in, numbers out
    measures    the table of measures
    columns     columns of lists: the text of each value for people, and what a narrow screen leaves out
    names       model names: `namespace/name`, with `@version` where it matters
    notebook    values as small pieces of HTML, for notebooks
    input_files   files from outside, checked for changes while they are read
    output_files  the files of a model or a chimera that are handed out
    progress    functions that are called with the progress of long work
    recent      the values that were needed last, for which memory or open files are limited
    sandbox     programs that read untrusted data run in confined processes
    settings    settings: where the registry lives
    tokens      tokens: texts that are easy to find by scanners, refused offline when mistyped
    transform   transforming, pure: organs' bytes in, a new organ's bytes out
    upkeep      keeping a registry sound
    upload_limits  limits of uploads and submissions: sizes, counts and how long they stay
    validation  validation: a chimera is run in a real runtime beside its base
    entities    entities: the values that cross a border, each defined once
    assembly    from plans to bytes: what a file consists of, the stream that makes it
    interface   `Registry`: the interface of a registry, local or remote
    local       `LocalRegistry`: the registry in a folder

An *organ* is one tensor taken out of a model; a *placement* is an organ at its place in a model; a *blob* is immutable
bytes named by the SHA-256 of the plain bytes. `docs/words.md` has the whole glossary.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it: confined processes load this file, and `typing` takes its time

if TYPE_CHECKING:
    from pathlib import Path

    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.interface import Registry
    from organs.registry.local import LocalRegistry

__all__ = ["LocalRegistry", "Registry", "RemoteRegistry", "open_registry"]


def open_registry(location: str | Path | None = None) -> Registry:
    """Open the registry in the folder `location`, or at its URL: `open_registry("https://registry.example")`.

    Without a location, open the folder that the environment names. The token for a URL is that of the environment, or
    the one that `organ login` stored. The result is a context manager. Raises BadSetting, CatalogError, SchemaTooNew.
    """
    if isinstance(location, str) and location.lower().startswith(("http://", "https://")):
        from organs.registry.client.remote import RemoteRegistry

        return RemoteRegistry.open(location)
    from organs.registry.local import LocalRegistry

    return LocalRegistry.open(location)


def __getattr__(name: str) -> object:
    # Lazy, so that `import organs.registry.gguf` never loads SQLAlchemy.
    if name == "LocalRegistry":
        from organs.registry.local import LocalRegistry

        return LocalRegistry
    if name == "Registry":
        from organs.registry.interface import Registry

        return Registry
    if name == "RemoteRegistry":
        from organs.registry.client.remote import RemoteRegistry

        return RemoteRegistry
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
