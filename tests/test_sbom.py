"""Bills of materials: valid CycloneDX 1.7 of any model, all of its ancestors, and nothing that may not be seen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import UUID

import numpy as np
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.chimeras import record_quick_look
from organs.registry.catalog.register.model_changes import hide_model, record_texts, remove_model
from organs.registry.catalog.tables import VerdictRow, now
from organs.registry.client.remote import RemoteRegistry
from organs.registry.compose.recipe import read_recipe
from organs.registry.entities.base import encode
from organs.registry.entities.model import RuntimeText
from organs.registry.entities.validation import QuickLook, TextLook
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.sbom import bill_of_materials
from tests.client.served_registry import serve_registry
from tests.gguf_files import file_bytes, importance_file, text, unsigned
from tests.registry_templates import RegistryTemplates, add_three_models, add_zoo_models
from tests.related_models import ingest_bytes, model_file, parent_entries, related_tensors
from tests.small_models import block_tensors, ingest_file, small_shards

BASE, CODE, PROSE = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-A-2M-Prose-v1.0-Q8_0"
LORA = "Zoo-A-2M-Code-LoRA-v1.0-F32"
VALIDATOR = JsonStrictValidator(SchemaVersion.V1_7)
LOOK = QuickLook(
    sentence="Usable.",
    usable=True,
    runtime="a runtime",
    window_tokens=16,
    seconds=1.0,
    tokens_per_second=None,
    texts=tuple(
        TextLook(
            name=name,
            digest="",
            base_perplexity=10.0,
            perplexity=9.0,
            ratio=ratio,
            ratio_margin=0.01,
            windows=1,
            window_count=1,
            tokens=16,
            divergence=0.05,
        )
        for name, ratio in (("code", 0.9), ("docs", None))
    ),
)
HOSTILE = "</p><script>alert(1)</script>\x1b[31m\x00\u202e\r\n\"'\\ \ud7ff\ufffe"

Document = dict[str, Any]


@pytest.fixture(scope="module")
def zoo(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    """The shipped models, and chimeras of them; tests add none."""
    with templates.open_copy(add_zoo_models, tmp_path_factory.mktemp("bom") / "home") as registry:
        grafted = registry.compose(BASE).graft(CODE, type="organ", blocks="0-1").adapter(LORA)
        grafted.named("me/coder").plan().register()
        mean = {"method": "linear", "models": [{"from": CODE}, {"from": PROSE}], "parameters": {"weight": 0.5}}
        blend = json.dumps({"base": BASE, "name": "me/mean", "blends": mean})
        registry.compose(read_recipe(blend)).plan().accepting_all().register()
        registry.compose("me/coder").quantize("Q8_0").named("me/small").plan().register()
        yield registry


def add_model(
    registry: LocalRegistry,
    folder: Path,
    name: str,
    texts: Mapping[str, str],
    *,
    correlation: float = 1.0,
    parents: int = 0,
) -> None:
    """Ingest a small model with these texts in its header, and no others."""
    header = [text("general.architecture", "llama"), *(text(key, value) for key, value in texts.items())]
    header.append(unsigned("general.base_model.count", parents))
    ingest_bytes(registry, folder, name, file_bytes(header, related_tensors(correlation=correlation)))


def document(registry: LocalRegistry, name: str) -> Document:
    """Return the document on a model, after it was validated and made a second time."""
    made = bill_of_materials(registry, name)
    assert VALIDATOR.validate_str(made) is None
    assert bill_of_materials(registry, name) == made
    found: Document = json.loads(made)
    return found


def properties(component: Document) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for item in component["properties"]:
        values.setdefault(item["name"].removeprefix("organ:"), []).append(item["value"])
    return values


def licenses(component: Document) -> list[str]:
    chosen = (item.get("license", item) for item in component["licenses"])
    return [item.get("id") or item.get("name") or item["expression"] for item in chosen]


def dependencies(found: Document) -> dict[str, list[str]]:
    return {item["ref"]: item.get("dependsOn", []) for item in found["dependencies"]}


@pytest.mark.long
def test_a_model_has_its_digests_its_license_and_what_it_is(zoo: LocalRegistry) -> None:
    found, model = document(zoo, BASE), zoo.model(BASE)
    main = found["metadata"]["component"]
    assert (main["type"], main["group"], main["name"], main["version"]) == (
        "machine-learning-model",
        "local",
        BASE,
        "1",
    )
    assert [item["content"] for item in main["hashes"]] == [model.digest]
    assert [(item["name"], item["hashes"][0]["content"]) for item in main["components"]] == [
        (f"{BASE}.gguf", model.digest)
    ]
    assert main["purl"] == f"pkg:generic/local/{BASE}@1?checksum=sha256:{model.digest}"
    assert licenses(main) == ["Apache-2.0"]
    assert "pedigree" not in main
    facts = properties(main)
    assert (facts["architecture"], facts["parameters"]) == (["llama"], [str(model.parameters)])
    assert facts["dtypes"] == [model.facts["dtypes"]]
    assert found["metadata"]["timestamp"].startswith(f"{model.created_at:%Y-%m-%dT%H:%M:%S}")
    assert found["serialNumber"] != document(zoo, CODE)["serialNumber"]
    assert UUID(found["serialNumber"].removeprefix("urn:uuid:")).version == 5
    assert [tool["name"] for tool in found["metadata"]["tools"]["components"]] == ["organ-registry"]


@pytest.mark.long
def test_a_chimera_has_its_recipe_its_lock_and_what_each_parent_gave(zoo: LocalRegistry) -> None:
    found, model = document(zoo, "me/coder"), zoo.model("me/coder")
    main = found["metadata"]["component"]
    facts = properties(main)
    assert (facts["lock"], facts["recipe"]) == ([f"sha256:{model.lock_id}"], [model.recipe_yaml])
    assert dependencies(found)["me/coder@1"] == sorted(f"local/{name}@1" for name in (BASE, CODE, LORA))
    gave = {item["name"]: properties(item) for item in main["pedigree"]["ancestors"]}
    assert gave[BASE]["relation"][0] == "base"
    assert gave[CODE]["relation"] == ["grafted"]
    assert any(line.startswith("6 of type organ in blocks 0-1: grafted") for line in gave[CODE]["organs"])
    assert gave[LORA]["relation"] == ["adapter"]
    digests = {item["bom-ref"]: item["hashes"][0]["content"] for item in found["components"]}
    assert digests == {f"local/{name}@1": zoo.model(name).digest for name in (BASE, CODE, LORA)}


@pytest.mark.long
def test_ancestors_of_ancestors_are_there_too(zoo: LocalRegistry) -> None:
    found = document(zoo, "me/small")
    edges = dependencies(found)
    assert edges["me/small@1"] == ["me/coder@1"]
    assert edges["me/coder@1"] == sorted(f"local/{name}@1" for name in (BASE, CODE, LORA))
    coder = next(item for item in found["components"] if item["bom-ref"] == "me/coder@1")
    assert "recipe" in properties(coder)
    assert len(coder["pedigree"]["ancestors"]) == 3


@pytest.mark.long
def test_a_blend_names_all_of_its_models(zoo: LocalRegistry) -> None:
    found = document(zoo, "me/mean")
    assert {*dependencies(found)["me/mean@1"]} == {f"local/{name}@1" for name in (BASE, CODE, PROSE)}
    gave = {item["name"]: properties(item) for item in found["metadata"]["component"]["pedigree"]["ancestors"]}
    assert (gave[CODE]["relation"], gave[PROSE]["relation"]) == (["merged"], ["merged"])


def test_what_was_measured_and_what_is_found_about_licenses_are_properties(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    add_model(registry, tmp_path, "tuned", {"general.license": "cc-by-nc-4.0"}, correlation=0.995)
    registry.compose("base").graft("tuned", type="organ").named("me/mixed").plan().accepting_all().register()
    main = document(registry, "me/mixed")["metadata"]["component"]
    assert licenses(main) == ["Apache-2.0 AND CC-BY-NC-4.0"]
    (terms,) = properties(main)["finding:license-terms"]
    assert terms.startswith("info: The license cc-by-nc-4.0 of local/tuned@1 does not allow commercial use")
    with registry.catalog.writing() as session:
        model = model_by_name(session, parse_model_name("me/mixed"))
        record_quick_look(session, model.id, encode(LOOK).decode())
    facts = properties(document(registry, "me/mixed")["metadata"]["component"])
    assert (facts["quick-look"], facts["runtime"]) == (["Usable."], ["a runtime"])
    assert (facts["perplexity-ratio:code"], facts["divergence:code"]) == (["0.9"], ["0.05"])
    assert "perplexity-ratio:docs" not in facts
    with registry.catalog.writing() as session:
        row = VerdictRow(model_id=model.id, runtime="test", verdict="gains", reason="It is better.", report="{}")
        row.created_at = now()
        session.add(row)
    facts = properties(document(registry, "me/mixed")["metadata"]["component"])
    assert (facts["verdict"], facts["runtime"]) == (["gains: It is better."], ["test"])
    assert "quick-look" not in facts


def test_declared_parents_are_ancestors_whether_they_are_registered_or_not(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    child = model_file("Child", related_tensors(correlation=0.995), parent_entries("Base", "Gone Model"))
    ingest_bytes(registry, tmp_path, "child", child)
    found = document(registry, "child")
    assert dependencies(found)["local/child@1"] == ["declared:Gone Model", "local/base@1"]
    gone = next(item for item in found["components"] if item["bom-ref"] == "declared:Gone Model")
    assert (licenses(gone), properties(gone)) == (["NOASSERTION"], {"registered": ["false"]})
    assert "hashes" not in gone


def test_a_model_that_only_looks_alike_is_no_ancestor(registry: LocalRegistry, templates: RegistryTemplates) -> None:
    templates.fill(registry, add_three_models)
    assert registry.model("tuned").lineage
    assert dependencies(document(registry, "tuned")) == {"local/tuned@1": []}


def test_an_importance_matrix_is_data_that_the_quantisation_depends_on(registry: LocalRegistry, tmp_path: Path) -> None:
    tensors = block_tensors(2, 256)
    ingest_bytes(registry, tmp_path, "plain", model_file("Plain", tensors))
    weights = {spec.name: np.linspace(1, 2, 256, dtype=np.float32) for spec, _ in tensors if "attn_q" in spec.name}
    ingest_bytes(registry, tmp_path, "weights", importance_file(weights))
    made = registry.compose("plain").quantize("Q4_0").imatrix("weights").named("me/small").plan().register()
    found = document(registry, made.model)
    assert dependencies(found)["me/small@1"] == ["local/plain@1", "local/weights@1"]
    kinds = {item["bom-ref"]: item["type"] for item in found["components"]}
    assert kinds == {"local/plain@1": "machine-learning-model", "local/weights@1": "data"}
    assert properties(found["metadata"]["component"])["quantize.imatrix.file"] == ["local/weights@1"]


@pytest.mark.parametrize("state", ["quarantined", "removed"])
def test_a_parent_that_may_not_be_seen_has_only_the_name_that_the_chimera_shows(
    state: str, registry: LocalRegistry, templates: RegistryTemplates
) -> None:
    templates.fill(registry, add_three_models)
    registry.compose("base").graft("tuned", type="organ").named("me/x").plan().register()
    digest = registry.model("tuned").digest
    with registry.catalog.writing() as session:
        model = model_by_name(session, parse_model_name("local/tuned"))
        if state == "removed":
            remove_model(session, model, "a reason", "local")
        else:
            hide_model(session, model, state, "a reason", "local")
    made = bill_of_materials(registry, "me/x")
    assert digest not in made
    hidden = next(item for item in json.loads(made)["components"] if item["bom-ref"] == "local/tuned@1")
    assert properties(hidden) == {"registered": ["false"]}


@pytest.mark.long
def test_no_more_models_than_the_limit_are_read(zoo: LocalRegistry) -> None:
    found = json.loads(bill_of_materials(zoo, "me/small", 3))
    assert len(found["components"]) == 2
    assert properties(found["metadata"]["component"])["ancestors-left-out"] == ["2"]


@pytest.mark.parametrize(
    ("license", "expected"),
    [
        (None, ["NOASSERTION"]),
        ("apache-2.0", ["Apache-2.0"]),
        ("mit and gpl-3.0-only", ["MIT AND GPL-3.0-only"]),
        ("(mit OR apache-2.0)", ["(MIT OR Apache-2.0)"]),
        ("gemma", ["gemma"]),
        ("LicenseRef-mine", ["LicenseRef-mine"]),
        ("mit AND LicenseRef-mine", ["MIT AND LicenseRef-mine"]),
        ("apache-2.0 AND NOASSERTION", ["Apache-2.0", "NOASSERTION"]),
        ("mit AND gemma", ["MIT", "gemma"]),
        ("gemma AND (mit OR isc)", ["gemma AND (MIT OR ISC)"]),
        ("(((", ["((("]),
        ("x" * 10_000, ["x" * 95 + "…"]),
        ("<b>\x1b[0m\r\nmine</b>", ["<b>\ufffd[0m mine</b>"]),
    ],
)
def test_a_license_is_an_spdx_id_or_expression_or_else_a_name(
    license: str | None, expected: list[str], registry: LocalRegistry, tmp_path: Path
) -> None:
    add_model(registry, tmp_path, "m", {} if license is None else {"general.license": license})
    assert licenses(document(registry, "m")["metadata"]["component"]) == expected


def test_a_license_without_an_id_has_the_name_and_the_address_in_the_header(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    address = "https://example.org/license?a=b#c"
    texts = {"license": "other", "license.name": "Qwen Research", "license.link": address}
    add_model(registry, tmp_path, "m", {f"general.{key}": value for key, value in texts.items()})
    main = document(registry, "m")["metadata"]["component"]
    assert [(item["license"]["name"], item["license"]["url"]) for item in main["licenses"]] == [
        ("Qwen Research", address)
    ]
    assert [(item["type"], item["url"]) for item in main["externalReferences"]] == [("license", address)]


def test_the_text_of_a_license_that_a_tool_keeps_is_attached(registry: LocalRegistry, tmp_path: Path) -> None:
    add_model(registry, tmp_path, "m", {"general.license": "LicenseRef-mine"})
    with registry.catalog.writing() as session:
        model = model_by_name(session, parse_model_name("local/m"))
        record_texts(session, model, [RuntimeText(kind="license", source="Ollama m", text="Only for me.\x07")])
    main = document(registry, "m")["metadata"]["component"]
    assert [item["license"]["text"] for item in main["licenses"]] == [
        {"content": "Only for me.\ufffd", "contentType": "text/plain"}
    ]


def test_hostile_texts_are_inert(registry: LocalRegistry, tmp_path: Path) -> None:
    long = HOSTILE * 300
    keys = ("name", "description", "license", "url", "repo_url", "base_model.0.name")
    texts = {f"general.{key}": long for key in keys} | {"general.source.url": "javascript:alert(1)"}
    more = {"general.base_model.1.name": "a\nb", "general.base_model.2.name": "a \tb"}
    add_model(registry, tmp_path, "m", texts | more, parents=3)
    found = document(registry, "m")
    main = found["metadata"]["component"]
    assert "externalReferences" not in main
    assert len(found["components"]) == 2

    def texts(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from texts(item)

    for value in texts(found):
        assert all(item.isprintable() or item == "\n" for item in value), value


def test_a_model_in_shards_has_the_digest_of_each_file(registry: LocalRegistry, tmp_path: Path) -> None:
    for name, data in small_shards(count=3).items():
        (tmp_path / name).write_bytes(data)
    model = registry.model(ingest_file(registry, tmp_path / "m-00001-of-00003.gguf").model)
    main = document(registry, model.name)["metadata"]["component"]
    assert "hashes" not in main
    assert [item["hashes"][0]["content"] for item in main["components"]] == [file.sha256 for file in model.files]


@pytest.mark.long
def test_a_remote_registry_gives_the_same_document(zoo: LocalRegistry) -> None:
    with serve_registry(zoo) as served, RemoteRegistry(served.url) as remote:
        assert bill_of_materials(remote, "me/small") == bill_of_materials(zoo, "me/small")
        with urlopen(f"{served.url}/models/me/small") as page:
            assert b'href="/models/me/small@1/sbom.json"' in page.read()
        with urlopen(f"{served.url}/models/me/small@1/sbom.json") as answer:
            assert answer.read().decode() == bill_of_materials(zoo, "me/small")
            assert answer.headers["Content-Disposition"] == 'attachment; filename="small.cdx.json"'
