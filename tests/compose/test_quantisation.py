"""Recipes that say in which tensor types the result is written, with and without an importance matrix."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from organs.registry.catalog.tables import ComputationRow, Lineage, ModelRow
from organs.registry.compose.recipe import Recipe, read_recipe, recipe_file, recipe_of, recipe_python, recipe_yaml
from organs.registry.compose.steps import read_steps, step_texts
from organs.registry.errors import BadRecipe
from organs.registry.gguf import Header, dtype_by_name, read_header
from organs.registry.gguf.quants import dequantize, encode, encode_weighted, quantize
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import Share, verify
from tests.cli.in_process import OrganCommand
from tests.gguf_files import file_bytes, importance_file, importance_records, unsigned
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_bytes
from tests.small_models import block_metadata, block_tensors, tensors_of, weight_tensor

WIDTH, BLOCKS, EXPERTS = 256, 2, 3
STACK = "blk.1.ffn_up_exps.weight"
Q4_0, Q4_K, F16 = map(dtype_by_name, ("Q4_0", "Q4_K", "F16"))


def model(seed: int = 0) -> bytes:
    """Return a model with rows of whole blocks of every type, and a stack of experts."""
    tensors = [*block_tensors(BLOCKS, WIDTH, seed), weight_tensor(STACK, (WIDTH, 8, EXPERTS), seed)]
    tensors.append(weight_tensor("blk.1.ffn_gate_inp.weight", (WIDTH, EXPERTS), seed, "F32"))
    return file_bytes([*block_metadata("Plain", BLOCKS), unsigned("llama.expert_count", EXPERTS)], tensors)


def importances(seed: int = 0, width: int = WIDTH) -> dict[str, np.ndarray]:
    random = np.random.default_rng([7, seed])
    names = [f"blk.{block}.{slot}.weight" for block in range(BLOCKS) for slot in ("attn_q", "ffn_up")]
    return {
        **{name: random.exponential(size=width).astype(np.float32) for name in names},
        STACK: random.exponential(size=(EXPERTS, width)).astype(np.float32),
    }


def add_models(registry: LocalRegistry, folder: Path) -> None:
    ingest_bytes(registry, folder, "Plain", model())
    ingest_bytes(registry, folder, "Other", model(1))
    ingest_bytes(registry, folder, "Weights", importance_file(importances()))
    ingest_bytes(registry, folder, "Foreign", importance_file(importances(width=64)))


@pytest.fixture
def models(registry: LocalRegistry, templates: RegistryTemplates, tmp_path: Path) -> LocalRegistry:
    templates.fill(registry, add_models)
    (tmp_path / "Plain.gguf").write_bytes(model())
    return registry


def compose(registry: LocalRegistry, recipe: str, path: Path, base: str = "local/Plain") -> dict[str, bytes]:
    """Make the chimera of a recipe, with all of its warnings accepted; return the tensors of its file."""
    registry.compose(read_recipe(f"base: {base}\n{recipe}")).plan().accepting_all().assemble(path)
    return tensors_of(path)


def header_of(path: Path) -> Header:
    with FileSource(path) as source:
        return read_header(source)


def codes(registry: LocalRegistry, recipe: str, base: str = "local/Plain") -> dict[str, str]:
    plan = registry.compose(read_recipe(f"base: {base}\n{recipe}")).plan()
    return {finding.code: finding.sentence for finding in plan.findings}


def test_a_mix_writes_every_matrix_as_the_encoder_does_and_keeps_norms_and_routers(
    models: LocalRegistry, tmp_path: Path
) -> None:
    before, made = tensors_of(tmp_path / "Plain.gguf"), compose(models, "quantize: {as: Q4_K_M}", tmp_path / "out.gguf")
    header = header_of(tmp_path / "out.gguf")
    kinds = {tensor.name: tensor.dtype for tensor in header.tensors}
    kept = {name for name, dtype in kinds.items() if dtype.name == "F32"}
    assert kept == {name for name in before if "norm" in name or "gate_inp" in name}
    assert {dtype.name for name, dtype in kinds.items() if name not in kept} == {"Q4_K", "Q6_K"}
    for name, data in before.items():
        assert made[name] == (data if name in kept else encode(dequantize(data, F16), kinds[name])), name
    assert header.integer("general.file_type") == 15
    assert header.text("general.name") == "Plain"
    assert not verify(models.catalog, models.blobs, read_data=Share(1, 1)).faults


def test_an_organ_that_has_the_type_keeps_its_bytes(models: LocalRegistry, tmp_path: Path) -> None:
    first = compose(models, "name: local/small\nquantize: {as: Q4_K}", tmp_path / "first.gguf")
    plan = models.compose("local/small").quantize("Q4_K").plan()
    assert [finding.code for finding in plan.findings] == ["nothing-to-do"]
    again = models.compose("local/small").quantize("Q4_K").quantize("Q8_0", slot="ffn_down").accept("rounded-twice")
    assert [part.slot for part in again.plan().parts if part.acts] == ["ffn_down"] * BLOCKS
    again.plan().assemble(tmp_path / "again.gguf")
    made = tensors_of(tmp_path / "again.gguf")
    assert {name for name in made if made[name] != first[name]} == {f"blk.{n}.ffn_down.weight" for n in range(BLOCKS)}


def test_of_several_rules_the_last_counts_and_a_name_alone_is_the_mix(models: LocalRegistry) -> None:
    builder = models.compose("local/Plain").quantize("Q2_K").quantize("Q2_K", slot="ffn_down", blocks=0)
    dtypes = {part.name: part.dtype for part in builder.plan().parts}
    assert dtypes["blk.0.ffn_down.weight"] == "Q2_K", "the type, because the rule selects"
    assert dtypes["blk.1.ffn_down.weight"] == "Q3_K", "as the mix has it"
    assert dtypes["token_embd.weight"] == "Q6_K"


def test_errors_are_weighed_by_the_importances_of_each_column_and_each_expert(
    models: LocalRegistry, tmp_path: Path
) -> None:
    recipe = "imatrix: local/Weights\nquantize: [{as: Q4_0}, {as: Q4_K, slot: ffn_up_exps}]"
    before, made = tensors_of(tmp_path / "Plain.gguf"), compose(models, recipe, tmp_path / "out.gguf")
    weights = importances()
    rows = dequantize(before["blk.0.attn_q.weight"], F16).reshape(-1, WIDTH)
    assert made["blk.0.attn_q.weight"] == encode_weighted(rows, Q4_0, weights["blk.0.attn_q.weight"])
    assert made["blk.0.attn_q.weight"] != quantize(rows.reshape(-1), Q4_0)
    stack = dequantize(before[STACK], F16).reshape(EXPERTS, -1, WIDTH)
    experts = [encode_weighted(matrix, Q4_K, own) for matrix, own in zip(stack, weights[STACK], strict=True)]
    assert made[STACK] == b"".join(experts)
    down = dequantize(before["blk.0.ffn_down.weight"], F16)
    assert made["blk.0.ffn_down.weight"] == quantize(down, Q4_0), "the matrix has no importances of it"
    header = header_of(tmp_path / "out.gguf")
    assert header.text("quantize.imatrix.file") == "local/Weights@1"
    assert header.integer("quantize.imatrix.entries_count") == len(weights)
    assert "importances-absent" in codes(models, recipe)


def test_other_importances_are_another_computation(models: LocalRegistry, tmp_path: Path) -> None:
    recipe = "quantize: {as: Q4_K, slot: attn_q}"
    plain = compose(models, recipe, tmp_path / "plain.gguf")
    weighed = compose(models, f"imatrix: local/Weights\n{recipe}", tmp_path / "weighed.gguf")
    ingest_bytes(models, tmp_path, "Weights", importance_file(importances(1)))
    other = compose(models, f"imatrix: local/Weights\n{recipe}", tmp_path / "other.gguf")
    name = "blk.0.attn_q.weight"
    assert len({plain[name], weighed[name], other[name]}) == 3
    with models.catalog.reading() as session:
        stored = [json.loads(text) for text in session.scalars(select(ComputationRow.made))]
        recipes = {model.name: model for model in session.scalars(select(ModelRow))}
    assert len(stored) == 3 * BLOCKS
    assert sum("importances" in item for item in stored) == 2 * BLOCKS
    assert len(recipes) > 4


def test_the_recipe_and_the_lock_record_the_matrix(models: LocalRegistry) -> None:
    made = (
        models.compose("local/Plain").quantize("Q4_K").imatrix("local/Weights").named("local/small").plan().register()
    )
    chimera = models.chimera(made.lock_id)
    assert chimera.recipe.imatrix == "local/Weights@1"
    assert len(json.loads(models.lock_text(made.lock_id))["sources"]) == 1
    assert [parent.model for parent in chimera.parents] == ["local/Plain@1"]


def test_it_is_quantised_from_its_base_and_no_mixture_of_donors(models: LocalRegistry) -> None:
    made = models.compose("local/Plain").quantize("Q4_K_M").plan().register()
    assert made.model == "local/Plain-Q4_K_M@1"
    chimera = models.chimera(made.lock_id)
    assert chimera.file.name == "Plain-Q4_K_M.gguf"
    assert chimera.quantised_from == "local/Plain@1"
    assert chimera.parents[0].acts == ("quantised",)
    assert chimera.screen is not None
    assert chimera.screen.sentence.startswith("Quantised from local/Plain@1 as Q4_K_M: ")
    with models.catalog.reading() as session:
        edges = select(Lineage.relation).where(Lineage.child_model_id.is_not(None), Lineage.evidence == "recorded")
        assert set(session.scalars(edges)) == {"quantized"}
    digest = chimera.computed[0].digest
    assert models.organ(digest).made[0].acts == ("quantised",)
    mixed = (
        models.compose("local/Plain")
        .graft("local/Other", slot="ffn_*", blocks=0)
        .quantize("Q4_K")
        .accept(*("unrelated-lineage", "lineage-unknown", "non-finite-weights"))
    )
    assert mixed.plan().accepting_all().chimera.parents[0].acts == ("quantised",)
    assert models.chimera(mixed.plan().accepting_all().register().lock_id).quantised_from is None


def test_the_types_are_those_of_what_the_other_steps_give(models: LocalRegistry, tmp_path: Path) -> None:
    steps = "blends: {from: local/Other, weight: 0.5, type: organ, blocks: 0}\n"
    blended = compose(models, f"encode: F32\n{steps}", tmp_path / "blended.gguf")
    made = compose(models, f"{steps}quantize: {{as: Q4_K_S}}", tmp_path / "out.gguf")
    dtypes = {tensor.name: tensor.dtype for tensor in header_of(tmp_path / "out.gguf").tensors}
    name = "blk.0.ffn_up.weight"
    assert made[name] == encode(np.frombuffer(blended[name], np.float32), dtypes[name])
    plan = models.compose(read_recipe(f"base: local/Plain\n{steps}quantize: {{as: Q4_K_S}}")).plan()
    acts = {part.name: part.acts for part in plan.parts}
    assert acts[name] == ("merged", "quantised")
    assert acts["blk.1.ffn_up.weight"] == ("quantised",)
    assert "change-lost-in-rounding" not in {finding.code for finding in plan.findings}
    assert [kept.dtype for kept in plan.chimera.kept] == ["Q4_K"]


def test_a_small_change_of_a_quantised_base_is_still_warned_about(models: LocalRegistry, tmp_path: Path) -> None:
    compose(models, "name: local/small\nquantize: {as: Q4_0}", tmp_path / "small.gguf")
    step = "source: given\nblends: {from: local/Other, weight: 0.001, slot: ffn_up}\n"
    found = codes(models, f"{step}quantize: {{as: Q4_0, slot: ffn_up}}", "local/small")
    assert "change-lost-in-rounding" in found


def test_quantising_twice_is_a_warning_unless_the_source_is_proved(models: LocalRegistry, tmp_path: Path) -> None:
    compose(models, "name: local/small\nquantize: {as: Q8_0}", tmp_path / "small.gguf")
    recipe = "quantize: {as: Q4_0}"
    found = codes(models, recipe, "local/small")
    assert "organ prove local/small@1" in found["rounded-twice"]
    twice = compose(models, recipe, tmp_path / "twice.gguf", "local/small")
    models.prove("local/small", "local/Plain")
    found = codes(models, recipe, "local/small")
    assert "rounded-twice" not in found
    assert (
        "computed from these" in found["computed-from-source"]
        or "are computed with these" in found["computed-from-source"]
    )
    once = compose(models, recipe, tmp_path / "once.gguf", "local/small")
    assert once == compose(models, recipe, tmp_path / "direct.gguf")
    assert once["blk.0.ffn_up.weight"] != twice["blk.0.ffn_up.weight"]
    assert "rounded-twice" in codes(models, f"source: given\n{recipe}", "local/small")


def test_experts_that_stay_are_quantised(models: LocalRegistry, tmp_path: Path) -> None:
    whole = compose(models, "imatrix: local/Weights\nquantize: {as: Q4_K}", tmp_path / "whole.gguf")
    kept = compose(
        models, "experts: {keep: [0, 2]}\nimatrix: local/Weights\nquantize: {as: Q4_K}", tmp_path / "kept.gguf"
    )
    stack = np.frombuffer(whole[STACK], np.uint8).reshape(EXPERTS, -1)
    assert kept[STACK] == stack[[0, 2]].tobytes()


def test_purified_organs_are_weighed_too(models: LocalRegistry, tmp_path: Path) -> None:
    step = "purify: {method: spectral, slot: attn_q, keep: 0.9}\n"
    purified = compose(models, f"{step}encode: F32", tmp_path / "purified.gguf")
    made = compose(models, f"{step}imatrix: local/Weights\nquantize: {{as: Q4_K}}", tmp_path / "out.gguf")
    name = "blk.0.attn_q.weight"
    rows = np.frombuffer(purified[name], np.float32).reshape(-1, WIDTH)
    assert made[name] == encode_weighted(rows, Q4_K, importances()[name])


@pytest.mark.parametrize(
    ("recipe", "code", "words"),
    [
        ("quantize: {as: IQ2_XS}", "importances-needed", "IQ2_XS needs an importance matrix"),
        ("quantize: {as: Q2_K_S}", "importances-needed", "Q2_K needs an importance matrix"),
        ("quantize: {as: Q4_K, slot: attn_norm}", "nothing-selected", "Only matrices are quantised"),
        ("quantize: {as: Q4_K, slot: ffn_gate_inp}", "nothing-selected", "Only matrices are quantised"),
        ("quantize: {as: Q4_K, slot: ffn_gate}", "nothing-selected", "no tensor in this selection"),
        ("quantize: {as: Q4_K, blocks: 7}", "no-such-block", "does not have these blocks"),
        ("quantize: {as: Q4_K}\nimatrix: local/Foreign", "bad-imatrix", "other weights do not fit either"),
        ("quantize: {as: Q4_K}\nimatrix: local/Other", "bad-imatrix", "not an importance matrix"),
        ("quantize: {as: Q4_K}\nimatrix: local/None", "unknown-imatrix", "local/None"),
        ("imatrix: local/Weights", "bad-imatrix", "weighs the errors of quantize"),
    ],
)
def test_mistakes_are_refused(models: LocalRegistry, recipe: str, code: str, words: str) -> None:
    assert words in codes(models, recipe)[code]


def test_a_missing_encoder_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch, models: LocalRegistry) -> None:
    for name in ("can_encode", "can_weigh", "has_encoder"):
        monkeypatch.setattr(f"organs.registry.compose.quantisation.{name}", lambda *_: False)
    found = codes(models, "quantize: {as: Q4_K}")
    assert "pip install '.[quantize]'" in found["encoder-missing"]
    assert "encoder-missing" not in codes(models, "quantize: {as: Q8_0}"), "every installation writes it"


def test_rows_that_are_no_whole_blocks_are_told(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "Thin", file_bytes(block_metadata(), block_tensors(width=96)))
    found = codes(registry, "quantize: {as: Q4_K}", "local/Thin")
    assert "cannot be divided into the blocks of 256" in found["rows-not-whole"]
    assert "become Q5_0" in found["rows-not-whole"]


def test_every_form_of_a_recipe_has_its_types() -> None:
    text = (
        "base: a/b\nquantize:\n  - as: Q4_K_M\n  - as: Q6_K\n    slot: ffn_down\n    blocks: 0-3\nimatrix: a/weights\n"
    )
    recipe = read_recipe(text)
    assert recipe_yaml(recipe) == text
    assert read_steps(step_texts(recipe)) == recipe
    assert recipe_of(recipe_file(recipe)) == recipe
    program = recipe_python(recipe, "out.gguf")
    assert ".quantize('Q6_K', slot='ffn_down', blocks='0-3')" in program
    assert ".imatrix('a/weights')" in program
    assert read_recipe("base: a/b\nquantize: {as: q4_k_m}\n").quantize == recipe.quantize[:1]
    assert read_recipe("base: a/b\n") == Recipe("a/b")
    for fault in ("{as: Q9}", "{slot: ffn_up}", "{as: Q4_K, experts: 1}"):
        with pytest.raises(BadRecipe):
            read_recipe(f"base: a/b\nquantize: {fault}\n")


def test_the_file_of_a_size_is_called_after_the_size(models: LocalRegistry) -> None:
    for name, file in (
        ("Plain-4.5bpw", "Plain-4.5bpw"),
        ("Plain-Q5_K_M-best", "Plain-Q5_K_M-best"),
        ("other", "other-Q4_K_M"),
    ):
        plan = models.compose("local/Plain").quantize("Q4_K_M").named(f"local/{name}").plan()
        assert plan.file_name == f"{file}.gguf"


def test_the_command_quantises_and_registers_a_matrix_in_either_format(models: LocalRegistry, tmp_path: Path) -> None:
    organ = OrganCommand(models.settings.home)
    former = tmp_path / "former.dat"
    former.write_bytes(importance_records(importances()))
    plan = organ("quantize", "local/Plain", "--type", "Q4_K_M", "--dry-run")
    assert "Quantised from local/Plain@1 as Q4_K_M" in plan.out
    assert "ffn_down" in plan.out
    made = organ(
        *("quantize", "local/Plain", "--type", "Q4_K", "--imatrix", str(former)),
        *("--name", "local/weighed", "-o", str(tmp_path / "weighed.gguf"), "--quick-look", "0"),
    )
    assert "local/former@1" in made.out + made.err
    direct = compose(models, "imatrix: local/Weights\nquantize: {as: Q4_K}", tmp_path / "direct.gguf")
    assert tensors_of(tmp_path / "weighed.gguf") == direct
    shown = organ("show", "local/weighed")
    assert "quantised from" in shown.out
    for options in (("--bpw", "6"), ("--like", "Q4_K_M")):
        refused = organ("quantize", "local/Plain", *options, "-o", str(former))
        assert refused.status != 0
        assert "already exists; --force replaces it" in refused.err, "before anything is measured"
    assert former.read_bytes() == importance_records(importances())
