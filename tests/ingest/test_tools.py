"""Models of other tools: where they are, their names, their texts, and folders that are damaged or hostile."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from organs.ingest.inventory import take_inventory
from organs.ingest.service import IngestReport, always, ingest_all, ingest_model
from organs.ingest.sources import ModelSource
from organs.ingest.tools import FINDERS, find_tool_models, sources_of
from organs.ingest.tools.facts import add_facts, license_of
from organs.ingest.tools.findings import Findings, name_in_repository
from organs.ingest.tools.ollama import TEXT_MAX_BYTES, OllamaName
from organs.ingest.tools.places import Machine, gpt4all_folders, lmstudio_folders, ollama_folders
from organs.registry.catalog.queries.administration import model_in_any_state
from organs.registry.catalog.register.accounts import add_contributor
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.register.model_changes import remove_model
from organs.registry.catalog.tables import EventRow, KnownFile, ModelRow, OtherName
from organs.registry.catalog.vocabulary import OTHER_NAMES_MAX, RUNTIME_TEXT_MAX, Action
from organs.registry.compose.licenses import license_problem
from organs.registry.entities.model import RuntimeText
from organs.registry.errors import BadSource, NameTaken, NotFound, Removed, SeveralModels
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName, parse_model_name
from organs.registry.upkeep import all_blobs, set_aside, sweep
from tests.gguf_files import file_bytes, text, unsigned
from tests.ingest.one_source import ingest_path
from tests.ingest.tool_layouts import (
    APACHE,
    COMMIT,
    ZOO_NAMES,
    hub_repository,
    lay_out_zoo,
    machine,
    ollama_layer,
    ollama_manifest,
    put,
)
from tests.related_models import related_tensors
from tests.small_models import block_tensors, small_model, small_shards

MIT = "Permission is hereby granted, free of charge, to any person obtaining a copy"


def found(place: Machine, tool: str) -> list[Findings]:
    return [part for part in find_tool_models(place, [tool]) if part.is_there]


def names(place: Machine, tool: str) -> list[str]:
    return sorted(str(source.name) for source in sources_of(found(place, tool)))


def problems(place: Machine, tool: str) -> list[str]:
    return [sentence for part in found(place, tool) for sentence in part.problems]


@pytest.fixture
def ollama(tmp_path: Path) -> Path:
    return tmp_path / ".ollama" / "models"


def blob_of(models: Path, layer: Mapping[str, object]) -> Path:
    """Return the file of a layer below Ollama's folder `models`."""
    return models / "blobs" / str(layer["digest"]).replace(":", "-")


# Places.


def test_ollama_is_found_in_its_variable_or_in_the_home_and_the_folder_of_its_service(tmp_path: Path) -> None:
    assert ollama_folders(Machine(tmp_path, {}, "linux")) == [
        tmp_path / ".ollama" / "models",
        Path("/usr/share/ollama/.ollama/models"),
    ]
    assert ollama_folders(Machine(tmp_path, {}, "darwin")) == [tmp_path / ".ollama" / "models"]
    assert ollama_folders(Machine(tmp_path, {"OLLAMA_MODELS": "/data/ollama"}, "linux")) == [Path("/data/ollama")]


@pytest.mark.parametrize(
    ("tool", "variables", "folder"),
    [
        ("hf-cache", {}, ".cache/huggingface/hub"),
        ("hf-cache", {"XDG_CACHE_HOME": "cache"}, "cache/huggingface/hub"),
        ("hf-cache", {"HF_HOME": "hf"}, "hf/hub"),
        ("hf-cache", {"HUGGINGFACE_HUB_CACHE": "old", "HF_HOME": "hf"}, "old"),
        ("hf-cache", {"HF_HUB_CACHE": "new", "HUGGINGFACE_HUB_CACHE": "old"}, "new"),
        pytest.param("llama-cpp", {"HF_HOME": "hf"}, "hf/hub", id="newer llama.cpp in the cache of the hub"),
        ("llama-cpp", {}, ".cache/llama.cpp"),
        ("llama-cpp", {"XDG_CACHE_HOME": "xdg"}, "xdg/llama.cpp"),
        ("llama-cpp", {"LLAMA_CACHE": "own"}, "own"),
        ("llama-cpp on darwin", {}, "Library/Caches/llama.cpp"),
    ],
)
def test_a_cache_is_found_by_its_variables_and_its_platform(
    tool: str, variables: dict[str, str], folder: str, tmp_path: Path
) -> None:
    hub_repository(tmp_path / folder, "acme/tiny", {"tiny-F16.gguf": b"x"})
    name, _, platform = tool.partition(" on ")
    place = machine(tmp_path, {key: str(tmp_path / value) for key, value in variables.items()}, platform or "linux")
    assert names(place, name) == ["acme/tiny-F16"]


