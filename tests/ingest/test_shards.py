"""Split models that arrive one shard at a time: in any order, in several runs, from files and from servers."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Select, select

from organs.ingest import spool
from organs.ingest.service import (
    IngestOutcome,
    IngestReport,
    NewVersion,
    always,
    ingest_all,
    ingest_model,
    never,
    plan_model,
)
from organs.ingest.sources import find_sources
from organs.ingest.urls import Hub
from organs.registry.catalog.queries.administration import model_in_any_state
from organs.registry.catalog.queries.reports import counted_totals, running_totals
from organs.registry.catalog.records import Edits
from organs.registry.catalog.register.model_changes import edit_model, hide_model, remove_model, show_model
from organs.registry.catalog.tables import Base, Facet, FacetCount, ModelFileRow, ModelRow, Placement
from organs.registry.client.ranges import RangeClient, ReadLimits
from organs.registry.digest import digest_of
from organs.registry.errors import BadSource, BadSplit, Busy, DiskFull, Incomplete, NameTaken, Unreachable
from organs.registry.gguf import KeyValue, ValueType
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.store.files import KEPT_SECONDS
from organs.registry.upkeep import Share, sweep, verify
from tests.client.scripted_server import CUT, Answer, ReceivedRequest, ScriptedServer, no_sleep, scripted_server
from tests.client.test_ranges import part
from tests.gguf_files import file_bytes, tensor
from tests.ingest.directory_cases import extract_directory
from tests.ingest.one_source import ingest_path
from tests.small_models import assemble_model, block_tensors, ingest_file, row_counts, small_model, small_shards

NAME = ModelName("local", "m")


@pytest.fixture
def other_registry(tmp_path: Path, migrated_database: Path) -> Iterator[LocalRegistry]:
    home = tmp_path / "other"
    home.mkdir()
    (home / migrated_database.name).write_bytes(migrated_database.read_bytes())
    with LocalRegistry.open(home) as opened:
        yield opened


def write_shards(folder: Path, shards: dict[str, bytes]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in shards.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in shards]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """The four shards of a model, in one folder."""
    return write_shards(tmp_path / "set", small_shards())


def ingest_alone(registry: LocalRegistry, path: Path, name: str | None = None) -> IngestReport:
    """Ingest a shard from a folder in which it is alone."""
    (copy,) = write_shards(path.parent / f"only {path.name}", {path.name: path.read_bytes()})
    return ingest_path(registry, copy, name, new_version=never)


def ingest_shards(registry: LocalRegistry, paths: Sequence[Path], seed: int = 0) -> list[IngestReport]:
    order = list(paths)
    random.Random(seed).shuffle(order)
    return [ingest_alone(registry, path) for path in order]


UNCOMPARED = ("ingests", "events", "facets", "facet_counts", "contributors", "alembic_version", "totals", "known_files")
UNCOMPARED += ("catalog_version",)
"""Tables that are compared otherwise, or that depend on the time: a file that was written just before is not known."""


def rows_of(registry: LocalRegistry) -> dict[str, list[tuple[Any, ...]]]:
    """Return the content of all tables about models, without ids and times."""
    ids = {"id", "model_id", "file_id", "organ_id", "blob_id", "facet_id", "contributor_id"}
    left_out = ids | {"created_at", "started_at", "touched_at", "finished_at", "lease_expires_at", "report", "source"}
    left_out |= {"child_organ_id", "parent_model_id", "child_model_id", "stored", "file", "stored_bytes", "at"}
    facet = [Facet.type, Facet.tower, Facet.slot, Facet.dtype, Facet.architecture, Facet.license]
    placed = select(Placement.name, Placement.position, ModelFileRow.name, *facet)
    placed = placed.join(Facet, Facet.id == Placement.facet_id).join(ModelFileRow, ModelFileRow.id == Placement.file_id)
    counts = select(*facet, FacetCount.theta_bin, FacetCount.placements)
    counts = counts.join(Facet, Facet.id == FacetCount.facet_id).where(FacetCount.placements > 0)
    statements: dict[str, Select[Any]] = {"placed facets": placed, "facet counts": counts}
    for name, table in Base.metadata.tables.items():
        columns = [column for column in table.columns if column.name not in left_out]
        if columns and name not in UNCOMPARED:
            statements[name] = select(*columns)
    with registry.catalog.reading() as session:
        content = {
            name: sorted(map(tuple, session.execute(statement)), key=repr) for name, statement in statements.items()
        }
        content["totals"] = [(running_totals(session),)]
        assert running_totals(session) == counted_totals(session)
    return content


# Shards of one model.


@pytest.mark.parametrize("seed", range(2))
def test_a_model_that_came_shard_by_shard_is_the_model_that_came_at_once(
    seed: int, registry: LocalRegistry, other_registry: LocalRegistry, paths: list[Path], tmp_path: Path
) -> None:
    at_once = ingest_file(other_registry, paths[0])
    *before, last = ingest_shards(registry, paths, seed)
    assert (all(report.incomplete for report in before), last.incomplete) == (True, "")
    for field in ("model", "digest", "created", "organs", "size_bytes", "flags", "nonfinite", "notes", "missing"):
        assert getattr(last, field) == getattr(at_once, field), field
    assert last.stages.keys() >= at_once.stages.keys() - {"open", "check known"}
    assert last.new_bytes + last.known_bytes == at_once.new_bytes + at_once.known_bytes
    expected, found = rows_of(other_registry), rows_of(registry)
    for table, rows in expected.items():
        assert found[table] == rows, table
    for path, back in zip(paths, assemble_model(registry, "m", tmp_path / "back"), strict=True):
        assert (back.name, back.read_bytes()) == (path.name, path.read_bytes())
    assert registry.model("m").ingest == other_registry.model("m").ingest


def test_renamed_shards_get_standard_names(registry: LocalRegistry, tmp_path: Path) -> None:
    shards = small_shards()
    renamed = {f"part {number}.gguf": data for number, data in enumerate(shards.values())}
    for path in write_shards(tmp_path / "set", renamed):
        ingest_alone(registry, path, "local/m")
    for back in assemble_model(registry, "m", tmp_path / "back"):
        assert back.read_bytes() == shards[back.name]


def test_an_incomplete_model_is_named_with_its_missing_shards_and_offered_nowhere(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_file(registry, write_shards(tmp_path, {"elder.gguf": small_model("Elder")})[0])
    paths = write_shards(tmp_path / "set", small_shards(seed=7))
    before = (registry.search("theta>=0").items, registry.count(), registry.figures())
    report = ingest_alone(registry, paths[2])
    sentence = "local/m@1 is incomplete: 1 of 4 shards; missing 1, 2, 4"
    assert (report.incomplete, report.missing) == (sentence, (1, 2, 4))
    assert (registry.search("theta>=0").items, registry.count(), registry.figures()) == before
    page = registry.models()
    assert ([model.name for model in page], page.notes) == (["local/elder@1"], (sentence,))
    assert sentence not in registry.models("Little").notes
    assert registry.search("fits:m").notes == registry.models("local m").notes == (sentence,)
    assert registry.fitting("elder").items == ()
    with pytest.raises(Incomplete, match="1 of 4 shards") as caught:
        registry.compare("elder", "m@1")
    assert (caught.value.shards, caught.value.missing) == (4, (1, 2, 4))
    (refusal,) = registry.compose("elder").graft("m", type="organ").plan().findings
    assert (refusal.severity, refusal.sentence) == ("refuse", sentence)
    with registry.catalog.writing() as session:
        model = model_in_any_state(session, NAME)
        changes: list[Callable[[], object]] = [
            lambda: show_model(session, model, "local"),
            lambda: hide_model(session, model, "yanked", "because", "local"),
            lambda: edit_model(session, model, Edits(title="T"), "local"),
        ]
        for change in changes:
            with pytest.raises(Incomplete):
                change()


def test_a_repeated_shard_adds_nothing(registry: LocalRegistry, paths: list[Path]) -> None:
    for stored, missing in ((paths[:2], (3, 4)), (paths[2:], ())):
        ingest_shards(registry, stored)
        before = row_counts(registry)
        again = ingest_alone(registry, paths[1])
        after = row_counts(registry)
        assert (again.model, again.created, again.new_blobs, again.missing) == ("local/m@1", False, 0, missing)
        assert after == before | {"ingests": before["ingests"] + 1, "known_files": after["known_files"]}


def test_a_shard_of_another_set_is_refused_with_its_first_difference_and_the_set_stays_as_it_was(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    shards = small_shards()
    paths = write_shards(tmp_path / "set", shards)
    ingest_alone(registry, paths[1])
    names = list(shards)
    changed = bytearray(shards[names[1]])
    changed[-3] ^= 1
    others = {
        "other bytes": (names[1], bytes(changed), f"repeats shard 2, but is another file than the stored {names[1]}"),
        "other count": (
            names[0],
            small_shards(count=3)["m-00001-of-00003.gguf"],
            f"says 3 for split.count, but the stored {names[1]} says 4",
        ),
    }
    before = row_counts(registry)
    for case, (name, data, reason) in others.items():
        path = write_shards(tmp_path / case, {name: data})[0]
        with pytest.raises(BadSplit) as refused:
            ingest_alone(registry, path)
        assert str(refused.value) in [
            f"{model}: not shards of one model: {name} {reason}" for model in ("m", "local/m@1")
        ]
        after = row_counts(registry)
        for table in ("models", "model_files", "placements", "organs"):
            assert after[table] == before[table], table
    ingest_shards(registry, [paths[0], *paths[2:]])
    assert registry.model("m").organs


def test_a_taken_name_is_asked_about_before_the_first_shard_only(
    registry: LocalRegistry, paths: list[Path], tmp_path: Path
) -> None:
    ingest_file(registry, write_shards(tmp_path, {"m.gguf": small_model()})[0])
    before = row_counts(registry)
    with pytest.raises(NameTaken):
        ingest_alone(registry, paths[1])
    assert row_counts(registry)["ingests"] == before["ingests"], "it is asked before anything is stored"
    (alone,) = write_shards(tmp_path / "one", {paths[1].name: paths[1].read_bytes()})
    assert ingest_path(registry, alone, new_version=lambda taken: taken.version == 2).model == "local/m@2"
    assert ingest_shards(registry, [paths[0], *paths[2:]])[-1].model == "local/m@2"
    assert registry.model("m").name == "local/m@2"


def test_shards_that_are_stored_under_another_name_join_no_new_model(
    registry: LocalRegistry, paths: list[Path]
) -> None:
    ingest_path(registry, paths[0], "acme/big")
    assert ingest_alone(registry, paths[2]).model == "acme/big@1"
    named = ingest_alone(registry, paths[2], "mine/copy")
    assert named.incomplete.startswith("mine/copy@1 is incomplete: 1 of 4")


def test_a_set_that_arrives_as_a_whole_completes_the_incomplete_model(
    registry: LocalRegistry, paths: list[Path]
) -> None:
    ingest_alone(registry, paths[3])
    report = ingest_file(registry, paths[0])
    assert (report.model, report.incomplete, report.organs) == ("local/m@1", "", 19)
    assert row_counts(registry)["models"] == 1


def test_threads_that_ingest_different_shards_complete_one_model(registry: LocalRegistry, paths: list[Path]) -> None:

    def ingest(path: Path) -> None:
        with LocalRegistry.open(registry.settings.home) as own:
            ingest_alone(own, path)

    with ThreadPoolExecutor(len(paths)) as threads:
        list(threads.map(ingest, paths))
    assert registry.model("m").name == "local/m@1"
    assert row_counts(registry)["models"] == 1


def test_a_sweep_keeps_the_bytes_of_an_incomplete_model_until_it_is_removed(
    registry: LocalRegistry, paths: list[Path]
) -> None:
    ingest_alone(registry, paths[1])
    for _ in range(2):
        report = sweep(registry.catalog, registry.blobs, grace=timedelta(0), dry_run=False)
        assert (report.doomed, report.removed) == (0, 0)
    with registry.catalog.writing() as session:
        remove_model(session, model_in_any_state(session, NAME), "not needed", "local")
    for _ in range(2):
        report = sweep(registry.catalog, registry.blobs, grace=timedelta(0), dry_run=False)
    counts = row_counts(registry)
    assert (counts["blobs"], counts["organs"], counts["model_files"]) == (0, 0, 0)
    assert ingest_shards(registry, paths)[-1].model == "local/m@2"


# Removal of stored files.


def ingest_and_remove(registry: LocalRegistry, *arguments: Path) -> list[IngestOutcome]:
    return list(ingest_all(registry, find_sources(map(str, arguments)), delete_after=True))


@pytest.mark.folder
def test_a_file_whose_stored_bytes_are_damaged_is_kept(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = write_shards(tmp_path, {"a.gguf": file_bytes([], block_tensors(2, width=512))})
    add_report = ingest_model

    def damage(*arguments: Any, stored: Any, **options: Any) -> IngestReport:
        def damaged(*about: Any) -> None:
            blob = next(file for file in registry.settings.blobs.rglob("*") if file.is_file() and "." in file.name)
            blob.chmod(0o600)
            data = bytearray(blob.read_bytes())
            data[-1] ^= 1
            blob.write_bytes(data)
            stored(*about)

        return add_report(*arguments, stored=damaged, **options)

    monkeypatch.setattr("organs.ingest.service.ingest_model", damage)
    (outcome,) = ingest_and_remove(registry, path)
    assert path.exists()
    assert outcome.removed == ()
    assert "its stored bytes are damaged" in outcome.kept[0]


def test_a_file_that_was_replaced_after_it_was_stored_is_kept(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = write_shards(tmp_path, {"a.gguf": small_model()})
    prove = "organs.ingest.removal.prove_file"

    def replace(*_: object) -> None:
        path.with_suffix(".new").write_bytes(b"precious")
        path.with_suffix(".new").rename(path)

    monkeypatch.setattr(prove, replace)
    (outcome,) = ingest_and_remove(registry, path)
    assert path.read_bytes() == b"precious"
    assert outcome.kept == (f"{path}: kept, because it was changed after it was stored",)


def test_shards_that_were_stored_before_a_refused_one_are_named(registry: LocalRegistry, tmp_path: Path) -> None:
    shards, third = small_shards(), "m-00003-of-00004.gguf"
    alone = write_shards(tmp_path / "alone", {third: bytes(shards[third][:-64]) + b"x" * 64})
    ingest_alone(registry, alone[0])
    (outcome,) = ingest_all(registry, find_sources(map(str, write_shards(tmp_path / "set", shards)[:1])))
    assert isinstance(outcome.error, BadSplit)
    assert [Path(name).name for name in outcome.stored] == sorted(shards)[:2]


def test_a_renamed_shard_is_kept_unless_its_model_is_named(registry: LocalRegistry, tmp_path: Path) -> None:
    first, *_ = small_shards().values()
    (path,) = write_shards(tmp_path, {"part.gguf": first})
    (outcome,) = ingest_and_remove(registry, path)
    assert path.exists()
    assert outcome.kept == (f"{path}: kept, because its file name is not that of a shard; name its model: --name",)
    (outcome,) = ingest_all(registry, find_sources([str(path)]), name=NAME, delete_after=True)
    assert (outcome.error, outcome.removed) == (None, (path,))


def test_links_and_organ_directories_are_refused_and_nothing_is_removed(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    (path,) = write_shards(tmp_path / "files", {"a.gguf": small_model()})
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    extract_directory(path, tmp_path / "taken")
    outcomes = ingest_and_remove(registry, link, tmp_path / "taken")
    assert ["symbolic link" in str(outcomes[0].error), "organ directory" in str(outcomes[1].error)] == [True, True]
    assert path.exists()
    assert link.is_symlink()
    assert row_counts(registry)["models"] == 0


# Models on a server.


Version = Callable[[bytes], dict[str, str]]
"""The header fields that identify the version of a file."""


def strong_tag(data: bytes) -> dict[str, str]:
    return {"ETag": f'"{digest_of(data)[:8]}"'}


def time_of_change(data: bytes) -> dict[str, str]:
    return {"Last-Modified": f"Sat, 28 Nov 2026 10:00:{data[-1]:02} GMT"}


class Stand:
    """A server that runs, with files that a test changes."""

    def __init__(self, server: ScriptedServer, files: dict[str, bytes]) -> None:
        self.server, self.files = server, files
        self.refuse: Callable[[ReceivedRequest], Answer | None] = lambda _request: None
        self.stated: dict[str, str] = {}
        self.version: Version = strong_tag

    @property
    def fetched(self) -> list[str]:
        return [request.path.rpartition("/")[2] for request in self.server.requests]

    def ingest(self, registry: LocalRegistry, new_version: NewVersion = never) -> IngestReport:
        with self.hub() as hub:
            (source,) = find_sources([f"{self.server.url}/{next(iter(self.files))}"], hub=hub)
            return ingest_model(registry, source, new_version=new_version)

    @contextmanager
    def hub(self) -> Iterator[Hub]:
        limits = ReadLimits(tries=2, silence_seconds=2.0, total_seconds=20.0)
        with RangeClient(connections=8, limits=limits, sleep=no_sleep) as client:
            yield Hub(client, self.server.url)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setattr(spool, "PIECE_BYTES", 8192)
    monkeypatch.setattr(spool, "WINDOW_BYTES", 8192 * spool.REQUESTS)

    def script(request: ReceivedRequest) -> Answer:
        if (refused := running.refuse(request)) is not None:
            return refused
        name = request.path.rpartition("/")[2]
        if name not in running.files:
            return Answer(404, b"")
        answer = part(request, running.files[name])
        del answer.headers["ETag"]
        answer.headers.update(running.version(running.files[name]))
        if name in running.stated:
            answer.headers["X-Linked-Etag"] = f'"{running.stated[name]}"'
        return answer

    with scripted_server(script) as server:
        running = Stand(server, small_shards())
        yield running


def spooled_files(registry: LocalRegistry) -> list[Path]:
    return list(registry.settings.spool.glob("*")) if registry.settings.spool.is_dir() else []


def test_shards_that_are_stored_are_not_fetched(registry: LocalRegistry, stand: Stand, tmp_path: Path) -> None:
    paths = write_shards(tmp_path, stand.files)
    for path in (paths[1], paths[3]):
        ingest_alone(registry, path)
    stand.stated[paths[1].name] = digest_of(stand.files[paths[1].name])
    with stand.hub() as hub:
        (source,) = find_sources([f"{stand.server.url}/{paths[0].name}"], hub=hub)
        planned = plan_model(registry, source)
    assert [file.is_stored for file in planned.files] == [False, True, False, True]
    assert [file.size_bytes for file in planned.files] == [len(data) for data in stand.files.values()]
    stand.server.requests.clear()
    assert stand.ingest(registry).incomplete == ""
    assert stand.fetched.count(paths[1].name) == stand.fetched.count(paths[3].name) == 1
    report = verify(registry.catalog, registry.blobs, read_data=Share(1, 1))
    assert (report.faults, report.orphans, report.miscounted) == ([], 0, {})
    with registry.catalog.reading() as session:
        model = session.scalars(select(ModelRow)).one()
    assert (model.state, model.shards) == ("visible", None)


@pytest.mark.parametrize("version", [strong_tag, time_of_change])
def test_an_interrupted_fetch_continues_where_it_was_cut(
    registry: LocalRegistry, stand: Stand, version: Version
) -> None:
    stand.version = version
    last = list(stand.files)[-1]
    stand.files[last] = larger = big_last_shard()
    cut_from = 5 * spool.WINDOW_BYTES

    def cut(request: ReceivedRequest) -> Answer | None:
        begin = int(request.headers["Range"].removeprefix("bytes=").partition("-")[0])
        return CUT if request.path.endswith(last) and begin >= cut_from else None

    stand.refuse = cut
    with pytest.raises(Unreachable):
        stand.ingest(registry)
    (partial,) = spooled_files(registry)
    assert partial.stat().st_size == cut_from
    stand.refuse = lambda _request: None
    stand.server.requests.clear()
    report = stand.ingest(registry)
    assert (report.incomplete, spooled_files(registry)) == ("", [])
    assert stand.fetched.count(last) < len(larger) / spool.PIECE_BYTES - 4 * spool.REQUESTS + 4


def big_last_shard() -> bytes:
    """Return the last of four shards, with as many tensors as that of `small_shards`, but large ones."""
    keys = [
        KeyValue("split.no", ValueType.UINT16, 3),
        KeyValue("split.count", ValueType.UINT16, 4),
        KeyValue("split.tensors.count", ValueType.INT32, 19),
    ]
    return file_bytes(keys, [tensor(f"large.{index}.weight", (32768,)) for index in range(4)])


def test_an_old_copy_is_removed_by_the_next_fetch(registry: LocalRegistry, stand: Stand) -> None:
    folder = registry.settings.spool
    folder.mkdir(parents=True)
    for name, age in (("old", KEPT_SECONDS + 60), ("young", 60)):
        (folder / name).touch()
        moment = time.time() - age
        os.utime(folder / name, (moment, moment))
    stand.files = {"one.gguf": small_model("One")}
    stand.ingest(registry)
    assert [path.name for path in spooled_files(registry)] == ["young"]


def test_bytes_that_are_not_those_the_hub_states_are_refused(registry: LocalRegistry, stand: Stand) -> None:
    first, second, *_ = stand.files
    stand.stated[second] = "a" * 64
    with pytest.raises(BadSource, match=r"but the server states a{64}"):
        stand.ingest(registry)
    assert spooled_files(registry) == []
    with pytest.raises(Incomplete, match="1 of 4 shards; missing 2, 3, 4"):
        registry.model("m")
    assert first in stand.fetched


VERSIONS: dict[str, Version] = {
    "none": lambda _data: {},
    "a weak tag that stays": lambda _data: {"ETag": 'W/"1"'},
    "a weak tag that stays and a time": lambda data: {"ETag": 'W/"1"', **time_of_change(data)},
    "a time": time_of_change,
    "a strong tag": strong_tag,
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_file_that_changes_is_never_joined_of_two_versions(
    registry: LocalRegistry, stand: Stand, version: str, is_cut: bool
) -> None:
    """It changes between two runs, or between two requests of one run."""
    old = file_bytes([], [tensor(f"large.{index}.weight", (32768,)) for index in range(4)])
    new = old[:70_000] + b"\1" * 9 + old[70_009:-9] + b"\1" * 9
    stand.files, stand.version = {"one.gguf": old}, VERSIONS[version]

    def change(request: ReceivedRequest) -> Answer | None:
        begin, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        if last < 3 * spool.WINDOW_BYTES:
            return None
        if not is_cut:
            stand.files["one.gguf"] = new
            return None
        whole = part(request, old)
        kept = whole.body[: max(0, 3 * spool.WINDOW_BYTES - begin)]
        return Answer(
            206, kept, {"Content-Range": whole.headers["Content-Range"], **stand.version(old)}, len(whole.body)
        )

    stand.refuse = change
    if version in ("a time", "a strong tag") and not is_cut:
        with pytest.raises(BadSource, match="changed on the server"):
            stand.ingest(registry)
        assert spooled_files(registry) == [], "it begins again"
    else:
        with suppress(Unreachable, BadSource):
            stand.ingest(registry)
    stand.refuse = lambda _request: None
    stand.files["one.gguf"] = new
    stand.ingest(registry, new_version=always)
    with registry.catalog.reading() as session:
        assert digest_of(new) in (digests := set(session.scalars(select(ModelFileRow.sha256))))
    assert digests <= {digest_of(old), digest_of(new)}


def test_a_full_disk_is_reported_and_the_next_run_continues(
    registry: LocalRegistry, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_at = spool.Files.write_at

    def full(files: Any, descriptor: int, pieces: Any, offset: int) -> int:
        if offset >= 3 * spool.WINDOW_BYTES and "spool" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_at(files, descriptor, pieces, offset)

    stand.files[list(stand.files)[-1]] = big_last_shard()
    with monkeypatch.context() as patch:
        patch.setattr(spool.Files, "write_at", full)
        with pytest.raises(DiskFull, match="spool is full"):
            stand.ingest(registry)
    with pytest.raises(Incomplete, match="3 of 4"):
        registry.model("m")
    assert stand.ingest(registry).incomplete == ""
    with monkeypatch.context() as patch:
        patch.setattr(spool.Files, "free_bytes", lambda _files, _path: 10)
        stand.files = {"other.gguf": small_model("Other")}
        with pytest.raises(DiskFull, match="10 are free"):
            stand.ingest(registry)


def test_a_single_file_is_fetched_by_one_process_and_only_if_its_name_is_free(
    registry: LocalRegistry, stand: Stand
) -> None:
    stand.files = {"only.gguf": small_model("Only")}
    with stand.hub() as hub:
        (source,) = find_sources([f"{stand.server.url}/only.gguf"], hub=hub)
        (remote,) = source.remote
        with spool.spooled(registry.settings.spool, remote, remote.open(), None, lambda _size: None) as copy:
            assert (copy.path.name, copy.name) == ("only.gguf", f"{stand.server.url}/only.gguf")
            with pytest.raises(Busy, match="another process fetches this file"):
                stand.ingest(registry)
    assert spooled_files(registry) == []
    assert stand.ingest(registry).created
    assert not stand.ingest(registry).created
    stand.files = {"only.gguf": small_model("Only", seed=2)}
    with pytest.raises(NameTaken):
        stand.ingest(registry)
    assert spooled_files(registry) == []
