"""Tests of PEFT folders: the adapter has the values that PEFT applies, and what cannot be converted is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from organs.ingest.adapted_base import AdaptedBase, ParentName, base_in, chosen_base, local_base, registered_base
from organs.ingest.add import add_model
from organs.ingest.peft import PICKLE_FILE, WEIGHTS_FILE, AdapterFile, open_adapter, read_config
from organs.ingest.peft_export import check_exportable, export_adapter
from organs.ingest.safetensors import SafetensorsFile
from organs.ingest.sources import skipped_files
from organs.registry.errors import BadAdapter, BadInput, BadSource, UnknownBase
from organs.registry.gguf import Header, MemorySource, read_header
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes, tensor, text
from tests.ingest.one_source import source_of
from tests.ingest.peft_folders import (
    ALPHA,
    BLOCKS,
    HEADS,
    INNER,
    KV_HEADS,
    MODULES,
    PREFIX,
    RANK,
    VOCABULARY,
    WIDTH,
    Matrix,
    base_config,
    base_file,
    change_in,
    expected_change,
    factors,
    in_file_order,
    read_tensors,
    root_scale,
    safetensors_bytes,
    write_folder,
)

REORDERED = ("llama", "mistral", "mixtral", "granite", "granitemoe", "ministral3", "smollm3")
"""Types of models whose queries and keys have another order in GGUF files."""
Q, K, V = (f"model.layers.0.self_attn.{part}_proj" for part in "qkv")


def opened_adapter(folder: Path, base: AdaptedBase | None = None) -> bytes:
    with ExitStack() as opened:
        file = open_adapter(opened, folder, base)
        return file.read_at(0, file.size_bytes)


def converted(
    folder: Path, weights: Mapping[str, Matrix], model_type: str = "llama", **options: Any
) -> dict[str, Matrix]:
    """Return the tensors of the adapter that is made of a new PEFT folder with the configuration of its base."""
    return read_tensors(opened_adapter(write_folder(folder, weights, base_config(model_type), **options)))


def remarks(folder: Path) -> list[str]:
    with ExitStack() as opened:
        file = open_adapter(opened, folder)
        assert isinstance(file, AdapterFile)
        return list(file.notes(None, {}))  # type: ignore[arg-type]


def header_of(data: bytes) -> Header:
    return read_header(MemorySource(data))


def reasons(folder: Path, base: AdaptedBase | None = None) -> str:
    with pytest.raises(BadAdapter) as caught:
        opened_adapter(folder, base)
    return str(caught.value)


@pytest.mark.parametrize("is_stabilised", [False, True], ids=["plain", "rank-stabilised"])
@pytest.mark.parametrize("has_file", [False, True], ids=["a configuration as base", "a GGUF file as base"])
def test_the_adapter_changes_every_tensor_as_peft_does(tmp_path: Path, is_stabilised: bool, has_file: bool) -> None:
    weights = factors(list(MODULES))
    (tmp_path / "base.gguf").write_bytes(base_file())
    folder = write_folder(tmp_path / "lora", weights, None if has_file else base_config(), use_rslora=is_stabilised)
    data = opened_adapter(folder, base_in(tmp_path / "base.gguf") if has_file else None)
    tensors, header = read_tensors(data), header_of(data)
    assert (header.text("general.type"), header.text("adapter.type")) == ("adapter", "lora")
    assert header.architecture == "llama"
    declared = [header.text(f"general.base_model.0.{key}") for key in ("name", "organization", "repo_url")]
    of_hub = ["Little-Base", "acme", "https://huggingface.co/acme/Little-Base"]
    assert declared == (["Little Base", None, None] if has_file else of_hub)
    alpha = header.field("adapter.lora.alpha")
    assert alpha is not None
    assert alpha.value == ALPHA * (np.sqrt(RANK) if is_stabilised else 1)
    assert len(tensors) == 2 * len(MODULES)
    scale = root_scale(ALPHA, RANK) if is_stabilised else ALPHA / RANK
    for module, (target, _) in MODULES.items():
        change = change_in(tensors, target, float(str(alpha.value)))
        rounding = 1e-6 if is_stabilised else 0
        assert np.allclose(change, expected_change(module, weights, scale), rtol=rounding, atol=0), module


def test_only_rows_of_queries_and_keys_of_llama_models_are_reordered(tmp_path: Path) -> None:
    weights = factors((Q, K, V))
    orders: dict[str, list[bool]] = {}
    plain = ("qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo2", "qwen2_moe", "qwen3_moe")
    for model_type in (*REORDERED, *plain):
        tensors = converted(tmp_path / model_type, weights, model_type)
        stored = {part: weights[f"{PREFIX}{part}.lora_B.weight"] for part in (Q, K, V)}
        orders[model_type] = [np.array_equal(tensors[f"{MODULES[part][0]}.lora_b"], stored[part]) for part in (Q, K, V)]
    assert all(orders.pop(model_type) == [False, False, True] for model_type in REORDERED)
    assert set(map(tuple, orders.values())) == {(True, True, True)}


def test_any_part_of_the_file_has_the_bytes_of_the_whole(tmp_path: Path) -> None:
    half = {name: values.astype(np.float16) for name, values in factors((Q, K)).items()}
    folder = write_folder(tmp_path / "lora", half, base_config(), alpha_pattern={"k_proj": 5})
    whole = opened_adapter(folder)
    assert read_tensors(whole)[f"{MODULES[Q][0]}.lora_b"].dtype == np.float16, "the stored type is kept"
    random = np.random.default_rng(0)
    with ExitStack() as opened:
        file = open_adapter(opened, folder)
        for begin, end in np.sort(random.integers(0, len(whole), (200, 2)), axis=1).tolist():
            assert file.read_at(begin, end - begin) == whole[begin:end]


def test_other_alphas_and_ranks_of_some_modules_are_multiplied_into_their_factors(tmp_path: Path) -> None:
    weights = factors((Q,)) | factors((V,), rank=2)
    folder = write_folder(
        tmp_path / "lora",
        weights,
        base_config(),
        rank_pattern={"v_proj": 2},
        alpha_pattern={"layers.0.self_attn.q_proj": 3, "^model.layers.9.self_attn.v_proj": 100},
    )
    tensors = read_tensors(opened_adapter(folder))
    assert np.allclose(change_in(tensors, MODULES[Q][0], ALPHA), expected_change(Q, weights, 3 / RANK), rtol=1e-5)
    assert np.array_equal(change_in(tensors, MODULES[V][0], ALPHA), expected_change(V, weights, ALPHA / 2))
    assert remarks(folder) == [
        "converted from a PEFT folder: 2 modules, rank 2 and 4, alpha 8",
        "1 modules have another scale than the others; it is multiplied into their factors",
    ]


def embedding_weights() -> dict[str, Matrix]:
    random = np.random.default_rng(3)
    shapes = {
        f"{PREFIX}model.embed_tokens.lora_embedding_A": (RANK, VOCABULARY),
        f"{PREFIX}model.embed_tokens.lora_embedding_B": (WIDTH, RANK),
        f"{PREFIX}model.embed_tokens.base_layer.weight": (VOCABULARY, WIDTH),
        f"{PREFIX}lm_head.lora_A.weight": (RANK, WIDTH),
        f"{PREFIX}lm_head.lora_B.weight": (VOCABULARY, RANK),
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_adapters_of_embeddings_and_of_the_output_are_converted(tmp_path: Path) -> None:
    weights = embedding_weights()
    tensors = converted(tmp_path / "lora", weights)
    first, second, _, third, fourth = weights.values()
    expected = {
        "token_embd.weight.lora_a": first.T,
        "token_embd.weight.lora_b": second,
        "output.weight.lora_a": third,
        "output.weight.lora_b": fourth,
    }
    assert tensors.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(tensors[name], values), name


def test_adapters_of_embeddings_are_refused_if_the_output_is_the_same_matrix(tmp_path: Path) -> None:
    tied = write_folder(tmp_path / "tied", embedding_weights(), base_config(tie_word_embeddings=True))
    assert reasons(tied).count("uses one matrix for embeddings and output") == 2
    gemma = write_folder(tmp_path / "gemma", embedding_weights(), base_config("gemma"))
    assert "uses one matrix for embeddings and output" in reasons(gemma)
    (tmp_path / "tied.gguf").write_bytes(base_file(tied=True))
    untied = write_folder(tmp_path / "untied", embedding_weights())
    assert "uses one matrix" in reasons(untied, base_in(tmp_path / "tied.gguf"))


def test_a_resized_vocabulary_is_refused(tmp_path: Path) -> None:
    weights = embedding_weights()
    weights[f"{PREFIX}model.embed_tokens.base_layer.weight"] = np.zeros((VOCABULARY + 8, WIDTH), np.float32)
    folder = write_folder(tmp_path / "lora", weights, base_config())
    assert f"{PREFIX}model.embed_tokens.base_layer.weight cannot be converted" in reasons(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lora_A.weight", "lora_A.default.weight"),
        ("base_model.model.model.", "base_model.model."),
        ("base_model.model.model.", "model."),
        ("base_model.model.model.", "base_model.model.model.language_model."),
        ("base_model.model.model.", "base_model.model.language_model.model."),
    ],
)
def test_the_names_of_other_versions_and_model_classes_are_known(tmp_path: Path, old: str, new: str) -> None:
    weights = factors((Q, V))
    renamed = {name.replace(old, new): values for name, values in weights.items()}
    renamed = {
        name.replace("B.weight", "B.default.weight") if "default" in new else name: renamed[name] for name in renamed
    }
    assert renamed.keys() != weights.keys()
    wanted = opened_adapter(write_folder(tmp_path / "plain", weights, base_config()))
    assert opened_adapter(write_folder(tmp_path / "renamed", renamed, base_config())) == wanted


def test_the_base_can_be_a_folder_that_the_adapter_names(tmp_path: Path) -> None:
    base = written(tmp_path / "base", base_config())
    data = opened_adapter(write_folder(tmp_path / "lora", base_model_name_or_path=str(base)))
    beside = write_folder(tmp_path / "beside", base=base_config(), base_model_name_or_path=str(base))
    assert data == opened_adapter(beside)
    assert header_of(data).text("general.base_model.0.name") == "base"
    assert header_of(data).text("general.base_model.0.repo_url") is None


def test_without_a_base_the_message_says_how_to_name_it(tmp_path: Path) -> None:
    with pytest.raises(UnknownBase, match=r"its base is 'acme/Little-Base'.*name the base: --base MODEL"):
        opened_adapter(write_folder(tmp_path / "lora"))
    with pytest.raises(UnknownBase, match="it names no base"):
        opened_adapter(write_folder(tmp_path / "nameless", base_model_name_or_path=None))


@pytest.mark.parametrize("model_type", ["deepseek_v3", "glm4", "bert", "mistral3"])
def test_another_architecture_is_refused_by_its_name(tmp_path: Path, model_type: str) -> None:
    folder = write_folder(tmp_path / "lora", base=base_config(model_type))
    supported = (
        "gemma, gemma2, gemma3, gpt-oss, granite, granitemoe, llama, mistral3, olmo2, phi3, qwen2, qwen2moe, qwen3"
    )
    assert f"has the architecture {model_type!r}; supported are {supported}" in reasons(folder)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"peft_type": "IA3"}, "its peft_type is 'IA3'; only LORA is supported"),
    "an activated LoRA with whole modules": (
        {"alora_invocation_tokens": [1], "modules_to_save": ["lm_head"]},
        "it is an activated LoRA (alora_invocation_tokens) with whole modules (modules_to_save): a runtime cannot load",
    ),
    "an activated DoRA": ({"alora_invocation_tokens": [1], "use_dora": True}, "with a DoRA (use_dora)"),
    "a token below zero": ({"alora_invocation_tokens": [-1]}, "Expected `int` >= 0"),
    "retrained tokens": ({"trainable_token_indices": [1]}, "trainable_token_indices"),
    "repeated layers": ({"layer_replication": [[0, 2]]}, "it repeats layers of its base"),
    "a method of the future": ({"use_magic": True}, "it uses use_magic, which this program does not know"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, "changed the weights of the base first"),
    "no alpha": ({"lora_alpha": 0}, "its lora_alpha is 0"),
    "a rank of zero": ({"r": 0}, "Expected `int` >= 1 - at `$.r`"),
    "a repeated group": ({"alpha_pattern": {"(a+)+$": 2, "q_proj": 3}}, "its alpha_pattern has (a+)+$: expressions of"),
    "an expression with many ways": (
        {"alpha_pattern": {"(a|b|c|d|e)" * 6 + ".*.*": 2}},
        "the expressions of its alpha_pattern take too long to match",
    ),
    "an alpha that is no number": ({"alpha_pattern": {"q_proj": 1e300}}, "a value that is too large"),
    "an endless name": ({"base_model_name_or_path": "x" * 10_000}, "base_model_name_or_path is too long"),
    "half of a character": ({"base_model_name_or_path": "a\ud800"}, "characters that cannot be printed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_adapter_cannot_have_is_refused_with_a_sentence(tmp_path: Path, case: str) -> None:
    config, sentence = REFUSED[case]
    assert sentence in reasons(write_folder(tmp_path / "lora", base=base_config(), **config))


def test_members_without_an_effect_are_ignored(tmp_path: Path) -> None:
    plain = opened_adapter(write_folder(tmp_path / "plain", base=base_config()))
    config = {"bias": "all", "fan_in_fan_out": True, "modules_to_save": [], "layers_to_transform": [0], "new": 7}
    more = write_folder(tmp_path / "more", base=base_config(), init_lora_weights="gaussian", **config)
    assert opened_adapter(more) == plain


def changed_weights(**changes: Matrix | None) -> dict[str, Matrix]:
    """Return factors of Q and V with other tensors; `lora_A` and so on mean those of Q."""
    weights = factors((Q, V))
    for name, values in changes.items():
        full = f"{PREFIX}{Q}.{name}.weight" if name in ("lora_A", "lora_B") else name
        weights.pop(full, None)
        if values is not None:
            weights[full] = values
    return weights


WRONG_WEIGHTS = {
    "one factor": (changed_weights(lora_B=None), f"{Q} has only one of two factors"),
    "another width": (
        changed_weights(lora_A=np.zeros((RANK, WIDTH + 1), np.float32)),
        f"{Q} is for a matrix of {WIDTH} × {WIDTH + 1}",
    ),
    "two ranks": (changed_weights(lora_A=np.zeros((RANK + 1, WIDTH), np.float32)), f"{Q} has factors of the shapes"),
    "a rank of zero": (
        changed_weights(lora_A=np.zeros((0, WIDTH), np.float32), lora_B=np.zeros((WIDTH, 0), np.float32)),
        f"{Q} has factors of the shapes",
    ),
    "whole numbers": (changed_weights(lora_A=np.zeros((RANK, WIDTH), np.int64)), f"{Q} has values of the type I64"),
    "a bias": (
        changed_weights(**{f"{PREFIX}{Q}.lora_B.bias": np.zeros(WIDTH, np.float32)}),
        f"{PREFIX}{Q}.lora_B.bias cannot be converted",
    ),
    "a block that the base lacks": (
        changed_weights(
            **{f"{PREFIX}model.layers.{BLOCKS}.mlp.up_proj.lora_A.weight": np.zeros((RANK, WIDTH), np.float32)}
        ),
        f"in the {BLOCKS} blocks of its base",
    ),
    "a module that the base lacks": (
        changed_weights(
            **{f"{PREFIX}model.layers.0.block_sparse_moe.gate.lora_A.weight": np.zeros((RANK, WIDTH), np.float32)}
        ),
        "block_sparse_moe.gate.lora_A.weight cannot be converted",
    ),
    "two adapters": (
        changed_weights(
            **{
                f"{PREFIX}{K}.lora_A.first.weight": np.zeros((RANK, WIDTH), np.float32),
                f"{PREFIX}{K}.lora_B.second.weight": np.zeros((WIDTH // 2, RANK), np.float32),
            }
        ),
        "it has several adapters: first, second and without a name",
    ),
    "nothing": ({}, "it has no weights of a LoRA"),
}


@pytest.mark.parametrize("case", WRONG_WEIGHTS)
def test_weights_that_do_not_fit_are_refused_with_a_sentence(tmp_path: Path, case: str) -> None:
    weights, sentence = WRONG_WEIGHTS[case]
    assert sentence in reasons(write_folder(tmp_path / "lora", weights, base_config()))


def test_heads_that_do_not_divide_the_rows_are_refused(tmp_path: Path) -> None:
    shapes = {own: shape[::-1] for own, shape in MODULES.values()}

    def base(heads: int | None) -> AdaptedBase:
        return AdaptedBase("base", "llama", BLOCKS, heads, KV_HEADS, shapes, is_tied=False, parent=ParentName())

    folder = write_folder(tmp_path / "lora", factors((Q,)))
    assert f"the {WIDTH} rows of {Q} are not 5 heads of an even width" in reasons(folder, base(5))
    assert f"are not {WIDTH} heads of an even width" in reasons(folder, base(WIDTH))
    assert f"the number of heads for {Q} is not known from base" in reasons(folder, base(None))
    assert opened_adapter(write_folder(tmp_path / "values", factors((V,))), base(None))


def test_all_reasons_are_listed_at_once(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "lora", base=base_config(), trainable_token_indices=[1], lora_bias=True)
    with pytest.raises(BadAdapter) as caught:
        opened_adapter(folder)
    assert len(caught.value.errors) == 2


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "lora", base=base_config())
    (folder / WEIGHTS_FILE).unlink()
    (folder / PICKLE_FILE).write_bytes(b"cos\nsystem\n(S'touch stolen'\ntR.")
    for path in (folder, folder / PICKLE_FILE):
        with pytest.raises(BadSource, match=r"a pickle.*model.save_pretrained\(FOLDER, safe_serialization=True\)"):
            opened_adapter(source_of(path).paths[0])
    (folder / PICKLE_FILE).unlink()
    with pytest.raises(BadSource, match="No such file"):
        opened_adapter(folder)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b'{"r": 1, "r": 2}', b"[" * 9000, b" " * (2 << 20)])
def test_a_configuration_that_is_not_json_of_some_size_is_refused(tmp_path: Path, text: bytes) -> None:
    folder = write_folder(tmp_path / "lora", base=base_config())
    (folder / "adapter_config.json").write_bytes(text)
    assert "adapter_config.json: " in reasons(folder)
    folder = write_folder(tmp_path / "other", base=base_config())
    (folder / "config.json").write_bytes(text)
    with pytest.raises(UnknownBase):
        opened_adapter(folder)


def test_changed_weights_are_detected_while_they_are_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "lora", base=base_config())
    with ExitStack() as opened:
        file = open_adapter(opened, folder)
        file.check_unchanged()
        (folder / WEIGHTS_FILE).write_bytes((folder / WEIGHTS_FILE).read_bytes()[:-1] + b"\1")
        with pytest.raises(BadSource, match="changed while it was read"):
            file.check_unchanged()


def test_a_folder_is_one_source_and_its_checkpoints_are_left_out(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "my-lora", base=base_config())
    write_folder(folder / "checkpoint-100", base=base_config())
    for name in ("README.md", "optimizer.pt", "training_args.bin"):
        (folder / name).touch()
    for way in (folder, folder / WEIGHTS_FILE, folder / "adapter_config.json", tmp_path, tmp_path / "my-*"):
        source = source_of(way)
        assert (source.paths, str(source.name), source.adapter) == ((folder,), "local/my-lora", folder)
    assert skipped_files([str(tmp_path)]).files == 0
    assert str(source_of(folder / "checkpoint-100").name) == "local/checkpoint-100"


@pytest.mark.parametrize("form", ["plain", "DoRA", "whole", "stacks", "experts", "MLX"])
def test_a_changed_byte_anywhere_in_the_two_files_is_refused_or_does_no_harm(tmp_path: Path, form: str) -> None:
    weights: Mapping[str, Matrix] = factors((Q, V))
    base, options = base_config(), dict[str, Any]()
    if form == "DoRA":
        weights, options = dora_weights(), {"use_dora": True, "alpha_pattern": {r"layers\.\d+\..*": 3}}
    elif form == "whole":
        weights, options = whole_weights(), {"modules_to_save": SAVED}
    elif form in ("stacks", "experts"):
        weights = stack_weights() if form == "stacks" else expert_weights((0, 3))
        base, options = MOE, {"target_parameters": TARGETS}
    write = write_mlx if form == "MLX" else write_folder
    folder = write(tmp_path / "lora", weights, base, **options)
    random = np.random.default_rng(5)
    outcomes = set()
    files = (path for path in folder.iterdir() if path.name not in ("config.json",))
    for path in sorted(files):
        original = path.read_bytes()
        for _ in range(30):
            data = bytearray(original)
            data[random.integers(len(data))] = int(random.integers(256))
            path.write_bytes(data)
            try:
                outcomes.add(len(opened_adapter(folder)) > 0)
            except BadInput:
                outcomes.add(False)
        path.write_bytes(original)
    assert outcomes == {True, False}


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
    assert (
        base_in(base).shapes["blk.1.attn_k.weight"] == base_in(folder).shapes["self_attn.k_proj"] == (WIDTH, WIDTH // 2)
    )
    assert base_in(base).shapes["output.weight"] == base_in(folder).shapes["lm_head"] == (WIDTH, VOCABULARY)
    assert base_in(base).shapes == registered.shapes


def test_a_configuration_can_have_several_parts_the_width_of_a_head_and_tied_embeddings(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "text_config": base_config("gemma3_text"), "vision_config": {"hidden_size": 1}}
    facts = base_in(written(tmp_path / "gemma", config))
    assert (facts.architecture, facts.heads, facts.is_tied) == ("gemma3", HEADS, True)
    facts = base_in(written(tmp_path / "qwen", base_config("qwen3", head_dim=32, tie_word_embeddings=True)))
    shapes = facts.shapes["self_attn.q_proj"], facts.shapes["self_attn.o_proj"]
    assert shapes == ((WIDTH, 32 * HEADS), (32 * HEADS, WIDTH))
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


def test_the_cache_of_the_hub_has_the_configuration_of_a_base(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, hub = write_folder(tmp_path / "lora"), tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    assert local_base("acme/Little-Base", adapter, hub) is None
    with pytest.raises(UnknownBase):
        add_model(registry, adapter)
    written(hub / "models--acme--Little-Base" / "snapshots" / "abc", base_config())
    facts = local_base("acme/Little-Base", adapter, hub)
    assert facts is not None
    assert facts.heads == HEADS
    for stated in ("", "acme", "../Little-Base", "acme/../..", "a\0b", "acme/*"):
        assert local_base(stated, adapter, hub) is None
    assert add_model(registry, adapter).created


def test_the_configuration_of_a_mixture_of_experts_has_the_shapes_of_its_stacks(tmp_path: Path) -> None:
    experts = {"num_experts": 5, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}
    facts = base_in(written(tmp_path / "moe", base_config("qwen2_moe", **experts)))
    assert (facts.architecture, facts.experts) == ("qwen2moe", 5)
    assert facts.shapes["mlp.experts.gate_proj"] == (WIDTH, 24, 5)
    assert facts.shapes["mlp.experts.down_proj"] == (24, WIDTH, 5)
    assert facts.shapes["mlp.shared_expert.up_proj"] == (WIDTH, 40)
    facts = base_in(written(tmp_path / "mixtral", base_config("mixtral", num_local_experts=3)))
    assert (facts.architecture, facts.shapes["mlp.experts.up_proj"]) == ("llama", (WIDTH, INNER, 3))


def test_an_adapter_is_registered_once_as_a_child_of_its_base(
    registry: LocalRegistry, tmp_path: Path, base: Path
) -> None:
    folder = write_folder(tmp_path / "My-LoRA")
    add_model(registry, base)
    added = add_model(registry, folder)
    assert (added.model, added.created) == ("local/My-LoRA@1", True)
    assert not add_model(registry, folder).created
    model = registry.model("My-LoRA")
    assert (model.kind, model.architecture, len(model.organs)) == ("adapter", "llama", 2 * len(MODULES))
    assert [(edge.direction, edge.model) for edge in model.relatives] == [("parent", "local/Little-Base@1")]
    plan = registry.compose("Little-Base").adapter("My-LoRA", 0.5).named("me/merged").plan()
    assert [finding.code for finding in plan.findings if finding.severity == "refuse"] == []


def exported(folder: Path, adapter: bytes, base: AdaptedBase, **options: bool) -> Path:
    """Write an adapter in GGUF, and return the PEFT folder that is made of it."""
    (folder / "adapter.gguf").write_bytes(adapter)
    with FileSource(folder / "adapter.gguf") as file:
        export_adapter(file, base, folder / "exported", **options)
    return folder / "exported"


def alpha_of(data: bytes) -> object:
    field = header_of(data).field("adapter.lora.alpha")
    return None if field is None else field.value


def config_of(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
    return values


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "granite"])
def test_a_peft_folder_of_an_adapter_in_gguf_gives_the_same_factors_again(tmp_path: Path, model_type: str) -> None:
    """Of llama models, the rows for queries and keys are put back in the order of the Hugging Face tools."""
    weights = factors(list(MODULES))
    weights[f"{PREFIX}lm_head.lora_A.weight"] = np.ones((RANK, WIDTH), np.float32)
    weights[f"{PREFIX}lm_head.lora_B.weight"] = np.ones((VOCABULARY, RANK), np.float32)
    numbers = np.arange(RANK * VOCABULARY, dtype=np.float32)
    weights[f"{PREFIX}model.embed_tokens.lora_embedding_A"] = numbers.reshape(RANK, VOCABULARY)
    weights[f"{PREFIX}model.embed_tokens.lora_embedding_B"] = np.ones((WIDTH, RANK), np.float32)
    first = write_folder(tmp_path / "first", weights, base_config(model_type, tie_word_embeddings=False))
    data = opened_adapter(first)
    folder = exported(tmp_path, data, base_in(first))
    (folder / "config.json").write_text((first / "config.json").read_text())
    again = opened_adapter(folder)
    assert read_tensors(again).keys() == read_tensors(data).keys()
    for name, values in read_tensors(data).items():
        assert read_tensors(again)[name].tobytes() == values.tobytes(), name
    assert alpha_of(again) == alpha_of(data) == ALPHA
    with SafetensorsFile(folder / WEIGHTS_FILE) as file:
        for name, values in weights.items():
            entry = file.entries[name]
            assert entry.shape == values.shape
            assert np.array_equal(file.read(entry, 0, entry.elements).reshape(entry.shape), values), name
    modules = ["down_proj", "embed_tokens", "gate_proj", "k_proj", "lm_head", "o_proj", "q_proj", "up_proj", "v_proj"]
    config = config_of(folder)
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (RANK, ALPHA, modules)


def test_ranks_that_differ_and_modules_of_some_blocks_are_in_the_configuration(tmp_path: Path) -> None:
    weights = {
        **factors([Q]),
        **{name: values[:2] if "_A" in name else values[:, :2] for name, values in factors([V]).items()},
    }
    first = write_folder(tmp_path / "first", weights, base_config(), rank_pattern={V: 2})
    data = opened_adapter(first)
    folder = exported(tmp_path, data, base_in(first))
    config = config_of(folder)
    assert (config["r"], config["rank_pattern"], config["target_modules"]) == (RANK, {V: 2}, [Q, V])
    (folder / "config.json").write_text((first / "config.json").read_text())
    again = opened_adapter(folder)
    assert alpha_of(again) == alpha_of(data)
    for name, values in read_tensors(data).items():
        assert read_tensors(again)[name].tobytes() == values.tobytes(), name


FUSED = {
    f"self_attn.{name}": shape for name, shape in {"qkv_proj": (2 * WIDTH, WIDTH), "o_proj": (WIDTH, WIDTH)}.items()
}
FUSED |= {"mlp.gate_up_proj": (2 * INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER)}
ATTENTION = {f"self_attn.{part}_proj": MODULES[f"model.layers.0.self_attn.{part}_proj"][1] for part in "qkvo"}
SHARED = {"mlp.shared_expert.gate_proj": (INNER, WIDTH), "mlp.shared_expert.down_proj": (WIDTH, INNER)}
OF_EXPERTS = {"num_experts": 5, "num_local_experts": 5, "moe_intermediate_size": 24}


@pytest.mark.parametrize(
    ("model_type", "shapes"),
    [
        ("phi3", FUSED),
        ("gpt_oss", ATTENTION),
        ("granitemoe", ATTENTION),
        ("qwen2_moe", {**ATTENTION, **SHARED}),
    ],
)
def test_fused_modules_and_those_beside_experts_give_the_same_factors_again(
    tmp_path: Path, model_type: str, shapes: Mapping[str, tuple[int, int]]
) -> None:
    random, weights = np.random.default_rng(16), {}
    for block in range(BLOCKS):
        for path, (rows, columns) in shapes.items():
            module = f"{PREFIX}model.layers.{block}.{path}"
            weights[f"{module}.lora_A.weight"] = random.standard_normal((RANK, columns)).astype(np.float32)
            weights[f"{module}.lora_B.weight"] = random.standard_normal((rows, RANK)).astype(np.float32)
    of_experts = {} if model_type == "phi3" else OF_EXPERTS | {"shared_expert_intermediate_size": INNER}
    first = write_folder(tmp_path / "first", weights, base_config(model_type, **of_experts))
    data = opened_adapter(first)
    folder = exported(tmp_path, data, base_in(first))
    (folder / "config.json").write_text((first / "config.json").read_text())
    again = opened_adapter(folder)
    assert {name: values.tobytes() for name, values in read_tensors(again).items()} == {
        name: values.tobytes() for name, values in read_tensors(data).items()
    }
    with SafetensorsFile(folder / WEIGHTS_FILE) as file:
        assert file.entries.keys() == weights.keys()
        for name, values in weights.items():
            entry = file.entries[name]
            assert np.array_equal(file.read(entry, 0, entry.elements).reshape(entry.shape), values), name
    targets = config_of(folder)["target_modules"]
    complete = sorted(f"model.layers.{block}.{path}" for block in range(BLOCKS) for path in shapes)
    assert targets == (complete if model_type == "qwen2_moe" else sorted(path.rpartition(".")[2] for path in shapes))


def test_stacks_of_experts_and_what_is_more_than_a_lora_are_not_exported(tmp_path: Path) -> None:
    cases: dict[str, tuple[dict[str, Matrix], dict[str, object], dict[str, Any], list[str]]] = {
        "stacks": (
            stack_weights(), MOE, {"target_parameters": TARGETS},
            ["PEFT has no names for blk.0.ffn_gate_exps.weight, ", "write a GGUF file"],
        ),
        "dora": (dora_weights(), base_config(), {"use_dora": True}, ["it has magnitudes (DoRA), whole tensors"]),
        "whole": (
            {**factors([Q]), f"{PREFIX}lm_head.weight": np.ones((VOCABULARY, WIDTH), np.float32)},
            base_config(), {"modules_to_save": ["lm_head"]}, ["only a LoRA is written as PEFT saves it"],
        ),
        "activated": (factors([Q]), base_config(), {"alora_invocation_tokens": [1]}, ["it is an activated LoRA"]),
    }  # fmt: skip
    for name, (weights, config, options, sentences) in cases.items():
        folder = write_folder(tmp_path / name, weights, config, **options)
        with pytest.raises(BadInput) as caught:
            exported(tmp_path, opened_adapter(folder), base_in(folder))
        assert all(sentence in str(caught.value) for sentence in sentences), caught.value
    assert not (tmp_path / "exported").exists()


def test_an_adapter_that_peft_has_no_names_for_is_not_exported(tmp_path: Path) -> None:
    keys = [text("general.architecture", "llama"), text("general.type", "adapter")]
    names = ("blk.0.ffn_up_exps.weight", "blk.0.attn_q.weight")
    data = file_bytes(keys, [tensor(f"{name}.lora_{half}", (2, 2)) for name in names for half in "ab"])
    first = write_folder(tmp_path / "first", base=base_config())
    with pytest.raises(BadInput) as caught:
        exported(tmp_path, data, base_in(first))
    assert "PEFT has no names for blk.0.ffn_up_exps.weight" in str(caught.value)
    assert "q_proj is for a matrix of" in str(caught.value)
    assert not (tmp_path / "exported").exists()
    mamba = AdaptedBase("mine", "mamba", 2, None, None, {}, False, ParentName())
    with pytest.raises(BadInput, match="mine has the architecture 'mamba', and PEFT folders are written for"):
        check_exportable(mamba)


def test_only_a_peft_folder_is_replaced_by_another(tmp_path: Path) -> None:
    first = write_folder(tmp_path / "first", base=base_config())
    data, base = opened_adapter(first), base_in(first)
    folder = exported(tmp_path, data, base)
    before = (folder / WEIGHTS_FILE).read_bytes()
    with pytest.raises(BadSource, match="already exists; --force replaces it"):
        exported(tmp_path, data, base)
    exported(tmp_path, data, base, replace=True)
    assert (folder / WEIGHTS_FILE).read_bytes() == before
    (folder / "adapter_config.json").rename(folder / "mine.txt")
    with pytest.raises(BadSource, match="a folder with other content"):
        exported(tmp_path, data, base, replace=True)
    assert sorted(path.name for path in folder.iterdir()) == [WEIGHTS_FILE, "mine.txt"]


# Other forms than plain factors


@pytest.mark.parametrize(
    ("key", "module", "is_matched"),
    [
        ("q_proj", "model.layers.0.self_attn.q_proj", True),
        ("proj", "model.layers.0.self_attn.q_proj", False),
        ("layers.1.self_attn.q_proj", "model.layers.1.self_attn.q_proj", True),
        ("layers.1.self_attn.q_proj", "model.layers.11.self_attn.q_proj", False),
        ("^model.layers.1.self_attn.q_proj$", "model.layers.1.self_attn.q_proj", True),
        ("^q_proj", "model.layers.1.self_attn.q_proj", False),
        (r"layers\.(0|2)\.mlp\.\w+_proj", "model.layers.2.mlp.up_proj", True),
        (r"layers\.(0|2)\.mlp\.\w+_proj", "model.layers.1.mlp.up_proj", False),
        (r".*\.layers\.[0-3]\..*(q|v)_proj", "model.layers.3.self_attn.v_proj", True),
        (r"layers\.\d{1,2}\.mlp.*", "model.layers.17.mlp.gate_proj", True),
        ("q_proj|v_proj", "model.layers.1.self_attn.v_proj", True),
        ("self-attn", "model.layers.1.self_attn", None),
        ("(q_proj)+", "model.layers.1.self_attn.q_proj", None),
        ("(?=q)q_proj", "model.layers.1.self_attn.q_proj", None),
        (r"(\w)\1", "model.layers.1.self_attn.q_proj", None),
        ("[z-a]", "model.layers.1.self_attn.q_proj", None),
        ("(q_proj", "model.layers.1.self_attn.q_proj", None),
        ("q_proj)", "model.layers.1.self_attn.q_proj", None),
        ("x" * 257, "model.layers.1.self_attn.q_proj", None),
    ],
)
def test_a_pattern_applies_to_the_modules_that_peft_matches(
    tmp_path: Path, key: str, module: str, is_matched: bool | None
) -> None:
    folder = write_folder(tmp_path / "lora", base=base_config(), alpha_pattern={key: 40})
    if is_matched is None:
        assert f"its alpha_pattern has {key[:100]}: expressions of names" in reasons(folder)
        return
    assert read_config(folder).scale(module, RANK) == (40 if is_matched else ALPHA) / RANK
    assert bool(re.match(rf"(.*\.)?({key})$", module)) == is_matched, "the rule of peft"


def test_an_activated_lora_stays_an_adapter_that_no_recipe_merges(
    registry: LocalRegistry, tmp_path: Path, base: Path
) -> None:
    folder = write_folder(tmp_path / "Activated", alora_invocation_tokens=[7, 5, 90])
    add_model(registry, base)
    add_model(registry, folder)
    with ExitStack() as opened:
        data = open_adapter(opened, folder, base_in(base))
        header = read_header(MemorySource(data.read_at(0, data.size_bytes)))
        tokens = header.field("adapter.alora.invocation_tokens")
        assert tokens is not None
        assert (header.text("adapter.type"), tokens.count) == ("lora", 3)
    plan = registry.compose("Little-Base").adapter("Activated").plan()
    assert [finding.code for finding in plan.findings if finding.severity == "refuse"] == ["adapter-not-lora"]
    assert any("an activated LoRA: runtimes use it only after" in flag for flag in registry.model("Activated").flags)


def dora_weights() -> dict[str, Matrix]:
    weights = factors((Q, V))
    random = np.random.default_rng(8)
    for module in (Q, V):
        rows = len(weights[f"{PREFIX}{module}.lora_B.weight"])
        values = random.uniform(0.5, 2.0, rows).astype(np.float32)
        weights[f"{PREFIX}{module}.lora_magnitude_vector"] = values
    return weights


def test_a_dora_has_its_magnitudes_in_the_order_of_the_rows_and_a_type_that_no_runtime_loads(tmp_path: Path) -> None:
    weights = dora_weights()
    folder = write_folder(tmp_path / "dora", weights, base_config(), use_dora=True)
    data = opened_adapter(folder)
    tensors, header = read_tensors(data), header_of(data)
    assert header.text("adapter.type") == "lora-merge"
    stored = tensors[f"{MODULES[Q][0]}.lora_magnitude"], tensors[f"{MODULES[V][0]}.lora_magnitude"]
    of_q, of_v = (weights[f"{PREFIX}{module}.lora_magnitude_vector"] for module in (Q, V))
    assert np.array_equal(stored[0], in_file_order(of_q, HEADS))
    assert np.array_equal(stored[1], of_v)
    assert remarks(folder) == ["converted from a PEFT folder: 2 modules, rank 4, alpha 8, DoRA"]


def test_magnitudes_and_the_configuration_must_agree(tmp_path: Path) -> None:
    weights = dora_weights()
    plain = write_folder(tmp_path / "plain", weights, base_config())
    assert f"it is no DoRA (use_dora), but {Q} has a magnitude vector" in reasons(plain)
    del weights[f"{PREFIX}{Q}.lora_magnitude_vector"]
    weights[f"{PREFIX}{V}.lora_magnitude_vector"] = np.ones(3, np.float32)
    half = write_folder(tmp_path / "half", weights, base_config(), use_dora=True)
    assert f"it is a DoRA (use_dora), and {Q} has no magnitude vector" in reasons(half)
    assert f"{V} has magnitudes of the shape (3,) for {WIDTH // 2} rows" in reasons(half)
    embedding = embedding_weights() | {f"{PREFIX}model.embed_tokens.lora_magnitude_vector": np.ones(WIDTH, np.float32)}
    folder = write_folder(tmp_path / "embedding", embedding, base_config(), use_dora=True)
    assert "model.embed_tokens is a DoRA of an embedding or of experts, which is not supported" in reasons(folder)


def whole_weights() -> dict[str, Matrix]:
    random = np.random.default_rng(9)
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "lm_head.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
        "model.layers.1.input_layernorm.weight": (WIDTH,),
        "model.layers.1.self_attn.k_proj.weight": (WIDTH // 2, WIDTH),
        "model.layers.1.self_attn.k_proj.bias": (WIDTH // 2,),
    }
    values = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return factors((Q, V)) | {f"{PREFIX}{name}": value for name, value in values.items()}


SAVED = ["embed_tokens", "lm_head", "norm", "k_proj"]


def test_whole_modules_are_tensors_with_the_names_of_those_that_they_replace(tmp_path: Path) -> None:
    weights = whole_weights()
    folder = write_folder(tmp_path / "whole", weights, base_config(), modules_to_save=SAVED)
    data = opened_adapter(folder)
    tensors = read_tensors(data)
    assert header_of(data).text("adapter.type") == "lora-merge"
    assert next(iter(tensors)) == "token_embd.weight"
    keys = weights[f"{PREFIX}model.layers.1.self_attn.k_proj.weight"]
    expected = {
        "token_embd.weight": weights[f"{PREFIX}model.embed_tokens.weight"],
        "output.weight": weights[f"{PREFIX}lm_head.weight"],
        "output_norm.weight": weights[f"{PREFIX}model.norm.weight"],
        "blk.1.attn_norm.weight": weights[f"{PREFIX}model.layers.1.input_layernorm.weight"],
        "blk.1.attn_k.weight": in_file_order(keys, KV_HEADS),
        "blk.1.attn_k.bias": in_file_order(weights[f"{PREFIX}model.layers.1.self_attn.k_proj.bias"], KV_HEADS),
    }
    assert {name for name in tensors if ".lora_" not in name} == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(tensors[name], values), name
    assert remarks(folder) == ["converted from a PEFT folder: 2 modules, rank 4, alpha 8, 6 whole tensors"]


def test_norms_of_gemma_are_saved_without_the_one_that_gguf_files_add(tmp_path: Path) -> None:
    name = f"{PREFIX}model.layers.0.post_feedforward_layernorm.weight"
    weights = factors((V,)) | {name: np.linspace(-0.5, 0.5, WIDTH, dtype=np.float16)}
    tensors = converted(tmp_path / "gemma", weights, "gemma2", modules_to_save=["post_feedforward_layernorm"])
    assert np.array_equal(tensors["blk.0.post_ffw_norm.weight"], weights[name].astype(np.float32) + 1)


def test_whole_modules_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    weights = whole_weights()
    tied = write_folder(tmp_path / "tied", weights, base_config(tie_word_embeddings=True), modules_to_save=SAVED)
    assert reasons(tied).count("uses one matrix for embeddings and output") == 2
    wide = weights | {f"{PREFIX}lm_head.weight": np.zeros((VOCABULARY + 8, WIDTH), np.float32)}
    wide[f"{PREFIX}model.norm.weight"] = np.zeros((1, WIDTH), np.float32)
    sentences = reasons(write_folder(tmp_path / "wide", wide, base_config(), modules_to_save=SAVED))
    assert f"lm_head has the shape {(WIDTH, VOCABULARY + 8)}" in sentences
    assert "a vocabulary of another size is not supported" in sentences
    assert f"model.norm is a tensor of the shape (1, {WIDTH})" in sentences
    unnamed = write_folder(tmp_path / "unnamed", weights, base_config(), modules_to_save=["lm_head", "embed_tokens"])
    assert f"{PREFIX}model.norm.weight" in reasons(unnamed)
    both = weights | {f"{PREFIX}{Q}.weight": np.zeros((WIDTH, WIDTH), np.float32)}
    folder = write_folder(tmp_path / "both", both, base_config(), modules_to_save=[*SAVED, "q_proj"])
    assert f"{Q} has factors, and is also saved whole" in reasons(folder)


def test_copies_of_the_embeddings_that_were_not_trained_are_left_out(tmp_path: Path) -> None:
    weights = factors((Q, V))
    plain = opened_adapter(write_folder(tmp_path / "plain", weights, base_config()))
    copy = weights | {f"{PREFIX}lm_head.weight": np.zeros((VOCABULARY, WIDTH), np.float32)}
    folder = write_folder(tmp_path / "copy", copy, base_config())
    assert opened_adapter(folder) == plain
    sentence = "1 copy of a matrix of the base left out, which the configuration does not name as trained"
    assert remarks(folder)[-1] == sentence


EXPERTS, EXPERT_WIDTH = 5, 24
MOE = base_config("qwen3_moe", num_experts=EXPERTS, moe_intermediate_size=EXPERT_WIDTH)


def stack_weights(block: int = 0) -> dict[str, Matrix]:
    """Return factors of both stacks of experts, as PEFT saves them: the last parameter is the outer one."""
    random = np.random.default_rng(10 + block)
    experts = f"{PREFIX}model.layers.{block}.mlp.experts"
    shapes = {
        f"{experts}.base_layer.lora_A.weight": (RANK * EXPERTS, WIDTH),
        f"{experts}.base_layer.lora_B.weight": (2 * EXPERT_WIDTH, RANK * EXPERTS),
        f"{experts}.lora_A.weight": (RANK * EXPERTS, EXPERT_WIDTH),
        f"{experts}.lora_B.weight": (WIDTH, RANK * EXPERTS),
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def stack_change(a: Matrix, b: Matrix) -> Matrix:
    """Return B·A of each expert, by the formula of PEFT's parameters."""
    first = a.reshape(EXPERTS, -1, a.shape[1]).astype(np.float64)
    second = b.reshape(len(b), -1, EXPERTS).astype(np.float64)
    return np.einsum("ore,eri->eoi", second, first)


