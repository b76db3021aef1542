"""LM Studio, llama.cpp, the Hugging Face tools and GPT4All: folders of GGUF files with names of repositories."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from organs.ingest.sources import LOCAL_NAMESPACE, ModelSource, group_models, is_gguf_name
from organs.ingest.tools.findings import Findings, Remarks, is_folder, name_in_repository, walk_files
from organs.ingest.tools.places import Machine, gpt4all_folders, hub_cache, llama_cpp_cache, lmstudio_folders, read_text
from organs.registry.digest import Digest
from organs.registry.entities.base import prepared
from organs.registry.names import ModelName, name_from_text, namespace_from_text

HUB_FOLDER = "models--"
INCOMPLETE = "incomplete"
"""How the names of GPT4All's unfinished downloads begin."""
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FLAT_MANIFEST = re.compile(r"manifest=([^=]+)=([^=]+)=.*\.json")
_HUB_ADDRESS = re.compile(r"https?://[^/]+/([^/]+)/([^/]+)/resolve/")


@dataclass(frozen=True, slots=True)
class _Place:
    """A file and the names that the tool gives it."""

    path: Path
    namespace: str
    repository: str
    """Empty for a file that belongs to no repository."""
    stem: str | None = None
    """The name of the file without its prefix and its ending; None: as it is."""


def find_hub_cache(machine: Machine) -> Iterator[Findings]:
    """Yield the GGUF models in the cache of the Hugging Face tools, named after their repositories."""
    yield _hub_findings(hub_cache(machine))


def find_llama_cpp(machine: Machine) -> Iterator[Findings]:
    """Yield the models of llama.cpp: in its own cache, and in the cache of the Hugging Face tools.

    Older versions write all files into one folder; newer ones write repositories as the Hugging Face tools do.
    """
    cache = llama_cpp_cache(machine)
    if not is_folder(cache):
        yield Findings(cache, is_there=False)
    else:
        problems = Remarks()
        own = _sources(_flat_places(cache, problems))
        repositories = _hub_findings(cache)
        problems_of_both = (*problems.sentences, *repositories.problems)
        yield Findings(cache, is_there=True, sources=(*own, *repositories.sources), problems=problems_of_both)
    yield _hub_findings(hub_cache(machine))


def find_lmstudio(machine: Machine) -> Iterator[Findings]:
    """Yield the models of LM Studio, in folders of publishers and repositories."""
    for folder in lmstudio_folders(machine):
        yield _folder_findings(folder, partial(_published_place, folder))


def find_gpt4all(machine: Machine) -> Iterator[Findings]:
    """Yield the models of GPT4All, which are files in one folder. They are named `local/` and their file's name."""
    for folder in gpt4all_folders(machine):
        yield _folder_findings(folder, lambda path: _Place(path, LOCAL_NAMESPACE, ""))


def _folder_findings(folder: Path, place_of: Callable[[Path], _Place]) -> Findings:
    if not is_folder(folder):
        return Findings(folder, is_there=False)
    problems = Remarks()
    files = walk_files(folder, _is_finished, problems)
    sources = _sources(place_of(path) for path in files)
    return Findings(folder, is_there=True, sources=sources, problems=problems.sentences)


def _is_finished(name: str) -> bool:
    return is_gguf_name(name) and not name.startswith((INCOMPLETE, "."))


def _published_place(folder: Path, path: Path) -> _Place:
    """Return the place of `PUBLISHER/REPOSITORY/FILE`; a file in another depth belongs to no repository."""
    publisher, *repository = path.relative_to(folder).parts[:-1] or ("",)
    if not repository:
        return _Place(path, LOCAL_NAMESPACE, "")
    return _Place(path, namespace_from_text(publisher), repository[0])


def _hub_findings(cache: Path) -> Findings:
    if not is_folder(cache):
        return Findings(cache, is_there=False)
    problems = Remarks()
    try:
        names = sorted(entry for entry in os.listdir(cache) if entry.startswith(HUB_FOLDER) and "--" in entry[8:])
    except OSError as error:
        return Findings(cache, is_there=True, problems=(f"{cache}: {error.strerror}",))
    sources: list[ModelSource] = []
    for name in names:
        owner, _, repository = name.removeprefix(HUB_FOLDER).partition("--")
        files = _snapshot_files(cache / name, problems)
        places = [_Place(path, namespace_from_text(owner), repository) for path in files]
        sources += (replace(source, digests=_digests_of_links(source.paths)) for source in _sources(places))
    return Findings(cache, is_there=True, sources=tuple(sources), problems=problems.sentences)


