"""Answers of a remote registry are checked before use: they are accepted or refused with a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from organs.registry.client.address import check_file_name, parse_full_name
from organs.registry.client.remote import RemoteRegistry
from organs.registry.columns import CellKind
from organs.registry.entities.base import Entity, decode, encode
from organs.registry.entities.model import Model
from organs.registry.entities.report import Report, ReportColumn, ReportFigure, ReportFigures, table
from organs.registry.errors import BadReply, Unreachable
from organs.registry.models import with_organs
from organs.registry.reports.formats import markdown
from tests.client.questions import ANSWERED
from tests.client.scripted_server import Answer, as_json, scripted_server
from tests.client.served_registry import ServedRegistry

STRANGE: tuple[Any, ...] = (None, -1, 2**70, 1e400, float("nan"), True, "", "x\x1b[31m", [], {}, [[]], {"a": 1}, "0x0")
TABLE = table("T", (ReportColumn("a", "A", CellKind.SIZE),), ((7,),), before=("B",), after=("C",), empty="")
FIGURES = ReportFigures(
    title="F", before=("B",), figures={"x_count": ReportFigure("X", "1", CellKind.COUNT, "M")}, after=("C",)
)
REPORT = Report(title="A", main="t", opening=("B",), sections={"f": FIGURES, "t": TABLE}, closing=("C",))
QUESTIONS = {question.method: question for question in ANSWERED if question.path is not None}
ENTITIES = (*QUESTIONS, "model", "plan")
NEEDED = {"items", "next", "plan", "digest", "name", "id", "type", "types"}


def entity_called(name: str, served: ServedRegistry, known: dict[str, str]) -> Entity:
    """Return the entity of a true answer: to a question, or of a model, or a plan."""
    if name == "report":
        return REPORT
    if name not in QUESTIONS:
        with RemoteRegistry(served.url) as remote:
            if name == "model":
                return remote.model_page("first")
            return remote.compose("base").graft("tuned", type="organ").plan().planned
    found = QUESTIONS[name].ask(served.registry, known)
    assert isinstance(found, Entity)
    return found


def accept(values: Any, kind: type[Entity]) -> None:
    """Decode values as the client does, and use them; raises BadReply."""
    try:
        entity = decode(json.dumps(values).encode(), kind)
    except ValueError as error:
        raise BadReply(str(error)) from error
    assert repr(entity)
    if isinstance(entity, Report):
        assert markdown(entity)
    if isinstance(entity, Model):
        parse_full_name(entity.name)
        model = with_organs(entity, ())
        assert repr(model)
        assert model.is_chimera == (model.recipe_yaml is not None)


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


def changed(values: Any, place: tuple[str | int, ...], strange: object) -> Any:
    """A copy of `values` with `strange` at `place`."""
    copied = copy.deepcopy(values)
    holder = copied
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = strange
    return copied


@pytest.mark.parametrize("name", ENTITIES)
def test_an_answer_changed_anywhere_is_accepted_or_refused_with_a_sentence(
    name: str, prepared: ServedRegistry, known: dict[str, str]
) -> None:
    entity = entity_called(name, prepared, known)
    kind, values = type(entity), shortened(json.loads(encode(entity)))
    assert json.dumps(values, allow_nan=False), "strict JSON"
    accept(values, kind)
    refused: list[str] = []
    for place in places(values):
        for strange in STRANGE:
            try:
                accept(changed(values, place, strange), kind)
            except BadReply as error:
                refused.append(str(error))
    assert len(refused) > 40
    assert max(map(len, refused)) < 400
    for member in NEEDED & values.keys():
        with pytest.raises(BadReply, match="missing"):
            accept({key: value for key, value in values.items() if key != member}, kind)


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


INVALID = {
    "nothing": Answer(200, b""),
    "deep": Answer(200, b'{"items":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "huge": Answer(200, b'{"items": [' + b"1," * 9_000_000 + b"1]}"),
    "long number": Answer(200, b'{"next": ' + b"9" * 5000 + b"}"),
    "a page": Answer(200, b"<html>"),
    "no text": Answer(200, b"\xff\xfe"),
    "null": Answer(200, b"null"),
    "empty": Answer(200, b"{}"),
    "broken": Answer(500, b"{}"),
}


@pytest.mark.parametrize("answer", INVALID.values(), ids=list(INVALID))
def test_an_invalid_answer_is_refused_with_a_sentence(answer: Answer) -> None:
    with scripted_server(lambda _: answer) as server, RemoteRegistry(server.url) as remote:
        for question in (remote.search, remote.models, remote.count, lambda: remote.model("a")):
            with pytest.raises(Unreachable) as caught:
                question()
            assert len(str(caught.value)) < 400


def test_an_endless_list_of_organs_is_refused() -> None:
    """Each page says that one more follows, and has nothing."""
    page = {"items": [], "next": "more", "notes": []}
    with scripted_server(lambda _: as_json(page)) as server, RemoteRegistry(server.url) as remote:
        with pytest.raises(BadReply, match="do not end"):
            remote.organs_of("a/b@1")
        assert len(server.requests) == 1
