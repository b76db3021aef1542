"""Models in the folders of other tools: read back by independent readers, and removed without touching other files."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir
from sqlalchemy import func, select

from organs.ingest.tools import find_tool_models, installing, sources_of
from organs.ingest.tools.installing import install, installed_models, uninstall
from organs.ingest.tools.layouts import LAYOUTS, NoInstallation, ToolFile
from organs.ingest.tools.places import ollama_folders
from organs.registry.catalog.tables import OutsideFile
from organs.registry.digest import Digest
from organs.registry.errors import BadName, Conflict, CorruptBlob, NotFound, StoreError, StoreUnwritable
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import all_blobs
from tests.compose.parents import ZOO
from tests.gguf_files import text
from tests.ingest.tool_layouts import machine, ollama_layer, ollama_manifest
from tests.ingest.tool_readers import read_lmstudio, read_ollama
from tests.small_models import ingest_file, small_model, small_shards

TEMPLATE = "{{- range .Messages }}<|{{ .Role }}|>{{ .Content }}{{ end }}\n"
CONFIG = {"model_format": "gguf", "renderer": "tiny-3", "parser": "tiny-3", "requires": "0.12.0"}


def add(registry: LocalRegistry, folder: Path, name: str, seed: int = 0, **more: object) -> bytes:
    data = small_model(name.partition("/")[2], seed=seed, **more)
    path = folder / f"{name.replace('/', '-')}.gguf"
    path.write_bytes(data)
    ingest_file(registry, path, name)
    return data


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def lay_out_base(home: Path, data: bytes) -> Path:
    """Lay out Ollama's folder with one model that has everything that Ollama keeps; return the folder."""
    ollama = home / ".ollama" / "models"
    layers = [
        ollama_layer(ollama, "model", data),
        ollama_layer(ollama, "template", TEMPLATE.encode()),
        ollama_layer(ollama, "system", b"  Be brief.\n"),
        ollama_layer(ollama, "params", b'{"stop":["<|end|>"],"temperature":0.5}'),
        ollama_layer(ollama, "messages", b'[{"role":"user","content":"hi"}]'),
        ollama_layer(ollama, "license", b"License A\n"),
        ollama_layer(ollama, "license", b"Use policy\n"),
    ]
    path = ollama_manifest(ollama, "registry.ollama.ai/library/base/latest", *layers)
    config = ollama_layer(ollama, "config", json.dumps(CONFIG).encode())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"config": config}))
    return ollama


def ingest_ollama(registry: LocalRegistry, home: Path) -> None:
    from organs.ingest.service import ingest_all

    for outcome in ingest_all(registry, sources_of(find_tool_models(machine(home), ["ollama"]))):
        assert outcome.report is not None, outcome.error


@pytest.mark.parametrize("own_template", [False, True], ids=["inherited", "own"])
def test_a_chimera_goes_back_to_ollama_with_all_that_belongs_to_its_base(
    registry: LocalRegistry, tmp_path: Path, own_template: bool
) -> None:
    ollama = lay_out_base(tmp_path, small_model("base", seed=1))
    before = files_below(ollama)
    ingest_ollama(registry, tmp_path)
    add(registry, tmp_path, "me/donor", seed=2)
    recipe = registry.compose("library/base").graft("me/donor", type="organ").named("me/mix")
    if own_template:
        recipe = recipe.metadata("tokenizer.chat_template", "{{ messages[0].content }}")
    recipe.plan().accepting_all().register()
    done = install(registry, "me/mix", "ollama", machine(tmp_path))
    assert (done.name, done.command) == ("me/mix:latest", "ollama run me/mix:latest")
    models = read_ollama(ollama)
    assert set(models) == {"registry.ollama.ai/library/base:latest", "registry.ollama.ai/me/mix:latest"}
    base, mix = models["registry.ollama.ai/library/base:latest"], models["registry.ollama.ai/me/mix:latest"]
    registry.assemble("me/mix", tmp_path / "copy.gguf")
    assert mix.model == (tmp_path / "copy.gguf").read_bytes()
    assert (mix.system, mix.licenses[:2]) == (base.system, base.licenses)
    template = (None, None, None) if own_template else (base.template, base.params, base.messages)
    assert (mix.template, mix.params, mix.messages) == template
    renderer = {key: mix.config.get(key) for key in ("renderer", "parser", "requires")}
    assert renderer == {key: None if own_template else CONFIG[key] for key in renderer}
    assert uninstall(registry, "me/mix")[0].kept == ()
    assert files_below(ollama) == before
    page = registry.model("me/mix")
    assert not {"system", "messages"} & {item.kind for item in page.texts}, "they stay on this machine"


