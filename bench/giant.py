"""Measure a mixture of experts with a trillion parameters over HTTP, in runs that are killed and continue.

    python -m bench.giant                           61 blocks, 384 experts, 61 shards of about 10 GB; three kills
    python -m bench.giant --blocks 6 --kills 1      a smaller one

The files exist only in the answers of a server in another process: headers, and generated weights that repeat.
Prints bytes, requests, time and the peak memory of `organ measure`.
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
from pathlib import Path

import numpy as np

from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name, encode_header, padded
from organs.registry.gguf.quants import quantize

WIDTH, EXPERTS, EXPERT_WIDTH, DENSE_WIDTH, VOCABULARY = 7168, 384, 2048, 18_432, 163_840
HEADS, QUERY_RANK, KEY_RANK, ROPE, HEAD = 64, 1536, 512, 64, 128
ALIGNMENT = 32
PATTERN_BLOCKS = 1 << 14
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


def serve(blocks: int, ready: Connection) -> None:
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
                    self.request.sendall(self.answer(head + b"\r\n"))

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
def served(blocks: int) -> Iterator[str]:
    """Serve the files in another process; yield the address of the first one."""
    receiver, sender = get_context("spawn").Pipe(duplex=False)
    process = get_context("spawn").Process(target=serve, args=(blocks, sender), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}/Giant-00001-of-{blocks:05d}.gguf"
    finally:
        process.kill()
        process.join()


def measure(url: str, cache: str, kill_after_seconds: float | None) -> tuple[int, str, str, int]:
    """Run `organ measure`; return its status, its output, its messages and its peak memory in bytes."""
    command = [sys.executable, "-m", "organs.cli", "measure", url]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(command, stdout=out, stderr=messages, env=os.environ | {"XDG_CACHE_HOME": cache})
        if kill_after_seconds is not None:
            time.sleep(kill_after_seconds)
            process.send_signal(signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        out.seek(0)
        messages.seek(0)
        text, notes = out.read().decode(), messages.read().decode()
    return os.waitstatus_to_exitcode(status), text, notes, usage.ru_maxrss * 1024


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=61)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--kill-after", type=float, default=60.0, metavar="SECONDS")
    options = parser.parse_args()
    files = shards(options.blocks)
    size_bytes = sum(shard.size_bytes for shard in files.values())
    with served(options.blocks) as url, tempfile.TemporaryDirectory() as cache:
        begun = time.monotonic()
        peaks, before = [], []
        for _ in range(options.kills):
            status, _, _, peak = measure(url, cache, options.kill_after)
            assert status == -signal.SIGKILL, "it was done before it was killed"
            journals = list(Path(cache).rglob("*.jsonl"))
            before.append(sum(journal.read_bytes().count(b"\n") - 1 for journal in journals))
            peaks.append(peak)
        status, out, notes, peak = measure(url, cache, None)
        assert status == 0, notes
        seconds = time.monotonic() - begun
    print(out)
    print(notes)
    figures = {
        "size_bytes": size_bytes,
        "tensors_measured_before_each_kill": before,
        "peak_memory_bytes": max(*peaks, peak),
        "seconds": round(seconds, 1),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
