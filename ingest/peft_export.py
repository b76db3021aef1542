"""PEFT folders of adapters in GGUF, the other direction of `organs.ingest.peft`: read again, a folder has the factors.

PEFT has a name for each matrix that is a module of its own in transformers. Stacks of experts and routers are
parameters there, in an order that depends on the versions of both libraries, so their factors are not exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from organs.ingest.adapted_base import ARCHITECTURES, HUB_URL, AdaptedBase
from organs.ingest.directory.extract import staged
from organs.ingest.peft import (
    BLOCK_MODULES,
    BLOCKS_MAX,
    CONFIG_FILE,
    EMBEDDING_MODULE,
    EXPERT_MODULES,
    OUTPUT_MODULE,
    WEIGHTS_FILE,
    is_adapter_folder,
    rearranged_heads,
    tensor_names,
)
from organs.ingest.safetensors import FLOATS, encode_entries
from organs.registry.amounts import names_text
from organs.registry.anatomy import LORA_SUFFIXES, adapted_tensor
from organs.registry.compose.adapters import alpha_of
from organs.registry.errors import BadInput
from organs.registry.gguf import Header, TensorInfo, read_header
from organs.registry.input_files import OpenFile
from organs.registry.kinds import ADAPTER_TYPE_KEY, INVOCATION_KEY, MERGED_TYPE
from organs.registry.store.files import Files
from organs.registry.transform import misfit

PARAMETERS = ("mlp.gate", "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj")
"""What is no module of its own in transformers: the router and the stacks of experts."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """The factors of a module."""

    module: str
    a: TensorInfo
    b: TensorInfo
    is_embedding: bool
    heads: int
    """The heads whose rows have another order in GGUF files; 0 if none have."""

    @property
    def rank(self) -> int:
        return self.b.shape[0]

    @property
    def slot(self) -> str:
        """The last part of the name of the module."""
        return self.module.rpartition(".")[2]

    def entries(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Return the names, types and shapes in the folder: A [r, in] and B [out, r]."""
        kind, end = ("lora_embedding_", "") if self.is_embedding else ("lora_", ".weight")
        first, second = ((*tensor.shape, 1)[:2] for tensor in (self.a, self.b))
        shapes = {"A": first if self.is_embedding else first[::-1], "B": second[::-1]}
        dtypes = {"A": self.a.dtype.name, "B": self.b.dtype.name}
        return [
            (f"base_model.model.{self.module}.{kind}{half}{end}", dtypes[half], shape) for half, shape in shapes.items()
        ]

    def data(self, adapter: OpenFile, data_offset: int) -> list[bytes]:
        """Return the values of A and B as PEFT stores them."""
        a, b = (
            np.frombuffer(
                adapter.read_at(data_offset + tensor.offset, tensor.size_bytes), f"u{tensor.dtype.block_bytes}"
            )
            for tensor in (self.a, self.b)
        )
        if self.is_embedding:
            a = a.reshape(-1, self.rank).T
        if self.heads:  # the first and the second half of each head, one after the other
            b = b.reshape(self.heads, -1, 2, self.rank).swapaxes(1, 2)
        return [a.tobytes(), b.tobytes()]


def export_adapter(adapter: OpenFile, base: AdaptedBase, target: Path, *, replace: bool = False) -> None:
    """Write the LoRA adapter in a GGUF file as the PEFT folder `target`, completely or not at all.

    `replace` allows to replace another folder of an adapter. Raises BadInput with all reasons for an adapter of `base`
    that PEFT has no names for, or that does more than a LoRA, BadSource if something is in the way, DiskFull,
    StoreUnwritable.
    """
    check_exportable(base)
    header = read_header(adapter)
    pairs = _pairs(header, base, adapter.name)
    config = _config(pairs, base, alpha_of(header))
    head = encode_entries(entry for pair in pairs for entry in pair.entries())
    size_bytes = len(head) + sum(tensor.size_bytes for pair in pairs for tensor in (pair.a, pair.b))
    files = Files()
    with staged(target, size_bytes, replace=replace, files=files, is_replaceable=is_adapter_folder) as staging:
        with staging.new_file(CONFIG_FILE) as file:
            file.write(msgspec.json.format(msgspec.json.encode(config), indent=2))
        with staging.new_file(WEIGHTS_FILE) as file:
            file.write(head)
            for pair in pairs:
                for values in pair.data(adapter, header.data_offset):
                    file.write(values)


