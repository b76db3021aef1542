"""Files that a recipe names: what follows from them is put in their place, so that a recorded recipe stands alone.

Only the command line and Python read files. A server refuses a recipe that names one: its files are none of a
stranger's business, and those of the stranger are elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Protocol

import numpy as np
from msgspec import Meta, Struct

from organs.registry.anatomy import EXPERT_DIMENSIONS, SALIENT_STACK, Tower, parse_block, place_of
from organs.registry.compose.pruning import EXPERTS_FIELD, GROUPS_KEY
from organs.registry.compose.selection import BlockRange, choice, in_ranges, ranges, within
from organs.registry.digest import Digest
from organs.registry.documents import BadDocument, Limits, Parse, Reason, convert, joined, line, parse_json, quoted
from organs.registry.entities.model import Model
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import BadInput, BadName, NotFound, OrganError
from organs.registry.experts import EXPERTS_A_STACK_MAX
from organs.registry.gguf.importance import read_importances
from organs.registry.input_files import FileSource

FILE_NAME_MAX = 1000
TEXT_MAX_BYTES = 128 * 1024
"""The largest text of a key; the longest chat templates have 30 KiB."""
METADATA_FIELD = "metadata"
SALIENCY_LIMITS = Limits(size_bytes=16 * 1024 * 1024, depth=3, values=500_000)
"""A number for each of 384 experts in 60 blocks needs half a megabyte."""

ENERGY, TOKENS = "energy", "tokens"
MEASURES = (ENERGY, TOKENS)
"""What counts of an importance matrix: the energy of hidden units over all tokens (the default), or how many tokens."""

Saliency = Mapping[int, Sequence[float]]
"""By block: a number for each expert; larger ones are kept."""


class ModelLookup(Protocol):
    """A registry, as far as it is necessary here."""

    def model(self, name: str) -> Model:
        """Return a model. Raises NotFound."""
        ...

    def organs_of(self, name: str) -> tuple[PlacedOrgan, ...]:
        """Return all organs of a model. Raises NotFound."""
        ...

    def assemble(self, name: str, path: str | Path) -> Digest:
        """Write the file of a model to `path`. Raises NotFound."""
        ...


def _count(count: int) -> int:
    if not 1 <= count <= EXPERTS_A_STACK_MAX:
        raise ValueError(f"the number of experts is from 1 to {EXPERTS_A_STACK_MAX:,}")
    return count


class _RankedChoice(Struct, forbid_unknown_fields=True):
    """The most salient experts: `count` in each of `blocks`, or in all blocks that have experts."""

    count: Annotated[int, Parse(_count, int, "a number of experts such as 256")]
    saliency: Annotated[str, line("the name of a file", FILE_NAME_MAX)]
    by: Annotated[str | None, line(f"one of {', '.join(MEASURES)}", 10, choice(MEASURES, str.lower))] = None
    """What an importance matrix tells; a JSON file has its own numbers."""
    blocks: Annotated[tuple[BlockRange, ...], ranges("a", "block")] = ()


class _TextFile(Struct, forbid_unknown_fields=True):
    """A file whose text is the value of a key."""

    file: Annotated[str, line("a file", FILE_NAME_MAX)]


@dataclass(frozen=True, slots=True)
class _Mixture:
    """The experts of a base: their number in each block, and the groups of neighbours that routers select first."""

    counts: Mapping[int, int]
    groups: int


def with_files(values: object, folder: Path, registry: ModelLookup) -> object:
    """Return the `values` of a recipe file with what its files say in their place.

    Names of files are relative to `folder`. Values of another form are left to the reader of recipes. Raises
    BadDocument with all reasons; the errors of the registry for the base.
    """
    if not isinstance(values, dict):
        return values
    metadata = values.get(METADATA_FIELD)
    if isinstance(metadata, dict):
        values = values | {METADATA_FIELD: _with_texts(metadata, folder)}
    steps = values.get(EXPERTS_FIELD)
    listed = steps if isinstance(steps, list) else [steps]
    base = values.get("base")
    if not isinstance(base, str) or not any(_is_ranked(step) for step in listed):
        return values
    mixture = _mixture_of(registry, base)
    resolved: list[object] = []
    reasons: list[Reason] = []
    for number, step in enumerate(listed):
        at = EXPERTS_FIELD if step is steps else f"{EXPERTS_FIELD}[{number}]"
        if not _is_ranked(step):
            resolved.append(step)
            continue
        try:
            ranked = convert(step, _RankedChoice)
            resolved += _chosen(ranked, _read_saliency(ranked, folder, registry), mixture)
        except BadDocument as error:
            reasons += [(f"{at}.{path}" if path else at, sentence) for path, sentence in error.reasons]
    if reasons:
        raise BadDocument(reasons)
    return values | {EXPERTS_FIELD: resolved}


def _with_texts(metadata: dict[object, object], folder: Path) -> dict[object, object]:
    """Return metadata with the text of each file in the place of `{file: NAME}`. Raises BadDocument."""
    texts: dict[object, object] = {}
    for key, value in metadata.items():
        if not isinstance(value, dict):
            texts[key] = value
            continue
        at = joined(METADATA_FIELD, str(key))
        try:
            name = convert(value, _TextFile).file
            path = (folder / name).resolve()
            if not path.is_relative_to(folder.resolve()):  # a recipe of a stranger must not read other files
                raise BadDocument([("", f"{quoted(name)} is not in the folder of the recipe")])
            with FileSource(path) as source:
                if source.size_bytes > TEXT_MAX_BYTES:
                    sentence = f"{name} has {source.size_bytes:,} bytes; at most {TEXT_MAX_BYTES:,} are read"
                    raise BadDocument([("", sentence)])
                texts[key] = source.read_at(0, source.size_bytes).decode("utf-8")
        except BadDocument as error:
            raise BadDocument([(f"{at}.{path}" if path else at, text) for path, text in error.reasons]) from error
        except UnicodeDecodeError as error:
            raise BadDocument([(at, f"{name} is not UTF-8 at byte {error.start}")]) from error
        except OrganError as error:
            raise BadDocument([(at, f"the file cannot be read: {error}")]) from error
    return texts


def _is_ranked(step: object) -> bool:
    return isinstance(step, dict) and not {"saliency", "count", "by"}.isdisjoint(step)


def _mixture_of(registry: ModelLookup, base: str) -> _Mixture:
    metadata = {entry.key: entry.value for entry in registry.model(base).metadata}
    architecture = metadata.get("general.architecture", "")
    groups = metadata.get(f"{architecture}.{GROUPS_KEY}", "")
    counts = {
        organ.block: organ.shape[-1]
        for organ in registry.organs_of(base)
        if organ.block is not None and organ.tower == Tower.TEXT and EXPERT_DIMENSIONS.get(organ.slot) == 2
    }
    return _Mixture(counts, max(1, int(groups)) if re.fullmatch(r"[0-9]{1,9}", groups) else 1)


def _chosen(ranked: _RankedChoice, saliency: Saliency, mixture: _Mixture) -> list[dict[str, Any]]:
    """Return the steps that keep the most salient experts, one for each block. Raises BadDocument with all reasons."""
    reasons: list[Reason] = []
    foreign = sorted(set(saliency) - set(mixture.counts))
    if foreign:
        reasons.append(("saliency", f"the base has no experts in block {foreign[0]}, which the file has"))
    if ranked.count % mixture.groups:
        groups = f"the router selects among {mixture.groups} groups of one size"
        reasons.append(("count", f"{groups}: keep a multiple of {mixture.groups} experts"))
    steps = []
    for block, experts in sorted(mixture.counts.items()):
        if ranked.blocks and not within(block, ranked.blocks):
            continue
        own = saliency.get(block, ())
        if len(own) != experts:
            has = f"{len(own)} numbers for" if own else "nothing on"
            reasons.append(("saliency", f"the file has {has} block {block}, which has {experts} experts"))
        elif ranked.count > experts:
            reasons.append(("count", f"block {block} has {experts} experts"))
        elif not reasons:
            steps.append({"keep": in_ranges(_most_salient(own, ranked.count, mixture.groups)), "blocks": block})
    if not steps and not reasons:
        reasons.append(("blocks", "the base has no experts in these blocks"))
    if reasons:
        raise BadDocument(reasons)
    return steps


def _most_salient(saliency: Sequence[float], count: int, groups: int) -> list[int]:
    """Return the `count` experts with the largest numbers, as many in each of `groups`, in rising order.

    Of experts with equal numbers the first ones are taken.
    """
    size = -(-len(saliency) // groups)
    kept: list[int] = []
    for begin in range(0, len(saliency), size):
        group = range(begin, min(begin + size, len(saliency)))
        kept += sorted(group, key=lambda number: (-saliency[number], number))[: count // groups]
    return sorted(kept)


def _read_saliency(ranked: _RankedChoice, folder: Path, registry: ModelLookup) -> Saliency:
    """Return the saliency in a file, or of a registered importance matrix. Raises BadDocument."""
    name = ranked.saliency
    try:
        with TemporaryDirectory(prefix="organ-") as temporary:
            path = folder / name
            if not path.exists():
                path = Path(temporary) / "importances"
                _assemble(registry, name, path, folder)
            with FileSource(path) as source:
                head = source.read_at(0, min(source.size_bytes, 64))
                if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
                    if ranked.by is not None:
                        raise BadInput(f"{name} has its own numbers: by is for importance matrices")
                    size_bytes = min(source.size_bytes, SALIENCY_LIMITS.size_bytes + 1)
                    return _of_json(parse_json(source.read_at(0, size_bytes), SALIENCY_LIMITS))
                return _of_importances(source, ranked.by or ENERGY)
    except BadDocument as error:
        reasons = [("saliency", f"{path}: {text}" if path else text) for path, text in error.reasons]
        raise BadDocument(reasons) from error
    except OrganError as error:
        raise BadDocument([("saliency", str(error))]) from error


def _assemble(registry: ModelLookup, name: str, path: Path, folder: Path) -> None:
    """Write a registered importance matrix to `path`. Raises BadInput if there is none, StoreError."""
    try:
        registry.assemble(name, path)
    except (BadName, NotFound) as error:
        where = "this folder" if folder == Path() else str(folder)
        raise BadInput(f"{quoted(name)} is no file in {where}, and no registered importance matrix") from error


def _of_json(document: object) -> Saliency:
    """Return the saliency in a table of lists of numbers by block. Raises BadDocument."""
    table = convert({"blocks": document}, _SaliencyTable).blocks
    saliency: dict[int, Sequence[float]] = {}
    for key, values in table.items():
        block = parse_block(key)
        if block is None:
            raise BadDocument([("", f"{quoted(key)} is no block: write its number")])
        if block in saliency:
            raise BadDocument([("", f"block {block} is there twice")])
        saliency[block] = values
    return saliency


class _SaliencyTable(Struct):
    blocks: dict[str, Annotated[tuple[float, ...], Meta(max_length=EXPERTS_A_STACK_MAX)]]


def _of_importances(source: FileSource, by: str) -> Saliency:
    """Return for how many tokens each expert was used, or the energy of its hidden units over these tokens.

    Both are those of SALIENT_STACK, and 0 for an expert that was never used. Raises BadInput, BadGguf.
    """
    saliency = {}
    matrix = read_importances(source)
    for name, values in (matrix.energies if by == ENERGY else matrix.tokens).items():
        place = place_of(name)
        if place.slot == SALIENT_STACK and place.block is not None and place.tower is Tower.TEXT:
            if not np.isfinite(values).all():
                raise BadInput(f"{source.name}: the sums or counts of {name} are not finite")
            saliency[place.block] = values.tolist()
    if not saliency:
        raise BadInput(
            f"{source.name} has no sums by expert for {SALIENT_STACK}: it is of a model without experts, or in the old "
            "format, which loses how often each was used; newer versions of llama-imatrix write GGUF"
        )
    return saliency
