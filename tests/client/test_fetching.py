"""A file from elsewhere: gone on with where it was cut, refused where it is not what was promised, or not at all."""

from __future__ import annotations

import fcntl
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from organs.registry.client.fetching import TRIES, FileToFetch, fetch, partial_path
from organs.registry.client.files import (
    check_lock,
    check_organs,
)
from organs.registry.digest import Digest, digest_of
from organs.registry.errors import BadReply, Busy, StoreUnwritable, Unreachable
from organs.registry.local import LocalRegistry
from tests.client.scripted_server import Answer, ReceivedRequest, connection_to_script, cut, rest_of

DATA = random.Random(6).randbytes(200_000)
LAST = len(DATA) - 1
FILE = FileToFetch("/models/acme/x@1.gguf", len(DATA), digest_of(DATA))


def whole(asked: ReceivedRequest) -> Answer:
    return rest_of(DATA, asked)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("seed", range(6))
def test_a_connection_cut_at_random_points_sends_every_byte_once(tmp_path: Path, seed: int) -> None:
    chance, sent = random.Random(seed), 0

    def script(asked: ReceivedRequest) -> Answer:
        nonlocal sent
        answer = whole(asked)
        assert answer.body is not None
        length = min(chance.randrange(1, 60_000), len(answer.body))
        sent += length
        return answer if length == len(answer.body) else cut(answer, length)

    come: list[int] = []
    with connection_to_script(script) as (server, connection):
        assert fetch(connection, FILE, tmp_path / "x.gguf", come.append) == FILE.sha256
    assert (tmp_path / "x.gguf").read_bytes() == DATA
    assert left(tmp_path) == ["x.gguf"]
    assert len(server.requests) > 3
    assert sent == sum(come) == len(DATA)


def test_bytes_of_an_earlier_attempt_are_not_sent_again(tmp_path: Path) -> None:
    target = tmp_path / "x.gguf"
    target.write_bytes(b"as it was")
    with connection_to_script(lambda asked: cut(whole(asked), 70_000 if "Range" not in asked.headers else 0)) as (
        server,
        connection,
    ):
        with pytest.raises(Unreachable, match="cut"):
            fetch(connection, FILE, target)
        assert len(server.requests) == 1 + TRIES
    assert target.read_bytes() == b"as it was"
    (partial,) = set(left(tmp_path)) - {"x.gguf"}
    assert re.fullmatch(r"\.organ-[0-9a-f]{16}\.part", partial)
    assert (tmp_path / partial).read_bytes() == DATA[:70_000]
    with connection_to_script(whole) as (server, connection):
        (tmp_path / partial).rename(tmp_path / name_at(connection.url, target))  # the same registry, at another port
        come: list[int] = []
        fetch(connection, FILE, target, come.append)
    assert [asked.headers["Range"] for asked in server.requests] == ["bytes=70000-"]
    assert server.requests[0].headers["If-Range"] == f'"{FILE.sha256}"'
    assert server.requests[0].headers["Accept-Encoding"] == "identity"
    assert (target.read_bytes(), sum(come), left(tmp_path)) == (DATA, len(DATA), ["x.gguf"])


def name_at(url: str, target: Path, file: FileToFetch = FILE) -> str:
    """The name of the partial file of what comes from `url`."""
    return partial_path(target, file.key(url)).name


@pytest.mark.parametrize("lies_there", [b"\x00" * 1000, DATA[:999] + b"!", DATA + b"more", b"x" * len(DATA), DATA])
def test_an_unfinished_download_of_another_file_is_discarded(tmp_path: Path, lies_there: bytes) -> None:
    """And of a complete one nothing is requested."""
    target = tmp_path / "x.gguf"
    with connection_to_script(whole) as (server, connection):
        (tmp_path / name_at(connection.url, target)).write_bytes(lies_there)
        come: list[int] = []
        assert fetch(connection, FILE, target, come.append) == FILE.sha256
        assert (server.requests == []) is (lies_there == DATA)
    assert (target.read_bytes(), sum(come), left(tmp_path)) == (DATA, len(DATA), ["x.gguf"])


@pytest.mark.parametrize("honours_if_range", [True, False])
def test_another_file_at_the_address_is_fetched_from_its_beginning(tmp_path: Path, honours_if_range: bool) -> None:
    """The tag tells: what the registry has now is not what was begun."""
    new = DATA[::-1]

    def now(asked: ReceivedRequest) -> Answer:
        if "Range" in asked.headers and not honours_if_range:
            asked.headers.replace_header("If-Range", f'"{digest_of(new)}"')
        return rest_of(new, asked)

    file = FileToFetch(FILE.path, len(new), None)
    answers = [cut(rest_of(DATA, ReceivedRequest("GET", "/", {}, b"")), 50_000)]  # type: ignore[arg-type]  # headers like any mapping
    with connection_to_script(lambda asked: answers.pop() if answers else now(asked)) as (server, connection):
        assert fetch(connection, file, tmp_path / "x.gguf") == digest_of(new)
        assert "If-Range" in server.requests[1].headers
    assert left(tmp_path) == ["x.gguf"]


