"""Hostile uploads through a running server: `make hostile`.

Several contributors send the data of `upload_cases` to `organ serve --accounts`, with its runner and the confined
inspector. Each case must end refused, with a finding, or immediately with 4xx; files that the reader accepts are only
inspected and withdrawn. Afterwards the registry must be unchanged: nothing visible or waiting, no digest known to any
account, and after two sweeps no new file in the uploads or in the store. The server must answer as before, and accept a
valid model.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any

from sqlalchemy import select, update

from organs.registry.catalog.tables import BlobLease, ModelRow, UploadRow, now
from organs.registry.digest import digest_of
from organs.registry.gguf import MemorySource, read_header
from organs.registry.local import LocalRegistry
from tests.faults.failing import blob_rows, files_below
from tests.faults.hostile.harness import Arena, Case, Options, Suite
from tests.faults.hostile.upload_cases import GOOD, attacks, send_files
from tests.faults.hostile.upload_client import Answer, Attack, Refused, Sender, Values
from tests.faults.hostile.upload_texts import OTHER
from tests.web.accounts import new_token
from tests.web.live_server import LiveServer

CLIENTS = 6
LOOKUP_MAX = 1000
AGE = timedelta(days=8)
"""After this time unused uploads are forgotten."""
OURS = ("our-fault", "crashed", "limit")
"""Findings of internal errors: no file may cause one."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a registry."""

    models: tuple[tuple[str, str], ...]
    """Names and states."""
    files: tuple[str, ...]
    """Files of the store."""
    blobs: tuple[str, ...]
    uploads: tuple[str, ...]


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[list[Case]]:
    """Serve a registry with one model; afterwards look for traces of the cases."""
    with LocalRegistry.open(arena.home) as registry:
        tokens = {name: new_token(registry, name) for name in ("ada", *(f"eve{number}" for number in range(CLIENTS)))}
    live = arena.serve("--accounts")
    ada, *eves = [Sender(live.port, name, token) for name, token in tokens.items()]
    assert send_files([("good.gguf", GOOD)], ada, "good")["state"] == "published"
    before, seen = content(arena), public_lists(live)
    free: SimpleQueue[Sender] = SimpleQueue()
    for eve in eves:
        free.put(eve)
    reasons: Counter[str] = Counter()

    def act(number: int, attack: Attack) -> str:
        eve = free.get()
        try:
            how, reason = sent(attack, eve, f"bad-{number}", str(arena.folder))
        finally:
            free.put(eve)
        reasons[reason] += 1
        return how

    wanted = enumerate(attacks(options.cases, options.seed))
    cases = [Case(attack.kind, attack.name, partial(act, number, attack)) for number, attack in wanted]
    yield [case for case in cases if options.only in f"{case.kind}, {case.name}"]
    arena.report.figures.append("why: " + ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()))
    check_unknown(arena, (ada,), eves)
    check_unchanged(arena, before, live, seen)
    check_unknown(arena, (ada, *eves), eves)
    live.health_seconds()
    made = send_files([("other.gguf", OTHER)], ada, "other", cuts=3)
    assert made["state"] == "published", f"a good model is not taken: {made}"
    arena.report.expect(live.get("/models/ada/other.gguf") == OTHER, "a good model comes back as another")


def sent(attack: Attack, eve: Sender, name: str, secret: str) -> tuple[str, str]:
    """Send an attack; return how it ended, and the reason in a word. No sentence may contain `secret`."""
    try:
        made = attack.send(eve, name)
    except Refused as error:
        check_answer(error.answer, secret)
        return "refused at once", str(error.answer.status)
    if made["state"] == "ready" and attack.is_sound:
        gone = eve.ask("DELETE", f"/submissions/{made['id']}")
        assert gone.values.get("state") == "withdrawn", f"not withdrawn: {gone}"
        return "sound, withdrawn", "ready"
    assert made["state"] == "refused", f"it ended {made['state']}"
    check_findings(made, secret)
    return "refused with findings", made["findings"][0]["code"]


def check_answer(answer: Answer, secret: str) -> None:
    detail = answer.values.get("detail", "")
    assert answer.is_refusal, f"it was answered {answer.status}: {detail}"
    assert answer.status != 429, f"it was answered {answer.status}: {detail}"
    check_sentence(detail, secret)


