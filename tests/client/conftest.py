"""A registry elsewhere with a base, a fine-tune of it and a stranger, and the client that asks it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from organs.registry.client.remote import RemoteRegistry
from organs.registry.local import LocalRegistry
from tests.cli.in_process import CommandResult, OrganCommand
from tests.cli.parents import write_parents
from tests.client.served_registry import ServedRegistry, serve_registry
from tests.evolutions import add_evolution
from tests.gains import add_gains
from tests.related_models import parent_entries, related_tensors
from tests.small_models import block_metadata, file_bytes, ingest_file


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tokens of nobody: the folder of settings is the test's own."""
    folder = tmp_path / "settings"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("ORGAN_TOKEN", raising=False)
    monkeypatch.delenv("ORGAN_REGISTRY", raising=False)
    return folder


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[ServedRegistry]:
    """The registry elsewhere; tests may add chimeras of names of their own."""
    folder = tmp_path_factory.mktemp("elsewhere")
    shutil.copy(migrated_database, folder)
    parents = write_parents(folder / "parents")
    with LocalRegistry.open(folder) as registry:
        for path in (parents.base, parents.tuned, parents.stranger):
            ingest_file(registry, path)
        registry.compose("base").graft("tuned", type="organ", blocks=1).named("local/first").plan().register()
        with serve_registry(registry) as found:
            yield found


@pytest.fixture(scope="session")
def prepared(served: ServedRegistry, tmp_path_factory: pytest.TempPathFactory) -> ServedRegistry:
    """The same with a model in shards, one with some organs, gains, two names of one lock, and a finished job."""
    folder, registry = tmp_path_factory.mktemp("prepared"), served.registry
    shards = registry.files("stranger", shard_bytes=40_000, stem="in-shards")
    targets = [folder / file.name for file in shards.files]
    shards.place(targets)
    ingest_file(registry, targets[0], "local/in-shards")
    trained = [tensor for tensor in related_tensors(correlation=0.99) if "blk.1.ffn" in tensor[0].name]
    (folder / "some.gguf").write_bytes(file_bytes([*block_metadata("Some tensors"), *parent_entries("Base")], trained))
    ingest_file(registry, folder / "some.gguf", "local/some-organs")
    registry.compose("base").graft("tuned", type="organ", blocks=1).named("local/second").plan().register()
    add_gains(registry, "local/first", {"python": 5.0, "narrative": -3.0})
    add_evolution(registry, "local/base", ["local/tuned"], winner="local/first")
    with RemoteRegistry(served.url) as remote:
        remote.compose(registry.model("first").recipe or "").plan().register()  # as a job, which stays in the list
    return served


@pytest.fixture
def known(prepared: ServedRegistry) -> dict[str, str]:
    """What questions name: an organ, a file, a lock, the place of a page, a job, an evolution."""
    registry = prepared.registry
    first, cursor = registry.model("first"), registry.search("type:organ", limit=3).next
    assert first.lock_id is not None
    assert cursor is not None
    job = registry.jobs(limit=1).items[0].id
    organ = next(organ.digest for organ in registry.organs_of("base") if organ.slot == "ffn_up")
    return {
        "organ": organ,
        "file": first.digest,
        "lock": first.lock_id,
        "cursor": cursor,
        "job": str(job),
        "evolution": "1",
    }


@pytest.fixture
def local_registry(served: ServedRegistry) -> LocalRegistry:
    """The same registry, opened as a folder."""
    return served.registry


@pytest.fixture
def local_organ(local_registry: LocalRegistry) -> OrganCommand:
    """The command on the folder."""
    return OrganCommand(local_registry.settings.home)


@pytest.fixture
def remote_organ(served: ServedRegistry, tmp_path: Path) -> Callable[..., CommandResult]:
    """The command on the registry elsewhere, with an empty folder of one's own."""
    organ = OrganCommand(tmp_path / "own")
    return lambda *arguments: organ("--registry", served.url, *arguments)


@pytest.fixture
def remote_registry(served: ServedRegistry) -> Iterator[RemoteRegistry]:
    """The client of it."""
    with RemoteRegistry(served.url) as remote:
        yield remote
