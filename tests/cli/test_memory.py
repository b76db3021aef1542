"""`organ memory`."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.small_models import ingest_file
from tests.validation.changed_models import A


@pytest.fixture
def organ(tmp_path: Path) -> OrganCommand:
    with LocalRegistry.open(tmp_path / "home") as registry:
        ingest_file(registry, A, "me/zoo")
    return OrganCommand(tmp_path / "home")


def test_a_registered_model_has_the_count_of_its_file_for_each_context(organ: OrganCommand) -> None:
    contexts = ("--context", 256, "--context", 1024)
    of_name = organ.done("memory", "me/zoo", *contexts, "--json").values
    of_file = organ.done("memory", A, *contexts, "--json").values
    assert [count["model"] for count in of_name] == ["me/zoo@1", "me/zoo@1"]
    assert [count["buffers"] for count in of_name] == [count["buffers"] for count in of_file]
    assert of_name[1]["cache_bytes"] > 3 * of_name[0]["cache_bytes"]
    shown = organ.done("memory", "me/zoo", *contexts)
    assert shown.lines[0].split() == ["context", "weights", "repacked", "cache", "compute", "total"]
    assert [line.split()[0] for line in shown.lines[1:3]] == ["256", "1,024"]
    assert "me/zoo@1, one conversation, cache in f16: as counted by llama.cpp" in shown.out
    quiet = organ.done("memory", "me/zoo", *contexts, "-q")
    assert quiet.lines == [str(count["total_bytes"]) for count in of_name]
