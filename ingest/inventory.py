"""The models on this machine, before an ingest: families, quantisations under their model, and equal files.

Only headers and some samples are read, unless all bytes are to be compared. Two files count as equal if they have the
same size, the same header and the same samples, and if their tools state no different SHA-256. An ingest never relies
on this: it reads every byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from organs.ingest.dissect import OpenGguf
from organs.ingest.sources import ModelSource, open_headers
from organs.ingest.tools.facts import license_of, stamp_of
from organs.registry.catalog.queries.model_contents import known_digests
from organs.registry.catalog.queries.model_names import registered_digests
from organs.registry.digest import Digest
from organs.registry.entities.base import Entity
from organs.registry.errors import BadInput, OrganError
from organs.registry.gguf.file_types import FILE_TYPE_KEY, quantisation
from organs.registry.lineage import Groups
from organs.registry.local import LocalRegistry
from organs.registry.names import family_name, split_quantisation
from organs.registry.relatives.resolve import PARENT_KEYS, DeclaredParent, Identity, folded, match, numbered_parents

SAMPLES, SAMPLE_BYTES = 16, 4096
"""The ranges of a file that are read to find equal files."""
CHUNK_BYTES = 4 * 1024 * 1024

Progress = Callable[[int], None]
Named = Callable[[str], None]
"""Called with the name of each model before its header is read."""


class LocalFile(Entity, frozen=True, kw_only=True):
    """A copy of a model in the folder of a tool, or in a folder that a person named."""

    tool: str
    """Empty for a folder that a person named."""
    name: str
    """The name that the tool gives it, or that of the file."""
    paths: tuple[str, ...]
    is_link: bool
    """Whether it takes no room, because another copy has the same bytes on the disk."""


class LocalModel(Entity, frozen=True, kw_only=True):
    """A model file, or the shards of one, with all of its copies."""

    name: str
    quantisation: str | None
    kind: str
    architecture: str | None
    license: str | None
    tensors: int
    parameters: int
    size_bytes: int
    copies: tuple[LocalFile, ...]
    registered: str | None
    """The registered model with these bytes, as far as that is known without reading them."""
    distinct_bytes: int | None = None
    """Bytes of tensors that no model before it has; None unless all bytes were read."""


class FoldedModel(Entity, frozen=True, kw_only=True):
    """A model with all its quantisations."""

    name: str
    variants: tuple[LocalModel, ...]


class LocalFamily(Entity, frozen=True, kw_only=True):
    """Models that name each other, or the same base, in their headers."""

    name: str
    architecture: str | None
    models: tuple[FoldedModel, ...]
    size_bytes: int


class Inventory(Entity, frozen=True, kw_only=True):
    """All models that were found, and how many bytes they have."""

    families: tuple[LocalFamily, ...]
    problems: tuple[str, ...]
    files: int
    """The number of files in all tools; shards of a model count as one."""
    size_bytes: int
    """Bytes of all files, as the tools list them."""
    disk_bytes: int
    """The same without links, which take no room."""
    duplicate_bytes: int
    """Bytes of second copies on the disk."""
    registered: int
    """The number of different models that are registered already."""
    distinct_bytes: int | None
    """Bytes of different tensors; None unless all bytes were read."""

    @property
    def models(self) -> Iterator[LocalModel]:
        """All different files."""
        return (variant for family in self.families for model in family.models for variant in model.variants)


@dataclass(slots=True)
class _Read:
    """What the header of a source says, and which bytes it has."""

    source: ModelSource
    texts: Mapping[str, str]
    kind: str
    encoding: str | None
    architecture: str | None
    tensors: int
    parameters: int
    size_bytes: int
    signature: str
    places: tuple[tuple[int, int], ...]
    """Device and inode of each file."""


def take_inventory(
    sources: Sequence[ModelSource],
    registry: LocalRegistry | None = None,
    named: Named = lambda _name: None,
    progress: Progress | None = None,
) -> Inventory:
    """Read the headers of `sources`, and return what they are; files that are refused become problems.

    With `progress`, the bytes of all different tensors are read and compared; it is called with their sizes.
    """
    read: list[_Read] = []
    problems: list[str] = []
    for source in sources:
        named(str(source.name))
        try:
            read.append(_read(source))
        except OrganError as error:
            problems.append(str(error))
    groups = _equal(read)
    registered = {} if registry is None else _registered(registry, groups)
    distinct = _distinct_bytes(groups, problems, progress) if progress is not None else {}
    models = [_model(group, registered.get(index), distinct.get(index)) for index, group in enumerate(groups)]
    size, disk = sum(item.size_bytes for item in read), _disk_bytes(read)
    return Inventory(
        families=tuple(_families([group[0] for group in groups], models)),
        problems=tuple(problems),
        files=len(read),
        size_bytes=size,
        disk_bytes=disk,
        duplicate_bytes=disk - sum(model.size_bytes for model in models),
        registered=sum(model.registered is not None for model in models),
        distinct_bytes=sum(distinct.values()) if progress is not None else None,
    )


def _read(source: ModelSource) -> _Read:
    with ExitStack() as opened:
        files = open_headers(opened, source)
        header = files[0].header
        texts = {field.key: text for field in header.fields if (text := header.text(field.key)) is not None}
        file_type = header.integer(FILE_TYPE_KEY)
        tensors = [tensor for file in files for tensor in file.header.tensors]
        return _Read(
            source,
            texts,
            header.kind(has_tensors=bool(tensors)),
            quantisation(file_type, ((one.dtype.name, one.size_bytes) for one in tensors if len(one.shape) > 1)),
            header.architecture,
            len(tensors),
            sum(tensor.elements for tensor in tensors),
            sum(file.header.file_size_bytes for file in files),
            hashlib.sha256(b"".join(map(_signature, files))).hexdigest(),
            tuple((status.st_dev, status.st_ino) for status in (path.stat() for path in source.paths)),
        )


def _signature(file: OpenGguf) -> bytes:
    """Return a digest of the size, the header and samples of a file."""
    size = file.header.file_size_bytes
    end = max(0, size - SAMPLE_BYTES)
    offsets = sorted({end * index // (SAMPLES - 1) for index in range(SAMPLES)})
    spans = [(0, file.header.end), *((offset, min(SAMPLE_BYTES, size - offset)) for offset in offsets)]
    digest = hashlib.sha256(str(size).encode())
    for part in file.source.read_ranges(spans):
        digest.update(part)
    return digest.digest()


def _equal(read: Sequence[_Read]) -> list[list[_Read]]:
    """Return the sources in groups of equal files, in the order of their first ones."""
    groups: dict[str, list[list[_Read]]] = {}
    for item in read:
        candidates = groups.setdefault(item.signature, [])
        same = next((group for group in candidates if _may_be_equal(group, item)), None)
        if same is None:
            candidates.append([item])
        else:
            same.append(item)
    order = {id(item): index for index, item in enumerate(read)}
    return sorted((group for found in groups.values() for group in found), key=lambda group: order[id(group[0])])


def _may_be_equal(group: Sequence[_Read], item: _Read) -> bool:
    stated = {other.source.digests for other in group} - {()}
    return not item.source.digests or not stated or item.source.digests in stated


def _registered(registry: LocalRegistry, groups: Sequence[Sequence[_Read]]) -> dict[int, str]:
    """Return the registered model of each group whose files an ingest has read, or whose tools state their SHA-256."""
    digests: dict[int, Digest] = {}
    with registry.catalog.reading() as session:
        for index, group in enumerate(groups):
            stamps = [stamp for item in group if (stamp := stamp_of(item.source.paths[0])) is not None]
            known = known_digests(session, stamps)
            stated = [item.source.digests[0] for item in group if item.source.digests]
            if digest := next(iter([*known.values(), *stated]), None):
                digests[index] = digest
        names = registered_digests(session, set(digests.values()))
    return {index: names[digest] for index, digest in digests.items() if digest in names}


def _distinct_bytes(groups: Sequence[Sequence[_Read]], problems: list[str], progress: Progress) -> dict[int, int]:
    """Return the bytes of tensors that no group before has, by group."""
    known: set[bytes] = set()
    distinct: dict[int, int] = {}
    for index, group in enumerate(groups):
        try:
            distinct[index] = sum(
                size for digest, size in _tensors(group[0].source, progress) if _is_new(known, digest)
            )
        except OrganError as error:
            problems.append(str(error))
    return distinct


def _is_new(known: set[bytes], digest: bytes) -> bool:
    is_new = digest not in known
    known.add(digest)
    return is_new


def _tensors(source: ModelSource, progress: Progress) -> Iterator[tuple[bytes, int]]:
    """Yield the digest and the size of each tensor."""
    with ExitStack() as opened:
        for file in open_headers(opened, source):
            for tensor in file.header.tensors:
                begin = file.header.data_offset + tensor.offset
                digest = hashlib.sha256(f"{tensor.dtype.name} {tensor.shape}".encode())
                for offset in range(begin, begin + tensor.size_bytes, CHUNK_BYTES):
                    size = min(CHUNK_BYTES, begin + tensor.size_bytes - offset)
                    digest.update(file.source.read_at(offset, size))
                    progress(size)
                yield digest.digest(), tensor.size_bytes


def _disk_bytes(read: Iterable[_Read]) -> int:
    """Return the bytes of all files, each once however many links it has."""
    sizes: dict[tuple[int, int], int] = {}
    for item in read:
        for place, path in zip(item.places, item.source.paths, strict=True):
            sizes.setdefault(place, _size(path))
    return sum(sizes.values())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def _model(group: Sequence[_Read], registered: str | None, distinct_bytes: int | None) -> LocalModel:
    first = group[0]
    _, in_name = split_quantisation(first.source.name.name)
    seen: set[tuple[tuple[int, int], ...]] = set()
    copies = []
    for item in group:
        paths = tuple(map(str, item.source.paths))
        is_link = item.places in seen
        seen.add(item.places)
        copies.append(LocalFile(tool=item.source.tool, name=str(item.source.name), paths=paths, is_link=is_link))
    texts = [text for item in group for text in item.source.texts]
    return LocalModel(
        name=str(first.source.name),
        quantisation=in_name or first.encoding,
        kind=first.kind,
        architecture=first.architecture,
        license=first.texts.get("general.license") or license_of(texts),
        tensors=first.tensors,
        parameters=first.parameters,
        size_bytes=first.size_bytes,
        copies=tuple(copies),
        registered=registered,
        distinct_bytes=distinct_bytes,
    )


def _families(read: Sequence[_Read], models: Sequence[LocalModel]) -> Iterator[LocalFamily]:
    """Yield the families, those with most models first, each with its models and their quantisations."""
    grouped = _joined(read)
    members: dict[Hashable, list[int]] = {}
    for index in range(len(read)):
        members.setdefault(grouped.leader(index), []).append(index)
    families = [_family([models[index] for index in family]) for family in members.values()]
    yield from sorted(families, key=lambda family: (-len(family.models), family.name.lower()))


def _joined(read: Sequence[_Read]) -> Groups:
    """Group models by their names without quantisation, their base names, and the parents that they declare."""
    groups = Groups()
    by_name: dict[str, list[int]] = {}
    identities = [_identity(item) for item in read]
    for index, (item, identity) in enumerate(zip(read, identities, strict=True)):
        groups.join(index, ("stem", item.architecture, folded(split_quantisation(identity.name)[0])))
        if basename := folded(item.texts.get("general.basename", "")):
            groups.join(index, ("basename", item.architecture, basename))
        for name in {folded(identity.name), folded(identity.title)} - {""}:
            by_name.setdefault(name, []).append(index)
    for index, item in enumerate(read):
        for parent in _parents(item):
            groups.join(index, ("parent", folded(parent.text)))
            for other in by_name.get(folded(parent.name), []):
                if match(parent, identities[other]) is not None:
                    groups.join(index, other)
    return groups


def _identity(item: _Read) -> Identity:
    name, texts = item.source.name, item.texts
    return Identity(
        name.namespace,
        name.name,
        texts.get("general.name", ""),
        item.architecture or "",
        texts.get("general.organization", ""),
        texts.get("general.version", ""),
        texts.get("general.repo_url", ""),
    )


def _parents(item: _Read) -> Iterator[DeclaredParent]:
    return (parent for _, parent in numbered_parents({key: item.texts.get(key, "") for key in PARENT_KEYS}))


def _family(models: Sequence[LocalModel]) -> LocalFamily:
    by_stem: dict[str, list[LocalModel]] = {}
    for model in models:
        namespace, _, name = model.name.partition("/")
        by_stem.setdefault(f"{namespace}/{split_quantisation(name)[0]}", []).append(model)
    stems = [stem.partition("/")[2] for stem in by_stem]
    return LocalFamily(
        name=family_name(stems),
        architecture=models[0].architecture,
        models=tuple(
            FoldedModel(name=stem, variants=tuple(sorted(variants, key=lambda model: -model.size_bytes)))
            for stem, variants in sorted(by_stem.items(), key=lambda pair: pair[0].lower())
        ),
        size_bytes=sum(model.size_bytes for model in models),
    )
