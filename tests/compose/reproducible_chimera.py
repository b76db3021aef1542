"""Make a chimera in a new registry: `python -m tests.compose.reproducible_chimera FOLDER MODEL...` prints digests."""

from __future__ import annotations

import sys
from pathlib import Path

from organs.registry.gguf import KeyValue, ValueType
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes, text
from tests.small_models import ingest_file, small_model, weight_tensor

MODELS = ("base", "donor", "adapter")


def make_chimera(home: Path, models: list[str]) -> list[str]:
    """The lock, the file's digest and every organ's, of one chimera in a new registry that takes in `models` in that
    order: organs are grafted, an adapter is merged, and some are purified in both ways."""
    with LocalRegistry.open(home) as registry:
        for name in models:
            path = home / f"{name}.gguf"
            path.write_bytes(_adapter() if name == "adapter" else small_model(name, seed=MODELS.index(name)))
            ingest_file(registry, path)
        composition = (
            registry.compose("base")
            .graft("donor", type="organ", blocks=1)
            .adapter("adapter", 0.7)
            .purify("fractal", slot="attn_q")
            .purify("spectral", slot="ffn_up", keep=0.95)
            .accept("unrelated-lineage", "adapter-base-differs")
        )
        made = composition.plan().register()
        return [made.lock_id, made.sha256, *(organ.digest for organ in registry.model(made.model).organs)]


def _adapter() -> bytes:
    """Return an adapter of rank 4 for the first block."""
    entries = [
        *(text("general.architecture", "llama"), text("general.type", "adapter"), text("adapter.type", "lora")),
        KeyValue("adapter.lora.alpha", ValueType.FLOAT32, 8.0),
    ]
    halves = [
        weight_tensor(f"blk.0.{slot}.weight.lora_{half}", shape, 3, "F32")
        for slot, length in (("attn_q", 64), ("ffn_up", 128))
        for half, shape in (("a", (64, 4)), ("b", (4, length)))
    ]
    return file_bytes(entries, halves)


if __name__ == "__main__":
    print(*make_chimera(Path(sys.argv[1]), sys.argv[2:]))
