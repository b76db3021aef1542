"""Whether a model has room in its contributor's quota there: told before its first byte travels.

It is a forecast. The registry counts as `registry.catalog.queries.quota` does, and decides; what is not known here is
taken to be in the push's favour.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial

from organs.ingest.pushing.answers import KeptUpload, Room, kept_uploads
from organs.ingest.pushing.cutting import CutFile
from organs.ingest.pushing.loading import Load, Wanted, loads
from organs.ingest.pushing.waiting import patiently
from organs.registry.amounts import size_text
from organs.registry.catalog.queries.quota import PIECE_ROW_BYTES, Quota
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.client.connection import API, Connection
from organs.registry.digest import Digest
from organs.registry.errors import OverQuota
from organs.registry.names import ModelName

UNSENT = "nothing was sent"


def check_room(
    connection: Connection,
    name: ModelName,
    files: Sequence[CutFile],
    missing: Mapping[Digest, Wanted],
    known_bytes: int,
    stop: threading.Event,
) -> None:
    """Raise OverQuota where the model `name` of `files` is larger than any that is taken, or than what is left.

    `missing` are the pieces that are to be sent, `known_bytes` the size of the others.
    """
    room = Room.of(patiently(stop, partial(connection.get, f"{API}/account")))
    size_bytes = sum(file.size_bytes for file in files)
    if size_bytes > room.model_max_bytes:
        most = size_text(room.model_max_bytes)
        raise OverQuota(
            f"{name} has {size_text(size_bytes)}; {most} are the most that {connection.url} takes: {UNSENT}"
        )
    if room.namespace == LOCAL:
        return  # who works at the machine has its disk
    kept = kept_uploads(patiently(stop, partial(connection.get, f"{API}/uploads")))
    _check_quota(name, room.quota, size_bytes, missing, known_bytes, kept)


def _check_quota(
    name: ModelName,
    quota: Quota,
    size_bytes: int,
    missing: Mapping[Digest, Wanted],
    known_bytes: int,
    kept: frozenset[KeptUpload],
) -> None:
    """As it will be when all has been sent and the model is handed in: its files count whole, and what was sent for it
    counts no more.

    What is `kept` there of an earlier run counts already. Of what is known there some may lie in uploads that were
    finished, at most as much as there is beside those under way.
    """
    new_bytes = sum(_counted_bytes(load) for load in loads(list(missing.values())) if not _is_kept(load, kept))
    finished_bytes = max(0, quota.uploads_bytes - sum(upload.size_bytes for upload in kept))
    sent_bytes = sum(piece.span.size_bytes for piece in missing.values()) + min(known_bytes, finished_bytes)
    then = Quota(
        quota.limit_bytes, quota.used_bytes + new_bytes, quota.uploads_bytes + new_bytes, quota.submitted_bytes
    )
    more_bytes = then.more_bytes(size_bytes, sent_bytes)
    if more_bytes > 0:
        others = size_text(quota.limit_bytes + more_bytes - size_bytes)
        besides = f"with the {others} that you keep there besides, " if quota.used_bytes + quota.submitted_bytes else ""
        raise OverQuota(
            f"{name} has {size_text(size_bytes)}; {besides}that is {size_text(more_bytes)} more than your quota of "
            f"{size_text(quota.limit_bytes)}: {UNSENT}"
        )


def _counted_bytes(load: Load) -> int:
    return load.size_bytes + (PIECE_ROW_BYTES * len(load.pieces) if load.is_pack else 0)


def _is_kept(load: Load, kept: frozenset[KeptUpload]) -> bool:
    """Whether an upload for just this is under way. The bytes of a pack are read only where one of its size is."""
    if all(upload.size_bytes != load.size_bytes for upload in kept):
        return False
    asked = load.opened().asked
    return KeptUpload(asked["kind"], asked["size_bytes"], asked["digest"]) in kept
