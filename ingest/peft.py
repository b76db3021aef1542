"""PEFT folders: LoRA adapters as the library `peft` saves them, read as adapters in GGUF without writing a file.

And the other direction: `export_adapter` writes the folder of an adapter in GGUF, which gives the same factors again.

A folder has `adapter_config.json` and `adapter_model.safetensors`; other files are ignored. The result depends only on
these two files and on the facts about the base (`AdaptedBase`), so the same folder always gives the same bytes. These
facts come from the `config.json` of the base, from the header of a GGUF file, or from a registered model.

PEFT computes W + s * B @ A, where s is alpha / r, or alpha / sqrt(r) with `use_rslora`. llama.cpp computes s from one
alpha for all tensors and the rank of each tensor. So the alpha is stored that gives most tensors their s; a tensor with
another s has the quotient multiplied into B, in float32.

In llama models, the rows of the matrices for queries and keys are in another order in GGUF files, and so are the rows
of their B: the first and the second half of each head alternate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from organs.ingest.safetensors import (
    FLOATS,
    MODEL_CONFIG_FILE,
    SafetensorsFile,
    WeightEntry,
    encode_entries,
    read_json,
)
from organs.registry.amounts import names_text
from organs.registry.anatomy import LORA_SUFFIXES, OUTPUT_MATRIX, adapted_tensor, place_of
from organs.registry.digest import Digest
from organs.registry.entities.base import prepared
from organs.registry.errors import BadAdapter, BadInput, BadSource, NotFound, UnknownBase
from organs.registry.gguf import (
    Header,
    KeyValue,
    TensorInfo,
    TensorSpec,
    ValueType,
    dtype_by_name,
    encode_header,
    padded,
    read_header,
)
from organs.registry.gguf.types import ALIGNMENT_DEFAULT
from organs.registry.input_files import BytesInMemory, ComposedFile, FileSource, OpenFile, Section
from organs.registry.names import name_from_text
from organs.registry.store.files import Files

if TYPE_CHECKING:
    from organs.registry.interface import Registry

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PICKLE_FILE = "adapter_model.bin"
PERMUTED_ARCHITECTURE = "llama"
RANK_MAX = 8192
BLOCKS_MAX = 1024
HEAD_MAX_BYTES = 64 * 1024 * 1024
"""Limit of the rows of one head in B, which are read together."""
NAME_MAX_LENGTH = 512
ALPHA_LEAST, ALPHA_MOST = 1e-6, 1e9
SAME_SCALE = 1e-9
"""Relative difference of two scales that are equal except for rounding."""

BLOCK_MODULES = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
"""Modules of a block that can have an adapter, in the order of the file."""
EMBEDDING_MODULE, OUTPUT_MODULE = "embed_tokens", "lm_head"

REFUSED_MEMBERS = {
    "modules_to_save": "it also has whole modules (modules_to_save), which an adapter in GGUF cannot have",
    "use_dora": "it is a DoRA (use_dora), which changes the length of the columns too; only LoRA is supported",
    "lora_bias": "it has biases (lora_bias), which an adapter in GGUF cannot have",
    "trainable_token_indices": "it has retrained tokens (trainable_token_indices), which GGUF adapters cannot have",
    "target_parameters": "it changes parameters outside of linear layers (target_parameters)",
    "layer_replication": "it repeats layers of its base (layer_replication)",
    "alora_invocation_tokens": "it is an activated LoRA (alora_invocation_tokens): it works only after these tokens",
    "arrow_config": "it selects experts (arrow_config)",
    "kasa_config": "it changes the weights of its base (kasa_config)",
    "monteclora_config": "it has a random part (monteclora_config)",
}
"""Members of the configuration that are refused, unless they are empty or false, with the reason."""
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of `init_lora_weights` that change the weights of the base before the training."""

_TENSOR = re.compile(
    r"(?:base_model\.model\.)?(?P<module>[\w.]+?)\.lora_(?P<embedding>embedding_)?(?P<half>[AB])"
    r"(?:\.(?P<adapter>(?!weight(?:\.|\Z))[\w-]+))?(?:\.weight)?",
    re.ASCII,
)
_FROZEN = re.compile(rf"(?:[\w]+\.)*(?P<module>{EMBEDDING_MODULE}|{OUTPUT_MODULE})\.base_layer\.weight", re.ASCII)
_BLOCK = re.compile(r"layers\.(?P<block>[0-9]{1,4})\.(?P<module>[a-z_.]+)")
_PLAIN_KEY = re.compile(r"\^?(?P<module>[\w.]+)\$?", re.ASCII)


