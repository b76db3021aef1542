"""A registry of models with known kinship and measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from tests.gguf_files import F32, file_bytes, text
from tests.registry_templates import RegistryTemplates, add_three_models
from tests.related_models import ingest_all
from tests.small_models import (
    Tensors,
    block_metadata,
    block_tensors,
    expert_tensors,
    small_model,
    weight_tensor,
)


def add_models(registry: LocalRegistry, folder: Path) -> None:
    """Add two unrelated models, a relative of the first, an adapter, a vocabulary, and a partial model."""
    ingest_all(
        registry,
        folder,
        little=small_model("Little"),
        tall=small_model("Tall", blocks=5, seed=1),
        tuned=file_bytes(
            [*block_metadata("Little"), text("general.finetune", "more")],
            [*block_tensors()[:-1], weight_tensor("output_norm.weight", (64,), 3, "F32")],
        ),
        adapter=file_bytes(
            [text("general.architecture", "llama"), text("general.type", "adapter")],
            [weight_tensor(f"blk.0.attn_q.weight.lora_{half}", (64, 8)) for half in "ab"],
        ),
        words=file_bytes([text("general.architecture", "llama"), text("general.name", "Words")]),
        part=file_bytes(block_metadata("Part", blocks=7), block_tensors(2, seed=5)),
    )


def add_odd_models(registry: LocalRegistry, folder: Path) -> None:
    """Add a mixture of experts, a model with every anomaly, one that no kernel reads, two larger ones, a chimera."""
    opaque = dtype_by_name("Q8_K")
    unread = [(TensorSpec(f"blk.{n}.attn_q.weight", (256,), opaque), bytes(opaque.block_bytes)) for n in range(2)]
    ingest_all(
        registry,
        folder,
        mixture=file_bytes(block_metadata("Mixture", blocks=3), expert_tensors()),
        broken=file_bytes(block_metadata("Broken", blocks=1), _broken_tensors()),
        opaque=file_bytes(block_metadata("Opaque"), unread),
        large=file_bytes([], [weight_tensor("blk.0.ffn_up.weight", (1024, 1024))]),
        deep=small_model("Deep", blocks=9, seed=2),
    )
    registry.compose("mixture").purify("spectral", type="organ", blocks=0).named("local/pure").plan().register()


def _broken_tensors() -> Tensors:
    """Return tensors with NaN and infinities, a constant, one that no kernel reads, a short one and a sound one."""
    broken = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    broken[:3], broken[7] = np.nan, np.inf
    opaque = dtype_by_name("Q8_K")
    return [
        (TensorSpec("blk.0.attn_q.weight", (64, 64), F32), broken.tobytes()),
        (TensorSpec("blk.0.attn_k.weight", (64, 64), F32), np.full(4096, 0.5, np.float32).tobytes()),
        (TensorSpec("blk.0.attn_v.weight", (256,), opaque), bytes(opaque.block_bytes)),
        weight_tensor("blk.0.ffn_norm.weight", (16,), 0, "F32"),
        weight_tensor("blk.0.ffn_up.weight", (64, 64)),
    ]


@pytest.fixture
def filled(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    """Return a registry with the models of `add_models`."""
    templates.fill(registry, add_models)
    return registry


@pytest.fixture
def family(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    """Return a registry with a base, a fine-tune of it and an unrelated model."""
    templates.fill(registry, add_three_models)
    return registry
