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

from msgspec.structs import replace

from organs.ingest.sources import ModelSource, open_headers
from organs.ingest.tools.facts import license_of, stamp_of
from organs.registry.catalog.queries.model_contents import digests_by_stamp
from organs.registry.catalog.queries.model_names import registered_digests
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.base import Entity
from organs.registry.errors import OrganError
from organs.registry.gguf.types import FILE_TYPE_KEY, quantisation
from organs.registry.input_files import BUFFER_BYTES, sample_spans
from organs.registry.local import LocalRegistry
from organs.registry.names import family_name, split_quantisation
from organs.registry.progress import Progress
from organs.registry.relatives.declared import PARENT_KEYS, Identity, folded, match, numbered_parents
from organs.registry.similarity import Groups


class LocalFile(Entity):
    """A copy of a model in the folder of a tool, or in a folder that a person named."""

    tool: str
    """Empty for a folder that a person named."""
    name: str
    """The name that the tool gives it, or that of the file."""
    paths: tuple[str, ...]
    is_link: bool
    """Whether it takes no room, because another copy has the same bytes on the disk."""


class LocalModel(Entity):
    """A model file, or the shards of one, with all of its copies."""

    name: str
    quantisation: str | None
    kind: str
    architecture: str | None
    license: str | None
    tensors: int
    parameters: int
    size_bytes: int
    copies: tuple[LocalFile, ...] = ()
    registered: str | None = None
    """The registered model with these bytes, as far as that is known without reading them."""
    distinct_bytes: int | None = None
    """Bytes of tensors that no model before it has; None unless all bytes were read."""


class ScannedModel(Entity):
    """A model with all its quantisations."""

    name: str
    variants: tuple[LocalModel, ...]


class LocalFamily(Entity):
    """Models that name each other, or the same base, in their headers."""

    name: str
    architecture: str | None
    models: tuple[ScannedModel, ...]
    size_bytes: int


class Inventory(Entity):
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
    model: LocalModel
    """The model without its copies."""
    signature: str
    places: dict[tuple[int, int], int]
    """The size in bytes of each file, by device and inode."""