def flipped(asked: ReceivedRequest) -> Answer:
    return rest_of(DATA[:-1] + bytes([DATA[-1] ^ 1]), asked, f'"{FILE.sha256}"')


def after_a_cut(answer: Answer) -> Callable[[ReceivedRequest], Answer]:
    """Answer the first request with the first bytes, and the request for the rest with `answer`."""
    return lambda asked: answer if "Range" in asked.headers else cut(whole(asked), 9)


LIES: dict[str, Callable[[ReceivedRequest], Answer]] = {
    "other bytes": flipped,
    "fewer bytes": lambda _asked: Answer(200, DATA[:-1]),
    "more bytes": lambda _asked: Answer(200, DATA + b"!"),
    "very many bytes": lambda _asked: Answer(200, DATA, promised=10**15),
    "nothing": lambda _asked: Answer(200, b""),
    "no file": lambda _asked: Answer(204, b""),
    "not modified": lambda _asked: Answer(304, b""),
    "no such range": lambda _asked: Answer(416, b"{}"),
    "a range unasked for": lambda _asked: Answer(206, DATA, {"Content-Range": f"bytes 0-{LAST}/{len(DATA)}"}),
    "other bytes after a cut": lambda asked: flipped(asked) if "Range" in asked.headers else cut(whole(asked), 9),
    "another range": after_a_cut(Answer(206, DATA[8:], {"Content-Range": f"bytes 8-{LAST}/{len(DATA)}"})),
    "a range of another size": after_a_cut(
        Answer(206, DATA[9:], {"Content-Range": f"bytes 9-{len(DATA)}/{len(DATA) + 1}"})
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_registry_that_lies_is_refused_and_leaves_nothing(tmp_path: Path, lie: str) -> None:
    target = tmp_path / "x.gguf"
    target.write_bytes(b"as it was")
    with connection_to_script(LIES[lie]) as (_, connection), pytest.raises(BadReply):
        fetch(connection, FILE, target)
    assert (target.read_bytes(), left(tmp_path)) == (b"as it was", ["x.gguf"])


def test_an_interrupted_download_can_be_resumed(tmp_path: Path) -> None:
    def interrupt(_size: int) -> None:
        raise KeyboardInterrupt

    with connection_to_script(whole) as (_, connection):
        with pytest.raises(KeyboardInterrupt):
            fetch(connection, FILE, tmp_path / "x.gguf", interrupt)
        assert left(tmp_path) == [name_at(connection.url, tmp_path / "x.gguf")]
        fetch(connection, FILE, tmp_path / "x.gguf")
    assert left(tmp_path) == ["x.gguf"]


def test_two_processes_do_not_fetch_the_same_file_simultaneously(tmp_path: Path) -> None:
    with connection_to_script(whole) as (server, connection):
        with (tmp_path / name_at(connection.url, tmp_path / "x.gguf")).open("wb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(Busy, match="another process"):
                fetch(connection, FILE, tmp_path / "x.gguf")
        assert server.requests == []


def test_a_download_never_writes_through_a_link_or_over_a_folder(tmp_path: Path) -> None:
    with connection_to_script(whole) as (server, connection):
        (tmp_path / "mine").write_bytes(b"as it was")
        (tmp_path / name_at(connection.url, tmp_path / "x.gguf")).symlink_to(tmp_path / "mine")
        with pytest.raises(StoreUnwritable):
            fetch(connection, FILE, tmp_path / "x.gguf")
        (tmp_path / "folder.gguf").mkdir()
        with pytest.raises(StoreUnwritable, match="this is a folder"):
            fetch(connection, FILE, tmp_path / "folder.gguf")
        with pytest.raises(StoreUnwritable, match="is not a folder"):
            fetch(connection, FILE, tmp_path / "nowhere" / "x.gguf")
        assert server.requests == []
    assert (tmp_path / "mine").read_bytes() == b"as it was"


def test_a_file_without_a_digest_is_checked_against_its_organs_or_its_lock(
    local_registry: LocalRegistry, tmp_path: Path
) -> None:
    model, path = local_registry.model("first"), tmp_path / "first.gguf"
    local_registry.assemble("first", path)
    organs = {organ.name: organ.digest for organ in model.organs}
    assert model.lock_id is not None
    for check in (check_organs(organs), check_lock(model.lock_id)):
        check(path)
        data = path.read_bytes()
        for bad in (data[:-100] + bytes(100), data[: len(data) // 2], b"GGUF", b""):
            path.write_bytes(bad)
            with pytest.raises(BadReply):
                check(path)
        path.write_bytes(data)
    with pytest.raises(BadReply, match="not that of the lock"):
        check_lock(Digest("0" * 64))(path)
    with pytest.raises(BadReply, match="other tensors"):
        check_organs({**organs, "more": Digest("0" * 64)})(path)