def is_adapter_folder(path: Path) -> bool:
    """Return whether the folder `path` has an adapter as PEFT saves it."""
    return (path / CONFIG_FILE).is_file()


def adapter_folder(path: Path) -> Path | None:
    """Return the PEFT folder of `path`, which is the folder or one of its two files; None if it is something else."""
    folder = path.parent if path.name in (CONFIG_FILE, WEIGHTS_FILE, PICKLE_FILE) else path
    return folder if is_adapter_folder(folder) else None


def adapter_size_bytes(folder: Path) -> int:
    """Return the bytes to read in the PEFT folder, for progress; 0 if its weights cannot be read."""
    path = folder / WEIGHTS_FILE
    return path.stat().st_size if path.is_file() else 0


class AdapterConfig(Struct, frozen=True):
    """The members of an `adapter_config.json` that the conversion uses."""

    peft_type: str = "LORA"
    base_model_name_or_path: str | None = None
    r: Annotated[int, Meta(ge=1, le=RANK_MAX)] = 8
    lora_alpha: float = 8.0
    use_rslora: bool = False
    alpha_pattern: dict[str, float] | None = None
    init_lora_weights: bool | str | None = True

    @property
    def base_text(self) -> str:
        """The base as the adapter names it; empty if it names none."""
        return self.base_model_name_or_path or ""

    def scale(self, module: str, rank: int) -> float:
        """Return the factor of B @ A for `module`."""
        alpha = self.lora_alpha
        for key, value in (self.alpha_pattern or {}).items():
            plain = _PLAIN_KEY.fullmatch(key)
            if plain is not None and f".{module}".endswith(f".{plain['module']}"):
                alpha = value
                break
        divisor = math.sqrt(rank) if self.use_rslora else float(rank)
        return alpha / divisor


def read_config(folder: Path) -> AdapterConfig:
    """Return the configuration of the adapter in `folder`.

    Raises BadAdapter, with all reasons, for one that cannot be converted, BadSource if it cannot be read.
    """
    try:
        values = read_json(folder / CONFIG_FILE)
        config = msgspec.convert(values, prepared(AdapterConfig))
    except ValueError as error:
        raise BadAdapter(str(folder), [f"{CONFIG_FILE}: {error}"]) from error
    if reasons := list(_config_reasons(values, config)):
        raise BadAdapter(str(folder), reasons)
    return config


def _config_reasons(values: Mapping[str, object], config: AdapterConfig) -> Iterator[str]:
    if config.peft_type != "LORA":
        yield f"its peft_type is {config.peft_type[:40]!r}; only LORA is supported"
    yield from (reason for key, reason in REFUSED_MEMBERS.items() if values.get(key))
    known = {"use_rslora", *REFUSED_MEMBERS}
    unknown = [key for key, value in values.items() if key.startswith("use_") and value and key not in known]
    if unknown:
        yield f"it uses {names_text(unknown)}, which this program does not know"
    start = str(config.init_lora_weights)[:40]
    if start.lower().startswith(CHANGED_BASE):
        yield (
            f"its training changed the weights of the base first (init_lora_weights is {start!r}); save it with "
            "path_initial_model_for_weight_conversion, which makes a LoRA for the unchanged base"
        )
    if len(config.base_text) > NAME_MAX_LENGTH or not config.base_text.isprintable():
        yield "its base_model_name_or_path is too long, or has characters that cannot be printed"
    if not ALPHA_LEAST <= abs(config.lora_alpha) <= ALPHA_MOST:
        yield f"its lora_alpha is {config.lora_alpha}"
    patterns = config.alpha_pattern or {}
    if odd := [key for key in patterns if not _PLAIN_KEY.fullmatch(key)]:
        yield f"its alpha_pattern has regular expressions, and only names of modules are supported: {names_text(odd)}"
    if any(abs(value) > ALPHA_MOST for value in patterns.values()):
        yield "its alpha_pattern has a value that is too large"


class AdapterFile(ComposedFile):
    """The adapter of a PEFT folder as a GGUF file."""

    def __init__(self, folder: Path, size_bytes: int, sections: Sequence[Section], remarks: Sequence[str]) -> None:
        super().__init__(folder / f"{folder.resolve().name or 'adapter'}.gguf", size_bytes, sections)
        self.name = str(folder)
        self._remarks = tuple(remarks)

    def notes(self, sha256: Digest, organs: Mapping[int, Digest]) -> Iterable[str]:
        """Return what the conversion did."""
        return self._remarks


