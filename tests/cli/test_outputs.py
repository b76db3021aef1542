"""What commands write: an existing file or folder is kept, and an interruption or a full disk leaves nothing."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pytest

from organs.registry.local import LocalRegistry
from organs.registry.store.files import Files
from tests.cli.in_process import OrganCommand
from tests.cli.parents import Parents
from tests.small_models import row_counts

WRITERS = {
    "a model": "assemble base -o {out}/x.gguf",
    "a merged model": "assemble base -o {out}/x.gguf --merge",
    "shards": "assemble base -o {out}/x.gguf --shards 30k",
    "the file of an organ directory": "assemble {folder}/taken -o {out}/x.gguf",
    "the file of a recipe": "assemble {folder}/recipe.yaml -o {out}/x.gguf",
    "a chimera": "compose {folder}/recipe.yaml -o {out}/x.gguf --quick-look 0",
    "a lock": "compose {folder}/recipe.yaml --lock {out}/x.lock --quick-look 0",
    "an organ directory": "extract {folder}/base.gguf -o {out}/x",
    "a transplant": "transplant {folder}/base.gguf {folder}/tuned.gguf -o {out}/x.gguf",
    "a graft": "graft {folder}/base.gguf {folder}/tuned.gguf -o {out}/x",
    "a purified file": "purify {folder}/base.gguf --method fractal --blocks 1 -o {out}/x.gguf --quick-look 0",
    "a purified directory": "purify {folder}/base.gguf --method fractal --blocks 1 -o {out}/x --quick-look 0",
    "an adapter": "extract-lora tuned --base base -o {out}/x.gguf",
    "an adapter of files": "extract-lora {folder}/tuned.gguf --base {folder}/base.gguf -o {out}/x.gguf",
    "a report": "report -o {out}/x.txt",
}
MODELS = [name for name in WRITERS if name not in ("a lock", "a recipe", "a report")]
"""Those that are so large that the disk may be too small."""
PLANNED = [name for name in WRITERS if name not in ("an organ directory", "a graft", "a report")]
"""Those with --dry-run."""


@pytest.fixture(scope="module")
def place(family: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the registry of three models, a copy of it, their files, an organ directory and a recipe."""
    folder = tmp_path_factory.mktemp("writers")
    for home in ("home", "before"):
        copytree(family / "home", folder / home)
    copytree(family / "parents", folder, dirs_exist_ok=True)
    OrganCommand(folder / "home").done("extract", folder / "base.gguf", "-o", folder / "taken")
    Parents(folder).graft()
    return folder


@pytest.fixture
def organ(place: Path) -> OrganCommand:
    return OrganCommand(place / "home")


def words_of(name: str, place: Path, out: Path) -> list[str]:
    return WRITERS[name].format(folder=place, out=out).split()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", WRITERS)
def test_what_exists_is_replaced_only_with_force(name: str, organ: OrganCommand, place: Path, out: Path) -> None:
    words = words_of(name, place, out)
    organ.done(*words)
    written = contents(out)
    for path in out.iterdir():
        (path / "mine" if path.is_dir() else path).write_bytes(b"mine")
    before = contents(out)
    ended = organ(*words)
    assert ended.status == 1
    assert "already exists; --force replaces" in ended.err
    assert contents(out) == before
    organ.done(*words, "--force")
    assert contents(out) == written


@pytest.mark.parametrize("name", WRITERS)
def test_ctrl_c_leaves_no_output_and_registers_no_model_whose_file_is_missing(
    name: str, place: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    organ = OrganCommand(copytree(place / "before", tmp_path / "home"))  # other tests register the same chimera
    rename = Files.rename

    def interrupted(self: Files, source: Path, target: Path) -> None:
        if target.parent == out:
            raise KeyboardInterrupt
        rename(self, source, target)

    models = organ.done("models", "-q").lines
    monkeypatch.setattr(Files, "rename", interrupted)
    ended = organ(*words_of(name, place, out))
    assert (ended.status, list(out.iterdir())) == (130, [])
    added = set(organ.done("models", "-q").lines) - set(models)
    assert len(added) == (name in ("a lock", "a recipe")), "they are written of a chimera that is registered already"


@pytest.mark.parametrize("name", MODELS)
def test_a_disk_that_is_too_small_is_reported_before_anything_is_written(
    name: str, organ: OrganCommand, place: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = Files.free_bytes
    monkeypatch.setattr(Files, "free_bytes", lambda self, path: 1000 if path == out else free(self, path))
    ended = organ(*words_of(name, place, out))
    assert (ended.status, list(out.iterdir())) == (1, [])
    assert f"the disk of {out} is full" in ended.err


@pytest.mark.parametrize("name", PLANNED)
def test_a_dry_run_writes_and_registers_nothing(name: str, organ: OrganCommand, place: Path, out: Path) -> None:
    def counts() -> dict[str, int]:
        with LocalRegistry.open(organ.home) as registry:
            return row_counts(registry)

    before = counts()
    assert organ.done(*words_of(name, place, out), "--dry-run").out
    assert (list(out.iterdir()), counts()) == ([], before)
