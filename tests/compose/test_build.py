"""Tests of making: after any failure nothing is registered, the target is unchanged, and a sweep removes the rest."""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs
from sqlalchemy import select

from organs.registry.catalog.queries.blobs import KnownBlob
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.model_changes import remove_model
from organs.registry.catalog.tables import Ingest
from organs.registry.compose import build
from organs.registry.compose.api import ChimeraPlan
from organs.registry.compose.build import SHARED_MIN_BYTES
from organs.registry.digest import digest_of
from organs.registry.errors import (
    CorruptBlob,
    DiskFull,
    MissingBlob,
    NotComposable,
    OrganError,
    StoreError,
    StoreUnwritable,
)
from organs.registry.gguf import read_header
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName, parse_model_name
from organs.registry.store.files import Files
from tests.faults.failing import (
    Crash,
    SteppedCatalog,
    SteppedFiles,
    act_at_step,
    assert_no_orphans,
    blob_rows,
    blob_states,
    crash,
    failing_from,
    flip_bit,
    ingest_path,
    let_leases_expire,
    let_time_pass,
    model_bytes,
    model_names,
    overwrite,
    run_sweep,
    verify_all,
    with_files,
)
from tests.gguf_files import file_bytes
from tests.small_models import block_metadata, block_tensors

GRAFTED, COMPUTED = "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"
Q = "blk.0.attn_q.weight"
WIDTH = 192
"""The smallest size at which every matrix is a file of its own."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Path:
    """Return the folder of a registry with `base` and an unrelated `donor`, whose matrices are store files."""
    folder = tmp_path_factory.mktemp("filled")
    home = folder / "home"
    home.mkdir()
    shutil.copy(migrated_database, home)
    with LocalRegistry.open(home) as registry:
        for seed, name in enumerate(("base", "donor")):
            (folder / f"{name}.gguf").write_bytes(model_bytes(seed, width=WIDTH))
            ingest_path(registry, folder / f"{name}.gguf", name=ModelName("local", name))
    return home


@pytest.fixture
def pair(filled: Path, tmp_path: Path) -> Iterator[LocalRegistry]:
    """Return a copy of the registry `filled`."""
    with LocalRegistry.open(shutil.copytree(filled, tmp_path / "home")) as registry:
        yield registry


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return a file that is to be replaced."""
    path = tmp_path / "out" / "chimera.gguf"
    path.parent.mkdir()
    path.write_bytes(b"as it was")
    return path


def plan_of(registry: LocalRegistry) -> ChimeraPlan:
    """Return a plan with one grafted and one purified organ."""
    composition = registry.compose("base").graft("donor", slot="ffn_up").purify("fractal", slot="ffn_down")
    return composition.accept("unrelated-lineage", "lineage-unknown").named("local/made").plan()


def row_of(registry: LocalRegistry, name: str, model: str) -> KnownBlob:
    digest = registry.model(model).organ(name).digest
    return next(row for row in blob_rows(registry) if row.digest == digest)


def last_ingest(registry: LocalRegistry) -> tuple[str, dict[str, object]]:
    with registry.catalog.reading() as session:
        ingest = session.scalars(select(Ingest).order_by(Ingest.id.desc()).limit(1)).one()
        return ingest.state, json.loads(ingest.report or "{}")


def assert_nothing_is_left(registry: LocalRegistry, out: Path, before: set[str]) -> None:
    """Assert that no model is registered, the target is unchanged, and the next sweeps remove all new blobs."""
    assert model_names(registry) == ["base", "donor"]
    assert out.read_bytes() == b"as it was"
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    let_leases_expire(registry)
    let_time_pass(registry)
    run_sweep(registry)
    let_time_pass(registry)
    run_sweep(registry)
    assert set(blob_states(registry)) == before
    assert_no_orphans(registry)
    assert verify_all(registry).faults == []


@pytest.mark.folder
def test_a_made_chimera_is_reported_registered_and_durable(pair: LocalRegistry, out: Path) -> None:
    progress: dict[str, int] = {}
    plan = plan_of(pair)
    made = plan.assemble(out, lambda what, size: progress.update({what: progress.get(what, 0) + size}))
    data = out.read_bytes()
    assert (made.model, made.created, made.size_bytes, plan.size_bytes) == ("local/made@1", True, len(data), len(data))
    assert made.sha256 == digest_of(data)
    assert progress == {"compute": 4 * WIDTH * WIDTH, "write": len(data)}
    assert list(made.computed) == [COMPUTED]
    assert pair.model("made").organ(COMPUTED).theta == made.computed[COMPUTED].theta
    assert last_ingest(pair) == ("finished", {"lock": made.lock_id, "size_bytes": len(data)})
    assert_no_orphans(pair)
    assert verify_all(pair).faults == []


