"""Measure the seconds and the memory of opening a header: our reader beside `gguf.GGUFReader`.

    python -m bench.header              five rounds; the peer needs about ten seconds in each
    python -m bench.header --json

The file has the vocabulary of a current model: 152k tokens of byte-level BPE, their types, and 151k merges. Each
opening is in a new process, in alternation (A B A B). The time is from the call to the header, without imports. The
memory is the growth of the resident set from just before the call to its peak. The median round is shown.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

TOKENS = 152_064
MERGES = 151_387
SPACE = "\u0120"  # the form of a space in byte-level BPE
ONSETS = (
    "",
    *"bcdfghjklmnprstvwyz",
    "br",
    "ch",
    "cl",
    "cr",
    "dr",
    "fl",
    "gr",
    "pl",
    "pr",
    "sh",
    "st",
    "str",
    "th",
    "tr",
)
VOWELS = (*"aeiou", "ai", "ea", "ee", "ie", "oo", "ou", "io")
CODAS = ("", "", "", *"cdklmnprstx", "ck", "ct", "ld", "nd", "ng", "nt", "rd", "rt", "ss", "st", "tion")
GOAL_TIMES_FASTER = 50
GOAL_SHARE = 0.1
READERS = ("ours", "gguf")
MEGA = 1_000_000
LINUX_RESET = Path("/proc/self/clear_refs")
LINUX_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Opening:
    """One opening: seconds, growth of resident memory in bytes, and counts to compare both readers."""

    seconds: float
    memory_bytes: int
    tokens: int
    tensors: int


@dataclass(frozen=True, slots=True)
class Result:
    """The median of several openings by one reader."""

    reader: str
    seconds: float
    memory_bytes: int
    rounds: int


def main() -> None:
    """Write the file, run the rounds, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=("make", *READERS), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child == "make":
        make(arguments.file)
    elif arguments.child:
        print(json.dumps(asdict(OPEN[arguments.child](arguments.file))))
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "header.gguf")
            results, size = run(path, arguments.rounds)
        print(json.dumps([asdict(result) for result in results]) if arguments.json else table(results, size))


def run(path: Path, rounds: int) -> tuple[list[Result], int]:
    """Open the file in turns; return the median for each reader, and the size of the file."""
    _child("make", path)
    openings: dict[str, list[Opening]] = {reader: [] for reader in READERS}
    for _ in range(rounds):
        for reader in READERS:
            openings[reader].append(Opening(**json.loads(_child(reader, path))))
    assert len({(item.tokens, item.tensors) for found in openings.values() for item in found}) == 1
    results = [
        Result(
            reader,
            statistics.median(item.seconds for item in found),
            int(statistics.median(item.memory_bytes for item in found)),
            rounds,
        )
        for reader, found in openings.items()
    ]
    return results, path.stat().st_size


def table(results: list[Result], size: int) -> str:
    """Return the table for people."""
    ours, theirs = results
    faster, share = theirs.seconds / ours.seconds, ours.memory_bytes / max(theirs.memory_bytes, 1)
    return "\n".join(
        (
            f"A header of {size / MEGA:.1f} MB: {TOKENS:,} tokens, {MERGES:,} merges; median of {ours.rounds}",
            f"{'reader':<18}{'seconds':>10}{'memory MB':>12}",
            *(
                f"{_label(result.reader):<18}{result.seconds:>10.4f}{result.memory_bytes / MEGA:>12.1f}"
                for result in results
            ),
            f"{faster:.0f} times faster (goal: {GOAL_TIMES_FASTER}), {share:.3f} of the memory (goal: {GOAL_SHARE})",
        )
    )


def make(path: Path) -> None:
    """Write the file: a vocabulary with types and merges, a few scalars, one tensor."""
    from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name, write_file

    tokens = vocabulary(TOKENS)
    entries = [
        KeyValue("general.architecture", ValueType.STRING, "qwen2"),
        KeyValue("qwen2.context_length", ValueType.UINT32, 32_768),
        KeyValue("tokenizer.ggml.model", ValueType.STRING, "gpt2"),
        KeyValue("tokenizer.ggml.tokens", ValueType.ARRAY, tokens, ValueType.STRING),
        KeyValue("tokenizer.ggml.token_type", ValueType.ARRAY, [1] * TOKENS, ValueType.INT32),
        KeyValue("tokenizer.ggml.merges", ValueType.ARRAY, merges(tokens, MERGES), ValueType.STRING),
        KeyValue("tokenizer.ggml.eos_token_id", ValueType.UINT32, 0),
    ]
    spec = TensorSpec("token_embd.weight", (64, 4), dtype_by_name("F32"))
    with path.open("wb") as stream:
        write_file(stream, entries, [(spec, bytes(spec.size_bytes))])


def vocabulary(count: int) -> list[str]:
    """Return `count` different tokens that look like byte-level BPE: words and parts of words, most after a space."""
    chance = random.Random(7)
    tokens = dict.fromkeys(chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 324)))
    while len(tokens) < count:
        word = "".join(
            chance.choice(ONSETS) + chance.choice(VOWELS) + chance.choice(CODAS)
            for _ in range(chance.choice((1, 2, 2, 2, 3, 3, 4)))
        )
        word = word.title() if chance.random() < 0.15 else word
        tokens[SPACE + word if chance.random() < 0.6 else word] = None
    return list(tokens)


def merges(tokens: list[str], count: int) -> list[str]:
    """Return `count` pairs of parts, as if each long token had been merged from two."""
    chance = random.Random(11)
    long = [token for token in tokens if len(token) > 1]
    cuts = (long[index % len(long)] for index in range(count))
    return [f"{token[:place]} {token[place:]}" for token in cuts for place in (chance.randrange(1, len(token)),)]


def open_ours(path: Path) -> Opening:
    """Open the file with our reader."""
    from organs.registry.gguf import read_header
    from organs.registry.input_files import FileSource

    def counts() -> tuple[int, int]:
        with FileSource(path) as source:
            header = read_header(source)
        tokens = header.field("tokenizer.ggml.tokens")
        return tokens.count if tokens else 0, len(header.tensors)

    return measured(counts)


def open_theirs(path: Path) -> Opening:
    """Open the file with the reader of the `gguf` package."""
    from gguf import GGUFReader

    def counts() -> tuple[int, int]:
        reader = GGUFReader(path)
        return len(reader.fields["tokenizer.ggml.tokens"].data), len(reader.tensors)

    return measured(counts)


OPEN: dict[str, Callable[[Path], Opening]] = {"ours": open_ours, "gguf": open_theirs}


def measured(act: Callable[[], tuple[int, int]]) -> Opening:
    """Time `act` once; return the result with the growth of resident memory at its peak."""
    before = _reset_peak()
    begin = time.perf_counter()
    tokens, tensors = act()
    seconds = time.perf_counter() - begin
    return Opening(seconds, max(_peak() - before, 0), tokens, tensors)


def _reset_peak() -> int:
    """Return the resident bytes. Linux can reset the peak of the imports; elsewhere growth counts from that peak."""
    if LINUX_RESET.exists():
        LINUX_RESET.write_text("5")
    return _peak()


def _peak() -> int:
    if LINUX_STATUS.exists():
        line = next(line for line in LINUX_STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _child(what: str, path: Path) -> str:
    command = [sys.executable, "-m", "bench.header", "--child", what, "--file", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _label(reader: str) -> str:
    return {"ours": "organ registry", "gguf": "gguf.GGUFReader"}[reader]


if __name__ == "__main__":
    main()
