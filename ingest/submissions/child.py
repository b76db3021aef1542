"""A program of its own: looks at what was sent, takes it apart by the ordinary ingest, and says what came of it.

    python -m ingest.submissions.child      with an order as JSON on stdin:

    {"home": PATH, "database_url": URL, "blobs": PATH, "submission": 1, "publish": true}

It says lines of JSON, as they come: `{"progress": 0.5, "note": WORDS}` · `{"looked": {"proposed": {...}, "findings":
[...]}}` when the headers have been read · `{"ingest": ID}` before anything is stored · `{"registered": {"model": ID,
"created": BOOLEAN, "findings": [...]}}`, and the model is quarantined then, or one of the same bytes and name was there
already. In place of what should follow: `{"refused": [...]}`, findings, or `{"fault": WORDS}` for what is not the
contributor's fault. It reads bytes that anybody may have made, so it runs under limits (`confined`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ingest.composed import ComposedFile
from ingest.dissect import DissectedFile, dissect
from ingest.opening import in_order
from ingest.records import model_digest
from ingest.service import Intake, ingest_files
from ingest.submissions.findings import REFUSE, Finding, finding_of
from ingest.submissions.manifest import BadManifest, StatedMetadata
from ingest.submissions.neighbours import base_findings, digest_findings, organ_findings
from ingest.submissions.pieces import LocatedFile, Sources, composed_file, locate
from ingest.submissions.proposal import Proposal, declared_parents, findings_of, identity_of, propose
from ingest.submissions.serialize import manifest_of, stated_metadata_of
from registry.catalog.queries.submissions import submission_by_id
from registry.catalog.records import ModelRecord, ParentRecord
from registry.catalog.tables import Model, Submission
from registry.digest import Digest
from registry.errors import BadInput, OrganError, UnsupportedDType
from registry.names import ModelName
from registry.registry import Registry
from registry.settings import Settings

ORDER_MAX_BYTES = 64 * 1024
SAID_SECONDS = 1.0
"""Between two words of progress."""

Say = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A submission as values."""

    name: ModelName
    contributor: str
    contributor_id: int
    stated: StatedMetadata
    files: list[LocatedFile]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def main() -> None:
    """Read one order, do it, end."""
    order = json.loads(sys.stdin.buffer.read(ORDER_MAX_BYTES))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is log

    def say(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    settings = Settings(Path(order["home"]), order["database_url"], Path(order["blobs"]))
    with Registry.from_settings(settings) as registry:
        work(registry, order["submission"], publish=order["publish"], say=say)


def work(registry: Registry, submission_id: int, *, publish: bool, say: Say) -> None:
    """Look at a submission, and with `publish`, take it apart; everything that comes of it is said."""
    try:
        with ExitStack() as opened:
            sent = _sent(registry, submission_id)
            files = _open(opened, registry, sent)
            proposed = propose(files, sent.stated)
            found = _looked(registry, files, sent, proposed)
            say({"looked": {"proposed": proposed.values(), "findings": found}})
            refused = [one for one in found if one["severity"] == REFUSE]
            if publish and refused:
                say({"refused": refused})  # while it is only looked at, another base may still be named
            elif publish:
                say({"registered": _register(registry, files, sent, proposed, say)})
    except BadManifest as error:
        sentences = [f"{where}: {sentence}" if where else sentence for where, sentence in error.reasons]
        say({"refused": [asdict(Finding(REFUSE, "missing-bytes", sentence)) for sentence in sentences]})
    except BadInput as error:
        say({"refused": [asdict(finding_of(error))]})
    except UnsupportedDType as error:
        say({"refused": [asdict(Finding(REFUSE, "unsupported-dtype", str(error)))]})
    except MemoryError:
        sentence = "Looking at it takes more memory than is given to anybody: it was stopped."
        say({"refused": [asdict(Finding(REFUSE, "limit", sentence))]})
    except OrganError as error:
        say({"fault": str(error)})


def _sent(registry: Registry, submission_id: int) -> _Sent:
    with registry.catalog.reading() as session:
        found = submission_by_id(session, submission_id)
        row: Submission = found.row
        files = locate(session, row.contributor_id, registry.settings.uploads, manifest_of(row))
        return _Sent(
            ModelName(row.namespace, row.name), found.contributor, row.contributor_id, stated_metadata_of(row), files
        )


def _open(opened: ExitStack, registry: Registry, sent: _Sent) -> list[DissectedFile]:
    sources = opened.enter_context(Sources(registry))
    return in_order(sent.name.name, [dissect(composed_file(sources, file)) for file in sent.files])


def _looked(
    registry: Registry, files: Sequence[DissectedFile], sent: _Sent, proposed: Proposal
) -> list[dict[str, Any]]:
    found = list(findings_of(files, sent.name, proposed))
    digests = [_promised(file) for file in files]
    is_partial = proposed.kind == "model" and not proposed.complete
    organs = [tensor for file in files for tensor in file.header.tensors] if is_partial else []
    header = files[0].header
    child = identity_of(header, sent.name, proposed)
    with registry.catalog.reading() as session:
        found += base_findings(session, proposed.base, organs, child, declared_parents(header))
        if all(digest is not None for digest in digests):
            digest = model_digest([one for one in digests if one is not None])
            found += digest_findings(session, digest, sent.name, sent.contributor_id)
    return [asdict(one) for one in found]


def _promised(file: DissectedFile) -> Digest | None:
    """The SHA-256 that the file is said to have."""
    return file.source.sha256 if isinstance(file.source, ComposedFile) else None


def _register(
    registry: Registry, files: Sequence[DissectedFile], sent: _Sent, proposed: Proposal, say: Say
) -> dict[str, Any]:
    def settle(record: ModelRecord) -> ModelRecord:
        for file, found in zip(files, record.files, strict=True):
            promised = _promised(file)
            if promised is not None and promised != found.sha256:
                raise BadInput(f"{file.source.name}: its SHA-256 is {found.sha256}, and was to be {promised}")
        return _said(record, sent)

    registered: list[int] = []
    intake = Intake(
        label=f"submitted by {sent.contributor}",
        name=sent.name,
        settle=settle,
        begun=lambda ingest_id: say({"ingest": ingest_id}),
        registered=lambda model: registered.append(model.id),
    )
    report = ingest_files(registry, files, intake, _Progress(say, sent.size_bytes))
    with registry.catalog.reading() as session:
        model = session.get_one(Model, registered[0])
        found = [
            *organ_findings(session, model, proposed.base),
            *digest_findings(session, report.digest, sent.name, sent.contributor_id),
        ]
    return {"model": registered[0], "created": report.created, "findings": [asdict(one) for one in found]}


def _said(record: ModelRecord, sent: _Sent) -> ModelRecord:
    """The record with what its contributor says, kept back until it is published."""
    stated = sent.stated
    relation = "adapter" if record.kind == "adapter" else "finetune"
    return replace(
        record,
        title=stated.title or record.title,
        description=stated.description or record.description,
        license=stated.license or record.license,
        tags=record.tags if stated.tags is None else stated.tags,
        parents=record.parents if stated.base is None else (ParentRecord(stated.base, relation),),
        contributor=sent.contributor,
        state="quarantined",
    )


class _Progress:
    """Says how much of the bytes has been dealt with, at most once a second. For any thread."""

    def __init__(self, say: Say, size_bytes: int) -> None:
        self._say = say
        self._size_bytes = size_bytes
        self._done_bytes = 0
        self._said_at = time.monotonic()

    def __call__(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if time.monotonic() - self._said_at >= SAID_SECONDS:
            self._said_at = time.monotonic()
            share = min(self._done_bytes / max(self._size_bytes, 1), 1.0)
            self._say({"progress": round(share, 3), "note": "taking it apart"})


if __name__ == "__main__":
    main()
