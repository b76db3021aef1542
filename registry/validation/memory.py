"""The memory that llama.cpp takes for a model and a context, by its own count, in a confined child.

A file whose header is real and whose tensor data are a hole gives the same count as the whole file: the count depends
only on the header. So a size can be tried before it is computed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from organs.registry.amounts import size_text
from organs.registry.entities.base import decode, encode
from organs.registry.entities.memory import MemoryBuffer, MemoryCount
from organs.registry.errors import BadInput, DiskFull, StoreUnwritable
from organs.registry.gguf.types import dtype_by_name
from organs.registry.sandbox.process import ProcessLimits, Result, Sandbox, run_python
from organs.registry.validation.comparison import ModelFacts
from organs.registry.validation.counter import FLASH_ATTENTION, CountLine, CountOrder
from organs.registry.validation.llama import EXTRA, NOT_INSTALLED, LlamaCpp, failure_of, model_files, telling_line
from organs.registry.validation.runtime import NoRuntime, RuntimeFailed
from organs.registry.validation.weights import Weights

CONTEXT_TOKENS = 4096
"""The tokens of a context, unless the model has fewer."""
CONTEXT_TOKENS_MAX = 1 << 24
MICRO_BATCH, MICRO_BATCH_MAX = 512, 1 << 16
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""The tensor types that llama.cpp can write into its cache, by its names."""
DEVICE = "cpu"
LIBRARY_BYTES = 768 * 1024**2
"""Address space for Python and the library; measured: 0.2 GB."""
FREE_SHARE = 0.9
"""The part of the free memory that a count may take."""
_TOO_LARGE = re.compile(r"failed to allocate .*?buffer of size (?P<size>[0-9]{1,20})")
_PROCESSOR = ("CPU", "AMX")
"""The beginnings of the names of buffers in the processor's memory."""
_COMPUTE = ("compute", "output")


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """The context whose memory is counted. Raises BadInput, with all reasons."""

    context_tokens: int | None = None
    """None for CONTEXT_TOKENS, or the context of the model if it is smaller."""
    cache_type: str = "f16"
    """The tensor type of keys and values, one of the CACHE_TYPES."""
    micro_batch: int = MICRO_BATCH
    """The most tokens that are computed at once."""
    flash_attention: str = "auto"
    """`auto`, `on` or `off`."""
    device: str = DEVICE
    """Only `cpu`: the build of llama.cpp that is used here has no other."""

    def __post_init__(self) -> None:
        faults = []
        if self.context_tokens is not None and not 1 <= self.context_tokens <= CONTEXT_TOKENS_MAX:
            faults.append(f"a context of {self.context_tokens:,} tokens: 1 to {CONTEXT_TOKENS_MAX:,} can be counted")
        if self.cache_type not in CACHE_TYPES:
            faults.append(f"no cache of type {self.cache_type[:80]!r}: llama.cpp has {', '.join(CACHE_TYPES)}")
        if not 1 <= self.micro_batch <= MICRO_BATCH_MAX:
            faults.append(f"a micro-batch of {self.micro_batch:,} tokens: 1 to {MICRO_BATCH_MAX:,} can be counted")
        if self.flash_attention not in FLASH_ATTENTION:
            faults.append(f"no flash attention {self.flash_attention[:80]!r}: {', '.join(FLASH_ATTENTION)}")
        if self.device != DEVICE:
            faults.append(
                f"no device {self.device[:80]!r}: this build of llama.cpp counts the memory of the processor, {DEVICE}"
            )
        if faults:
            raise BadInput("; ".join(faults))


