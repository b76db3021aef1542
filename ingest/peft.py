"""Adapter folders: LoRA adapters as `peft` and `mlx-lm` save them, read as adapters in GGUF without writing a file.

A folder has `adapter_config.json` and `adapter_model.safetensors` (PEFT) or `adapters.safetensors` (MLX); other files
are ignored. The result depends only on these two files and on the facts about the base (`AdaptedBase`), so the same
folder always gives the same bytes. These facts come from the `config.json` of the base, from the header of a GGUF file,
or from a registered model.

PEFT computes W + s * B @ A, where s is alpha / r, or alpha / sqrt(r) with `use_rslora`; MLX states s, and stores both
factors transposed. llama.cpp computes s from one alpha for all tensors and the rank of each tensor. So the alpha is
stored that gives most tensors their s; a tensor with another s has the quotient multiplied into B, in float32.

In llama models, the rows of the matrices for queries and keys are in another order in GGUF files, and so are the rows
of their B: the first and the second half of each head alternate.

What only a merge can apply is stored too: the magnitudes of a DoRA as a third tensor beside the factors, a whole module
as the tensor of the base that it replaces. The type of such an adapter is `MERGED_TYPE`, which no runtime loads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from organs.ingest.adapted_base import ARCHITECTURES, AdaptedBase, ParentName, local_base, parent_of_hub_id
from organs.ingest.safetensors import FLOATS, SafetensorsFile, WeightEntry, read_json
from organs.registry.amounts import names_text, plural_text
from organs.registry.anatomy import LORA_SUFFIXES, MAGNITUDE_SUFFIX
from organs.registry.digest import Digest
from organs.registry.entities.base import prepared
from organs.registry.errors import BadAdapter, BadSource, UnknownBase
from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name, encode_header, padded
from organs.registry.gguf.types import ALIGNMENT_DEFAULT
from organs.registry.input_files import BytesInMemory, ComposedFile, Section
from organs.registry.kinds import ADAPTER_TYPE_KEY, ALPHA_KEY, INVOCATION_KEY, LORA_TYPE, MERGED_TYPE

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE, MLX_WEIGHTS_FILE = "adapter_model.safetensors", "adapters.safetensors"
PICKLE_FILE = "adapter_model.bin"
PERMUTED_ARCHITECTURES = frozenset({"llama", "granite", "granitemoe", "mistral3", "smollm3"})
SHIFTED_NORMS = frozenset({"gemma", "gemma2", "gemma3"})
"""Architectures whose norms are 1 + weight in transformers; GGUF files have the sum."""
INTERLEAVED_ARCHITECTURE = "gpt-oss"
"""The architecture whose stacks of experts have the inputs before the outputs, and gate and up in turns."""
FUSED_ARCHITECTURE = "phi3"
"""The architecture with one matrix for queries, keys and values, and one for gate and up."""
RANK_MAX = 8192
BLOCKS_MAX = 1024
EXPERTS_MAX = 4096
REARRANGED_MAX_VALUES = 1 << 26
"""Limit of a factor whose values are put in another order, for which it is read completely: 256 MiB in float32."""
REARRANGED_KEPT = 2
"""Such factors that are kept in memory."""
NAME_MAX_LENGTH = 512
ALPHA_LEAST, ALPHA_MOST = 1e-6, 1e9
SAME_SCALE = 1e-9
"""Relative difference of two scales that are equal except for rounding."""
PATTERN_MAX_LENGTH, PATTERN_REPEATS = 256, 64
"""Limits of a regular expression for modules: its length, and how many characters `*` and `+` are taken to match."""
PATTERN_WORK_MAX = 1_000_000
"""Limit of the ways in which the expressions of an adapter can match, times the number of its modules."""

EXPERT_MODULES = (
    *("mlp.gate", "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj", "mlp.shared_expert_gate"),
    *("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj"),
)
"""Modules of a mixture of experts. `mlp.experts` are stacks of matrices."""
BLOCK_MODULES = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "self_attn.qkv_proj", "mlp.gate_up_proj"),
    *EXPERT_MODULES,
)
"""Modules of a block that can have factors, in the order of the file."""
BLOCK_NORMS = (
    *("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    *("self_attn.q_norm", "self_attn.k_norm"),
)
"""Modules of a block that are vectors: they are only saved whole."""
EMBEDDING_MODULE, OUTPUT_MODULE, LAST_NORM = "embed_tokens", "lm_head", "norm"
ALIASES = {
    "block_sparse_moe.gate": "mlp.gate",
    "block_sparse_moe.router": "mlp.gate",
    "block_sparse_moe.router.layer": "mlp.gate",
    "mlp.router": "mlp.gate",
}
"""Names of modules in other models or versions."""
EXPERT_ALIASES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
REVERSED_BEFORE = (0, 19)
"""The version of PEFT that began to save the factors of stacks as A [E · r, in] and B [out, r · E]. Before, A had the
outputs and B the inputs. PEFT before 0.18 states no version."""
STACKS = ("gate_up_proj", "down_proj")
"""The parameters of `experts` in transformers, in their order. The first has the rows of gate and then those of up."""

REFUSED_MEMBERS = {
    "lora_bias": "it has biases (lora_bias), which an adapter in GGUF cannot have",
    "trainable_token_indices": "it has retrained tokens (trainable_token_indices), which GGUF adapters cannot have",
    "layer_replication": "it repeats layers of its base (layer_replication)",
    "arrow_config": "it selects experts (arrow_config)",
    "kasa_config": "it changes the weights of its base (kasa_config)",
    "monteclora_config": "it has a random part (monteclora_config)",
}
"""Members of the configuration that are refused, unless they are empty or false, with the reason."""
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of `init_lora_weights` that change the weights of the base before the training."""
MLX_FULL = (
    "it is a full fine-tune (fine_tune_type: full), which is no adapter: write the model with mlx_lm.fuse and "
    "--dequantize, and ingest it with --convert"
)