def open_adapter(opened: ExitStack, folder: Path, base: AdaptedBase | None = None) -> AdapterFile:
    """Return the adapter in the PEFT folder as a GGUF file, which can be read until `opened` is closed.

    Without `base`, its facts are searched in the files that the folder has or names. Raises BadAdapter with all
    reasons, UnknownBase if the facts are not found, BadSource if a file cannot be read.
    """
    config = read_config(folder)
    path = folder / WEIGHTS_FILE
    if not path.exists() and (folder / PICKLE_FILE).exists():
        raise BadSource(
            f"{folder / PICKLE_FILE}: a pickle, which can run any program, is not read; save the adapter as "
            "safetensors: model.save_pretrained(FOLDER, safe_serialization=True)"
        )
    try:
        weights = opened.enter_context(SafetensorsFile(path))
    except ValueError as error:
        raise BadAdapter(str(folder), [f"{WEIGHTS_FILE}: {error}"]) from error
    base = base or local_base(config.base_text, folder)
    if base is None:
        named = f"its base is {config.base_text[:200]!r}" if config.base_text else "it names no base"
        raise UnknownBase(
            f"{folder}: {named}, and no config.json of it is on this machine; "
            "name the base: --base MODEL, a registered model, a GGUF file or a folder with config.json"
        )
    if base.architecture not in ARCHITECTURES.values():
        supported = ", ".join(sorted(set(ARCHITECTURES.values())))
        reason = f"its base {base.label} has the architecture {base.architecture[:40]!r}; supported are {supported}"
        raise BadAdapter(str(folder), [reason])
    if base.blocks > BLOCKS_MAX:
        raise BadAdapter(str(folder), [f"its base {base.label} states {base.blocks} blocks; at most {BLOCKS_MAX}"])
    pairs, reasons = _pairs(weights.entries.values(), base)
    reasons += [misfit for pair in pairs if (misfit := pair.reason(base)) is not None]
    if reasons or not pairs:
        raise BadAdapter(str(folder), reasons or ["it has no weights of a LoRA"])
    return _compose(folder, weights, config, base, pairs)


@dataclass(slots=True)
class _Factors:
    """The two factors for one module. `position` orders the modules of a file."""

    module: str
    tensor: str
    position: tuple[int, int]
    is_embedding: bool
    halves: dict[str, WeightEntry] = field(default_factory=dict)

    @property
    def slot(self) -> str:
        """The last part of the module's name."""
        return self.module.rpartition(".")[2]

    @property
    def rank(self) -> int:
        return self.halves["A"].shape[0]

    def heads(self, base: AdaptedBase) -> int:
        """Return the number of heads whose rows are permuted; 0 if the rows stay as they are."""
        if base.architecture != PERMUTED_ARCHITECTURE:
            return 0
        counts = {"q_proj": base.heads, "k_proj": base.kv_heads}
        return counts.get(self.slot, 0) or 0

    def reason(self, base: AdaptedBase) -> str | None:
        """Return why these factors do not fit, or None."""
        if len(self.halves) != 2:
            return f"{self.module} has only one of two factors"
        first, second = self.halves["A"], self.halves["B"]
        odd = {entry.dtype for entry in (first, second)} - FLOATS
        if odd:
            return f"{self.module} has values of the type {odd.pop()}; supported are {names_text(sorted(FLOATS))}"
        if len(first.shape) != 2 or len(second.shape) != 2 or not 1 <= first.shape[0] == second.shape[1] <= RANK_MAX:
            return f"{self.module} has factors of the shapes {first.shape} and {second.shape}"
        shape = base.shapes.get(self.tensor) or base.shapes.get(self.slot)
        own = second.shape[0], first.shape[1]
        if shape is not None and tuple(shape) != (own if self.is_embedding else own[::-1]):
            return f"{self.module} is for a matrix of {own[0]} × {own[1]}, but its base {base.label} has {shape}"
        return self._head_reason(base)

    def _head_reason(self, base: AdaptedBase) -> str | None:
        if base.is_tied and self.slot in (EMBEDDING_MODULE, OUTPUT_MODULE):
            return f"it changes {self.slot}, but its base {base.label} uses one matrix for embeddings and output"
        if base.architecture != PERMUTED_ARCHITECTURE or self.slot not in ("q_proj", "k_proj"):
            return None
        heads, (rows, rank) = self.heads(base), self.halves["B"].shape
        if not heads:
            return f"the number of heads for {self.module} is not known from {base.label}"
        if rows % (2 * heads):
            return f"the {rows} rows of {self.module} are not {heads} heads of an even width"
        if rows // heads * rank * 4 > HEAD_MAX_BYTES:
            return f"{self.module} has heads of {rows // heads} rows, which is too much"
        return None


