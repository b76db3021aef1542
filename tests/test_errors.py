"""Tests of errors: the table of codes, statuses and exit codes, and their transfer over HTTP to the same class."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from organs.cli.main import EXIT_CODES, organ
from organs.ingest.contributions.inspection import (
    InspectionStopped,
    RefusedByInspection,
)
from organs.ingest.contributions.manifest import BadManifest
from organs.ingest.contributions.uploads import BytesLost, WrongOffset
from organs.registry.catalog.tables import UploadRow
from organs.registry.client.connection import PROBLEM_MAX_BYTES, Connection
from organs.registry.entities.problem import ERRORS_MAX, INTERNAL, data_of, encoded, error_of, problem_of
from organs.registry.errors import (
    DETAIL_MAX_LENGTH,
    BadAdapter,
    BadDirectory,
    BadGguf,
    BadInput,
    BadQuery,
    BadRecipe,
    BadRequest,
    BadSplit,
    Conflict,
    CorruptBlob,
    FaultyParent,
    Incomplete,
    MissingExtra,
    NameTaken,
    NoSandbox,
    NotAssemblable,
    NotComposable,
    OrganError,
    QueueFull,
    Removed,
    SeveralModels,
    TooCostly,
    TooLittleTime,
    TooMany,
    TooSlow,
    Unreachable,
)
from organs.registry.local import LocalRegistry
from organs.registry.validation.runtime import NoRuntime
from organs.web.app import create_app
from organs.web.repositories import RevisionRemoved
from tests import write_errors_page
from tests.client.scripted_server import AcceptedAnswer, Answer, scripted_server
from tests.client.served_registry import serve_application
from tests.test_code_rules import ROOT
from tests.write_errors_page import all_errors

WORDS = "it happened to 'Größe', \N{ROCKET}"


TABLE = all_errors()
SAMPLES: tuple[OrganError, ...] = (
    TooLittleTime(WORDS, 12),
    FaultyParent("aa" * 32, "bb" * 32, "it is missing"),
    BadGguf("a.gguf", "n_tensors", 1 << 40, "too many"),
    BadSplit("a", ["shard 2 is missing", "shard 3 is missing"]),
    BadDirectory("folder", ["no manifest"]),
    BadAdapter("folder", ["no factors", "no alpha"]),
    BadQuery("limit", "a whole number"),
    BadRecipe("recipe", [("grafts[1].blocks", "not a block"), ("", "no base")]),
    BadRequest("pieces[3]", "not a piece", [(None, "too many"), ("name", "no name")]),
    BadManifest([("files[0]", "no pieces"), ("", "no files")]),
    TooCostly(12.5, 10.0, "too many models"),
    Incomplete("ada/tiny@1", 4, {1, 3}),
    SeveralModels("ada/tiny", ("ada/tiny-F16", "ada/tiny-Q8_0")),
    Removed("ada/tiny@1", "it was a mistake", "2026-01-31"),
    RevisionRemoved("ada/tiny@1", "it was a mistake", None),
    TooMany(WORDS, 61.5),
    QueueFull(100),
    NameTaken("ada/tiny", "ada/tiny@1", 2),
    TooSlow(2.5),
    NotAssemblable("ada/tiny@1", ["a shard is missing", "a header is missing"]),
    NotComposable(["other widths", "other heads"], ["strangers", "license-differs"]),
    WrongOffset(UploadRow(received_bytes=5)),
    BytesLost(),
    NoSandbox(["no namespaces"]),
    CorruptBlob("/home/registry/blobs/ab", "a bit is wrong"),
    NoRuntime("llama.cpp is missing", "validate"),
    MissingExtra("obstore is missing", "s3"),
    InspectionStopped("it took too long", is_limit=True),
    RefusedByInspection("bad-gguf", "it is none"),
)
"""Errors of the classes with their own constructors."""


def sample(code: str) -> OrganError:
    samples = {type(error).code: error for error in SAMPLES}
    return samples.get(code) or TABLE[code](WORDS)


@pytest.fixture(scope="module")
def raising(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """Yield a connection to a catalog that raises the sample of a code at `/api/v1/raise/<code>`."""
    with LocalRegistry.open(tmp_path_factory.mktemp("raising")) as registry:
        app = create_app(registry)

        def fail(code: str) -> None:
            raise sample(code)

        app.add_url_rule("/api/v1/raise/<code>", "fail", fail)
        with serve_application(app) as url:
            connection = Connection(url, tries=1)
            yield connection
            connection.close()


@pytest.mark.parametrize("code", [code for code, kind in TABLE.items() if kind.status != INTERNAL])
def test_an_error_raised_in_a_view_reaches_the_client_as_the_same_class_with_its_data(
    code: str, raising: Connection
) -> None:
    due = sample(code)
    with pytest.raises(OrganError) as caught:
        raising.send(AcceptedAnswer, "GET", f"/api/v1/raise/{code}")
    error = caught.value
    assert type(error) is type(due) is TABLE[code]
    assert (str(error), error.detail, error.code, error.status) == (str(due), due.detail, code, due.status)
    assert data_of(error) == data_of(due)
    assert error.errors == due.errors or (not due.errors and {finding.code for finding in error.errors} == {code})
    for name in ("reasons", "refusals", "unaccepted", "missing"):
        assert getattr(error, name, None) == getattr(due, name, None)


@pytest.mark.parametrize("code", [code for code, kind in TABLE.items() if kind.status == INTERNAL])
def test_an_internal_error_of_the_server_discloses_no_details(code: str, raising: Connection) -> None:
    with pytest.raises(Unreachable, match="The server failed to answer this request") as caught:
        raising.send(AcceptedAnswer, "GET", f"/api/v1/raise/{code}")
    assert sample(code).detail not in str(caught.value)
    assert (type(caught.value), caught.value.errors) == (Unreachable, ())


def test_two_classes_cannot_have_one_code() -> None:
    with pytest.raises(TypeError, match="'not-found' of NotFound"):
        type("Again", (OrganError,), {}, code="not-found")
    with pytest.raises(TypeError, match="code"):
        type("Without", (OrganError,), {})


def answered(body: Any, status: int) -> OrganError:
    """Return the error that a client raises for such an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with scripted_server(lambda _: Answer(status, data)) as server, pytest.raises(OrganError) as caught:
        Connection(server.url, tries=1).send(AcceptedAnswer, "GET", "/x")
    return caught.value


