"""Hostile uploads through a real server: `python -m tests.faults.hostile_uploads --cases 200 --seed 1`.

Several contributors send hostile data (`hostile_cases`) to `organ serve --accounts`, with its runner and the confined
inspector. Each case must end refused, with a finding, or immediately with 4xx; files that the reader accepts are only
inspected and withdrawn. Afterwards the registry must be unchanged: nothing visible or waiting, no digest known to any
account, and after two sweeps no new file in the uploads or in the store. The server must have written no traceback,
answer as before, accept a valid model, and leave no process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from sqlalchemy import select, update

from organs.registry.catalog.tables import BlobLease, ModelRow, UploadRow, now
from organs.registry.digest import digest_of
from organs.registry.gguf import MemorySource, read_header
from organs.registry.local import LocalRegistry
from tests import postgres
from tests.faults.failing import blob_rows, files_below, verify_all
from tests.faults.hostile_cases import GOOD, cases, send_files
from tests.faults.hostile_client import Answer, Case, Refused, Sender, Values
from tests.faults.hostile_texts import OTHER
from tests.web.accounts import new_token
from tests.web.live_server import ROOT, LiveServer, start_server, stop_server

CLIENTS = 6
LOOKUP_MAX = 1000
AGE = timedelta(days=8)
"""After this time (seconds) unused uploads are forgotten."""
OURS = ("our-fault", "crashed", "limit")
"""Findings of internal errors: no file may cause one."""
AT_ONCE, FOUND, SOUND = "refused at once", "refused with findings", "sound, withdrawn"
FAULTS_SHOWN_MAX = 40


@dataclass(frozen=True, slots=True)
class Lying:
    """The content of a registry."""

    models: tuple[tuple[str, str], ...]
    """Names and states."""
    files: tuple[str, ...]
    """Files of the store."""
    blobs: tuple[str, ...]
    uploads: tuple[str, ...]


@dataclass(slots=True)
class Told:
    """The outcomes of the cases."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counts by kind and outcome."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Counts by status or code of the first finding."""
    faults: list[str] = field(default_factory=list)


def main() -> None:
    """Send all cases, check and print; exit with 1 after any fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        faults = run(Path(name), cases(options.cases, options.seed))
    for fault in faults[:FAULTS_SHOWN_MAX]:
        print("WRONG:", fault)
    sys.exit(1 if faults else 0)


def run(folder: Path, wanted: Sequence[Case]) -> list[str]:
    """Return the faults."""
    home, log = folder / "home", folder / "server.log"
    with LocalRegistry.open(home) as registry:
        tokens = {name: new_token(registry, name) for name in ("ada", *(f"eve{number}" for number in range(CLIENTS)))}
    live = start_server(home, log, options=["--accounts"])
    family = {process.pid: process for process in [psutil.Process(live.process.pid)]}
    try:
        ada, *eves = [Sender(live.port, name, token) for name, token in tokens.items()]
        assert send_files([("good.gguf", GOOD)], ada, "good")["state"] == "published"
        before, seen, begun = _lying(home), _seen(live), time.monotonic()
        outcomes = _send(wanted, eves, folder, family)
        _print(outcomes, len(wanted), time.monotonic() - begun)
        faults = outcomes.faults + _unknown(ada, eves, own=False)
        faults += _afterwards(home, before, live, seen)
        faults += _unknown(ada, eves, own=True) + _takes_good(ada, live)
        family |= {process.pid: process for process in psutil.Process(live.process.pid).children(recursive=True)}
    finally:
        stop_server(live)
    faults += [f"left behind: {process}" for process in family.values() if process.is_running()]
    written = log.read_text(errors="replace")
    return faults + [
        f"in the log: {word}" for word in ("Traceback", "an inspector failed", "has ended;") if word in written
    ]


def _send(wanted: Iterable[Case], eves: Sequence[Sender], folder: Path, family: dict[int, psutil.Process]) -> Told:
    """Send all cases, each sender one after another."""
    left: SimpleQueue[tuple[int, Case]] = SimpleQueue()
    for numbered in enumerate(wanted):
        left.put(numbered)
    outcomes, lock = Told(), threading.Lock()

    def work(eve: Sender) -> None:
        while True:
            try:
                number, case = left.get_nowait()
            except Empty:
                return
            how, reason, fault = _one(case, eve, f"bad-{number}", folder)
            with lock:
                outcomes.counts[case.kind, how] += 1
                outcomes.reasons[reason] += 1
                if fault is not None:
                    outcomes.faults.append(f"{case.kind}, {case.what}: {fault}")

    threads = [threading.Thread(target=work, args=(eve,)) for eve in eves]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        family |= {process.pid: process for process in psutil.Process().children(recursive=True)}
        time.sleep(0.2)
    return outcomes


def _one(case: Case, eve: Sender, name: str, folder: Path) -> tuple[str, str, str | None]:
    """Return how a case ended, the reason in a word, and its faults."""
    try:
        made = case.send(eve, name)
    except Refused as error:
        return AT_ONCE, str(error.answer.status), _bad_answer(error.answer, folder)
    except (AssertionError, OSError) as error:
        return "broken", type(error).__name__, repr(error)
    if made["state"] == "ready" and case.is_sound:
        gone = eve.ask("DELETE", f"/submissions/{made['id']}")
        return SOUND, "ready", None if gone.values.get("state") == "withdrawn" else f"not withdrawn: {gone}"
    if made["state"] != "refused":
        return made["state"], made["state"], f"it ended {made['state']}"
    return FOUND, (made["findings"] or [{"code": "none"}])[0]["code"], _bad_findings(made, folder)