_TENSOR = re.compile(
    r"(?:base_model\.model\.)?(?P<module>[\w.]+?)\.lora_(?P<half>A|B|embedding_A|embedding_B|magnitude_vector)"
    r"(?:\.(?P<adapter>(?!weight(?:\.|\Z))[\w-]+))?(?:\.weight)?",
    re.ASCII,
)
_MLX_TENSOR = re.compile(r"(?P<module>[\w.]+?)\.(?P<half>lora_a|lora_b|m)(?P<adapter>\b)", re.ASCII)
_WHOLE = re.compile(r"(?:base_model\.model\.)?(?P<module>[\w.]+)\.(?P<kind>weight|bias)", re.ASCII)
_FROZEN = re.compile(rf"(?:[\w]+\.)*(?P<module>{EMBEDDING_MODULE}|{OUTPUT_MODULE})\.base_layer\.weight", re.ASCII)
_BLOCK = re.compile(r"layers\.(?P<block>[0-9]{1,4})\.(?P<module>[a-z0-9_.]+)")
_EXPERTS = re.compile(
    r"(?:mlp|block_sparse_moe)\.(?:experts(?P<nested>(?:\.base_layer)*)"
    r"|(?:experts\.(?P<number>[0-9]{1,4})|switch_mlp)\.(?P<matrix>gate_proj|up_proj|down_proj|w1|w2|w3))"
)
_PATTERN_TOKEN = re.compile(
    r"(?:\\[.dw]|\[\^?[\w.-]+\]|[\w.])(?P<times>[*+?]|\{(?P<least>\d{1,2})(?P<to>,(?P<most>\d{0,2}))?\})?"
    r"|(?P<mark>\((?:\?:)?|\)|[|^$])",
    re.ASCII,
)


def is_adapter_folder(path: Path) -> bool:
    """Return whether the folder `path` has an adapter as PEFT or MLX saves it."""
    return (path / CONFIG_FILE).is_file()


def adapter_folder(path: Path) -> Path | None:
    """Return the adapter folder of `path`, which is the folder or one of its two files; None for anything else."""
    names = (CONFIG_FILE, WEIGHTS_FILE, MLX_WEIGHTS_FILE, PICKLE_FILE)
    folder = path.parent if path.name in names else path
    return folder if is_adapter_folder(folder) else None


def adapter_size_bytes(folder: Path) -> int:
    """Return the bytes to read in the adapter folder, for progress; 0 if its weights cannot be read."""
    paths = (folder / WEIGHTS_FILE, folder / MLX_WEIGHTS_FILE)
    return next((path.stat().st_size for path in paths if path.is_file()), 0)


class AdapterConfig(Struct, frozen=True):
    """The members of an `adapter_config.json` that the conversion uses."""

    peft_type: str = "LORA"
    base_model_name_or_path: str | None = None
    r: Annotated[int, Meta(ge=1, le=RANK_MAX)] = 8
    lora_alpha: float = 8.0
    use_rslora: bool = False
    use_dora: bool = False
    alpha_pattern: dict[str, float] | None = None
    init_lora_weights: bool | str | None = True
    peft_version: str | None = None
    modules_to_save: Annotated[tuple[str, ...], Meta(max_length=1024)] | None = None
    target_parameters: Annotated[tuple[str, ...], Meta(max_length=1024)] | None = None
    alora_invocation_tokens: (
        Annotated[tuple[Annotated[int, Meta(ge=0, lt=1 << 31)], ...], Meta(max_length=4096)] | None
    ) = None

    @property
    def is_mlx(self) -> bool:
        """Whether MLX saved the adapter."""
        return False

    @property
    def base_text(self) -> str:
        """The base as the adapter names it; empty if it names none."""
        return self.base_model_name_or_path or ""

    @property
    def stored_alpha(self) -> float:
        """The alpha of the file, which gives modules of rank `r` without an alpha of their own their scale."""
        return self.lora_alpha * (math.sqrt(self.r) if self.use_rslora else 1.0)

    def scale(self, module: str, rank: int) -> float:
        """Return the factor of B @ A for `module`, whose name is complete."""
        patterns = (self.alpha_pattern or {}).items()
        alpha = next((value for key, value in patterns if _matches(key, module)), self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else float(rank))

    def saves(self, module: str) -> bool:
        """Return whether `module` is one of those that are trained and saved whole."""
        return module.endswith(tuple(self.modules_to_save or ()))

    def parameters_of(self, experts: str) -> list[str]:
        """Return the parameters of the module `experts` that have factors, the outermost first: it was wrapped last."""
        targets = self.target_parameters or ()
        chosen = [name for name in STACKS if any(f".{experts}.{name}".endswith(f".{one}") for one in targets)]
        return chosen[::-1]


class _MlxParameters(Struct, frozen=True):
    """The member `lora_parameters` of a configuration of MLX."""

    rank: Annotated[int, Meta(ge=1, le=RANK_MAX)]
    scale: float


class _MlxMembers(Struct, frozen=True):
    """The members of a configuration of MLX that the conversion uses."""

    lora_parameters: _MlxParameters
    fine_tune_type: str = "lora"
    model: str | None = None


class _MlxConfig(AdapterConfig, frozen=True):
    """The configuration of an adapter that MLX saved. Its scale is not divided by the rank."""

    @property
    def is_mlx(self) -> bool:
        return True

    def scale(self, module: str, rank: int) -> float:
        return self.lora_alpha / self.r