PLAIN: dict[str, Any] = {
    "type": "about:blank",
    "title": "Conflict",
    "status": 409,
    "detail": "no",
    "code": "conflict",
    "errors": [],
}


def test_an_unknown_code_falls_back_to_the_status_and_keeps_the_sentence_and_the_fields() -> None:
    listed = [{"field": "name", "code": "from-the-future", "detail": "too new"}]
    error = answered(PLAIN | {"code": "from-the-future", "errors": listed, "more": {"a": [1]}}, 409)
    assert (type(error), str(error), error.errors[0].code) == (Conflict, "no", "from-the-future")


def test_a_code_that_does_not_match_the_status_is_ignored() -> None:
    assert type(answered(PLAIN | {"code": "bad-token", "status": 409}, 409)) is Conflict
    for code in ("corrupt-blob", "disk-full", "bad-setting"):
        assert type(answered(PLAIN | {"code": code, "status": 500}, 500)) is Unreachable


HOSTILE: dict[str, Any] = {
    "a long sentence": PLAIN | {"detail": "x" * (DETAIL_MAX_LENGTH + 1)},
    "a code with a control character": PLAIN | {"code": "conflict\x1b[31m"},
    "many errors": PLAIN | {"errors": [{"code": "a", "detail": "b"}] * (ERRORS_MAX + 1)},
    "a number for a sentence": PLAIN | {"detail": 7},
    "an error that is none": PLAIN | {"errors": [7]},
    "no code": {key: value for key, value in PLAIN.items() if key != "code"},
    "deep": b'{"more": ' + b"[" * 100_000,
    "huge": json.dumps(PLAIN).encode() + b" " * PROBLEM_MAX_BYTES,
    "no JSON": b"<html>",
    "no UTF-8": b'{"detail": "\xff\xfe"}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_problem_becomes_an_error_by_its_status_without_its_text(name: str) -> None:
    error = answered(HOSTILE[name], 409)
    assert type(error) is Conflict
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+ answered 409", str(error))
    assert error.errors == ()


@pytest.mark.parametrize("seconds", [-1, 1e300, "7", None, [7]])
def test_data_out_of_bounds_are_ignored(seconds: object) -> None:
    error = error_of(429, json.dumps(PLAIN | {"code": "too-many-requests", "seconds": seconds}).encode(), "x", 3.0)
    assert isinstance(error, TooMany)
    assert error.seconds == 3.0


def test_text_that_is_too_long_or_cannot_be_encoded_is_cut_before_it_is_sent() -> None:
    error = BadRecipe("\ud800", [("f" * 1000, "x" * 5000)] * 100)
    body = encoded(problem_of(error), data_of(error))
    assert len(body) < PROBLEM_MAX_BYTES
    back = error_of(400, body, "x")
    assert isinstance(back, BadRecipe)
    assert (len(back.errors), len(back.detail), back.where) == (ERRORS_MAX, DETAIL_MAX_LENGTH, "?")


def test_the_page_of_errors_is_the_one_that_the_classes_give() -> None:
    page = write_errors_page.TARGET.read_text(encoding="utf-8")
    assert page == write_errors_page.written(page), "PYTHONPATH=. python -m tests.write_errors_page"
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (\d+) \| (\d) \| `(\w+)` \| (?:.+) \|$", page, re.MULTILINE)
    assert rows == [(code, str(kind.status), str(kind.exit_code), kind.__name__) for code, kind in TABLE.items()]


@pytest.mark.parametrize("code", TABLE)
def test_the_page_of_errors_names_the_data_that_are_sent(code: str) -> None:
    assert write_errors_page.data(TABLE[code]) == list(data_of(sample(code)))


def test_every_exit_code_is_explained_by_the_help_of_the_command_and_the_guide() -> None:
    used = {0, 2, *(kind.exit_code for kind in TABLE.values())}
    assert used == set(EXIT_CODES)
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    for number, meaning in EXIT_CODES.items():
        assert f"  {number}  {meaning}\n" in (organ.epilog or "")
        assert f"| {number} | {meaning} |" in guide


def test_a_bad_input_that_is_a_bad_name_is_400_to_programs_and_404_on_a_page(registry: LocalRegistry) -> None:
    client = create_app(registry).test_client()
    assert client.get("/api/v1/models/local/..%5cx").status_code == 400
    assert client.get("/models/.../x").status_code == 404
    assert issubclass(TABLE["bad-name"], BadInput)
