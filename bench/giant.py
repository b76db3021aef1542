"""Measure a mixture of experts with a trillion parameters over HTTP, in runs that are killed and continue.

    python -m bench.giant                           61 blocks, 384 experts, 61 shards of about 10 GB; three kills
    python -m bench.giant --blocks 6 --kills 1      a smaller one

The files exist only in the answers of a server in another process: headers, and generated weights that repeat. The
server counts the bytes and the requests of each run, also of those that are killed. Prints them, the time and the peak
memory of `organ measure`, and fails if all runs together read more than 0.5% or need more than 500 MB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from typing import TypeAlias

import numpy as np

from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name, encode_header, padded
from organs.registry.gguf.quants import quantize

WIDTH, EXPERTS, EXPERT_WIDTH, DENSE_WIDTH, VOCABULARY = 7168, 384, 2048, 18_432, 163_840
HEADS, QUERY_RANK, KEY_RANK, ROPE, HEAD = 64, 1536, 512, 64, 128
ALIGNMENT = 32
PATTERN_BLOCKS = 1 << 14
READ_SHARE_MAX = 0.005
MEMORY_MAX_BYTES = 500_000_000
REQUEST = re.compile(rb"GET /([\w.-]+) HTTP/1\.1\r\n(?:.*\r\n)*?[Rr]ange: bytes=(\d+)-(\d+)\r\n")


def tensors_of_block(block: int) -> Iterator[TensorSpec]:
    """Yield the tensors of one block: latent attention, and a dense (block 0) or an expert feed-forward."""
    weight, small, norm = dtype_by_name("Q4_0"), dtype_by_name("Q8_0"), dtype_by_name("F32")
    feed_forward = {"ffn_gate": (WIDTH, DENSE_WIDTH), "ffn_up": (WIDTH, DENSE_WIDTH), "ffn_down": (DENSE_WIDTH, WIDTH)}
    experts = {
        "ffn_gate_exps": (WIDTH, EXPERT_WIDTH, EXPERTS),
        "ffn_up_exps": (WIDTH, EXPERT_WIDTH, EXPERTS),
        "ffn_down_exps": (EXPERT_WIDTH, WIDTH, EXPERTS),
        "ffn_gate_shexp": (WIDTH, EXPERT_WIDTH),
        "ffn_up_shexp": (WIDTH, EXPERT_WIDTH),
        "ffn_down_shexp": (EXPERT_WIDTH, WIDTH),
    }
    matrices = {
        "attn_q_a": (WIDTH, QUERY_RANK),
        "attn_q_b": (QUERY_RANK, HEADS * (HEAD + ROPE)),
        "attn_kv_a_mqa": (WIDTH, KEY_RANK + ROPE),
        "attn_output": (HEADS * HEAD, WIDTH),
    } | (feed_forward if block == 0 else experts)
    heads = {"attn_k_b": (HEAD, KEY_RANK, HEADS), "attn_v_b": (KEY_RANK, HEAD, HEADS)}
    vectors = {"attn_norm": WIDTH, "attn_q_a_norm": QUERY_RANK, "attn_kv_a_norm": KEY_RANK, "ffn_norm": WIDTH}
    for name, shape in matrices.items():
        yield TensorSpec(f"blk.{block}.{name}.weight", shape, weight)
    for name, shape in heads.items():
        yield TensorSpec(f"blk.{block}.{name}.weight", shape, small)
    for name, size in vectors.items():
        yield TensorSpec(f"blk.{block}.{name}.weight", (size,), norm)
    if block:
        yield TensorSpec(f"blk.{block}.ffn_gate_inp.weight", (WIDTH, EXPERTS), norm)
        yield TensorSpec(f"blk.{block}.exp_probs_b.bias", (EXPERTS,), norm)


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of the set: its header, and the dtypes by the offsets at which tensors begin."""

    header: bytes
    begins: tuple[int, ...]
    dtypes: tuple[str, ...]
    size_bytes: int


def shards(blocks: int) -> dict[str, Shard]:
    """Return the files by name, with one block in each."""
    weight, norm = dtype_by_name("Q8_0"), dtype_by_name("F32")
    ends = [
        TensorSpec("token_embd.weight", (WIDTH, VOCABULARY), weight),
        TensorSpec("output.weight", (WIDTH, VOCABULARY), weight),
        TensorSpec("output_norm.weight", (WIDTH,), norm),
    ]
    groups = [[*(ends if block == 0 else []), *tensors_of_block(block)] for block in range(blocks)]
    files = {}
    for number, group in enumerate(groups):
        metadata = [
            KeyValue("split.no", ValueType.UINT16, number),
            KeyValue("split.count", ValueType.UINT16, blocks),
            KeyValue("split.tensors.count", ValueType.INT32, sum(map(len, groups))),
        ]
        if number == 0:
            metadata.insert(0, KeyValue("general.architecture", ValueType.STRING, "deepseek2"))
            metadata.append(KeyValue("deepseek2.expert_count", ValueType.UINT32, EXPERTS))
        header = encode_header(metadata, group)
        begins, position = [], len(header)
        for tensor in group:
            begins.append(position)
            position += padded(tensor.size_bytes, ALIGNMENT)
        dtypes = tuple(tensor.dtype.name for tensor in group)
        files[f"Giant-{number + 1:05d}-of-{blocks:05d}.gguf"] = Shard(header, tuple(begins), dtypes, position)
    return files


def patterns() -> dict[str, bytes]:
    """Return for each dtype a sequence of blocks with Gaussian values. Tensors repeat it."""
    values = np.random.default_rng(16).standard_normal(PATTERN_BLOCKS * 32).astype(np.float32) * 0.02
    return {name: bytes(quantize(values, dtype_by_name(name))) for name in ("Q4_0", "Q8_0", "F32")}


