"""The server stays there for everybody: whoever is slow, silent or rude, and whatever is wrong with a blob."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from select import select

import psutil
import pytest

from organs.registry.digest import digest_of
from organs.registry.entities.problem import MEDIA_TYPE, Problem
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from tests.assembly.test_stream import CHUNK, flip_last, mixed_model
from tests.gguf_files import file_bytes
from tests.small_models import ingest_file, small_model
from tests.web.live_server import HURRIED, PATIENCE_SECONDS, LiveServer, receive_all, running_server, wait_until

ASK = b"GET /models/local/a.gguf HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
POST = b"POST /api/v1/plans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
HEALTH_SECONDS = 5
"""Far more than it takes, far less than a client may be slow. The machine may be busy."""

pytestmark = pytest.mark.folder  # the server is the same with a bucket; a blob rots here


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with three models, one of which rots; the files beside it."""
    folder = tmp_path_factory.mktemp("served")
    with LocalRegistry.open(folder / "home") as registry:
        for name, data in (("a", mixed_model()), ("b", small_model())):
            (folder / f"{name}.gguf").write_bytes(data)
            ingest_file(registry, folder / f"{name}.gguf")
        spec = TensorSpec("blk.0.ffn_up.weight", (3 * CHUNK,), dtype_by_name("I8"))
        (folder / "rotten.gguf").write_bytes(file_bytes([], [(spec, random.Random(3).randbytes(3 * CHUNK))]))
        ingest_file(registry, folder / "rotten.gguf")
        flip_last(next(registry.settings.blobs.glob(f"??/{rotten_digest(folder)}.*")))
    return folder


def rotten_digest(folder: Path) -> str:
    """The digest of the organ that rots: the last bytes of its model."""
    return digest_of((folder / "rotten.gguf").read_bytes()[-3 * CHUNK :])


@pytest.fixture(scope="module")
def live(place: Path) -> Iterator[LiveServer]:
    """`organ serve` as it comes."""
    with running_server(place / "home", place / "log") as server:
        yield server


@pytest.fixture(scope="module")
def hurried(place: Path) -> Iterator[LiveServer]:
    """A server that waits a second for anything."""
    with running_server(place / "home", place / "hurried", HURRIED) as server:
        yield server


@pytest.mark.parametrize(
    ("number", "sent", "receive_bytes"),
    [
        pytest.param(50, ASK, 4096, id="they stop reading"),
        pytest.param(700, b"POST / HTTP/1.1\r\nContent-Length: 9\r\nA: ", None, id="their header does not end"),
        pytest.param(40, POST, None, id="their body does not come"),
        pytest.param(40, HEALTH, None, id="they do not close their side"),
    ],
)
def test_rude_clients_do_not_stop_the_health_check(
    live: LiveServer, number: int, sent: bytes, receive_bytes: int | None
) -> None:
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(live.connect(receive_bytes)).sendall(sent)
        assert max(live.health_seconds() for _ in range(10)) < HEALTH_SECONDS
        assert live.get("/index.json")


@pytest.mark.long
def test_a_client_that_does_not_read_is_cut_off_and_keeps_nobody_out(hurried: LiveServer, place: Path) -> None:
    size = (place / "a.gguf").stat().st_size
    with ExitStack() as stack:
        clients = [stack.enter_context(hurried.connect(4096)) for _ in range(20)]
        for client in clients:
            client.sendall(ASK)
        for client in clients:
            assert select([client], [], [], PATIENCE_SECONDS)[0], "its answer has begun"
        assert len(hurried.get("/models/local/a.gguf")) == size, "it needs no place of theirs"
        wait_until(lambda: b"\norgan_streams_in_flight 0.0\n" in hurried.get("/metrics"))
        answers = [receive_all(client) for client in clients]
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert all(len(answer) < size for answer in answers)


def test_an_address_that_is_too_long_is_refused_as_json_below_the_api(live: LiveServer) -> None:
    for path, is_json in ((b"/api/v1/organs?q=", True), (b"/organs?q=", False)):
        answer = live.send(b"GET " + path + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b" 414 " in head.splitlines()[0], head
        assert (MEDIA_TYPE.encode() in head) == is_json
        if is_json:
            value = json.loads(body)
            assert set(value) == set(Problem.__struct_fields__)
            assert (value["title"], value["status"], value["code"]) == ("URI too long", 414, "uri-too-long")


def test_a_corrupt_blob_ends_the_connection_short_and_then_is_an_error(live: LiveServer, place: Path) -> None:
    data = (place / "rotten.gguf").read_bytes()
    ask = HEALTH.replace(b"/healthz", b"/models/local/rotten.gguf")
    head, _, body = live.send(ask).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert f"Content-Length: {len(data)}".encode() in head
    assert CHUNK < len(body) < len(data)
    assert body == data[: len(body)]
    assert live.send(ask).startswith(b"HTTP/1.1 500")
    assert "rotten.gguf cannot be handed out whole" in (place / "log").read_text()


@pytest.mark.long
def test_a_download_that_runs_ends_before_the_server_does(place: Path) -> None:
    with running_server(place / "home", place / "ending") as live, live.connect(4096) as client, live.connect() as idle:
        client.sendall(ASK)
        received = client.recv(1000)
        live.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert live.process.poll() is None
        received += receive_all(client)
        assert received.partition(b"\r\n\r\n")[2] == (place / "a.gguf").read_bytes()
        assert receive_all(idle) == b""
        assert live.process.wait(30) == 0


@pytest.mark.long
def test_ctrl_c_ends_the_server_without_messages(place: Path) -> None:
    log = place / "interrupted"
    with running_server(place / "home", log, options=("--no-jobs",)) as live, ExitStack() as opened:
        for _ in range(4):
            client = opened.enter_context(live.connect(4096))
            client.sendall(ASK)
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        for process in (*psutil.Process(live.process.pid).children(recursive=True), live.process):
            process.send_signal(signal.SIGINT)  # as a terminal does
        assert live.process.wait(30) == 0
    assert len(log.read_text().splitlines()) == 1