def change_of_stack(tensors: Mapping[str, Matrix], target: str) -> Matrix:
    first, second = (tensors[f"{target}.lora_{half}"].astype(np.float64) for half in "ab")
    return np.matmul(second, first)


TARGETS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def test_factors_of_stacks_change_every_expert_as_peft_does(tmp_path: Path) -> None:
    weights = stack_weights()
    folder = write_folder(
        tmp_path / "stacks", weights, MOE, target_parameters=TARGETS, alpha_pattern={"experts.down_proj": 20}
    )
    tensors = read_tensors(opened_adapter(folder))
    a, b, down_a, down_b = weights.values()
    fused = stack_change(a, b)
    gate, up = (change_of_stack(tensors, f"blk.0.ffn_{part}_exps.weight") for part in ("gate", "up"))
    assert np.allclose(gate, fused[:, :EXPERT_WIDTH], atol=1e-12)
    assert np.allclose(up, fused[:, EXPERT_WIDTH:], atol=1e-12)
    down = change_of_stack(tensors, "blk.0.ffn_down_exps.weight")
    assert np.allclose(down, 20 / ALPHA * stack_change(down_a, down_b), rtol=1e-5, atol=1e-5)
    assert tensors["blk.0.ffn_down_exps.weight.lora_b"].shape == (EXPERTS, WIDTH, RANK)