def read(shard: Shard, pattern: dict[str, bytes], begin: int, end: int) -> bytes:
    """Return the bytes `begin` to `end` of a file."""
    data = bytearray(shard.header[begin:end])
    position = begin + len(data)
    while position < end:
        index = bisect_right(shard.begins, position) - 1
        following = shard.begins[index + 1] if index + 1 < len(shard.begins) else shard.size_bytes
        repeated = pattern[shard.dtypes[index]]
        start = (position - shard.begins[index]) % len(repeated)
        piece = repeated[start : start + min(end, following) - position]
        data += piece
        position += len(piece)
    return bytes(data)


Counts: TypeAlias = "SynchronizedArray[int]"
"""The requests that the server has answered, and the bytes of these answers."""


def serve(blocks: int, ready: Connection, counts: Counts) -> None:
    """Serve the files on a free port, and send the port through `ready`."""
    files, pattern = shards(blocks), patterns()

    class Handler(socketserver.StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with suppress(ConnectionError):  # a client that was killed
                self.answer_requests()

        def answer_requests(self) -> None:
            buffer = b""
            while chunk := self.request.recv(65536):
                buffer += chunk
                while b"\r\n\r\n" in buffer:
                    head, _, buffer = buffer.partition(b"\r\n\r\n")
                    answer = self.answer(head + b"\r\n")
                    with counts.get_lock():  # before it is sent: an answer that a killed client misses counts too
                        counts[0] += 1
                        counts[1] += len(answer)
                    self.request.sendall(answer)

        def answer(self, head: bytes) -> bytes:
            match = REQUEST.match(head)
            shard = files.get(match[1].decode()) if match else None
            if match is None or shard is None:
                return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
            begin, end = int(match[2]), min(int(match[3]) + 1, shard.size_bytes)
            body = read(shard, pattern, begin, end)
            lines = (
                "HTTP/1.1 206 Partial Content",
                f"Content-Range: bytes {begin}-{end - 1}/{shard.size_bytes}",
                f"Content-Length: {len(body)}",
                'ETag: "1"',
            )
            return "\r\n".join([*lines, "", ""]).encode() + body

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        ready.send(server.server_address[1])
        server.serve_forever()


@contextmanager
def served(blocks: int) -> Iterator[tuple[str, Counts]]:
    """Serve the files in another process; yield the address of the first one, and the counts of the server."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    counts = context.Array("q", 2)
    process = context.Process(target=serve, args=(blocks, sender, counts), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}/Giant-00001-of-{blocks:05d}.gguf", counts
    finally:
        process.kill()
        process.join()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of `organ measure`."""

    status: int
    out: str
    messages: str
    requests: int
    sent_bytes: int
    """The bytes of the server's answers."""
    seconds: float
    peak_memory_bytes: int

    def figures(self, tensors: int) -> dict[str, float]:
        """Return what is printed of the run, after which `tensors` tensors are measured."""
        return {
            "seconds": round(self.seconds, 1),
            "requests": self.requests,
            "sent_bytes": self.sent_bytes,
            "peak_memory_bytes": self.peak_memory_bytes,
            "tensors_measured": tensors,
        }


def measure(url: str, counts: Counts, cache: str, kill_after_seconds: float | None) -> Run:
    """Run `organ measure`."""
    command = [sys.executable, "-m", "organs.cli", "measure", url]
    requests, sent_bytes, begun = counts[0], counts[1], time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(command, stdout=out, stderr=messages, env=os.environ | {"XDG_CACHE_HOME": cache})
        if kill_after_seconds is not None:
            time.sleep(kill_after_seconds)
            process.send_signal(signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        out.seek(0)
        messages.seek(0)
        text, notes = out.read().decode(), messages.read().decode()
    return Run(
        status=os.waitstatus_to_exitcode(status),
        out=text,
        messages=notes,
        requests=counts[0] - requests,
        sent_bytes=counts[1] - sent_bytes,
        seconds=time.monotonic() - begun,
        peak_memory_bytes=usage.ru_maxrss * 1024,
    )


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=61)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--kill-after", type=float, default=60.0, metavar="SECONDS")
    options = parser.parse_args()
    files = shards(options.blocks)
    size_bytes = sum(shard.size_bytes for shard in files.values())
    with served(options.blocks) as (url, counts), tempfile.TemporaryDirectory() as cache:
        runs, tensors = [], []
        for _ in range(options.kills):
            run = measure(url, counts, cache, options.kill_after)
            assert run.status == -signal.SIGKILL, "it was done before it was killed"
            journals = list(Path(cache).rglob("*.jsonl"))
            tensors.append(sum(journal.read_bytes().count(b"\n") - 1 for journal in journals))
            runs.append(run)
        last = measure(url, counts, cache, None)
        assert last.status == 0, last.messages
        runs.append(last)
        tensors.append(sum(len(shard.dtypes) for shard in files.values()))
    print(last.out)
    print(last.messages)
    sent_bytes = sum(run.sent_bytes for run in runs)
    peak = max(run.peak_memory_bytes for run in runs)
    figures = {
        "size_bytes": size_bytes,
        "runs": [run.figures(count) for run, count in zip(runs, tensors, strict=True)],
        "seconds": round(sum(run.seconds for run in runs), 1),
        "requests": sum(run.requests for run in runs),
        "sent_bytes": sent_bytes,
        "sent_share": round(sent_bytes / size_bytes, 6),
        "peak_memory_bytes": peak,
    }
    print(json.dumps(figures, indent=2))
    assert sent_bytes < READ_SHARE_MAX * size_bytes, "more than 0.5% was read"
    assert peak < MEMORY_MAX_BYTES, "more than 500 MB of memory was needed"


if __name__ == "__main__":
    main()