def _bad_answer(answer: Answer, folder: Path) -> str | None:
    detail = answer.values.get("detail", "")
    if not answer.is_refusal or answer.status == 429:
        return f"it was answered {answer.status}: {detail}"
    return _bad_sentence(detail, folder)


def _bad_findings(made: Values, folder: Path) -> str | None:
    findings: list[dict[str, Any]] = made["findings"]
    if not findings or findings[0]["severity"] != "refuse" or made["reason"] != findings[0]["sentence"]:
        return f"no finding refuses it: {made}"
    ours = [finding for finding in findings if finding["code"] in OURS]
    if ours:
        return f"a fault of ours: {ours}"
    return next((wrong for finding in findings if (wrong := _bad_sentence(finding["sentence"], folder))), None)


def _bad_sentence(text: str, folder: Path) -> str | None:
    if not text or not text.isprintable() or str(folder) in text or len(text) > 10_000:
        return f"it is told so: {text[:300]!r}"
    return None


def _lying(home: Path) -> Lying:
    with LocalRegistry.open(home) as registry:
        with registry.catalog.reading() as session:
            known = session.execute(select(ModelRow.name, ModelRow.state).order_by(ModelRow.id))
            models = tuple((name, state) for name, state in known)
        uploads = registry.settings.uploads
        return Lying(
            models,
            tuple(files_below(registry)),
            tuple(sorted(row.digest for row in blob_rows(registry))),
            tuple(sorted(os.listdir(uploads))) if uploads.is_dir() else (),
        )


def _seen(live: LiveServer) -> list[bytes]:
    """Return the public lists of models, organs and contributors."""
    return [live.get(f"/api/v1{path}") for path in ("/models", "/organs", "/contributors")]


def _unknown(ada: Sender, eves: Sequence[Sender], *, own: bool) -> list[str]:
    """Return the sent digests that a lookup wrongly knows: asked by another account, and with `own` by the sender."""
    header = read_header(MemorySource(OTHER))
    spans = [(header.data_offset + tensor.offset, tensor.size_bytes) for tensor in header.tensors]
    digests = {digest for eve in eves for digest in eve.digests if len(digest) == 64}
    digests |= {digest_of(OTHER[offset : offset + size]) for offset, size in spans}
    requested = sorted(digest for digest in digests if set(digest) <= set("0123456789abcdef"))
    faults = []
    for sender in (ada, *(eves if own else ())):
        for first in range(0, len(requested), LOOKUP_MAX):
            answer = sender.ask("POST", "/uploads/lookup", {"digests": requested[first : first + LOOKUP_MAX]})
            faults += [f"{sender.name} is told that {digest} is here" for digest in answer.values.get("known", ["all"])]
    return faults


def _afterwards(home: Path, before: Lying, live: LiveServer, seen: list[bytes]) -> list[str]:
    """What is another than before: at once, and when time has passed and two sweeps have run."""
    after = _lying(home)
    faults = [] if after.models == before.models else [f"there are models: {after.models}"]
    faults += [] if _seen(live) == seen else ["people see something else than before"]
    print(
        f"left before the sweep: {len(after.uploads)} uploads, {len(set(after.files) - set(before.files))} files and "
        f"{len(set(after.blobs) - set(before.blobs))} rows of blobs"
    )
    _let_uploads_expire(home)
    for _ in range(2):
        command = [sys.executable, "-m", "organs.cli", "--home", str(home), "sweep", "--yes", "--older-than", "0s"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | postgres.environment(home)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        faults += [] if done.returncode == 0 else [f"the sweep failed: {done.stderr}"]
    for what in ("models", "files", "blobs", "uploads"):
        more = set(getattr(_lying(home), what)) ^ set(getattr(before, what))
        faults += [f"{what} differ after the sweep: {sorted(more)[:3]}"] if more else []
    with LocalRegistry.open(home) as registry:
        with registry.catalog.reading() as session:
            leases = session.scalars(select(BlobLease.blob_id)).all()
        report = verify_all(registry)
    faults += [f"{len(leases)} blobs are leased"] if leases else []
    return faults + [str(fault) for fault in (*report.faults, *report.miscounted.items())]


def _let_uploads_expire(home: Path) -> None:
    with LocalRegistry.open(home) as registry:
        with registry.catalog.writing() as session:
            session.execute(update(UploadRow).values(expires_at=now() - AGE))
        for path in registry.settings.uploads.iterdir():
            os.utime(path, times=(time.time() - AGE.total_seconds(),) * 2)


def _takes_good(ada: Sender, live: LiveServer) -> list[str]:
    live.health_seconds()
    made = send_files([("other.gguf", OTHER)], ada, "other", cuts=3)
    if made["state"] != "published":
        return [f"a good model is not taken: {made}"]
    return [] if live.get("/models/ada/other.gguf") == OTHER else ["a good model comes back as another"]


def _print(told: Told, number: int, seconds: float) -> None:
    print(f"{number} cases in {seconds:.0f} s", flush=True)
    hows = sorted({how for _, how in told.counts})
    for kind in sorted({kind for kind, _ in told.counts}):
        print(f"  {kind:26}", ", ".join(f"{told.counts[kind, how]} {how}" for how in hows if told.counts[kind, how]))
    print("  why:", ", ".join(f"{count} {reason}" for reason, count in told.reasons.most_common()))


if __name__ == "__main__":
    main()
