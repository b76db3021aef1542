"""Prompts beside readers: how long readers wait while models answer, and when each asker is served.

    python -m bench.try_it MODEL.gguf [--prompts 20] [--readers 50] [--tokens 64]

A server with `--try` and `--proxies 1` runs in a temporary registry with that model. Each prompt comes from an address
of its own, but three come from one. Readers are persons: they load a page, and pause for a second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

PAUSE_SECONDS = 1.0
SLOW_SECONDS = 0.5
WARM_SECONDS, ALONE_SECONDS = 10.0, 15.0
"""The time in which each process reads each page once, and the time in which readers are measured without prompts."""
POLL_SECONDS = 0.5
START_SECONDS = 60.0
END_SECONDS = 1800.0


def main() -> None:
    """Run the measurement and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="organ-try-") as home:
        environment = {**os.environ, "ORGAN_HOME": home, "ORGAN_REFERENCES": "off"}  # no repack meanwhile
        organ = [sys.executable, "-m", "organs.cli"]
        subprocess.run([*organ, "ingest", str(options.model), "--name", "me/tried"], env=environment, check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = subprocess.Popen([*organ, "serve", "--port", str(port), "--try", "--proxies", "1"], env=environment)
        try:
            _measure(f"http://127.0.0.1:{port}", options)
        finally:
            server.terminate()
            server.wait()


def _measure(root: str, options: argparse.Namespace) -> None:
    until = time.monotonic() + START_SECONDS
    while _get(f"{root}/healthz", "192.0.2.1") is None and time.monotonic() < until:
        time.sleep(0.2)
    stop = threading.Event()
    times: list[tuple[float, float]] = []
    readers = [
        threading.Thread(target=_read, args=(root, f"198.51.100.{number}", stop, times), daemon=True)
        for number in range(options.readers)
    ]
    for reader in readers:
        reader.start()
    time.sleep(WARM_SECONDS)
    times.clear()
    time.sleep(ALONE_SECONDS)
    alone, times[:] = list(times), []
    askers = [f"203.0.113.{1 if number % 4 == 0 and number < 12 else number + 10}" for number in range(options.prompts)]
    rows: list[tuple[str, float, float]] = []
    prompts = [
        threading.Thread(target=_ask, args=(root, address, number, options.tokens, rows))
        for number, address in enumerate(askers)
    ]
    asked_at = time.monotonic()
    for prompt in prompts:
        prompt.start()
    for prompt in prompts:
        prompt.join()
    stop.set()
    print("| readers | requests | p50 | p99 | worst |\n|---|---|---|---|---|")
    for label, measured in (("alone", alone), (f"beside {options.prompts} prompts", times)):
        ordered = sorted(seconds for _, seconds in measured) or [float("nan")]
        p50, p99 = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
        print(
            f"| {label} | {len(ordered):,} | {p50 * 1000:.0f} ms | {p99 * 1000:.0f} ms | {ordered[-1] * 1000:.0f} ms |"
        )
    slow = [round(begun - asked_at) for begun, seconds in times if seconds > SLOW_SECONDS]
    print(f"\n{len(slow)} of them took more than {SLOW_SECONDS:g} s; seconds after the first prompt: {Counter(slow)}")
    print("\n| served | asker | first piece after | complete after |\n|---|---|---|---|")
    for place, (asker, first, end) in enumerate(sorted(rows, key=lambda row: row[1]), 1):
        print(f"| {place} | {asker} | {first:.1f} s | {end:.1f} s |")


def _read(root: str, address: str, stop: threading.Event, times: list[tuple[float, float]]) -> None:
    pages = ("/", "/models", "/organs", "/models/me/tried", "/organs?q=type%3Aorgan", "/api/v1/models")
    order = random.Random(address)  # the same pages in each run
    while not stop.wait(order.uniform(0.5, 1.5) * PAUSE_SECONDS):
        begun = time.monotonic()
        if _get(root + order.choice(pages), address) is not None:
            times.append((begun, time.monotonic() - begun))


def _ask(root: str, address: str, number: int, tokens: int, rows: list[tuple[str, float, float]]) -> None:
    begun, first = time.monotonic(), 0.0
    body = {
        "model": "me/tried",
        "messages": [{"role": "user", "content": f"Write a short story about the number {number}."}],
        "tokens": tokens,
        "seed": number,
    }
    found = _get(f"{root}/api/v1/answers", address, body)
    while found is not None and time.monotonic() - begun < END_SECONDS:
        if found["replies"][0]["tokens"] and not first:
            first = time.monotonic() - begun
        if found["state"] not in ("queued", "running"):
            rows.append((address, first, time.monotonic() - begun))
            return
        time.sleep(POLL_SECONDS)
        found = _get(f"{root}/api/v1/answers/{found['key']}", address) or found
    print(f"{address}: not answered", file=sys.stderr)


def _get(address: str, client: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"X-Forwarded-For": client, "X-Forwarded-Proto": "http", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=60) as answer:
            content = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return json.loads(content) if is_json else content
    except urllib.error.HTTPError as error:
        print(f"{client} {address}: {error.code} {error.read()[:200]!r}", file=sys.stderr)
    except OSError:
        pass
    return None


if __name__ == "__main__":
    main()
