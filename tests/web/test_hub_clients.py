"""The hub's own client pulls models from a server that runs, through a line that breaks."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from organs.registry.assembly import place_file, plan_shards
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.gguf_files import file_bytes
from tests.small_models import block_metadata, ingest_file, small_model
from tests.web.cutting_proxy import cutting_proxy
from tests.web.live_server import LiveServer, running_server

CUT_AFTER_BYTES = 12_000_000
"""The client keeps what has come in steps of 10 MiB, so a line that breaks earlier loses everything."""
QUESTIONS = """
import sys
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

api, folder = HfApi(), sys.argv[1]
info = api.model_info("local/one", files_metadata=True)
assert [one.rfilename for one in info.siblings] == ["one.gguf", "README.md"], info
assert info.siblings[0].lfs.sha256 == sys.argv[2]
assert info.siblings[0].lfs.size == info.siblings[0].size
assert (info.private, info.gated, info.disabled) == (False, False, False)
assert info.sha == api.model_info("local/one", revision="v2").sha != api.model_info("local/one", revision="v1").sha
assert api.list_repo_files("local/cut", revision="main")[-1] == "README.md"
assert api.file_exists("local/one", "one.gguf")
assert not api.file_exists("local/one", "two.gguf")
assert api.repo_exists("local/one")
assert not api.repo_exists("local/none")
assert api.revision_exists("local/one", "v2")
assert not api.revision_exists("local/one", "v3")
refs = api.list_repo_refs("local/one")
assert [ref.name for ref in refs.branches + refs.tags] == ["main", "v2", "v1"], refs
assert [ref.target_commit for ref in refs.tags] == [info.sha, api.model_info("local/one", revision="v1").sha]
(path,) = api.get_paths_info("local/one", ["one.gguf", "no"])
assert (path.lfs.sha256, path.size) == (sys.argv[2], info.siblings[0].size)
assert api.model_info("local/one", revision="HEAD").sha == info.sha
assert api.list_repo_files("local/one", revision="HEAD") == ["one.gguf", "README.md"]
assert sorted(one.id for one in api.list_models()) == ["local/cut", "local/one"]
assert [one.id for one in api.list_models(search="CUT", author="local", filter="gguf", limit=1)] == ["local/cut"]
assert [one.sha for one in api.list_models(search="one", full=True, sort="last_modified")] == [info.sha]
assert [one.commit_id for one in api.list_repo_commits("local/one")] == [ref.target_commit for ref in refs.tags]
api.auth_check("local/one")
for wanted, ask in (
    (RepositoryNotFoundError, lambda: api.auth_check("local/none")),
    (RepositoryNotFoundError, lambda: hf_hub_download("local/none", "x", cache_dir=folder)),
    (RevisionNotFoundError, lambda: hf_hub_download("local/one", "one.gguf", revision="v7", cache_dir=folder)),
    (EntryNotFoundError, lambda: hf_hub_download("local/one", "x", cache_dir=folder)),
    (RevisionNotFoundError, lambda: snapshot_download("local/one", revision="v7", cache_dir=folder)),
):
    try:
        ask()
    except wanted:
        continue
    raise AssertionError(wanted)
old = snapshot_download("local/one", revision="v1", cache_dir=folder)
print(old)
assert snapshot_download("local/one", revision=info.sha, cache_dir=folder) != old
"""


def large_model() -> bytes:
    """Two tensors of 14 MB."""
    random = np.random.default_rng(7)
    specs = [TensorSpec(f"blk.{number}.ffn_up.weight", (1000, 14_000), dtype_by_name("I8")) for number in range(2)]
    tensors = [(spec, random.integers(-9, 9, spec.size_bytes, dtype=np.int8).tobytes()) for spec in specs]
    return file_bytes(block_metadata("Large"), tensors)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with a model of two versions and one in shards; the files beside it."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "shards").mkdir()
    with LocalRegistry.open(folder / "home") as registry:
        for name, data in (("old.gguf", small_model()), ("one.gguf", large_model())):
            (folder / name).write_bytes(data)
            ingest_file(registry, folder / name, "one")
        with registry.catalog.reading() as session:
            model = model_by_name(session, parse_model_name("one"))
            plans = plan_shards(session, registry.blobs, model, "cut", 15_000_000)
        for plan in plans:
            place_file(registry.blobs, plan, folder / "shards" / plan.name)
        ingest_file(registry, folder / "shards", "cut")
    return folder


@pytest.fixture(scope="module")
def live(place: Path) -> Iterator[LiveServer]:
    with running_server(place / "home", place / "log") as server:
        yield server


def environment(port: int, folder: Path) -> dict[str, str]:
    """Return the environment that makes a client pull from the server at `port`."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {
        **kept,
        "HF_ENDPOINT": f"http://127.0.0.1:{port}",
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_COLOR": "1",
    }


def hf(port: int, folder: Path, *arguments: str) -> None:
    """Run `hf download` into `folder`."""
    command = "from huggingface_hub.cli.hf import main; main()"
    run = [sys.executable, "-c", command, "download", *arguments, "--local-dir", str(folder)]
    done = subprocess.run(run, env=environment(port, folder), capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("pulled", "files", "cuts"),
    [(["local/one", "one.gguf"], "one.gguf", 2), (["local/cut"], "shards/*", 1)],
    ids=["a file", "a whole model"],
)
def test_a_pull_is_resumed_where_the_connection_broke(
    pulled: list[str], files: str, cuts: int, live: LiveServer, place: Path, tmp_path: Path
) -> None:
    with cutting_proxy(live.port, CUT_AFTER_BYTES, cuts) as line:
        hf(line.port, tmp_path, *pulled)
    sent = sorted(place.glob(files))
    assert len(sent) == len(list(tmp_path.glob("*.gguf"))) == (1 if len(pulled) > 1 else 2)
    for file in sent:
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    assert line.made_cuts == cuts
    assert bytes(line.requests).lower().count(b"range: bytes=") >= cuts


def test_the_requests_of_the_client_are_answered(live: LiveServer, place: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256((place / "one.gguf").read_bytes()).hexdigest()
    command = [sys.executable, "-c", QUESTIONS, str(tmp_path), digest]
    done = subprocess.run(
        command, env=environment(live.port, tmp_path), capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "old.gguf").read_bytes() == (place / "old.gguf").read_bytes()
