"""Files that are removed because the registry has their bytes, and written again: nothing is lost at any moment."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from organs.ingest import reclaiming
from organs.ingest.materialising import materialised
from organs.ingest.reclaiming import FileGroup, forget, give_back, groups_of, reclaim, restore, split_by_use
from organs.ingest.tools import FINDERS, find_in_folder, find_tool_models
from organs.ingest.tools.installing import install, installed_models, uninstall
from organs.registry.assembly import FilePlan
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.register.model_changes import remove_model
from organs.registry.catalog.tables import OutsideFile
from organs.registry.errors import Conflict, CorruptBlob, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.store import BlobStore
from organs.registry.store.files import LEFT_SECONDS
from tests.ingest.tool_layouts import APACHE, hub_repository, machine, ollama_layer, ollama_manifest, put
from tests.ingest.tool_readers import read_ollama
from tests.postgres import environment
from tests.small_models import small_model, small_shards

SETTLED = 0.06
"""After so many seconds, a file's times show each change."""
Tree = dict[str, tuple[str, int, int]]


def tree(folder: Path) -> Tree:
    """The digest, or the target, the mode and the time of each file below a folder."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink() or path.is_file():
            status = path.lstat()
            content = os.readlink(path) if path.is_symlink() else sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(folder))] = (content, stat.S_IMODE(status.st_mode), status.st_mtime_ns)
    return found


def lay_out(home: Path, seeds: int = 1) -> None:
    """Lay out models as Ollama, the hub, LM Studio and a plain folder have them: five for a seed, and a split one."""
    ollama = home / ".ollama" / "models"
    texts = [ollama_layer(ollama, "template", b"{{ .Prompt }}"), ollama_layer(ollama, "license", APACHE.encode())]
    for seed in range(0, 10 * seeds, 10):
        base, adapted = (small_model(f"model-{seed + step}", seed=seed + step) for step in (1, 2))
        layers = [ollama_layer(ollama, "model", base), *texts]
        ollama_manifest(ollama, f"registry.ollama.ai/library/base{seed}/latest", *layers)
        other = [ollama_layer(ollama, "model", adapted), texts[0]]
        ollama_manifest(ollama, f"registry.ollama.ai/me/own{seed}/q8_0", *other)
        cache = home / ".cache" / "huggingface" / "hub"
        hub_repository(
            cache, f"acme/tiny{seed}-GGUF", {f"tiny{seed}.gguf": small_model(f"model-{seed + 3}", seed=seed + 3)}
        )
        for step, place in ((4, home / ".lmstudio" / "models" / "acme" / f"t{seed}"), (5, home / "plain")):
            data = small_model(f"model-{seed + step}", seed=seed + step)
            path = put(place / f"m{seed}-{step}.gguf", data)
            os.chmod(path, 0o640)
            os.utime(path, ns=(10**18 + seed, 10**18 + seed))
    for name, data in small_shards().items():
        put(home / "plain" / name, data)


def groups_at(home: Path) -> list[FileGroup]:
    time.sleep(SETTLED)
    return groups_of([*find_tool_models(machine(home), FINDERS), find_in_folder(str(home / "plain"))])


def test_every_file_comes_back_with_its_bytes_names_modes_and_times(registry: LocalRegistry, tmp_path: Path) -> None:
    home = tmp_path / "user"
    lay_out(home)
    before = tree(home)
    groups = groups_at(home)
    done = list(reclaim(registry, groups))
    assert [one.kept for one in done] == [None] * 6
    size_bytes = sum(len(path.read_bytes()) for path in home.rglob("*.gguf") if not path.is_symlink())
    assert size_bytes == 0
    assert {path for path in tree(home) if "refs" not in path} == set(), "the tools do not see the models any more"
    with registry.catalog.writing() as session, pytest.raises(Conflict, match="organ restore"):
        remove_model(session, model_by_text(session, "library/base0"), "gone", "local")
    (one,) = restore(registry, lambda file: file.path.endswith("m0-5.gguf"))
    assert (one.problem, [path for path in tree(home) if "refs" not in path]) == (None, ["plain/m0-5.gguf"])
    assert all(one.problem is None for one in restore(registry))
    assert tree(home) == before
    assert list(restore(registry)) == []


def test_what_must_not_be_removed_stays_with_a_reason(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "refs"  # of a user, as in a repository of the hub
    (tmp_path / "snapshots" / "other").mkdir(parents=True)
    whole = put(folder / "whole.gguf", small_model(seed=1))
    (folder / "link.gguf").symlink_to(put(tmp_path / "elsewhere" / "linked.gguf", small_model(seed=2)))
    os.link(put(folder / "hard.gguf", small_model(seed=3)), tmp_path / "second name")
    put(folder / "broken.gguf", small_model(seed=4)[:-100])
    name, shard = next(iter(small_shards().items()))
    put(folder / "part" / name, shard)
    before = tree(folder)
    groups = groups_of([find_in_folder(str(folder))])
    done = {one.group.label.rpartition("/")[2]: one.kept for one in reclaim(registry, groups)}
    reasons = {
        "link.gguf": "symbolic link",
        "hard.gguf": "2 names",
        "broken.gguf": "short",
        name: "missing",
    }
    assert done.pop("whole.gguf") is None
    for label, reason in reasons.items():
        assert reason in str(done.pop(label, None)), label
    assert (done, tree(folder)) == ({}, {path: values for path, values in before.items() if path != "whole.gguf"})
    whole.write_bytes(b"another file")
    (problem,) = [one.problem for one in restore(registry, lambda file: file.path == str(whole))]
    assert problem is not None
    assert "another file now" in problem
    assert whole.read_bytes() == b"another file"
    whole.unlink()
    list(restore(registry))
    assert tree(folder)["whole.gguf"] == before["whole.gguf"]

    def damaged(*_: object) -> None:
        raise CorruptBlob("a blob", "its bytes are wrong")

    time.sleep(SETTLED)
    monkeypatch.setattr(reclaiming, "prove_file", damaged)
    (one,) = reclaim(registry, groups_of([find_in_folder(str(whole))]))
    assert (whole.is_file(), one.freed_bytes, "its bytes are wrong" in str(one.kept)) == (True, 0, True), one.kept


def test_a_file_that_changes_or_is_needed_again_meanwhile_stays(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "user"
    lay_out(home)
    plain, ollama = home / "plain" / "m0-5.gguf", home / ".ollama" / "models"
    studio = home / ".lmstudio" / "models" / "acme" / "t0" / "m0-4.gguf"
    groups = groups_at(home)
    prove, look = reclaiming.prove_file, reclaiming._is_being_written
    proved = set[str]()

    def look_and_replace(path: Path) -> bool:
        is_being_written = look(path)
        if path == studio and path.name in proved:  # after the last look at it
            os.replace(put(home / "new.gguf", b"another file"), path)
        return is_being_written

    def prove_and_change(store: BlobStore, plan: FilePlan) -> None:
        prove(store, plan)
        proved.add(plan.name)
        if plan.name == plain.name:
            plain.write_bytes(b"changed")
        for manifest in ollama.glob("manifests/*/library/*/latest"):
            again = ollama / "manifests" / "registry.ollama.ai" / "me" / "copy" / "latest"
            again.parent.mkdir(parents=True, exist_ok=True)
            again.write_bytes(manifest.read_bytes())

    monkeypatch.setattr(reclaiming, "prove_file", prove_and_change)
    monkeypatch.setattr(reclaiming, "_is_being_written", look_and_replace)
    done = {path: one.kept for one in reclaim(registry, groups) for path in one.group.paths}
    assert "changed while it was" in str(done[plain])
    assert "changed while it was" in str(done[studio])
    assert (plain.read_bytes(), studio.read_bytes()) == (b"changed", b"another file")
    assert os.listdir(studio.parent) == [studio.name]
    assert set(read_ollama(ollama)) == {"registry.ollama.ai/me/copy:latest"}, "with all of its blobs"
    assert list(restore(registry, lambda file: file.path in (str(plain), str(studio)))) == [], "they were forgotten"


def test_a_file_whose_model_is_removed_from_the_registry_meanwhile_stays(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "models" / "m.gguf", small_model())
    prove = reclaiming.prove_file

    def prove_and_remove(store: BlobStore, plan: FilePlan) -> None:
        prove(store, plan)
        with registry.catalog.writing() as session:
            remove_model(session, model_by_text(session, "local/m"), "too old", "local")

    time.sleep(SETTLED)
    monkeypatch.setattr(reclaiming, "prove_file", prove_and_remove)
    (done,) = reclaim(registry, groups_of([find_in_folder(str(path))]))
    assert "local/m@1 was removed" in str(done.kept)
    assert path.read_bytes() == small_model()
    assert list(restore(registry)) == []


def test_an_installed_model_is_still_an_own_one_after_it_was_removed_and_restored(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    home = tmp_path / "user"
    lay_out(home)
    before = tree(home)
    list(reclaim(registry, groups_at(home)))
    list(restore(registry))
    install(registry, "library/base0", "ollama", machine(home), "copy")
    with_copy = tree(home)
    list(reclaim(registry, groups_at(home)))
    assert installed_models(registry) == []
    assert all(one.problem is None for one in restore(registry))
    assert tree(home) == with_copy
    (removal,) = uninstall(registry, "library/base0")
    assert (removal.kept, tree(home)) == ((), before)


def test_a_file_that_was_installed_at_the_place_of_a_removed_one_is_the_users_own_when_that_is_restored(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    path = put(tmp_path / "models" / "m.gguf", small_model())
    before = tree(path.parent)
    time.sleep(SETTLED)
    list(reclaim(registry, groups_of([find_in_folder(str(path))])))
    for _ in range(2):
        install(registry, "m", path.parent, machine(tmp_path))
        assert path.read_bytes() == small_model()
        (removal,) = uninstall(registry, "m")
        assert (removal.kept, path.exists()) == ((), False), "it is still an installed one"
    install(registry, "m", path.parent, machine(tmp_path))
    assert [one.problem for one in restore(registry)] == [None]
    with pytest.raises(NotFound):
        uninstall(registry, "m")
    assert tree(path.parent) == before


def test_the_last_used_files_stay_and_a_used_file_is_never_removed(registry: LocalRegistry, tmp_path: Path) -> None:
    for seed in range(4):
        path = put(tmp_path / "models" / f"m{seed}.gguf", small_model(f"m{seed}", seed=seed))
        os.utime(path, (10**9 + seed * 86400, 10**9))
    size = path.stat().st_size
    groups = groups_of([find_in_folder(str(tmp_path / "models"))])
    away, kept = split_by_use(groups, 2 * size + 10)
    assert [sorted(Path(group.label).stem for group in part) for part in (away, kept)] == [["m0", "m1"], ["m2", "m3"]]
    list(reclaim(registry, groups))
    with materialised(registry, "m0", 0) as first:
        data = first.path.read_bytes()
        assert sha256(data).hexdigest() == registry.model("m0").files[0].sha256
        assert stat.S_IMODE(first.path.stat().st_mode) == 0o444
        with materialised(registry, "m1", 0) as second:
            assert first.path.read_bytes() == data, "another program uses it"
        with materialised(registry, "m0", 10**9) as again:
            assert (again.path, again.path.stat().st_ino) == (first.path, first.path.stat().st_ino)
        assert second.path.exists(), "it was used last"
    assert (first.path.exists(), second.path.exists()) == (True, False)
    with materialised(registry, "m2", 0) as third, pytest.raises(NotFound):
        uninstall(registry, "m2")
    assert [file.path.exists() for file in (first, second, third)] == [False, False, True], "the last one stays"
    command = [sys.executable, "-m", "organs.cli", "run", "m0", "sh", "-c", "kill -9 $PPID; read line", "{}"]
    with subprocess.Popen(
        command, env=os.environ | environment(Path(registry.location)), stdin=subprocess.PIPE
    ) as process:
        assert process.wait() == -signal.SIGKILL
        with materialised(registry, "m1", 0) as second:
            assert first.path.exists(), "the program goes on without `organ run`, and has its lock"
    assert installed_models(registry) == []


def test_a_reclaim_that_was_killed_is_given_back_and_a_file_can_be_given_up(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "user"
    lay_out(home)
    before = tree(home)
    unlink = reclaiming._unlink

    class Killed(BaseException):
        pass

    def killed_at_a_blob(file: OutsideFile) -> bool:
        if "blobs" in file.path:
            raise Killed
        return unlink(file)

    monkeypatch.setattr(reclaiming, "_unlink", killed_at_a_blob)
    with pytest.raises(Killed):
        list(reclaim(registry, groups_at(home)))
    monkeypatch.undo()
    assert tree(home) != before
    assert give_back(registry) == []
    assert before.items() >= tree(home).items(), "nothing was changed"
    list(restore(registry))
    assert tree(home) == before
    list(reclaim(registry, groups_at(home)))
    (given_up,) = forget(registry, lambda file: file.path.endswith("m0-5.gguf"))
    assert given_up.paths == (str(home / "plain" / "m0-5.gguf"),)
    list(restore(registry))
    assert set(before) - set(tree(home)) == {"plain/m0-5.gguf"}


def test_a_file_that_a_program_writes_or_that_cannot_be_removed_stays(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "user"
    lay_out(home)
    before = tree(home)
    with (home / "plain" / "m0-5.gguf").open("r+b"):
        kept = {one.group.label: one.kept for one in reclaim(registry, groups_at(home))}
    assert [str(reason) for reason in kept.values() if reason] == [
        f"{home / 'plain' / 'm0-5.gguf'} is open for writing in another program"
    ]
    list(restore(registry))
    ollama = home / ".ollama" / "models"
    broken = put(ollama / "manifests" / "registry.ollama.ai" / "x" / "y" / "z", b"not JSON")
    list(reclaim(registry, groups_at(home)))
    left = {path for path in tree(home) if "blobs" in path and path.startswith(".ollama")}
    assert left == {path for path in before if "blobs" in path and path.startswith(".ollama")}, "it may need them"
    broken.unlink()
    list(restore(registry))
    assert {path: values[0] for path, values in tree(home).items()} == {
        path: values[0] for path, values in before.items()
    }


KILLS = 30


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing(registry: LocalRegistry, tmp_path: Path) -> None:
    """Install, reclaim and restore 20 files in processes that are killed; then let each end, and compare every file."""
    home = tmp_path / "user"
    lay_out(home, seeds=4)
    before = tree(home)
    place = os.environ | {"HOME": str(home), "ORGAN_HOME": registry.location, "OLLAMA_MODELS": ""}
    options = ["--ollama", "--hf-cache", "--lmstudio", str(home / "plain")]
    plans = {
        "reclaim": ["reclaim", *options, "--yes"],
        "restore": ["restore"],
        "install": ["install", "library/base0", "--to", "ollama", "--as", "copy"],
        "uninstall": ["uninstall", "library/base0"],
    }

    def started(words: list[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "organs.cli", *words]
        return subprocess.Popen(command, env=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finished(words: list[str]) -> float:
        begin = time.monotonic()
        out, err = (process := started(words)).communicate(timeout=120)
        assert process.returncode == 0, (out, err)
        return time.monotonic() - begin

    took = {name: finished(plans[name]) for name in plans}
    rng = random.Random(52)
    killed = 0
    for number in range(10 * KILLS):
        name = list(plans)[number % len(plans)]
        process = started(plans[name])
        try:
            process.wait(rng.uniform(0.2, 0.95) * took[name])
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
        process.communicate()
        read_ollama(home / ".ollama" / "models")  # no manifest without its blobs
        if killed == KILLS:
            break
    assert killed == KILLS
    time.sleep(LEFT_SECONDS)
    if installed_models(registry):
        finished(plans["uninstall"])
    finished(plans["restore"])
    assert tree(home) == before
    assert give_back(registry) == []
    assert tree(home) == before