def test_stacks_of_older_versions_of_peft_have_their_factors_in_each_others_place(tmp_path: Path) -> None:
    new = stack_weights()
    old = dict(new)
    for module in (f"{PREFIX}model.layers.0.mlp.experts", f"{PREFIX}model.layers.0.mlp.experts.base_layer"):
        first, second = new[f"{module}.lora_A.weight"], new[f"{module}.lora_B.weight"]
        # B of [out, r * E] becomes A of [E * r, out], and A of [E * r, in] becomes B of [in, r * E].
        outputs = second.reshape(len(second), RANK, EXPERTS).transpose(2, 1, 0)
        inputs = first.reshape(EXPERTS, RANK, first.shape[1]).transpose(2, 1, 0)
        old[f"{module}.lora_A.weight"] = np.ascontiguousarray(outputs).reshape(EXPERTS * RANK, -1)
        old[f"{module}.lora_B.weight"] = np.ascontiguousarray(inputs).reshape(-1, RANK * EXPERTS)
    wanted = converted_moe(tmp_path / "new", new, target_parameters=TARGETS)
    found = converted_moe(tmp_path / "old", old, target_parameters=TARGETS)
    assert all(np.array_equal(found[name], values) for name, values in wanted.items())
    square = base_config("qwen3_moe", num_experts=EXPERTS, moe_intermediate_size=WIDTH)
    random, experts = np.random.default_rng(15), f"{PREFIX}model.layers.0.mlp.experts"
    shapes = {"lora_A": (RANK * EXPERTS, WIDTH), "lora_B": (WIDTH, RANK * EXPERTS)}
    down = {
        f"{experts}.{half}.weight": random.standard_normal(shape).astype(np.float32) for half, shape in shapes.items()
    }
    first, second = down.values()
    wanted_change = stack_change(first, second)
    for version, is_reversed in (("0.19.0", False), ("0.21.2", False), ("0.18.1", True), (None, True)):
        options = {"target_parameters": TARGETS[1:], "peft_version": version}
        folder = write_folder(tmp_path / f"square-{version}", down, square, **options)
        change = change_of_stack(read_tensors(opened_adapter(folder)), "blk.0.ffn_down_exps.weight")
        assert np.allclose(change, wanted_change.swapaxes(1, 2) if is_reversed else wanted_change, atol=1e-12), version


