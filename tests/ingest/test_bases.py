"""Tests of the base of an adapter: where its facts come from, and adapters in a registry."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from organs.ingest.add import add_model
from organs.ingest.peft import base_by_name, base_in, chosen_base, local_base, registered_base
from organs.registry.client.remote import RemoteRegistry
from organs.registry.errors import BadSource, NotFound, UnknownBase
from organs.registry.local import LocalRegistry
from tests.client.served_registry import serve_registry
from tests.gguf_files import file_bytes, tensor, text
from tests.ingest.peft_folders import (
    BLOCKS,
    HEADS,
    KV_HEADS,
    MODULES,
    VOCABULARY,
    WIDTH,
    base_config,
    base_file,
    expected_change,
    factors,
    read_tensors,
    write_folder,
)
from tests.web.accounts import new_token


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "Little-Base.gguf"
    path.write_bytes(base_file())
    return path


def written(folder: Path, config: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_file_a_folder_and_a_registered_model_have_the_same_facts(
    registry: LocalRegistry, tmp_path: Path, base: Path
) -> None:
    add_model(registry, base)
    folder = written(tmp_path / "hf", base_config())
    registered = registered_base(registry, "Little-Base")
    for facts in (base_in(base), base_in(folder), registered, chosen_base(registry, str(base))):
        assert (facts.architecture, facts.blocks) == ("llama", BLOCKS)
        assert (facts.heads, facts.kv_heads, facts.is_tied) == (HEADS, KV_HEADS, False)
    assert base_in(base).shapes["blk.1.attn_k.weight"] == base_in(folder).shapes["k_proj"] == (WIDTH, WIDTH // 2)
    assert base_in(base).shapes["output.weight"] == base_in(folder).shapes["lm_head"] == (WIDTH, VOCABULARY)
    assert base_in(base).shapes == registered.shapes


def test_the_configuration_of_a_model_with_several_parts_is_that_of_its_text(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "text_config": base_config("gemma3_text"), "vision_config": {"hidden_size": 1}}
    facts = base_in(written(tmp_path / "hf", config))
    assert (facts.architecture, facts.heads, facts.is_tied) == ("gemma3", HEADS, True)


def test_the_width_of_a_head_and_tied_embeddings_are_read(tmp_path: Path) -> None:
    config = base_config("qwen3", head_dim=32, tie_word_embeddings=True)
    facts = base_in(written(tmp_path / "hf", config))
    assert (facts.shapes["q_proj"], facts.shapes["o_proj"]) == ((WIDTH, 32 * HEADS), (32 * HEADS, WIDTH))
    assert facts.is_tied


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "llama"},
        base_config(num_attention_heads=0),
        base_config(hidden_size=1 << 40),
        base_config(num_hidden_layers="many"),
        base_config("gemma3", text_config={"hidden_size": 4}),
    ],
)
def test_a_configuration_without_the_facts_is_refused(tmp_path: Path, config: object) -> None:
    with pytest.raises(UnknownBase, match=r"config\.json: "):
        base_in(written(tmp_path / "hf", config))


def test_a_folder_without_a_configuration_and_an_adapter_are_no_base(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="No such file"):
        base_in(tmp_path)
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(file_bytes([text("general.type", "adapter")], [tensor("blk.0.attn_q.weight.lora_a", (4, 4))]))
    with pytest.raises(UnknownBase, match=r"its general\.type is 'adapter'"):
        base_in(adapter)


def test_the_cache_of_the_hub_has_the_configuration_of_a_base(tmp_path: Path) -> None:
    adapter = write_folder(tmp_path / "lora")
    assert local_base("acme/Little-Base", adapter, tmp_path / "hub") is None
    written(tmp_path / "hub" / "models--acme--Little-Base" / "snapshots" / "abc", base_config())
    facts = local_base("acme/Little-Base", adapter, tmp_path / "hub")
    assert facts is not None
    assert facts.heads == HEADS
    for stated in ("", "acme", "../Little-Base", "acme/../..", "a\0b", "acme/*"):
        assert local_base(stated, adapter, tmp_path / "hub") is None


def test_add_model_searches_the_cache_of_the_hub_for_the_base(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "My-LoRA")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(UnknownBase):
        add_model(registry, folder)
    written(tmp_path / "hub" / "models--acme--Little-Base" / "snapshots" / "abc", base_config())
    assert add_model(registry, folder).created


def test_a_registered_model_with_the_name_of_the_base_is_found(registry: LocalRegistry, base: Path) -> None:
    assert base_by_name(registry, "acme/Little-Base") is None
    add_model(registry, base)
    facts = base_by_name(registry, "acme/Little-Base")
    assert facts is not None
    assert (facts.label, facts.parent.name) == ("local/Little-Base@1", "")
    assert base_by_name(registry, "/data/models/Little-Base/") is not None
    assert base_by_name(registry, "acme/Other") is None
    with pytest.raises(NotFound):
        chosen_base(registry, "acme/Other")


@pytest.mark.long
def test_an_adapter_is_registered_and_composed_with_the_sum_that_peft_computes(
    registry: LocalRegistry, tmp_path: Path, base: Path
) -> None:
    weights = factors(list(MODULES))
    folder = write_folder(tmp_path / "My-LoRA", weights)
    add_model(registry, base)
    added = add_model(registry, folder)
    assert (added.model, added.created) == ("local/My-LoRA@1", True)
    assert not add_model(registry, folder).created
    model = registry.model("My-LoRA")
    assert (model.kind, model.architecture, len(model.organs)) == ("adapter", "llama", 2 * len(MODULES))
    assert [(edge.direction, edge.model) for edge in model.relatives] == [("parent", "local/Little-Base@1")]

    plan = registry.compose("Little-Base").adapter("My-LoRA", 0.5).named("me/merged").plan()
    assert [finding.code for finding in plan.findings if finding.severity == "refuse"] == []
    plan.accepting_all().assemble(tmp_path / "merged.gguf")
    before, after = read_tensors(base.read_bytes()), read_tensors((tmp_path / "merged.gguf").read_bytes())
    for module, (target, _) in MODULES.items():
        wanted = before[target] + 0.5 * expected_change(module, weights)
        assert np.allclose(after[target], wanted, rtol=1e-6, atol=1e-7), module
    assert np.array_equal(after["token_embd.weight"], before["token_embd.weight"])


@pytest.mark.long
def test_the_base_can_be_named_if_the_adapter_names_another(
    registry: LocalRegistry, tmp_path: Path, base: Path
) -> None:
    folder = write_folder(tmp_path / "lora", base_model_name_or_path="somebody/Quantised-Base")
    with pytest.raises(UnknownBase, match="somebody/Quantised-Base"):
        add_model(registry, folder)
    add_model(registry, base)
    added = add_model(registry, folder, base="Little-Base")
    (edge,) = registry.model(str(added.model)).relatives
    assert (edge.model, edge.relation) == ("local/Little-Base@1", "adapter")


@pytest.mark.long
def test_the_base_of_a_pushed_adapter_is_looked_up_at_the_server(
    registry: LocalRegistry, tmp_path: Path, base: Path
) -> None:
    add_model(registry, base)
    folder = write_folder(tmp_path / "my-lora", base_model_name_or_path="local/Little-Base")
    token = new_token(registry, "me", "upload", "read")
    with serve_registry(registry) as there, RemoteRegistry(there.url, token) as remote:
        facts = registered_base(remote, "Little-Base")
        assert facts.shapes == base_in(base).shapes
        assert (facts.heads, facts.kv_heads) == (HEADS, KV_HEADS)
        added = add_model(remote, folder)
        assert added.created
        assert added.model is not None
        assert remote.model(added.model).kind == "adapter"
