"""Answers of a remote registry are checked before use: they are accepted or refused with a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from organs.registry.client.address import (
    check_file_name,
    parse_full_name,
)
from organs.registry.client.connection import Connection
from organs.registry.client.remote import RemoteRegistry
from organs.registry.columns import CellKind
from organs.registry.endpoints import chimeras, reports
from organs.registry.endpoints.declaration import ROOT as API
from organs.registry.entities.base import Entity, decode, encode
from organs.registry.entities.chimera import Chimera
from organs.registry.entities.comparison import Comparison
from organs.registry.entities.job import Job, ReportRequest
from organs.registry.entities.model import Model, ModelPage
from organs.registry.entities.organ import FacetCounts, Organ, OrganPage
from organs.registry.entities.plan import Compatibility, PlannedRecipe
from organs.registry.entities.report import Report, ReportColumn, table
from organs.registry.errors import BadReply, Unreachable
from organs.registry.local import LocalRegistry
from organs.registry.models import with_organs
from organs.registry.reports.formats import markdown
from tests.client.scripted_server import Answer, as_json, scripted_server

STRANGE: tuple[Any, ...] = (None, -1, 2**70, 1e400, float("nan"), True, "", "x\x1b[31m", [], {}, [[]], {"a": 1}, "0x0")

TABLE = table("T", (ReportColumn("a", "A", CellKind.SIZE),), ((7,),), before=("B",), after=("C",), empty="")
REPORT = Report(title="A", main="t", opening=("B",), sections={"t": TABLE}, closing=("C",))


def shown_model(values: Any) -> None:
    decoded(Model)(values)
    model = with_organs(decode(json.dumps(values).encode(), Model), ())
    parse_full_name(model.name)
    assert repr(model)
    assert model.is_chimera == (model.recipe_yaml is not None)


def shown_report(values: Any) -> None:
    decoded(Report)(values)
    assert markdown(decode(json.dumps(values).encode(), Report))


def decoded(kind: type[Entity]) -> Callable[[Any], None]:
    """Decode values as the client does."""

    def take(values: Any) -> None:
        try:
            entity = decode(json.dumps(values).encode(), kind)
        except ValueError as error:
            raise BadReply(str(error)) from error
        assert repr(entity)

    return take


def raw(connection: Connection, path: str, **query: str | int) -> Any:
    """Return the JSON at a path, without the checks of the client."""
    with connection.download(f"{path}?{urlencode(query)}") as reply:
        return json.loads(b"".join(reply.stream()))


@pytest.fixture(scope="module")
def said(served: Any) -> dict[str, tuple[Any, Callable[[Any], object]]]:
    """True answers, shortened, each with what takes it."""
    here: LocalRegistry = served.registry
    first = here.model("first")
    recipe = {"base": "base", "grafts": [{"from": "tuned", "type": "organ"}]}
    with RemoteRegistry(served.url) as there:
        ask = there.connection
        found: dict[str, tuple[Any, Callable[[Any], object]]] = {
            "organs": (raw(ask, f"{API}/organs", limit=2), decoded(OrganPage)),
            "facets": (raw(ask, f"{API}/facets", q="type:norm"), decoded(FacetCounts)),
            "models": (raw(ask, f"{API}/models", limit=2), decoded(ModelPage)),
            "model": (raw(ask, f"{API}/models/local/first"), shown_model),
            "organ": (raw(ask, f"{API}/organs/{first.organs[0].digest}"), decoded(Organ)),
            "chimera": (raw(ask, f"{API}/chimeras/{first.lock_id}"), decoded(Chimera)),
            "fits": (raw(ask, f"{API}/compatibility", base="base", donor="tuned"), decoded(Compatibility)),
            "comparison": (raw(ask, f"{API}/compare", first="base", second="tuned"), decoded(Comparison)),
            "figures": (raw(ask, f"{API}/reports/figures"), shown_report),
            "table": (json.loads(encode(REPORT)), shown_report),
            "plan": (json.loads(encode(chimeras.plan(ask, recipe))), decoded(PlannedRecipe)),
            "job": (json.loads(encode(reports.keep_report(ask, ReportRequest(limit=1)))), decoded(Job)),
        }
    return {name: (shortened(values), take) for name, (values, take) in found.items()}


def shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    return [shortened(one) for one in value[:1]] if isinstance(value, list) else value


def places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every member of every object and list in `value`, by the way to it."""
    inside: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inside:
        yield (*place, name)
        yield from places(one, (*place, name))


