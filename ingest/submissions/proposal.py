"""What a model would be listed as, from its headers and its contributor's metadata, and the findings about both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from organs.ingest.dissect import DissectedFile, places
from organs.ingest.records import is_complete, kind_of, nonfinite_flags
from organs.ingest.submissions.findings import NONFINITE, NOTE, WARN, Finding
from organs.ingest.submissions.manifest import StatedMetadata
from organs.ingest.tasks import Progress
from organs.registry.compose.licences import AND, differing_licence, terms_of
from organs.registry.gguf import Header, TensorInfo
from organs.registry.measure import count_nonfinite_in
from organs.registry.names import ModelName
from organs.registry.relatives.declared import IDENTITY_KEYS, DeclaredParent, Identity, folded, numbered_parents

TEMPLATE_KEY = "tokenizer.chat_template"
SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class Proposal:
    """The values that the catalog would list: the contributor's, or else the header's."""

    title: str | None
    description: str | None
    license: str | None
    base: str | None
    tags: tuple[str, ...]
    architecture: str | None
    parameters: int
    tensors: int
    size_bytes: int
    kind: str
    complete: bool

    def values(self) -> dict[str, Any]:
        """Return the proposal as a JSON object."""
        return asdict(self) | {"tags": list(self.tags)}


def propose(files: Sequence[DissectedFile], stated: StatedMetadata) -> Proposal:
    """Return what the model in `files` would be listed as."""
    header = files[0].header
    tensors = [tensor for file in files for tensor in file.header.tensors]
    return Proposal(
        title=stated.title or header.text("general.name"),
        description=stated.description or header.text("general.description"),
        license=stated.license or header.text("general.license"),
        base=stated.base or next((parent.text for parent in declared_parents(header)), None),
        tags=stated.tags if stated.tags is not None else files[0].tags,
        architecture=header.architecture,
        parameters=sum(tensor.elements for tensor in tensors),
        tensors=len(tensors),
        size_bytes=sum(file.header.file_size_bytes for file in files),
        kind=kind_of(header, bool(tensors)),
        complete=is_complete(header, [place for file in files for place in places(file.header)]),
    )


def count_nonfinite_weights(files: Sequence[DissectedFile], progress: Progress) -> dict[str, int]:
    """Return the tensors with values that are NaN or infinite, and how many each has. Reads all bytes of all tensors.

    `progress` is called with the size of each piece that was read, and may raise to give up. Nothing is parsed here:
    bit patterns of values are counted (`registry.measure.nonfinite`).
    """

    def pieces(file: DissectedFile, tensor: TensorInfo) -> Iterator[memoryview]:
        for piece in file.tensor_pieces(tensor):
            yield piece
            progress(len(piece))

    found = {
        tensor.name: count_nonfinite_in(pieces(file, tensor), tensor.dtype)
        for file in files
        for tensor in file.header.tensors
    }
    return {name: count for name, count in found.items() if count}


def nonfinite_finding(counts: Mapping[str, int]) -> Iterator[Finding]:
    """Yield the finding about the tensors in `counts`, which have so many values that are NaN or infinite, if any."""
    for flag in nonfinite_flags(counts):
        yield Finding(WARN, NONFINITE, f"{_sentence(flag)} Most likely the file is damaged.")


def declared_parents(header: Header) -> list[DeclaredParent]:
    """Return the parents that the header names."""
    texts = {field.key: field.value for field in header.fields if isinstance(field.value, str)}
    count = header.integer("general.base_model.count") or 0
    return [parent for number, parent in numbered_parents(texts) if number < count]


def identity_of(header: Header, name: ModelName, proposed: Proposal) -> Identity:
    """Return the names by which other models may mean this one."""
    own = (header.text(key) or "" for key in IDENTITY_KEYS)
    return Identity(name.namespace, name.name, proposed.title or "", proposed.architecture or "", *own)


def findings_of(files: Sequence[DissectedFile], name: ModelName, proposed: Proposal) -> Iterator[Finding]:
    """Return the findings about the files themselves, without the catalog."""
    header = files[0].header
    for file in files:
        for reason in file.unassemblable:
            sentence = f"It will be shown, and never handed out as a file, because it can crash what loads it: {reason}"
            yield Finding(WARN, "unassemblable", sentence)
        for flag in file.flags:
            yield Finding(NOTE, "odd-file", _sentence(flag))
    yield from _of_licence(proposed.license, header.text("general.license"))
    yield from _of_name(header, name)
    if proposed.kind == "model" and not proposed.complete and proposed.base is None:
        sentence = "It has only some of the organs that its header announces, and names no base that has the others."
        yield Finding(WARN, "partial-without-base", sentence)
    elif proposed.kind == "model" and not proposed.complete:
        sentence = f"It has only some organs: assembling it will graft them into its base, {_shown(proposed.base)}."
        yield Finding(NOTE, "partial", sentence)
    if proposed.kind == "adapter" and proposed.base is None:
        yield Finding(WARN, "adapter-without-base", "This adapter does not say which model it belongs to.")
    if header.field(TEMPLATE_KEY) is not None:
        sentence = "It has a chat template. The catalog shows it as text and never runs it; runtimes do."
        yield Finding(NOTE, "chat-template", sentence)


def _of_licence(licence: str | None, in_header: str | None) -> Iterator[Finding]:
    differing = differing_licence(licence, in_header)
    if differing is not None:
        yield Finding(WARN, "license-differs", differing)
    if licence is None:
        sentence = "No licence is stated: nobody may use it then. Give one, such as Apache-2.0 or CC-BY-4.0."
        yield Finding(WARN, "no-license", sentence)
        return
    stated = [part.strip("() ") for one in licence.split(AND) for part in one.split(" OR ")]
    unknown = [part for part in stated if part and terms_of(part) is None]
    if unknown:
        sentence = f"The licence {_shown(unknown[0])} is not known here; SPDX identifiers such as MIT are."
        yield Finding(NOTE, "unknown-license", sentence)


def _of_name(header: Header, name: ModelName) -> Iterator[Finding]:
    title = header.text("general.name")
    if title and folded(title) not in folded(name.name) and folded(name.name) not in folded(title):
        sentence = f"The header calls it {_shown(title)}; it will be found as {name.namespace}/{name.name}."
        yield Finding(NOTE, "other-name", sentence)
    owner = header.text("general.organization")
    if owner and folded(owner) != folded(name.namespace):
        sentence = f"The header says that {_shown(owner)} made it; it will stand under {name.namespace}."
        yield Finding(NOTE, "other-organization", sentence)


def _shown(text: str | None) -> str:
    return repr(text if text is None or len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…")


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."