def check_exportable(base: AdaptedBase, changed: Iterable[str] = ()) -> None:
    """Raise BadInput if the modules of the base, or the tensors `changed`, have no names that PEFT knows."""
    if base.architecture not in ARCHITECTURES.values():
        known = ", ".join(sorted(set(ARCHITECTURES.values())))
        raise BadInput(
            f"{base.label} has the architecture {base.architecture[:40]!r}, and PEFT folders are written for {known}: "
            "give a name that ends in .gguf"
        )
    if not 1 <= base.blocks <= BLOCKS_MAX:
        raise BadInput(f"{base.label} states {base.blocks:,} blocks; PEFT folders are written for 1 to {BLOCKS_MAX:,}")
    modules = _modules(base)
    if unnamed := [name for name in changed if name not in modules]:
        raise BadInput(f"{base.label}: {_unnamed(unnamed)}", reasons=unnamed)


def _unnamed(tensors: Sequence[str]) -> str:
    return f"PEFT has no names for {names_text(tensors)}: write a GGUF file, with a name that ends in .gguf"


def _modules(base: AdaptedBase) -> Mapping[str, tuple[str, str]]:
    """Return the name of a module in transformers, and its path in its block, by the name of its matrix in GGUF files.

    Where one matrix has several names, it is fused, and the last name is that of the fused module.
    """
    modules = {}
    for (block, path), name in tensor_names(base.architecture, base.blocks).items():
        if block is not None and path in BLOCK_MODULES and path not in PARAMETERS:
            modules[f"{name}.weight"] = f"model.layers.{block}.{path}", path
        elif path in (EMBEDDING_MODULE, OUTPUT_MODULE):
            modules[f"{name}.weight"] = path if path == OUTPUT_MODULE else f"model.{path}", path
    return modules


def _pairs(header: Header, base: AdaptedBase, label: str) -> list[_Pair]:
    """Return the factors of an adapter in the order of the file. Raises BadInput with all reasons."""
    tensors = {tensor.name: tensor for tensor in header.tensors}
    targets = dict.fromkeys(target for target in map(adapted_tensor, tensors) if target is not None)
    pairs, unnamed, reasons = [], [], []
    factors = {target + suffix for target in targets for suffix in LORA_SUFFIXES}
    is_merged = header.text(ADAPTER_TYPE_KEY) == MERGED_TYPE
    if is_merged or not tensors or tensors.keys() - factors:
        reasons.append(
            "it has magnitudes (DoRA), whole tensors or no factors, and only a LoRA is written as PEFT saves it"
        )
    if header.field(INVOCATION_KEY) is not None:
        reasons.append("it is an activated LoRA, and its tokens would be lost")
    modules = _modules(base)
    for target in targets:
        a, b = (tensors.get(target + suffix) for suffix in LORA_SUFFIXES)
        if target not in modules:
            unnamed.append(target)
        elif a is None or b is None:
            reasons.append(f"{target} has only one of two factors")
        elif odd := sorted({a.dtype.name, b.dtype.name} - FLOATS):
            reasons.append(f"{target} has factors of the type {odd[0]}; {names_text(sorted(FLOATS))} are written")
        else:
            try:
                pairs.append(_pair(modules[target], target, a, b, base))
            except ValueError as error:
                reasons.append(str(error))
    reasons += [_unnamed(unnamed)] if unnamed else []
    if reasons:
        raise BadInput(f"{label}: {'; '.join(reasons)}", reasons=reasons)
    return pairs


def _pair(names: tuple[str, str], target: str, a: TensorInfo, b: TensorInfo, base: AdaptedBase) -> _Pair:
    """Return the factors of one matrix; raises ValueError if they do not fit it."""
    module, path = names
    is_embedding = path == EMBEDDING_MODULE
    first, second = ((*tensor.shape, 1) for tensor in (a, b))
    own = (second[1], first[1]) if is_embedding else (first[0], second[1])
    shape = base.shapes.get(target) or base.shapes.get(path) or own
    if reason := misfit(shape, a.shape, b.shape, is_embedding):
        raise ValueError(f"{module} is for a matrix of another shape than that of {base.label}: {reason}")
    return _Pair(module, a, b, is_embedding, rearranged_heads(path, module, second[1], base))


def _config(pairs: Sequence[_Pair], base: AdaptedBase, alpha: float) -> dict[str, object]:
    """Return the configuration that gives each module the scale that it has in the GGUF file."""
    ranks = {pair.module: pair.rank for pair in pairs}
    largest = max(ranks.values())
    slots = {pair.slot for pair in pairs}
    paths = [path for _, path in tensor_names(base.architecture, base.blocks)]
    own = [path for path in paths if base.experts or path not in EXPERT_MODULES]
    is_everywhere = len(ranks) == sum(path.rpartition(".")[2] in slots for path in own)
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