def check_findings(made: Values, secret: str) -> None:
    findings: list[dict[str, Any]] = made["findings"]
    assert findings, f"no finding refuses it: {made}"
    assert findings[0]["severity"] == "refuse", f"no finding refuses it: {made}"
    assert made["reason"] == findings[0]["sentence"], f"another reason: {made}"
    assert not [finding for finding in findings if finding["code"] in OURS], f"a fault of ours: {findings}"
    for finding in findings:
        check_sentence(finding["sentence"], secret)


def check_sentence(text: str, secret: str) -> None:
    is_good = text and text.isprintable() and secret not in text and len(text) <= 10_000
    assert is_good, f"it is told so: {text[:300]!r}"


def content(arena: Arena) -> Content:
    with LocalRegistry.open(arena.home) as registry:
        with registry.catalog.reading() as session:
            known = session.execute(select(ModelRow.name, ModelRow.state).order_by(ModelRow.id))
            models = tuple((name, state) for name, state in known)
        uploads = registry.settings.uploads
        return Content(
            models,
            tuple(files_below(registry)),
            tuple(sorted(row.digest for row in blob_rows(registry))),
            tuple(sorted(os.listdir(uploads))) if uploads.is_dir() else (),
        )


def public_lists(live: LiveServer) -> list[bytes]:
    """Return the public lists of models, organs and contributors."""
    return [live.get(f"/api/v1{path}") for path in ("/models", "/organs", "/contributors")]


def check_unknown(arena: Arena, asking: Sequence[Sender], eves: Sequence[Sender]) -> None:
    """Check that a lookup by the `asking` accounts knows no digest that was sent."""
    header = read_header(MemorySource(OTHER))
    spans = [(header.data_offset + tensor.offset, tensor.size_bytes) for tensor in header.tensors]
    digests = {digest for eve in eves for digest in eve.digests if len(digest) == 64}
    digests |= {digest_of(OTHER[offset : offset + size]) for offset, size in spans}
    requested = sorted(digest for digest in digests if set(digest) <= set("0123456789abcdef"))
    for sender in asking:
        for first in range(0, len(requested), LOOKUP_MAX):
            answer = sender.ask("POST", "/uploads/lookup", {"digests": requested[first : first + LOOKUP_MAX]})
            known = answer.values.get("known", ["all"])
            arena.report.faults += [f"{sender.name} is told that {digest} is here" for digest in known]


def check_unchanged(arena: Arena, before: Content, live: LiveServer, seen: list[bytes]) -> None:
    """Check that nothing else is visible, and that after some time two sweeps leave what was there before."""
    report, after = arena.report, content(arena)
    report.expect(after.models == before.models, f"there are models: {after.models}")
    report.expect(public_lists(live) == seen, "people see something else than before")
    report.figures.append(
        f"left before the sweep: {len(after.uploads)} uploads, {len(set(after.files) - set(before.files))} files and "
        f"{len(set(after.blobs) - set(before.blobs))} rows of blobs"
    )
    let_uploads_expire(arena)
    for _ in range(2):
        arena.must_run("sweep", "--yes", "--older-than", "0s")
    swept = asdict(content(arena))
    for what, there in asdict(before).items():
        report.expect(swept[what] == there, f"{what} differ after the sweep: {set(swept[what]) ^ set(there)}"[:1000])
    with LocalRegistry.open(arena.home) as registry, registry.catalog.reading() as session:
        report.expect(not session.scalars(select(BlobLease.blob_id)).all(), "blobs are leased")
    arena.check_registry()


def let_uploads_expire(arena: Arena) -> None:
    with LocalRegistry.open(arena.home) as registry:
        with registry.catalog.writing() as session:
            session.execute(update(UploadRow).values(expires_at=now() - AGE))
        for path in registry.settings.uploads.iterdir():
            os.utime(path, times=(time.time() - AGE.total_seconds(),) * 2)


SUITE = Suite(opened, {"cases": 200, "seed": 1, "only": ""}, lanes=CLIENTS)
"""`only` chooses the cases with this in their kinds and names."""
