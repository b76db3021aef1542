"""`organ extract-lora`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from organs.ingest.adapted_base import base_in
from organs.ingest.peft import WEIGHTS_FILE, open_adapter
from organs.registry.compose import extraction
from organs.registry.gguf import MemorySource, TensorSpec, read_header
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.cli.parents import Parents
from tests.gguf_files import file_bytes, text, unsigned
from tests.ingest.peft_folders import BLOCKS, HEADS, KV_HEADS, base_file, read_tensors
from tests.small_models import Tensors, block_metadata, row_counts, weight_tensor


@pytest.fixture
def organ(composer: OrganCommand) -> OrganCommand:
    return composer


def tuned_file() -> bytes:
    """Return a fine-tune of `base_file`: all of its matrices are changed."""
    data, random = base_file(), np.random.default_rng(8)
    tensors: Tensors = []
    for tensor in read_header(MemorySource(data)).tensors:
        values = read_tensors(data)[tensor.name]
        changed = (values + 0.001 * random.standard_normal(values.shape)).astype("<f4").tobytes()
        tensors.append((TensorSpec(tensor.name, tensor.shape, tensor.dtype), changed))
    counts = [unsigned("llama.attention.head_count", HEADS), unsigned("llama.attention.head_count_kv", KV_HEADS)]
    entries = [*block_metadata("Little Tuned", BLOCKS), text("general.type", "model"), *counts]
    return file_bytes(entries, tensors)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The files of a fine-tune and of its base, whose header has the numbers of heads."""
    paths = tmp_path / "Little-Tuned.gguf", tmp_path / "Little-Base.gguf"
    for path, data in zip(paths, (tuned_file(), base_file()), strict=True):
        path.write_bytes(data)
    return paths


def test_the_adapter_of_registered_models_is_registered_with_its_base(organ: OrganCommand) -> None:
    ended = organ.done("extract-lora", "tuned", "--base", "base", "--rank", "4")
    assert ended.lines[0].startswith("A LoRA of rank 4 keeps ")
    assert [line.split()[0] for line in ended.lines[1:4]] == ["type", "attention", "feed-forward"]
    assert ended.lines[4].startswith("Left out: 1 changed tensor (token_embd.weight), ")
    assert ended.lines[-1] == "local/tuned-LoRA-r4@1: registered"
    assert "merge it: echo " in ended.err
    shown = organ.done("show", "tuned-LoRA-r4", "--json").values
    assert (shown["kind"], shown["title"]) == ("adapter", "Tuned LoRA")
    assert [(edge["model"], edge["relation"]) for edge in shown["lineage"]] == [("local/base@1", "adapter")]
    merge = json.dumps({"base": "base", "adapters": [{"from": "tuned-LoRA-r4"}]})
    Path(organ.home / "merge.json").write_text(merge)
    composed = organ.done("compose", organ.home / "merge.json", "--name", "merged", "--quick-look", "0", "--json")
    assert composed.values["made"]["model"] == "local/merged@1"
    before = organ.done("compare", "base", "tuned", "--json").values["likeness"]
    assert organ.done("compare", "merged", "tuned", "--json").values["likeness"] > before


def test_the_same_adapter_again_adds_nothing_and_another_rank_is_another_model(organ: OrganCommand) -> None:
    words = ("extract-lora", "tuned", "--base", "base", "-q")
    assert organ.done(*words, "--name", "me/x").lines == ["me/x@1"]
    assert organ.done(*words, "--name", "me/x").lines == ["me/x@1"]
    assert organ.done(*words, "--name", "me/x", "--rank", "3").lines == ["me/x@2"]
    assert organ.done(*words, "--rank", "3").lines == ["local/tuned-LoRA-r3@1"]
    digest = organ.done("show", "tuned", "--json").values["digest"]
    by_digest = organ.done("extract-lora", f"sha256:{digest}", "--base", "base", "-q", "--rank", "3")
    assert by_digest.lines == ["local/tuned-LoRA-r3@1"]


def test_a_dry_run_compares_ranks(organ: OrganCommand) -> None:
    words = ("extract-lora", "tuned", "--base", "base", "--dry-run", "--rank", "64,2,8")
    lines = organ.done(*words).lines
    assert [line.split()[0] for line in lines[-4:]] == ["rank", "2", "8", "64"]
    values = organ.done(*words, "--json").values
    kept = [item["kept"] for item in values["ranks"]]
    assert kept == sorted(kept)
    assert (values["model"], values["file"], values["rank"]) == (None, None, 64)
    assert sum(kind["of_change"] for kind in values["types"] + values["left_out"]) == pytest.approx(1.0)


