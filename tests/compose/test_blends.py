"""Tests of blends in recipes: where they act, with which parameters, what rounding keeps, and the chimeras."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from organs.registry.anatomy import place_of
from organs.registry.compose import planner
from organs.registry.compose.blend_steps import settings_at
from organs.registry.compose.build import write_unregistered
from organs.registry.compose.parents import RegisteredLibrary
from organs.registry.compose.plan import Plan
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import Recipe, read_recipe
from organs.registry.compose.trial import RUN_VALUES, RUNS
from organs.registry.entities.finding import Severity
from organs.registry.evolving.scoring import TrialFolder
from organs.registry.gguf import TensorSpec, dtype_by_name, read_header
from organs.registry.gguf.quants import can_quantize, decode, encode, quantize
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from tests.compose.memory_library import plan_in_memory
from tests.compose.parents import model_tensors, synthetic_parent
from tests.gguf_files import file_bytes, text
from tests.registry_templates import RegistryTemplates, add_zoo_models
from tests.related_models import ingest_bytes, model_file
from tests.small_models import Tensors, block_tensors, row_counts, tensors_of, weight_tensor

A, CODE, LORA = (f"Zoo-A-2M-{name}" for name in ("v1.0-F16", "Code-v1.0-F16", "Code-LoRA-v1.0-F32"))
QUANT, PROSE = "Zoo-A-2M-v1.0-Q8_0", "Zoo-A-2M-Prose-v1.0-Q8_0"
UP, NORM = "blk.1.ffn_up.weight", "blk.1.ffn_norm.weight"


@pytest.fixture(scope="module")
def kin(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    """Return a registry with some models of the zoo."""
    with templates.open_copy(add_zoo_models, tmp_path_factory.mktemp("zoo") / "home") as opened:
        yield opened


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalRegistry]:
    """Return an empty registry."""
    with LocalRegistry.open(tmp_path / "home") as registry:
        yield registry


def adapter_file(target: str, a: tuple[int, int], b: tuple[int, int], size: float = 1.0) -> bytes:
    """Return an adapter of one tensor, with factors of these shapes; the first is multiplied by `size`."""
    keys = ("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", "llama")
    (first, data), second = (
        weight_tensor(f"{target}.lora_{half}", shape, 1, "F32") for half, shape in (("a", a), ("b", b))
    )
    scaled = (decode(data, first.dtype) * size).astype(np.float32)
    return file_bytes([text(*pair) for pair in keys], [(first, scaled.tobytes()), second])


def recipe_of(base: str = A, **blend: Any) -> Recipe:
    return read_recipe(json.dumps({"base": base, "blends": {"from": CODE, "weight": 0.5, **blend}}))


def plan(kin: LocalRegistry, recipe: Recipe) -> Plan:
    with kin.catalog.reading() as session:
        return plan_recipe(recipe, RegisteredLibrary(session, kin.blobs))


def values_in(path: Path) -> dict[str, NDArray[np.float64]]:
    """Return the values of all tensors of a file."""
    with FileSource(path) as source:
        header = read_header(source)
        return {
            item.name: decode(source.read_at(header.data_offset + item.offset, item.size_bytes), item.dtype).astype(
                float
            )
            for item in header.tensors
        }


def made(kin: LocalRegistry, recipe: Recipe, folder: Path) -> dict[str, NDArray[np.float64]]:
    """Return the values of the chimera of a recipe."""
    kin.compose(recipe).plan().accepting_all().assemble(folder / "made.gguf")
    return values_in(folder / "made.gguf")


def stored(kin: LocalRegistry, name: str, folder: Path) -> dict[str, NDArray[np.float64]]:
    kin.assemble(name, folder / f"{name}.gguf")
    return values_in(folder / f"{name}.gguf")


def test_a_blend_moves_the_selected_organs_and_keeps_the_others(kin: LocalRegistry, tmp_path: Path) -> None:
    base, code = stored(kin, A, tmp_path), stored(kin, CODE, tmp_path)
    values = made(kin, recipe_of(type="organ", blocks="1-2", weight=0.25), tmp_path)
    for name, found in values.items():
        place = place_of(name)
        is_selected = place.type.value == "organ" and place.block in (1, 2)
        expected = base[name] + (0.25 * (code[name] - base[name]) if is_selected else 0.0)
        np.testing.assert_allclose(found, expected, rtol=2.0**-11, atol=1e-7)


def test_a_query_narrows_a_blend_to_organs_of_the_base_that_it_finds(kin: LocalRegistry) -> None:
    found = [organ.name for organ in kin.organs_of(A) if organ.type == "organ" and (organ.theta or 0.0) < 35.0]
    assert 0 < len(found) < 12
    assert sorted(plan(kin, recipe_of(type="organ", where="theta<35")).computations) == sorted(found)
    assert codes(plan(kin, recipe_of(type="organ", where="theta<0.1"))) >= {"nothing-selected"}


@pytest.mark.long
@pytest.mark.parametrize(
    "steps",
    [
        {"base": A, "blends": {"method": "ties", "models": [{"from": CODE, "weight": 0.7, "density": 0.5}]}},
        {"base": A, "grafts": [{"from": CODE, "type": "organ", "blocks": "1-2"}]},
        {"base": A, "adapters": [{"from": LORA, "scale": 1.5}]},
        {"base": QUANT, "blends": {"from": PROSE, "weight": [0.2, 0.9]}},
        {"base": A, "layers": [{"from": A, "blocks": "0-2"}, {"from": A, "blocks": "1-3"}], "quantize": {"as": "Q8_0"}},
    ],
    ids=["blend", "graft", "adapter", "blend of quantised files", "layers and types"],
)
def test_the_file_of_an_unregistered_chimera_has_the_tensors_of_the_registered_one(
    steps: dict[str, Any], kin: LocalRegistry, tmp_path: Path
) -> None:
    planned = plan(kin, read_recipe(json.dumps(steps))).accepting_all()
    before, written = row_counts(kin), list[int]()
    with TrialFolder(kin.catalog, kin.blobs) as place:
        write_unregistered(
            *(planned, place.open_part, tmp_path / "trial.gguf", 2), lambda _action, size: written.append(size)
        )
    assert row_counts(kin) == before, "nothing is registered"
    kin.compose(planned.recipe).plan().accepting_all().assemble(tmp_path / "made.gguf")
    ours, theirs = (tensors_of(tmp_path / name) for name in ("trial.gguf", "made.gguf"))
    assert list(ours) == list(theirs)
    assert ours == theirs
    assert sum(written) == sum(map(len, ours.values()))


def test_an_adapter_is_added_to_the_model_that_is_blended(kin: LocalRegistry, tmp_path: Path) -> None:
    adapted = made(kin, read_recipe(json.dumps({"base": A, "adapters": [{"from": LORA}], "encode": "F32"})), tmp_path)
    half = {"method": "linear", "models": [{"from": A, "adapter": LORA, "weight": 0.5}, {"from": A, "weight": 0.5}]}
    blended = made(kin, read_recipe(json.dumps({"base": A, "encode": "F32", "blends": half})), tmp_path)
    base = stored(kin, A, tmp_path)
    for name, values in blended.items():
        np.testing.assert_allclose(values, (base[name] + adapted[name]) / 2.0, rtol=2.0**-20, atol=1e-8)


def test_lineage_and_license_name_the_blended_models(kin: LocalRegistry, tmp_path: Path) -> None:
    found = kin.compose(recipe_of(type="organ")).plan().accepting_all().register()
    chimera = kin.chimera(found.lock_id)
    assert [(parent.model, parent.acts) for parent in chimera.parents] == [
        (f"local/{A}@1", ()),
        (f"local/{CODE}@1", ("merged",)),
    ]
    assert {(part.merged, part.acts) for part in chimera.parts} == {((f"local/{CODE}@1",), ("merged",))}
    edges = [(edge.model, edge.relation) for edge in kin.model(found.model).lineage if edge.evidence == "recorded"]
    assert (f"local/{CODE}@1", "merged") in edges
    assert chimera.screen is not None
    assert chimera.screen.sentence.startswith("A blend (change ")


@pytest.mark.parametrize("slot", ["*", "ffn_gate", "ffn_up", "ffn_down"])
def test_the_change_is_estimated_by_a_trial(kin: LocalRegistry, slot: str) -> None:
    recipe = recipe_of(type="organ", weight=[{"slot": slot, "value": 0.5}, {"value": 0}])
    planned = plan(kin, recipe)
    assert planned.screen.provisional
    moved = {part.before.name: part.moved for part in planned.parts if part.moved}
    assert moved.keys() == {name for name in planned.computations if slot in ("*", place_of(name).slot)}
    measured = kin.chimera(kin.compose(recipe).plan().accepting_all().register().lock_id).screen
    assert measured is not None
    assert not measured.provisional
    assert measured.moved == pytest.approx(planned.screen.moved, rel=0.3)
    (kept,) = planned.kept
    assert (kept.type, kept.dtype, kept.finer) == ("organ", "F16", {})
    assert kept.kept == pytest.approx(1.0, abs=0.01)


def test_a_seed_changes_random_masks_and_is_in_the_lock(kin: LocalRegistry) -> None:
    steps = {"method": "dare_linear", "density": 0.5, "type": "organ", "blocks": 0}
    first, other = (plan(kin, recipe_of(**steps, seed=seed)) for seed in (0, 7))
    assert [one.lock(dict.fromkeys(one.computations, one.digest)).seeds for one in (first, other)] == [(0,), (7,)]
    assert {item.key for item in first.computations.values()}.isdisjoint(
        item.key for item in other.computations.values()
    )
    certain = plan(kin, recipe_of(type="organ", blocks=0))
    assert certain.lock(dict.fromkeys(certain.computations, first.digest)).seeds == ()


@pytest.mark.parametrize(
    ("setting", "at", "depth", "expected"),
    [
        (0.5, UP, 0.25, 0.5),
        ([0.0, 1.0], UP, 0.25, 0.25),
        ([0.0, 1.0, 0.0], UP, 0.75, 0.5),
        ([0.25, 1.0], "output_norm.weight", 0.0, 0.25),
        ([0.25], UP, 1.0, 0.25),
        ([{"type": "organ", "value": [0.0, 1.0]}, {"value": 0.75}], UP, 0.5, 0.5),
        ([{"type": "organ", "value": 0.0}, {"value": 0.75}], NORM, 0.5, 0.75),
        ([{"slot": "ffn_up", "blocks": "2-3", "value": 0.0}, {"value": 0.75}], UP, 0.5, 0.75),
        ([{"type": "skeleton", "value": 0.0}], UP, 0.5, None),
    ],
)
def test_a_parameter_has_a_value_for_each_organ(setting: Any, at: str, depth: float, expected: float | None) -> None:
    (step,) = recipe_of(weight=setting).blends
    settings, missing = settings_at(step, place_of(at), depth)
    assert settings["weight"] == ([] if expected is None else [pytest.approx(expected)])
    assert missing == (["weight"] if expected is None else [])
    assert (settings["normalize"], settings["lambda"]) == (False, 1.0)


def codes(planned: Plan) -> set[str]:
    return {finding.code for finding in planned.findings if finding.severity is not Severity.INFO}


@pytest.mark.parametrize(
    ("blend", "code"),
    [
        ({"from": "nobody"}, "unknown-donor"),
        ({"slot": "ssm_in"}, "nothing-selected"),
        ({"blocks": 9}, "no-such-block"),
        ({"from": "twin", "weight": [{"type": "skeleton", "value": 1}]}, "parameter-missing"),
        ({"from": "narrow"}, "width-differs"),
        ({"from": "short"}, "organ-absent"),
        ({"from": "twin", "type": "skeleton"}, "bad-blend"),
        ({"from": "unread"}, "dtype-refused"),
        ({"from": "whole"}, "dtype-refused"),
        ({"from": "scaled", "slot": "ffn_up"}, "scale-apart"),
        ({"from": "scaled"}, "scale-apart"),
        ({"from": "twin", "slot": "ffn_gate.scale"}, "scale-apart"),
        ({"from": "other", "slot": "ffn_gate"}, "scale-apart"),
        ({"from": "twin", "slot": "ffn_up"}, "nothing-to-do"),
        ({"from": "other", "slot": "ffn_up"}, ""),
        ({"from": "wide", "type": ["organ", "norm"]}, ""),
    ],
)
def test_what_cannot_be_blended_is_refused(monkeypatch: pytest.MonkeyPatch, blend: dict[str, Any], code: str) -> None:
    scale = ("blk.0.ffn_gate.scale", (1,))
    more: dict[str, dict[str, Any]] = {
        "base": {"more": [scale, ("blk.0.attn_long.weight", (192, 1))]},
        "other": {"seed": 1, "more": [scale]},
        "scaled": {"more": [scale, ("blk.0.ffn_up.scale", (1,))]},
        "narrow": {"width": 32},
        "short": {"blocks": 1},
        "wide": {"dtypes": {UP: "F64", NORM: "BF16"}, "more": [scale]},
        "unread": {"dtypes": {UP: "Q8_1"}, "more": [scale]},
        "whole": {"dtypes": {UP: "I16"}, "more": [scale]},
    }
    more["twin"] = more["base"]
    parents = [synthetic_parent(name, tensors=model_tensors(**values)) for name, values in more.items()]
    monkeypatch.setattr(planner, "ROW_MAX_ELEMENTS", 128)
    text = json.dumps({"base": "base", "blends": {"from": "short", "weight": 0.5, "type": "organ", **blend}})
    planned = plan_in_memory(text, *parents)
    found = codes(planned) - {"unrelated-lineage"}
    assert code in found if code else not found
    assert scale[0] not in planned.computations
    assert (code == "nothing-to-do") <= ("already-equal" in {finding.code for finding in planned.findings})
    warnings = [finding.sentence for finding in planned.findings if finding.severity is Severity.WARN]
    assert not any(word in sentence for sentence in warnings for word in ("replace", "graft"))


@pytest.mark.parametrize("adapter", ["", "lora"])
def test_a_step_without_a_result_is_refused_at_its_field(own: LocalRegistry, tmp_path: Path, adapter: str) -> None:
    for model, seed in (("base", 0), ("tuned", 1)):
        ingest_bytes(own, tmp_path, model, model_file(model, block_tensors(seed=seed)))
    ingest_bytes(own, tmp_path, "lora", adapter_file(UP, (64, 4), (4, 128), 1e30))
    blends: list[dict[str, Any]] = [{"type": "norm"}, {"type": "organ"}]
    blends[1] |= {} if adapter else {"method": "della", "density": 0.1}
    recipe = {"base": "base", "blends": [{"from": "tuned", "weight": 0.5, **blend} for blend in blends]}
    recipe |= {"blends": [], "adapters": [{"from": adapter}]} if adapter else {}
    refused = [item for item in plan(own, read_recipe(json.dumps(recipe))).findings if item.severity is Severity.REFUSE]
    assert [(item.code, item.field) for item in refused] == [("bad-blend", "adapters[0]" if adapter else "blends[1]")]


def test_nothing_is_tried_after_a_refusal(kin: LocalRegistry) -> None:
    steps = [{"from": CODE, "weight": 0.5, "type": "organ"}, {"from": "nobody", "weight": 0.5, "type": "norm"}]
    assert plan(kin, read_recipe(json.dumps({"base": A, "blends": steps}))).kept == ()


def test_two_blends_of_an_organ_are_refused(kin: LocalRegistry) -> None:
    steps = [{"from": CODE, "weight": 0.5, "type": "organ"}, {"from": CODE, "weight": 0.5, "slot": "ffn_up"}]
    assert codes(plan(kin, read_recipe(json.dumps({"base": A, "blends": steps})))) == {"overlapping-steps"}


def ingest_family(registry: LocalRegistry, folder: Path, tensors: Tensors, coarse: str) -> None:
    """Ingest a model in a coarse type, the source of which it was made, and a light fine-tune of that."""
    random = np.random.default_rng(5)
    for name, dtype, change in (("source", "F16", 0.0), ("coarse", coarse, 0.0), ("tuned", "F16", 0.003)):
        written = []
        for spec, data in tensors:
            weights = decode(data, spec.dtype) * (1.0 + change * random.standard_normal(spec.elements))
            kind = dtype_by_name(dtype) if len(spec.shape) > 1 else spec.dtype
            write = quantize if can_quantize(kind) else encode
            written.append((TensorSpec(spec.name, spec.shape, kind), write(weights, kind)))
        ingest_bytes(registry, folder, name, model_file(name, written))


@pytest.fixture
def coarse(own: LocalRegistry, tmp_path: Path) -> LocalRegistry:
    """Return a registry with a model in 4 bits and its family."""
    ingest_family(own, tmp_path, block_tensors(width=256), "Q4_K")
    return own


def test_finer_types_fit_the_rows_of_each_organ(own: LocalRegistry, tmp_path: Path) -> None:
    uneven = [(f"blk.{block}.ffn_{slot}.weight", (96, 256)) for block in range(2) for slot in ("gate", "up")]
    uneven += [(f"blk.{block}.ffn_down.weight", (256, 96)) for block in range(2)]
    ingest_family(own, tmp_path, model_tensors(width=96, more=uneven), "Q4_0")
    blend = {"from": "tuned", "weight": 1.0, "type": "organ"}
    recipe = read_recipe(json.dumps({"base": "coarse", "blends": blend, "encode": "finer"}))
    planned = plan(own, recipe)
    finer = {place_of(name).slot: item.dtype for name, item in planned.computations.items()}
    assert {slot: dtype.block_elements for slot, dtype in finer.items()} == {
        "ffn_gate": 32,
        "ffn_up": 32,
        "ffn_down": 256,
    }
    assert sum(kept.organs for kept in planned.kept) == 6
    assert made(own, recipe, tmp_path)


@pytest.mark.parametrize("is_blended", [False, True])
def test_adapters_of_the_token_embedding_are_transposed(own: LocalRegistry, tmp_path: Path, is_blended: bool) -> None:
    name = "token_embd.weight"
    for model, seed in (("base", 0), ("tuned", 1)):
        tensors = [*block_tensors(seed=seed), weight_tensor("output.weight", (64, 96), seed)]
        ingest_bytes(own, tmp_path, model, model_file(model, tensors))
    ingest_bytes(own, tmp_path, "lora", adapter_file(name, (4, 96), (4, 64)))
    models = [{"from": model, "weight": 0.5} for model in ("base", "tuned")]
    models[1] |= {"adapter": "lora"} if is_blended else {}
    recipe = {"base": "base", "blends": {"method": "linear", "type": "embed", "models": models}, "encode": "F32"}
    recipe |= {} if is_blended else {"adapters": [{"from": "lora", "scale": 0.5}]}
    values = made(own, read_recipe(json.dumps(recipe)), tmp_path)
    first, second, lora = (stored(own, model, tmp_path) for model in ("base", "tuned", "lora"))
    a, b = (lora[f"{name}.lora_{half}"].reshape(-1, 4) for half in "ab")
    expected = (first[name] + second[name] + (a @ b.T).reshape(-1)) / 2.0
    np.testing.assert_allclose(values[name], expected, rtol=2.0**-20, atol=1e-8)


@pytest.mark.parametrize("shape", [(1 << 15, 3), (3, 1 << 15)])
def test_a_trial_reads_a_part_of_long_rows(own: LocalRegistry, tmp_path: Path, shape: tuple[int, int]) -> None:
    for model, seed in (("base", 0), ("tuned", 1)):
        ingest_bytes(own, tmp_path, model, model_file(model, model_tensors(seed, more=[(UP, shape)])))
    ingest_bytes(own, tmp_path, "lora", adapter_file(UP, (shape[0], 4), (4, shape[1])))
    blend = {"from": "tuned", "weight": 0.5, "slot": "ffn_up", "blocks": 1}
    recipe = read_recipe(json.dumps({"base": "base", "blends": blend, "adapters": [{"from": "lora"}]}))
    (kept,) = plan(own, recipe).kept
    assert kept.values <= RUNS * RUN_VALUES
    before, after = stored(own, "base", tmp_path)[UP], made(own, recipe, tmp_path)[UP]
    assert kept.moved == pytest.approx(((after - before) ** 2).sum() / (before**2).sum(), rel=0.1)


@pytest.mark.parametrize("shape", [(1 << 15, 3), (64, 700)])
def test_a_trial_of_a_dora_reads_whole_rows_because_it_changes_their_lengths(
    own: LocalRegistry, tmp_path: Path, shape: tuple[int, int]
) -> None:
    ingest_bytes(own, tmp_path, "base", model_file("base", model_tensors(more=[(UP, shape)])))
    (row, rows), lengths = shape, np.linspace(0.5, 9.0, shape[1], dtype=np.float32)
    factors = [
        weight_tensor(f"{UP}.lora_{half}", sides, 1, "F32") for half, sides in (("a", (row, 4)), ("b", (4, rows)))
    ]
    magnitudes = TensorSpec(f"{UP}.lora_magnitude", (rows,), dtype_by_name("F32")), lengths.tobytes()
    keys = ("general.type", "adapter"), ("adapter.type", "lora-merge"), ("general.architecture", "llama")
    ingest_bytes(own, tmp_path, "dora", file_bytes([text(*pair) for pair in keys], [*factors, magnitudes]))
    recipe = read_recipe(json.dumps({"base": "base", "adapters": [{"from": "dora"}]}))
    (kept,) = plan(own, recipe).kept
    before, after = stored(own, "base", tmp_path)[UP], made(own, recipe, tmp_path)[UP]
    np.testing.assert_allclose(np.linalg.norm(after.reshape(rows, row), axis=1), lengths, rtol=1e-3)
    assert kept.moved == pytest.approx(((after - before) ** 2).sum() / (before**2).sum(), rel=0.1)


@pytest.mark.parametrize("written", ["same", "finer", "Q6_K"])
def test_a_change_that_rounding_loses_is_seen_before_it_is_made(coarse: LocalRegistry, written: str) -> None:
    recipe = {"base": "coarse", "blends": {"from": "tuned", "weight": 1.0, "type": "organ"}, "encode": written}
    planned = plan(coarse, read_recipe(json.dumps(recipe)))
    (kept,) = planned.kept
    is_same = written == "same"
    assert (kept.dtype == "Q4_K") is is_same
    assert (kept.kept < 0.5) is is_same
    assert ("change-lost-in-rounding" in codes(planned)) is is_same
    assert {part.spec.dtype.name for part in planned.parts if part.computation} == {kept.dtype}
    assert kept.dtype == "Q4_K" or kept.kept >= 0.9


def test_a_proved_source_is_computed_with_so_that_rounding_keeps_the_change(
    coarse: LocalRegistry, tmp_path: Path
) -> None:
    blend = {"from": "tuned", "weight": 0.5, "type": "organ"}
    recipe = read_recipe(json.dumps({"base": "coarse", "blends": blend, "accept": ["change-lost-in-rounding"]}))
    before = plan(coarse, recipe)
    coarse.prove("coarse")
    planned = plan(coarse, recipe)
    for one, kept, sources in ((before, 0.0, 0), (planned, 1.0, 1)):
        assert [item.kept for item in one.kept] == [pytest.approx(kept, abs=0.2)]
        assert len(one.lock(dict.fromkeys(one.computations, one.digest)).sources) == sources
        assert ("computed-from-source" in {finding.code for finding in one.findings}) is bool(sources)
    source, tuned = stored(coarse, "source", tmp_path), stored(coarse, "tuned", tmp_path)
    found = coarse.compose(recipe).plan().register()
    coarse.assemble(found.model, tmp_path / "made.gguf")
    values, kind = values_in(tmp_path / "made.gguf"), dtype_by_name("Q4_K")
    for name in planned.computations:
        mean = source[name] + 0.5 * (tuned[name] - source[name])
        np.testing.assert_array_equal(values[name], decode(encode(mean, kind), kind))
    chimera = coarse.chimera(found.lock_id)
    assert [(parent.model, parent.acts) for parent in chimera.parents] == [
        ("local/coarse@1", ()),
        ("local/tuned@1", ("merged",)),
        ("local/source@1", ("source",)),
    ]
    assert chimera.recipe.source == "local/source@1"
    for named, same in (("source", planned), ("given", before)):
        again = read_recipe(json.dumps({"base": "coarse", "source": named, "blends": blend}))
        assert plan(coarse, again).digest == same.digest
    for source_name, code in (("tuned", "source-not-proved"), ("nobody", "unknown-source")):
        text = json.dumps({"base": "coarse", "source": source_name, "blends": blend})
        assert code in codes(plan(coarse, read_recipe(text)))


def test_a_blend_uses_the_sources_of_all_its_quantised_models_or_of_none(coarse: LocalRegistry, tmp_path: Path) -> None:
    tuned = stored(coarse, "tuned", tmp_path)
    kind = dtype_by_name("Q4_K")
    written = [
        (TensorSpec(spec.name, spec.shape, kind), encode(tuned[spec.name], kind))
        if len(spec.shape) > 1
        else (spec, data)
        for spec, data in block_tensors(width=256)
    ]
    ingest_bytes(coarse, tmp_path, "tuned-coarse", model_file("tuned-coarse", written))
    recipe = read_recipe(
        json.dumps({"base": "coarse", "blends": {"from": "tuned-coarse", "weight": 0.5, "type": "organ"}})
    )
    coarse.prove("coarse", "source")
    for code in ("source-not-used", "computed-from-source"):
        planned = plan(coarse, recipe)
        found = {finding.code for finding in planned.findings} & {"source-not-used", "computed-from-source"}
        assert found == {code}
        is_used = {bool(item.source_models) for item in planned.computations.values()}
        assert is_used == {code == "computed-from-source"}
        assert plan(coarse, structs.replace(recipe, source="source")).digest == planned.digest
        coarse.prove("tuned-coarse", "tuned")
