"""The style sheet, the scripts and the mark of the pages: read and compressed once, when the server starts.

Pages are not compressed: the length of a page that has both a secret and text of the request would tell the secret.
"""

from __future__ import annotations

import gzip
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from flask import Flask, Response, abort, request

from organs.registry.digest import digest_of

FOLDER = Path(__file__).parent / "static"
ENCODING = "gzip"


@dataclass(frozen=True)
class _StaticFile:
    media_type: str
    plain: bytes
    compressed: bytes
    tag: str


def serve_static_files(app: Flask) -> None:
    """Add the route of the files in `FOLDER` to `app`, compressed for clients that accept it."""
    files = {path.name: _read(path) for path in FOLDER.iterdir()}

    @app.get("/static/<path:filename>", endpoint="static")
    def static(filename: str) -> Response:
        if filename not in files:
            abort(404)
        file = files[filename]
        is_compressed = request.accept_encodings.quality(ENCODING) > 0
        answer = Response(file.compressed if is_compressed else file.plain, content_type=file.media_type)
        answer.vary.add("Accept-Encoding")
        answer.cache_control.no_cache = True
        if is_compressed:
            answer.content_encoding = ENCODING
        answer.set_etag(f"{file.tag}-{ENCODING}" if is_compressed else file.tag)
        answer.make_conditional(request)
        return answer


def _read(path: Path) -> _StaticFile:
    plain = path.read_bytes()
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    is_text = media_type.startswith("text/") or media_type.endswith(("javascript", "+xml"))
    return _StaticFile(
        f"{media_type}; charset=utf-8" if is_text else media_type,
        plain,
        gzip.compress(plain, mtime=0),
        digest_of(plain)[:16],
    )