def test_gate_and_up_of_gpt_oss_are_rows_in_turns(tmp_path: Path) -> None:
    weights = stack_weights()
    base = base_config("gpt_oss", num_local_experts=EXPERTS, intermediate_size=EXPERT_WIDTH)
    for version in ("0.18.0", "0.21.2"):  # the parameters have the inputs first: no version changed their factors
        options = {"target_parameters": TARGETS, "peft_version": version}
        tensors = read_tensors(opened_adapter(write_folder(tmp_path / version, weights, base, **options)))
        a, b, *_ = weights.values()
        fused = stack_change(a, b)
        assert np.allclose(change_of_stack(tensors, "blk.0.ffn_gate_exps.weight"), fused[:, 0::2], atol=1e-12)
        assert np.allclose(change_of_stack(tensors, "blk.0.ffn_up_exps.weight"), fused[:, 1::2], atol=1e-12)


def test_a_single_stack_is_that_which_the_configuration_names(tmp_path: Path) -> None:
    weights = {name: values for name, values in stack_weights().items() if "base_layer" not in name}
    tensors = converted_moe(tmp_path / "one", weights, target_parameters=TARGETS[1:])
    assert tensors.keys() == {"blk.0.ffn_down_exps.weight.lora_a", "blk.0.ffn_down_exps.weight.lora_b"}
    wrong = write_folder(tmp_path / "wrong", weights, MOE, target_parameters=TARGETS[:1])
    assert "model.layers.0.mlp.experts.gate_up_proj is for 5 matrices of" in reasons(wrong)
    unnamed = write_folder(tmp_path / "unnamed", weights, MOE)
    assert "mlp.experts.lora_A.weight" in reasons(unnamed)


