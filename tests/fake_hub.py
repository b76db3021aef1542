"""A small Hugging Face hub that takes pushes, as its client sends them, and its storage, a server of its own."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "t" * 34
CHUNK_BYTES = 20_000
COMMIT = "c" * 40
COMPLETE = "/complete/"
"""A part of the address to which the client sends the list of parts: the address is signed, and gets no token."""


@dataclass(slots=True)
class FakeHub:
    """The state of the hub, and what it was sent."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """The committed files of each repository."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """Complete large files by their SHA-256."""
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """The server (`hub` or `storage`), the request, and its Authorization header."""
    private: list[bool] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    """The SHA-256 of files whose second parts the storage refuses."""
    endpoint: str = ""
    storage: str = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and JSON of the hub."""
        path = path.partition("?")[0]
        if path == "/api/repos/create":
            values = json.loads(body)
            name = f"{values['organization']}/{values['name']}" if values.get("organization") else values["name"]
            self.private.append("private" in (values.get("visibility"), "private" * bool(values.get("private"))))
            self.repositories.setdefault(name, {})
            return 200, {}, {"url": f"{self.endpoint}/{name}"}
        if path == "/api/validate-yaml":
            return 200, {}, {"errors": [], "warnings": []}
        name = "/".join(path.removeprefix("/api/models").split("/")[1:3]).removesuffix(".git")
        if name not in self.repositories:
            return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, {}
        files = self.repositories[name]
        if path == f"/api/models/{name}":
            return 200, {}, {"id": name, "private": any(self.private), "siblings": []}
        if "/tree/" in path:
            listed = [{"type": "file", "path": file, "size": len(files[file]), "oid": "0" * 40} for file in files]
            return 200, {}, listed
        if "/preupload/" in path:
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".gguf") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return 200, {}, {"files": modes}
        if path.endswith("/info/lfs/objects/batch"):
            return 200, {}, {"transfer": "multipart", "objects": [self._action(o) for o in json.loads(body)["objects"]]}
        if COMPLETE in path:
            oid = path.rpartition("/")[2]
            data = b"".join(self.parts[oid][number] for number in sorted(self.parts[oid]))
            assert hashlib.sha256(data).hexdigest() == oid
            self.objects[oid] = data
            return 200, {}, {}
        assert "/commit/" in path, path
        self._commit(files, [json.loads(line) for line in body.splitlines()])
        return 200, {}, {"success": True, "commitOid": COMMIT, "commitUrl": f"{self.endpoint}/{name}/commit/{COMMIT}"}

    def _action(self, wanted: dict[str, Any]) -> dict[str, Any]:
        oid, size = wanted["oid"], wanted["size"]
        if oid in self.objects:
            return {"oid": oid, "size": size}
        count = -(-size // CHUNK_BYTES)
        header = {f"{number:05}": f"{self.storage}/{oid}/{number}?signature=s" for number in range(1, count + 1)}
        href = f"{self.endpoint}/api/models/me/coder/complete/{oid}?signature=s"
        upload = {"href": href, "header": {"chunk_size": str(CHUNK_BYTES), **header}}
        return {"oid": oid, "size": size, "actions": {"upload": upload}}

    def _commit(self, files: dict[str, bytes], lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])

    def store(self, path: str, body: bytes) -> int:
        """Take a part of a large file, and return the status."""
        oid, number = path.strip("/").partition("?")[0].split("/")
        if oid in self.refused and number == "2":
            return 400
        self.parts.setdefault(oid, {})[int(number)] = body
        return 200


def _handler(hub: FakeHub, server: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = self.headers.get("Authorization")
            hub.requests.append((server, f"{self.command} {self.path}", token))
            if server == "storage":
                self._send(hub.store(self.path, body), {"ETag": '"e"'}, b"")
            elif token != f"Bearer {TOKEN}" and COMPLETE not in self.path:
                self._send(401, {"X-Error-Message": "Invalid credentials"}, b"{}")
            else:
                status, headers, values = hub.answer(self.command, self.path, body)
                self._send(status, headers, json.dumps(values).encode())

        def do_GET(self) -> None:
            self._handle()

        def do_POST(self) -> None:
            self._handle()

        def do_PUT(self) -> None:
            self._handle()

        def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing on stderr."""

    return Handler


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub and its storage, which run until the end of the block."""
    hub = FakeHub()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, name)) for name in ("hub", "storage")]
    hub.endpoint, hub.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
