"""Tests of query plans: no SELECT of a search reads a whole table, small or large, with or without statistics."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from bench.populated import populate
from bench.search import COUNTED, QUERIES
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.entities.query import SUGGESTED
from organs.registry.local import LocalRegistry
from organs.registry.search import plan as search_plan
from organs.registry.search.fitting import fitting_models
from organs.registry.search.language import MODELS, parse_query
from organs.registry.search.models import search_models
from tests.registry_templates import RegistryTemplates
from tests.search.catalogs import random_models, write_models

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
LARGE_TABLES = (
    "placements",
    "organs",
    "blobs",
    "fingerprints",
    "measurements",
    "models",
    "model_words",
    "model_tags",
    "lineage",
)
"""Tables that grow with the registry. Facets and their counts have thousands of rows, contributors hundreds."""
SCAN = re.compile(rf"SCAN (?P<table>{'|'.join(LARGE_TABLES)})(?:_\d+)?\b")
ALMOST_ALL = "models"
"""Once SQLite has statistics it knows that nearly every model is visible, and that a look through the thousands of
models is cheaper than the index by state, which gives the same rows."""
FEW_ROWS = 200
"""Once SQLite has statistics it knows that a table has so few rows that to read all is cheaper than to use an index."""

MORE = (
    "block:1-3,7-9 sort:theta",
    "block:none",
    "-block:5 sort:-rank",
    "block:5,none sort:-z",
    "theta:none sort:-spectral",
    "signal:none",
    "-signal:none sort:signal",
    "-theta:40-45 sort:theta",
    "theta:10-12,80-90 sort:-spectral",
    "size>=10M sort:size",
    "size:1-100,200-300 sort:-theta",
    "rank:none sort:rank",
    "z:0.97-0.98 spectral>=0.6 rank<10 sort:-size",
    "type:norm,embed tower:text -slot:output_norm dtype:F* license:none",
    "-type:organ -arch:llama -license:mit -dtype:F32 sort:-signal",
    "unique:organ block:3 sort:-rank",
    "unique:organ coder -farmer model:*/* -model:lab-3/* by:contributor-1*,nobody -by:contributor-7",
    "model:lab-3/nothing,lab-4/x-y@2 sort:z",
    "zzz",
    "slot:nothing arch:nobody",
)
OF_MODELS = (
    "",
    "coder -farmer",
    "arch:qwen2 license:mit,none sort:-params",
    "kind:adapter by:contributor-* sort:size",
    "model:lab-*/*,acme/tiny theta>=40 -signal:none sort:theta",
    "-arch:lama tensors:1-400 sort:-tensors",
    "model:nothing by:nobody arch:nothing sort:signal",
)

AT_RANKS = {"registry/catalog/queries/reports.py": "Quartiles for a report: ranks that it works out itself, not pages."}
"""Statements that select a row by its rank: path to the reason."""

Statements = list[tuple[str, Any]]


@contextmanager
def spoken(registry: LocalRegistry) -> Iterator[Statements]:
    """Collect every statement of the registry, with its parameters, inside the block."""
    heard: Statements = []

    def hear(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        heard.append((statement, parameters))

    engines = {registry.catalog.reader, registry.catalog.writer}
    for engine in engines:
        event.listen(engine, "before_cursor_execute", hear)
    yield heard
    for engine in engines:
        event.remove(engine, "before_cursor_execute", hear)


def planner(registry: LocalRegistry) -> closing[sqlite3.Connection]:
    """Yield a new connection, which reads the schema once."""
    return closing(sqlite3.connect(registry.settings.home / "registry.sqlite3"))


def plan(connection: sqlite3.Connection, statement: str, parameters: Any) -> list[str]:
    """Return the query plan of SQLite, step by step."""
    return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]


def small_tables(connection: sqlite3.Connection) -> set[str]:
    """Return the tables with at most FEW_ROWS rows."""
    sizes = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in LARGE_TABLES}
    return {name for name, size in sizes.items() if size <= FEW_ROWS}


def ask_everything(registry: LocalRegistry) -> None:
    """Run every kind of search with two pages each, counts, and searches for similar organs."""
    for text in (*(text for group in QUERIES.values() for text in group), *MORE):
        page = registry.search(text, limit=3)
        if page.next is not None:
            registry.search(text, limit=3, after=page.next)
    for text in (*COUNTED, *MORE):
        registry.count(text)
    base = registry.search("sort:-size", limit=1).items[0].model
    _ask_what_fits(registry, base)
    for sort in ("theta", "-spectral", "z"):
        last = registry.search(f"sort:{sort}", limit=1000)
        while last.next is not None and len(last) == 1000 and last.items[-1].spectral_signal is not None:
            last = registry.search(f"sort:{sort}", limit=1000, after=last.next)
    organ = registry.search("type:organ sort:-theta", limit=1).items[0]
    for more in ("", "unique:organ", "arch:qwen2 block:3", "coder theta>=40", f"fits:{base}"):
        registry.search(f"like:{organ.digest} {more}")
    for of in SUGGESTED:
        for text in ("", "c", "coder 7b", "model:c", "tag:c", "quant:", "by:", "on:", "slot:f"):
            registry.suggestions(text, of=of)
    with registry.catalog.reading() as session:
        for text in OF_MODELS:
            for ranked in (False, True):
                page_ = search_models(session, parse_query(text, MODELS), 3, ranked=ranked)
                if page_.next is not None:
                    search_models(session, parse_query(text, MODELS), 3, page_.next, ranked=ranked)


def _ask_what_fits(registry: LocalRegistry, base: str) -> None:
    for text in ("", "type:organ theta>=40", "block:2-3 sort:-spectral", "unique:organ", "license:mit sort:z"):
        for minus in ("", "-"):
            page = registry.search(f"{minus}fits:{base} {text}", limit=3)
            if page.next is not None:
                registry.search(f"{minus}fits:{base} {text}", limit=3, after=page.next)
            registry.count(f"{minus}fits:{base} {text}")
    with registry.catalog.reading() as session:
        fitting_models(session, model_by_text(session, base))


def populated(registry: LocalRegistry, _folder: Path) -> None:
    populate(registry, 20_000)


@pytest.fixture(scope="module")
def large(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return templates.copy(populated, tmp_path_factory.mktemp("large") / "home")


@pytest.fixture(scope="module", params=["tiny", "large"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "large":
        found: Path = request.getfixturevalue("large")
        return found
    home: Path = tmp_path_factory.mktemp("tiny")
    with LocalRegistry.open(home) as registry:
        write_models(registry, random_models(6, seed=5))
    return home


@pytest.mark.sqlite
@pytest.mark.parametrize("cost", [search_plan.FETCHED_COST, 0.0], ids=["as it comes", "gathered"])
@pytest.mark.parametrize("statistics", [False, True], ids=["without statistics", "with statistics"])
def test_no_statement_of_a_search_reads_a_whole_table(
    statistics: bool, cost: float, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(filled / "registry.sqlite3", tmp_path)
    if statistics:
        with closing(sqlite3.connect(tmp_path / "registry.sqlite3")) as connection:
            connection.execute("ANALYZE")
    monkeypatch.setattr(search_plan, "FETCHED_COST", cost)
    with LocalRegistry.open(tmp_path) as registry:
        with spoken(registry) as heard:
            ask_everything(registry)
        selects = {(statement, repr(given)): given for statement, given in heard if "FROM" in statement}
        assert len(selects) > 200
        read = {}
        with planner(registry) as connection:
            (step,) = plan(connection, "SELECT * FROM placements AS placements_1 WHERE name = 'a'", ())
            assert SCAN.match(step), "this is how SQLite says that it reads a whole table"
            may_scan = {ALMOST_ALL, *small_tables(connection)} if statistics else set()
            for (statement, _), given in selects.items():
                steps = plan(connection, statement, given)
                scanned = {match["table"] for step in steps if (match := SCAN.match(step))}
                if scanned - may_scan:
                    read[statement] = steps
    assert read == {}


@contextmanager
def counted(registry: LocalRegistry) -> Iterator[list[int]]:
    """Count the steps of SQLite's virtual machine inside the block, in hundreds, in a one-element list."""
    steps = [0]

    def step() -> int:
        steps[0] += 1
        return 0

    def watch(connection: sqlite3.Connection, *_: object) -> None:
        connection.set_progress_handler(step, 100)

    event.listen(registry.catalog.reader, "checkout", watch)
    yield steps
    event.remove(registry.catalog.reader, "checkout", watch)
    registry.catalog.reader.dispose()


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "text",
    [
        *("sort:size", "sort:-size", "type:organ sort:-size", "sort:-theta", "theta>=30 sort:theta", "dtype:Q* sort:z"),
        *("theta>=35 theta<50", "theta:35-50 sort:theta", "z:0.97-1.05 sort:-z", "signal:0.6-0.8"),
    ],
)
def test_a_late_page_costs_no_more_than_the_first(text: str, large: Path) -> None:
    costs = []
    with LocalRegistry.open(large) as registry:
        after = None
        while len(costs) < 12:
            with counted(registry) as steps:
                registry.search(text, limit=3, after=after)
            costs.append(steps[0])
            after = registry.search(text, limit=1000, after=after).next
            if after is None:
                break
    assert len(costs) > 4
    assert costs[0] > 0
    assert max(costs) < 2 * costs[0] + 20, costs


def test_no_list_is_paged_by_offset() -> None:
    for folder in ("registry", "ingest", "cli", "web"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found = re.search(r"\.(?:offset|slice)\(", path.read_text(encoding="utf-8"))
            assert (found is None) or (str(path.relative_to(ROOT)) in AT_RANKS), path