def read_config(folder: Path) -> AdapterConfig:
    """Return the configuration of the adapter in `folder`.

    Raises BadAdapter, with all reasons, for one that cannot be converted, BadSource if it cannot be read.
    """
    try:
        values = read_json(folder / CONFIG_FILE)
        is_mlx = "peft_type" not in values and ("lora_parameters" in values or "fine_tune_type" in values)
        config = _mlx_config(folder, values) if is_mlx else msgspec.convert(values, prepared(AdapterConfig))
    except ValueError as error:
        raise BadAdapter(str(folder), [f"{CONFIG_FILE}: {error}"]) from error
    if reasons := list(_config_reasons(values, config)):
        raise BadAdapter(str(folder), reasons)
    return config


def _mlx_config(folder: Path, values: Mapping[str, object]) -> AdapterConfig:
    if values.get("fine_tune_type") == "full":
        raise BadAdapter(str(folder), [MLX_FULL])
    members = msgspec.convert(values, prepared(_MlxMembers))
    kind, parameters = members.fine_tune_type, members.lora_parameters
    return _MlxConfig(
        peft_type="LORA" if kind in ("lora", "dora") else kind,
        base_model_name_or_path=members.model,
        r=parameters.rank,
        lora_alpha=parameters.scale * parameters.rank,
        use_dora=kind == "dora",
    )


def _config_reasons(values: Mapping[str, object], config: AdapterConfig) -> Iterator[str]:
    if config.peft_type != "LORA":
        member = "fine_tune_type" if config.is_mlx else "peft_type"
        yield f"its {member} is {config.peft_type[:40]!r}; only LORA is supported"
    yield from (reason for key, reason in REFUSED_MEMBERS.items() if values.get(key))
    known = {"use_rslora", "use_dora", *REFUSED_MEMBERS}
    unknown = [key for key, value in values.items() if key.startswith("use_") and value and key not in known]
    if unknown:
        yield f"it uses {names_text(unknown)}, which this program does not know"
    start = str(config.init_lora_weights)[:40]
    if start.lower().startswith(CHANGED_BASE):
        yield (
            f"its training changed the weights of the base first (init_lora_weights is {start!r}); save it with "
            "path_initial_model_for_weight_conversion, which makes a LoRA for the unchanged base"
        )
    if config.alora_invocation_tokens and (config.use_dora or config.modules_to_save):
        other = "a DoRA (use_dora)" if config.use_dora else "whole modules (modules_to_save)"
        yield (
            f"it is an activated LoRA (alora_invocation_tokens) with {other}: a runtime cannot load this, and an "
            "activated LoRA cannot be merged"
        )
    if len(config.base_text) > NAME_MAX_LENGTH or not config.base_text.isprintable():
        yield "its base_model_name_or_path is too long, or has characters that cannot be printed"
    if not ALPHA_LEAST <= abs(config.lora_alpha) <= ALPHA_MOST:
        yield f"its lora_alpha is {config.lora_alpha}"
    patterns = config.alpha_pattern or {}
    if odd := [key[:100] for key in patterns if _pattern_ways(key) is None]:
        yield (
            f"its alpha_pattern has {names_text(odd)}: expressions of names, '.', '\\d', sets in brackets, and groups "
            f"of alternatives are supported, with repeats of single characters, up to {PATTERN_MAX_LENGTH} characters"
        )
    if any(not abs(value) <= ALPHA_MOST for value in patterns.values()):
        yield "its alpha_pattern has a value that is too large"


def _matches(key: str, module: str) -> bool:
    """Return whether PEFT applies the pattern `key` to `module`: it matches the whole name, or its end after a dot."""
    return re.match(rf"(.*\.)?({key})$", module) is not None


def _pattern_ways(key: str) -> int | None:
    """Return the largest number of ways in which a pattern can match; None for expressions that are not supported.

    Only single characters can be repeated, so the number is the product of the alternatives and the repeats.
    """
    ways, alternatives, position = 1, [1], 0
    while position < len(key):
        token = _PATTERN_TOKEN.match(key, position) if len(key) <= PATTERN_MAX_LENGTH else None
        if token is None:
            return None
        position, mark, times = token.end(), token["mark"], token["times"]
        if mark is not None and mark.startswith("("):
            alternatives.append(1)
        elif mark == "|":
            alternatives[-1] += 1
        elif mark == ")":
            ways *= alternatives.pop()
            if not alternatives:
                return None
        elif times == "?":
            ways *= 2
        elif times in ("*", "+") or (token["to"] and not token["most"]):
            ways *= PATTERN_REPEATS
        elif token["most"]:
            ways *= 1 + max(0, int(token["most"]) - int(token["least"]))
    try:
        re.compile(key)
    except re.error:
        return None
    return ways * alternatives[0] if len(alternatives) == 1 else None


class AdapterFile(ComposedFile):
    """The adapter of a folder as a GGUF file."""

    def __init__(self, folder: Path, size_bytes: int, sections: Sequence[Section], remarks: Sequence[str]) -> None:
        super().__init__(folder / f"{folder.resolve().name or 'adapter'}.gguf", size_bytes, sections)
        self.name = str(folder)
        self._remarks = tuple(remarks)

    def notes(self, sha256: Digest, organs: Mapping[int, Digest]) -> Iterable[str]:
        """Return what the conversion did."""
        return self._remarks