def counted_memory(
    model: Path,
    wanted: MemoryRequest | None = None,
    limits: ProcessLimits | None = None,
    *,
    name: str | None = None,
    requires_sandbox: bool = False,
) -> MemoryCount:
    """Load `model`, the first file of a split set or the only one, create the wanted context, and return its memory.

    The child gets address space for the memory that is free on this machine, so that a context that needs more is
    refused by llama.cpp and never makes the machine swap. Raises NoRuntime, NoSandbox, RuntimeFailed if llama.cpp
    refuses the model or has not enough memory, BadSource, BadGguf, BadSplit.
    """
    wanted, own = wanted or MemoryRequest(), limits or ProcessLimits()
    files = model_files(model)
    with Weights(model) as weights:
        facts = ModelFacts.of(weights.headers)
        size_bytes = sum(file.size_bytes for file in weights.files)
    tokens = wanted.context_tokens or min(CONTEXT_TOKENS, facts.context_tokens or CONTEXT_TOKENS)
    dtype = dtype_by_name(wanted.cache_type.upper())
    order = CountOrder(
        model=str(model.absolute()),
        tokens=tokens,
        cache_type=dtype.id,
        cache_name=wanted.cache_type,
        micro_batch=wanted.micro_batch,
        flash_attention=wanted.flash_attention,
    )
    runtime, found, free = LlamaCpp().version, _Found(), int(FREE_SHARE * free_memory())
    result = run_python(
        "organs.registry.validation.counter",
        replace(
            own,
            address_space_bytes=own.address_space_bytes or size_bytes + LIBRARY_BYTES + free,
            file_size_bytes=own.file_size_bytes or 0,  # it has nothing to write
        ),
        Sandbox(read=files, required=requires_sandbox),
        encode(order),
        found.take_line,
    )
    label = name or model.name
    if found.missing is not None:
        raise NoRuntime(f"{NOT_INSTALLED} ({found.missing})", EXTRA)
    if found.unknown is not None:
        raise NoRuntime(f"the memory cannot be counted: {found.unknown}")
    if not found.buffers:
        raise RuntimeFailed(_failure(result, found, label, tokens, free))
    foreign = sorted({buffer.name for buffer in found.buffers if not buffer.name.startswith(_PROCESSOR)})
    if foreign:
        raise RuntimeFailed(f"{label}: llama.cpp put buffers on {', '.join(foreign)}: only {DEVICE} is counted")
    parts = dict.fromkeys(("weights_bytes", "repacked_bytes", "cache_bytes", "compute_bytes"), 0)
    for buffer in found.buffers:
        parts[_part(buffer, found.buffers)] += buffer.size_bytes
    return MemoryCount(
        model=label,
        context_tokens=tokens,
        cache_type=wanted.cache_type,
        micro_batch=wanted.micro_batch,
        flash_attention=wanted.flash_attention,
        device=wanted.device,
        total_bytes=sum(parts.values()),
        buffers=found.buffers,
        runtime=runtime,
        **parts,
    )


def write_hole(path: Path, header: bytes, size_bytes: int) -> None:
    """Write a file of `size_bytes` whose tensor data are a hole: they take no room on the disk, and are read as zeros.

    Raises DiskFull, StoreUnwritable.
    """
    from organs.registry.store.files import FULL

    try:
        path.write_bytes(header)
        os.truncate(path, size_bytes)
    except OSError as error:
        kind = DiskFull if error.errno in FULL else StoreUnwritable
        raise kind(f"{path}: {error.strerror}") from error


def free_memory() -> int:
    """Return the bytes of memory that are free on this machine, or could be: caches of files count as free."""
    with suppress(OSError, StopIteration, ValueError), open("/proc/meminfo", encoding="ascii") as lines:
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(slots=True)
class _Found:
    """What the child has printed so far; other lines than those of `counter` are ignored."""

    is_loaded: bool = False
    buffers: tuple[MemoryBuffer, ...] = field(default=())
    refused: str | None = None
    missing: str | None = None
    unknown: str | None = None

    def take_line(self, data: bytes) -> None:
        try:
            line = decode(data, CountLine)
        except ValueError:
            return
        self.is_loaded = self.is_loaded or line.loaded
        self.buffers = line.buffers or self.buffers
        self.refused, self.missing = line.refused or self.refused, line.missing or self.missing
        self.unknown = line.unknown or self.unknown


def _part(buffer: MemoryBuffer, buffers: tuple[MemoryBuffer, ...]) -> str:
    """Return the member of MemoryCount to which a buffer counts."""
    if buffer.content in _COMPUTE:
        return "compute_bytes"
    if buffer.content != "model":
        return "cache_bytes"
    is_mapped = any(other.content == "model" and other.name.endswith("_Mapped") for other in buffers)
    return "repacked_bytes" if is_mapped and not buffer.name.endswith("_Mapped") else "weights_bytes"


def _failure(result: Result, found: _Found, label: str, tokens: int, free_bytes: int) -> str:
    """Return why there is no count, in one sentence."""
    if match := _TOO_LARGE.search(result.log):
        return (
            f"{label}: a context of {tokens:,} tokens does not fit into the memory of this machine: it needs a buffer "
            f"of {size_text(int(match['size']))}, and {size_text(free_bytes)} are free for all of it"
        )
    line = telling_line(result.log) if found.is_loaded else None
    refused = f"{found.refused}: {line}" if found.refused and line else found.refused
    return f"{label}: {failure_of(result, is_loaded=found.is_loaded, refused=refused).reason}"
