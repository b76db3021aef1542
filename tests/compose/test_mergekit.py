"""Tests of mergekit's configurations as recipes: models, slices, filters, gradients, documents, and refusals."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.anatomy import LLAMA_BIASES, LLAMA_NAMES, place_of
from organs.registry.compose.blend_steps import Blend, settings_at
from organs.registry.compose.mergekit import read_recipes
from organs.registry.compose.recipe import Recipe, recipe_values
from organs.registry.errors import BadRecipe
from tests.random_files import PATIENT

BLOCKS = 5


def recipes(text: str, blocks: int = BLOCKS) -> list[Recipe]:
    return read_recipes(text, "merge.yml", lambda _model: blocks)


def setting_of(step: Blend, name: str, parameter: str, blocks: int = BLOCKS) -> object:
    """Return the value of a parameter for the tensor `name`; None if it has none."""
    place = place_of(name)
    settings, missing = settings_at(step, place, (place.block or 0) / (blocks - 1))
    return None if missing else settings[parameter]


def test_models_become_donors_and_the_first_one_is_the_base() -> None:
    (recipe,) = recipes(
        "merge_method: linear\ndtype: float16\nmodels:\n"
        "- {model: a/base, parameters: {weight: 0.5}}\n- {model: a/code+a/lora, parameters: {weight: 0.25}}\n"
    )
    assert recipe_values(recipe) == {
        "base": "a/base",
        "blends": {
            "method": "linear",
            "models": [{"from": "a/base", "weight": 0.5}, {"from": "a/code", "adapter": "a/lora", "weight": 0.25}],
        },
        "encode": "F16",
    }


def test_the_base_is_no_donor_of_a_method_that_has_one_and_parameters_are_inherited() -> None:
    (recipe,) = recipes(
        "merge_method: ties\nbase_model: a/base\nparameters: {normalize: false, int8_mask: true, density: 0.5}\n"
        "models:\n- {model: a/base}\n- {model: a/code, parameters: {weight: 1, density: 0.25}}\n"
        "- {model: a/docs, parameters: {weight: [0, 1]}}\n"
    )
    models = [
        {"from": "a/code", "density": 0.25, "weight": 1.0},
        {"from": "a/docs", "density": 0.5, "weight": [0.0, 1.0]},
    ]
    assert recipe_values(recipe) == {
        "base": "a/base",
        "blends": {"method": "ties", "models": models, "normalize": False},
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        # The values that mergekit uses at these tensors, as it was seen on a model of 5 blocks.
        ("[{filter: self_attn, value: [0.1, 0.9]}, {filter: mlp, value: 0.3}, {value: 0.7}]",
         {"blk.1.attn_q.weight": 0.3, "blk.4.attn_output.weight": 0.9, "blk.1.ffn_down.weight": 0.3,
          "blk.1.ffn_norm.weight": 0.7, "output.weight": 0.7}),
        ("[{filter: layernorm, value: 0.3}, {value: 0.7}]",
         {"blk.0.attn_norm.weight": 0.3, "blk.0.ffn_norm.weight": 0.3, "output_norm.weight": 0.7}),
        ("[{filter: norm, value: 0.3}, {value: 0.7}]", {"output_norm.weight": 0.3, "blk.0.attn_q.weight": 0.7}),
        ("[{filter: layers.1., value: 0.3}, {value: 0.7}]",
         {"blk.1.ffn_up.weight": 0.3, "blk.2.ffn_up.weight": 0.7, "token_embd.weight": 0.7}),
        ("[{filter: model.layers.2.mlp, value: 0.3}, {value: 0.7}]",
         {"blk.2.ffn_up.weight": 0.3, "blk.2.attn_q.weight": 0.7, "blk.1.ffn_up.weight": 0.7}),
        ("[{filter: q_proj.bias, value: 0.3}, {value: 0.7}]", {"blk.1.attn_q.bias": 0.3, "blk.1.attn_q.weight": 0.7}),
        ("[{filter: embed_tokens, value: 0.3}, {value: 0.7}]", {"token_embd.weight": 0.3, "output.weight": 0.7}),
        ("[{filter: '*mlp*', value: 0.3}, {value: 0.7}]", {"blk.1.ffn_up.weight": 0.7}),
        ("[0, 1, 0]", {"token_embd.weight": 0.0, "blk.1.ffn_up.weight": 0.5, "blk.2.ffn_up.weight": 1.0}),
    ],
)  # fmt: skip
def test_filters_and_gradients_give_each_tensor_the_value_of_mergekit(value: str, expected: dict[str, float]) -> None:
    (recipe,) = recipes(f"merge_method: linear\nmodels: [{{model: a, parameters: {{weight: {value}}}}}]")
    (step,) = recipe.blends
    for name, weight in expected.items():
        assert setting_of(step, name, "weight") == [pytest.approx(weight)]


@pytest.mark.parametrize(
    "text",
    ["*", "", "layers.1", "layers.1.", "1.mlp", "0.self_attn.q_proj", "model.", "model.layers.1", "norm.weight",
     "lm_head", "q_proj.bias", "bias", ".", "mlp.gate", "experts", "s.", "layers.21.mlp.up", "absent", "layers.23"],
)  # fmt: skip
def test_a_filter_selects_the_tensors_whose_name_contains_it(text: str) -> None:
    blocks = 23
    weight = json.dumps([{"filter": text, "value": 1}, {"value": 0}])
    (recipe,) = recipes(f"merge_method: linear\nmodels: [{{model: a, parameters: {{weight: {weight}}}}}]", blocks)
    (step,) = recipe.blends
    for slot, pattern in LLAMA_NAMES.items():
        for ending in ("weight", "bias") if slot in LLAMA_BIASES else ("weight",):
            for block in range(blocks) if "{}" in pattern else (0,):
                theirs = f"{pattern.format(block, 'E')}.{ending}"
                ours = f"blk.{block}.{slot}.{ending}" if "{}" in pattern else f"{slot}.{ending}"
                assert setting_of(step, ours, "weight", blocks) == [float(text == "*" or text in theirs)], theirs


def test_tensors_without_a_value_of_their_own_have_the_inherited_one_or_the_default() -> None:
    (recipe,) = recipes(
        "merge_method: ties\nbase_model: a\nparameters: {density: [{filter: mlp, value: 0.5}], weight: 1}\nmodels:\n"
        "- {model: b, parameters: {density: [{filter: layers.0., value: 0.25}], weight: [{filter: mlp, value: .5}]}}\n"
    )
    (step,) = recipe.blends
    names = ("blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "blk.1.attn_q.weight")
    assert [setting_of(step, name, "density") for name in names] == [[0.25], [0.5], [1.0]]
    assert [setting_of(step, name, "weight") for name in names] == [[0.5], [0.5], [1.0]]


def test_slices_are_blends_of_their_blocks_with_gradients_along_each() -> None:
    (recipe,) = recipes(
        "merge_method: slerp\nbase_model: a\nparameters: {t: 0.5}\nslices:\n"
        "- {sources: [{model: a, layer_range: [0, 3]}, {model: b, layer_range: [0, 3]}], parameters: {t: [0, 1]}}\n"
        "- {sources: [{model: a, layer_range: [3, 5]}, {model: c, layer_range: [3, 5]}]}\n"
    )
    chosen = {}
    for name in ("token_embd.weight", *(f"blk.{block}.ffn_up.weight" for block in range(BLOCKS)), "output_norm.weight"):
        (step,) = (step for step in recipe.blends if step.holds(place_of(name)))
        chosen[name] = (step.donors[0].model, setting_of(step, name, "t"))
    assert list(chosen.values()) == [("b", 0.0), ("b", 0.0), ("b", 0.5), ("b", 1.0), ("c", 0.5), ("c", 0.5), ("c", 0.5)]


def test_slices_in_another_order_are_layers_and_the_last_one_has_the_output() -> None:
    (recipe,) = recipes(
        "merge_method: passthrough\nslices:\n- sources: [{model: a, layer_range: [0, 4]}]\n"
        "- sources: [{model: b, layer_range: [2, 5]}]\nchat_template: '{{ messages }}'\n"
    )
    assert recipe_values(recipe) == {
        "base": "a",
        "layers": [{"blocks": "0-3"}, {"from": "b", "blocks": "2-4"}],
        "grafts": [{"from": "b", "slot": ["output_norm", "output"]}],
        "metadata": {"tokenizer.chat_template": "{{ messages }}"},
    }
    (recipe,) = recipes(
        "merge_method: linear\nparameters: {weight: [0, 1]}\nslices:\n"
        "- {sources: [{model: a, layer_range: [0, 3]}, {model: b, layer_range: [0, 3]}]}\n"
        "- {sources: [{model: a, layer_range: [1, 5]}, {model: b, layer_range: [1, 5]}]}\n"
    )
    assert recipe_values(recipe)["layers"] == [{"blocks": "0-2"}, {"blocks": "1-4"}]
    weights = {}
    for block in range(7):
        (step,) = (step for step in recipe.blends if step.holds(place_of(f"blk.{block}.ffn_up.weight")))
        weights[block] = setting_of(step, f"blk.{block}.ffn_up.weight", "weight", 7)
    assert {block: weight[0] for block, weight in weights.items()} == pytest.approx(  # type: ignore[index]
        {0: 0.0, 1: 0.5, 2: 1.0, 3: 0.0, 4: 1 / 3, 5: 2 / 3, 6: 1.0}
    )


def test_a_scaled_passthrough_multiplies_the_tensors_that_its_filters_name() -> None:
    (recipe,) = recipes(
        "merge_method: passthrough\nslices:\n- sources: [{model: a, layer_range: [0, 5]}]\n- sources:\n"
        "  - {model: a, layer_range: [4, 5], parameters: {scale: [{filter: down_proj, value: 0.5}, {value: 1}]}}\n"
    )
    assert recipe_values(recipe)["layers"] == [{"blocks": "0-4"}, {"blocks": 4}]
    within_block = [step for step in recipe.blends if step.holds(place_of("blk.5.ffn_down.weight"))]
    assert [setting_of(step, "blk.5.ffn_down.weight", "weight") for step in within_block] == [[0.5]]
    assert not any(step.holds(place_of("blk.4.ffn_down.weight")) for step in recipe.blends)
    later = recipes(
        "name: big\nmerge_method: passthrough\nslices:\n" + "- sources: [{model: a, layer_range: [0, 5]}]\n" * 2
        + "---\nmerge_method: passthrough\nslices:\n- sources: [{model: big, layer_range: [5, 10]}]\n"
    )  # fmt: skip
    assert recipe_values(later[1])["layers"] == [{"blocks": "5-9"}]


def test_gradients_of_slices_have_filters_in_models_of_hundreds_of_blocks() -> None:
    blocks, edge = 300, 299
    item = "- {sources: [{model: a, layer_range: [%d, %d]}, {model: b, layer_range: [%d, %d]}], parameters: {t: %s}}\n"
    filters = (
        "[{filter: layers.1., value: 0.75}, {filter: self_attn, value: [0, 1]}, {filter: mlp, value: [1, 0]}, "
        "{value: [0.5, 0.5]}]"
    )
    (recipe,) = recipes(
        "merge_method: slerp\nbase_model: a\nslices:\n"
        + item % (0, edge, 0, edge, filters)
        + item % (edge, blocks, edge, blocks, "[0, 0.125]"),
        blocks,
    )
    expected = {
        "blk.0.attn_q.weight": 0.0, "blk.149.attn_q.weight": 0.5, "blk.298.attn_q.weight": 1.0,
        "blk.0.ffn_up.weight": 1.0, "blk.298.ffn_up.weight": 0.0, "blk.1.ffn_up.weight": 0.75,
        "blk.7.attn_norm.weight": 0.5, "token_embd.weight": 0.5, "blk.299.ffn_up.weight": 0.125,
    }  # fmt: skip
    for name, value in expected.items():
        (step,) = (step for step in recipe.blends if step.holds(place_of(name)))
        assert setting_of(step, name, "t", blocks) == pytest.approx(value), name


def test_later_documents_name_earlier_ones() -> None:
    first, second = recipes(
        "name: first\nmerge_method: linear\nmodels: [{model: a, parameters: {weight: 1}}]\n---\n"
        "merge_method: slerp\nbase_model: a\nmodels: [{model: a}, {model: first}]\nparameters: {t: 0.5}\n"
    )
    assert (first.name, second.blends[0].donors[0].model) == ("first", "first")


def test_a_recipe_of_our_own_is_read_too() -> None:
    assert recipes("base: a\ngrafts: [{from: b}]")[0].grafts[0].donor == "b"


SLICE = "slices: [{sources: [{model: a, layer_range: %s}, {model: b, layer_range: %s}]}]"
LINEAR = "merge_method: linear\n"
MODELS = LINEAR + "models: [{model: a, parameters: {weight: 1}}]\n"
NUMBERS = "a number, or a list of numbers"
RANGE = "slices[0].sources[0].layer_range"
FIRST = "models[0].parameters.weight[0]"
TWO = "models: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: 1}}]\n"
WEIGHT = LINEAR + "models: [{model: a, parameters: {weight: %s}}]"
GRADIENT = (SLICE % ("[0, 5]", "[0, 5]")).replace("}]}]", "}], parameters: {t: %s}}]")


@pytest.mark.parametrize(
    ("text", "path", "sentence"),
    [
        (LINEAR.replace("linear", "passthrough") + SLICE % ("[0, 3]", "[0, 3]"), "slices[0]", "has one source"),
        ("merge_method: passthrough\n" + TWO, "models", "has one model"),
        (MODELS.replace("linear", "franken"), "merge_method", "is not one of linear, slerp"),
        (MODELS + "tokenizer: {source: union}", "tokenizer", "tokenizers are not merged"),
        (MODELS + "tokenizer_source: b", "tokenizer", "write tokenizer_source: base"),
        (MODELS + "tokenizer: {source: base, tokens: {}}", "tokenizer", "tokens are not"),
        (MODELS + "chat_template: chatml", "chat_template", "write the text of the template"),
        (MODELS + "dtype: int8", "dtype", "float16, bfloat16, float32"),
        (MODELS + "slice: []", "slice", "did you mean slices"),
        (LINEAR + SLICE % ("[0, 5]", "[1, 5]"), "slices[0]", "different ranges"),
        (LINEAR + SLICE % ("[0, 6]", "[0, 6]"), "slices[0]", "the blocks 0 to 4"),
        (LINEAR + SLICE % ((f"[0, {'9' * 9}]",) * 2), "slices[0]", "the blocks 0 to 4"),
        ("merge_method: passthrough\nslices:\n" + "- sources: [{model: a, layer_range: [0, 5]}]\n" * 201,
         "slices", "1,000"),
        (LINEAR + SLICE % ("5", "5"), RANGE, "[first, after the last]"),
        (LINEAR + "models: [{parameters: {weight: 1}}]", "models[0].model", "is missing"),
        (LINEAR + "models: 5", "models", "a list of models"),
        (MODELS + SLICE % ("[0, 5]", "[0, 5]"), "", "either models or slices"),
        (MODELS.replace("weight", "wight"), "models[0].parameters.wight", "did you mean weight"),
        ("name: a\n" + MODELS + "---\n5", "", "an object"),
        (MODELS + "---\n" + MODELS, "name", "needs a name"),
        ("base: a\n---\nbase: b", "", "only configurations of mergekit"),
        (LINEAR + "slices: []", "slices", "a list of slices"),
        (LINEAR + "slices: null", "", "either models or slices"),
        (LINEAR + "slices: [{sources: [], residual_weight: 1}]", "slices[0]", "a slice has sources"),
        (LINEAR + "slices: [{sources: [{model: a, layer_range: [0, 5]}], base_model: b}]",
         "slices[0].base_model", "unknown key"),
        (LINEAR + SLICE % ((f"[0, {'9' * 5000}]",) * 2), RANGE, "[first, after the last]"),
        (LINEAR + SLICE % ("[0, ٥]", "[0, ٥]"), RANGE, "[first, after the last]"),
        *((LINEAR + GRADIENT % value, "slices[0].parameters.t", NUMBERS)
          for value in ("[0, abc]", "[0, .nan]", "[0, [1]]", "[]", "[0, true]", "{value: 1}", ".inf", "null")),
        (LINEAR + GRADIENT % f"[0, {'9' * 400}]", "slices[0].parameters.t", NUMBERS),
        (WEIGHT % "[{filter: mlp, value: []}]", f"{FIRST}.value", NUMBERS),
        (WEIGHT % "[{filter: mlp}]", f"{FIRST}.value", NUMBERS),
        (WEIGHT % "[{filter: [mlp], value: 1}]", f"{FIRST}.filter", "a part of the names"),
        (WEIGHT % "[{filters: mlp, value: 1}]", f"{FIRST}.filters", "did you mean filter"),
        (WEIGHT % "[{filter: mlp, value: 1}, 5]", "models[0].parameters.weight[1]", "objects with filter and value"),
        (WEIGHT % "[{filter: experts.3, value: 1}]", f"{FIRST}.filter", "single experts"),
        (WEIGHT % "[{filter: 3.up_proj, value: 1}]", f"{FIRST}.filter", "single experts"),
        (WEIGHT % "[{filter: absent, value: 1}]", "blends[0].models[0].weight", "linear needs it"),
        (LINEAR + "models: [{model: +lora}]", "models[0].model", "is missing"),
        ("merge_method: nuslerp\n" + TWO, "base_model", "write merge_method: slerp, base_model: 'a'"),
        ("merge_method: nuslerp\nbase_model: null\n" + TWO, "base_model", "not possible without a base"),
        ("merge_method: ties\nbase_model:\n" + TWO, "base_model", "ties needs a base"),
        (MODELS + "base_model: a+lora", "base_model", "'a+lora': a base has no adapter"),
        (MODELS + "base_model: [a]", "base_model", "the name of a model"),
        (MODELS + "base_model: ''", "base_model", "the name of a model"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(text: str, path: str, sentence: str) -> None:
    with pytest.raises(BadRecipe) as caught:
        recipes(text)
    assert [(field, sentence in reason) for field, reason in caught.value.reasons] == [(path, True)]


_WORDS = st.sampled_from(["", "*", "a", "a+b", "layers.1", "experts.2", ".nan", "1_0", "9" * 400, "slerp", "٣", "+"])
_KEYS = st.sampled_from(["model", "parameters", "weight", "t", "filter", "value", "sources", "layer_range", "k"])


@PATIENT
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-1, 6) | st.floats(-200, 200) | st.just(10**400) | _WORDS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from([
        "{'models': %s}", "{'slices': %s}", "{'models': [%s]}", "{'models': [{'model': %s}]}",
        "{'models': [{'model': 'a', 'parameters': {'t': %s}}]}", "{'slices': [{'sources': %s}]}",
        "{'slices': [{'sources': [{'model': 'b', 'layer_range': [0, %s]}]}]}",
        "{'slices': [{'sources': [{'model': 'b', 'layer_range': [0, 5]}], 'parameters': {'t': %s, 'weight': %s}}]}",
        "{'slices': [{'sources': [{'model': 'b', 'layer_range': [0, 5]}], 'parameters': {'t': [{'value': 0}, %s]}}]}",
        "{'models': [{'model': 'b'}], 'parameters': {'t': [{'filter': %s, 'value': [0, 1]}]}}",
        "{'models': [{'model': 'b'}], 'parameters': {'t': 0}, 'name': %s, 'dtype': null, 'tokenizer': %s}",
        "{'models': [{'model': 'b'}], 'parameters': {'t': 0}, 'merge_method': %s, 'base_model': %s}",
    ]),
)  # fmt: skip
def test_any_value_at_any_place_is_read_or_refused_in_words(value: object, outline: str) -> None:
    written = outline.replace("'", '"').replace("%s", json.dumps(value))
    defaults = {"merge_method": "slerp", "base_model": "a"}
    text = "{" + "".join(f'"{key}": "{item}", ' for key, item in defaults.items() if key not in outline) + written[1:]
    assert all(field.isprintable() and sentence for field, sentence in refused(text))


def refused(text: str) -> tuple[tuple[str, str], ...]:
    """Return the faults of `text`; none for a configuration that can be done."""
    try:
        recipes(text)
    except BadRecipe as error:
        return error.reasons
    return ()
