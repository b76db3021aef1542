"""The server stays there for everybody: whoever is slow, silent or rude, and whatever is wrong with a blob."""

from __future__ import annotations

import json
import random
import signal
import socket
import struct
import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from select import select

import psutil
import pytest

from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.digest import digest_of
from organs.registry.entities.problem import MEDIA_TYPE, Problem
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from tests.assembly.test_stream import CHUNK, flip_last, mixed_model
from tests.gguf_files import file_bytes
from tests.small_models import ingest_file, small_model
from tests.web.live_server import HURRIED, PATIENCE_SECONDS, LiveServer, receive_all, running_server

ASK = b"GET /models/local/a.gguf HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
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


@pytest.mark.long
def test_random_ranges_from_the_server_equal_the_slices_of_the_file(live: LiveServer, place: Path) -> None:
    data = (place / "a.gguf").read_bytes()
    chosen = random.Random(8)
    for _ in range(60):
        begin, end = sorted(chosen.sample(range(len(data)), 2))
        end = chosen.choice([end, min(end, begin + 1000)])
        assert live.get("/models/local/a.gguf", {"Range": f"bytes={begin}-{end}"}) == data[begin : end + 1]


def test_no_header_of_a_client_says_where_links_lead(live: LiveServer) -> None:
    asked = b"GET //evil.example/organs HTTP/1.1\r\nHost: localhost\r\nSCRIPT_NAME: //evil.example\r\n"
    answer = live.send(asked + b"Connection: close\r\n\r\n")
    assert b" 404 " in answer.partition(b"\r\n")[0]
    assert b'"//evil.example/' not in answer


def test_fifty_clients_that_stop_reading_do_not_stop_the_health_check(live: LiveServer, place: Path) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(live.connect(4096)) for _ in range(50)]
        for client in clients:
            client.sendall(ASK)
        assert max(live.health_seconds() for _ in range(20)) < HEALTH_SECONDS
        assert live.get("/index.json")
    assert max(live.health_seconds() for _ in range(3)) < HEALTH_SECONDS


def test_clients_that_never_end_their_header_do_not_stop_the_health_check(live: LiveServer) -> None:
    beginnings = [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\nA: ",
    ]
    with ExitStack() as stack:
        for number in range(700):
            stack.enter_context(live.connect()).sendall(beginnings[number % len(beginnings)])
        assert max(live.health_seconds() for _ in range(10)) < HEALTH_SECONDS


@pytest.mark.long
def test_a_header_that_takes_too_long_is_cut_off(hurried: LiveServer) -> None:
    with hurried.connect() as silent, hurried.connect() as dripping:
        begun = time.monotonic()
        dripping.sendall(b"GET / HTTP/1.1\r\nX: ")
        stop = threading.Event()
        drip = threading.Thread(target=_drip, args=(dripping, stop))
        drip.start()
        assert receive_all(silent) == b"", "there is nothing to answer"
        assert receive_all(dripping).startswith(b"HTTP/1.1 408 ")
        stop.set()
        drip.join()
        assert time.monotonic() - begun < 15
    hurried.health_seconds()


def _drip(client: socket.socket, stop: threading.Event) -> None:
    while not stop.wait(0.2):
        try:
            client.sendall(b"a")
        except OSError:
            return


@pytest.mark.long
def test_bodies_that_do_not_come_do_not_stop_the_health_check(hurried: LiveServer) -> None:
    post = b"POST /api/models/local/a/paths-info/main HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    kind = b"Content-Type: application/x-www-form-urlencoded\r\n\r\npaths="
    with ExitStack() as stack:
        clients = [stack.enter_context(hurried.connect()) for _ in range(12)]
        for client in clients:
            client.sendall(post + kind)
        hurried.health_seconds()
        for client in clients:
            assert not receive_all(client).startswith(b"HTTP/1.1 200")


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
        await_no_download(hurried)
        answers = [receive_all(client) for client in clients]
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert all(len(answer) < size for answer in answers)


def await_no_download(live: LiveServer) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while b"\norgan_streams_in_flight 0.0\n" not in live.get("/metrics"):
        assert time.monotonic() < until, "a download is under way"
        time.sleep(0.02)


def test_clients_that_do_not_close_their_side_hold_up_nobody(live: LiveServer) -> None:
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(live.connect()).sendall(HEALTH)
        assert max(live.health_seconds() for _ in range(5)) < HEALTH_SECONDS


HEAD = b"POST /api/models/local/a/paths-info/main HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Content-Length: +10\r\n\r\n0123456789",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 0x5\r\n\r\nhello",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"X" * 20_000 + b": a\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n",
    ],
)
def test_a_request_that_lies_about_its_length_is_refused(request_bytes: bytes, live: LiveServer) -> None:
    answer = live.send(request_bytes)
    status = int(answer.split(b" ", 2)[1])
    assert status in (400, 413, 414, 431, 501, 505)
    assert answer.count(b"HTTP/1.1 ") == 1, "what follows is no second request"
    live.health_seconds()


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


def test_a_body_longer_than_it_said_is_no_request_of_its_own(live: LiveServer) -> None:
    smuggled = HEAD.replace(b"Connection: close\r\n", b"") + b"Content-Length: 7\r\n\r\npaths=aGARBAGE / X\r\n\r\n"
    answer = live.send(smuggled)
    assert answer.startswith(b"HTTP/1.1 ")
    assert answer.count(b"HTTP/1.1 200") <= 1


def test_a_connection_is_used_again_and_again(live: LiveServer) -> None:
    ask = HEALTH.replace(b"Connection: close\r\n", b"")
    with live.connect() as client:
        client.sendall(ask * 3 + HEALTH)
        assert receive_all(client).count(b'{"ok":true}') == 4
    with live.connect() as client:
        for byte in ask + HEALTH:
            client.sendall(struct.pack("B", byte))
        assert receive_all(client).count(b'{"ok":true}') == 2


def test_any_process_answers_for_all_of_them(live: LiveServer) -> None:
    found = [int(float(_metric(live.get("/metrics"), b"organ_requests_total"))) for _ in range(8)]
    assert found == sorted(found), "no process starts again at nothing"
    assert found[-1] >= found[0] + 7


def _metric(text: bytes, name: bytes) -> float:
    """The sum over all labels of a metric."""
    return sum(float(line.rpartition(b" ")[2]) for line in text.splitlines() if line.startswith(name + b"{"))


def test_other_names_than_those_of_this_machine_are_refused(live: LiveServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        live.get("/organs", {"Host": "attacker.example"})
    assert caught.value.code == 421
    caught.value.close()
    assert live.get("/healthz", {"Host": "10.0.0.7"}) == b'{"ok":true}\n', "probes ask by an address"


def test_a_corrupt_blob_ends_the_connection_short_and_then_is_an_error(live: LiveServer, place: Path) -> None:
    data = (place / "rotten.gguf").read_bytes()
    ask = HEALTH.replace(b"/healthz", b"/models/local/rotten.gguf")
    head, _, body = live.send(ask).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert f"Content-Length: {len(data)}".encode() in head
    assert CHUNK < len(body) < len(data)
    assert body == data[: len(body)]
    for again in (ask, ask.replace(b"/models/local/", b"/local/rotten/resolve/main/"), ask.replace(b"GET", b"HEAD")):
        assert live.send(again).startswith(b"HTTP/1.1 500")
    assert "rotten.gguf cannot be handed out whole" in (place / "log").read_text()
    with LocalRegistry.open(place / "home") as registry, registry.catalog.reading() as session:
        (row,) = blobs_by_digest(session, [rotten_digest(place)]).values()
        assert row.state == "corrupt"


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
