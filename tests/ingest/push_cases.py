"""A model to push, and one push of it as by the command, with small chunks and short waits."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from organs.ingest.contributions.push import (
    PushOptions,
    PushReport,
    push,
)
from organs.ingest.contributions.sending import Memory
from organs.ingest.sources import find_sources
from tests.gguf_files import file_bytes
from tests.ingest.memory_registry import FakeRegistry
from tests.small_models import block_metadata, block_tensors, token_array, weight_tensor

LARGE = weight_tensor("blk.0.ffn_gate.weight", (512, 256), dtype="F16")
"""256 KiB: too large for a pack."""
TOKENS = token_array([f"token {number}".encode() for number in range(800)])
CHUNK_BYTES = 100_000


def large_model(seed: int = 0) -> bytes:
    """Return a model with small organs, a large one, and a vocabulary that is a separate blob."""
    return file_bytes([*block_metadata("Large"), TOKENS], [*block_tensors(seed=seed), LARGE])


@dataclass
class RecordedProgress:
    """The reported progress of a push."""

    stages: list[tuple[str, int | None]] = field(default_factory=list)
    done_bytes: dict[str, int] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def stage(self, label: str, total_bytes: int | None) -> None:
        self.stages.append((label, total_bytes))

    def advance(self, size_bytes: int) -> None:
        label = self.stages[-1][0]
        self.done_bytes[label] = self.done_bytes.get(label, 0) + size_bytes

    def say(self, text: str) -> None:
        self.said.append(text)


def write_model_file(folder: Path, data: bytes, name: str = "Mine.gguf") -> Path:
    path = folder / name
    path.write_bytes(data)
    # An old time, so that its digests are remembered, and a different one for each content.
    when = 1_700_000_000 + int.from_bytes(hashlib.sha256(data).digest()[:3])
    os.utime(path, (when, when))
    return path


def run_push(fake: FakeRegistry, path: Path, shown: RecordedProgress | None = None, **options: object) -> PushReport:
    (source,) = find_sources([str(path)], "push")
    chosen = replace(PushOptions(chunk_bytes=CHUNK_BYTES), **options)  # type: ignore[arg-type]
    return push(fake.connection, source, chosen, Memory(path.parent / "cache"), shown or RecordedProgress())
