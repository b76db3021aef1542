"""Organs and models as files: every byte right, every condition heeded, nothing that is hidden handed out."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from sqlalchemy import update
from werkzeug.test import TestResponse

from organs.ingest.directory.layout import parse_head
from organs.registry.catalog.queries.model_contents import placements_of
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.tables import ModelRow, Placement
from organs.registry.digest import digest_of
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.web.app import create_app
from organs.web.server.gateway import (
    MAY_DOWNLOAD,
    HttpRequest,
    call,
)
from tests.assembly.test_stream import mixed_model
from tests.gguf_files import file_bytes
from tests.registry_templates import RegistryTemplates
from tests.related_models import parent_entries
from tests.small_models import block_metadata, block_tensors, ingest_file, small_model, small_shards

WHOLE = (
    "/models/local/a.gguf",
    "/models/local/a@1.gguf",
    "/models/local/a/files/a.gguf",
    "/local/a/resolve/main/a.gguf",
)
FORMS = ("raw", "bin", "npy")
LARGE_FROM, LARGE_SHAPE = "blk.1.ffn_up.weight", "8400953"


@dataclass(frozen=True, slots=True)
class Served:
    """A catalog with one model, and the model's bytes."""

    registry: LocalRegistry
    client: FlaskClient
    data: bytes

    def digest_of(self, tensor: str) -> str:
        """The digest of an organ by its name."""
        return next(digest for spec, digest, _ in self.organs() if spec.name == tensor)

    def organs(self) -> list[tuple[TensorSpec, str, bytes]]:
        """Every organ with its digest and its bytes."""
        with self.registry.catalog.reading() as session:
            rows = placements_of(session, model_by_name(session, parse_model_name("a")).id)
        return [
            (
                TensorSpec(row.name, tuple(map(int, shape.split("x"))), dtype_by_name(row.dtype)),
                digest,
                self.data[row.offset_bytes : row.offset_bytes + row.size_bytes],
            )
            for row, shape, digest, _ in rows
        ]


def mixed(registry: LocalRegistry, folder: Path) -> None:
    (folder / "a.gguf").write_bytes(mixed_model())
    ingest_file(registry, folder / "a.gguf")


@pytest.fixture
def served(registry: LocalRegistry, templates: RegistryTemplates) -> Iterator[Served]:
    templates.fill(registry, mixed)
    with create_app(registry).test_client() as client:
        yield Served(registry, client, mixed_model())


def ingest(registry: LocalRegistry, folder: Path, name: str, data: bytes) -> None:
    (folder / "file.gguf").write_bytes(data)
    ingest_file(registry, folder / "file.gguf", name)


def tag_of(answer: TestResponse) -> str:
    return answer.headers["ETag"].strip('"')


@pytest.mark.parametrize("address", WHOLE)
def test_the_download_of_a_whole_model_equals_the_ingested_file(address: str, served: Served) -> None:
    answer = served.client.get(address)
    assert answer.status_code == 200
    assert answer.data == served.data
    assert answer.headers["Content-Length"] == str(len(served.data))
    assert tag_of(answer) == digest_of(served.data)
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="a.gguf"'
    assert answer.headers["Content-Type"] == "application/octet-stream"
    head = served.client.head(address)
    assert (head.status_code, head.data) == (200, b"")
    same = ("Content-Length", "ETag", "Repr-Digest", "Cache-Control", "Accept-Ranges", "Content-Disposition")
    assert [head.headers[name] for name in same] == [answer.headers[name] for name in same]