def open_adapter(opened: ExitStack, folder: Path, base: AdaptedBase | None = None) -> AdapterFile:
    """Return the adapter in the folder as a GGUF file, which can be read until `opened` is closed.

    Without `base`, its facts are searched in the files that the folder has or names. Raises BadAdapter with all
    reasons, UnknownBase if the facts are not found, BadSource if a file cannot be read.
    """
    config = read_config(folder)
    path = folder / (MLX_WEIGHTS_FILE if config.is_mlx else WEIGHTS_FILE)
    if not path.exists() and (folder / PICKLE_FILE).exists():
        raise BadSource(
            f"{folder / PICKLE_FILE}: a pickle, which can run any program, is not read; save the adapter as "
            "safetensors: model.save_pretrained(FOLDER, safe_serialization=True)"
        )
    try:
        weights = opened.enter_context(SafetensorsFile(path))
    except ValueError as error:
        raise BadAdapter(str(folder), [f"{path.name}: {error}"]) from error
    base = base or local_base(config.base_text, folder)
    if base is None:
        named = f"its base is {config.base_text[:200]!r}" if config.base_text else "it names no base"
        raise UnknownBase(
            f"{folder}: {named}, and no config.json of it is on this machine; "
            "name the base: --base MODEL, a registered model, a GGUF file or a folder with config.json"
        )
    if base.architecture not in ARCHITECTURES.values() or not base.blocks:
        supported = ", ".join(sorted(set(ARCHITECTURES.values())))
        reason = f"its base {base.label} has the architecture {base.architecture[:40]!r}; supported are {supported}"
        raise BadAdapter(str(folder), [reason])
    if base.blocks > BLOCKS_MAX or (base.experts or 0) > EXPERTS_MAX:
        size = f"{base.blocks} blocks and {base.experts or 0} experts; at most {BLOCKS_MAX} and {EXPERTS_MAX}"
        raise BadAdapter(str(folder), [f"its base {base.label} states {size}"])
    changes, reasons, copies = _changes(weights.entries.values(), config, base)
    ways = sum(_pattern_ways(key) or 0 for key in config.alpha_pattern or {})
    if ways * len(weights.entries) > PATTERN_WORK_MAX:
        reasons.append("the expressions of its alpha_pattern take too long to match: write names of modules")
        raise BadAdapter(str(folder), reasons)
    tensors: list[ConvertedTensor] = []
    for change in changes:
        try:
            tensors += change.tensors(weights, config, base)
        except ValueError as error:
            reasons.append(str(error))
    if reasons or not changes:
        raise BadAdapter(str(folder), reasons or ["it has no weights of a LoRA"])
    return _compose(folder, config, base, changes, tensors, copies)