def converted_moe(folder: Path, weights: Mapping[str, Matrix], **options: Any) -> dict[str, Matrix]:
    return read_tensors(opened_adapter(write_folder(folder, weights, MOE, **options)))


def test_stacks_of_another_number_of_experts_are_refused(tmp_path: Path) -> None:
    weights = stack_weights()
    odd = base_config("qwen3_moe", num_experts=EXPERTS + 2, moe_intermediate_size=EXPERT_WIDTH)
    folder = write_folder(tmp_path / "odd", weights, odd, target_parameters=TARGETS)
    assert "which is not for 7 experts" in reasons(folder)
    dense = write_folder(tmp_path / "dense", weights, base_config(), target_parameters=TARGETS)
    assert "mlp.experts.lora_A.weight" in reasons(dense)


def expert_weights(numbers: Iterable[int], names: str = "mlp.experts.{}.{}") -> dict[str, Matrix]:
    """Return factors of single experts, as PEFT saves them for models whose experts are modules of their own."""
    random = np.random.default_rng(11)
    weights = {}
    for number in numbers:
        module = f"{PREFIX}model.layers.1.{names.format(number, 'down_proj')}"
        weights[f"{module}.lora_A.weight"] = random.standard_normal((RANK, EXPERT_WIDTH)).astype(np.float32)
        weights[f"{module}.lora_B.weight"] = random.standard_normal((WIDTH, RANK)).astype(np.float32)
    return weights


