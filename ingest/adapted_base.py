"""The base of an adapter: the facts that a conversion needs, from a GGUF file, a registered model or `config.json`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from organs.ingest.safetensors import MODEL_CONFIG_FILE, read_json
from organs.registry.anatomy import OUTPUT_MATRIX, place_of
from organs.registry.entities.base import prepared
from organs.registry.errors import BadSource, NotFound, UnknownBase
from organs.registry.gguf import Header, read_header
from organs.registry.input_files import FileSource
from organs.registry.names import name_from_text

if TYPE_CHECKING:
    from organs.registry.interface import Registry

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
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "ministral3": "mistral3",
    "mixtral": "llama",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "smollm3": "smollm3",
}
"""Architectures of GGUF files by the `model_type` of a configuration."""
TIED_TYPES = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text", "smollm3"})
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
    """Shapes (values in, values out, experts) by the name of a tensor, or by the path of a module in its block."""
    is_tied: bool
    """Whether the output matrix is the token embedding."""
    parent: ParentName
    experts: int | None = None
    """The number of experts of a block; None if it has none, or it is unknown."""


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
    num_experts: _Size | None = None
    num_local_experts: _Size | None = None
    moe_intermediate_size: _Size | None = None
    shared_expert_intermediate_size: _Size | None = None

    @property
    def experts(self) -> int | None:
        """The number of experts of a block."""
        return self.num_experts or self.num_local_experts

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the shapes (values in, values out, experts) of matrices by the paths of their modules."""
        width, inner, heads = self.hidden_size, self.intermediate_size, self.num_attention_heads
        head_width = self.head_dim or width // heads
        keys = (self.num_key_value_heads or heads) * head_width
        yield "self_attn.q_proj", (width, heads * head_width)
        yield from ((f"self_attn.{name}_proj", (width, keys)) for name in "kv")
        yield "self_attn.qkv_proj", (width, heads * head_width + 2 * keys)
        yield "self_attn.o_proj", (heads * head_width, width)
        yield from _feed_forward("mlp.", width, inner)
        yield "mlp.gate_up_proj", (width, 2 * inner)
        if self.experts is not None:
            yield "mlp.gate", (width, self.experts)
            yield from _feed_forward("mlp.experts.", width, self.moe_intermediate_size or inner, self.experts)
        if self.shared_expert_intermediate_size is not None:
            yield "mlp.shared_expert_gate", (width, 1)
            yield from _feed_forward("mlp.shared_expert.", width, self.shared_expert_intermediate_size)
        if self.vocab_size is not None:
            yield from ((name, (width, self.vocab_size)) for name in ("embed_tokens", "lm_head"))


def _feed_forward(prefix: str, width: int, inner: int, *stack: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((f"{prefix}{name}_proj", (width, inner, *stack)) for name in ("gate", "up"))
    yield f"{prefix}down_proj", (inner, width, *stack)


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
    heads = config.num_attention_heads
    return AdaptedBase(
        str(path),
        ARCHITECTURES[described.model_type],
        config.num_hidden_layers,
        heads,
        config.num_key_value_heads or heads,
        dict(config.shapes()),
        config.model_type in TIED_TYPES if tied is None else tied,
        ParentName(),
        config.experts,
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
        count("expert_count"),
    )
