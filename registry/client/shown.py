"""What a registry elsewhere shows: organs, versions, locks, verdicts."""

from __future__ import annotations

from dataclasses import replace

from organs.registry.client.connection import API, Connection
from organs.registry.client.jobs import Tell, converted, done
from organs.registry.client.names import model_path
from organs.registry.client.shape import (
    Each,
    Maybe,
    Members,
    Named,
    Values,
    check,
    digest,
    flag,
    number,
    text,
    whole,
    word,
)
from organs.registry.compose.lock import LOCK_MAX_BYTES
from organs.registry.digest import Digest, digest_of, parse_prefix
from organs.registry.entities.published import ModelVersions
from organs.registry.entities.verdict import VerdictReport
from organs.registry.errors import BadReply
from organs.registry.names import ModelName

_MADE: Members = {
    "acts": Each(text),
    "method": Maybe(text),
    "keep": Maybe(number),
    "adapters": Each({"a": digest, "b": digest, "scale": number}),
    "source": {"digest": digest, "dtype": text, "shape": text},
    "theta_before": Maybe(number),
}
_READING: Members = {"method": word}
ORGAN: Members = {
    "digest": digest,
    "dtype": word,
    "shape": word,
    "elements": whole,
    "nonfinite": Maybe(whole),
    "size_bytes": whole,
    "stored_bytes": whole,
    "codec": word,
    "state": word,
    "measurements": Each(_READING),
    "also": Each({"dtype": word, "shape": word}),
    "places": Each({"model": text, "name": text, "type": text}),
    "made": Each(_MADE),
}


def shown_organ(connection: Connection, prefix: str) -> Values:
    """An organ, as `registry.present.organs.organ_page` has it; raises BadDigest, NotFound, Ambiguous."""
    values = connection.get(f"{API}/organs/{parse_prefix(prefix)}")
    check(values, ORGAN, "organ")
    for reading in values["measurements"]:
        check(reading, Named(_is_reading), "organ.measurements")
    return values


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


def _is_reading(value: object) -> bool:
    return text(value) or flag(value) or number(value)