def test_factors_of_single_experts_become_stacks_in_which_the_others_do_not_change(tmp_path: Path) -> None:
    weights = expert_weights((0, 3))
    change = change_of_stack(converted_moe(tmp_path / "experts", weights), "blk.1.ffn_down_exps.weight")
    for number in range(EXPERTS):
        pair = [
            weights.get(f"{PREFIX}model.layers.1.mlp.experts.{number}.down_proj.lora_{half}.weight") for half in "AB"
        ]
        wanted = 0 if pair[0] is None or pair[1] is None else pair[1].astype(np.float64) @ pair[0]
        assert np.allclose(change[number], wanted, atol=1e-12), number
    sentences = reasons(write_folder(tmp_path / "many", expert_weights((0, EXPERTS)), MOE))
    assert f"mlp.experts.down_proj has no expert {EXPERTS}" in sentences
    sentences = reasons(write_folder(tmp_path / "scales", weights, MOE, alpha_pattern={"experts.3.down_proj": 3}))
    assert "the experts of mlp.experts.down_proj" in sentences
    del weights[f"{PREFIX}model.layers.1.mlp.experts.3.down_proj.lora_A.weight"]
    assert "has only one of two factors" in reasons(write_folder(tmp_path / "half", weights, MOE))


def test_experts_of_mixtral_have_the_names_of_its_older_modules(tmp_path: Path) -> None:
    new = expert_weights((1,))
    old = {name.replace("mlp.", "block_sparse_moe.").replace("down_proj", "w2"): new[name] for name in new}
    mixtral = base_config("mixtral", num_local_experts=EXPERTS, intermediate_size=EXPERT_WIDTH)
    tensors = read_tensors(opened_adapter(write_folder(tmp_path / "old", old, mixtral)))
    assert tensors.keys() == {f"blk.1.ffn_down_exps.weight.lora_{half}" for half in "ab"}
    router = factors((Q,)) | {
        f"{PREFIX}model.layers.0.block_sparse_moe.gate.lora_A.weight": np.ones((RANK, WIDTH), np.float32),
        f"{PREFIX}model.layers.0.block_sparse_moe.gate.lora_B.weight": np.ones((EXPERTS, RANK), np.float32),
    }
    tensors = read_tensors(opened_adapter(write_folder(tmp_path / "router", router, mixtral)))
    assert "blk.0.ffn_gate_inp.weight.lora_b" in tensors


