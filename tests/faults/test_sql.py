"""Tests of faults of the database that no other module covers.

Columns and types: tests/catalog/test_tables.py. Order and cost of pages: tests/search/test_query_plans.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from sqlalchemy import Column, Engine, String, event, func, literal_column, or_, select

from organs.registry.catalog.cursor import (
    PageEnd,
    cursor_text,
)
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.organs import (
    begin_ingest,
    lease_blobs,
    record_blobs,
)
from organs.registry.catalog.tables import (
    Base,
    BlobLease,
    Lineage,
    ModelRow,
    Placement,
)
from organs.registry.errors import Ambiguous, BadInput, NotFound
from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.search.language import MODELS, ORGANS, FieldKind, parse_query
from organs.registry.search.models import search_models
from tests import postgres
from tests.cli.in_process import OrganCommand
from tests.faults.failing import SMALL, blob_rows, ingest_path, random_bytes
from tests.gguf_files import array, file_bytes
from tests.gguf_files import text as text_entry
from tests.search.catalogs import RandomModel, RandomPlacement, random_models, write_models
from tests.small_models import block_metadata, block_tensors, row_counts

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = [column for table in Base.metadata.tables.values() for column in table.columns]
TEXTS = [column for column in COLUMNS if isinstance(column.type, String)]

Heard = list[tuple[str, Any]]


@contextmanager
def heard_by(engine: Engine) -> Iterator[Heard]:
    """Collect every statement to the database inside the block, with its parameters."""
    heard: Heard = []

    def hear(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        heard.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", hear)
    yield heard
    event.remove(engine, "before_cursor_execute", hear)


def one(registry: LocalRegistry, question: Any) -> Any:
    with registry.catalog.reading() as session:
        return session.scalar(question)


# Text.

HOSTILE = "a\0b" + "ü" * 9000 + "\0"


def hostile_model() -> bytes:
    """Return a file in which every text is too long and has a NUL."""
    keys = ("name", "description", "license", "architecture", "author", "organization", "size_label", "basename")
    entries = [text_entry(f"general.{key}", HOSTILE) for key in keys]
    entries += [
        array("general.tags", ValueType.STRING, [HOSTILE.encode(), b"\xff\0"]),
        text_entry("general.base_model.0.name", HOSTILE),
        text_entry("general.base_model.0.organization", HOSTILE),
        text_entry("general.base_model.0.repo_url", f"https://example.org/{HOSTILE}"),
        KeyValue("general.base_model.count", ValueType.UINT32, 1),
    ]
    return file_bytes(entries, block_tensors(1))


def test_no_text_in_any_table_has_a_nul_or_is_longer_than_its_column(registry: LocalRegistry, tmp_path: Path) -> None:
    (tmp_path / "hostile.gguf").write_bytes(hostile_model())
    ingest_path(registry, tmp_path / "hostile.gguf")
    seen = 0
    with registry.catalog.reading() as session:
        for column in TEXTS:
            seen += session.scalar(select(func.count(column))) or 0
            bad = [] if postgres.is_used() else [func.instr(column, func.char(0)) > 0]  # PostgreSQL stores no NUL
            bad += [func.length(column) > column.type.length] if _limit(column) else []
            assert not bad or session.scalar(select(func.count()).where(or_(*bad))) == 0, column
    assert seen > 100
    assert one(registry, select(ModelRow.title)).startswith("a␀büü")
    assert one(registry, select(Lineage.parent_text).where(Lineage.parent_text.is_not(None))).count("\0") == 0


def _limit(column: Column[Any]) -> int | None:
    assert isinstance(column.type, String)
    return column.type.length


# The largest numbers.


def test_the_largest_numbers_that_fit_are_found(registry: LocalRegistry) -> None:
    largest = 2**63 - 1
    write_models(registry, [RandomModel((RandomPlacement(size_bytes=largest, block=largest),))])
    assert len(registry.search("size>=9223372036854774784 block>9223372036854774783")) == 1
    query = str(parse_query("sort:size"))
    write_models(registry, [RandomModel((RandomPlacement(organ=2, size_bytes=largest),), name="b")])
    page = registry.search("sort:size", limit=1)
    assert page.next == cursor_text(query, PageEnd(largest, 1))
    assert [found.model for found in registry.search("sort:size", after=page.next)] == ["acme/b@1"]


# NaN and infinite numbers.


def odd_model() -> bytes:
    """Return tensors with NaN, infinities, one value, few values; metadata with NaN and infinities."""
    half = dtype_by_name("F16")
    values = {
        "nan": np.full(4096, np.nan),
        "infinite": np.full(4096, np.inf),
        "both": np.resize([np.nan, np.inf, -np.inf], 4096),
        "mixed": np.where(np.arange(4096) % 7 == 0, np.nan, np.sin(np.arange(4096))),
        "zeros": np.zeros(4096),
        "largest": np.resize([65504.0, -65504.0], 4096),
        "few": np.array([np.nan]),
    }
    tensors = [
        (
            TensorSpec(f"blk.0.{name}.weight", (64, 64) if tensor_values.size > 1 else (1,), half),
            tensor_values.astype(np.float16).tobytes(),
        )
        for name, tensor_values in values.items()
    ]
    kinds = (ValueType.FLOAT32, ValueType.FLOAT64)
    entries = [
        KeyValue(f"odd.{kind.name.lower()}.{number}", kind, float(number))
        for kind in kinds
        for number in ("nan", "inf", "-inf")
    ]
    return file_bytes([*block_metadata(), *entries, array("odd.array", ValueType.FLOAT32, [float("nan")])], tensors)


def not_json(token: str) -> NoReturn:
    raise AssertionError(f"{token} is no JSON")


def test_nan_is_null_in_every_table_and_in_json(registry: LocalRegistry, tmp_path: Path, organ: OrganCommand) -> None:
    (tmp_path / "odd.gguf").write_bytes(odd_model())
    organ.done("ingest", tmp_path / "odd.gguf")
    with registry.catalog.reading() as session:
        for column in COLUMNS:
            if column.type.compile(registry.catalog.reader.dialect) == "REAL":
                limits = literal_column("9e999"), literal_column("-9e999")
                assert session.scalar(select(func.count()).where(column.in_(limits))) == 0, column
        rows_ = session.execute(select(Placement.name, Placement.theta)).all()
    thetas = {name.split(".")[2]: theta for name, theta in rows_}
    assert {name for name, theta in thetas.items() if theta is None} == {"nan", "infinite", "both", "few"}
    for words in (("show", "odd"), ("report", "odd"), ("compare", "odd", "odd"), ("measure", tmp_path / "odd.gguf")):
        json.loads(organ(*words, "--json").out, parse_constant=not_json)


# Missing values in orders, and division by zero.


def test_models_without_tensors_or_measures_cause_no_division_by_zero(
    registry: LocalRegistry, tmp_path: Path, organ: OrganCommand
) -> None:
    for name, data in {
        "words": file_bytes([text_entry("general.name", "Words")]),
        "tiny": file_bytes(block_metadata("Tiny"), [(TensorSpec("a", (1,), dtype_by_name("F32")), bytes(4))]),
        "zeros": file_bytes(block_metadata("Zeros"), [(TensorSpec("a", (32, 32), dtype_by_name("F32")), bytes(4096))]),
    }.items():
        (tmp_path / f"{name}.gguf").write_bytes(data)
        assert organ("ingest", tmp_path / f"{name}.gguf").status == 0
        for command in (
            ("search", "--facets"),
            ("search", "sort:spectral", "--json"),
            ("models", "sort:theta"),
            ("models", "--rank"),
            ("show", name, "--all"),
            ("report",),
            ("report", name),
            ("compare", name, name),
        ):
            ended = organ(*command)
            assert ended.status == 0, (command, ended.err)
            assert command[0] == "report" or "nan" not in ended.out.lower().split(), command
    assert one(registry, select(ModelRow.mean_theta).where(ModelRow.name == "words")) is None


def test_each_ingest_leases_a_blob_once(registry: LocalRegistry) -> None:
    blob = registry.blobs.put(random_bytes(SMALL))
    for _ in range(2):
        with registry.catalog.writing() as session:
            ingest_id = begin_ingest(session, "a test")
            assert record_blobs(session, ingest_id, [blob]) == []
            lease_blobs(session, ingest_id, [row.id for row in blob_rows(registry)] or [1])
    with registry.catalog.reading() as session:
        assert session.execute(select(BlobLease.ingest_id, BlobLease.blob_id)).all() == [(1, 1), (2, 1)]


# User input is a value, never a part of a statement.

PAYLOADS = (
    "'; DROP TABLE models; --",
    '" OR 1=1 --',
    "x') UNION SELECT digest FROM blobs --",
    "%' ESCAPE '",
    "\\",
    "*'*",
)


def bad(asking: Callable[[], object]) -> None:
    """Check that a query gives a result or is refused, and never makes the database fail."""
    with suppress(BadInput, NotFound, Ambiguous):
        asking()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_user_input_is_never_part_of_a_statement(payload: str, registry: LocalRegistry) -> None:
    write_models(registry, random_models(5, seed=1))
    before = row_counts(registry)
    quoted = f'"{payload}"' if '"' not in payload else payload
    with heard_by(registry.catalog.reader) as heard:
        for minus in ("", "-"):
            for field in ORGANS.fields.values():
                bad(lambda minus=minus, field=field: registry.search(f"{minus}{field.name}:{quoted}"))
            bad(lambda minus=minus: registry.search(minus + quoted))
        for asked in (f"sort:{quoted}", f"like:{quoted}", f"unique:{quoted}", f"{payload}:x", f"slot:*{quoted}*"):
            bad(lambda asked=asked: registry.search(asked))
            bad(lambda asked=asked: registry.count(asked))
        bad(lambda: registry.search("", after=payload))
        with registry.catalog.reading() as session:
            for field in MODELS.fields.values():
                if field.kind is not FieldKind.CHOICE:
                    bad(lambda field=field: search_models(session, parse_query(f"{field.name}:{quoted}", MODELS), 5))
            bad(lambda: model_by_name(session, parse_model_name(payload)))
            bad(lambda: model_by_name(session, replace(parse_model_name("a"), name=payload)))
    spoken = {statement.replace("UNION ALL", "") for statement, _ in heard}  # which searches for models have
    assert len(spoken) >= 3
    for part in ("DROP", "1=1", "UNION", "ESCAPE ''", payload):
        if part != "\\":
            assert not [statement for statement in spoken if part in statement], part
    assert row_counts(registry) == before