def test_lm_studio_is_found_by_its_pointer_its_settings_and_its_older_folder(tmp_path: Path) -> None:
    chosen, moved = tmp_path / "chosen", tmp_path / "moved"
    put(tmp_path / ".lmstudio-home-pointer", f"{moved}\n".encode())
    put(moved / "settings.json", json.dumps({"downloadsFolder": str(chosen)}).encode())
    put(chosen / "acme" / "tiny-GGUF" / "tiny-Q8_0.gguf", b"x")
    put(moved / ".internal" / "bundled-models" / "nomic" / "embed-GGUF" / "embed-F16.gguf", b"y")
    put(tmp_path / ".cache" / "lm-studio" / "models" / "old" / "one" / "one.gguf", b"z")
    assert names(machine(tmp_path), "lmstudio") == ["acme/tiny-Q8_0", "nomic/embed-F16", "old/one"]


@pytest.mark.parametrize(
    "settings", [b"", b"[]", b'{"downloadsFolder": 5}', b"{" * 9000, b'{"downloadsFolder": "../x"}']
)
def test_settings_of_lm_studio_that_make_no_sense_leave_its_default_folder(settings: bytes, tmp_path: Path) -> None:
    put(tmp_path / ".lmstudio" / "settings.json", settings)
    os.mkfifo(tmp_path / ".lmstudio-home-pointer")
    assert lmstudio_folders(machine(tmp_path))[0] == tmp_path / ".lmstudio" / "models"