def write_mlx(
    folder: Path, weights: Mapping[str, Matrix], base: Mapping[str, object] | None = None, **config: object
) -> Path:
    """Write a folder of MLX with factors that PEFT would save so."""
    folder.mkdir()
    names = {"lora_A.weight": "lora_a", "lora_B.weight": "lora_b", "lora_magnitude_vector": "m"}
    renamed = {}
    for name, values in weights.items():
        module, _, part = name.removeprefix(PREFIX).rpartition(".lora_")
        renamed[f"{module}.{names['lora_' + part]}"] = np.ascontiguousarray(values.T)
    parameters = {"rank": RANK, "scale": ALPHA / RANK, "dropout": 0.0}
    stated = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": parameters, "model": "acme/Little-Base"}
    (folder / "adapter_config.json").write_text(json.dumps({**stated, **config}))
    (folder / "adapters.safetensors").write_bytes(safetensors_bytes(renamed))
    (folder / "config.json").write_text(json.dumps(base or base_config()))
    return folder


def test_a_folder_of_mlx_gives_the_adapter_of_the_same_factors_from_peft(tmp_path: Path) -> None:
    weights = factors(list(MODULES))
    wanted = opened_adapter(write_folder(tmp_path / "peft", weights, base_config()))
    folder = write_mlx(tmp_path / "mlx", weights)
    assert opened_adapter(folder) == wanted
    assert remarks(folder) == ["converted from an MLX folder: 14 modules, rank 4, alpha 8"]
    assert source_of(folder / "adapters.safetensors").adapter == folder
    dora = opened_adapter(write_mlx(tmp_path / "mlx-dora", dora_weights(), fine_tune_type="dora"))
    assert dora == opened_adapter(write_folder(tmp_path / "dora", dora_weights(), base_config(), use_dora=True))


