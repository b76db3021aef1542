"""A registry of models with known kinship and measures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes, text
from tests.small_models import block_metadata, block_tensors, ingest_file, small_model, weight_tensor


@pytest.fixture(scope="session")
def filled_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create two unrelated models, a relative of the first, an adapter, a vocabulary, and a partial model."""
    files = {
        "little": small_model("Little"),
        "tall": small_model("Tall", blocks=5, seed=1),
        "tuned": file_bytes(
            [*block_metadata("Little"), text("general.finetune", "more")],
            [*block_tensors()[:-1], weight_tensor("output_norm.weight", (64,), 3, "F32")],
        ),
        "adapter": file_bytes(
            [text("general.architecture", "llama"), text("general.type", "adapter")],
            [weight_tensor(f"blk.0.attn_q.weight.lora_{half}", (64, 8)) for half in "ab"],
        ),
        "words": file_bytes([text("general.architecture", "llama"), text("general.name", "Words")]),
        "part": file_bytes(block_metadata("Part", blocks=7), block_tensors(2, seed=5)),
    }
    folder = tmp_path_factory.mktemp("filled")
    with LocalRegistry.open(folder / "home") as registry:
        for name, data in files.items():
            path = folder / f"{name}.gguf"
            path.write_bytes(data)
            ingest_file(registry, path)
    return folder / "home"


@pytest.fixture
def filled(filled_home: Path, tmp_path: Path) -> Iterator[LocalRegistry]:
    """Return a copy of that registry for one test."""
    shutil.copytree(filled_home, tmp_path / "filled")
    with LocalRegistry.open(tmp_path / "filled") as registry:
        yield registry