def take_inventory(
    sources: Sequence[ModelSource],
    registry: LocalRegistry | None = None,
    named: Callable[[str], None] = lambda _name: None,
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
    distinct: dict[int, int] = {}
    if progress is not None:
        known: set[bytes] = set()
        for index, group in enumerate(groups):
            try:
                distinct[index] = _new_bytes(group[0].source, known, progress)
            except OrganError as error:
                problems.append(str(error))
    models = [_model(group, registered.get(index), distinct.get(index)) for index, group in enumerate(groups)]
    sizes = {place: size for item in read for place, size in item.places.items()}  # once for all links to a file
    return Inventory(
        families=tuple(_families([group[0] for group in groups], models)),
        problems=tuple(problems),
        files=len(read),
        size_bytes=sum(item.model.size_bytes for item in read),
        disk_bytes=sum(sizes.values()),
        duplicate_bytes=sum(sizes.values()) - sum(model.size_bytes for model in models),
        registered=sum(model.registered is not None for model in models),
        distinct_bytes=sum(distinct.values()) if progress is not None else None,
    )


def _read(source: ModelSource) -> _Read:
    with ExitStack() as opened:
        files = open_headers(opened, source)
        header = files[0].header
        file_type = header.integer(FILE_TYPE_KEY)
        tensors = [tensor for file in files for tensor in file.header.tensors]
        signature = hashlib.sha256()
        for file in files:
            size = file.header.file_size_bytes
            spans = [(0, file.header.end), *sample_spans(size)]
            samples = b"".join([str(size).encode(), *file.source.read_ranges(spans)])
            signature.update(digest_of(samples).encode())
        statuses = [path.stat() for path in source.paths]
        _, in_name = split_quantisation(source.name.name)
        matrices = ((one.dtype.name, one.size_bytes) for one in tensors if len(one.shape) > 1)
        model = LocalModel(
            name=str(source.name),
            quantisation=in_name or quantisation(file_type, matrices),
            kind=header.kind(has_tensors=bool(tensors)),
            architecture=header.architecture,
            license=header.text("general.license"),
            tensors=len(tensors),
            parameters=sum(tensor.elements for tensor in tensors),
            size_bytes=sum(file.header.file_size_bytes for file in files),
        )
        return _Read(
            source=source,
            texts={field.key: text for field in header.fields if (text := header.text(field.key)) is not None},
            model=model,
            signature=signature.hexdigest(),
            places={(status.st_dev, status.st_ino): status.st_size for status in statuses},
        )


def _equal(read: Iterable[_Read]) -> list[list[_Read]]:
    """Return the sources in groups of equal files, in the order of their first ones."""
    groups: list[list[_Read]] = []
    by_signature: dict[str, list[list[_Read]]] = {}
    for item in read:
        candidates = by_signature.setdefault(item.signature, [])
        for group in candidates:
            stated = {other.source.digests for other in group} - {()}
            if not item.source.digests or not stated or item.source.digests in stated:
                group.append(item)
                break
        else:
            candidates.append([item])
            groups.append(candidates[-1])
    return groups


def _registered(registry: LocalRegistry, groups: Sequence[Sequence[_Read]]) -> dict[int, str]:
    """Return the registered model of each group whose files an ingest has read, or whose tools state their SHA-256."""
    digests: dict[int, Digest] = {}
    with registry.catalog.reading() as session:
        for index, group in enumerate(groups):
            stamps = [stamp for item in group if (stamp := stamp_of(item.source.paths[0])) is not None]
            known = digests_by_stamp(session, stamps)
            stated = [item.source.digests[0] for item in group if item.source.digests]
            if digest := next(iter([*known.values(), *stated]), None):
                digests[index] = digest
        names = registered_digests(session, set(digests.values()))
    return {index: names[digest] for index, digest in digests.items() if digest in names}


def _new_bytes(source: ModelSource, known: set[bytes], progress: Progress) -> int:
    """Return the bytes of the tensors whose digests are not `known`, and add their digests."""
    new_bytes = 0
    with ExitStack() as opened:
        for file in open_headers(opened, source):
            for tensor in file.header.tensors:
                digest = hashlib.sha256(f"{tensor.dtype.name} {tensor.shape}".encode())
                for offset in range(0, tensor.size_bytes, BUFFER_BYTES):
                    data = file.read_tensor(tensor, offset, min(BUFFER_BYTES, tensor.size_bytes - offset))
                    digest.update(data)
                    progress(len(data))
                if digest.digest() not in known:
                    known.add(digest.digest())
                    new_bytes += tensor.size_bytes
    return new_bytes


def _model(group: Sequence[_Read], registered: str | None, distinct_bytes: int | None) -> LocalModel:
    first = group[0].model
    seen: list[dict[tuple[int, int], int]] = []
    copies = []
    for item in group:
        paths = tuple(map(str, item.source.paths))
        is_link = item.places in seen
        seen.append(item.places)
        copies.append(LocalFile(tool=item.source.tool, name=str(item.source.name), paths=paths, is_link=is_link))
    texts = [text for item in group for text in item.source.texts]
    return replace(
        first,
        license=first.license or license_of(texts),
        copies=tuple(copies),
        registered=registered,
        distinct_bytes=distinct_bytes,
    )


def _families(read: Sequence[_Read], models: Sequence[LocalModel]) -> Iterator[LocalFamily]:
    """Yield the families, those with most models first, each with its models and their quantisations."""
    grouped = _joined(read)
    families: dict[Hashable, list[LocalModel]] = {}
    for index, model in enumerate(models):
        families.setdefault(grouped.leader(index), []).append(model)
    found = []
    for members in families.values():
        by_stem: dict[str, list[LocalModel]] = {}
        for model in members:
            namespace, _, name = model.name.partition("/")
            by_stem.setdefault(f"{namespace}/{split_quantisation(name)[0]}", []).append(model)
        folded_models = (
            ScannedModel(name=stem, variants=tuple(sorted(variants, key=lambda model: -model.size_bytes)))
            for stem, variants in sorted(by_stem.items(), key=lambda pair: pair[0].lower())
        )
        family = LocalFamily(
            name=family_name([stem.partition("/")[2] for stem in by_stem]),
            architecture=members[0].architecture,
            models=tuple(folded_models),
            size_bytes=sum(model.size_bytes for model in members),
        )
        found.append(family)
    yield from sorted(found, key=lambda family: (-len(family.models), family.name.lower()))


def _joined(read: Sequence[_Read]) -> Groups:
    """Group models by their names without quantisation, their base names, and the parents that they declare."""
    groups = Groups()
    by_name: dict[str, list[int]] = {}
    identities = []
    for index, item in enumerate(read):
        name, texts = item.source.name, item.texts
        identity = Identity(
            name.namespace,
            name.name,
            texts.get("general.name", ""),
            item.model.architecture or "",
            texts.get("general.organization", ""),
            texts.get("general.version", ""),
            texts.get("general.repo_url", ""),
        )
        identities.append(identity)
        groups.join(index, ("stem", item.model.architecture, folded(split_quantisation(identity.name)[0])))
        if basename := folded(texts.get("general.basename", "")):
            groups.join(index, ("basename", item.model.architecture, basename))
        for own_name in {folded(identity.name), folded(identity.title)} - {""}:
            by_name.setdefault(own_name, []).append(index)
    for index, item in enumerate(read):
        for _, parent in numbered_parents({key: item.texts.get(key, "") for key in PARENT_KEYS}):
            groups.join(index, ("parent", folded(parent.text)))
            for other in by_name.get(folded(parent.name), []):
                if match(parent, identities[other]) is not None:
                    groups.join(index, other)
    return groups
