"""The requests of Ollama and llama.cpp, in the order and with the headers of their sources, and their checks.

Ollama: `server/images.go` and `server/download.go` (versions up to 0.1 with 64 parts, later ones with 16). llama.cpp:
`common/download.cpp` and `common/hf-cache.cpp`.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit

OLLAMA_AGENT = "ollama/0.32.15 (amd64 linux) Go/go1.26.0"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MODEL, ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
OLD_PARTS, PARTS = 64, 16
TRIES = 6


class Refused(Exception):
    """The client reports an error: its text is what a person sees."""


@dataclass(slots=True)
class Answer:
    """An answer whose body was read as far as the client reads it."""

    status: int
    headers: Mapping[str, str]
    data: bytes


@dataclass(slots=True)
class Wire:
    """Requests to one server, each on a connection of its own, and a list of them."""

    port: int
    sent: list[str] = field(default_factory=list)

    def ask(self, method: str, path: str, headers: dict[str, str], most_bytes: int | None = None) -> Answer:
        """Send exactly these headers, and read at most `most_bytes` of the body. No redirect is followed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": f"127.0.0.1:{self.port}", **headers}.items():
                connection.putheader(name, value)
            connection.endheaders()
            self.sent.append(f"{method} {path}" + (f" {headers['Range']}" if "Range" in headers else ""))
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read(most_bytes))
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a client has stored: its manifest, and its blobs by digest."""

    manifest: dict[str, Any]
    blobs: dict[str, bytes]

    def layer(self, media_type: str) -> bytes:
        """The bytes of the only layer of that type."""
        (digest,) = (layer["digest"] for layer in self.manifest["layers"] if layer["mediaType"] == media_type)
        return self.blobs[digest]

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the image."""
        return dict(json.loads(self.blobs[self.manifest["config"]["digest"]]))


def ollama_pull(wire: Wire, name: str, tag: str, parts: int = PARTS, least_part: int = 1) -> Pulled:
    """`ollama pull --insecure`: the manifest, then each blob by HEAD, by GET for its address, and by ranges."""
    agent = {"User-Agent": OLLAMA_AGENT}
    headers = {"Accept": DOCKER_MANIFEST, "Accept-Encoding": "gzip", **agent}
    answer = _made(wire.ask("GET", f"/v2/{name}/manifests/{tag}", headers))
    manifest = json.loads(answer.data)
    blobs = {}
    for layer in [*manifest["layers"], manifest["config"]]:
        path = f"/v2/{name}/blobs/{layer['digest']}"
        total = int(_made(wire.ask("HEAD", path, agent)).headers["Content-Length"])
        direct = _made(wire.ask("GET", path, {"Accept-Encoding": "gzip", **agent}, most_bytes=0))
        assert direct.status in (200, 307), direct.status
        target = urlsplit(urljoin(f"http://127.0.0.1:{wire.port}{path}", direct.headers["Location"]))
        assert target.port == wire.port
        blobs[layer["digest"]] = _in_parts(wire, target.path, total, max(least_part, -(-total // parts)), parts)
    for digest, data in blobs.items():
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            raise Refused("digest mismatch, file must be downloaded again")
    return Pulled(manifest, blobs)


def _made(answer: Answer) -> Answer:
    """`makeRequestWithRetry`: what the client makes of a status."""
    if answer.status == 404:
        raise Refused("file does not exist")
    if answer.status >= 400:
        raise Refused(f"{answer.status}: {answer.data.decode()}")
    return answer


def _in_parts(wire: Wire, path: str, total: int, size: int, parallel: int) -> bytes:
    """`downloadChunk` for all parts at once: the status of an answer is not looked at, only its length."""
    data = bytearray(total)

    def part(begin: int) -> None:
        end = min(begin + size, total)
        for attempt in range(TRIES):
            headers = {"User-Agent": "Go-http-client/1.1", "Range": f"bytes={begin}-{end - 1}"}
            answer = wire.ask("GET", path, headers, most_bytes=end - begin)
            if len(answer.data) == end - begin:
                data[begin:end] = answer.data
                return
            time.sleep(0.05 * 2**attempt)
        raise Refused("max retries exceeded")

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(part, range(0, total, size)))
    return bytes(data)


def llama_download(wire: Wire, name: str, tag: str = "") -> dict[str, bytes]:
    """`llama-server -hf NAME[:TAG]` since 2026: refs, the tree of the commit, then the best file and its parts."""
    headers = {"User-Agent": "llama-cpp/b9999-abcdef", "Accept": "application/json"}
    refs = wire.ask("GET", f"/api/models/{name}/refs", headers)
    if refs.status != 200:
        raise Refused(f"GET failed ({refs.status}): {json.loads(refs.data)['error']}")
    (commit,) = (branch["targetCommit"] for branch in json.loads(refs.data)["branches"] if branch["name"] == "main")
    assert re.fullmatch("[0-9a-f]{40}", commit)
    tree = wire.ask("GET", f"/api/models/{name}/tree/{commit}?recursive=true", headers)
    oids = {item["path"]: item.get("lfs", item)["oid"] for item in json.loads(tree.data) if item["type"] == "file"}
    model = _best_model(list(oids), tag)
    if model is None:
        raise Refused(f"no GGUF files found in repository {name}")
    stem = re.sub(r"-\d{5}-of-\d{5}\.gguf$", "", model)
    shards = [path for path in oids if re.fullmatch(rf"{re.escape(stem)}-\d{{5}}-of-\d{{5}}\.gguf", path)] or [model]
    projectors = [path for path in oids if "mmproj" in path and path.endswith(".gguf")][:1]
    files = {
        path: _llama_file(wire, f"/{name}/resolve/{commit}/{path}", {"User-Agent": headers["User-Agent"]})
        for path in [*shards, *projectors]
    }
    assert all(hashlib.sha256(data).hexdigest() == oids[path] for path, data in files.items())
    return files


def _best_model(paths: list[str], tag: str) -> str | None:
    """`find_best_model`: the first file whose name has the tag before a dot or a dash."""
    models = [path for path in paths if path.endswith(".gguf") and "mmproj" not in path]
    for wanted in [tag] if tag else ["Q4_K_M", "Q8_0"]:
        for path in models:
            if re.search(f"{wanted}[.-]", path, re.IGNORECASE):
                return path
    return models[0] if models and not tag else None


def _llama_file(wire: Wire, path: str, headers: dict[str, str]) -> bytes:
    """`common_download_file_single`: HEAD, GET of all, and after a cut GET of the rest; a cut is part of the replay."""
    head = wire.ask("HEAD", path, headers)
    assert head.status == 200, head.status
    assert head.headers["ETag"]
    assert head.headers["Accept-Ranges"] != "none"
    total = int(head.headers["Content-Length"])
    first = wire.ask("GET", path, headers, most_bytes=total // 3)
    rest = wire.ask("GET", path, {**headers, "Range": f"bytes={len(first.data)}-"})
    assert (first.status, rest.status) == (200, 206)
    return first.data + rest.data
