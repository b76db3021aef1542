"""The routes of container registries: manifests, blobs, tags and errors; and quantisations as one repository."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select, update
from werkzeug.test import TestResponse

from organs.ingest.tools.ollama_image import CHATML, CHATML_FOR_OLLAMA
from organs.registry.catalog.tables import ModelRow, RuntimeTextRow
from organs.registry.digest import digest_of
from organs.registry.gguf import KeyValue, ValueType
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.ollama import llama_server_line, ollama_line
from tests.compose.parents import ZOO
from tests.gguf_files import file_bytes, text, unsigned
from tests.registry_templates import RegistryTemplates
from tests.small_models import ingest_file, small_model, small_shards, weight_tensor

IMAGES = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
FILES = ("coder-Q4_K_M", "coder-Q8_0", "coder-Q5_K_M-notes", "decoder-Q4_K_M", "mmproj-coder-F16")


def fill(registry: LocalRegistry, folder: Path) -> None:
    for seed, name in enumerate(FILES):
        is_projector = name.startswith("mmproj")
        add(registry, folder, f"me/{name}", seed=seed, more=[text("general.type", "mmproj")] if is_projector else ())
    (folder / "shards").mkdir()
    for name, data in small_shards().items():
        (folder / "shards" / name).write_bytes(data)
    ingest_file(registry, folder / "shards", "me/split-Q8_0")


def add(registry: LocalRegistry, folder: Path, name: str, seed: int = 0, **more: Any) -> bytes:
    data = small_model(name.partition("/")[2], seed=seed, **more)
    path = folder / f"{name.partition('/')[2]}.gguf"
    path.write_bytes(data)
    ingest_file(registry, path, name)
    return data


@pytest.fixture
def client(registry: LocalRegistry, templates: RegistryTemplates) -> Iterator[FlaskClient]:
    templates.fill(registry, fill)
    with create_app(registry).test_client() as client:
        yield client


def sha256_of(data: bytes) -> str:
    """The digest of a blob, as the protocol writes it."""
    return f"sha256:{digest_of(data)}"


def manifest(client: FlaskClient, name: str, tag: str = "latest") -> dict[str, Any]:
    answer = client.get(f"/v2/{name}/manifests/{tag}", headers=IMAGES)
    assert answer.status_code == 200, answer.text
    return dict(answer.get_json(force=True))


def digests(image: dict[str, Any]) -> dict[str, str]:
    """The digests of the layers by the end of their media types."""
    return {layer["mediaType"].rpartition(".")[2]: layer["digest"] for layer in image["layers"]}


def blob(client: FlaskClient, name: str, digest: str, **headers: str) -> TestResponse:
    return client.get(f"/v2/{name}/blobs/{digest}", headers=headers)


def error_of(answer: TestResponse) -> tuple[int, str, str]:
    (error,) = answer.get_json()["errors"]
    return answer.status_code, error["code"], error["message"]


def test_an_image_has_the_model_its_license_and_a_configuration(client: FlaskClient) -> None:
    image = manifest(client, "me/coder-Q8_0")
    kinds = ["application/vnd.ollama.image.model", "application/vnd.ollama.image.license"]
    assert [layer["mediaType"] for layer in image["layers"]] == kinds
    answer = blob(client, "me/coder-Q8_0", image["config"]["digest"])
    assert (sha256_of(answer.data), len(answer.data)) == (image["config"]["digest"], image["config"]["size"])
    expected = {"model_format": "gguf", "model_families": ["llama"], "model_type": "47.3K", "file_type": "Q8_0"}
    assert expected.items() <= json.loads(answer.data).items()


def test_a_manifest_is_also_found_by_its_digest_and_for_the_user_agent_of_ollama(client: FlaskClient) -> None:
    answer = client.get("/v2/me/coder/manifests/Q8_0", headers={"User-Agent": "ollama/0.12.0 (arm64 darwin)"})
    digest = answer.headers["Docker-Content-Digest"]
    assert digest == sha256_of(answer.data)
    assert client.get(f"/v2/me/coder/manifests/{digest}", headers=IMAGES).data == answer.data
    assert blob(client, "me/coder", digest).data == answer.data
    model = digests(answer.get_json(force=True))["model"]
    parts = client.get(f"/v2/me/coder/chunksums/{model}")
    assert parts.text == f"{model} 0-{len(small_model('coder-Q8_0', seed=1)) - 1}\n"
    assert parts.headers["Content-Location"] == f"http://localhost/v2/me/coder/blobs/{model}"


def test_clients_that_accept_no_images_get_the_names_of_the_files_for_llama(client: FlaskClient) -> None:
    for headers in ({}, {"Accept": "application/json"}, {"Accept": "*/*"}):
        answer = client.get("/v2/me/coder/manifests/q8_0", headers=headers)
        assert (answer.status_code, answer.headers["Vary"]) == (200, "Accept, User-Agent")
        values = answer.get_json()
        names = [values[kind]["rfilename"] for kind in ("ggufFile", "mmprojFile")]
        assert names == ["coder-Q8_0.gguf", "mmproj-coder-F16.gguf"]


def test_only_an_exactly_known_chat_template_gets_a_template_of_ollama(
    client: FlaskClient, registry: LocalRegistry, tmp_path: Path
) -> None:
    known = sorted(CHATML)[0]
    for name, template in (("chatml", known), ("other", f"{known} "), ("near", f"{known}.")):
        add(registry, tmp_path, f"me/{name}", more=[text("tokenizer.chat_template", template)])
    layers = digests(manifest(client, "me/chatml"))
    assert blob(client, "me/chatml", layers["template"]).text == CHATML_FOR_OLLAMA
    assert json.loads(blob(client, "me/chatml", layers["params"]).data) == {"stop": ["<|im_start|>", "<|im_end|>"]}
    assert "template" in digests(manifest(client, "me/other")), "spaces around it do not matter"
    assert {"template", "params"}.isdisjoint(digests(manifest(client, "me/near")))


def test_the_file_type_of_the_header_comes_before_that_of_the_name_or_of_the_tensors(
    client: FlaskClient, registry: LocalRegistry, tmp_path: Path
) -> None:
    add(registry, tmp_path, "me/typed-Q8_0", more=[unsigned("general.file_type", 15)])
    add(registry, tmp_path, "me/odd", more=[text("general.file_type", "x")])
    for name, expected in (("typed-Q8_0", "Q4_K_M"), ("odd", "F16")):
        config = blob(client, f"me/{name}", manifest(client, f"me/{name}")["config"]["digest"]).get_json(force=True)
        assert config["file_type"] == expected
    assert [client.get(f"/v2/me/odd/manifests/{tag}").status_code for tag in ("F16", "Q8_0")] == [200, 404]


def test_quantisations_are_one_repository(client: FlaskClient) -> None:
    values = client.get("/api/models/me/coder").get_json()
    names = ["coder-Q4_K_M.gguf", "coder-Q8_0.gguf", "mmproj-coder-F16.gguf", "README.md"]
    assert [item["rfilename"] for item in values["siblings"]] == names
    assert client.get("/me/coder/resolve/main/coder-Q8_0.gguf").data == small_model("coder-Q8_0", seed=1)
    assert "`me/coder-Q8_0@1`" in client.get("/me/coder/resolve/main/README.md").text
    assert client.get("/v2/me/coder/tags/list").get_json() == {
        "name": "me/coder",
        "tags": ["latest", "Q4_K_M", "Q8_0"],
    }
    image, projector = digests(manifest(client, "me/coder", "q8_0")), digests(manifest(client, "me/mmproj-coder-F16"))
    assert (image["model"], image["projector"]) == (sha256_of(small_model("coder-Q8_0", seed=1)), projector["model"])
    assert digests(manifest(client, "me/coder"))["model"] == sha256_of(small_model("coder-Q4_K_M", seed=0))


def test_a_tag_is_exactly_the_quantisation_of_a_model(registry: LocalRegistry, tmp_path: Path) -> None:
    names = ("x-BF16", "x-F16", "x.i1-Q4_K_M", "x-i1-Q8_0", "x-Q8_0")
    files = {name: add(registry, tmp_path, f"me/{name}", seed=seed) for seed, name in enumerate(names)}
    add(registry, tmp_path, "me/y-v3.0", seed=5)
    with create_app(registry).test_client() as client:
        tags = client.get("/v2/me/x/tags/list").get_json()["tags"]
        assert tags == ["latest", "BF16", "F16", "Q8_0", "i1-Q8_0", "i1-Q4_K_M"]
        for tag, name in (("Q4_K_M", "x.i1-Q4_K_M"), ("Q8_0", "x-Q8_0"), ("BF16", "x-BF16"), ("f16", "x-F16")):
            assert digests(manifest(client, "me/x", tag))["model"] == sha256_of(files[name])
        for name, tag in (("me/x", "6"), ("me/x", "x"), ("me/y-v3.0", "v3")):
            assert error_of(client.get(f"/v2/{name}/manifests/{tag}", headers=IMAGES))[0] == 400


def test_texts_that_came_from_another_ollama_are_served_again(registry: LocalRegistry, tmp_path: Path) -> None:
    add(registry, tmp_path, "me/kept")
    texts = {"template": "{{ .Prompt }}", "parameters": '{"stop": ["x"]}', "license": "MIT License"}
    with registry.catalog.writing() as session:
        model = session.scalars(select(ModelRow.id).where(ModelRow.name == "kept")).one()
        for position, (kind, value) in enumerate(texts.items()):
            session.add(RuntimeTextRow(model_id=model, position=position, kind=kind, source="Ollama kept", text=value))
    client = create_app(registry).test_client()
    layers = digests(manifest(client, "me/kept"))
    assert blob(client, "me/kept", layers["template"]).data == b"{{ .Prompt }}"
    assert blob(client, "me/kept", layers["params"]).get_json(force=True) == {"stop": ["x"]}
    with registry.catalog.writing() as session:
        session.execute(update(RuntimeTextRow).where(RuntimeTextRow.kind == "parameters").values(text="[NaN]"))
    assert "params" not in digests(manifest(client, "me/kept"))


def test_the_commit_of_quantisations_changes_with_them(
    client: FlaskClient, registry: LocalRegistry, tmp_path: Path
) -> None:
    before = client.get("/api/models/me/coder").get_json()["sha"]
    assert client.get(f"/me/coder/resolve/{before}/coder-Q8_0.gguf").status_code == 200
    new = add(registry, tmp_path, "me/coder-Q8_0", seed=9)
    after = client.get("/api/models/me/coder").get_json()["sha"]
    assert (len(after), after != before) == (40, True)
    gone = client.get(f"/me/coder/resolve/{before}/coder-Q8_0.gguf")
    assert (gone.status_code, gone.headers["X-Error-Code"]) == (404, "RevisionNotFound")
    assert client.get(f"/me/coder/resolve/{after}/coder-Q8_0.gguf").data == new
    refs = client.get("/api/models/me/coder/refs").get_json()
    assert [branch["targetCommit"] for branch in refs["branches"]] == [after]
    assert [tag["name"] for tag in refs["tags"]] == ["Q4_K_M", "Q8_0"]


def test_a_model_with_the_name_of_the_repository_comes_first_and_keeps_its_versions(
    client: FlaskClient, registry: LocalRegistry, tmp_path: Path
) -> None:
    own = small_model("own", seed=5)
    (tmp_path / "coder-Q8_0.gguf").write_bytes(own)
    ingest_file(registry, tmp_path / "coder-Q8_0.gguf", "me/coder")
    files = [item["rfilename"] for item in client.get("/api/models/me/coder").get_json()["siblings"]]
    projector = "mmproj-coder-F16.gguf"
    assert files == ["coder-Q8_0.gguf", "coder-Q4_K_M.gguf", "coder-Q8_0-v1.gguf", projector, "README.md"]
    only = client.get("/api/models/me/coder/revision/v1").get_json()
    assert [item["rfilename"] for item in only["siblings"]] == ["coder-Q8_0.gguf", "README.md"]
    for tag in ("latest", "v1", "Q8_0", only["sha"][:12]):
        assert digests(manifest(client, "me/coder", tag))["model"] == sha256_of(own), tag


SIZES = ("tiny-F16", "tiny-12.5GB", "tiny-2.5GB", "tiny-4.5bpw", "tiny-Q4_K_M-best")


def test_a_size_is_a_tag_a_revision_and_a_file_of_its_source(registry: LocalRegistry, tmp_path: Path) -> None:
    files = {name: add(registry, tmp_path, f"me/{name}", seed=seed) for seed, name in enumerate(SIZES)}
    client = create_app(registry).test_client()
    for source in ("me/tiny", "me/tiny-F16"):
        tags = client.get(f"/v2/{source}/tags/list").get_json()["tags"]
        assert [tag for tag in tags if not tag.startswith("v")] == [
            *("latest", "F16", "Q4_K_M-best", "2.5GB", "12.5GB", "4.5bpw")
        ]
        for name in SIZES[1:]:
            tag = name.removeprefix("tiny-")
            image = manifest(client, source, tag)
            assert digests(image)["model"] == sha256_of(files[name]), (source, tag)
            assert blob(client, source, image["config"]["digest"]).status_code == 200
            only = client.get(f"/api/models/{source}/revision/{tag}").get_json()
            assert [item["rfilename"] for item in only["siblings"]] == [f"{name}.gguf", "README.md"]
            assert client.get(f"/api/models/{source}/revision/refs%2Ftags%2F{tag}").get_json()["sha"] == only["sha"]
            for revision in (tag, only["sha"], only["sha"][:9]):
                answer = client.get(f"/{source}/resolve/{revision}/{name}.gguf")
                assert (answer.data, answer.headers["X-Repo-Commit"]) == (files[name], only["sha"])
        refs = client.get(f"/api/models/{source}/refs").get_json()["tags"]
        assert {tag["name"] for tag in refs} >= {name.removeprefix("tiny-") for name in SIZES[1:]}
    assert digests(manifest(client, "me/tiny", "q4_k_m"))["model"] == sha256_of(files["tiny-Q4_K_M-best"])
    own = client.get("/api/models/me/tiny-F16").get_json()["siblings"]
    assert [item["rfilename"] for item in own] == ["tiny-F16.gguf", "README.md"], "a download has only the source"


def test_llama_finds_each_size_by_the_first_file_with_its_tag(registry: LocalRegistry, tmp_path: Path) -> None:
    for seed, name in enumerate((*SIZES, "tiny-14.5bpw", "tiny-Q4_K_M")):
        add(registry, tmp_path, f"me/{name}", seed=seed)
    tree = create_app(registry).test_client().get("/api/models/me/tiny/tree/main?recursive=true").get_json()
    paths = [entry["path"] for entry in tree]
    for tag in ("2.5GB", "12.5GB", "4.5bpw", "14.5bpw", "Q4_K_M", "Q4_K_M-best", "F16"):
        # The search of llama.cpp, common/download.cpp: `tag[.-]` in any case, anywhere in the path.
        first = next(path for path in paths if re.search(f"{tag}[.-]", path, re.IGNORECASE))
        assert first == f"tiny-{tag}.gguf"


def test_a_size_that_nobody_computed_is_refused_with_its_command(registry: LocalRegistry, tmp_path: Path) -> None:
    add(registry, tmp_path, "me/tiny-F16")
    client = create_app(registry).test_client()
    for tag, option in (
        ("3.3bpw", "--bpw 3.3"),
        ("2GB", "--size 2GB"),
        ("Q5_K_M", "--type Q5_K_M"),
        ("Q5_K_M-best", "--like Q5_K_M"),
    ):
        command = f"`organ quantize me/tiny-F16 {option}`"
        status, code, sentence = error_of(client.get(f"/v2/me/tiny/manifests/{tag}", headers=IMAGES))
        assert (status, code) == (400, "TAG_MISSING"), "after 404, Ollama prints no sentence"
        assert command in sentence
        for address in (f"/me/tiny-F16/resolve/{tag}/x.gguf", f"/v2/me/tiny/manifests/{tag}"):
            answer = client.get(address)
            assert (answer.status_code, command in answer.headers["X-Error-Message"]) == (404, True)
    add(registry, tmp_path, "me/tiny-3.3bpw", seed=1)
    add(registry, tmp_path, "me/tiny-Q4_1", seed=2)
    add(registry, tmp_path, "me/tiny-Q4_1-2.2bpw", seed=3)
    assert client.get("/v2/me/tiny-Q4_1/manifests/2.2bpw", headers=IMAGES).status_code == 200
    assert client.get("/api/models/me/tiny-Q4_1/revision/2.2bpw").status_code == 200
    assert client.get("/v2/me/tiny/manifests/2.2bpw", headers=IMAGES).status_code == 400, "a size of other weights"
    answer = client.get("/v2/me/tiny-F16/manifests/3.3bpw")
    assert answer.headers["X-Error-Message"] == "me/tiny-F16 has no file of 3.3bpw: it is me/tiny:3.3bpw"
    assert "organ" not in error_of(client.get("/v2/me/tiny/manifests/none", headers=IMAGES))[2]


@pytest.mark.parametrize("name", ["me/code", "me/coder-Q5_K_M", "me/CODER", "you/coder"])
def test_models_with_other_names_are_no_quantisations(name: str, client: FlaskClient) -> None:
    assert client.get(f"/api/models/{name}").headers["X-Error-Code"] == "RepoNotFound"


@pytest.mark.parametrize("state", ["quarantined", "removed", "yanked"])
def test_a_model_that_is_not_visible_is_no_quantisation(
    state: str, client: FlaskClient, registry: LocalRegistry
) -> None:
    digest = digests(manifest(client, "me/coder", "Q8_0"))["model"]
    with registry.catalog.writing() as session:
        session.execute(update(ModelRow).where(ModelRow.name == "coder-Q8_0").values(state=state))
    files = [item["rfilename"] for item in client.get("/api/models/me/coder").get_json()["siblings"]]
    assert files == ["coder-Q4_K_M.gguf", "mmproj-coder-F16.gguf", "README.md"]
    assert (
        blob(client, "me/coder-Q8_0", digest).status_code == {"quarantined": 404, "removed": 410, "yanked": 200}[state]
    )


def test_problems_are_sentences_in_the_form_of_the_protocol(client: FlaskClient) -> None:
    none = "0" * 64
    cases = [
        ("/v2/me/none/manifests/latest", 404, "MANIFEST_UNKNOWN", "no model is registered as me/none"),
        ("/v2/me/coder/manifests/Q2_K", 400, "TAG_MISSING", "its tags are at /v2/me/coder/tags/list"),
        ("/v2/me/split/manifests/Q8_0", 406, "NO_IMAGE", "me/split-Q8_0@1 is split into 4 files"),
        ("/v2/me/mmproj-none/tags/list", 404, "NAME_UNKNOWN", "no model is registered"),
        ("/v2/organs/x/manifests/latest", 404, "NAME_INVALID", "is an address of the catalog"),
        (f"/v2/me/coder/blobs/sha256:{none}", 404, "BLOB_UNKNOWN", "has no blob with the digest"),
        (f"/v2/me/coder/chunksums/sha256:{none}", 404, "BLOB_UNKNOWN", "has no file with the digest"),
        ("/v2/me/coder/blobs/sha256:ABC", 400, "DIGEST_INVALID", "not a SHA-256 digest"),
    ]
    for address, status, code, sentence in cases:
        found = error_of(client.get(address, headers=IMAGES))
        assert found[:2] == (status, code), (address, found)
        assert sentence in found[2]


def test_the_protocol_needs_no_account(client: FlaskClient) -> None:
    answer = client.get("/v2/")
    assert (answer.status_code, answer.get_json()) == (200, {})
    assert answer.headers["Docker-Distribution-Api-Version"] == "registry/2.0"


def test_the_lines_for_other_tools_name_the_host_and_the_quantisation() -> None:
    assert ollama_line("me/coder", "http://127.0.0.1:8935/") == "ollama run --insecure 127.0.0.1:8935/me/coder"
    assert ollama_line("me/coder@2", "https://registry.example") == "ollama run registry.example/me/coder:v2"
    served = "HF_ENDPOINT=https://registry.example llama-server -hf me/coder"
    assert llama_server_line("me/coder-Q4_K_M@2", "https://registry.example/") == f"{served}:Q4_K_M"
    assert llama_server_line("me/coder", "https://registry.example") == served


def test_the_page_of_an_adapter_offers_ollama_only_beside_its_base(registry: LocalRegistry) -> None:
    base, adapter = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-LoRA-v1.0-F32"
    ingest_file(registry, ZOO / f"{adapter}.gguf")
    with create_app(registry).test_client() as client:
        assert "ollama run" not in client.get(f"/models/local/{adapter}").text
        ingest_file(registry, ZOO / f"{base}.gguf")
        assert f"ollama run --insecure localhost/local/{adapter}" in client.get(f"/models/local/{adapter}").text


@pytest.mark.parametrize("kind", ["lora", "lora-merge"])
def test_an_adapter_that_only_a_merge_can_apply_has_no_command_that_runs_it(
    registry: LocalRegistry, tmp_path: Path, kind: str
) -> None:
    keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": kind}
    entries = [text(key, value) for key, value in keys.items()]
    base = {"name": "Zoo A", "version": "v1.0", "organization": "organ registry"}
    entries += [text(f"general.base_model.0.{key}", value) for key, value in base.items()]
    entries.append(unsigned("general.base_model.count", 1))
    path = tmp_path / "vector.gguf"
    path.write_bytes(file_bytes(entries, [weight_tensor("output_norm.weight", (192,), dtype="F32")]))
    ingest_file(registry, ZOO / "Zoo-A-2M-v1.0-F16.gguf")
    ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        page = client.get("/models/local/vector").text
        answer = client.get("/v2/local/vector/manifests/latest", headers=IMAGES)
    assert "Merge it into its base" in page
    is_run = kind == "lora"
    assert ("--lora" in page, "ollama run" in page, answer.status_code == 200) == (is_run, is_run, is_run)
    assert ("only a recipe can merge it" in page) == (not is_run)
    if not is_run:
        assert "is an adapter that only a merge can apply" in error_of(answer)[2]


def test_an_activated_lora_can_be_run_and_has_no_command_that_merges_it(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    header = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    header |= {"general.base_model.0.name": "Zoo A", "general.base_model.0.organization": "organ registry"}
    entries = [*(text(key, value) for key, value in header.items()), unsigned("general.base_model.count", 1)]
    entries.append(KeyValue("adapter.alora.invocation_tokens", ValueType.ARRAY, (5, 7), ValueType.UINT32))
    path = tmp_path / "activated.gguf"
    shapes = {"a": (192, 4), "b": (4, 192)}
    factors = [weight_tensor(f"blk.0.attn_q.weight.lora_{half}", shape, 1, "F32") for half, shape in shapes.items()]
    path.write_bytes(file_bytes(entries, factors))
    ingest_file(registry, ZOO / "Zoo-A-2M-v1.0-F16.gguf")
    ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        page = client.get("/models/local/activated").text
    assert "an activated LoRA: runtimes use it only after" in page
    assert ("--lora" in page, "Merge it into its base" in page) == (True, False)
