"""The recorded requests of Ollama and llama.cpp against a server that runs: they get identical bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.compose.recipe import read_recipe
from organs.registry.local import LocalRegistry
from tests.registry_templates import ZOO_FILES
from tests.small_models import assemble_model, ingest_file, small_model, small_shards
from tests.web.live_server import LiveServer, running_server
from tests.web.replayed_clients import ADAPTER, MODEL, llama_download, ollama_pull

pytestmark = pytest.mark.long
ZOO = {path.stem: path for path in ZOO_FILES}
BASE, TUNED, LORA = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-A-2M-Code-LoRA-v1.0-F32"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with models of the zoo, a chimera, two quantisations of one model with a projector, and shards."""
    folder = tmp_path_factory.mktemp("replayed")
    (folder / "shards").mkdir()
    with LocalRegistry.open(folder / "home") as registry:
        for stem in (BASE, TUNED, LORA):
            ingest_file(registry, ZOO[stem])
        recipe = registry.compose(read_recipe(f"base: {BASE}\nname: me/chimera\n"))
        recipe.graft(TUNED, type="organ").plan().register()
        for seed, name in enumerate(("coder-Q4_K_M", "coder-Q8_0", "mmproj-coder-F16")):
            (folder / f"{name}.gguf").write_bytes(small_model(seed=seed))
            ingest_file(registry, folder / f"{name}.gguf", f"me/{name}")
        for name, data in small_shards().items():
            (folder / "shards" / name).write_bytes(data)
        ingest_file(registry, folder / "shards", "me/split")
    return folder


@pytest.fixture(scope="module")
def live(place: Path) -> Iterator[LiveServer]:
    with running_server(place / "home", place / "log") as server:
        yield server


def test_ollama_pulls_an_ingested_file_in_parallel_parts(live: LiveServer) -> None:
    pulled = ollama_pull(live.port, f"local/{BASE}", "latest")
    assert pulled.layer(MODEL) == ZOO[BASE].read_bytes()
    config = pulled.config
    assert (config["model_format"], config["model_family"], config["file_type"]) == ("gguf", "llama", "F16")
    assert config["rootfs"]["diff_ids"] == [pulled.manifest["layers"][0]["digest"]]


def test_ollama_pulls_a_chimera_and_an_adapter_with_its_base(live: LiveServer, place: Path, tmp_path: Path) -> None:
    with LocalRegistry.open(place / "home") as registry:
        (path,) = assemble_model(registry, "me/chimera", tmp_path / "out")
    assert ollama_pull(live.port, "me/chimera", "latest").layer(MODEL) == path.read_bytes()
    adapter = ollama_pull(live.port, f"local/{LORA}", "latest")
    assert adapter.layer(MODEL) == ZOO[BASE].read_bytes()
    assert adapter.layer(ADAPTER) == ZOO[LORA].read_bytes()


@pytest.mark.parametrize("tag", ["Q4_K_M", "q8_0"])
def test_the_clients_get_the_requested_quantisation(tag: str, live: LiveServer, place: Path) -> None:
    name, projector = f"coder-{tag.upper()}.gguf", "mmproj-coder-F16.gguf"
    files = {one: (place / one).read_bytes() for one in (name, projector)}
    assert ollama_pull(live.port, "me/coder", tag).layer(MODEL) == files[name]
    assert llama_download(live.port, "me/coder", tag) == files


def test_llama_downloads_a_whole_model_and_all_shards_of_a_split_model(live: LiveServer) -> None:
    assert llama_download(live.port, f"local/{BASE}") == {f"{BASE}.gguf": ZOO[BASE].read_bytes()}
    assert llama_download(live.port, "me/split") == small_shards()
