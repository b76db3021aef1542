"""Objects in a store, read by range through obstore: each fault gets one sentence, and no wrong byte is returned."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import pytest

from organs.registry.client.ranges import (
    GAP_BYTES,
    LISTED_MAX,
    ObjectFile,
    RangeClient,
    ReadLimits,
    list_objects,
    parse_object_address,
)
from organs.registry.errors import BadSource, MissingExtra, NoSuchFile, NotAllowed, OrganError, Unreachable
from tests.client.scripted_server import CUT, Answer, ReceivedRequest, Script, ScriptedServer, scripted_server
from tests.client.test_ranges import DATA, later, part

ADDRESS = "s3://models/big/m.gguf"
CHANGED_AT = "Tue, 24 Nov 2026 09:00:00 GMT"


@contextmanager
def store(script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """Serve the protocol of S3 by `script`, with credentials in the environment."""
    with scripted_server(script) as server:
        for name, value in {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "reader",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield server


def served(request: ReceivedRequest, tag: str = '"1"') -> Answer:
    """Answer as S3 does, for one object with DATA."""
    answer = part(request, tag=tag)
    if request.headers["If-Match"] not in (None, tag):
        return Answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
    return Answer(206, answer.body, answer.headers | {"Last-Modified": CHANGED_AT})


@pytest.fixture
def client() -> Iterator[RangeClient]:
    with RangeClient(limits=ReadLimits(tries=2, silence_seconds=2.0, total_seconds=4.0)) as running:
        yield running


def test_an_object_is_read_as_a_file_at_an_address(client: RangeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = [(200_000, 700), (100_000, 300), (100_300 + GAP_BYTES, 5), (5, 10)]
    with store(served, monkeypatch) as server:
        file = ObjectFile(client, ADDRESS, allows_http=True)
        assert (file.size_bytes, file.version, file.path.name) == (len(DATA), '"1"', "m.gguf")
        assert file.read_ranges(spans) == [DATA[offset : offset + size] for offset, size in spans]
        file.check_unchanged()
        assert {request.path for request in server.requests} == {"/models/big/m.gguf"}
        assert [request.headers["If-Match"] for request in server.requests] == [None, *['"1"'] * 3]
        assert all("Credential=reader/" in request.headers["Authorization"] for request in server.requests)
        with pytest.raises(BadSource, match="ends at byte 300,000"):
            file.read_at(299_999, 2)


def without_tag(request: ReceivedRequest) -> Answer:
    answer = served(request)
    return Answer(206, answer.body, {name: value for name, value in answer.headers.items() if name != "ETag"})


FAULTS: dict[str, tuple[Callable[[ReceivedRequest], Answer], type[OrganError], str]] = {
    "changed": (lambda request: served(request, '"2"'), BadSource, "changed while it was read"),
    "ignores conditions": (lambda request: part(request, tag='"2"'), BadSource, "changed while it was read"),
    "removed": (lambda _: Answer(404, b""), NoSuchFile, "no such object, or no such bucket"),
    "forbidden": (lambda _: Answer(403, b""), NotAllowed, "set the credentials of the store"),
    "unknown user": (lambda _: Answer(401, b""), NotAllowed, "set the credentials of the store"),
    "busy": (lambda _: Answer(503, b""), Unreachable, "status code: 503"),
    "cuts": (lambda _: CUT, Unreachable, r"m\.gguf at http://127\.0\.0\.1:\d+: ."),
    "nonsense": (lambda _: Answer(418, b""), Unreachable, "status code: 418"),
    "shorter": (lambda _: Answer(416, b"<Error>"), Unreachable, "416 Range Not Satisfiable$"),
    "ignores ranges": (
        lambda _: Answer(200, DATA, {"ETag": '"1"', "Last-Modified": CHANGED_AT}),
        Unreachable,
        "Received non-partial response when range requested",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_store_gets_one_sentence(
    fault: str, client: RangeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, error, sentence = FAULTS[fault]
    with store(later(answer, served), monkeypatch):
        file = ObjectFile(client, ADDRESS, allows_http=True)
        with pytest.raises(error, match=sentence) as raised:
            file.read_at(100_000, 10)
        text = str(raised.value)
        at = r"( at http://127\.0\.0\.1:\d+)?" if error is Unreachable else ""
        assert re.match(f"{re.escape(ADDRESS)}{at}: (?!.*127)", text), "only the server is named, without a signature"
        assert "\n" not in text


def test_an_object_without_a_tag_is_identified_by_the_time_of_its_last_change(
    client: RangeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store(without_tag, monkeypatch):
        file = ObjectFile(client, ADDRESS, allows_http=True)
        assert file.version == "2026-11-24T09:00:00+00:00"
        file.check_unchanged()


def test_requests_are_encrypted_unless_the_user_allows_others(
    client: RangeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store(served, monkeypatch) as server:
        with pytest.raises(Unreachable):
            ObjectFile(client, ADDRESS)
        assert server.requests == []


def listing(keys: list[str]) -> Script:
    def script(request: ReceivedRequest) -> Answer:
        prefix = parse_qs(urlsplit(request.path).query).get("prefix", [""])[0]
        entries = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-11-24T09:00:00.000Z</LastModified><Size>1</Size></Contents>"
            for key in keys
            if key.startswith(prefix)
        )
        return Answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode())

    return script


def test_the_objects_of_a_folder_are_listed(client: RangeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with store(listing(["big/b.gguf", "big/a.gguf", "bigger/c.gguf"]), monkeypatch):
        assert list_objects(client, "s3://models", "big", allows_http=True) == ["big/a.gguf", "big/b.gguf"]
        assert len(list_objects(client, "s3://models", "", allows_http=True)) == 3


def test_a_listing_is_bounded(client: RangeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    script = listing([f"{number}.gguf" for number in range(LISTED_MAX + 1)])
    with store(script, monkeypatch), pytest.raises(BadSource, match="s3://models/: more than 10,000 objects; name"):
        list_objects(client, "s3://models", "", allows_http=True)


@pytest.mark.parametrize("key", ["a//b.gguf", "../b.gguf", "a/./b.gguf"])
def test_an_invalid_key_is_refused(key: str, client: RangeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with store(served, monkeypatch) as server, pytest.raises(OrganError, match=r"[Pp]ath"):
        ObjectFile(client, f"s3://models/{key}", allows_http=True)
    assert server.requests == []


def test_addresses_have_a_bucket_and_a_key() -> None:
    assert parse_object_address("S3://models/a/b.gguf") == ("s3://models", "a/b.gguf")
    assert parse_object_address("az://models/") == ("az://models", "")
    for address in ("s3://models", "s3:///a", "s3://-/a", "s3://user@models/a", "http://models/a", "s3://mo dels/a"):
        assert parse_object_address(address) is None


def test_without_the_extra_one_sentence_names_it(client: RangeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(
        MissingExtra, match="s3://models: to read object stores, install this program with the extra 's3'"
    ):
        ObjectFile(client, ADDRESS)