def _pairs(entries: Iterable[WeightEntry], base: AdaptedBase) -> tuple[list[_Factors], list[str]]:
    """Return the factors of `entries` by module, in the order of a file, and reasons against other tensors."""
    pairs: dict[str, _Factors] = {}
    names: set[str] = set()
    unknown: list[str] = []
    for entry in entries:
        match = _TENSOR.fullmatch(entry.name) if len(entry.name) <= NAME_MAX_LENGTH else None
        pair = None if match is None else _pair_of(match["module"], base)
        if match is None or pair is None or pair.is_embedding != bool(match["embedding"]):
            if not _is_frozen_copy(entry, base):
                unknown.append(entry.name[:100])
            continue
        names.add(match["adapter"] or "")
        halves = pairs.setdefault(pair.tensor, pair).halves
        if match["half"] in halves:
            unknown.append(entry.name)
        halves[match["half"]] = entry
    reasons = []
    if unknown:
        modules = (*BLOCK_MODULES, EMBEDDING_MODULE, OUTPUT_MODULE)
        supported = ", ".join(module.rpartition(".")[2] for module in modules)
        reasons.append(
            f"{names_text(unknown)} cannot be converted: only factors of {supported} in the {base.blocks} blocks of "
            f"its base can, each once"
        )
    if len(names) > 1:
        reasons.append(f"it has several adapters: {names_text(sorted(name or 'without a name' for name in names))}")
    return sorted(pairs.values(), key=lambda pair: pair.position), reasons


def _pair_of(module: str, base: AdaptedBase) -> _Factors | None:
    """Return the empty pair for a module of a transformers model; None if it cannot have an adapter."""
    parts = module.split(".")
    while parts[0] in ("model", "language_model") and len(parts) > 1:
        parts.pop(0)
    inner = ".".join(parts)
    match = _BLOCK.fullmatch(inner)
    if match is not None and match["module"] in BLOCK_MODULES:
        position = int(match["block"]), BLOCK_MODULES.index(match["module"])
    elif inner in (EMBEDDING_MODULE, OUTPUT_MODULE):
        position = (-1 if inner == EMBEDDING_MODULE else base.blocks), 0
    else:
        return None
    name = _tensor_names(base.architecture, base.blocks).get(inner if inner == OUTPUT_MODULE else f"model.{inner}")
    return None if name is None else _Factors(module, f"{name}.weight", position, inner == EMBEDDING_MODULE)