def test_stacks_of_mlx_are_in_the_order_of_gguf_files(tmp_path: Path) -> None:
    random = np.random.default_rng(12)
    a, b = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((EXPERTS, RANK, WIDTH), (EXPERTS, EXPERT_WIDTH, RANK))
    )
    folder = write_mlx(tmp_path / "mlx", {}, MOE)
    module = "model.layers.0.mlp.switch_mlp.up_proj"
    for first in (a, a.reshape(-1, WIDTH)):
        data = safetensors_bytes({f"{module}.lora_a": first, f"{module}.lora_b": b})
        (folder / "adapters.safetensors").write_bytes(data)
        tensors = read_tensors(opened_adapter(folder))
        assert np.array_equal(tensors["blk.0.ffn_up_exps.weight.lora_a"], a)
        assert np.array_equal(tensors["blk.0.ffn_up_exps.weight.lora_b"], b)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"fine_tune_type": "full"}, "it is a full fine-tune (fine_tune_type: full), which is no adapter"),
        ({"fine_tune_type": "ia3"}, "its fine_tune_type is 'ia3'"),
        ({"lora_parameters": {"rank": 4}}, "missing required field `scale`"),
        ({"lora_parameters": {"rank": 1 << 40, "scale": 1.0}}, "Expected `int` <= 8192"),
    ],
)
def test_what_mlx_saves_besides_adapters_is_refused_with_a_sentence(
    tmp_path: Path, config: dict[str, object], sentence: str
) -> None:
    assert sentence in reasons(write_mlx(tmp_path / "mlx", factors((Q,)), **config))


def test_any_part_of_a_file_with_rearranged_tensors_has_the_bytes_of_the_whole(tmp_path: Path) -> None:
    weights = stack_weights() | {name: value.astype(np.float16) for name, value in expert_weights((1, 2)).items()}
    folder = write_folder(tmp_path / "stacks", weights, MOE, target_parameters=TARGETS)
    whole, random = opened_adapter(folder), np.random.default_rng(13)
    with ExitStack() as opened:
        file = open_adapter(opened, folder)
        for begin, end in np.sort(random.integers(0, len(whole), (100, 2)), axis=1).tolist():
            assert file.read_at(begin, end - begin) == whole[begin:end]


def test_a_factor_that_is_too_large_to_be_rearranged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("organs.ingest.peft.REARRANGED_MAX_VALUES", WIDTH * RANK - 1)
    folder = write_folder(tmp_path / "lora", factors((Q, V)), base_config())
    sentences = reasons(folder)
    assert f"{Q}.lora_B.weight has {WIDTH * RANK} values, which are put in another order" in sentences
    assert V not in sentences


def values_of_file(path: Path) -> dict[str, Matrix]:
    return {name: values.astype(np.float64) for name, values in read_tensors(path.read_bytes()).items()}


def test_a_recipe_merges_a_dora_and_puts_whole_modules_in_the_place_of_those_of_the_base(
    registry: LocalRegistry, tmp_path: Path, base: Path
) -> None:
    head = np.random.default_rng(14).standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
    weights = dora_weights() | {f"{PREFIX}lm_head.weight": head}
    add_model(registry, base)
    add_model(
        registry, write_folder(tmp_path / "My-DoRA", weights, base_config(), use_dora=True, modules_to_save=["lm_head"])
    )
    assert any("only a recipe can merge it" in flag for flag in registry.model("My-DoRA").flags)
    plan = registry.compose("Little-Base").adapter("My-DoRA", 0.5).accept("adapter-base-differs").plan()
    made = plan.register()
    registry.assemble(made.model, tmp_path / "merged.gguf")
    before, after = values_of_file(base), values_of_file(tmp_path / "merged.gguf")
    assert np.allclose(after["output.weight"], (before["output.weight"] + head) / 2, atol=1e-6)
    q = MODULES[Q][0]
    moved = before[q] + expected_change(Q, weights, 0.5 * ALPHA / RANK)
    magnitude = in_file_order(weights[f"{PREFIX}{Q}.lora_magnitude_vector"], HEADS)
    wanted = magnitude[:, None] * moved / np.linalg.norm(moved, axis=1, keepdims=True)
    assert np.allclose(after[q], wanted, rtol=1e-5, atol=1e-6)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"output.weight", q, MODULES[V][0]}
    organs = {organ.name: organ for organ in registry.model(made.model).organs}
    (of_q,) = registry.organ(organs[q].digest).made
    (of_output,) = registry.organ(organs["output.weight"].digest).made
    assert (of_q.adapters[0].magnitude is None, of_q.adapters[0].b is None) == (False, False)
    assert (of_output.adapters[0].magnitude, of_output.adapters[0].b) == (None, None)
    assert (of_output.acts, of_output.adapters[0].scale) == (("adapter",), 0.5)