def _snapshot_files(repository: Path, problems: Remarks) -> list[Path]:
    """Return the GGUF files of a repository, each once: of the revision `main`, then of others, newest first."""
    snapshots = repository / "snapshots"
    if not is_folder(snapshots):
        return []
    try:
        found = {path.name: path.stat().st_mtime for path in snapshots.iterdir() if path.is_dir()}
    except OSError as error:
        problems.add(f"{snapshots}: {error.strerror}")
        return []
    main = read_text(repository / "refs" / "main").strip()  # the commit of the branch; empty if it is unknown
    ordered = sorted(found, key=lambda name: (name != main, -found[name], name))
    files: dict[Path, Path] = {}
    for name in ordered:
        for path in walk_files(snapshots / name, _is_finished, problems):
            files.setdefault(path.relative_to(snapshots / name), path)
    return [files[name] for name in sorted(files)]


def _digests_of_links(paths: Iterable[Path]) -> tuple[Digest, ...]:
    """Return the SHA-256 in the names of the blobs that `paths` are links to; none unless all have one."""
    digests = []
    for path in paths:
        try:
            name = os.path.basename(os.readlink(path))
        except OSError:
            return ()
        if not _DIGEST.fullmatch(name):
            return ()
        digests.append(Digest(name))
    return tuple(digests)


def _flat_places(cache: Path, problems: Remarks) -> list[_Place]:
    """Return the files in llama.cpp's folder, `OWNER_REPOSITORY_FILE.gguf`, with their repositories if they are known.

    The names of manifests beside them tell where the name of the repository ends.
    """
    try:
        names = sorted(os.listdir(cache))
    except OSError as error:
        problems.add(f"{cache}: {error.strerror}")
        return []
    manifests = (_FLAT_MANIFEST.fullmatch(name) for name in names)
    repositories = sorted({(match[1], match[2]) for match in manifests if match}, key=lambda pair: -len("".join(pair)))
    return [_flat_place(path, repositories) for path in walk_files(cache, _is_finished, problems, depth_max=0)]


def _flat_place(path: Path, repositories: Iterable[tuple[str, str]]) -> _Place:
    owner, repository = _address_beside(path) or ("", "")
    for pair in repositories:
        if path.name.startswith("_".join(pair) + "_"):
            owner, repository = pair
            break
    stem = path.name.removesuffix(".gguf")
    if not owner:
        # Without a manifest, only `-GGUF_` shows where the name of the repository ends.
        before, marked, after = stem.partition("-GGUF_")
        owner, _, repository = before.partition("_")
        if not (marked and after and owner and repository):
            return _Place(path, LOCAL_NAMESPACE, "")
        return _Place(path, namespace_from_text(owner), repository, after)
    return _Place(path, namespace_from_text(owner), repository, stem.removeprefix(f"{owner}_{repository}_"))


class _Download(msgspec.Struct):
    url: str = ""


def _address_beside(path: Path) -> tuple[str, str] | None:
    """Return owner and repository from `FILE.gguf.json`, which older versions of llama.cpp wrote; else None."""
    try:
        download = msgspec.json.decode(read_text(path.with_name(path.name + ".json")), type=prepared(_Download))
    except (msgspec.DecodeError, RecursionError):
        return None
    match = _HUB_ADDRESS.match(download.url)
    return (match[1], match[2]) if match else None


def _sources(places: Iterable[_Place]) -> tuple[ModelSource, ...]:
    """Return the models at `places`, with all shards of each."""
    by_repository: dict[tuple[str, str], dict[Path, _Place]] = {}
    for place in places:
        by_repository.setdefault((place.namespace, place.repository), {})[place.path] = place
    sources: list[ModelSource] = []
    for (namespace, repository), members in by_repository.items():
        for source in group_models(members, namespace):
            stem = members[source.paths[0]].stem if source.paths[0] in members else None
            if stem is not None:
                (renamed,) = group_models([Path(f"{stem}.gguf")], namespace)
                source = replace(source, name=renamed.name)
            if repository:
                name = name_from_text(name_in_repository(repository, source.name.name))
                source = replace(source, name=ModelName(source.name.namespace, name))
            sources.append(source)
    return tuple(sources)
