"""Tests of `LocalRegistry`, the object for scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from organs.registry import LocalRegistry
from organs.registry.digest import digest_of
from organs.registry.errors import BadName, BadQuery, NotFound, OrganError
from tests import postgres
from tests.small_models import block_tensors, ingest_file, small_model

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def filled(registry: LocalRegistry, tmp_path: Path) -> LocalRegistry:
    """Return the registry with one model of two blocks."""
    path = tmp_path / "little.gguf"
    path.write_bytes(small_model())
    ingest_file(registry, path)
    return registry


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_an_invalid_page_size_is_refused(limit: int, registry: LocalRegistry) -> None:
    with pytest.raises(BadQuery, match="1 to 1000"):
        registry.search(limit=limit)
    with pytest.raises(BadQuery, match="1 to 1000"):
        registry.models(limit=limit)


def test_a_model_is_found_by_its_name_or_a_prefix_of_its_digest(filled: LocalRegistry) -> None:
    model = filled.model("little")
    assert (model.name, model.architecture, model.license) == ("local/little@1", "llama", "apache-2.0")
    assert (model.kind, model.title, model.complete) == ("model", "Little", True)
    assert model.size_bytes == len(small_model())
    assert [organ.name for organ in model.organs] == [spec.name for spec, _ in block_tensors()]
    assert model.parameters == sum(spec.elements for spec, _ in block_tensors())
    for name in ("local/little", "little@1", f"sha256:{model.digest}", f"sha256:{model.digest[:12]}"):
        assert filled.model(name) == model
    assert (model.is_chimera, model.recipe, model.lock_id, model.relatives) == (False, None, None, ())


def test_the_organs_of_a_model_equal_those_of_a_search(filled: LocalRegistry) -> None:
    model = filled.model("little")
    assert sorted(model.organs, key=repr) == sorted(filled.search("model:local/little"), key=repr)
    organ = model.organ("blk.1.ffn_up.weight")
    assert (organ.type, organ.block, organ.slot, organ.dtype, organ.shape) == ("organ", 1, "ffn_up", "F16", (64, 128))
    with pytest.raises(
        NotFound, match=r"local/little@1 has no organ 'blk.1.ffn_upp.weight'; did you mean blk.1.ffn_up"
    ):
        model.organ("blk.1.ffn_upp.weight")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nobody", NotFound),
        ("little@2", NotFound),
        (f"sha256:{'0' * 64}", NotFound),
        ("", BadName),
        ("a b", BadName),
        ("../little", BadName),
        ("sha256:12", BadName),
    ],
)
def test_an_unknown_model_is_an_error(
    filled: LocalRegistry, tmp_path: Path, name: str, error: type[OrganError]
) -> None:
    with pytest.raises(error):
        filled.model(name)
    with pytest.raises(error):
        filled.assemble(name, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_a_model_is_assembled_to_its_original_bytes(filled: LocalRegistry, tmp_path: Path) -> None:
    for path in (tmp_path / "back.gguf", str(tmp_path / "back.gguf")):
        assert filled.assemble("little", path) == digest_of(small_model())
        assert Path(path).read_bytes() == small_model()


def test_a_search_loads_neither_numpy_nor_the_codecs(filled: LocalRegistry) -> None:
    script = (
        "import sys; from organs.registry import LocalRegistry\n"
        "with LocalRegistry.open() as registry: print(len(registry.search('type:organ')), *sys.modules)"
    )
    environment = {**os.environ, **postgres.environment(filled.settings.home)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    organ_count, *loaded = done.stdout.split()
    assert organ_count == "4"
    assert "sqlalchemy" in loaded
    assert set(loaded) & {"numpy", "zstandard", "alembic", "flask"} == set()