def test_conditions_decide_between_a_part_the_whole_file_and_a_refusal(served: Served) -> None:
    tag = served.client.head(WHOLE[0]).headers["ETag"]
    for name, value, status in (
        ("If-Range", tag, 206),
        ("If-Range", '"another"', 200),
        ("If-Match", tag, 206),
        ("If-Match", '"another"', 412),
        ("If-Match", f"W/{tag}", 412),
        ("If-None-Match", f'"x", W/{tag}', 304),
    ):
        with served.client.get(WHOLE[0], headers={"Range": "bytes=5-9", name: value}) as answer:
            assert answer.status_code == status, (name, value)
            assert (status == 304) == (answer.data == b"")
            assert status != 206 or answer.data == served.data[5:10]
            assert status == 412 or answer.headers["ETag"] == tag
    beyond = served.client.get(WHOLE[0], headers={"Range": f"bytes={len(served.data)}-"})
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{len(served.data)}")
    assert beyond.headers["Cache-Control"] == "no-store"


def test_only_addresses_that_name_bytes_are_cached_forever(served: Served) -> None:
    digest = served.digest_of(LARGE_FROM)
    full = f"dtype=I8&shape={LARGE_SHAPE}"
    forever = [WHOLE[1], f"/organs/{digest}.raw", f"/organs/{digest}.npy?{full}"]
    forever += [f"/organs/{digest}.bin?{full}&name={LARGE_FROM}", "/models/local/a@1/files/a.gguf"]
    for address in forever:
        assert served.client.head(address).headers["Cache-Control"] == "public, max-age=31536000, immutable", address
    for address in [WHOLE[0], f"/organs/{digest[:12]}.raw", f"/organs/{digest}.npy", f"/organs/{digest}.bin?{full}"]:
        assert served.client.head(address).headers["Cache-Control"] == "no-cache", address


def test_every_organ_can_be_downloaded_in_three_forms(served: Served) -> None:
    for spec, digest, data in served.organs():
        raw = served.client.get(f"/organs/{digest}.raw")
        assert raw.data == data
        assert tag_of(raw) == digest
        one = served.client.get(f"/organs/{digest}.bin?name={spec.name}").data
        found, begin = parse_head(one, len(one))
        assert (found, one[begin:]) == (spec, data)
        values = np.load(io.BytesIO(served.client.get(f"/organs/{digest}.npy").data))
        assert values.shape == tuple(reversed(spec.shape))


def test_a_prefix_of_the_digest_is_enough_and_ranges_of_each_form_are_slices(served: Served) -> None:
    digest = served.digest_of(LARGE_FROM)
    for form in FORMS:
        whole = served.client.get(f"/organs/{digest}.{form}").data
        answer = served.client.get(f"/organs/{digest[:8]}.{form}", headers={"Range": "bytes=4194300-4194500"})
        assert answer.data == whole[4194300:4194501], form
        assert served.client.get(f"/organs/{digest}.{form}", headers={"Range": "bytes=-3"}).data == whole[-3:], form


def test_a_yanked_model_can_be_downloaded_by_its_digest(served: Served) -> None:
    digest = served.digest_of(LARGE_FROM)
    before = {form: served.client.get(f"/organs/{digest}.{form}").data for form in FORMS}
    with served.registry.catalog.writing() as session:
        session.execute(update(Placement).values(visible=False))
        session.execute(update(ModelRow).values(state="yanked"))
    assert served.client.get(f"/organs/{digest}").status_code == 200
    assert {form: served.client.get(f"/organs/{digest}.{form}").data for form in before} == before


def test_several_organs_of_the_same_bytes_are_distinguished(served: Served, tmp_path: Path) -> None:
    data, client = bytes(range(64)), served.client
    specs = [("a.weight", (64,), "I8"), ("b.weight", (16, 2), "F16"), ("c.weight", (32,), "F16")]
    tensors = [(TensorSpec(name, shape, dtype_by_name(dtype)), data) for name, shape, dtype in specs]
    ingest(served.registry, tmp_path, "odd", file_bytes([], tensors))
    address = f"/organs/{digest_of(data)}"
    for query, shape in (("dtype=I8", (64,)), ("dtype=F16&shape=16x2", (2, 16)), ("dtype=F16&shape=32", (32,))):
        assert np.load(io.BytesIO(client.get(f"{address}.npy?{query}").data)).shape == shape
    assert b"c.weight" in client.get(f"{address}.bin?shape=32&name=c.weight").data
    assert client.get(f"{address}.bin?shape=32&name=a.weight").status_code == 404
    answer = client.get(f"{address}.npy?dtype=F32")
    assert (answer.status_code, "F16 of 16x2" in answer.text) == (404, True)


