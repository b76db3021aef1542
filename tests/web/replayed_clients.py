"""The requests of Ollama and llama.cpp, in the order and with the headers of their sources, and their checks.

Ollama: `server/images.go` and `server/download.go`. llama.cpp: `common/download.cpp` and `common/hf-cache.cpp`.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

OLLAMA = {"User-Agent": "ollama/0.32.15 (amd64 linux) Go/go1.26.0"}
LLAMA = {"User-Agent": "llama-cpp/b9999-abcdef", "Accept": "application/json"}
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MODEL, ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
PARTS = 16


@dataclass(slots=True)
class Answer:
    """An answer whose body was read as far as the client reads it."""

    status: int
    headers: Mapping[str, str]
    data: bytes


def ask(port: int, method: str, path: str, headers: dict[str, str], most_bytes: int | None = None) -> Answer:
    """Send exactly these headers on a connection of its own, and read at most `most_bytes` of the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": f"127.0.0.1:{port}", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status < 400, (method, path, answer.status)
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


def ollama_pull(port: int, name: str, tag: str) -> Pulled:
    """`ollama pull --insecure`: the manifest, then each blob by HEAD, by GET for its address, and by ranges."""
    headers = {"Accept": DOCKER_MANIFEST, "Accept-Encoding": "gzip", **OLLAMA}
    manifest = json.loads(ask(port, "GET", f"/v2/{name}/manifests/{tag}", headers).data)
    blobs = {}
    for layer in [*manifest["layers"], manifest["config"]]:
        path = f"/v2/{name}/blobs/{layer['digest']}"
        total = int(ask(port, "HEAD", path, OLLAMA).headers["Content-Length"])
        direct = ask(port, "GET", path, {"Accept-Encoding": "gzip", **OLLAMA}, most_bytes=0)
        target = urlsplit(urljoin(f"http://127.0.0.1:{port}{path}", direct.headers["Location"]))
        assert target.port == port
        data = _in_parts(port, target.path, total)
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == layer["digest"]
        blobs[layer["digest"]] = data
    return Pulled(manifest, blobs)


def _in_parts(port: int, path: str, total: int) -> bytes:
    """`downloadChunk` for all parts at once: the status of an answer is not looked at, only its length."""
    size = -(-total // PARTS)

    def part(begin: int) -> bytes:
        end = min(begin + size, total)
        headers = {"User-Agent": "Go-http-client/1.1", "Range": f"bytes={begin}-{end - 1}"}
        data = ask(port, "GET", path, headers, most_bytes=end - begin).data
        assert len(data) == end - begin
        return data

    with ThreadPoolExecutor(PARTS) as pool:
        return b"".join(pool.map(part, range(0, total, size)))


def llama_download(port: int, name: str, tag: str = "") -> dict[str, bytes]:
    """`llama-server -hf NAME[:TAG]` since 2026: refs, the tree of the commit, then the best file and its parts."""
    refs = json.loads(ask(port, "GET", f"/api/models/{name}/refs", LLAMA).data)
    (commit,) = (branch["targetCommit"] for branch in refs["branches"] if branch["name"] == "main")
    assert re.fullmatch("[0-9a-f]{40}", commit)
    tree = ask(port, "GET", f"/api/models/{name}/tree/{commit}?recursive=true", LLAMA)
    oids = {item["path"]: item.get("lfs", item)["oid"] for item in json.loads(tree.data) if item["type"] == "file"}
    models = [path for path in oids if path.endswith(".gguf") and "mmproj" not in path]
    model = next(path for path in models if not tag or re.search(f"{tag}[.-]", path, re.IGNORECASE))
    stem = re.sub(r"-\d{5}-of-\d{5}\.gguf$", "", model)
    shards = [path for path in oids if re.fullmatch(rf"{re.escape(stem)}-\d{{5}}-of-\d{{5}}\.gguf", path)] or [model]
    projectors = [path for path in oids if "mmproj" in path and path.endswith(".gguf")][:1]
    files = {path: _llama_file(port, f"/{name}/resolve/{commit}/{path}") for path in [*shards, *projectors]}
    assert all(hashlib.sha256(data).hexdigest() == oids[path] for path, data in files.items())
    return files


def _llama_file(port: int, path: str) -> bytes:
    """`common_download_file_single`: HEAD, GET of all, and after a cut GET of the rest; a cut is part of the replay."""
    head = ask(port, "HEAD", path, LLAMA)
    assert head.headers["ETag"]
    assert head.headers["Accept-Ranges"] != "none"
    first = ask(port, "GET", path, LLAMA, most_bytes=int(head.headers["Content-Length"]) // 3)
    rest = ask(port, "GET", path, {**LLAMA, "Range": f"bytes={len(first.data)}-"})
    assert (head.status, first.status, rest.status) == (200, 200, 206)
    return first.data + rest.data
