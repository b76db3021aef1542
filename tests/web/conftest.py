"""Catalogs that the tests of the pages browse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from registry.gguf import ValueType
from registry.registry import Registry
from tests.builders import array, file_bytes, text
from tests.kin import kin_tensors, parent_entries
from tests.trips import block_metadata, block_tensors, ingest_file, weights
from web.app import create_app

HOSTILE = '"><script>alert(1)</script>{{ 7*7 }}'
HOSTILE_LINK = "javascript:alert(document.domain)"
FORMULA = '=HYPERLINK("http://elsewhere.example","x")'
LOOP_BOMB = "{% for _ in range(10**9) %}{% endfor %}"


@pytest.fixture
def little(registry: Registry, tmp_path: Path) -> Iterator[FlaskClient]:
    """A client of a catalog with a base, a fine-tune of it and a stranger."""
    for name, tensors, more in (
        ("base", kin_tensors(), []),
        ("tuned", kin_tensors(alike=0.995), parent_entries("Base")),
        ("stranger", block_tensors(3, seed=9), []),
    ):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(file_bytes([*block_metadata(name.capitalize()), *more], tensors))
        ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        yield client


@pytest.fixture
def hostile(registry: Registry, tmp_path: Path) -> Iterator[FlaskClient]:
    """A client of a catalog in which whatever a contributor may write is an attack."""
    odd_names = ('"><script>alert(1)</script>', f"blk.0.{FORMULA}"[:60], "blk.1.'onmouseover='alert(1)")
    tensors = [*block_tensors(2), *(weights(name, (64, 64)) for name in odd_names)]
    entries = {
        "general.architecture": HOSTILE,
        "general.name": HOSTILE,
        "general.description": HOSTILE + HOSTILE_LINK,
        "general.license": f"{FORMULA}<img src=x onerror=alert(1)>",
        "general.url": HOSTILE_LINK,
        "general.repo_url": 'http://elsewhere.example/"onmouseover="alert(1)',
        "general.size_label": "' onfocus=alert(1) autofocus x='",
        "tokenizer.chat_template": LOOP_BOMB + HOSTILE,
        f"acme.{HOSTILE}": HOSTILE,
    }
    own = [text(key, value) for key, value in entries.items()]
    tags = array("general.tags", ValueType.STRING, [HOSTILE.encode(), FORMULA.encode()])
    metadata = [*own, tags, *parent_entries(HOSTILE, FORMULA, repo_url=HOSTILE_LINK)]
    first = tmp_path / '"><img src=x onerror=alert(1)>.gguf'
    first.write_bytes(file_bytes(metadata, tensors))
    second = tmp_path / "plain.gguf"
    second.write_bytes(file_bytes(metadata, kin_tensors(alike=0.99)))
    for path in (first, second):
        ingest_file(registry, path, "local/hostile" if path is first else None)
    with create_app(registry).test_client() as client:
        yield client
