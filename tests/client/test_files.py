"""Files that are made here of what comes from elsewhere: shards, what a lock says, some organs with their base."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from organs.registry.client import fetching
from organs.registry.client.connection import Connection
from organs.registry.client.fetching import TRIES, FileToFetch, partial_path
from organs.registry.client.files import FetchedLock, file_in_shards, file_of_parts
from organs.registry.client.remote import RemoteRegistry
from organs.registry.compose.api import Composition
from organs.registry.compose.lock import Lock
from organs.registry.digest import digest_of
from organs.registry.errors import BadReply, NotAssemblable, Unreachable
from organs.registry.gguf import MemorySource, read_header
from organs.registry.local import LocalRegistry
from tests.cli.in_process import CommandResult, OrganCommand
from tests.client.scripted_server import Answer, ReceivedRequest, connection_to_script, cut, rest_of
from tests.related_models import model_file, parent_entries, related_tensors
from tests.small_models import block_metadata, file_bytes, ingest_file

Asking = Callable[..., CommandResult]
MODEL = model_file("Cut", related_tensors(seed=3))
FILE = FileToFetch("/models/acme/cut@1.gguf", len(MODEL), digest_of(MODEL))


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


# Shards.


def test_shards_cut_by_the_client_equal_those_of_the_registry(
    local_organ: OrganCommand, remote_organ: Asking, tmp_path: Path, out: Path
) -> None:
    due = [Path(line) for line in local_organ.done("assemble", "tuned", "--shards", "40k", "-o", tmp_path, "-q").lines]
    assert len(due) > 2
    ended = remote_organ("pull", "tuned", "--shards", "40k", "-o", out, "-q")
    assert ended.lines == [str(out / shard.name) for shard in due], ended.err
    assert all((out / shard.name).read_bytes() == shard.read_bytes() for shard in due)
    assert "already exists" in remote_organ("assemble", "tuned", "--shards", "40k", "-o", out).err
    planned = remote_organ("assemble", "tuned", "--shards", "40k", "-o", out / "x", "--dry-run", "--json").values
    assert [one["size_bytes"] for one in planned["items"]] == [shard.stat().st_size for shard in due]
    assert left(out) == [shard.name for shard in due]


def test_a_download_for_shards_is_resumed_where_the_connection_was_lost(out: Path) -> None:
    lengths = [1000, len(MODEL), len(MODEL) // 2, *[0] * TRIES, len(MODEL)]
    """Of what is sent by then: the header comes at the second attempt, the file in two halves."""
    sent: list[int] = []

    def script(asked: ReceivedRequest) -> Answer:
        rest = rest_of(MODEL, asked)
        assert rest.body is not None
        answer = cut(rest, max(0, lengths.pop(0) - (len(MODEL) - len(rest.body))))
        sent.append(len(answer.body or b""))
        return answer

    with connection_to_script(script) as (_, connection):
        whole = file_in_shards(connection, FILE, "cut", 40_000)
        assert whole is not None
        sent.clear()
        targets = [out / shard.name for shard in whole.files]
        with pytest.raises(Unreachable):
            whole.place(targets)
        assert [name.startswith(".organ-") for name in left(out)] == [True]
        digests = whole.place(targets)
    assert sum(sent) == len(MODEL)
    assert left(out) == sorted(target.name for target in targets)
    assert digests == tuple(digest_of(target.read_bytes()) for target in targets)


def test_a_file_with_an_unexpected_header_is_not_cut_into_shards(out: Path) -> None:
    end = read_header(MemorySource(MODEL)).end
    bodies = [MODEL, MODEL[: end - 1] + b"\7" + MODEL[end:]]
    with connection_to_script(lambda _asked: Answer(200, bodies.pop(0))) as (_, connection):
        whole = file_in_shards(connection, replace(FILE, sha256=None), "cut", 40_000)
        assert whole is not None
        with pytest.raises(BadReply, match="another header"):
            whole.place([out / shard.name for shard in whole.files])


@pytest.mark.parametrize("beginning", [b"", b"GGUF", b"GGUF" + b"\xff" * 70_000, MODEL[:3000]])
def test_an_invalid_header_is_refused(beginning: bytes) -> None:
    with (
        connection_to_script(lambda _asked: Answer(200, beginning)) as (_, connection),
        pytest.raises(Unreachable),
    ):
        file_in_shards(connection, FILE, "cut", 40_000)


# Locks.


def grafted(here: LocalRegistry, blocks: object) -> Composition:
    return here.compose("base").graft("stranger", type="organ", blocks=blocks).accept("unrelated-lineage")  # type: ignore[arg-type]


def test_a_lock_whose_chimera_is_not_registered_there_gives_the_same_bytes(
    local_registry: LocalRegistry, remote_organ: Asking, tmp_path: Path, out: Path
) -> None:
    plan = grafted(local_registry, "0-1").named("local/by-lock").plan()
    path = tmp_path / "lock.json"
    path.write_text(plan.plan.lock().canonical())
    ended = remote_organ("compose", "--from-lock", path, "-o", out / "x.gguf", "--json")
    assert ended.status == 0, ended.err
    assert not local_registry.models("by-lock").items
    made = plan.assemble(out / "due.gguf")
    assert ended.values["items"][0] == {
        "model": None,
        "created": None,
        "file": str(out / "x.gguf"),
        "size_bytes": made.size_bytes,
        "sha256": made.sha256,
        "lock_id": made.lock_id,
    }
    assert (out / "x.gguf").read_bytes() == (out / "due.gguf").read_bytes()
    assert left(out) == ["due.gguf", "x.gguf"]


def test_all_missing_organs_of_a_lock_are_named(local_registry: LocalRegistry, remote_registry: RemoteRegistry) -> None:
    lock = grafted(local_registry, 0).plan().plan.lock()
    nowhere = digest_of(b"nowhere")
    first, *others = lock.tensors
    strange = replace(lock, header=nowhere, tensors=(replace(first, digest=nowhere), *others))
    with pytest.raises(NotAssemblable) as refused:
        file_of_parts(remote_registry, strange)
    reasons = (f"header {nowhere[:12]} of its base; the registry has no tensor {nowhere[:12]} of {first.spec.name}",)
    assert all(reason in str(refused.value) for reason in reasons)


def parts(here: LocalRegistry, there: RemoteRegistry, folder: Path) -> tuple[Lock, dict[str, bytes], bytes]:
    """A lock, the bytes of its organs by their addresses, and those of its file."""
    plan = grafted(here, 1).plan()
    lock: Lock = plan.plan.lock()
    made = plan.assemble(folder / "made.gguf")
    data = (folder / "made.gguf").read_bytes()
    header = read_header(MemorySource(data))
    begin = header.data_offset
    organs = {
        f"/organs/{one.digest}.raw": data[begin + info.offset : begin + info.offset + info.size_bytes]
        for one, info in zip(lock.tensors, header.tensors, strict=True)
    }
    files = file_of_parts(there, lock).files
    assert [(file.name, file.size_bytes) for file in files] == [(f"{made.lock_id}.gguf", made.size_bytes)]
    return lock, organs, data


def file_at(connection: Connection, lock: Lock, data: bytes) -> FetchedLock:
    """The file of a lock with the bytes `data`, whose organs come from another server."""
    header = read_header(MemorySource(data))
    return FetchedLock(connection, lock, data[: header.data_offset], header.alignment, len(data))


def test_each_organ_of_a_lock_is_resumed_where_it_was_cut_and_is_checked(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry, tmp_path: Path, out: Path
) -> None:
    lock, organs, data = parts(local_registry, remote_registry, tmp_path)
    chance, sent, broken = random.Random(4), 0, False

    def script(request: ReceivedRequest) -> Answer:
        nonlocal sent
        answer = rest_of(organs[request.path], request)
        assert answer.body
        if chance.random() < 0.5:
            answer = cut(answer, chance.randrange(1, len(answer.body) + 1))
        assert answer.body
        sent += len(answer.body)
        return replace(answer, body=bytes([answer.body[0] ^ 1]) + answer.body[1:]) if broken else answer

    come: list[int] = []
    with connection_to_script(script) as (_, connection):
        fetched = file_at(connection, lock, data)
        (digest,) = fetched.place([out / "x.gguf"], come.append)
        assert (out / "x.gguf").read_bytes() == data
        assert (digest, sum(come)) == (digest_of(data), len(data))
        assert sent == sum(one.spec.size_bytes for one in lock.tensors)
        broken = True
        with pytest.raises(BadReply, match="other bytes than were promised"):
            fetched.place([out / "y.gguf"])
    assert left(out) == ["x.gguf"]


def test_files_of_an_earlier_attempt_at_a_lock_are_continued_or_discarded(
    local_registry: LocalRegistry, remote_registry: RemoteRegistry, tmp_path: Path, out: Path
) -> None:
    lock, organs, data = parts(local_registry, remote_registry, tmp_path)
    answered = 0

    def script(request: ReceivedRequest) -> Answer:
        nonlocal answered
        answered += 1
        answer = rest_of(organs[request.path], request)
        return answer if answered <= 5 or answered > 5 + TRIES else cut(answer, 0)

    with connection_to_script(script) as (_, connection):
        fetched = file_at(connection, lock, data)
        with pytest.raises(Unreachable):
            fetched.place([out / "x.gguf"])
        (begun,) = out.iterdir()
        assert data.startswith(begun.read_bytes())
        before = answered
        fetched.place([out / "x.gguf"])
        assert answered - before == len(lock.tensors) - 5
        assert (out / "x.gguf").read_bytes() == data
        (out / "x.gguf").rename(begun)
        begun.write_bytes(b"\1" * 1000)
        answered = 99
        fetched.place([out / "x.gguf"])
    assert (out / "x.gguf").read_bytes() == data
    assert left(out) == ["x.gguf"]


def test_a_registry_that_sends_organs_byte_by_byte_is_abandoned(
    local_registry: LocalRegistry,
    remote_registry: RemoteRegistry,
    tmp_path: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetching, "CUTS_MAX", 9)
    lock, organs, data = parts(local_registry, remote_registry, tmp_path)

    with connection_to_script(lambda request: cut(rest_of(organs[request.path], request), 1)) as (server, connection):
        with pytest.raises(Unreachable):
            file_at(connection, lock, data).place([out / "x.gguf"])
        assert len(server.requests) == 9


# Some organs of a model.


def test_a_model_with_some_organs_comes_with_its_base_and_nothing_is_made_there(
    local_registry: LocalRegistry, local_organ: OrganCommand, remote_organ: Asking, tmp_path: Path, out: Path
) -> None:
    trained = [one for one in related_tensors(correlation=0.99) if "blk.1.ffn" in one[0].name]
    for name, base in (("part", "Base"), ("orphan", "Nobody knows it")):
        data = file_bytes([*block_metadata(name), *parent_entries(base)], trained)
        (tmp_path / f"{name}.gguf").write_bytes(data)
        ingest_file(local_registry, tmp_path / f"{name}.gguf")
    codes = [one.code for one in local_registry.compose("base").graft("part").plan().plan.unaccepted]
    accept = [word for code in codes for word in ("--accept", code)]
    due = out / "due.gguf"
    local_organ.done("assemble", "part", "-o", due, *accept)
    models = len(local_registry.models(limit=1000).items)
    for command in ("assemble", "pull"):
        whole, partial = out / f"{command}.gguf", out / f"{command}-part.gguf"
        ended = remote_organ(command, "part", "-o", whole, *accept)
        assert (ended.status, whole.read_bytes() == due.read_bytes()) == (0, True), ended.err
        assert remote_organ(command, "part", "--partial", "-o", partial).status == 0
        assert partial.read_bytes() == (tmp_path / "part.gguf").read_bytes()
        assert remote_organ(command, "base", "-o", out / "base.gguf", "--accept", "related-lineage").status == 2
    for run, place in ((local_organ, "in this registry"), (remote_organ, "registered there")):
        refused = run("assemble", "orphan", "-o", out / "orphan.gguf")
        assert (refused.status, f"its base, Nobody knows it, is not {place}" in refused.err) == (5, True)
    assert remote_organ("pull", "part", "-o", out / "i.gguf", "--ingest", *accept).status == 2
    assert len(local_registry.models(limit=1000).items) == models


# Taken apart here.


@pytest.mark.usefixtures("prepared")
def test_remote_models_are_extracted_and_refused_like_models_of_a_folder(
    local_registry: LocalRegistry,
    remote_registry: RemoteRegistry,
    local_organ: OrganCommand,
    remote_organ: Asking,
    tmp_path: Path,
    out: Path,
) -> None:
    begun = partial_path(out / ".tuned", remote_registry.own_files("tuned").files[0][1].key(remote_registry.url))
    local_registry.assemble("tuned", tmp_path / "t.gguf")
    begun.write_bytes((tmp_path / "t.gguf").read_bytes()[:5000])
    for model in ("tuned", "in-shards"):
        due = tmp_path / model
        local_organ.done("extract", model, "-o", due)
        ended = remote_organ("extract", model, "-o", out / model, "-q")
        assert (ended.status, ended.out) == (0, f"{out / model}\n"), ended.err
        for path in due.rglob("*"):
            assert path.is_dir() or (out / model / path.relative_to(due)).read_bytes() == path.read_bytes()
    for place, said in ((out / "tuned", "already exists"), (tmp_path, "a folder with other content")):
        own, other = (run("extract", "tuned", "-o", place) for run in (local_organ, remote_organ))
        assert said in other.err
        assert other == own
    assert left(out) == ["in-shards", "tuned"]
    forced = ("extract", "tuned", "-o", out / "tuned", "--force")
    assert remote_organ(*forced).out == local_organ.done(*forced).out


# Purified there.


def test_a_local_file_is_not_compared_with_a_remote_model(remote_organ: Asking, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(MODEL)
    ended = remote_organ("compat", "base", tmp_path / "x.gguf")
    assert (ended.status, ended.out) == (2, "")
    assert "give the names of two models, or two files" in ended.err
