"""The scripts in `examples/`, run against a URL: they need not know that the registry is elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests.client.served_registry import ServedRegistry, serve_registry
from tests.test_examples import run
from tests.web.api.zoo import ingest_zoo

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[ServedRegistry]:
    """The shipped models, served."""
    folder = tmp_path_factory.mktemp("zoo")
    shutil.copy(migrated_database, folder)
    with LocalRegistry.open(folder) as registry:
        ingest_zoo(registry)
        with serve_registry(registry) as found:
            yield found


def test_a_chimera_is_composed_remotely_and_downloaded(zoo: ServedRegistry, tmp_path: Path) -> None:
    file = tmp_path / "out.gguf"
    printed = run("compose_a_chimera.py", zoo.url, file, folder=tmp_path / "temporary")  # type: ignore[arg-type]
    assert "With the fine-tune: can be made\nWith an unrelated model: cannot be made yet\n" in printed
    assert "\nThe same lock and the same bytes: True\n" in printed
    digest = zoo.registry.assemble("two-donors", tmp_path / "again.gguf")
    assert f"Made local/two-donors@1, sha256:{digest}" in printed
    assert file.read_bytes() == (tmp_path / "again.gguf").read_bytes()