def changed(values: Any, place: tuple[str | int, ...], change: Callable[[Any, Any], None]) -> Any:
    """A copy of `values` in which `change` was applied to the holder of `place` and its name there."""
    copied = copy.deepcopy(values)
    holder = copied
    for name in place[:-1]:
        holder = holder[name]
    change(holder, place[-1])
    return copied


ANSWERS = (
    *("organs", "facets", "models", "model", "organ", "chimera", "fits", "plan", "job"),
    *("comparison", "figures", "table"),
)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_changed_anywhere_is_accepted_or_refused_with_a_sentence(said: Any, name: str) -> None:
    values, take = said[name]
    take(copy.deepcopy(values))
    refused: list[str] = []
    for place in places(values):
        for strange in STRANGE:
            try:
                take(changed(values, place, lambda holder, key, strange=strange: holder.__setitem__(key, strange)))
            except BadReply as error:
                refused.append(str(error))
    assert len(refused) > 40
    assert max(map(len, refused)) < 400
    for member in values:
        if member in ("items", "next", "plan", "digest", "name", "id", "type", "types"):
            with pytest.raises(BadReply, match="missing"):
                take({key: value for key, value in values.items() if key != member})


@pytest.mark.parametrize("whole", [None, [], "x", 5, True])
def test_an_answer_that_is_not_an_object_is_refused(whole: object) -> None:
    with pytest.raises(BadReply):
        decoded(PlannedRecipe)(whole)


@pytest.mark.parametrize(
    "name", ["", "x", "a/b", "a/b@0", "../b@1", "a/..@1", "a/b@1/../..", "a/b@1?x", "api/b@1", "a/b@1 "]
)
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(BadReply):
        parse_full_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", ".hidden", "x\n", "x\x00", "a\\b", "x.", "-x", "x" * 300, "ü"]
)
def test_an_unsafe_file_name_is_refused(name: str) -> None:
    with pytest.raises(BadReply):
        check_file_name(name)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b"[" * 1_000_000),
        Answer(200, b'{"items":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        Answer(200, b'{"items": [' + b"1," * 9_000_000 + b"1]}"),
        Answer(200, b'{"next": ' + b"9" * 5000 + b"}"),
        Answer(200, b"<html>"),
        Answer(200, b"\xff\xfe"),
        Answer(200, b"null"),
        Answer(200, b"{}"),
        as_json({"items": [], "next": 5, "notes": []}),
        Answer(500, b"{}"),
    ],
    ids=["brackets", "deep", "huge", "long number", "a page", "no text", "null", "empty", "next", "broken"],
)
def test_an_invalid_answer_is_refused_with_a_sentence(answer: Answer) -> None:
    with scripted_server(lambda _: answer) as server, RemoteRegistry(server.url) as remote:
        for question in (remote.search, remote.models, remote.count, lambda: remote.model("a")):
            with pytest.raises(Unreachable) as caught:
                question()
            assert len(str(caught.value)) < 400


def test_an_endless_list_of_organs_is_refused() -> None:
    """Each page says that one more follows, and has nothing."""
    model = {"items": [], "next": "more", "notes": []}
    with scripted_server(lambda _: as_json(model)) as server, RemoteRegistry(server.url) as remote:
        with pytest.raises(BadReply, match="do not end"):
            remote.organs_of("a/b@1")
        assert len(server.requests) == 1


def test_real_answers_are_strict_json(said: Any) -> None:
    assert all(json.dumps(values, allow_nan=False) for values, _ in said.values())
