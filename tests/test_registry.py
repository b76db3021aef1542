"""`Registry`, the object that scripts hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from registry import Registry
from registry.errors import BadQuery
from tests.trips import ingest_file, little_model

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def filled(registry: Registry, tmp_path: Path) -> Registry:
    """The registry with one model of two blocks."""
    path = tmp_path / "little.gguf"
    path.write_bytes(little_model())
    ingest_file(registry, path)
    return registry


def test_a_search_page_is_walked_from_python(filled: Registry) -> None:
    query = "type:organ sort:-size"
    seen, after = [], None
    while True:
        page = filled.search(query, limit=3, after=after)
        assert len(page) <= 3
        seen += [(organ.model, organ.name, organ.shape) for organ in page]
        after = page.next
        if after is None:
            break
    assert len(seen) == 4
    assert {name for _, name, _ in seen} == {
        f"blk.{block}.ffn_{way}.weight" for block in (0, 1) for way in ("up", "down")
    }
    assert {model for model, _, _ in seen} == {"local/little@1"}
    assert {shape for _, _, shape in seen} == {(64, 128), (128, 64)}


def test_counts_and_models_take_the_same_language(filled: Registry) -> None:
    assert filled.count("type:organ").total == 4
    assert filled.count("type:organ").fields["slot"] == {"ffn_down": 2, "ffn_up": 2}
    assert [model.name for model in filled.models("little license:apache-2.0")] == ["local/little@1"]
    assert len(filled.models("theta>90")) == 0


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_page_of_no_size_is_refused(limit: int, registry: Registry) -> None:
    with pytest.raises(BadQuery, match="1 to 1000"):
        registry.search(limit=limit)
    with pytest.raises(BadQuery, match="1 to 1000"):
        registry.models(limit=limit)


@pytest.mark.parametrize("query", ["typ:organ", "theta>=", 'a "b'])
def test_a_query_that_means_nothing_is_refused(query: str, registry: Registry) -> None:
    with pytest.raises(BadQuery):
        registry.search(query)
    with pytest.raises(BadQuery):
        registry.count(query)


def test_a_search_loads_neither_numpy_nor_the_codecs(filled: Registry) -> None:
    script = (
        "import sys; from registry import Registry\n"
        "with Registry.open(sys.argv[1]) as registry: print(len(registry.search('type:organ')), *sys.modules)"
    )
    command = [sys.executable, "-c", script, str(filled.settings.home)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found, *loaded = done.stdout.split()
    assert found == "4"
    assert "sqlalchemy" in loaded
    assert set(loaded) & {"numpy", "zstandard", "alembic", "flask"} == set()