def test_gpt4all_is_found_by_its_settings_its_platform_and_its_python_package(tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    put(tmp_path / ".config" / "nomic.ai" / "GPT4All.ini", f"[General]\nmodelPath={chosen}/\nx=%1\n".encode())
    put(chosen / "tiny.gguf", b"x")
    put(chosen / "incomplete-big.gguf", b"y")
    put(chosen / "gpt4all-gpt-4.rmodel", b"z")
    put(tmp_path / ".cache" / "gpt4all" / "other.gguf", b"w")
    assert names(machine(tmp_path), "gpt4all") == ["local/other", "local/tiny"]
    darwin = gpt4all_folders(machine(tmp_path, platform="darwin"))
    assert darwin[0] == tmp_path / "Library" / "Application Support" / "nomic.ai" / "GPT4All"


# Names.


@pytest.mark.parametrize(
    ("manifest", "name", "shown"),
    [
        ("registry.ollama.ai/library/llama3/8b", "library/llama3-8b", "llama3:8b"),
        ("registry.ollama.ai/library/llama3/latest", "library/llama3", "llama3:latest"),
        ("registry.ollama.ai/jane/tiny/q4_0", "jane/tiny-q4_0", "jane/tiny:q4_0"),
        ("hf.co/acme/Tiny-1B-GGUF/Q4_K_M", "acme/Tiny-1B-Q4_K_M", "hf.co/acme/Tiny-1B-GGUF:Q4_K_M"),
        ("models.example:5000/team/a/b", "models.example-5000-team/a-b", "models.example:5000/team/a:b"),
        ("registry.ollama.ai/models/x/y", "by-models/x-y", "models/x:y"),
    ],
)
def test_a_model_of_ollama_is_named_by_its_manifest(manifest: str, name: str, shown: str) -> None:
    parsed = OllamaName(*manifest.split("/"))
    assert (str(parsed.model_name), str(parsed)) == (name, shown)
    assert parse_model_name(str(parsed.model_name)) == parsed.model_name


@pytest.mark.parametrize(
    ("repository", "stem", "name"),
    [
        ("Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0", "Qwen3-0.6B-Q8_0"),
        ("tiny-GGUF", "model", "tiny"),
        ("tiny-GGUF", "ggml-model-q4_0", "tiny-Q4_0"),
        ("tiny-GGUF", "mmproj-F16", "tiny-mmproj-F16"),
        ("tiny-GGUF", "mmproj-tiny-F16", "mmproj-tiny-F16"),
        ("GGUF", "model", "GGUF"),
    ],
)
def test_a_file_whose_name_says_nothing_is_named_after_its_repository(repository: str, stem: str, name: str) -> None:
    assert name_in_repository(repository, stem) == name


def test_a_flat_file_of_llama_cpp_is_named_by_the_manifest_or_the_metadata_beside_it(tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "llama.cpp"
    put(cache / "acme_tiny_v2_tiny_v2-Q8_0.gguf", b"1")
    put(cache / "manifest=acme=tiny_v2=latest.json", b"not read")
    put(cache / "lab_x_x-F16.gguf", b"2")
    put(cache / "lab_x_x-F16.gguf.json", b'{"url": "https://huggingface.co/lab/x/resolve/main/x-F16.gguf"}')
    put(cache / "bob_Big-GGUF_Q4_K_M_Big-Q4_K_M.gguf", b"3")
    put(cache / "some_file.gguf", b"4")
    put(cache / "more" / "below.gguf", b"5")
    put(cache / "x.gguf.downloadInProgress", b"6")
    assert names(machine(tmp_path), "llama-cpp") == [
        *("acme/tiny_v2-Q8_0", "bob/Q4_K_M_Big-Q4_K_M", "lab/x-F16", "local/some_file")
    ]


def test_complete_files_of_main_revisions_in_the_hub_cache_are_models_of_their_owners(tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "huggingface" / "hub"
    hub_repository(cache, "acme/tiny", {"tiny-F16.gguf": b"old", "gone-F16.gguf": b"only in the old one"}, "a" * 40)
    hub_repository(cache, "acme/tiny", {"tiny-F16.gguf": b"new", "config.json": b"{}"}, "b" * 40)
    loading = hub_repository(cache, "models/stories--x", {"UD/stories.gguf": b"whole", "more.gguf": b"not yet"})
    (loading / "blobs" / hashlib.sha256(b"not yet").hexdigest()).rename(loading / "blobs" / "d.incomplete")
    put(loading / "blobs" / "etag", b"named by no digest")
    (loading / "snapshots" / COMMIT / "odd.gguf").symlink_to("../../blobs/etag")
    put(cache / "datasets--a--b" / "snapshots" / "x" / "data.gguf", b"no model")
    sources = {str(source.name): source for source in sources_of(found(machine(tmp_path), "hf-cache"))}
    assert sorted(sources) == ["acme/gone-F16", "acme/tiny-F16", "by-models/odd", "by-models/stories"]
    assert [len(sources[name].digests) for name in sorted(sources)] == [1, 1, 0, 1]
    (link,) = sources["acme/tiny-F16"].paths
    assert (link.name, link.read_bytes()) == ("tiny-F16.gguf", b"new"), "not the blob, which has no name"


def test_shards_of_tools_are_one_model(tmp_path: Path) -> None:
    shards = small_shards()
    cache = tmp_path / ".cache" / "huggingface" / "hub"
    hub_repository(cache, "a/b", {f"Q4/{name}": data for name, data in shards.items()})
    for name, data in shards.items():
        put(tmp_path / ".cache" / "llama.cpp" / f"a_b-GGUF_{name}", data)
    for tool in ("hf-cache", "llama-cpp"):
        first, *same = sources_of(found(machine(tmp_path), tool))
        assert (str(first.name), len(first.paths)) == ("a/m", len(shards))
        assert len(first.digests) == (len(shards) if tool == "hf-cache" else 0)
        assert len(same) == (tool == "llama-cpp"), "it uses the cache of the hub too"


# Damaged and hostile folders.


def hostile_manifests(models: Path) -> Iterator[tuple[str, str]]:
    """Write manifests that cannot be used; yield the name of each with a part of the sentence about it."""
    good = ollama_layer(models, "model", b"bytes")
    root = models / "manifests" / "registry.ollama.ai" / "library"
    for tag, data, part in (
        ("rubbish", b"\xff\x00 not JSON", "not the JSON of a manifest"),
        ("list", b"[1, 2]", "not the JSON of a manifest"),
        ("deep", b'{"layers": ' + b"[" * 200_000, "not the JSON of a manifest"),
        ("huge", b" " * (TEXT_MAX_BYTES + 1), "has more than 1,048,576 bytes"),
        ("layers", json.dumps({"layers": [good] * 5000}).encode(), "not the JSON of a manifest"),
    ):
        put(root / tag / "x", data)
        yield f"{tag}:x", part
    for tag, layer, part in (
        ("traversal", good | {"digest": "sha256:../../../../etc/passwd"}, "is not a SHA-256"),
        ("upper", good | {"digest": str(good["digest"]).upper()}, "is not a SHA-256"),
        ("missing", good | {"digest": "sha256:" + "0" * 64}, "no such file"),
        ("shorter", good | {"size": 6}, "has 5 bytes, and its manifest says 6"),
    ):
        ollama_manifest(models, f"registry.ollama.ai/library/{tag}/x", layer)
        yield f"{tag}:x", part
    dangling = ollama_layer(models, "model", b"other")
    blob = blob_of(models, dangling)
    blob.unlink()
    blob.symlink_to("nowhere")
    ollama_manifest(models, "registry.ollama.ai/library/dangling/x", dangling)
    yield "dangling:x", "a link to a file that is not there"
    (root / "loop").mkdir()
    (root / "loop" / "x").symlink_to("x")
    yield f"{root / 'loop' / 'x'}", "Too many levels of symbolic links"
    (root / "pipe").mkdir()
    os.mkfifo(root / "pipe" / "x")
    yield f"{root / 'pipe' / 'x'}", "not a file"
    put(models / "manifests" / "too" / "short", b"{}")
    yield f"{models / 'manifests' / 'too' / 'short'}", "not the name of a model"


def test_each_manifest_that_cannot_be_used_gets_a_sentence_and_the_others_are_found(
    ollama: Path, tmp_path: Path
) -> None:
    expected = list(hostile_manifests(ollama))
    ollama_manifest(ollama, "registry.ollama.ai/library/good/x", ollama_layer(ollama, "model", b"good"))
    (ollama / "manifests" / "again").symlink_to(ollama / "manifests")  # a loop of folders
    assert names(machine(tmp_path), "ollama") == ["library/good-x"]
    sentences = problems(machine(tmp_path), "ollama")
    for name, part in expected:
        assert [sentence for sentence in sentences if name in sentence and part in sentence], (name, part, sentences)
    assert len(sentences) == len(expected)


def test_a_model_without_weights_in_a_file_gets_a_note(ollama: Path, tmp_path: Path) -> None:
    ollama_manifest(ollama, "registry.ollama.ai/library/cloud/x", ollama_layer(ollama, "template", b"{{ . }}"))
    manifest = ollama_manifest(ollama, "registry.ollama.ai/library/gpt-oss/120b-cloud")
    manifest.write_text(manifest.read_text().replace("[]", "null"))  # as Ollama writes it
    ollama_manifest(ollama, "registry.ollama.ai/library/mlx/x", ollama_layer(ollama, "tensor", b"weights"))
    (part,) = found(machine(tmp_path), "ollama")
    assert part.notes == (
        "Ollama cloud:x: it has no weights here",
        "Ollama gpt-oss:120b-cloud: it has no weights here",
        "Ollama mlx:x: its weights are separate tensors, not a GGUF file",
    )
    assert not part.problems


def test_broken_links_of_other_tools_get_a_sentence_each(tmp_path: Path) -> None:
    studio = tmp_path / ".lmstudio" / "models" / "acme" / "tiny-GGUF"
    put(studio / "good-F16.gguf", b"x")
    (studio / "gone-F16.gguf").symlink_to("nowhere.gguf")
    (studio / "up").symlink_to(tmp_path)
    assert names(machine(tmp_path), "lmstudio") == ["acme/good-F16"]
    assert problems(machine(tmp_path), "lmstudio") == [
        f"{studio / 'gone-F16.gguf'}: a link to a file that is not there"
    ]


def test_a_folder_without_permission_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool, folder in {
        "ollama": ".ollama/models/manifests",
        "lmstudio": ".lmstudio/models",
        "llama-cpp": ".cache/llama.cpp",
        "hf-cache": ".cache/huggingface/hub",
        "gpt4all": ".cache/gpt4all",
    }.items():
        (tmp_path / folder).mkdir(parents=True)

        def refuse(path: object = ".", *_: object, **__: object) -> object:
            raise PermissionError(13, "Permission denied", str(path))

        with monkeypatch.context() as patched:  # root may read everything
            for name in ("scandir", "listdir"):
                patched.setattr(os, name, refuse)
            assert f"{tmp_path / folder}: Permission denied" in problems(machine(tmp_path), tool), tool


@pytest.mark.parametrize("kind", ["template", "license"])
def test_a_text_that_is_too_long_or_not_what_its_name_says_is_left_out(kind: str, ollama: Path, tmp_path: Path) -> None:
    model = ollama_layer(ollama, "model", b"bytes")
    long = ollama_layer(ollama, kind, b"x" * (TEXT_MAX_BYTES + 1))
    changed = ollama_layer(ollama, kind, b"before")
    blob_of(ollama, changed).write_bytes(b"after!")
    binary = [ollama_layer(ollama, kind, data) for data in (b"bad \xff", b"bad \0")]
    good = ollama_layer(ollama, kind, " gööd\n".encode())
    ollama_manifest(ollama, "registry.ollama.ai/library/m/x", model, long, changed, *binary, good)
    (part,) = found(machine(tmp_path), "ollama")
    assert [item.text for item in part.sources[0].texts] == [" gööd\n"]
    words = ("more than", "other bytes", "not a text")
    assert [[word in one for word in words].index(True) for one in part.problems] == [0, 1, 2]


# Ingests.


def ingest_tools(registry: LocalRegistry, place: Machine, *tools: str) -> list[IngestReport]:
    """Ingest what `tools` have; no model may be refused."""
    reports = []
    for outcome in ingest_all(registry, sources_of(find_tool_models(place, tools or FINDERS))):
        assert outcome.report is not None, outcome.error
        reports.append(outcome.report)
    return reports


@pytest.mark.long
def test_all_tools_give_the_right_names_and_the_second_run_adds_and_reads_nothing(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    lay_out_zoo(tmp_path)
    time.sleep(0.06)  # files that were written just before are read again
    first = ingest_tools(registry, machine(tmp_path))
    assert {report.model.partition("@")[0] for report in first if report.created} == ZOO_NAMES
    assert all(report.model.endswith("@1") for report in first)
    before = registry.figures()
    second = ingest_tools(registry, machine(tmp_path))
    assert registry.figures() == before
    assert [report.model for report in second] == [report.model for report in first]
    assert {(report.created, report.seconds) for report in second} == {(False, 0.0)}
    page = registry.model("library/zoo-a-2m-q8_0")
    assert [(item.kind, item.source) for item in page.texts] == [
        ("template", "Ollama zoo-a:2m-q8_0"),
        ("parameters", "Ollama zoo-a:2m-q8_0"),
        ("license", "Ollama zoo-a:2m-q8_0"),
    ]
    assert registry.model("me/coder-adapter").kind == "adapter"


def test_texts_of_ollama_are_kept_and_a_known_license_fills_a_missing_one(
    registry: LocalRegistry, ollama: Path, tmp_path: Path
) -> None:
    data = file_bytes([text("general.architecture", "llama"), text("general.name", "Bare")], block_tensors(1))
    layers = [
        ollama_layer(ollama, "model", data),
        ollama_layer(ollama, "system", b"Be brief."),
        ollama_layer(ollama, "license", APACHE.encode()),
    ]
    ollama_manifest(ollama, "registry.ollama.ai/library/bare/latest", *layers)
    (report,) = ingest_tools(registry, machine(tmp_path), "ollama")
    page = registry.model(report.model)
    assert (page.name, page.license) == ("library/bare@1", "apache-2.0")
    kept = [(item.kind, item.text) for item in page.texts]
    assert kept == [("license", APACHE)], "exactly, and a system prompt is private"
    assert page.files[0].name == "bare.gguf"
    assert [one.name for one in registry.models("license:apache-2.0").items] == ["library/bare@1"]


@pytest.mark.parametrize(
    ("begin", "license"),
    [
        (APACHE, "apache-2.0"),
        ("apache-2.0 AND llama3\n", "apache-2.0 AND llama3"),
        (f"MIT License\n\nCopyright (c) A\n\n{MIT}", "mit"),
        ("LLAMA 3.2 COMMUNITY LICENSE AGREEMENT\nLlama 3.2", "llama3.2"),
        (
            "This model may be used under the Apache License Version 2.0, January 2004, except on Sundays",
            "LicenseRef-This-model-may-be-used-under-the-Apache-License-9c17039c",
        ),
        (MIT + " x" * 2000, "LicenseRef-Permission-is-hereby-granted-free-of-charge-to-a-0f9375f6"),
        ("  \n§ 1: …\nNo.", "LicenseRef-1-63dae75b"),
        (" \n", None),
    ],
)
def test_a_license_is_known_by_the_beginning_of_its_text_and_any_other_gets_a_reference(
    begin: str, license: str | None
) -> None:
    policy = RuntimeText(kind="license", source="x", text="Acceptable use policy")
    text_of_it = RuntimeText(kind="license", source="x", text=begin)
    is_reference = license is not None and license.startswith("LicenseRef-")
    assert license_of([text_of_it]) == license
    assert license is None or license_problem(license) is None
    assert is_reference or license is None or license_of([policy, text_of_it]) == license
    other = RuntimeText(kind="license", source="x", text=APACHE)
    joined = ["apache-2.0"] if is_reference or license in (None, "apache-2.0") else ["apache-2.0", license]
    assert license_of([other, text_of_it]) == " AND ".join(map(str, joined))
    assert license_of([RuntimeText(kind="template", source="x", text=APACHE)]) is None


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([APACHE], "apache-2.0 AND mit"),
        ([f"MIT License\n\n{MIT}"], "mit"),
        ([f"MIT License\n\n{MIT}", APACHE], "mit AND apache-2.0"),
        (["Research license\nOnly for research."], "LicenseRef-Research-license-b86d2ff6 AND mit"),
        ([], "NOASSERTION AND mit"),
    ],
)
def test_the_license_of_an_ollama_base_counts_for_its_chimeras(
    texts: list[str], expected: str, registry: LocalRegistry, ollama: Path, tmp_path: Path
) -> None:
    header = [text("general.architecture", "llama"), unsigned("llama.block_count", 2)]
    layers = [ollama_layer(ollama, "model", file_bytes(header, related_tensors()))]
    layers += [ollama_layer(ollama, "license", item.encode()) for item in texts]
    ollama_manifest(ollama, "registry.ollama.ai/library/bare/latest", *layers)
    ingest_tools(registry, machine(tmp_path), "ollama")
    donor = file_bytes([*header, text("general.license", "mit")], related_tensors(correlation=0.99))
    ingest_path(registry, put(tmp_path / "donor.gguf", donor))
    made = registry.compose("library/bare").graft("local/donor", type="organ").plan().accepting_all().register()
    assert registry.model(made.model).license == expected


def test_many_layers_of_one_text_are_read_once_and_a_pipe_is_no_text(ollama: Path, tmp_path: Path) -> None:
    license_layer = ollama_layer(ollama, "license", b"x" * 1_000_000)
    pipe = ollama_layer(ollama, "params", b"{}")
    blob_of(ollama, pipe).unlink()
    os.mkfifo(blob_of(ollama, pipe))
    layers = [ollama_layer(ollama, "model", b"good"), *[license_layer] * 1000, pipe]
    ollama_manifest(ollama, "registry.ollama.ai/library/big/x", *layers)
    findings = list(find_tool_models(machine(tmp_path), ("ollama",)))
    (source,) = sources_of(findings)
    assert [(item.kind, len(item.text)) for item in source.texts] == [("license", RUNTIME_TEXT_MAX)]
    assert any("not a file" in problem for part in findings for problem in part.problems)


def test_bytes_that_are_not_those_of_their_digest_are_refused(
    registry: LocalRegistry, ollama: Path, tmp_path: Path
) -> None:
    layer = ollama_layer(ollama, "model", small_model())
    blob_of(ollama, layer).write_bytes(small_model(seed=1))
    ollama_manifest(ollama, "registry.ollama.ai/library/m/x", layer)
    (source,) = sources_of(found(machine(tmp_path), "ollama"))
    with pytest.raises(BadSource, match="not the one in its name"):
        ingest_model(registry, source)
    assert registry.figures().models == 0


def test_a_file_of_a_tool_is_read_again_if_it_was_changed_or_its_blobs_are_damaged(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    path = put(tmp_path / ".lmstudio" / "models" / "acme" / "tiny" / "tiny.gguf", small_model())
    time.sleep(0.06)
    (source,) = sources_of(found(machine(tmp_path), "lmstudio"))
    assert ingest_model(registry, source).created
    assert ingest_model(registry, source).seconds == 0.0
    assert set_aside(registry.catalog, list(all_blobs(registry.catalog))[-1:]) == 1
    assert ingest_model(registry, source).healed_blobs == 1
    status = path.stat()
    path.write_bytes(small_model(seed=3))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as an attacker would
    assert ingest_model(registry, source, new_version=lambda _taken: True).model == "acme/tiny@2"


# Better names.


@pytest.mark.long
def test_a_name_from_a_tool_replaces_a_digest_and_the_old_name_still_works(
    registry: LocalRegistry, ollama: Path, tmp_path: Path
) -> None:
    layer = ollama_layer(ollama, "model", small_model())
    blob = blob_of(ollama, layer)
    old = ingest_path(registry, blob).model
    assert old.startswith("local/sha256-")
    ollama_manifest(ollama, "registry.ollama.ai/library/tiny/q8_0", layer)
    (report,) = ingest_tools(registry, machine(tmp_path), "ollama")
    new = "library/tiny-q8_0@1"
    assert (report.model, report.created, report.notes) == (new, False, (f"renamed from {old}",))
    for query in ("", "tiny", f"kin:{old}"):
        assert [one.name for one in registry.models(query).items] == [new], query
    for name in (old, old.partition("@")[0]):
        assert registry.model(name).name == new
    other = put(tmp_path / blob.name, small_model(seed=5))
    with pytest.raises(NameTaken, match=new):
        ingest_path(registry, other)
    report = ingest_path(registry, other, new_version=always)
    assert report.model == f"{old.partition('@')[0]}@2", "old versions are not reused"
    assert registry.model(old).name == new


def test_a_name_that_other_bytes_have_is_not_taken_by_a_renaming(
    registry: LocalRegistry, ollama: Path, tmp_path: Path
) -> None:
    layer = ollama_layer(ollama, "model", small_model())
    old = ingest_path(registry, blob_of(ollama, layer)).model
    ingest_path(registry, put(tmp_path / "other.gguf", small_model(seed=4)), "library/tiny")
    ollama_manifest(ollama, "registry.ollama.ai/library/tiny/latest", layer)
    (report,) = ingest_tools(registry, machine(tmp_path), "ollama")
    assert report.model == old
    assert registry.model("library/tiny").files[0].name == "other.gguf"
    with pytest.raises(NotFound):
        registry.model("library/tiny@2")


# Other names.


def test_every_name_under_which_the_same_bytes_were_met_leads_to_the_model(
    registry: LocalRegistry, ollama: Path, tmp_path: Path
) -> None:
    layer = ollama_layer(ollama, "model", small_model())
    for tag in ("latest", "8b", "8b-text-q4_K_M"):
        ollama_manifest(ollama, f"registry.ollama.ai/library/tiny/{tag}", layer)
    put(tmp_path / ".lmstudio" / "models" / "acme" / "Small-GGUF" / "Small-Q4_K_M.gguf", small_model())
    ingest_tools(registry, machine(tmp_path))
    mine = put(tmp_path / "Mine-v1.0-F16.gguf", small_model())
    notes = ingest_path(registry, mine).notes
    assert notes == ("local/Mine-v1.0-F16 is another name of acme/Small-Q4_K_M@1: the same bytes",)
    page = registry.model("acme/Small-Q4_K_M")
    assert page.other_names == (
        *("library/tiny", "library/tiny-8b", "library/tiny-8b-text-q4_K_M"),
        "local/Mine-v1.0-F16",
    )
    for name in (*page.other_names, "Mine-v1.0-F16", "tiny:latest", "library/tiny:8b", "tiny", "Small-Q4_K_M", "Small"):
        assert registry.model(name).name == "acme/Small-Q4_K_M@1", name
    for query in ("", "model:Mine-v1.0-F16", "Mine-v1.0", "mine", "tiny-8b", "kin:Mine-v1.0-F16"):
        assert [one.name for one in registry.models(query).items] == [page.name], query
    compared = registry.compare("Mine-v1.0-F16", "tiny:8b")
    assert (compared.first, compared.second) == (page.name, page.name)
    before = registry.figures()
    ingest_tools(registry, machine(tmp_path))
    ingest_path(registry, mine)
    assert (registry.figures(), registry.model(page.name).other_names) == (before, page.other_names)


def test_a_name_leads_to_the_bytes_that_it_was_first_met_with(registry: LocalRegistry, tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 2)):
        path = put(tmp_path / folder / "model.gguf", small_model(seed=seed))
        ingest_path(registry, path, f"me/{folder}")
        ingest_path(registry, path)
    assert registry.model("model").name == "me/a@1"
    assert registry.model("me/b").other_names == ()
    third = put(tmp_path / "c" / "model.gguf", small_model(seed=3))
    with pytest.raises(NameTaken, match="me/a@1"):
        ingest_path(registry, third)
    assert ingest_path(registry, third, new_version=always).model == "local/model@2"
    assert registry.model("model").name == "local/model@2"
    assert registry.model("model@1").name == "me/a@1"
    assert registry.model("me/a").other_names == (), "a model has this name now"


def test_a_model_has_a_limited_number_of_other_names(registry: LocalRegistry, ollama: Path, tmp_path: Path) -> None:
    layer = ollama_layer(ollama, "model", small_model())
    for number in range(OTHER_NAMES_MAX + 20):
        ollama_manifest(ollama, f"registry.ollama.ai/library/tiny/t{number:03d}", layer)
    (report,) = ingest_tools(registry, machine(tmp_path), "ollama")
    (again,) = ingest_tools(registry, machine(tmp_path), "ollama")
    assert len(registry.model(report.model).other_names) == OTHER_NAMES_MAX
    assert again.model == report.model


def test_a_name_without_its_quantisation_means_the_only_one_or_lists_all(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for seed, name in enumerate(("tiny-F16", "tiny-Q8_0", "other-Q8_0")):
        ingest_path(registry, put(tmp_path / f"{name}.gguf", small_model(seed=seed)), f"library/{name}")
    for name in ("library/other", "other"):
        assert registry.model(name).name == "library/other-Q8_0@1"
    for name in ("library/tiny", "tiny"):
        with pytest.raises(SeveralModels) as caught:
            registry.model(name)
        assert caught.value.names == ("library/tiny-F16", "library/tiny-Q8_0")
        assert str(caught.value).endswith("can mean several models: name one of library/tiny-F16, library/tiny-Q8_0")
    newer = put(tmp_path / "newer.gguf", small_model(seed=9))
    ingest_path(registry, newer, "library/other-Q8_0", new_version=always)
    for name, version in (("other", 2), ("other-Q8_0@2", 2), ("other-Q8_0@1", 1)):
        assert registry.model(name).name == f"library/other-Q8_0@{version}"
    for name in ("library/tiny@1", "acme/other-Q8_0"):
        with pytest.raises(NotFound):
            registry.model(name)


def test_a_short_name_means_no_model_of_another_account(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_path(registry, put(tmp_path / "tiny.gguf", small_model()), "eve/tiny")
    assert registry.model("tiny").name == "eve/tiny@1"
    with registry.catalog.writing() as session:
        eve = add_contributor(session, "eve")
        session.execute(update(ModelRow).values(contributor_id=eve.id))
    with pytest.raises(NotFound, match="did you mean eve/tiny"):
        registry.model("tiny")


def remove(registry: LocalRegistry, name: str) -> None:
    with registry.catalog.writing() as session:
        remove_model(session, model_in_any_state(session, parse_model_name(name)), "a mistake", "local")


def test_a_removed_model_says_so_under_each_of_its_names(registry: LocalRegistry, ollama: Path, tmp_path: Path) -> None:
    layer = ollama_layer(ollama, "model", small_model())
    old = ingest_path(registry, blob_of(ollama, layer)).model
    for tag in ("8b", "latest"):
        ollama_manifest(ollama, f"registry.ollama.ai/library/tiny/{tag}", layer)
    ingest_tools(registry, machine(tmp_path), "ollama")
    with pytest.raises(NotFound, match="library/tiny is another name of library/tiny-8b@1; use that name"):
        remove(registry, "tiny:latest")
    remove(registry, "tiny:8b")
    for name in ("library/tiny-8b", "library/tiny", old, "tiny:8b"):
        with pytest.raises(Removed, match=r"library/tiny-8b@1 was removed on .*: a mistake"):
            registry.model(name)
    (report,) = ingest_tools(registry, machine(tmp_path), "ollama")
    assert report.model == "library/tiny-8b@2"
    assert registry.model("tiny:latest").name == "library/tiny-8b@2"


def test_the_name_of_a_removed_model_becomes_no_other_name(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_path(registry, put(tmp_path / "gone.gguf", small_model(seed=1)))
    remove(registry, "gone")
    for name in ("kept", "gone"):
        ingest_path(registry, put(tmp_path / "copy" / f"{name}.gguf", small_model(seed=2)))
    assert registry.model("kept").other_names == ()
    with pytest.raises(Removed, match="a mistake"):
        registry.model("gone")


def test_a_sweep_forgets_files_without_a_model_and_names_that_were_never_public(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    names = ("kept", "gone", "own")
    paths = [put(tmp_path / f"{name}.gguf", small_model(seed=seed)) for seed, name in enumerate(names)]
    time.sleep(0.06)  # files that were written just before are read again
    for path in paths:
        ingest_path(registry, path, f"me/{path.stem}")
        ingest_path(registry, path)
    for removed in ("me/gone", "me/own"):
        remove(registry, removed)
    with registry.catalog.writing() as session:
        own = session.scalars(select(ModelRow).where(ModelRow.name == "own")).one()
        record_event(session, "local", Action.SUBMIT, own.full_name, model_id=own.id)
        session.execute(delete(EventRow).where(EventRow.model_id == own.id, EventRow.action != Action.SUBMIT))
    assert counted(registry) == (3, ["gone", "kept", "own"])
    sweep(registry.catalog, registry.blobs)
    assert counted(registry) == (3, ["gone", "kept", "own"])
    sweep(registry.catalog, registry.blobs, dry_run=False)
    assert counted(registry) == (1, ["gone", "kept"])
    with pytest.raises(Removed):
        registry.model("local/gone")
    with pytest.raises(NotFound, match="no model is registered as local/own"):
        registry.model("local/own")


def counted(registry: LocalRegistry) -> tuple[int | None, list[str]]:
    with registry.catalog.reading() as session:
        files = session.scalar(select(func.count()).select_from(KnownFile))
        return files, sorted(session.scalars(select(OtherName.name)))


def test_of_two_models_that_are_renamed_at_once_the_second_gets_its_next_name(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    """Both read that the name is free; then each waits for the lock of the writers."""
    models = []
    for seed in (1, 2):
        data = small_model(seed=seed)
        path = put(tmp_path / str(seed) / f"sha256-{hashlib.sha256(data).hexdigest()}", data)
        models.append((path, ingest_path(registry, path).model))
    both_have_read = threading.Barrier(2, timeout=30)

    class SlowCatalog:
        def __getattr__(self, name: str) -> Any:
            return getattr(registry.catalog, name)

        @contextmanager
        def writing(self) -> Iterator[Session]:
            both_have_read.wait()
            with registry.catalog.writing() as session:
                yield session

    slow: Any = SimpleNamespace(catalog=SlowCatalog())
    wanted = [(ModelName("library", "tiny"), ModelName("library", f"tiny-{number}b")) for number in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        sources = [
            ModelSource((path,), best, other_names=(other,))
            for (path, _), (best, other) in zip(models, wanted, strict=True)
        ]
        names = list(pool.map(partial(add_facts, slow), sources, [name for _, name in models]))
    second = "library/tiny-2b@1" if names[0] == "library/tiny@1" else "library/tiny-1b@1"
    assert sorted(names) == sorted(["library/tiny@1", second]), "no model became a version of the other one"


# The inventory.


def local_sources(home: Path) -> list[ModelSource]:
    return sources_of(find_tool_models(machine(home), FINDERS))


def test_the_inventory_has_families_quantisations_copies_and_links(tmp_path: Path) -> None:
    lay_out_zoo(tmp_path)
    inventory = take_inventory(local_sources(tmp_path))
    families = {family.name: [model.name for model in family.models] for family in inventory.families}
    assert families["Zoo-A-2M"] == [
        *("library/zoo-a-2m", "local/Zoo-A-2M-Prose-v1.0", "me/coder-adapter"),
        *("zoo/Zoo-A-2M-Code-v1.0", "zoo/Zoo-A-2M-v1.0"),
    ]
    models = {model.name: model for model in inventory.models}
    assert models.keys() == ZOO_NAMES
    base, small = models["zoo/Zoo-A-2M-v1.0-F16"], models["zoo/Zoo-C-1M-v1.0-Q8_0"]
    assert [(copy.tool, copy.is_link) for copy in base.copies] == [("Hugging Face", False), ("LM Studio", False)]
    assert [(copy.tool, copy.is_link) for copy in small.copies] == [("LM Studio", False), ("GPT4All", True)]
    assert inventory.duplicate_bytes == base.size_bytes
    assert inventory.size_bytes - inventory.disk_bytes == small.size_bytes
    assert inventory.problems == ()


def test_reading_all_bytes_counts_equal_tensors_once(tmp_path: Path) -> None:
    for name in ("One", "Two"):
        put(tmp_path / ".lmstudio" / "models" / "a" / "b" / f"{name}.gguf", small_model(name))
    read = list[int]()
    inventory = take_inventory(local_sources(tmp_path), progress=read.append)
    one, two = inventory.models
    assert (one.name, two.name) == ("a/One", "a/Two"), "their headers differ"
    assert two.distinct_bytes == 0
    assert inventory.distinct_bytes == one.distinct_bytes == sum(read) / 2


def test_files_with_equal_samples_and_other_stated_digests_are_different(tmp_path: Path) -> None:
    data = bytearray(small_model(blocks=12))
    cache = tmp_path / ".cache" / "huggingface" / "hub"
    hub_repository(cache, "a/one", {"m.gguf": bytes(data)})
    data[len(data) // 30 * 5 + 4200] ^= 1  # between two samples
    hub_repository(cache, "a/two", {"m.gguf": bytes(data)})
    inventory = take_inventory(local_sources(tmp_path))
    assert (len(list(inventory.models)), inventory.duplicate_bytes) == (2, 0)


def test_a_file_that_is_refused_is_a_problem_of_the_inventory(registry: LocalRegistry, tmp_path: Path) -> None:
    put(tmp_path / ".cache" / "gpt4all" / "bad.gguf", b"GGML rubbish")
    put(tmp_path / ".cache" / "gpt4all" / "good.gguf", small_model())
    inventory = take_inventory(local_sources(tmp_path), registry)
    assert [model.registered for model in inventory.models] == [None]
    assert len(inventory.problems) == 1
    assert "bad.gguf" in inventory.problems[0]
    time.sleep(0.06)
    (good,) = (source for source in local_sources(tmp_path) if "good" in source.label)
    ingest_model(registry, good)
    again = take_inventory(local_sources(tmp_path), registry)
    assert [model.registered for model in again.models] == ["local/good@1"]