def test_a_split_set_can_be_downloaded_as_its_files_and_as_one_file(served: Served, tmp_path: Path) -> None:
    shards = small_shards("cut")
    for name, data in shards.items():
        (tmp_path / name).write_bytes(data)
    ingest_file(served.registry, tmp_path, "cut")
    for name, data in shards.items():
        assert served.client.get(f"/models/local/cut/files/{name}").data == data
    whole = served.client.get("/models/local/cut.gguf")
    assert len(whole.data) == int(whole.headers["Content-Length"])
    assert "Repr-Digest" not in whole.headers
    headers = {"Range": "bytes=1000-", "If-Range": whole.headers["ETag"]}
    part = served.client.get("/models/local/cut.gguf", headers=headers)
    assert (part.status_code, part.data) == (206, whole.data[1000:])
    ingest(served.registry, tmp_path, "merged", whole.data)
    organs, merged = (served.registry.model(name).organs for name in ("cut", "merged"))
    assert {one.digest for one in organs} == {one.digest for one in merged}


def test_a_partial_model_cannot_be_downloaded_as_a_whole_model(served: Served, tmp_path: Path) -> None:
    ingest(served.registry, tmp_path, "base", small_model("Base"))
    some = [one for one in block_tensors() if "ffn" in one[0].name]
    partial = file_bytes([*block_metadata("Part"), *parent_entries("Base")], some)
    ingest(served.registry, tmp_path, "part", partial)
    refused = served.client.get("/models/local/part.gguf")
    assert refused.status_code == 409
    assert "graft it into its base, local/base@1" in refused.text
    assert "/compose?base=local/base" in served.client.get("/models/local/part").text
    assert served.client.get("/models/local/part/files/file.gguf").data == partial


@pytest.mark.parametrize("address", ["/models/local/b.gguf", "/models/local/a@2.gguf", "/models/local/a/files/b.gguf"])
def test_an_unknown_file_is_404_and_not_cached(address: str, served: Served) -> None:
    answer = served.client.get(address)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (404, "no-store")


def test_too_many_downloads_of_one_address_are_refused_with_retry_after(served: Served) -> None:
    full: dict[str, Any] = {MAY_DOWNLOAD: False}
    busy = served.client.get(WHOLE[0], environ_overrides=full)
    assert busy.status_code == 503
    assert int(busy.headers["Retry-After"]) > 0
    hub = served.client.get(WHOLE[3], environ_overrides=full)
    assert hub.status_code == 429, "what clients of the hub try again after"
    assert served.client.head(WHOLE[0], environ_overrides=full).status_code == 200
    for path, is_refused in ((WHOLE[0], True), ("/models", False)):
        request = HttpRequest("GET", path, headers=[("host", "localhost")], may_download=False)
        answer = call(served.client.application, request)
        assert answer.refuses_download is is_refused, "the server remembers no other answer"


def test_a_download_that_was_paused_continues_where_it_was(served: Served) -> None:
    headers = [("host", "localhost"), ("range", "bytes=1000-")]
    answer = call(served.client.application, HttpRequest("GET", WHOLE[0], headers=headers))
    assert answer.rest is not None
    received = bytearray(b"".join(answer.pieces))
    for piece in answer.rest:
        received += piece
        answer.source.pause()
    assert received == served.data[1000:]
    assert answer.length == len(received)


def test_a_compressed_body_and_an_unexpected_body_are_refused(served: Served) -> None:
    packed = {"Content-Encoding": "gzip"}
    assert served.client.post("/api/models/local/a/paths-info/main", data=b"x", headers=packed).status_code == 415
    assert served.client.get(WHOLE[0], data=b"x" * 5000).status_code == 413