@lru_cache(maxsize=4)
def _tensor_names(architecture: str, blocks: int) -> Mapping[str, str]:
    """Return the names of tensors in GGUF files, without `.weight`, by the names of modules in transformers."""
    from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map

    (number,) = (number for number, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(MODEL_ARCH(number), blocks)
    blocks_modules = (f"model.layers.{block}.{module}" for block in range(blocks) for module in BLOCK_MODULES)
    modules = (f"model.{EMBEDDING_MODULE}", OUTPUT_MODULE, *blocks_modules)
    return {module: name for module in modules if (name := names.get_name(module)) is not None}


def _is_frozen_copy(entry: WeightEntry, base: AdaptedBase) -> bool:
    """Return whether a tensor is the unchanged matrix of the base, which PEFT saves beside adapters of embeddings."""
    match = _FROZEN.fullmatch(entry.name) if len(entry.name) <= NAME_MAX_LENGTH else None
    pair = None if match is None else _pair_of(match["module"], base)
    if pair is None:
        return False
    shape = base.shapes.get(pair.tensor) or base.shapes.get(pair.slot)
    return shape is None or tuple(reversed(shape)) == entry.shape


def _compose(
    folder: Path, weights: SafetensorsFile, config: AdapterConfig, base: AdaptedBase, pairs: Sequence[_Factors]
) -> AdapterFile:
    scales = {pair.tensor: config.scale(pair.module, pair.rank) for pair in pairs}
    alpha = config.lora_alpha * (math.sqrt(config.r) if config.use_rslora else 1.0)
    converted: list[ConvertedTensor] = []
    folded = 0
    for pair in pairs:
        factor = scales[pair.tensor] * pair.rank / alpha
        factor = 1.0 if abs(factor - 1.0) <= SAME_SCALE else factor
        folded += factor != 1.0
        names = [pair.tensor + suffix for suffix in LORA_SUFFIXES]
        converted += [
            ConvertedTensor(weights, pair.halves["A"], names[0], is_transposed=pair.is_embedding),
            ConvertedTensor(weights, pair.halves["B"], names[1], heads=pair.heads(base), factor=factor),
        ]
    specs = [tensor.spec for tensor in converted]
    header = encode_header(_metadata(config, base, alpha, specs), specs)
    sections = [Section(0, len(header), BytesInMemory(header))]
    offset = len(header)
    for tensor, spec in zip(converted, specs, strict=True):
        sections.append(Section(offset, spec.size_bytes, tensor))
        offset += padded(spec.size_bytes, ALIGNMENT_DEFAULT)
    ranks = names_text([str(rank) for rank in sorted({pair.rank for pair in pairs})])
    remarks = [f"converted from a PEFT folder: {len(pairs)} modules, rank {ranks}, alpha {alpha:g}"]
    if folded:
        remarks.append(f"{folded} modules have another scale than the others; it is multiplied into their factors")
    return AdapterFile(folder, offset, sections, remarks)


def _metadata(
    config: AdapterConfig, base: AdaptedBase, alpha: float, tensors: Sequence[TensorSpec]
) -> Iterator[KeyValue]:
    yield KeyValue("general.architecture", ValueType.STRING, base.architecture)
    yield KeyValue("general.type", ValueType.STRING, "adapter")
    parent = base.parent
    if not parent.name:  # else the name in the hub, or the last part of a path
        hub_id = None if Path(config.base_text).is_dir() else parent_of_hub_id(config.base_text)
        parent = hub_id or ParentName(Path(config.base_text).name)
    texts = {
        key: getattr(parent, key) for key in ("name", "version", "organization", "repo_url") if getattr(parent, key)
    }
    if texts:
        yield KeyValue("general.base_model.count", ValueType.UINT32, 1)
        for key, text in texts.items():
            yield KeyValue(f"general.base_model.0.{key}", ValueType.STRING, text)
    has_halves = any(tensor.dtype.name == "F16" for tensor in tensors)
    yield KeyValue("general.file_type", ValueType.UINT32, int(has_halves))
    yield KeyValue("adapter.type", ValueType.STRING, "lora")
    yield KeyValue("adapter.lora.alpha", ValueType.FLOAT32, alpha)


@dataclass(frozen=True, slots=True, eq=False)
class ConvertedTensor:
    """A factor as it is in a GGUF file, converted while it is read (`registry.input_files.Bytes`)."""

    weights: SafetensorsFile
    entry: WeightEntry
    name: str
    heads: int = 0
    """Number of heads whose rows alternate between their halves; 0 for none."""
    is_transposed: bool = False
    factor: float = 1.0

    @property
    def spec(self) -> TensorSpec:
        """The tensor of the GGUF file: float16 if the values are stored so and not multiplied, else float32."""
        dtype = "F16" if self.entry.dtype == "F16" and self.factor == 1.0 else "F32"
        shape = self.entry.shape if self.is_transposed else self.entry.shape[::-1]
        return TensorSpec(self.name, shape, dtype_by_name(dtype))

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource if the file became shorter."""
        stored: np.dtype[Any] = np.dtype("<f2" if self.spec.dtype.name == "F16" else "<f4")
        row_bytes = self.spec.shape[0] * stored.itemsize
        first, last = offset // row_bytes, -(-(offset + len(buffer)) // row_bytes)
        values = self._rows(first, last)
        if self.factor != 1.0:
            values = values.astype(np.float64) * self.factor
        data = np.ascontiguousarray(values, stored).tobytes()
        begin = offset - first * row_bytes
        buffer[:] = data[begin : begin + len(buffer)]

    def check_unchanged(self) -> None:
        """Raise BadSource if the file was written or replaced since it was opened."""
        self.weights.check_unchanged()

    def _rows(self, first: int, last: int) -> NDArray[np.generic]:
        """Return the rows from `first` to before `last` of the converted matrix."""
        rows, columns = self.entry.shape
        if self.is_transposed:
            spans = ((row * columns + first, row * columns + last) for row in range(rows))
            return np.stack([self.weights.read(self.entry, begin, end) for begin, end in spans], axis=1)
        if not self.heads:
            return self.weights.read(self.entry, first * columns, last * columns).reshape(-1, columns)
        width = rows // self.heads
        begin, end = first // width, -(-last // width)
        heads = self.weights.read(self.entry, begin * width * columns, end * width * columns)
        alternated = heads.reshape(end - begin, 2, width // 2, columns).swapaxes(1, 2).reshape(-1, columns)
        return alternated[first - begin * width : last - begin * width]


def export_adapter(adapter: OpenFile, base: AdaptedBase, target: Path, *, replace: bool = False) -> None:
    """Write the LoRA adapter in a GGUF file as the PEFT folder `target`, completely or not at all.

    `replace` allows to replace another PEFT folder. Raises BadInput with all reasons for an adapter of `base` that PEFT
    has no names for, BadSource if something is in the way, DiskFull, StoreUnwritable.
    """
    from organs.ingest.directory.extract import staged  # which only writers need

    check_exportable(base)
    header = read_header(adapter)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    names = _module_names(base)
    pairs: list[_GgufPair] = []
    reasons = []
    for target_name in dict.fromkeys(filter(None, map(adapted_tensor, tensors))):
        module = names.get(target_name)
        pair = None if module is None else _pair_of(module, base)
        a, b = (tensors.get(target_name + suffix) for suffix in LORA_SUFFIXES)
        if pair is None or a is None or b is None or {a.dtype.name, b.dtype.name} - FLOATS:
            reasons.append(target_name)
            continue
        pairs.append((pair, a, b))
        shapes = a.shape if pair.is_embedding else a.shape[::-1], b.shape[::-1]
        pair.halves = {
            half: WeightEntry("", tensor.dtype.name, shape, 0)
            for half, tensor, shape in zip("AB", (a, b), shapes, strict=True)
        }
        if reason := pair.reason(base):
            reasons.append(reason)
    if reasons:
        raise BadInput(
            f"{adapter.name}: PEFT has no names for {names_text(reasons)}: write a GGUF file", reasons=reasons
        )
    alpha = header.field("adapter.lora.alpha")
    config = _config_of(pairs, base, float(alpha.value) if alpha and isinstance(alpha.value, int | float) else 0.0)
    entries = []
    for pair, _, _ in pairs:
        kind = "lora_embedding_" if pair.is_embedding else "lora_"
        end = "" if pair.is_embedding else ".weight"
        entries += [
            (f"base_model.model.{pair.module}.{kind}{half}{end}", entry.dtype, entry.shape)
            for half, entry in pair.halves.items()
        ]
    head = encode_entries(entries)
    size_bytes = len(head) + sum(tensor.size_bytes for _, a, b in pairs for tensor in (a, b))
    files = Files()
    with staged(target, size_bytes, replace=replace, files=files, is_replaceable=is_adapter_folder) as staging:
        with staging.new_file(CONFIG_FILE) as file:
            file.write(msgspec.json.format(msgspec.json.encode(config), indent=2))
        with staging.new_file(WEIGHTS_FILE) as file:
            file.write(head)
            for pair, a, b in pairs:
                for tensor, half in ((a, "A"), (b, "B")):
                    data = adapter.read_at(header.data_offset + tensor.offset, tensor.size_bytes)
                    file.write(_module_rows(data, tensor, pair, half, base))


def check_exportable(base: AdaptedBase) -> None:
    """Raise BadInput if the modules of the base have no names that PEFT knows."""
    if base.architecture not in ARCHITECTURES.values():
        known = ", ".join(sorted(set(ARCHITECTURES.values())))
        raise BadInput(
            f"{base.label} has the architecture {base.architecture[:40]!r}, and PEFT folders are written for {known}: "
            "give a name that ends in .gguf"
        )


_GgufPair = tuple[_Factors, TensorInfo, TensorInfo]


def _module_names(base: AdaptedBase) -> dict[str, str]:
    """Return the names of modules by those of tensors in GGUF files; none for architectures without them."""
    if base.blocks > BLOCKS_MAX:
        return {}
    return {f"{name}.weight": module for module, name in _tensor_names(base.architecture, base.blocks).items()}


def _module_rows(data: bytes, tensor: TensorInfo, pair: _Factors, half: str, base: AdaptedBase) -> bytes:
    """Return a factor as PEFT stores it: that of an embedding transposed, the halves of heads one after the other."""
    if pair.is_embedding and half == "A":
        values = np.frombuffer(data, f"u{tensor.dtype.block_bytes}").reshape(tensor.shape[1], tensor.shape[0])
        return values.T.tobytes()
    heads = pair.heads(base) if half == "B" else 0
    if not heads:
        return data
    rows = np.frombuffer(data, np.uint8).reshape(heads, tensor.shape[1] // heads // 2, 2, -1)
    return rows.swapaxes(1, 2).tobytes()


def _config_of(pairs: Sequence[_GgufPair], base: AdaptedBase, alpha: float) -> dict[str, object]:
    """Return the configuration that gives each module the scale that it has in the GGUF file."""
    ranks = {pair.module: pair.rank for pair, _, _ in pairs}
    largest = max(ranks.values())
    slots = {pair.slot for pair, _, _ in pairs}
    is_everywhere = ranks.keys() == {name for name in _module_names(base).values() if name.rpartition(".")[2] in slots}
    parent = base.parent
    named = parent.repo_url.removeprefix(f"{HUB_URL}/") if parent.repo_url.startswith(f"{HUB_URL}/") else ""
    named = named or "/".join(part for part in (parent.organization, parent.name) if part)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": named or None,
        "inference_mode": True,
        "r": largest,
        "lora_alpha": alpha or largest,
        "rank_pattern": {module: rank for module, rank in ranks.items() if rank != largest},
        "alpha_pattern": {} if alpha else {module: rank for module, rank in ranks.items() if rank != largest},
        "target_modules": sorted(slots if is_everywhere else ranks),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
    }


HUB_URL = "https://huggingface.co"
HUB_CACHE_FOLDER = "models--{}--{}"

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
}
"""Architectures of GGUF files by the `model_type` of a configuration."""
TIED_TYPES = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"})
"""Types of models whose output matrix is the token embedding, unless the configuration says otherwise."""
_HUB_ID = re.compile(r"(?P<owner>[A-Za-z0-9][\w.-]{0,95})/(?P<name>[A-Za-z0-9][\w.-]{0,95})", re.ASCII)

_Size = Annotated[int, Meta(ge=1, le=1 << 31)]


@dataclass(frozen=True, slots=True)
class ParentName:
    """The name of a base, as `general.base_model.0.*` states it; missing values are empty. Without a name, the adapter
    itself names its base.
    """

    name: str = ""
    organization: str = ""
    version: str = ""
    repo_url: str = ""


@dataclass(frozen=True, slots=True)
class AdaptedBase:
    """The facts about the base of an adapter."""

    label: str
    """Where the facts are from, for messages."""
    architecture: str
    """The architecture in GGUF files; if it is not one of `ARCHITECTURES`, adapters are refused."""
    blocks: int
    heads: int | None
    """The number of heads of the queries; None if it is unknown, or not the same in all blocks."""
    kv_heads: int | None
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes (values in, values out) by the name of a tensor, or by the last part of the name of a module."""
    is_tied: bool
    """Whether the output matrix is the token embedding."""
    parent: ParentName


def parent_of_hub_id(text: str) -> ParentName | None:
    """Return the name of the repository `OWNER/NAME` of the Hugging Face hub; None for other texts."""
    match = _HUB_ID.fullmatch(text)
    return match and ParentName(match["name"], match["owner"], "", f"{HUB_URL}/{text}")


def chosen_base(registry: Registry, text: str) -> AdaptedBase:
    """Return the base that a person names: a path on this machine (`base_in`), else the name of a registered model."""
    path = Path(text)
    return base_in(path) if path.exists() else registered_base(registry, text)


def base_in(path: Path) -> AdaptedBase:
    """Return the base in `path`: a GGUF file, or a folder with a `config.json`.

    Raises BadSource, BadGguf, UnknownBase for a configuration without the needed facts.
    """
    if path.is_dir():
        return _base_of_config(path / MODEL_CONFIG_FILE)
    with FileSource(path) as file:
        header = read_header(file)
    return base_of_header(header, {tensor.name: tensor.shape for tensor in header.tensors}, str(path))


def base_of_header(header: Header, shapes: Mapping[str, tuple[int, ...]], label: str) -> AdaptedBase:
    """Return the base with this header and the shapes of its tensors; raises UnknownBase for another kind."""
    values = {field.key: str(field.value) for field in header.fields if isinstance(field.value, str | int)}
    return _base_of_metadata(values, shapes, label)


def registered_base(registry: Registry, name: str) -> AdaptedBase:
    """Return the base that is registered as `name`; raises as `Registry.model` does, UnknownBase for another kind."""
    model = registry.model(name)
    values = {entry.key: entry.value for entry in model.metadata}
    base = _base_of_metadata(values, {organ.name: tuple(organ.shape) for organ in model.organs}, model.name)
    own_name = model.name.partition("@")[0].rpartition("/")[2]
    return replace(base, parent=replace(base.parent, name=base.parent.name or own_name))


def local_base(stated: str, folder: Path, hub_cache: Path | None = None) -> AdaptedBase | None:
    """Return the base of the adapter in `folder`, from files on this machine; None if they have no usable facts.

    `stated` is the base that the adapter names: a folder, or a repository of the Hugging Face hub, which may be in the
    `hub_cache`. A `config.json` in the folder of the adapter comes first.
    """
    for path in _config_folders(stated, folder, hub_cache):
        with suppress(BadSource, UnknownBase):
            return _base_of_config(path / MODEL_CONFIG_FILE)
    return None


def base_by_name(registry: Registry, stated: str) -> AdaptedBase | None:
    """Return the registered model with the name of the base `stated`, a folder or `OWNER/NAME`; None without one."""
    hub_id, name = _HUB_ID.fullmatch(stated), name_from_text(Path(stated).name or "model")
    names = [f"local/{name}"] if hub_id is None else [stated, f"local/{name}"]
    for full_name in names:
        with suppress(NotFound, UnknownBase):
            base = registered_base(registry, full_name)
            return base if hub_id is None else replace(base, parent=ParentName())  # the adapter names it better
    return None


def _config_folders(stated: str, folder: Path, hub_cache: Path | None) -> Iterator[Path]:
    yield folder
    if not stated or "\0" in stated:
        return
    path = Path(stated)
    with suppress(OSError):
        if path.is_dir():
            yield path
            return
    hub_id = _HUB_ID.fullmatch(stated)
    if hub_id is not None and hub_cache is not None:
        repository = hub_cache / HUB_CACHE_FOLDER.format(hub_id["owner"], hub_id["name"])
        yield from sorted(repository.glob("snapshots/*"))


class _ModelConfig(Struct, frozen=True):
    """The members of a `config.json` that adapters need."""

    model_type: str
    hidden_size: _Size
    num_attention_heads: _Size
    num_hidden_layers: _Size
    intermediate_size: _Size
    vocab_size: _Size | None = None
    num_key_value_heads: _Size | None = None
    head_dim: _Size | None = None
    tie_word_embeddings: bool | None = None


class _StatedType(Struct, frozen=True):
    """The type of a configuration, with its parts."""

    model_type: str
    text_config: dict[str, object] | None = None
    tie_word_embeddings: bool | None = None


def _base_of_config(path: Path) -> AdaptedBase:
    try:
        values = read_json(path)
        described = msgspec.convert(values, prepared(_StatedType))
        if described.model_type not in ARCHITECTURES:
            return AdaptedBase(str(path), described.model_type, 0, None, None, {}, False, ParentName())
        config = msgspec.convert(described.text_config or values, prepared(_ModelConfig))
    except ValueError as error:
        raise UnknownBase(f"{path}: {error}") from error
    tied = config.tie_word_embeddings if described.tie_word_embeddings is None else described.tie_word_embeddings
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
    width, inner = config.hidden_size, config.intermediate_size
    head_width = config.head_dim or width // heads
    shapes = {
        "q_proj": (width, heads * head_width),
        "o_proj": (heads * head_width, width),
        "down_proj": (inner, width),
        **dict.fromkeys(("k_proj", "v_proj"), (width, kv_heads * head_width)),
        **dict.fromkeys(("gate_proj", "up_proj"), (width, inner)),
    }
    if config.vocab_size is not None:
        shapes |= dict.fromkeys(("embed_tokens", "lm_head"), (width, config.vocab_size))
    is_tied = config.model_type in TIED_TYPES if tied is None else tied
    architecture = ARCHITECTURES[described.model_type]
    return AdaptedBase(
        str(path), architecture, config.num_hidden_layers, heads, kv_heads, shapes, is_tied, ParentName()
    )


def _base_of_metadata(values: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], label: str) -> AdaptedBase:
    """Return the base with these `values` of its header, as texts by key, and the shapes of its tensors."""
    architecture = values.get("general.architecture", "")
    if values.get("general.type", "model") != "model":
        raise UnknownBase(f"{label} is not a model: its general.type is {values['general.type'][:40]!r}")

    def count(key: str) -> int | None:
        text = values.get(f"{architecture}.{key}", "")
        return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) else None

    heads, kv_key = count("attention.head_count"), "attention.head_count_kv"
    kv_heads = count(kv_key) if f"{architecture}.{kv_key}" in values else heads
    names = {key: values.get(f"general.{key}", "") for key in ("name", "organization", "version", "repo_url")}
    return AdaptedBase(
        label,
        architecture,
        count("block_count") or 0,
        heads,
        kv_heads,
        shapes,
        all(place_of(name) != OUTPUT_MATRIX for name in shapes),
        ParentName(**names),
    )
