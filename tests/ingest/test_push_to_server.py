"""Tests of pushes to a real server: the published model equals the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.ingest.contributions import push as submitting
from organs.ingest.contributions.loads import (
    Memory,
    cut,
    distinct,
    loads,
)
from organs.ingest.contributions.push import (
    PushOptions,
    PushReport,
    push,
)
from organs.ingest.dissect import dissect
from organs.ingest.files import FileSource
from organs.ingest.sources import find_sources
from organs.registry.catalog.queries.accounts import PIECE_ROW_BYTES
from organs.registry.catalog.register.accounts import set_quota
from organs.registry.client.connection import Connection
from organs.registry.errors import NotAllowed, OverQuota
from organs.registry.local import LocalRegistry
from tests.client.served_registry import ServedRegistry, serve_registry
from tests.gguf_files import file_bytes
from tests.ingest.push_cases import CHUNK_BYTES, RecordedProgress, large_model, write_model_file
from tests.small_models import (
    EXPERTS,
    assemble_model,
    block_metadata,
    block_tensors,
    expert_model,
    expert_stack,
    row_counts,
)
from tests.web.accounts import new_token


@pytest.fixture
def there(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedRegistry]:
    monkeypatch.setattr(submitting, "POLL_MAX_SECONDS", 0.2)
    with serve_registry(registry) as served:
        yield served


def pushed(
    there: ServedRegistry, path: Path, token: str, name: str | None = None, base: str | None = None
) -> PushReport:
    (source,) = find_sources([str(path)], "push")
    options = PushOptions(name, {"base": base} if base else {}, chunk_bytes=CHUNK_BYTES)
    return push(Connection(there.url, token), source, options, Memory(path.parent / "cache"), RecordedProgress())


def test_a_pushed_model_reads_back_identical_and_a_second_push_sends_nothing(
    there: ServedRegistry, tmp_path: Path
) -> None:
    token = new_token(there.registry, "me", "upload", "read")
    path = write_model_file(tmp_path, large_model())
    first = pushed(there, path, token)
    assert (first.state, first.model) == ("published", "me/Mine@1"), first
    assert first.bytes_known == 0
    (back,) = assemble_model(there.registry, "me/Mine", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()
    again = pushed(there, path, token)
    assert (again.state, again.bytes_sent, again.model) == ("there", 0, first.model)
    with pytest.raises(NotAllowed):
        pushed(there, path, token, name="someone/else")


def test_a_push_is_refused_beforehand_exactly_when_the_registry_would_refuse_it(
    there: ServedRegistry, tmp_path: Path
) -> None:
    token = new_token(there.registry, "me", "upload", "read")
    path = write_model_file(tmp_path, large_model())
    with FileSource(path) as source:
        pieces = distinct(cut([dissect(source)], Memory(None), lambda _size: None))
        packed = sum(len(load.pieces) for load in loads(list(pieces.values())) if load.is_pack)
    needed = path.stat().st_size + PIECE_ROW_BYTES * packed
    for quota_bytes in (needed - 1, needed):
        with there.registry.catalog.writing() as session:
            set_quota(session, "me", quota_bytes)
        if quota_bytes < needed:
            with pytest.raises(OverQuota, match="1 bytes more than your quota"):
                pushed(there, path, token)
            assert row_counts(there.registry)["uploads"] == 0
        else:
            assert pushed(there, path, token).state == "published"


@pytest.mark.long
def test_of_a_stack_only_the_experts_that_the_server_lacks_are_sent(there: ServedRegistry, tmp_path: Path) -> None:
    token = new_token(there.registry, "me", "upload", "read")
    pushed(there, write_model_file(tmp_path, expert_model(), "Mixture.gguf"), token)
    path = write_model_file(tmp_path, expert_model("Edited", changed={2: 50, 5: 51}), "Edited.gguf")
    second = pushed(there, path, token)
    (stack,) = {len(expert_stack(f"blk.0.ffn_{part}_exps.weight")[1]) for part in ("gate", "up")}
    changed = 4 * 2 * stack // EXPERTS
    assert changed <= second.bytes_sent < changed + 4096
    (back,) = assemble_model(there.registry, "me/Edited", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()
    found = there.registry.search("expert:5 model:me/Edited")
    assert len(found) == 4
    assert all(organ.theta is not None for organ in found)


@pytest.mark.slow
def test_only_the_differences_to_a_relative_are_sent_and_a_partial_model_finds_its_base(
    there: ServedRegistry, tmp_path: Path
) -> None:
    token = new_token(there.registry, "me", "upload", "read")
    pushed(there, write_model_file(tmp_path, large_model()), token)
    tensors = [*block_tensors()[:-1], block_tensors(seed=1)[-1]]
    tuned = write_model_file(tmp_path, file_bytes(block_metadata("Large"), tensors), "Tuned.gguf")
    report = pushed(there, tuned, token)
    assert (report.state, report.pieces_sent) == ("published", 2)
    part = write_model_file(tmp_path, file_bytes(block_metadata("Large"), block_tensors(seed=2)[3:5]), "Part.gguf")
    organs = pushed(there, part, token, base="me/Tuned")
    assert (organs.state, organs.pieces_known) == ("published", 0)
    assert there.registry.model("me/Part").name == "me/Part@1"
