"""Download programs against the routes of models and of the hub: `make clients` runs this module."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests.small_models import ingest_file, small_model
from tests.web.live_server import LiveServer, running_server
from tests.web.test_hub_clients import large_model
from tests.web.test_npm_clients import node, run

__all__ = ["node"]

pytestmark = pytest.mark.npm
READ_GGUF = """
import { gguf } from "@huggingface/gguf";
const { metadata, tensorInfos } = await gguf(process.argv[2]);
console.log(JSON.stringify([metadata["general.name"], tensorInfos.map((tensor) => tensor.name)]));
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with a model of 28 MB and a small one; the files beside it."""
    folder = tmp_path_factory.mktemp("clients")
    files = {"large": large_model(), "coder-Q8_0": small_model()}
    with LocalRegistry.open(folder / "home") as registry:
        for name, data in files.items():
            (folder / f"{name}.gguf").write_bytes(data)
            ingest_file(registry, folder / f"{name}.gguf", f"me/{name}")
    return folder


@pytest.fixture(scope="module")
def live(place: Path) -> Iterator[LiveServer]:
    with running_server(place / "home", place / "log") as server:
        yield server


def program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed here"
    return found


@pytest.mark.parametrize("path", ["/models/me/large.gguf", "/me/large/resolve/main/large.gguf"])
def test_aria2_downloads_a_model_with_eight_connections(
    path: str, live: LiveServer, place: Path, tmp_path: Path
) -> None:
    options = ["--split=8", "--max-connection-per-server=8", "--min-split-size=1M", "--no-conf", "--dir", str(tmp_path)]
    run([program("aria2c"), *options, "--out=large.gguf", f"{live.address}{path}"], tmp_path)
    assert (tmp_path / "large.gguf").read_bytes() == (place / "large.gguf").read_bytes()


def test_curl_downloads_and_completes_a_model(live: LiveServer, place: Path, tmp_path: Path) -> None:
    data = (place / "large.gguf").read_bytes()
    (tmp_path / "large.gguf").write_bytes(data[: len(data) // 2])
    address = f"{live.address}/models/me/large.gguf"
    run([program("curl"), "-sSfL", "-C", "-", "-o", "large.gguf", address], tmp_path)
    assert (tmp_path / "large.gguf").read_bytes() == data


def test_the_reader_of_npm_reads_a_header_by_ranges(node: str, live: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "read.mjs").write_text(READ_GGUF)
    said = run([node, "read.mjs", f"{live.address}/me/coder/resolve/main/coder-Q8_0.gguf"], tmp_path)
    name, tensors = json.loads(said.splitlines()[-1])
    assert name == "Little"
    assert "blk.1.ffn_down.weight" in tensors
    assert len(tensors) == 10
