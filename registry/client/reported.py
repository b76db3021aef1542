"""Reports of a registry elsewhere, as the documents that a folder gives: shown and written here."""

from __future__ import annotations

from organs.registry.client.connection import API, Connection
from organs.registry.client.names import model_path
from organs.registry.client.shape import Each, Maybe, Members, Named, Values, check, flag, number, one_of, text, word
from organs.registry.errors import BadReply
from organs.registry.names import ModelName
from organs.registry.reports.document import Column, Fact, Facts, Kind, Report, Section, Table

COLUMNS_MAX = 200
SECTIONS_MAX = 200


def _cell(value: object) -> bool:
    return text(value) or number(value)


_WORDS = Each(text)
_KIND = one_of(*(kind.value for kind in Kind))
_COLUMN: Members = {"key": word, "heading": text, "kind": _KIND, "data_only": flag}
_SECTION: Members = {"title": text, "before": _WORDS, "after": _WORDS}
_TABLE: Members = {"columns": Each(_COLUMN, COLUMNS_MAX), "items": Each(Named(Maybe(_cell)))}
_FACTS: Members = {
    "figures": Named(Maybe(_cell)),
    "meanings": Named(text),
    "labels": Named(text),
    "kinds": Named(_KIND),
}
REPORT: Members = {
    "title": text,
    "main": word,
    "order": Each(word, SECTIONS_MAX),
    "opening": _WORDS,
    "sections": Named(_SECTION),
    "closing": _WORDS,
}


def asked_report(connection: Connection, model: ModelName | None, limit: int | None) -> Report:
    """The report on the registry, or on `model`, with lists of `limit` rows or as many as there are by default.

    Raises NotFound, BadInput for a `limit` beyond what a registry answers, Busy where it takes too long.
    """
    path = f"{API}/reports" + ("" if model is None else model_path(model))
    return told_report(connection.get(path, limit=limit))


def told_report(values: Values) -> Report:
    """The report that `values` are, as `Report.values` gives them; raises BadReply."""
    check(values, REPORT, "report")
    sections = values["sections"]
    if sorted(values["order"]) != sorted(sections) or values["main"] not in sections:
        raise BadReply("the registry does not answer as one does: report.order does not name its sections")
    return Report(
        title=values["title"],
        opening=tuple(values["opening"]),
        sections=tuple(_section(key, sections[key]) for key in values["order"]),
        closing=tuple(values["closing"]),
        main=values["main"],
    )


def _section(key: str, values: Values) -> Section:
    return _table(key, values) if "items" in values else _facts(key, values)


def _table(key: str, values: Values) -> Table:
    where = f"report.sections.{key}"
    check(values, _TABLE, where)
    before, after = tuple(values["before"]), tuple(values["after"])
    columns = tuple(
        Column(one["key"], one["heading"], Kind(one["kind"]), data_only=one["data_only"]) for one in values["columns"]
    )
    keys = {column.key for column in columns}
    if len(keys) < max(1, len(columns)) or any(row.keys() != keys for row in values["items"]):
        raise BadReply(f"the registry does not answer as one does: the rows of {where} are not of its columns")
    rows = tuple(tuple(row[column.key] for column in columns) for row in values["items"])
    if rows:
        return Table(key, values["title"], columns, rows, before, after)
    return Table(key, values["title"], columns, rows, empty=" ".join(before))


def _facts(key: str, values: Values) -> Facts:
    where = f"report.sections.{key}"
    check(values, _FACTS, where)
    figures, labels, kinds, meanings = (values[name] for name in ("figures", "labels", "kinds", "meanings"))
    if not (figures.keys() == labels.keys() == kinds.keys() == meanings.keys() and all(map(word, figures))):
        raise BadReply(f"the registry does not answer as one does: the words of {where} are not of its figures")
    facts = tuple(Fact(name, labels[name], value, Kind(kinds[name]), meanings[name]) for name, value in figures.items())
    return Facts(key, values["title"], facts, tuple(values["before"]), tuple(values["after"]))
