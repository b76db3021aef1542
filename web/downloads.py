"""Organs and models as files.

    /organs/<digest>.raw                                the plain bytes
    /organs/<digest>.bin                                the one-organ file of organ directories
    /organs/<digest>.npy                                the values as float32, for NumPy
    /models/<namespace>/<name>[@version].gguf           the whole model as one file
    /models/<namespace>/<name>[@version]/files/<file>   a file as it came in

Bytes that stand as several organs are told apart by `?dtype=` and `?shape=`; `?name=` chooses the name in a `.bin`.
"""

from __future__ import annotations

from flask import Blueprint, Response, abort, request
from flask.blueprints import BlueprintSetupState

from organs.registry.catalog.queries.models import files_of, model_by_name
from organs.registry.errors import NotFound
from organs.registry.names import parse_model_name
from organs.web.answers import reading
from organs.web.contents import (
    chosen_organ,
    model_file,
    organ_file,
    organ_values,
    public_names,
    raw_organ,
    told_in_words,
    whole_model,
)
from organs.web.streams import STREAMS_KEY, THREADS, allow_streams, hand_out

downloads = Blueprint("downloads", __name__)

BODY_MAX_BYTES = 4096
"""What a request that asks to read may send along; nobody has a reason to send anything."""


@downloads.record_once
def _allow_streams(state: BlueprintSetupState) -> None:
    if STREAMS_KEY not in state.app.extensions:
        assert not isinstance(state.app, Blueprint)
        allow_streams(state.app, THREADS)  # type: ignore[arg-type]


@downloads.before_app_request
def _refuse_bodies() -> None:
    """Bodies where none belongs, and packed ones anywhere: how large they are when unpacked, nobody knows."""
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        abort(415, "A packed body is not accepted here: send it plain.")
    if request.method in ("GET", "HEAD", "OPTIONS"):
        chunked = "Transfer-Encoding" in request.headers
        if chunked or (request.content_length or 0) > BODY_MAX_BYTES:
            abort(413, "A request that reads has no body.")


@downloads.get("/organs/<digest>.<any(raw,bin,npy):form>")
def organ(digest: str, form: str) -> Response:
    """An organ as a file of one of three forms."""
    with reading() as session:
        chosen = chosen_organ(session, digest, request.args.get("dtype"), request.args.get("shape"))
        if form == "raw":
            content = raw_organ(chosen)
        elif form == "bin":
            content = organ_file(session, chosen, request.args.get("name"))
        else:
            content = organ_values(chosen)
    with told_in_words(content.name):
        return hand_out(content)


@downloads.get("/models/<namespace>/<name>.gguf")
def model(namespace: str, name: str) -> Response:
    """A model as one file: the one that came in, or its shards merged."""
    asked = parse_model_name(f"{namespace}/{name}")
    with told_in_words(str(asked)):
        with reading() as session:
            content = whole_model(session, model_by_name(session, asked), immutable=asked.version is not None)
        return hand_out(content)


@downloads.get("/models/<namespace>/<name>/files/<file>")
def file_of_model(namespace: str, name: str, file: str) -> Response:
    """A file of a model as it came in."""
    asked = parse_model_name(f"{namespace}/{name}")
    with reading() as session:
        row = model_by_name(session, asked)
        files = files_of(session, row.id)
        found = dict(zip(public_names([one.name for one in files]), files, strict=True)).get(file)
        if found is None:
            raise NotFound(f"{row.full_name} has no file of that name")
        content = model_file(row, found, file, immutable=asked.version is not None)
    with told_in_words(content.name):
        return hand_out(content)
