"""What a remote registry shows: versions, locks, verdicts."""

from __future__ import annotations

from dataclasses import replace

from organs.registry.client.address import model_path
from organs.registry.client.composing import (
    Tell,
    converted,
    done,
)
from organs.registry.client.connection import API, Connection
from organs.registry.client.shape import Values
from organs.registry.compose.lock import LOCK_MAX_BYTES
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.published import ModelVersions
from organs.registry.entities.verdict import VerdictReport
from organs.registry.errors import BadReply
from organs.registry.names import ModelName


def shown_versions(connection: Connection, name: ModelName, most: int) -> Values:
    """`versions` of a model's name, the newest `most`, and how many older ones are left out."""
    found = connection.read(ModelVersions, f"{API}{model_path(replace(name, version=None))}/versions")
    items = found.items
    return {"versions": items[:most], "versions_left_out": found.left_out + max(0, len(items) - most)}


def lock_text(connection: Connection, lock_id: Digest) -> str:
    """The lock with that digest, as it was closed; raises NotFound, BadReply for another one."""
    data = bytearray()
    with connection.download(f"/chimeras/{lock_id}/lock.json") as reply:
        for chunk in reply.stream():
            data += chunk
            if len(data) > LOCK_MAX_BYTES:
                break
    if digest_of(data) != lock_id:
        raise BadReply(f"{connection.url} sent another lock than that with the digest {lock_id}")
    return data.decode("ascii")


def validated(connection: Connection, chimera: str, tokens: int, tell: Tell | None = None) -> VerdictReport:
    """Have a chimera run there, and wait for the verdict."""
    result = done(connection, "/validations", {"chimera": chimera, "tokens": tokens}, tell)
    return converted(connection, VerdictReport, result)