def test_a_second_make_computes_and_stores_nothing_new(pair: LocalRegistry, out: Path) -> None:
    first = plan_of(pair).register()
    before = blob_states(pair)
    again = plan_of(pair).assemble(out)
    assert (again.created, again.computed) == (False, {})
    assert (again.model, again.lock_id, again.sha256) == (first.model, first.lock_id, first.sha256)
    assert blob_states(pair) == before
    assert model_names(pair) == ["base", "donor", "made"]


def test_the_same_under_another_name_is_another_model_with_the_same_lock(pair: LocalRegistry, out: Path) -> None:
    first = plan_of(pair).register()
    plan = pair.compose(structs.replace(plan_of(pair).recipe, name="acme/else")).plan()
    other = plan.assemble(out)
    assert (other.model, other.created, other.lock_id, other.sha256) == (
        *("acme/else@1", True),
        *(first.lock_id, first.sha256),
    )
    assert pair.model(f"sha256:{first.lock_id}").name == first.model, "the oldest"


def test_a_chimera_of_a_chimera_drops_its_lock_and_has_one_of_its_own(pair: LocalRegistry, out: Path) -> None:
    first = plan_of(pair).register()
    composition = pair.compose("made").purify("fractal", slot="attn_q")
    second = composition.plan().assemble(out)
    assert second.lock_id != first.lock_id
    assert pair.model(second.model).lock_id == second.lock_id
    assert pair.model(second.model).relatives[0].model == first.model


@pytest.mark.folder
def test_a_plan_that_is_refused_leaves_no_trace(pair: LocalRegistry, out: Path) -> None:
    before = set(blob_states(pair))
    begun = last_ingest(pair)
    plan = pair.compose("base").graft("donor", slot="ffn_up").plan()
    assert not plan.can_be_made
    with pytest.raises(NotComposable, match="accept unrelated-lineage"):
        plan.assemble(out)
    with pytest.raises(NotComposable):
        plan.register()
    assert last_ingest(pair) == begun
    assert_nothing_is_left(pair, out, before)


@pytest.mark.folder
@pytest.mark.parametrize("step", ["compute", "write"])
def test_an_interrupted_make_leaves_only_what_is_leased(pair: LocalRegistry, out: Path, step: str) -> None:
    before = set(blob_states(pair))

    def interrupt(what: str, _size_bytes: int) -> None:
        if what == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan_of(pair).assemble(out, interrupt)
    assert last_ingest(pair)[0] == "interrupted"
    assert set(blob_states(pair)) > before
    assert_nothing_is_left(pair, out, before)


@pytest.mark.parametrize("session", [4, 13])
def test_a_catalog_that_fails_at_any_session_leaves_nothing_registered(
    pair: LocalRegistry, tmp_path: Path, session: int
) -> None:
    before = set(blob_states(pair))
    plan = ChimeraPlan(plan_of(pair).plan, SteppedCatalog(pair.catalog, act_at_step(session, crash)), pair.blobs)
    with pytest.raises(Crash):
        plan.assemble(tmp_path / "new.gguf")
    assert model_names(pair) == ["base", "donor"]
    made = plan_of(pair).register()
    assert made.created
    assert verify_all(pair).faults == []
    assert before < set(blob_states(pair))


def corrupt(registry: LocalRegistry, row: KnownBlob) -> None:
    path = registry.settings.blobs / str(row.file)
    overwrite(path, flip_bit(path.read_bytes(), 8 * (path.stat().st_size - 9)))


def remove(registry: LocalRegistry, row: KnownBlob) -> None:
    (registry.settings.blobs / str(row.file)).unlink()


def cut(registry: LocalRegistry, row: KnownBlob) -> None:
    path = registry.settings.blobs / str(row.file)
    overwrite(path, path.read_bytes()[:-1])


@pytest.mark.folder
@pytest.mark.parametrize(
    ("name", "model", "damage"),
    [
        *((GRAFTED, "donor", damage) for damage in (corrupt, remove)),
        *((COMPUTED, "base", damage) for damage in (remove, cut)),
        (Q, "base", corrupt),
    ],
)
def test_a_faulty_blob_is_reported_with_the_name_of_its_tensor(
    pair: LocalRegistry, out: Path, name: str, model: str, damage: Callable[[LocalRegistry, KnownBlob], None]
) -> None:
    plan, row = plan_of(pair), row_of(pair, name, model)
    damage(pair, row)
    kind = MissingBlob if damage is remove else CorruptBlob
    with pytest.raises(kind, match=rf"{name} \({row.digest[:12]}\)"):
        plan.assemble(out)
    assert out.read_bytes() == b"as it was"
    assert model_names(pair) == ["base", "donor"]
    state, report = last_ingest(pair)
    assert state == "failed"
    assert name in str(report["error"])