@lru_cache(maxsize=4)
def tensor_names(architecture: str, blocks: int) -> Mapping[tuple[int | None, str], str]:
    """Return the names of tensors in GGUF files, without `.weight`, by block and path of modules in transformers."""
    from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map

    (number,) = (number for number, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(MODEL_ARCH(number), blocks)
    is_fused = architecture == FUSED_ARCHITECTURE
    modules = [
        module
        for module in (*BLOCK_MODULES, *BLOCK_NORMS)
        if (module in ("self_attn.qkv_proj", "mlp.gate_up_proj")) <= is_fused
    ]
    keys: list[tuple[int | None, str]] = [(None, EMBEDDING_MODULE), (None, OUTPUT_MODULE), (None, LAST_NORM)]
    keys += [(block, module) for block in range(blocks) for module in modules]
    found = {}
    for block, module in keys:
        inside = module if module == OUTPUT_MODULE else f"model.{module}"
        name = names.get_name(inside if block is None else f"model.layers.{block}.{module}")
        if name is not None:
            found[block, module] = name
    return found


def rearranged_heads(path: str, module: str, rows: int, base: AdaptedBase) -> int:
    """Return the number of heads whose rows have another order in the GGUF files of the base; 0 if none have.

    The `rows` are those of the matrix at `path` in its block. Raises ValueError, with the name `module`, if it is
    unknown or does not divide the rows.
    """
    counts = {"self_attn.q_proj": base.heads, "self_attn.k_proj": base.kv_heads}
    if base.architecture not in PERMUTED_ARCHITECTURES or path not in counts:
        return 0
    heads = counts[path]
    if not heads:
        raise ValueError(f"the number of heads for {module} is not known from {base.label}")
    if rows % (2 * heads):
        raise ValueError(f"the {rows} rows of {module} are not {heads} heads of an even width")
    return heads


class _Form(Enum):
    """How the factors of a tensor are saved. r is the rank, E the number of experts."""

    LINEAR = "linear"
    """A is [r, in] and B is [out, r]; MLX has both transposed."""
    EMBEDDING = "embedding"
    """A is [r, vocabulary] and B is [width, r]; MLX has both transposed."""
    STACK = "stack"
    """Of PEFT: A is [E · r, in], expert after expert; B is [out, r · E], rank after rank."""
    SWITCH = "switch"
    """Of MLX: A is [E, r, in] and B is [E, out, r]."""
    EXPERTS = "experts"
    """Factors as for LINEAR for each expert; those that are missing are zero."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A tensor of the base that a module is, or is a part of."""

    module: str
    """The complete name of the module, or of the parameter with a stack."""
    path: str
    """The path of the module in its block, as `AdaptedBase.shapes` has it."""
    block: int | None
    position: tuple[int, int]
    """Orders the tensors of a file."""
    form: _Form = _Form.LINEAR
    expert: int = 0
    share: tuple[int, int] = (0, 1)
    """Which of how many equal parts of the rows of B it has."""


@dataclass(slots=True)
class _Change:
    """What an adapter does to one tensor of its base: two factors, with magnitudes for a DoRA, or a whole tensor."""

    tensor: str
    target: _Target
    parts: dict[str, dict[int, WeightEntry]] = field(default_factory=dict)
    """The entries of `A`, `B`, `magnitude` or `whole`, by expert; 0 if the form has one entry for all."""

    @property
    def module(self) -> str:
        return self.target.module

    def tensors(self, weights: SafetensorsFile, config: AdapterConfig, base: AdaptedBase) -> list[ConvertedTensor]:
        """Return the tensors of the GGUF file. Raises ValueError with the reason if they do not fit."""
        entries = [entry for own in self.parts.values() for entry in own.values()]
        odd = {entry.dtype for entry in entries} - FLOATS
        if odd:
            raise ValueError(
                f"{self.module} has values of the type {odd.pop()}; supported are {names_text(sorted(FLOATS))}"
            )
        if base.is_tied and self.target.path in (EMBEDDING_MODULE, OUTPUT_MODULE):
            raise ValueError(
                f"it changes {self.target.path}, but its base {base.label} uses one matrix for embeddings and output"
            )
        if "whole" in self.parts:
            return [self._whole(weights, base)]
        if "A" not in self.parts or "B" not in self.parts:
            raise ValueError(f"{self.module} has only one of two factors")
        a, b = (_Layout.of(self, half, config, base) for half in "AB")
        self._check_shapes(a, b, base)
        factor = self._scale(config, a.rank) * a.rank / config.stored_alpha
        factor = 1.0 if abs(factor - 1.0) <= SAME_SCALE else factor
        first, second = (self.tensor + suffix for suffix in LORA_SUFFIXES)
        converted = [ConvertedTensor(weights, first, a), ConvertedTensor(weights, second, b, factor)]
        if config.use_dora != ("magnitude" in self.parts):
            state = "is a DoRA (use_dora), and" if config.use_dora else "is no DoRA (use_dora), but"
            raise ValueError(f"it {state} {self.module} has {'no' if config.use_dora else 'a'} magnitude vector")
        return [*converted, self._magnitude(weights, base, b)] if config.use_dora else converted

    def is_reversed(self, config: AdapterConfig, base: AdaptedBase) -> bool:
        """Return whether the factors of a stack have each other's names, as PEFT saved them before 0.19."""
        if base.architecture == INTERLEAVED_ARCHITECTURE:
            return False
        shape = base.shapes.get(self.tensor) or base.shapes.get(self.target.path)
        columns = next(iter(self.parts["A"].values())).shape[-1:]
        inputs, outputs = ((), ()) if shape is None else ((shape[0],), (shape[1] * self.target.share[1],))
        if columns in (inputs, outputs) and inputs != outputs:
            return columns == outputs
        version = re.match(r"(\d{1,4})\.(\d{1,4})", config.peft_version or "", re.ASCII)
        return version is None or (int(version[1]), int(version[2])) < REVERSED_BEFORE

    def _scale(self, config: AdapterConfig, rank: int) -> float:
        of_experts = (_part_of(entry.name, config)[0] for entry in self.parts["B"].values())
        modules = of_experts if self.target.form is _Form.EXPERTS else [self.module]
        scales = {config.scale(module, rank) for module in modules}
        if len(scales) > 1:
            raise ValueError(f"the experts of {self.target.path} at {self.module} have different scales")
        return scales.pop()

    def _check_shapes(self, a: _Layout, b: _Layout, base: AdaptedBase) -> None:
        first, second = (next(iter(self.parts[half].values())).shape for half in "AB")
        dimensions = 2 if self.target.form in (_Form.LINEAR, _Form.EMBEDDING) else 3
        ranks = (a.shape[-1], b.shape[-1]) if self.target.form is _Form.EMBEDDING else (a.shape[-2], b.shape[-1])
        if (
            len(a.shape) != dimensions
            or len(b.shape) != dimensions
            or not 1 <= ranks[0] == ranks[1] <= RANK_MAX
            or not all(a.shape + b.shape)
        ):
            raise ValueError(f"{self.module} has factors of the shapes {first} and {second}")
        shape = base.shapes.get(self.tensor) or base.shapes.get(self.target.path)
        rows, columns = b.shape[-2], a.shape[-2 if self.target.form is _Form.EMBEDDING else -1]
        own = (rows, columns) if self.target.form is _Form.EMBEDDING else (columns, rows, *a.shape[:-2])
        if shape is not None and (*shape, 1)[: len(own)] != own:
            stack = f"{own[2]} matrices" if len(own) > 2 else "a matrix"
            raise ValueError(
                f"{self.module} is for {stack} of {rows} × {columns}, but its base {base.label} has {shape}"
            )

    def _magnitude(self, weights: SafetensorsFile, base: AdaptedBase, b: _Layout) -> ConvertedTensor:
        if self.target.form is not _Form.LINEAR:
            raise ValueError(f"{self.module} is a DoRA of an embedding or of experts, which is not supported")
        (entry,) = self.parts["magnitude"].values()
        rows = b.shape[0]
        if entry.shape != (rows,):
            raise ValueError(f"{self.module} has magnitudes of the shape {entry.shape} for {rows} rows")
        layout = _in_heads(_Layout((entry,), (rows,)), self, base)
        return ConvertedTensor(weights, self.tensor + MAGNITUDE_SUFFIX, layout)

    def _whole(self, weights: SafetensorsFile, base: AdaptedBase) -> ConvertedTensor:
        if len(self.parts) > 1:
            raise ValueError(f"{self.module} has factors, and is also saved whole")
        (entry,) = self.parts["whole"].values()
        shape = base.shapes.get(self.tensor) or base.shapes.get(self.target.path)
        is_vector = self.tensor.endswith(".bias") or self.target.path.endswith("norm")
        if len(entry.shape) != (1 if is_vector else 2) or not entry.elements:
            raise ValueError(f"{self.module} is a tensor of the shape {entry.shape}")
        if shape is not None and not self.tensor.endswith(".bias") and tuple(reversed(shape)) != entry.shape:
            resized = "; a vocabulary of another size is not supported" if shape[:1] == entry.shape[1:] else ""
            raise ValueError(
                f"{self.module} has the shape {entry.shape[::-1]}, but its base {base.label} has {shape}{resized}"
            )
        offset = 1.0 if base.architecture in SHIFTED_NORMS and self.target.path.endswith("norm") else 0.0
        return ConvertedTensor(
            weights, self.tensor, _in_heads(_Layout((entry,), entry.shape), self, base), offset=offset
        )


def _changes(
    entries: Iterable[WeightEntry], config: AdapterConfig, base: AdaptedBase
) -> tuple[list[_Change], list[str], int]:
    """Return the changes in the order of a file, reasons against other tensors, and the number of copies."""
    changes: dict[str, _Change] = {}
    names: set[str] = set()
    unknown: list[str] = []
    copies = 0
    for entry in entries:
        if len(entry.name) > NAME_MAX_LENGTH:
            unknown.append(entry.name[:100])
            continue
        if _is_copy(entry, config, base):
            copies += 1
            continue
        module, part, adapter = _part_of(entry.name, config)
        targets = _targets(module, part, config, base)
        if not targets:
            unknown.append(entry.name[:100])
            continue
        if adapter is not None:
            names.add(adapter)
        part = {"weight": "whole", "bias": "whole"}.get(part, part.removeprefix("embedding_"))
        for tensor, target in targets:
            own = changes.setdefault(tensor, _Change(tensor, target)).parts.setdefault(part, {})
            if target.expert in own:
                unknown.append(entry.name)
            own[target.expert] = entry
    reasons = []
    if unknown:
        modules = (*BLOCK_MODULES, EMBEDDING_MODULE, OUTPUT_MODULE)
        supported = ", ".join(dict.fromkeys(module.rpartition(".")[2] for module in modules))
        reasons.append(
            f"{names_text(unknown)} cannot be converted: only factors of {supported} in the {base.blocks} blocks of "
            f"its base can, each once, and whole modules that modules_to_save names"
        )
    if len(names) > 1:
        reasons.append(f"it has several adapters: {names_text(sorted(name or 'without a name' for name in names))}")
    return sorted(changes.values(), key=lambda change: change.target.position), reasons, copies


def _part_of(name: str, config: AdapterConfig) -> tuple[str, str, str | None]:
    """Return the module of a tensor, which part of its change the tensor is, and the name of the adapter in the file.

    The part is `A`, `B`, `embedding_A`, `embedding_B`, `magnitude`, `weight` or `bias`; empty for other names.
    """
    if config.is_mlx:
        match = _MLX_TENSOR.fullmatch(name)
        parts = {"lora_a": "A", "lora_b": "B", "m": "magnitude"}
        return ("", "", None) if match is None else (match["module"], parts[match["half"]], "")
    match = _TENSOR.fullmatch(name)
    if match is not None:
        return match["module"], match["half"].removesuffix("_vector"), match["adapter"] or ""
    match = _WHOLE.fullmatch(name)
    return ("", "", None) if match is None else (match["module"], match["kind"], None)


def _targets(module: str, part: str, config: AdapterConfig, base: AdaptedBase) -> list[tuple[str, _Target]]:
    """Return the tensors of the base that a part of the change of `module` is for, by name; none if it has no place."""
    is_whole = part in ("weight", "bias")
    if is_whole and not config.saves(module):
        return []
    found = []
    for target in _places(module, config, base):
        is_embedding = target.form is _Form.EMBEDDING
        has_place = is_whole or config.is_mlx or part == "magnitude" or is_embedding == part.startswith("embedding_")
        can_be = target.form in (_Form.LINEAR, _Form.EMBEDDING) if is_whole else not target.path.endswith("norm")
        name = tensor_names(base.architecture, base.blocks).get((target.block, target.path))
        if name is not None and has_place and can_be:
            found.append((f"{name}.{part if is_whole else 'weight'}", target))
    return found


def _places(module: str, config: AdapterConfig, base: AdaptedBase) -> Iterator[_Target]:
    """Yield the places of a module of a transformers model."""
    parts = module.split(".")
    while parts[0] in ("model", "language_model") and len(parts) > 1:
        parts.pop(0)
    inner = ".".join(parts)
    match = _BLOCK.fullmatch(inner)
    if match is None:
        form = _Form.EMBEDDING if inner == EMBEDDING_MODULE else _Form.LINEAR
        places = {EMBEDDING_MODULE: (-1, 0), LAST_NORM: (base.blocks, -1), OUTPUT_MODULE: (base.blocks, 0)}
        if inner in places:
            yield _Target(module, inner, None, places[inner], form)
        return
    block, path = int(match["block"]), ALIASES.get(match["module"], match["module"])
    modules = (*BLOCK_MODULES, *BLOCK_NORMS)
    experts = _EXPERTS.fullmatch(path)
    if base.experts is None and (experts or path in EXPERT_MODULES):
        return
    if experts is None:
        if path in modules and not path.startswith("mlp.experts."):
            yield _Target(module, path, block, (block, modules.index(path)))
        return
    matrices, form, number = [], _Form.STACK, 0
    if experts["matrix"] is not None:
        matrices = [EXPERT_ALIASES.get(experts["matrix"], experts["matrix"])]
        form, number = (_Form.SWITCH, 0) if experts["number"] is None else (_Form.EXPERTS, int(experts["number"]))
    else:
        depth, module = (experts["nested"] or "").count("."), module.partition(".base_layer")[0]
        matrices = config.parameters_of(module)[depth : depth + 1]
        module = f"{module}.{''.join(matrices)}"
        matrices = ["gate_proj", "up_proj"] if matrices == ["gate_up_proj"] else matrices
    for index, matrix in enumerate(matrices):
        path = f"mlp.experts.{matrix}"
        yield _Target(module, path, block, (block, modules.index(path)), form, number, (index, len(matrices)))


def _is_copy(entry: WeightEntry, config: AdapterConfig, base: AdaptedBase) -> bool:
    """Return whether a tensor is a matrix of the base that was not trained, which PEFT saves beside other adapters.

    It also does so if it is asked to. The configuration names those that were trained.
    """
    match = _FROZEN.fullmatch(entry.name)
    whole = _WHOLE.fullmatch(entry.name)
    module = match["module"] if match else whole["module"].rpartition(".")[2] if whole else ""
    if module not in (EMBEDDING_MODULE, OUTPUT_MODULE) or (match is None and config.saves(module)):
        return False
    name = tensor_names(base.architecture, base.blocks).get((None, module))
    shape = base.shapes.get(f"{name}.weight") or base.shapes.get(module)
    return shape is None or tuple(reversed(shape)) == entry.shape


Arrange = Callable[[Sequence[NDArray[np.generic] | None]], NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The entries of a tensor, and how its values are arranged from theirs."""

    entries: tuple[WeightEntry | None, ...]
    """None for an expert without factors."""
    shape: tuple[int, ...]
    """Of the result, as safetensors and numpy have it: the row length last."""
    arrange: Arrange | None = None
    """Returns the result from the arrays of the entries; None if the values of the only entry are in order."""
    rank: int = 0

    @classmethod
    def of(cls, change: _Change, half: str, config: AdapterConfig, base: AdaptedBase) -> _Layout:
        """Return the layout of the factor A or B of a change. Raises ValueError for shapes that have no meaning."""
        own, form = change.parts[half], change.target.form
        entry = next(iter(own.values()))
        layout = cls((entry,), entry.shape)
        if form is _Form.STACK:
            layout = _of_stack(change, half, base.experts or 1, is_reversed=change.is_reversed(config, base))
        elif form is _Form.EXPERTS:
            layout = _of_experts(change, own, base.experts or 1)
        elif form is _Form.SWITCH:
            if half == "A" and len(entry.shape) == 2 and base.experts and not entry.shape[0] % base.experts:
                rows = entry.shape[0] // base.experts
                layout = cls((entry,), (base.experts, rows, entry.shape[1]))
        elif (form is _Form.EMBEDDING and half == "A") != config.is_mlx:
            layout = _then(layout, entry.shape[::-1], lambda array: array.T)
        if len(layout.shape) < 2:
            raise ValueError(f"{change.module} has a factor of the shape {entry.shape}")
        if half == "B":
            is_interleaved = base.architecture == INTERLEAVED_ARCHITECTURE
            layout = _in_heads(_share(layout, change.target.share, is_interleaved=is_interleaved), change, base)
        rank = layout.shape[-2 if half == "A" and form is not _Form.EMBEDDING else -1]
        return replace(layout, rank=rank)

    def arranged(self, weights: SafetensorsFile) -> NDArray[np.generic]:
        """Return the values in order."""
        assert self.arrange is not None
        arrays = [
            None if entry is None else weights.read(entry, 0, entry.elements).reshape(entry.shape)
            for entry in self.entries
        ]
        return np.ascontiguousarray(self.arrange(arrays))


def _only(arrays: Sequence[NDArray[np.generic] | None]) -> NDArray[np.generic]:
    (array,) = arrays
    assert array is not None
    return array


def _of_stack(change: _Change, half: str, experts: int, *, is_reversed: bool) -> _Layout:
    """Return the layout of a factor that PEFT saves for a parameter with a matrix for each expert."""
    saved = {"A": "B", "B": "A"}[half] if is_reversed else half
    (entry,) = change.parts[saved].values()
    if len(entry.shape) != 2 or not entry.elements or entry.shape[0 if saved == "A" else 1] % experts:
        raise ValueError(f"{entry.name[:100]} has the shape {entry.shape}, which is not for {experts} experts")
    if saved == "A":
        layout = _Layout((entry,), (experts, entry.shape[0] // experts, entry.shape[1]))
    else:
        rows, rank = entry.shape[0], entry.shape[1] // experts
        layout = _then(
            _Layout((entry,), entry.shape),
            (experts, rows, rank),
            lambda array: array.reshape(rows, rank, experts).transpose(2, 0, 1),
        )
    stack, rows, columns = layout.shape
    return _then(layout, (stack, columns, rows), lambda array: array.swapaxes(1, 2)) if is_reversed else layout


def _of_experts(change: _Change, own: Mapping[int, WeightEntry], experts: int) -> _Layout:
    """Return the layout of factors that are saved for each expert. An expert without factors does not change."""
    shapes = {entry.shape for entry in own.values()}
    shape = next(iter(shapes))
    odd = [number for number in own if number >= experts]
    if len(shapes) > 1 or len(shape) != 2 or odd:
        reason = f"has no expert {odd[0]}" if odd else f"has factors of different shapes for its {experts} experts"
        raise ValueError(f"{change.module}: {change.target.path} {reason}")
    if {part: set(entries) for part, entries in change.parts.items() if part in "AB"}.get("B") != set(
        change.parts["A"]
    ):
        raise ValueError(f"{change.module} has only one of two factors")

    def stacked(arrays: Sequence[NDArray[np.generic] | None]) -> NDArray[np.generic]:
        dtype = np.result_type(*(array.dtype for array in arrays if array is not None))
        return np.stack([np.zeros(shape, dtype) if array is None else array for array in arrays])

    layout = _Layout(tuple(own.get(number) for number in range(experts)), (experts, *shape), stacked)
    return _then(layout, layout.shape, lambda array: array)


def _share(layout: _Layout, share: tuple[int, int], *, is_interleaved: bool) -> _Layout:
    """Return the layout of one of some equal parts of the rows, which are in one piece or in turns."""
    index, count = share
    if count == 1:
        return layout
    rows = layout.shape[-2]
    if rows % count:
        raise ValueError(f"its {rows} rows for gate and up are not two halves")
    first, last = index * rows // count, (index + 1) * rows // count
    chosen = slice(index, None, count) if is_interleaved else slice(first, last)
    shape = (*layout.shape[:-2], rows // count, layout.shape[-1])
    return _then(layout, shape, lambda array: array[..., chosen, :])


def _in_heads(layout: _Layout, change: _Change, base: AdaptedBase) -> _Layout:
    """Return the layout in which the rows of queries and keys have the order of the GGUF files of the base."""
    rows, shape = layout.shape[0], layout.shape
    heads = rearranged_heads(change.target.path, change.module, rows, base)
    if not heads:
        return layout
    return _then(
        layout, shape, lambda array: array.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(shape)
    )


def _then(
    layout: _Layout, shape: tuple[int, ...], step: Callable[[NDArray[np.generic]], NDArray[np.generic]]
) -> _Layout:
    """Return the layout with another step of its arrangement. Raises ValueError if it has too many values."""
    before = layout.arrange or (lambda arrays: _only(arrays).reshape(layout.shape))
    values = math.prod(shape)
    if values > REARRANGED_MAX_VALUES:
        name = next(entry.name[:100] for entry in layout.entries if entry is not None)
        raise ValueError(
            f"{name} has {values:,} values, which are put in another order; at most {REARRANGED_MAX_VALUES:,} are"
        )
    return _Layout(layout.entries, shape, lambda arrays: step(before(arrays)))


def _compose(
    folder: Path,
    config: AdapterConfig,
    base: AdaptedBase,
    changes: Sequence[_Change],
    tensors: Sequence[ConvertedTensor],
    copies: int,
) -> AdapterFile:
    specs = [tensor.spec for tensor in tensors]
    header = encode_header(_metadata(config, base, changes, specs), specs)
    sections = [Section(0, len(header), BytesInMemory(header))]
    offset = len(header)
    kept = lru_cache(maxsize=REARRANGED_KEPT)(ConvertedTensor.data)
    for tensor, spec in zip(tensors, specs, strict=True):
        sections.append(Section(offset, spec.size_bytes, replace(tensor, kept=kept)))
        offset += padded(spec.size_bytes, ALIGNMENT_DEFAULT)
    return AdapterFile(folder, offset, sections, list(_remarks(config, changes, tensors, copies)))


def _remarks(
    config: AdapterConfig, changes: Sequence[_Change], tensors: Sequence[ConvertedTensor], copies: int
) -> Iterator[str]:
    ranks = names_text([str(rank) for rank in sorted({tensor.layout.rank for tensor in tensors} - {0})])
    factors = sum("A" in change.parts for change in changes)
    whole = plural_text(len(changes) - factors, "whole tensor", "whole tensors")
    done = f"{factors} modules, rank {ranks}, alpha {config.stored_alpha:g}"
    done += f"{', DoRA' if config.use_dora else ''}{f', {whole}' if len(changes) > factors else ''}"
    yield f"converted from {'an MLX' if config.is_mlx else 'a PEFT'} folder: {done}"
    if folded := sum(tensor.factor != 1.0 for tensor in tensors):
        yield f"{folded} modules have another scale than the others; it is multiplied into their factors"
    if copies:
        matrices = plural_text(copies, "copy of a matrix", "copies of matrices")
        yield f"{matrices} of the base left out, which the configuration does not name as trained"


def _is_merged_only(config: AdapterConfig, changes: Sequence[_Change]) -> bool:
    """Return whether only a merge can apply the changes: a runtime would leave some of them out."""
    return config.use_dora or any("whole" in change.parts for change in changes)


def _metadata(
    config: AdapterConfig, base: AdaptedBase, changes: Sequence[_Change], tensors: Sequence[TensorSpec]
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
    yield KeyValue(ADAPTER_TYPE_KEY, ValueType.STRING, MERGED_TYPE if _is_merged_only(config, changes) else LORA_TYPE)
    yield KeyValue(ALPHA_KEY, ValueType.FLOAT32, config.stored_alpha)
    if config.alora_invocation_tokens:
        yield KeyValue(INVOCATION_KEY, ValueType.ARRAY, config.alora_invocation_tokens, ValueType.UINT32)


@dataclass(frozen=True, slots=True, eq=False)
class ConvertedTensor:
    """A tensor as it is in a GGUF file, converted while it is read (`registry.input_files.Bytes`)."""

    weights: SafetensorsFile
    name: str
    layout: _Layout
    factor: float = 1.0
    offset: float = 0.0
    """Added to all values."""
    kept: Callable[[ConvertedTensor], NDArray[np.generic]] | None = None
    """`data` of the last tensors that were arranged."""

    @property
    def spec(self) -> TensorSpec:
        """The tensor of the GGUF file: float16 if the values are stored so and not computed, else float32."""
        dtypes = {entry.dtype for entry in self.layout.entries if entry is not None}
        is_half = dtypes == {"F16"} and self.factor == 1.0 and self.offset == 0.0
        return TensorSpec(self.name, self.layout.shape[::-1], dtype_by_name("F16" if is_half else "F32"))

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource if the file became shorter."""
        size = self._stored.itemsize
        first, last = offset // size, -(-(offset + len(buffer)) // size)
        if self.layout.arrange is None:
            (entry,) = self.layout.entries
            assert entry is not None
            values = self._stored_values(self.weights.read(entry, first, last))
        else:
            values = (self.kept or ConvertedTensor.data)(self)[first:last]
        begin = offset - first * size
        buffer[:] = values.tobytes()[begin : begin + len(buffer)]

    def check_unchanged(self) -> None:
        """Raise BadSource if the file was written or replaced since it was opened."""
        self.weights.check_unchanged()

    def data(self) -> NDArray[np.generic]:
        """Return all values in order, flat and as they are stored."""
        return self._stored_values(self.layout.arranged(self.weights)).reshape(-1)

    @property
    def _stored(self) -> np.dtype[Any]:
        return np.dtype("<f2" if self.spec.dtype.name == "F16" else "<f4")

    def _stored_values(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        if self.factor != 1.0 or self.offset:
            values = values.astype(np.float64) * self.factor + self.offset
        return np.ascontiguousarray(values, self._stored)
