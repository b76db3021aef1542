"""Tests of mergekit's configurations as recipes: models, slices, filters, gradients, documents, and refusals."""

from __future__ import annotations

import pytest

from organs.registry.anatomy import place_of
from organs.registry.compose.blend_steps import settings_at
from organs.registry.compose.mergekit import read_recipes
from organs.registry.compose.recipe import Recipe, recipe_values
from organs.registry.errors import BadRecipe

BLOCKS = 5


def recipes(text: str) -> list[Recipe]:
    return read_recipes(text, "merge.yml", lambda _model: BLOCKS)


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
        place = place_of(name)
        settings, missing = settings_at(step, place, (place.block or 0) / (BLOCKS - 1))
        assert (settings["weight"], missing) == ([pytest.approx(weight)], [])


def test_slices_are_blends_of_their_blocks_with_gradients_along_each() -> None:
    (recipe,) = recipes(
        "merge_method: slerp\nbase_model: a\nparameters: {t: 0.5}\nslices:\n"
        "- {sources: [{model: a, layer_range: [0, 3]}, {model: b, layer_range: [0, 3]}], parameters: {t: [0, 1]}}\n"
        "- {sources: [{model: a, layer_range: [3, 5]}, {model: c, layer_range: [3, 5]}]}\n"
    )
    chosen = {}
    for name in ("token_embd.weight", *(f"blk.{block}.ffn_up.weight" for block in range(BLOCKS)), "output_norm.weight"):
        place = place_of(name)
        (step,) = (step for step in recipe.blends if step.holds(place))
        settings, _ = settings_at(step, place, (place.block or 0) / (BLOCKS - 1))
        chosen[name] = (step.donors[0].model, settings["t"])
    assert list(chosen.values()) == [("b", 0.0), ("b", 0.0), ("b", 0.5), ("b", 1.0), ("c", 0.5), ("c", 0.5), ("b", 0.0)]


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


@pytest.mark.parametrize(
    ("text", "path", "sentence"),
    [
        (LINEAR.replace("linear", "passthrough") + SLICE % ("[0, 3]", "[0, 3]"), "merge_method", "cannot do yet"),
        (MODELS.replace("linear", "franken"), "merge_method", "is not one of linear, slerp"),
        (MODELS + "tokenizer: {source: union}", "tokenizer", "tokenizers are not merged"),
        (MODELS + "tokenizer_source: b", "tokenizer", "write tokenizer_source: base"),
        (MODELS + "tokenizer: {source: base, tokens: {}}", "tokenizer", "tokens are not"),
        (MODELS + "chat_template: chatml", "chat_template", "cannot be set yet"),
        (MODELS + "dtype: int8", "dtype", "float16, bfloat16, float32"),
        (MODELS + "slice: []", "slice", "did you mean slices"),
        (LINEAR + SLICE % ("[0, 5]", "[1, 5]"), "slices[0]", "different ranges"),
        (LINEAR + SLICE % ("[0, 4]", "[0, 4]"), "slices", "the blocks 0 to 4"),
        (LINEAR + SLICE % ("5", "5"), "slices[0].sources[0].layer_range", "[first, after the last]"),
        (LINEAR + "models: [{parameters: {weight: 1}}]", "models[0].model", "is missing"),
        (LINEAR + "models: 5", "models", "a list of models"),
        (MODELS + SLICE % ("[0, 5]", "[0, 5]"), "", "either models or slices"),
        (MODELS.replace("weight", "wight"), "models[0].parameters.wight", "did you mean weight"),
        ("name: a\n" + MODELS + "---\n5", "", "an object"),
        (MODELS + "---\n" + MODELS, "name", "needs a name"),
        ("base: a\n---\nbase: b", "", "only configurations of mergekit"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(text: str, path: str, sentence: str) -> None:
    with pytest.raises(BadRecipe) as caught:
        recipes(text)
    assert [(field, sentence in reason) for field, reason in caught.value.reasons] == [(path, True)]