def test_files_give_the_adapter_of_registered_models_and_are_not_registered(
    organ: OrganCommand, parents: Parents, out: Path, kept: LocalRegistry
) -> None:
    organ.done("extract-lora", "tuned", "--base", "base", "-o", out / "registered.gguf")
    before = row_counts(kept)
    ended = organ.done("extract-lora", parents.tuned, "--base", parents.base, "-o", out / "files.gguf")
    assert ended.lines[-1] == f"{out / 'files.gguf'}: written"
    organ.done("extract-lora", parents.tuned, "--base", "base", "-o", out / "mixed.gguf", "-q")
    factors = [read_tensors((out / f"{name}.gguf").read_bytes()) for name in ("registered", "files", "mixed")]
    for other in factors[1:]:
        assert other.keys() == factors[0].keys()
        assert all(other[name].tobytes() == values.tobytes() for name, values in factors[0].items())
    assert row_counts(kept) == before


def test_a_folder_for_peft_has_the_factors_of_the_file(
    organ: OrganCommand, files: tuple[Path, Path], out: Path
) -> None:
    tuned, base = files
    words = ("extract-lora", tuned, "--base", base, "--rank", "3")
    organ.done(*words, "-o", out / "lora.gguf")
    assert organ.done(*words, "-o", out / "lora", "-q").lines == [str(out / "lora")]
    config = json.loads((out / "lora" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"], config["lora_alpha"]) == ("Little Base", 3, 3.0)
    with ExitStack() as opened:
        file = open_adapter(opened, out / "lora", base_in(base))
        again = read_tensors(file.read_at(0, file.size_bytes))
    written = read_tensors((out / "lora.gguf").read_bytes())
    assert len(written) == 2 * 16, "with both matrices of tokens"
    assert again.keys() == written.keys()
    assert all(again[name].tobytes() == values.tobytes() for name, values in written.items())
    refused = organ(*words, "-o", out / "lora")
    assert (refused.status, refused.out) == (1, "")
    assert "already exists; --force replaces it" in refused.err
    organ.done(*words, "-o", out / "lora", "--force")
    assert sorted(path.name for path in out.iterdir()) == ["lora", "lora.gguf"]
    assert sorted(path.name for path in (out / "lora").iterdir()) == ["adapter_config.json", WEIGHTS_FILE]


def test_an_architecture_without_names_in_peft_is_refused_before_the_work(
    organ: OrganCommand, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: object) -> None:
        raise AssertionError("weights are read")

    for name, data in (("base", base_file()), ("tuned", tuned_file())):
        (tmp_path / f"{name}.gguf").write_bytes(data.replace(b"llama", b"mamba"))
    monkeypatch.setattr(extraction, "low_rank", unread)
    words = ("extract-lora", tmp_path / "tuned.gguf", "--base", tmp_path / "base.gguf")
    refused = organ(*words, "-o", out / "lora")
    assert (refused.status, list(out.iterdir())) == (1, [])
    assert "has the architecture 'mamba', and PEFT folders are written for gemma, " in refused.err
    monkeypatch.undo()
    assert organ.done(*words, "-o", out / "lora.gguf", "-q").lines == [str(out / "lora.gguf")]


def test_changed_routers_and_stacks_of_experts_are_refused_for_peft_before_the_work(
    organ: OrganCommand, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: object) -> None:
        raise AssertionError("weights are read")

    shapes = {"ffn_gate_inp": (32, 3), "ffn_up_exps": (32, 48, 3), "attn_q": (32, 32)}
    for seed, name in enumerate(("base", "tuned")):
        tensors = [weight_tensor(f"blk.0.{slot}.weight", shape, seed, "F32") for slot, shape in shapes.items()]
        counts = [unsigned("llama.attention.head_count", HEADS), unsigned("llama.expert_count", 3)]
        (tmp_path / f"{name}.gguf").write_bytes(file_bytes([*block_metadata(name, BLOCKS), *counts], tensors))
    monkeypatch.setattr(extraction, "low_rank", unread)
    words = ("extract-lora", tmp_path / "tuned.gguf", "--base", tmp_path / "base.gguf")
    refused = organ(*words, "-o", out / "lora")
    assert (refused.status, list(out.iterdir())) == (1, [])
    assert (
        "PEFT has no names for blk.0.ffn_gate_inp.weight and blk.0.ffn_up_exps.weight: write a GGUF file" in refused.err
    )
    monkeypatch.undo()
    assert organ.done(*words, "-o", out / "lora.gguf", "-q").lines == [str(out / "lora.gguf")]


def test_a_warning_is_printed_for_unrelated_models(organ: OrganCommand) -> None:
    ended = organ.done("extract-lora", "stranger", "--base", "base", "--dry-run")
    assert "warning: local/stranger@1 and local/base@1 are unrelated" in ended.err
