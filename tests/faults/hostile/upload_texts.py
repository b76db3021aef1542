"""Hostile texts: manifests, names and declarations that are invalid, and false uploads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from organs.registry.digest import digest_of
from tests.faults.hostile.upload_client import Attack, Sender, Values, of_file, of_pieces
from tests.ingest.test_submissions import BAD
from tests.small_models import small_model
from tests.web.test_uploads import BODIES

OTHER = small_model("Other", seed=2)
"""A valid file."""
SIZE = len(OTHER)
SAMPLED = 14
NAMES = (
    *("{}/..%2f..%2fetc%2fpasswd", "{}/a%0d%0aSet-Cookie:%20x", "{}/a%00", "{}/a@2", "{}/a.gguf", "{}/" + "x" * 97),
    *("{}/%ff", "{}/a%2fb", "{}/a%20b", "ada/bad", "admin/bad", "../../x/y", "%2e%2e/x"),
)
"""Addresses of models; braces are replaced by the sender."""


def said(random: Random) -> Iterator[Attack]:
    """Return all texts; of those that tests send in full, only some."""
    for what in random.sample([*BAD], SAMPLED):
        yield Attack("hostile manifests", what, partial(_manifest, BAD[what][0]))
    yield from _bodies()
    for what, way in WAYS.items():
        yield Attack("uploads that lie", what, partial(_way, way))
    for what, upload in NAMED.items():
        yield Attack("uploads that lie", what, partial(_named, upload))
    for number in random.sample(range(len(BODIES)), SAMPLED):
        yield Attack("uploads that lie", f"declaration {number}", partial(_declaration, BODIES[number][0]))


def _manifest(values: Any, sender: Sender, name: str) -> Values:
    return sender.submit(f"{sender.name}/{name}", values)


def _bodies() -> Iterator[Attack]:
    """Yield bodies that are not manifests, and invalid names of models."""
    file = json.dumps({"files": [of_pieces("a.gguf", OTHER, [])]}).encode()
    bodies = {
        "nothing": b"",
        "no JSON": b"{'files': []}",
        "null": b"null",
        "a list": b"[]",
        "no UTF-8": b'{"files": "\xff"}',
        "200,000 brackets": b'{"files":' + b"[" * 200_000,
        "200,000 objects": b'{"metadata":' * 200_000,
        "a number of 10,000 digits": file.replace(b'"size_bytes": ', b'"size_bytes": 1' + b"0" * 10_000),
        "not a number": file.replace(b'"size_bytes": ', b'"size_bytes": NaN, "x": '),
        "a member twice": b'{"files": [], ' + file[1:],
        "16 MiB": b" " * (16 << 20) + file,
    }
    for what, data in bodies.items():
        yield Attack("bodies and names", what, partial(_body, data, None, {}))
    for header, value in (("Content_Type", "text/plain"), ("Content_Encoding", "gzip")):
        yield Attack("bodies and names", f"{header} {value}", partial(_body, file, None, {header: value}))
    for model in NAMES:
        yield Attack("bodies and names", model[:40], partial(_body, file, model, {}))


def _body(data: bytes, model: str | None, headers: dict[str, str], sender: Sender, name: str) -> Values:
    address = f"{sender.name}/{name}" if model is None else model.format(sender.name)
    return sender.submit(address, None, data=data, **headers)


def _way(way: Callable[[Sender], Any], sender: Sender, _name: str) -> Values:
    way(sender)
    return {"state": "nothing said no"}


def _named(upload: Callable[[Sender], str], sender: Sender, name: str) -> Values:
    return sender.submit(f"{sender.name}/{name}", {"files": [of_file("model.gguf", upload(sender))]})


def _declaration(values: Any, sender: Sender, _name: str) -> Values:
    sender.expect("POST", "/uploads", values)
    return {"state": "nothing said no"}


def _chunk(size_bytes: int, sender: Sender, **headers: str) -> Values:
    """Return a chunk with false headers, for an upload of that size."""
    return sender.chunk(sender.begin("file", size_bytes), OTHER, **headers)


def _wrong_pack(sender: Sender) -> str:
    pack = sender.begin("pack", 20, pieces=[[10, digest_of(b"a" * 10)], [10, digest_of(b"b" * 10)]])
    sender.chunk(pack, b"a" * 20)
    return sender.finish(pack)


def _noise(sender: Sender) -> str:
    """Return a pack that is not a model."""
    noise = Random(7).randbytes(500)
    pack = sender.begin("pack", len(noise), pieces=[[len(noise), digest_of(noise)]])
    sender.chunk(pack, noise)
    return sender.finish(pack)


WAYS: dict[str, Callable[[Sender], Any]] = {
    "a chunk of another digest": partial(_chunk, SIZE, Content_Digest=f"sha-256=:{'A' * 43}=:"),
    "a chunk elsewhere": partial(_chunk, 2 * SIZE, Content_Range=f"bytes {SIZE}-{2 * SIZE - 1}/{2 * SIZE}"),
    "a chunk of more": partial(_chunk, 10),
    "a range of another size": partial(_chunk, SIZE, Content_Range=f"bytes 0-9/{SIZE}"),
    "a range that is none": partial(_chunk, SIZE, Content_Range="bytes 9-0/-1"),
    "a packed chunk": partial(_chunk, SIZE, Content_Encoding="gzip"),
    "finished before its end": lambda sender: sender.finish(sender.begin("file", SIZE + 1)),
    "other bytes than declared": lambda sender: sender.file(OTHER[:-1] + b"x", digest=digest_of(OTHER)),
    "a pack with a wrong piece": _wrong_pack,
    "more than anybody may": lambda sender: sender.begin("file", 2**61),
    "a path instead of an upload": lambda sender: sender.expect("GET", "/uploads/..%2f..%2fetc%2fpasswd"),
}
"""Yield requests that are refused before a submission."""
NAMED: dict[str, Callable[[Sender], str]] = {
    "an unfinished upload named": lambda sender: sender.begin("file", SIZE, name="unfinished.gguf"),
    "a pack named as a file": _noise,
    "an upload of nobody": lambda _sender: "A" * 22,
}
"""Yield uploads that a manifest names."""
