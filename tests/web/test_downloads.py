"""Organs and models as files: every byte right, every condition heeded, nothing that is hidden handed out."""

from __future__ import annotations

import io
import random
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
from organs.registry.assembly import place_file, plan_shards
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
from tests.small_models import block_metadata, ingest_file, weight_tensor

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


def client_of(registry: LocalRegistry, folder: Path, data: bytes, name: str = "odd.gguf") -> FlaskClient:
    """A client of a catalog with that file as its only model, `odd`."""
    (folder / name).write_bytes(data)
    ingest_file(registry, folder / name, "odd")
    return create_app(registry).test_client()


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


@pytest.mark.long
def test_three_hundred_random_ranges_equal_the_slices_of_the_file(served: Served) -> None:
    chosen = random.Random(94)
    for number in range(300):
        begin = chosen.randrange(len(served.data))
        size = chosen.choice([1, 100, 10_000, 100_000, len(served.data) if number % 100 == 0 else 1_000])
        end = min(len(served.data), begin + size)
        answer = served.client.get(WHOLE[number % 4], headers={"Range": f"bytes={begin}-{end - 1}"})
        assert answer.status_code == 206
        assert answer.headers["Content-Range"] == f"bytes {begin}-{end - 1}/{len(served.data)}"
        assert answer.headers["Content-Length"] == str(end - begin)
        assert answer.data == served.data[begin:end], (begin, end)


def test_an_invalid_range_gives_the_whole_file(served: Served) -> None:
    answer = served.client.get(WHOLE[0], headers={"Range": "bytes=0-0,5-6"})
    assert (answer.status_code, answer.data) == (200, served.data)


def test_a_range_beyond_the_end_gives_416_with_the_size(served: Served) -> None:
    answer = served.client.get(WHOLE[0], headers={"Range": f"bytes={len(served.data)}-"})
    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == f"bytes */{len(served.data)}"
    assert answer.headers["Cache-Control"] == "no-store"


def test_a_range_of_a_changed_file_gives_the_whole_file_or_is_refused(served: Served) -> None:
    """And a client that has the file gets 304."""
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
            assert status == 412 or answer.headers["ETag"] == tag


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


def put_all_models_into(state: str, registry: LocalRegistry) -> None:
    """As whoever administers a registry will: out of sight of searches."""
    with registry.catalog.writing() as session:
        session.execute(update(Placement).values(visible=False))
        session.execute(update(ModelRow).values(state=state))


def test_a_yanked_model_is_not_found_but_can_be_downloaded_by_its_digest(served: Served) -> None:
    digest = served.digest_of(LARGE_FROM)
    before = {form: served.client.get(f"/organs/{digest}.{form}").data for form in FORMS}
    put_all_models_into("yanked", served.registry)
    assert served.client.get("/api/v1/organs").get_json()["items"] == []
    assert served.client.get(f"/organs/{digest}").status_code == 200
    assert {form: served.client.get(f"/organs/{digest}.{form}").data for form in before} == before


def test_an_organ_without_a_reachable_model_is_answered_like_an_unknown_organ(served: Served) -> None:
    digest = served.digest_of(LARGE_FROM)
    put_all_models_into("quarantined", served.registry)
    unknown = digest_of(b"nobody has these bytes")
    for form in FORMS:
        hidden, absent = (served.client.get(f"/organs/{one}.{form}") for one in (digest, unknown))
        assert (hidden.status_code, absent.status_code) == (404, 404)
        assert hidden.text.replace(digest, "") == absent.text.replace(unknown, "")


@pytest.mark.parametrize("text", ["..%2f..%2fetc%2fpasswd", "A" * 64, "0" * 65, "１" * 64, "1234567"])
def test_an_invalid_digest_is_404(text: str, served: Served) -> None:
    assert served.client.get(f"/organs/{text}.raw").status_code == 404


def test_several_organs_of_the_same_bytes_are_distinguished(registry: LocalRegistry, tmp_path: Path) -> None:
    data = bytes(range(64))
    specs = [("a.weight", (64,), "I8"), ("b.weight", (16, 2), "F16"), ("c.weight", (32,), "F16")]
    tensors = [(TensorSpec(name, shape, dtype_by_name(dtype)), data) for name, shape, dtype in specs]
    client, address = client_of(registry, tmp_path, file_bytes([], tensors)), f"/organs/{digest_of(data)}"
    for query, shape in (
        ("dtype=I8&shape=64", (64,)),
        ("dtype=F16&shape=16x2", (2, 16)),
        ("dtype=F16&shape=32", (32,)),
    ):
        assert np.load(io.BytesIO(client.get(f"{address}.npy?{query}").data)).shape == shape
    assert b"c.weight" in client.get(f"{address}.bin?shape=32&name=c.weight").data
    assert client.get(f"{address}.bin?shape=32&name=a.weight").status_code == 404
    answer = client.get(f"{address}.npy?dtype=F32")
    assert (answer.status_code, "F16 of 16x2" in answer.text) == (404, True)


def test_values_of_an_unreadable_type_are_refused_with_a_sentence(registry: LocalRegistry, tmp_path: Path) -> None:
    spec, data = TensorSpec("a.weight", (256,), dtype_by_name("Q8_K")), bytes(range(256)) + bytes(36)
    client, address = client_of(registry, tmp_path, file_bytes([], [(spec, data)])), f"/organs/{digest_of(data)}"
    answer = client.get(f"{address}.npy")
    assert (answer.status_code, "alues of Q8_K cannot be decoded" in answer.text) == (409, True)
    assert client.get(f"{address}.raw").status_code == 200


def test_a_split_set_can_be_downloaded_as_its_files_and_as_one_file(served: Served, tmp_path: Path) -> None:
    registry, client = served.registry, served.client
    (tmp_path / "shards").mkdir()
    with registry.catalog.reading() as session:
        model = model_by_name(session, parse_model_name("a"))
        plans = plan_shards(session, registry.blobs, model, "cut", 1_000_000)
    paths = [tmp_path / "shards" / plan.name for plan in plans]
    for plan, path in zip(plans, paths, strict=True):
        place_file(registry.blobs, plan, path)
    assert len(paths) > 2
    ingest_file(registry, tmp_path / "shards", "cut")
    for path in paths:
        assert client.get(f"/models/local/cut/files/{path.name}").data == path.read_bytes()
    answer = client.get("/models/local/cut.gguf")
    assert len(answer.data) == int(answer.headers["Content-Length"])
    assert "Repr-Digest" not in answer.headers
    part = client.get("/models/local/cut.gguf", headers={"Range": "bytes=1000-", "If-Range": answer.headers["ETag"]})
    assert (part.status_code, part.data) == (206, answer.data[1000:])
    (tmp_path / "merged.gguf").write_bytes(answer.data)
    assert ingest_file(registry, tmp_path / "merged.gguf").organs == len(served.organs())


@pytest.mark.parametrize("name", ['"><img src=x>.gguf', "a%2fb.gguf", "..gguf", "Bär.gguf"])
def test_a_file_with_an_odd_name_is_downloaded_under_a_plain_name(
    name: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    data = file_bytes(block_metadata(), [weight_tensor("output.weight", (64, 3))])
    client = client_of(registry, tmp_path, data, name)
    assert client.get("/models/local/odd/files/file-1.gguf").data == data
    assert client.get(f"/models/local/odd/files/{name}").status_code == 404


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
    headers = [("host", "localhost")]
    for path, is_refused in ((WHOLE[0], True), ("/models", False)):
        answer = call(served.client.application, HttpRequest("GET", path, headers=headers, may_download=False))
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
