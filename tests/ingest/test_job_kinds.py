"""Tests of each kind of job on small real models; one runs in a real runtime."""

from __future__ import annotations

import hashlib
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import select

from organs.ingest.jobs import kinds
from organs.ingest.jobs.kinds import COMPOSE, EXTRACT, MEASURE
from organs.ingest.jobs.packs import (
    KEPT_SECONDS,
    TOTAL_MAX_BYTES,
    new_pack,
    pack_file,
    packs_folder,
    remove_old_packs,
)
from organs.ingest.jobs.runner import (
    Runner,
    add_job,
)
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.chimeras import verdicts_of
from organs.registry.catalog.queries.jobs import active_jobs, file_of_job, job_by_id
from organs.registry.catalog.queries.model_names import model_by_name, model_by_text
from organs.registry.catalog.queries.sizes import sensitivities_of
from organs.registry.catalog.register.accounts import add_contributor
from organs.registry.catalog.register.jobs import WAITING_MAX
from organs.registry.catalog.register.sizes import record_sensitivity
from organs.registry.catalog.tables import Placement
from organs.registry.catalog.work import WorkCancelled
from organs.registry.compose.recipe import read_recipe
from organs.registry.entities.base import Entity
from organs.registry.entities.job import ModelRequest
from organs.registry.entities.sizes import QuantizationRequest, SizedModel
from organs.registry.errors import (
    BadInput,
    BadName,
    BadRecipe,
    NotAllowed,
    NotComposable,
    NotFound,
    OrganError,
    OverQuota,
    TooMany,
)
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.evolutions import LINES, evolve_without_runtime
from tests.ingest.one_source import ingest_path
from tests.registry_templates import RegistryTemplates, add_three_models
from tests.sizes import sized
from tests.small_models import row_counts
from tests.web.api.zoo import ingest_zoo

RECIPE_YAML = "base: local/base\nname: local/mixed\ngrafts:\n  - {from: local/tuned, type: organ, blocks: 0}\n"

SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Older patch releases of Python 3.11 have no filters."""


@pytest.fixture
def kin(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    """Return a registry with a base, a fine-tune of it and an unrelated model."""
    templates.fill(registry, add_three_models)
    return registry


Values = dict[str, Any]


def result(registry: LocalRegistry, kind: str, arguments: Values) -> Values:
    """Run a job of that kind, and return its result, with the folder of its file if it made one."""
    job_id = add_job(registry, kind, arguments)
    Runner(registry, Event()).run(once=True)
    with registry.catalog.reading() as session:
        job, file = job_by_id(session, job_id), file_of_job(session, job_id)
    assert job.state == "finished", job.note
    assert job.result is not None
    return job.result if file is None else job.result | {"pack": file.pack}


@pytest.mark.long
def test_a_repeated_job_creates_nothing_new(kin: LocalRegistry) -> None:
    first = result(kin, "compose", {"recipe_text": RECIPE_YAML})
    lock_id = kin.compose(read_recipe(RECIPE_YAML)).plan().plan.lock().id
    assert (first["model"], first["created"], first["address"]) == ("local/mixed@1", True, f"/chimeras/{lock_id}")
    before = row_counts(kin)
    second = result(kin, "compose", {"recipe_text": RECIPE_YAML})
    assert second == first | {"created": False}
    after = row_counts(kin)
    assert {table for table in before if before[table] != after[table]} <= {"jobs", "ingests"}


@pytest.mark.long
def test_graft_and_purify_are_recipes_of_one_step(kin: LocalRegistry) -> None:
    graft = {"base": "local/base", "donor": "local/tuned", "type": "organ", "blocks": 0, "name": "local/mixed"}
    assert result(kin, "graft", graft)["lock_id"] == result(kin, "compose", {"recipe_text": RECIPE_YAML})["lock_id"]
    purify = {"model": "local/base", "method": "spectral", "keep": 0.9, "type": ["organ"], "blocks": "0-1"}
    alone = result(kin, "purify", purify)
    recipe = "base: local/base\npurify: {method: spectral, keep: 0.9, type: organ, blocks: 0-1}"
    assert alone["lock_id"] == result(kin, "compose", {"recipe_text": recipe})["lock_id"]


TEXT = "recipe_text"
MIX: Values = {"space": {"base": "local/base", "donors": ["local/tuned"]}}
REFUSED: list[tuple[str, Values, type[OrganError], str]] = [
    ("nothing", {}, BadInput, "unknown kind of job 'nothing'"),
    ("compose", {}, BadInput, "either recipe, an object, or recipe_text"),
    ("compose", {"recipe": "base: a"}, BadInput, "an object"),
    ("report", {"modle": "x"}, BadInput, "modle: unknown key; did you mean model"),
    ("compose", {TEXT: "bse: a"}, BadRecipe, "did you mean base"),
    ("compose", {TEXT: RECIPE_YAML, "command": "rm"}, BadInput, "either recipe, an object, or recipe_text"),
    ("compose", {TEXT: "base: local/nobody"}, NotFound, "no model is registered"),
    ("compose", {TEXT: "base: local/base"}, NotComposable, "The recipe changes nothing of local/base@1"),
    ("graft", {}, BadInput, "base: it is missing; donor: it is missing"),
    ("graft", {"base": "local/base", "donor": "local/stranger", "type": "organ"}, NotComposable, "unrelated-lineage"),
    (
        "purify",
        {"model": "local/base", "method": "fractal", "slot": "nothing"},
        NotComposable,
        "no tensor in this selection",
    ),
    ("extract", {"model": "../base"}, BadName, "is no"),
    ("extract", {"model": "local/base", "to": "/etc"}, BadInput, "to: unknown key"),
    ("validate", {"chimera": "local/base"}, NotFound, "was not composed here, and no model is known"),
    ("validate", {"chimera": "local/base", "tokens": 1023}, BadInput, "from 1,024 to"),
    ("validate", {"chimera": "local/base", "minutes": 61}, BadInput, "from 0.1 to 60"),
    ("validate", {"chimera": "local/base", "texts": ["/etc/passwd"]}, BadInput, "python, javascript"),
    ("validate", {"chimera": "local/base", "runtime": "sh -c {model}"}, BadInput, "runtime: unknown key"),
    ("quantize", {"model": "local/nobody", "bits": 4.5}, NotFound, "no model is registered"),
    ("quantize", {"model": "local/base"}, BadInput, "exactly one of type, size_bytes, bits, like"),
    ("quantize", {"model": "local/base", "bits": 4, "type": "Q8_0"}, BadInput, "The request has type, bits"),
    ("quantize", {"model": "local/base", "like": "local/nobody"}, BadInput, "is no registered model"),
    ("quantize", {"model": "local/base", "bits": 4, "imatrix": "local/base"}, BadInput, "no registered importance"),
    ("quantize", {"model": "local/base", "bits": 4, "name": "../x"}, BadName, "is not a namespace"),
    ("quantize", {"model": "local/base", "size_bytes": 0}, BadInput, "size_bytes"),
    ("quantize", {"model": "local/base", "bits": 4, "runtime": "sh -c {model}"}, BadInput, "runtime: unknown key"),
    ("evolve", {}, BadInput, "either space, an object, or space_text"),
    ("evolve", {"space": {}, "space_text": "base: base"}, BadInput, "either space, an object, or space_text"),
    ("evolve", {"space_text": "base: base\nruntime: sh"}, BadRecipe, "runtime: unknown key"),
    ("evolve", {"space": {"base": "local/nobody"}}, NotFound, "no model is registered"),
    ("evolve", {"space": {"base": "local/base", "texts": ["/etc/passwd"]}}, BadInput, "is no built-in text"),
    ("evolve", {"space": {"base": "local/base", "minutes": 241}}, BadInput, "at most 240 minutes;"),
    ("evolve", {**MIX, "texts": [{"name": "mine"}]}, BadInput, "is no built-in text, and has no content"),
    ("evolve", {**MIX, "texts": [{"name": "mine", "content": "a\0b"}]}, BadInput, "a NUL character"),
    ("evolve", {**MIX, "texts": [{"name": "mine", "content": "x" * 262145}]}, BadInput, "262,145 bytes"),
    ("evolve", {**MIX, "texts": [{"name": "mine", "content": "too short"}]}, BadInput, "too short to be divided"),
    ("evolve", {**MIX, "texts": [{"name": f"{number}"} for number in range(17)]}, BadInput, "16"),
    ("evolve", {"space": {"base": "local/base", "donors": ["local/stranger"]}}, NotComposable, "unrelated-lineage"),
]


@pytest.mark.parametrize(("kind", "arguments", "error", "says"), REFUSED)
def test_an_impossible_job_is_refused_before_it_is_queued(
    kind: str, arguments: Values, error: type[OrganError], says: str, kin: LocalRegistry
) -> None:
    with pytest.raises(error, match=says):
        add_job(kin, kind, arguments)
    with kin.catalog.reading() as session:
        assert not active_jobs(session, kind)


def test_all_faults_of_a_request_for_a_size_are_told_at_once(kin: LocalRegistry) -> None:
    wrong = {"model": "local/base", "bits": 4, "like": "local/nobody", "imatrix": "local/tuned"}
    with pytest.raises(BadInput) as refused:
        add_job(kin, "quantize", wrong)
    assert [error.field for error in refused.value.errors] == [None, "like", "imatrix"]


def test_a_job_that_makes_a_size_is_for_the_current_version(
    kin: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []
    with kin.catalog.writing() as session:
        model_by_text(session, "local/tuned").size_bytes = 40_000

    def quantize(*arguments: Any) -> SizedModel:
        requests.append(arguments[2])
        return sized(requests[0].model)

    monkeypatch.setattr(kinds, "quantize", quantize)
    found = result(kin, "quantize", {"model": "base", "like": "local/tuned", "name": "own"})
    assert requests == [QuantizationRequest(model="local/base@1", like="local/tuned@1", name="local/own")]
    assert found["models"] == ["local/base-4bpw@1", "local/base@1"]
    assert found["point"]["tag"] == "4bpw"


def test_a_size_is_made_in_the_own_namespace_and_within_the_quota(kin: LocalRegistry) -> None:
    with kin.catalog.writing() as session:
        add_contributor(session, "ada", quota_bytes=35_000)
    for more, error in (
        ({"bits": 16, "name": "local/other"}, NotAllowed),
        ({"size_bytes": 35_001}, OverQuota),
        ({"bits": 16}, OverQuota),
        ({"like": "local/tuned"}, OverQuota),
        ({"size_bytes": 999}, BadInput),
    ):
        with pytest.raises(error):
            add_job(kin, "quantize", {"model": "local/base", **more}, "ada")
    assert add_job(kin, "quantize", {"model": "local/base", "size_bytes": 34_000, "name": "mine"}, "ada")


def test_a_job_that_is_put_back_goes_on_with_what_it_measured(
    kin: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, measured, stop = ("ab" * 32, "cd" * 32, 512, "llama.cpp"), [], Event()

    def quantize(catalog: Catalog, _blobs: object, request: QuantizationRequest, *more: Any) -> SizedModel:
        for group in range(6):
            with catalog.reading() as session:
                is_known = (f"group {group}", "Q4_K") in sensitivities_of(session, *key)
            if is_known:
                continue
            more[1](group / 6, "measuring")
            measured.append(group)
            with catalog.writing() as session:
                record_sensitivity(session, key[0], f"group {group}", "Q4_K", *key[1:], "{}")
            if len(measured) == 3:
                stop.set()
        return sized(request.model)

    monkeypatch.setattr(kinds, "quantize", quantize)
    job_id = add_job(kin, "quantize", {"model": "local/base", "bits": 6.5})
    Runner(kin, stop, lanes=(kinds.VALIDATION,)).run(once=True)
    with kin.catalog.reading() as session:
        assert job_by_id(session, job_id).state == "queued"
    Runner(kin, Event(), lanes=(kinds.VALIDATION,)).run(once=True)
    with kin.catalog.reading() as session:
        assert job_by_id(session, job_id).state == "finished"
    assert measured == [0, 1, 2, 3, 4, 5]


def test_an_evolution_begins_with_its_job_and_a_job_that_is_put_back_continues_it(
    kin: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, stop = [], Event()

    def evolve(catalog: Catalog, _blobs: object, number: int, _runtime: object, progress: Any, _check: object) -> None:
        done.append(number)
        progress(0.5, "trial 1, python")
        if len(done) == 1:
            stop.set()
            progress(0.5, "trial 2, python")
        evolve_without_runtime(catalog, None, number, None, progress)

    monkeypatch.setattr(kinds, "evolve", evolve)
    texts = [{"name": "mine", "content": LINES}, {"name": "python"}]
    space = {"base": "base", "donors": ["tuned"], "texts": ["mine"], "limits": {"python": 1}, "trials": 5}
    job_id = add_job(kin, "evolve", {"space": space, "texts": texts})
    assert kin.job(job_id).arguments == {"evolution": 1}, "the texts are in the evolution"
    assert kinds.continued_evolution(kin, 1) == job_id
    begun = kin.evolution(1)
    assert (begun.texts, begun.trials_allowed, begun.seconds_allowed) == (("mine", "python"), 5, 14400.0)
    for event in (stop, Event()):
        Runner(kin, event, lanes=(kinds.EVOLUTION,)).run(once=True)
    assert done == [1, 1]
    assert kin.job(job_id).result == {"evolution": 1, "model": None, "address": "/evolutions/1"}
    assert kin.evolution(1).note == "no trial is better than the base"
    assert kinds.continued_evolution(kin, 1) > job_id


def test_no_evolution_begins_without_its_job_and_no_result_exceeds_the_quota(
    kin: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kin.catalog.writing() as session:
        add_contributor(session, "ada", quota_bytes=35_000)
    with pytest.raises(NotAllowed):
        add_job(kin, "evolve", {"space": {**MIX["space"], "name": "local/other"}}, "ada")
    for _ in range(WAITING_MAX):
        add_job(kin, "report", {}, "ada")
    with pytest.raises(TooMany):
        add_job(kin, "evolve", MIX, "ada")
    assert kin.evolutions().items == ()
    Runner(kin, Event(), lanes=(kinds.WORK,)).run(once=True)
    monkeypatch.setattr(kinds, "evolve", lambda *arguments: arguments[-1](35_001))
    job_id = add_job(kin, "evolve", MIX, "ada")
    Runner(kin, Event(), lanes=(kinds.EVOLUTION,)).run(once=True)
    assert (kin.job(job_id).problem or {})["code"] == OverQuota.code


def test_a_model_is_measured_again_and_the_largest_difference_is_reported_with_its_tensor(kin: LocalRegistry) -> None:
    same = result(kin, "measure", {"model": "base"})
    assert (same["model"], same["measured"], len(same["tensors"]), same["tensors_left_out"]) == (
        "local/base@1",
        10,
        10,
        0,
    )
    assert all(largest is None or largest["difference"] <= 1e-6 for largest in same["differences"].values())
    with kin.catalog.writing() as session:
        model = model_by_name(session, parse_model_name("local/base"))
        placement = session.scalars(select(Placement).where(Placement.model_id == model.id).limit(1)).one()
        placement.theta = (placement.theta or 0.0) + 3.0
        name = placement.name
    largest = result(kin, "measure", {"model": "base"})["differences"]["theta"]
    assert largest["tensor"] == name
    assert largest["difference"] == pytest.approx(3.0, abs=1e-6)


@pytest.mark.folder
def test_an_extraction_is_a_tar_of_an_organ_directory_that_assembles_to_the_model(
    kin: LocalRegistry, tmp_path: Path
) -> None:
    again, outcome = (result(kin, "extract", {"model": "base"}) for _ in range(2))
    assert again["sha256"] == outcome["sha256"], "the same model always gives the same tar"
    assert again["pack"] != outcome["pack"]
    path = pack_file(kin.settings.home, outcome["pack"], outcome["file"])
    assert path is not None
    assert [entry.name for entry in path.parent.iterdir()] == ["base.tar"]
    assert path.stat().st_size == outcome["size_bytes"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == outcome["sha256"]
    with tarfile.open(path, "r:") as tar:
        members = tar.getmembers()
        assert {(member.uid, member.mtime, member.mode) for member in members if member.isfile()} == {(0, 0, 0o644)}
        tar.extractall(tmp_path / "out", **SAFELY)
    assert not ingest_path(kin, tmp_path / "out" / "base.organs").created, "the same bytes are registered already"


@pytest.mark.parametrize("run", [EXTRACT.run, MEASURE.run, COMPOSE.run])
def test_a_cancelled_job_leaves_nothing(run: Callable[..., Values], kin: LocalRegistry) -> None:
    arguments: Entity = ModelRequest(model="local/base@1")
    if run is COMPOSE.run:
        arguments = COMPOSE.settled(kin, {"recipe_text": RECIPE_YAML}, "local")
    before = row_counts(kin)
    cancelled = 0
    for words in range(2, 8):
        left = words

        def report_progress(_progress: float, _note: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise WorkCancelled

        try:
            run(kin, arguments, report_progress, "local")
        except WorkCancelled:
            cancelled += 1
            folder = packs_folder(kin.settings.home)
            assert not folder.exists() or not list(folder.iterdir())
            after = row_counts(kin)
            assert after["models"] == before["models"]
            assert after["chimeras"] == 0
        else:
            break
    assert cancelled > 0


def pack_of(home: Path, name: str, size_bytes: int, moment: float) -> Path:
    """Make a pack with one file, which uses no disk space."""
    pack = new_pack(home)
    file = pack / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.truncate(file, size_bytes)
    os.utime(pack, (moment, moment))
    return pack


def test_packs_are_removed_after_a_day_and_the_oldest_when_there_are_too_many(tmp_path: Path) -> None:
    now = time.time()
    packs = [pack_of(tmp_path, "a.tar", TOTAL_MAX_BYTES // 2 - 1, now - hours * 3600) for hours in (30, 20, 10, 1)]
    (tmp_path / "jobs" / "not a pack").mkdir()
    assert KEPT_SECONDS == 24 * 3600
    remove_old_packs(tmp_path, now)
    assert [pack.exists() for pack in packs] == [False, False, True, True]
    os.truncate(packs[3] / "a.tar", 3 * TOTAL_MAX_BYTES)
    os.utime(packs[3], (now, now))
    remove_old_packs(tmp_path, now)
    assert [pack.exists() for pack in packs] == [False, False, False, True], "the newest stays, whatever its size"
    assert (tmp_path / "jobs" / "not a pack").exists()


def test_an_unfinished_pack_counts_with_all_its_files_and_is_kept_for_an_hour(tmp_path: Path) -> None:
    now = time.time()
    packs = [pack_of(tmp_path, "a.organs/blk.0/x.bin", TOTAL_MAX_BYTES, now - hours * 3600) for hours in (0.9, 0.5)]
    remove_old_packs(tmp_path, now)
    assert [pack.exists() for pack in packs] == [True, True]
    remove_old_packs(tmp_path, now + 1800)
    assert [pack.exists() for pack in packs] == [False, True]


@pytest.mark.parametrize(
    ("key", "name"),
    [("..", "a"), ("0" * 32, "../a"), (None, None), ("0" * 32, "/etc/passwd"), ("0" * 31 + "/", "a"), (5, "a")],
)
def test_an_invalid_key_of_a_pack_or_a_link_in_it_gives_no_file(key: object, name: object, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert pack_file(tmp_path / "jobs", key, name) is None
    pack = new_pack(tmp_path)
    (pack / "a.tar").symlink_to("/etc/passwd")
    assert pack_file(tmp_path, pack.name, "a.tar") is None


@pytest.mark.long
def test_a_chimera_of_the_zoo_is_validated_in_llama_cpp(registry: LocalRegistry) -> None:
    ingest_zoo(registry, "Zoo-A-2M*F16.gguf")
    graft = {"base": "local/Zoo-A-2M-v1.0-F16", "donor": "local/Zoo-A-2M-Code-v1.0-F16", "type": "organ"}
    made = result(registry, "graft", graft)
    outcome = result(registry, "validate", {"chimera": made["lock_id"], "tokens": 1024, "texts": ["python"]})
    assert outcome["verdict"] in ("gains", "coherent")
    assert outcome["tokens"] == 5 * 255
    assert [text["name"] for text in outcome["texts"]] == ["python"]
    assert outcome["models"] == [made["model"], "local/Zoo-A-2M-v1.0-F16@1", "local/Zoo-A-2M-Code-v1.0-F16@1"]
    with registry.catalog.reading() as session:
        (verdict,) = verdicts_of(session, model_by_name(session, parse_model_name(made["model"])).id)
    assert verdict.verdict == outcome["verdict"]