def test_an_adapter_is_a_layer_on_its_base_and_shared_blobs_stay_while_they_are_needed(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for file in ("Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-LoRA-v1.0-F32"):
        ingest_file(registry, ZOO / f"{file}.gguf", f"zoo/{file}")
    place, ollama = machine(tmp_path), tmp_path / ".ollama" / "models"
    first = install(registry, "zoo/Zoo-A-2M-v1.0-F16", "ollama", place, "Base")
    second = install(registry, "zoo/Zoo-A-2M-Code-LoRA-v1.0-F32", "ollama", place, "me/coder:lora")
    base, coder = (ZOO / f"{file}.gguf" for file in ("Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-LoRA-v1.0-F32"))
    assert first.written_bytes > base.stat().st_size > second.written_bytes
    assert uninstall(registry, "zoo/Zoo-A-2M-v1.0-F16")[0].freed_bytes < 2000, "the adapter needs the base"
    (model,) = read_ollama(ollama).values()
    assert (model.model, model.adapters) == (base.read_bytes(), [coder.read_bytes()])
    assert installed_models(registry)[0].name == "me/coder:lora"
    uninstall(registry, "zoo/Zoo-A-2M-Code-LoRA-v1.0-F32", "ollama", "me/coder:lora")
    assert files_below(ollama) == {}
    with pytest.raises(NoInstallation, match="merge it into its base"):
        install(registry, "zoo/Zoo-A-2M-Code-LoRA-v1.0-F32", "lmstudio", place)


def test_the_hugging_face_tools_and_lm_studio_read_what_was_installed(registry: LocalRegistry, tmp_path: Path) -> None:
    place = machine(tmp_path)
    data = {name: add(registry, tmp_path, f"me/{name}", seed) for seed, name in enumerate(("tiny-Q8_0", "tiny-F16"))}
    add(registry, tmp_path, "me/mmproj-tiny-F16", 5, more=[text("general.type", "mmproj")])
    (tmp_path / "shards").mkdir()
    for name, shard in small_shards().items():
        (tmp_path / "shards" / name).write_bytes(shard)
    ingest_file(registry, tmp_path / "shards", "me/split-Q8_0")
    for name in ("tiny-Q8_0", "tiny-F16", "split-Q8_0"):
        install(registry, f"me/{name}", "hf", place)
        install(registry, f"me/{name}", "lmstudio", place)
    cache = tmp_path / ".cache" / "huggingface" / "hub"
    for name, expected in data.items():
        path = hf_hub_download("me/tiny", f"{name}.gguf", cache_dir=cache, local_files_only=True)
        assert Path(path).read_bytes() == expected
    scanned = scan_cache_dir(cache)
    assert (scanned.warnings, {repo.repo_id for repo in scanned.repos}) == ([], {"me/tiny", "me/split"})
    (revision,) = next(repo.revisions for repo in scanned.repos if repo.repo_id == "me/tiny")
    names = {"tiny-Q8_0.gguf", "tiny-F16.gguf", "mmproj-tiny-F16.gguf"}
    assert ({file.file_name for file in revision.files}, revision.refs) == (names, {"main"})
    studio = read_lmstudio(tmp_path / ".lmstudio" / "models")
    assert {name: studio[f"me/tiny-GGUF/{name}.gguf"] for name in data} == data
    assert sorted(name for name in studio if "split" in name)[0] == "me/split-GGUF/split-Q8_0-00001-of-00004.gguf"
    found = {str(source.name) for source in sources_of(find_tool_models(place, ["hf-cache", "lmstudio"]))}
    assert found == {"me/tiny-Q8_0", "me/tiny-F16", "me/mmproj-tiny-F16", "me/split-Q8_0"}
    uninstall(registry, "me/tiny-F16")
    assert hf_hub_download("me/tiny", "tiny-Q8_0.gguf", cache_dir=cache, local_files_only=True)
    for name in ("tiny-Q8_0", "split-Q8_0"):
        uninstall(registry, f"me/{name}")
    assert files_below(cache) == files_below(tmp_path / ".lmstudio") == {}


@pytest.mark.parametrize("tool", LAYOUTS)
def test_files_of_others_are_never_replaced_and_own_ones_follow_the_model(
    tool: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    home = tmp_path / "user"
    place = machine(home)
    add(registry, tmp_path, "me/tiny", 1)
    install(registry, "me/tiny", tool, place)
    installed = files_below(home)
    assert install(registry, "me/tiny", tool, place).written_bytes == 0
    data = add(registry, tmp_path, "me/tiny", 2)
    assert registry.model("me/tiny").name == "me/tiny@2"
    assert install(registry, "me/tiny", tool, place).replaced == "me/tiny@1"
    stored = [path for path, found in files_below(home).items() if found == data]
    assert len(stored) == (2 if tool in ("hf", "llama-cpp") else 1), "a link and its blob are one file"
    assert len(files_below(home)) <= len(installed) + 1, "the older version is gone"
    uninstall(registry, "me/tiny@2")
    assert files_below(home) == {}
    for path in installed:
        if "blobs" not in path:
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_bytes(b"of another program")
    before = files_below(home)
    with pytest.raises(Conflict, match="not from this registry"):
        install(registry, "me/tiny", tool, place)
    assert files_below(home) == before
    with pytest.raises(NotFound):
        uninstall(registry, "me/tiny")


@pytest.mark.parametrize("version", [1, 2], ids=["new", "newer version"])
@pytest.mark.parametrize("tool", ["ollama", "hf"])
def test_what_another_program_writes_during_an_installation_stays(
    tool: str, version: int, registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = machine(tmp_path)
    for number in range(1, version):
        add(registry, tmp_path, "me/tiny", number)
        install(registry, "me/tiny", tool, place)
    add(registry, tmp_path, "me/tiny", version)
    head = Path(install(registry, "me/tiny", tool, place, dry_run=True).files[-1])
    write_file = installing.place_file

    def meanwhile(*values: Any, **options: Any) -> Digest:
        digest = write_file(*values, **options)
        head.unlink(missing_ok=True)
        head.parent.mkdir(parents=True, exist_ok=True)
        head.write_bytes(b"of another program")
        return digest

    monkeypatch.setattr(installing, "place_file", meanwhile)
    with pytest.raises(Conflict, match="not from this registry"):
        install(registry, "me/tiny", tool, place)
    assert head.read_bytes() == b"of another program"
    head.unlink()
    os.removedirs(head.parent)
    look = installing.unwritten_parts

    def look_and_write(registry: LocalRegistry, parts: Sequence[ToolFile]) -> list[ToolFile]:
        missing = look(registry, parts)
        if len(parts) == 1 and missing and missing[0].path == head:  # after the last look at it
            head.parent.mkdir(parents=True, exist_ok=True)
            head.write_bytes(b"of another program")
        return missing

    monkeypatch.setattr(installing, "place_file", write_file)
    monkeypatch.setattr(installing, "unwritten_parts", look_and_write)
    with pytest.raises(StoreError, match="exists"):
        install(registry, "me/tiny", tool, place)
    assert head.read_bytes() == b"of another program"


def test_a_file_that_is_edited_while_the_next_one_is_written_is_not_an_own_one(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, shard in small_shards().items():
        (tmp_path / name).write_bytes(shard)
    ingest_file(registry, tmp_path, "me/split")
    written, write_file = list[Path](), installing.place_file

    def meanwhile(*values: Any, **options: Any) -> Digest:
        if len(written) == 1:
            written[0].write_bytes(b"edited")
        written.append(values[2])
        return write_file(*values, **options)

    monkeypatch.setattr(installing, "place_file", meanwhile)
    install(registry, "me/split", tmp_path / "out", machine(tmp_path))
    (removal,) = uninstall(registry, "me/split")
    assert removal.kept == (f"{written[0]} stays, and is yours from now on: it was changed after it was installed",)
    assert files_below(tmp_path / "out") == {written[0].name: b"edited"}


@pytest.mark.parametrize("name", ["me/blobs", "me/refs"])
def test_a_model_can_be_called_as_a_folder_of_blobs(name: str, registry: LocalRegistry, tmp_path: Path) -> None:
    place = machine(tmp_path)
    for seed, model in enumerate(("me/tiny", "me/other")):
        add(registry, tmp_path, model, seed)
        install(registry, model, "ollama", place, name if model == "me/tiny" else None)
    models = {f"registry.ollama.ai/{name}:latest", "registry.ollama.ai/me/other:latest"}
    assert set(read_ollama(tmp_path / ".ollama" / "models")) == models
    assert uninstall(registry, "me/tiny")[0].kept == ()
    assert set(read_ollama(tmp_path / ".ollama" / "models")) == {"registry.ollama.ai/me/other:latest"}


def test_a_name_that_is_too_long_for_the_disk_leaves_nothing_behind(registry: LocalRegistry, tmp_path: Path) -> None:
    add(registry, tmp_path, "me/tiny")
    (tmp_path / "out").mkdir()
    with pytest.raises(StoreError, match="too long"):
        install(registry, "me/tiny", tmp_path / "out", machine(tmp_path), "x" * 300)
    assert install(registry, "me/tiny", tmp_path / "out", machine(tmp_path)).written_bytes > 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tiny.gguf"]


def test_the_folder_of_a_service_that_cannot_be_read_is_still_the_folder_of_ollama(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(registry, tmp_path, "me/tiny")
    place, is_dir = machine(tmp_path), Path.is_dir
    service = ollama_folders(place)[1]

    def refused(path: Path) -> bool:
        if path.is_relative_to(service):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refused)
    done = install(registry, "me/tiny", "ollama", place, dry_run=True)
    assert all(Path(path).is_relative_to(service) for path in done.files)
    with pytest.raises(StoreUnwritable, match="Permission denied"):
        install(registry, "me/tiny", "ollama", place)


def test_what_was_installed_into_a_relative_folder_is_found_from_another_one(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(registry, tmp_path, "me/tiny")
    place = machine(tmp_path, {"OLLAMA_MODELS": "../here/models", "HF_HUB_CACHE": "hub"})
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    for target in ("ollama", "hf", Path("../link/../here/out")):
        assert install(registry, "me/tiny", target, place).written_bytes > 0
    blobs = len(os.listdir("models/blobs"))
    add(registry, tmp_path, "me/tiny", 2)
    install(registry, "me/tiny", "ollama", place)
    assert len(os.listdir("models/blobs")) == blobs, "the older version is gone"
    assert uninstall(registry, "me/tiny", Path("../here/out"))
    monkeypatch.chdir(tmp_path)
    assert all(removal.freed_bytes for removal in uninstall(registry, "me/tiny"))
    assert files_below(tmp_path / "here") == {}


def test_a_changed_file_stays_and_a_damaged_store_leaves_no_manifest(registry: LocalRegistry, tmp_path: Path) -> None:
    place, ollama = machine(tmp_path), tmp_path / ".ollama" / "models"
    ingest_file(registry, ZOO / "Zoo-C-1M-v1.0-Q8_0.gguf", "me/tiny")
    done = install(registry, "me/tiny", tmp_path / "folder", place, "renamed")
    assert done.files == (str(tmp_path / "folder" / "renamed.gguf"),)
    ingest_file(registry, ZOO / "Zoo-C-1M-v1.0-Q8_0.gguf", "me/same")
    same = install(registry, "me/same", tmp_path / "folder", place, "renamed.gguf", dry_run=True)
    assert (same.files, same.written_bytes, same.replaced) == (done.files, 0, None)
    Path(done.files[0]).write_bytes(b"edited")
    (removal,) = uninstall(registry, "me/tiny", tmp_path / "folder", "renamed.gguf")
    assert (removal.removed, len(removal.kept), Path(done.files[0]).read_bytes()) == ((), 1, b"edited")
    with registry.catalog.reading() as session:
        assert session.scalar(select(func.count()).select_from(OutsideFile)) == 0
    blobs = [blob for blob in all_blobs(registry.catalog) if blob.file is not None]
    path = registry.blobs.backend.path(blobs[0].file)
    os.chmod(path, 0o600)
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(CorruptBlob):
        install(registry, "me/tiny", "ollama", place)
    assert not list(ollama.glob("manifests/**/tiny/*"))


def test_what_ollama_cannot_run_and_names_that_it_refuses_get_a_sentence(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    place = machine(tmp_path)
    add(registry, tmp_path, "me/tiny")
    for name in ("a/b/c/d", "x:y:z", "-x", "a.b/c", "x" * 81):
        with pytest.raises(BadName, match="name of Ollama"):
            install(registry, "me/tiny", "ollama", place, name)
    (tmp_path / "shards").mkdir()
    for name, shard in small_shards().items():
        (tmp_path / "shards" / name).write_bytes(shard)
    ingest_file(registry, tmp_path / "shards", "me/split-Q8_0")
    with pytest.raises(NoInstallation, match="Ollama takes one"):
        install(registry, "me/split-Q8_0", "ollama", place)
    install(registry, "me/tiny", "ollama", place, "Me/Tiny")
    again = install(registry, "me/tiny", "ollama", place, "me/tiny")
    assert again.name == "Me/Tiny:latest", "Ollama ignores upper and lower case"
    assert read_ollama(tmp_path / ".ollama" / "models")["registry.ollama.ai/Me/Tiny:latest"].licenses == [
        "apache-2.0\n"
    ]
