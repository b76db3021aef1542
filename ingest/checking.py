"""Findings about the files of a model: will llama.cpp load them, what else is wrong, and what mends it.

`organ check`, ingests, submissions and pages show these findings. `CODES` has all of them, with their severity and what
mends them; docs/check.md lists it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from organs.ingest.dissect import DissectedFile, Front, odd_paddings, read_front
from organs.ingest.sources import ModelSource, open_path, parse_part_name
from organs.registry.amounts import names_text, plural_text
from organs.registry.anatomy import Place, place_of
from organs.registry.chat_templates import template_faults
from organs.registry.entities.base import Entity, Items, Text, Texts, Word
from organs.registry.entities.finding import NONFINITE, FileFinding, Severity
from organs.registry.errors import BadGguf, BadInput, BadSplit, OrganError
from organs.registry.gguf import ByteSource, Header, ValueType
from organs.registry.gguf.blocks import BLOCK_INCOMPLETE, block_faults
from organs.registry.gguf.faults import HeaderFault
from organs.registry.gguf.loading import NO_TENSORS, loading_faults
from organs.registry.gguf.split import SPLIT_COUNT_KEY, SPLIT_NUMBER_KEY, check_shards, has_left_over_keys, is_shard
from organs.registry.gguf.tokenizer import vocabulary_faults
from organs.registry.gguf.types import LOADED_NAME_MAX_BYTES, UNQUANTISED
from organs.registry.input_files import OpenFile, read_pieces
from organs.registry.kinds import ADAPTER_TYPE_KEY, INVOCATION_KEY, KIND_NOTES, MERGED_TYPE, FileKind
from organs.registry.measure import count_nonfinite_in
from organs.registry.progress import Progress, no_progress


class Code(NamedTuple):
    """How serious the findings with a code are, and what mends them: a clause.

    In a command, FILE is the file, FILENAME its name, and MODEL the model, which must be registered.
    """

    severity: Severity
    mend: str = ""


REFUSE, WARN, INFO = Severity.REFUSE, Severity.WARN, Severity.INFO
_AGAIN = "fetch it again: hf download REPOSITORY FILENAME, or curl -L -C - -O ADDRESS, which continues"
_CONVERT = "convert the original model again, with convert_hf_to_gguf.py of a current llama.cpp"
_HEADER = "convert or fetch the model again: no command here changes hyperparameters"
_TEMPLATE = "a recipe with metadata: {tokenizer.chat_template: TEXT} sets another one (organ compose)"
_DISTRUST = f"do not use it before you have read it; {_TEMPLATE}"
UNSAFE, PARTIAL, BARE = "unassemblable", "partial-model", "missing-keys"
CODES: Mapping[str, Code] = {
    "unreadable": Code(REFUSE, "give the path of a GGUF file that you may read"),
    "empty": Code(REFUSE, _AGAIN),
    "web-page": Code(REFUSE, "fetch it again: the page in FILE says what went wrong, such as a login"),
    "not-gguf": Code(REFUSE, "give a GGUF file: organ ingest --convert takes safetensors"),
    "part-of-file": Code(REFUSE, "join the parts"),
    "old-version": Code(REFUSE, _CONVERT),
    "unknown-version": Code(REFUSE, "fetch it again, or use a newer version of this program"),
    "header-cut": Code(REFUSE, _AGAIN),
    "truncated": Code(REFUSE, _AGAIN),
    "joined-files": Code(REFUSE, "split it into its files"),
    "broken-header": Code(REFUSE, f"{_AGAIN}; if it is the same, {_CONVERT}"),
    "bytes-after-end": Code(WARN, "cut them off"),
    "missing-shards": Code(REFUSE, "put all shards of the set into one folder, under their own names"),
    "mixed-shards": Code(REFUSE, "fetch the set again, into a folder of its own"),
    "left-over-split-keys": Code(
        REFUSE, "organ assemble MODEL --merge -o NEW.gguf writes it without the keys of shards"
    ),
    "no-architecture": Code(REFUSE, _CONVERT),
    "unknown-architecture": Code(
        REFUSE, "use the program that it is for, or a recipe with metadata: {general.architecture: NAME}"
    ),
    "foreign-types": Code(REFUSE, "use the program that made it, such as ik_llama.cpp, or another quantisation"),
    "long-names": Code(REFUSE, "use the program that it is for, or convert the original model again"),
    "big-endian": Code(REFUSE, "convert it with gguf_convert_endian.py of llama.cpp, or fetch one for other machines"),
    BARE: Code(REFUSE, _HEADER),
    PARTIAL: Code(REFUSE, "organ compose grafts it into its base"),
    "no-tensors": Code(REFUSE, _HEADER),
    "more-blocks": Code(REFUSE, _HEADER),
    "fewer-blocks": Code(REFUSE, _HEADER),
    "no-prediction-block": Code(WARN, "a newer runtime loads it; or fetch a file with that block"),
    "block-incomplete": Code(WARN, _HEADER),
    "shape-differs": Code(REFUSE, _HEADER),
    "head-count": Code(REFUSE, _HEADER),
    "huge-context": Code(WARN, "give the runtime a length: llama-cli -c 8192, or num_ctx in Ollama"),
    "no-tokenizer": Code(REFUSE, _CONVERT),
    "vocabulary-differs": Code(REFUSE, _CONVERT),
    "token-out-of-range": Code(WARN, _CONVERT),
    UNSAFE: Code(REFUSE, _CONVERT),
    NONFINITE: Code(WARN, "fetch it again; if it is the same, quantise it again from the original"),
    "not-read": Code(INFO),
    "only-recipes-merge": Code(REFUSE, "organ compose merges it into its base"),
    "activated-lora": Code(INFO),
    "odd-padding": Code(INFO),
    "no-last-padding": Code(INFO),
    "no-quantization-version": Code(INFO),
    "older-version": Code(INFO),
    "not-text": Code(INFO),
    "odd-truth-value": Code(INFO),
    "chimera": Code(INFO),
    "template-broken": Code(WARN, _TEMPLATE),
    "template-fails": Code(WARN, _TEMPLATE),
    "template-loses-text": Code(WARN, _TEMPLATE),
    "template-two-bos": Code(WARN, _TEMPLATE),
    "template-endless": Code(WARN, _DISTRUST),
    "template-huge": Code(WARN, _DISTRUST),
    "template-random": Code(WARN, _DISTRUST),
    "template-escape": Code(WARN, _DISTRUST),
    "template-reads-files": Code(WARN, _DISTRUST),
    "template-address": Code(WARN, _DISTRUST),
    "template-hidden-text": Code(WARN, _DISTRUST),
    "template-condition": Code(WARN, _DISTRUST),
    "template-turns": Code(WARN, _DISTRUST),
    "template-date": Code(WARN, _DISTRUST),
    "template-switch": Code(INFO),
    "template-refuses": Code(INFO),
    "template-needs-tools": Code(INFO),
    "template-no-system": Code(INFO),
    "template-bos": Code(INFO),
    "template-changes-values": Code(INFO),
    "template-not-tried": Code(INFO),
}
"""All findings about files, by code."""
NOT_FLAGGED = (UNSAFE, PARTIAL, BARE, NONFINITE)
"""Codes of findings that the catalog knows otherwise than by a flag, or that only who loads a file needs."""


SENTENCE_MAX = 2000
"""The most characters of a sentence."""


def finding(fault: HeaderFault, mend: str | None = None) -> FileFinding:
    """Return the finding on a fault; `mend` stands for the usual act."""
    code = CODES[fault.code]
    # It can quote any text of the file.
    sentence = "".join(letter if letter.isprintable() else " " for letter in fault.sentence[:SENTENCE_MAX])
    return FileFinding(code.severity, fault.code, sentence, code.mend if mend is None else mend)


def file_findings(files: Sequence[DissectedFile], *, requires_sandbox: bool = False) -> list[FileFinding]:
    """Return the findings on the headers, the vocabulary and the chat templates of a model, without its weights."""
    fronts = [(file.source, file.front, bool(file.paddings)) for file in files]
    return front_findings(fronts, requires_sandbox=requires_sandbox)


def front_findings(
    fronts: Sequence[tuple[ByteSource, Front, bool]], *, requires_sandbox: bool = False
) -> list[FileFinding]:
    """Return the findings on a model from the fronts of its files: each with its source, and whether padding is odd.

    Templates are tried in confined processes (`registry.chat_templates`).
    """
    found = header_findings([(front, odd) for _, front, odd in fronts])
    source, first, _ = fronts[0]
    found += map(finding, template_faults(source, first.header, required=requires_sandbox))
    return list(dict.fromkeys(found))


def header_findings(fronts: Sequence[tuple[Front, bool]]) -> list[FileFinding]:
    """Return the findings on a model from the fronts of its files, without its chat templates."""
    found = [finding(fault) for front, odd in fronts for fault in _front_faults(front, odd_padding=odd)]
    return [*found, *map(finding, _set_faults([front.header for front, _ in fronts]))]


def flags_of(findings: Iterable[FileFinding]) -> tuple[str, ...]:
    """Return the findings as the flags of a model: sentences with what mends them."""
    return tuple(dict.fromkeys(item.text for item in findings if item.code not in NOT_FLAGGED))


def nonfinite_findings(tensors: Mapping[str, int]) -> Iterator[FileFinding]:
    """Yield one finding on `tensors`, counts of NaN and infinite values by name; yield nothing if it is empty."""
    if tensors:
        names = [f"{name} ({count:,})" for name, count in islice(tensors.items(), NONFINITE_SHOWN)]
        more = f" and {len(tensors) - len(names)} more tensors" if len(tensors) > len(names) else ""
        yield finding(HeaderFault(NONFINITE, f"weights that are NaN or infinite in {', '.join(names)}{more}"))


NONFINITE_SHOWN = 5
"""Limit of tensor names in a sentence about NaN or infinite values."""


def count_nonfinite_weights(files: Iterable[tuple[OpenFile, Header]], progress: Progress) -> dict[str, int]:
    """Return the number of NaN or infinite values by tensor of files and their headers. Reads all bytes of all tensors.

    `progress` is called with the size of each piece, and can raise to stop. Nothing is parsed here:
    bit patterns of values are counted (`registry.measure.nonfinite`).
    """

    def pieces(file: OpenFile, offset: int, size_bytes: int) -> Iterator[memoryview]:
        for piece in read_pieces(file, offset, size_bytes):
            yield piece
            progress(len(piece))

    counts = {
        tensor.name: count_nonfinite_in(
            pieces(file, header.data_offset + tensor.offset, tensor.size_bytes), tensor.dtype
        )
        for file, header in files
        for tensor in header.tensors
    }
    return {name: count for name, count in counts.items() if count}


KEPT = "kept exactly, but not measured and not used in chimeras"


def _front_faults(front: Front, *, odd_padding: bool) -> Iterator[HeaderFault]:
    """Yield unusual properties of a file; `odd_padding` says whether some of its padding is not zero."""
    header = front.header
    yield from (HeaderFault(UNSAFE, reason) for reason in front.unassemblable)
    if odd_padding:
        yield HeaderFault("odd-padding", "padding between tensors is not zero; it is kept")
    if header.tensors and header.last_byte == header.file_size_bytes and header.last_byte % header.alignment:
        yield HeaderFault("no-last-padding", "the last tensor has no padding behind it")
    if has_left_over_keys(header):
        message = f"{SPLIT_COUNT_KEY} says {header.integer(SPLIT_COUNT_KEY)} files, but this one has all tensors"
        yield HeaderFault("left-over-split-keys", f"{message}: runtimes refuse it")
    # Only the first shard of a set has metadata.
    is_first = not is_shard(header) or not header.integer(SPLIT_NUMBER_KEY)
    quantised = any(tensor.dtype.name not in UNQUANTISED and not tensor.dtype.is_foreign for tensor in header.tensors)
    if is_first and quantised and header.field("general.quantization_version") is None:
        sentence = "general.quantization_version is absent although tensors are quantised"
        yield HeaderFault("no-quantization-version", sentence)
    if is_first and header.architecture is None and header.kind() == FileKind.MODEL:
        yield HeaderFault("no-architecture", "general.architecture is absent: no runtime can load it")
    if header.version < 3:
        yield HeaderFault("older-version", f"GGUF version {header.version}")
    yield from _runtime_faults(header)
    for field in header.fields:
        if field.type is ValueType.STRING and isinstance(field.value, bytes):
            yield HeaderFault("not-text", f"{field.key} is not UTF-8")
        if field.type is ValueType.BOOL and not isinstance(field.value, bool):
            yield HeaderFault("odd-truth-value", f"{field.key} is a truth value other than 0 and 1")
    if front.lock is not None:
        yield HeaderFault("chimera", f"it is a chimera, with the lock sha256:{front.lock}")


def _runtime_faults(header: Header) -> Iterator[HeaderFault]:
    """Yield what is kept exactly, but not read here, or not loaded by runtimes."""
    if header.is_big_endian:
        yield HeaderFault("big-endian", f"big-endian: {KEPT}; only runtimes on such machines load it")
    if header.text(ADAPTER_TYPE_KEY) == MERGED_TYPE:
        sentence = "only a recipe can merge it: it has magnitudes (DoRA) or whole tensors, and no runtime loads it"
        yield HeaderFault("only-recipes-merge", sentence)
    if header.field(INVOCATION_KEY) is not None:
        sentence = "an activated LoRA: runtimes use it only after its invocation tokens, and it cannot be merged"
        yield HeaderFault("activated-lora", sentence)
    foreign = sorted({tensor.dtype.id for tensor in header.tensors if not tensor.dtype.is_sized})
    if foreign:
        types = names_text([f"TYPE_{number}" for number in foreign])
        sentence = f"tensors of types that are unknown here ({types}): {KEPT}; llama.cpp does not load them"
        yield HeaderFault("foreign-types", sentence)
    long = [tensor.name for tensor in header.tensors if len(tensor.name) > LOADED_NAME_MAX_BYTES]
    if long and header.kind() == FileKind.MODEL:
        names = names_text(long)
        yield HeaderFault(
            "long-names", f"names of more than {LOADED_NAME_MAX_BYTES} bytes, which llama.cpp does not load: {names}"
        )


def _set_faults(headers: Sequence[Header]) -> Iterator[HeaderFault]:
    """Yield unusual properties of a model that only all of its files show; none if shards are missing."""
    first = headers[0]
    count = first.integer(SPLIT_COUNT_KEY) if is_shard(first) else 1
    places = places_of(headers)
    if count == len(headers) and first.kind(has_tensors=bool(places)) == FileKind.MODEL:
        tensors = [tensor for header in headers for tensor in header.tensors]
        needed = list(loading_faults(first, tensors, places))
        is_known = any(fault.code == NO_TENSORS for fault in needed)  # then the comparison of blocks adds nothing
        yield from (fault for fault in block_faults(first, places) if not is_known or fault.code != BLOCK_INCOMPLETE)
        yield from needed
        yield from vocabulary_faults(first, tensors)


def places_of(headers: Iterable[Header]) -> list[Place]:
    """Return the place of every tensor, in listing order."""
    return [place_of(tensor.name) for header in headers for tensor in header.tensors]


class CheckedModel(Entity):
    """The files of one model, and what was found."""

    files: Texts
    """Their paths; none of a registered model."""
    name: Text | None
    """Of a registered model, or of a model of another tool."""
    kind: Word
    architecture: Text | None
    loads: bool
    """Whether nothing was found that keeps llama.cpp from loading it, or from using it as what it is."""
    findings: Items[FileFinding]

    @property
    def label(self) -> str:
        """The name of the model, or of its files, for messages."""
        if self.name is not None:
            return self.name
        first, *others = self.files
        return first + (f" and {plural_text(len(others), 'more shard', 'more shards')}" if others else "")

    @property
    def verdict(self) -> str:
        """Whether it loads, as a clause."""
        refused = [item.code for item in self.findings if item.severity is REFUSE]
        if refused:
            return f"does not load: {names_text(list(dict.fromkeys(refused)))}"
        remarks = ", with remarks" if any(item.severity is WARN for item in self.findings) else ""
        sound = "loads beside its base" if self.kind == FileKind.ADAPTER else "loads"
        sound = f"no language model, but of the kind {self.kind}" if self.kind in KIND_NOTES else sound
        return f"{sound}{remarks}"


def check_model(
    source: ModelSource, *, reads_weights: bool = True, requires_sandbox: bool = False, progress: Progress = no_progress
) -> CheckedModel:
    """Check the files of a model without storing anything. No file is an error: what is wrong is a finding.

    With `reads_weights`, all bytes of its tensors are read, to find NaN and infinite values.
    """
    with ExitStack() as opened:
        check = _Check(opened, source)
        files = check.ordered([file for path in source.paths for file in check.opened(path)])
        whole = [(file.file, file.front.header) for file in files if file.is_whole]
        return checked_model(
            source,
            [(file.source, file.front, file.has_odd_padding) for file in files],
            lambda: count_nonfinite_weights(whole, progress) if reads_weights else {},
            check.findings,
            requires_sandbox=requires_sandbox,
        )


def checked_model(
    source: ModelSource,
    fronts: Sequence[tuple[ByteSource, Front, bool]],
    count_nonfinite: Callable[[], Mapping[str, int]],
    findings: Iterable[FileFinding] = (),
    *,
    requires_sandbox: bool = False,
) -> CheckedModel:
    """Return `findings`, what `fronts` of files show (`front_findings`), and NaN and infinite values by tensor."""
    found = list(findings)
    kind, architecture = FileKind.MODEL.value, None
    if fronts:
        header = fronts[0][1].header
        kind = header.kind(has_tensors=any(front.header.tensors for _, front, _ in fronts))
        architecture = header.architecture
        found += front_findings(fronts, requires_sandbox=requires_sandbox)
        found += map(finding, _architecture_faults(header, kind))
    found += nonfinite_findings(count_nonfinite())
    order = list(Severity)
    shown = sorted(dict.fromkeys(found), key=lambda item: order.index(item.severity))
    return CheckedModel(
        files=tuple(map(str, source.paths)),
        name=str(source.name) if source.is_registered or source.tool else None,
        kind=kind,
        architecture=architecture,
        loads=all(item.severity is not REFUSE for item in shown),
        findings=tuple(_for_file(item, source) for item in shown),
    )


def unreadable(path: str, error: OrganError) -> CheckedModel:
    """Return what is known of a path at which there is no model."""
    found = (finding(HeaderFault("unreadable", str(error))),)
    kind = FileKind.MODEL.value
    return CheckedModel(files=(path,), name=None, kind=kind, architecture=None, loads=False, findings=found)


def _for_file(item: FileFinding, source: ModelSource) -> FileFinding:
    """Return the finding with the names of the file and of its model in the command that mends it."""
    if source.is_registered:
        return FileFinding(item.severity, item.code, item.sentence, item.mend.replace("MODEL", str(source.name)))
    file, name = shlex.quote(str(source.paths[0])), source.name.name
    mend = re.sub(r"\bFILE\b", lambda _: file, item.mend)
    mend = mend.replace("FILENAME", shlex.quote(source.paths[0].name))
    if "MODEL" in mend:
        mend = f"organ ingest {file}, then {mend.replace('MODEL', name)}"
    return FileFinding(item.severity, item.code, item.sentence, mend)


def _architecture_faults(header: Header, kind: str) -> Iterator[HeaderFault]:
    """Yield a fault if no version of llama.cpp that is known here has the architecture of a language model."""
    architecture = header.architecture
    if kind != FileKind.MODEL or architecture is None:
        return
    from gguf.constants import MODEL_ARCH_NAMES  # slow to import

    if architecture not in MODEL_ARCH_NAMES.values():
        sentence = f"the architecture {architecture!r} is unknown to llama.cpp, by the names that this program has"
        yield HeaderFault("unknown-architecture", sentence)


@dataclass(frozen=True, slots=True)
class _CheckedFile:
    """A file whose header could be read: `source` has the part that belongs to the header."""

    file: OpenFile
    source: ByteSource
    front: Front
    is_whole: bool
    """Whether all of its tensors are there."""

    @property
    def has_odd_padding(self) -> bool:
        return self.is_whole and any(True for _ in odd_paddings(self.source, self.front.header))


@dataclass(frozen=True, slots=True)
class _Resized:
    """A file as if it were longer or shorter. Bytes that are not there are zeros."""

    source: ByteSource
    size_bytes: int

    @property
    def name(self) -> str:
        return self.source.name

    def read_at(self, offset: int, size: int) -> bytes:
        there = max(0, min(size, self.source.size_bytes - offset))
        return (self.source.read_at(offset, there) if there else b"").ljust(size, b"\0")


JOINED_MAX = 1000
"""The most files in one file that are listed."""
HEADER_SAMPLE_BYTES = 65_536
"""In so many bytes at its beginning, a shard has the keys of its set."""


class _Check:
    """Opens the files of a model, and collects findings."""

    def __init__(self, opened: ExitStack, source: ModelSource) -> None:
        self._opened, self._source = opened, source
        self.findings: list[FileFinding] = []
        self._is_joined = False

    def opened(self, path: Path) -> Iterator[_CheckedFile]:
        """Yield the files at `path` whose headers can be read; what cannot be read is a finding."""
        try:
            files = open_path(self._opened, path, self._source.base)
        except OrganError as error:
            code = "part-of-file" if parse_part_name(path.name) is not None else "unreadable"
            self.findings.append(finding(HeaderFault(code, str(error))))
            return
        yield from (checked for file in files if (checked := self._read(file)) is not None)

    def _read(self, file: OpenFile) -> _CheckedFile | None:
        try:
            return _CheckedFile(file, file, read_front(file), is_whole=True)
        except BadGguf as error:
            return self._damaged(file, error)
        except OrganError as error:
            self.findings.append(finding(HeaderFault("broken-header", str(error))))
            return None

    def _damaged(self, file: OpenFile, error: BadGguf) -> _CheckedFile | None:
        """Take the finding on a damaged file; return what can be read of it nevertheless."""
        mend = None
        if error.fault == "joined-files":
            self._is_joined, mend = True, _splitting(file)
        elif error.fault == "bytes-after-end":
            mend = f"head -c {error.end} FILE > NEW.gguf cuts them off"
        place = f"{error.field} at byte {error.offset:,}: "
        is_whole_file = error.fault in ("empty", "web-page", "not-gguf", "old-version", "unknown-version")
        self.findings.append(finding(HeaderFault(error.fault, ("" if is_whole_file else place) + error.reason), mend))
        if error.end is None:
            return None
        part = _Resized(file, error.end)
        try:
            return _CheckedFile(file, part, read_front(part), is_whole=error.fault != "truncated")
        except BadInput as other:
            self.findings.append(finding(HeaderFault("broken-header", str(other))))
            return None

    def ordered(self, files: list[_CheckedFile]) -> list[_CheckedFile]:
        """Return the files in the order of their set, and take the findings on it."""
        if not files or self._is_joined or (len(files) == 1 and not is_shard(files[0].front.header)):
            return files
        try:
            order = check_shards(self._source.name.name, [(file.file.path.name, file.front.header) for file in files])
        except BadSplit as error:
            reasons = [part.detail for part in error.errors]
            self.findings += [finding(HeaderFault("mixed-shards", reason)) for reason in reasons]
            return files
        if len(order.shards) < order.count:
            there = names_text([f"{number + 1:,}" for number, _ in order.shards])
            sentence = (
                f"a split model: {'shard' if len(order.shards) == 1 else 'shards'} {there} of {order.count:,} only"
            )
            self.findings.append(finding(HeaderFault("missing-shards", sentence)))
        return [files[index] for _, index in order.shards]


def _splitting(file: OpenFile) -> str:
    """Return the commands that split a file of several GGUF files into these."""
    begins, name = [0], file.path.name.removesuffix(".gguf")
    while len(begins) < JOINED_MAX:
        part = _Part(file, begins[-1])
        try:
            read_front(part)
            break
        except BadGguf as error:
            if error.fault != "joined-files" or error.end is None:
                break
            begins.append(begins[-1] + error.end)
        except BadInput:
            break
    commands = []
    first = _Part(file, 0)
    is_set = b"split.count" in first.read_at(0, min(first.size_bytes, HEADER_SAMPLE_BYTES))
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], file.size_bytes], strict=True), start=1):
        shard = f"{name}-{number:05d}-of-{len(begins):05d}.gguf"
        target = shlex.quote(shard if is_set else f"{name}-{number}.gguf")
        commands.append(f"tail -c +{begin + 1} FILE | head -c {end - begin} > {target}")
    return f"split it into its files: {'; '.join(commands)}"


@dataclass(frozen=True, slots=True)
class _Part:
    """A file from a byte on."""

    source: ByteSource
    begin: int

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def size_bytes(self) -> int:
        return self.source.size_bytes - self.begin

    def read_at(self, offset: int, size: int) -> bytes:
        return self.source.read_at(self.begin + offset, size)