@pytest.mark.folder
@pytest.mark.parametrize("call", [1, 25])
def test_a_full_disk_leaves_nothing(pair: LocalRegistry, out: Path, call: int) -> None:
    before = set(blob_states(pair))
    store = with_files(pair, failing_from(call, errno.ENOSPC)).blobs
    plan = ChimeraPlan(plan_of(pair).plan, pair.catalog, store)
    with pytest.raises(DiskFull):
        plan.assemble(out)
    assert_nothing_is_left(pair, out, before)


@pytest.mark.folder
def test_every_disk_call_was_made_to_fail(pair: LocalRegistry, out: Path) -> None:
    # This shows that the disk calls of the test above are made.
    counted = SteppedFiles(lambda _number, _name: None)
    ChimeraPlan(plan_of(pair).plan, pair.catalog, with_files(pair, counted).blobs).assemble(out)
    assert counted.calls > 25


@pytest.mark.folder
def test_a_result_too_large_for_memory_and_disk_is_reported(
    pair: LocalRegistry, out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = set(blob_states(pair))
    monkeypatch.setattr(build, "SPOOLED_MAX_BYTES", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(StoreUnwritable, match="nowhere is not a folder that can be written to"):
        plan_of(pair).assemble(out)
    monkeypatch.undo()
    assert_nothing_is_left(pair, out, before)


@pytest.mark.folder
def test_an_unwritable_target_is_reported_before_anything_is_computed(
    pair: LocalRegistry, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, begun = set(blob_states(pair)), last_ingest(pair)
    plan, steps = plan_of(pair), list[str]()

    def note(what: str, _size_bytes: int) -> None:
        steps.append(what)

    for target in (out.parent, out / "below", out.parent / "no" / "such", out.parent / ("x" * 300) / "y"):
        with pytest.raises(StoreError):
            plan.assemble(target, note)
    monkeypatch.setattr(Files, "free_bytes", lambda _self, _folder: plan.size_bytes - 1)
    with pytest.raises(DiskFull, match=f"{plan.size_bytes} bytes are needed"):
        plan.assemble(out, note)
    monkeypatch.undo()
    assert steps == []
    assert last_ingest(pair) == begun
    assert_nothing_is_left(pair, out, before)


def test_an_organ_with_unusable_values_is_reported_by_its_name(
    registry: LocalRegistry, tmp_path: Path, out: Path
) -> None:
    tensors = [
        (spec, b"\x00\x7c" * spec.elements if spec.name == COMPUTED else data) for spec, data in block_tensors(1, WIDTH)
    ]
    (tmp_path / "odd.gguf").write_bytes(file_bytes(block_metadata(blocks=1), tensors))
    ingest_path(registry, tmp_path / "odd.gguf", name=ModelName("local", "odd"))
    plan = registry.compose("odd").purify("fractal", slot="ffn_down").accept("non-finite-weights").plan()
    with pytest.raises(OrganError, match=f"^{COMPUTED}: "):
        plan.assemble(out)
    assert model_names(registry) == ["odd"]
    assert out.read_bytes() == b"as it was"


def test_a_version_with_another_header_shares_the_list_of_tensors_of_its_base_which_outlives_the_base(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    (tmp_path / "base.gguf").write_bytes(file_bytes(block_metadata(), block_tensors(24)))
    ingest_path(registry, tmp_path / "base.gguf", name=ModelName("local", "base"))
    before = {blob.digest: blob.size_bytes for blob in blob_rows(registry)}
    plan = registry.compose("base").metadata("general.name", "Mine").named("me/mine").plan()
    made = plan.assemble(tmp_path / "mine.gguf")
    with FileSource(tmp_path / "base.gguf") as first, FileSource(tmp_path / "mine.gguf") as second:
        headers = read_header(first), read_header(second)
    new = {blob.digest: blob.size_bytes for blob in blob_rows(registry) if blob.digest not in before}
    last = headers[1].fields[-1]
    assert sum(new.values()) == last.offset + last.size_bytes, "the header without its list of tensors"
    assert headers[1].end - (last.offset + last.size_bytes) > SHARED_MIN_BYTES
    with registry.catalog.writing() as session:
        remove_model(session, model_by_name(session, parse_model_name("local/base")), "spam", "local")
    let_leases_expire(registry)
    for _ in range(2):
        let_time_pass(registry)
        run_sweep(registry)
    registry.assemble("me/mine", tmp_path / "again.gguf")
    assert digest_of((tmp_path / "again.gguf").read_bytes()) == made.sha256
