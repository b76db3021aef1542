"""Tests of predictions: the arithmetic, the zoo, and the measured grafts of five families."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.grafts import read_table
from bench.prediction import errors_of, left_out
from bench.quality import auc, spearman
from organs.registry.anatomy import OrganType
from organs.registry.compose.models import Parent
from organs.registry.compose.prediction import (
    CONSTANTS,
    ERRORS,
    LOSS_LIMIT,
    LOSS_SHOWN_MAX,
    SCORE_MAX,
    BaseShape,
    Change,
    Group,
    Prediction,
    Relation,
    cost_text,
    fitted_loss,
    group_loss,
    interval_of,
    predict,
    recovered_of,
    relation_of,
    score_of,
)
from organs.registry.entities.base import encode
from tests.compose.parents import CODE, A, B, replacements_from, zoo
from tests.compose.test_prediction_survival import any_changes
from tests.random_files import PATIENT

ORGAN, SKELETON, EMBED, NORM = OrganType.ORGAN, OrganType.SKELETON, OrganType.EMBED, OrganType.NORM
STEP_100, STEP_270, BRANCH, A_Q8, PROSE = (
    f"Zoo-A-2M-{name}-Q8_0.gguf" for name in ("v0.1", "v0.3", "Branch-v1.0", "v1.0", "Prose-v1.0")
)
TIED = BaseShape(2_000_000, 4, has_output=False)
UNTIED = BaseShape(2_000_000, 4, has_output=True)


def organs(donor: str, *types: OrganType, blocks: tuple[int, ...] = (), base: str = A) -> Prediction:
    """Return the prediction for organs of a donor of the zoo in a base."""
    own: Parent = zoo(base)
    replacements = replacements_from(own, zoo(donor), *(types or (ORGAN,)), blocks=blocks)
    changes = [
        Change(replacement.before, replacement.after, replacement.after)
        for replacement in replacements
        if replacement.changes
    ]
    return predict(changes, BaseShape.of(own.parts))


def group(similarity: float | None, kind: OrganType = ORGAN, block: int | None = 1, **more: float) -> Group:
    """Return a group with all matrices grafted."""
    return Group(kind, "text", block, None, 3, 0, similarity, grafted_similarity=similarity, **_also_grafted(more))


def _also_grafted(more: dict[str, float]) -> dict[str, float]:
    return more | {"grafted_scale": more.get("scale", 1.0)}


@pytest.mark.parametrize("donor", [CODE, PROSE, A_Q8])
def test_organs_of_a_fine_tune_or_a_quantisation_are_usable(donor: str) -> None:
    for types in ((ORGAN,), (SKELETON,), (NORM,), (ORGAN, SKELETON)):
        assert organs(donor, *types).usable
    assert organs(donor).recovered == pytest.approx(0.99, abs=0.012)


def test_the_organs_of_an_unrelated_model_are_not_usable() -> None:
    prediction = organs(B)
    assert prediction.usable is False
    assert prediction.loss is not None
    assert prediction.loss > math.log(3.0)


def test_the_organs_of_an_early_checkpoint_are_not_usable_by_kinship_alone() -> None:
    prediction = organs(STEP_100)
    assert prediction.similarity is not None
    assert prediction.similarity > 0.4
    assert prediction.usable is False


def test_a_single_block_of_an_unrelated_model_is_not_usable() -> None:
    prediction = organs(B, blocks=(3,))
    assert prediction.loss is not None
    assert prediction.loss < LOSS_LIMIT, "such a block would pass any test of coherence"
    assert prediction.recovered is not None
    assert prediction.recovered < 0.1
    assert prediction.usable is False


def test_the_first_block_and_the_embeddings_weigh_more() -> None:
    inner, first = group_loss(group(0.5), TIED), group_loss(group(0.5, block=0), TIED)
    assert first / inner == pytest.approx(CONSTANTS.first_feed_forward / CONSTANTS.feed_forward)
    embedding, output = (
        Group(EMBED, "text", None, slot, 1, 0, 0.5, grafted_similarity=0.5) for slot in ("token_embd", "output")
    )
    assert first < group_loss(embedding, TIED), "a tied embedding is the output matrix too"
    assert inner < group_loss(embedding, UNTIED) < group_loss(output, UNTIED) < group_loss(embedding, TIED)


def test_a_block_of_a_model_with_more_blocks_weighs_less() -> None:
    deep = BaseShape(2_000_000, 8, has_output=False)
    for kind in (ORGAN, SKELETON):
        assert group_loss(group(0.5, kind), deep) == pytest.approx(group_loss(group(0.5, kind), TIED) / 2)
        assert group_loss(group(0.5, kind, 0), deep) == group_loss(group(0.5, kind, 0), TIED)


def test_the_formula_is_the_one_that_is_documented() -> None:
    groups = [group(0.64, scale=0.5, distortion=0.1), group(None, NORM, None, distortion=0.2), group(1.0)]
    c = CONSTANTS
    lost = 0.68**c.power + c.slope * 0.68 + c.distortion * 0.1**c.distortion_power
    expected = [c.feed_forward * lost, c.norm * c.distortion * 0.2**c.distortion_power, 0.0]
    assert [group_loss(effect, TIED) for effect in groups] == pytest.approx(expected)
    assert fitted_loss(groups, TIED) == pytest.approx(sum(expected))
    recovered = recovered_of(groups)
    assert recovered == pytest.approx((0.32 + 1.0) / 2)
    assert score_of(sum(expected), recovered) == pytest.approx(math.log(1.25) / sum(expected))
    assert score_of(0.01, 0.1) == pytest.approx(0.5)
    assert score_of(0.0, None) == SCORE_MAX


def test_a_larger_scale_makes_up_for_a_lower_likeness_up_to_a_limit() -> None:
    assert group(0.8, scale=1.25).survival == pytest.approx(1.0)
    assert group(0.8, scale=2.0).survival == 1.0
    assert group(0.0, scale=2.0).survival == 0.0


def test_the_interval_depends_on_the_relation_of_the_donor() -> None:
    relations = [
        relation_of([group(r)]) if r is not None else relation_of([group(None)]) for r in (0.99, 0.5, 0.02, None)
    ]
    assert relations == [Relation.CLOSE, Relation.APART, Relation.STRANGER, Relation.OWN]
    for relation in Relation:
        low, likely, high = interval_of(0.03, relation)
        assert low < likely < high
    assert interval_of(5.0, Relation.APART)[::2] == (LOSS_SHOWN_MAX, LOSS_SHOWN_MAX)


@pytest.mark.parametrize(
    ("losses", "text"),
    [
        ((0.01, 0.03, 0.086), "costs 1% to 9% of perplexity, most likely 3%"),
        ((-0.011, 0.004, 0.04), "changes the perplexity by −1% to 4%, most likely 0.4%"),
        ((0.0, 0.0, 0.0), "changes the perplexity by about 0.0%"),
        ((0.1, 0.4, 1.0), "at least 1.1 times the perplexity of the base, most likely 1.5"),
        ((0.1, 0.4, 0.9), "1.1 to 2.5 times the perplexity of the base, most likely 1.5"),
        ((1.0, 4.0, 1.0), "more than 3 times the perplexity of the base"),
    ],
)
def test_the_interval_as_text(losses: tuple[float, float, float], text: str) -> None:
    assert cost_text(*losses) == text


def test_a_prediction_for_a_base_of_another_size_says_so() -> None:
    own = zoo(A)
    changes = [Change(part, part, None, 0.01) for part in own.parts if part.place.type is ORGAN]
    assert predict(changes, BaseShape.of(own.parts)).outside == ""
    large = predict(changes, BaseShape(7_000_000_000, 32, has_output=True))
    assert large.outside == "7.0 G parameters, 32 blocks"
    assert f"not to {large.outside}." in large.sentence


def test_only_grafted_organs_can_be_kept_and_all_changed_organs_can_lose() -> None:
    useless = group(0.02, scale=0.9)
    purified = [Group(SKELETON, "text", block, None, 4, 0, 1.0, distortion=0.01) for block in range(4)]
    assert recovered_of([useless, *purified]) == recovered_of([useless]) == pytest.approx(0.018)
    assert recovered_of(purified) is None
    assert group_loss(purified[0], TIED) > 0.0


def test_a_block_of_an_unrelated_model_is_not_usable_beside_computed_organs() -> None:
    own = zoo(A)
    stranger = [
        Change(replacement.before, replacement.after, replacement.after)
        for replacement in replacements_from(own, zoo(B), ORGAN, blocks=(3,))
    ]
    computed = [
        Change(part, part, None, 0.001) for part in own.parts if part.place.type is SKELETON and part.organ.is_matrix
    ]
    alone, both = (predict(changes, TIED) for changes in (stranger, [*stranger, *computed]))
    assert alone.recovered == both.recovered
    assert both.usable is False
    only_computed = predict(computed, TIED)
    assert only_computed.recovered is None
    assert only_computed.usable
    assert "is kept" not in only_computed.sentence


def test_each_block_shows_what_it_contributes() -> None:
    prediction = organs(STEP_270)
    (low, likely, high) = interval_of(sum(effect.loss for effect in prediction.effects), Relation.APART)
    assert (prediction.low, prediction.loss, prediction.high) == pytest.approx((low, likely, high))
    assert [effect.block for effect in prediction.effects] == [0, 1, 2, 3]
    assert max(prediction.effects, key=lambda effect: effect.loss).block == 0


def test_the_prediction_shows_its_plain_numbers() -> None:
    prediction = organs(BRANCH, ORGAN, blocks=(2,))
    assert prediction.compared == 3
    assert prediction.similarity == pytest.approx(0.352, abs=0.01)
    assert prediction.change == pytest.approx(1 - (prediction.similarity or 0))
    assert prediction.share == pytest.approx(0.146, abs=0.001)
    assert None not in (
        prediction.theta_before,
        prediction.theta_after,
        prediction.spectral_before,
        prediction.spectral_after,
    )
    assert (prediction.provisional, prediction.uncounted) == (False, 0)


def test_a_chimera_without_changes_loses_nothing() -> None:
    prediction = predict([], TIED)
    assert (prediction.loss, prediction.usable, prediction.share) == (0.0, True, 0.0)
    assert prediction.sentence == "Nothing changes, so the perplexity stays the same."


def test_models_that_cannot_be_compared_have_no_prediction() -> None:
    prediction = organs("Zoo-C-1M-v1.0-Q8_0.gguf")
    assert (prediction.loss, prediction.score, prediction.usable) == (None, None, None)
    assert prediction.uncounted == 12
    assert prediction.sentence.startswith("No prediction:")


def test_the_sentence_has_the_prediction_and_its_basis() -> None:
    prediction = organs(CODE)
    function = f"the grafts keep {prediction.recovered:.0%} of the replaced organs' function"
    assert prediction.sentence == (
        f"Likely usable: {prediction.cost}; {function}. An estimate from 12 compared matrices, for the kind of text "
        "that loses most; the model was not run."
    )
    stranger = organs(B)
    assert stranger.sentence.startswith(f"Likely not usable: {stranger.cost}; the grafts keep 2% of")
    assert stranger.cost == "more than 3 times the perplexity of the base"


@PATIENT
@given(any_changes(), st.integers(0, 10**12))
def test_any_measures_give_a_prediction(changes: list[Change], elements: int) -> None:
    prediction = predict(changes, BaseShape(elements, elements % 100, has_output=elements % 2 == 0))
    text = encode(prediction).decode()
    assert json.loads(text)["sentence"] == prediction.sentence
    assert (prediction.loss is None) == (prediction.score is None) == (prediction.usable is None)
    assert (prediction.loss is None) == (prediction.low is None) == (prediction.high is None)
    assert prediction.low is None or prediction.high is None or prediction.low <= prediction.high <= LOSS_SHOWN_MAX
    assert prediction.score is None or 0.0 <= prediction.score <= SCORE_MAX
    assert prediction.recovered is None or 0.0 <= prediction.recovered <= 1.0


@PATIENT
@given(
    st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 1), st.floats(0, 100), st.sampled_from((ORGAN, SKELETON, EMBED))
)
def test_lower_similarity_never_predicts_a_smaller_loss(
    one: float, other: float, scale: float, distortion: float, kind: OrganType
) -> None:
    low, high = (group(r, kind, 0, scale=scale, distortion=distortion) for r in sorted((one, other)))
    assert group_loss(low, TIED) >= group_loss(high, TIED)
    assert group_loss(low, TIED) >= group_loss(group(low.similarity, kind, 0, scale=scale), TIED)


def test_the_constants_are_fitted_to_the_measured_grafts() -> None:
    for relation, errors in errors_of(read_table(), CONSTANTS).items():
        assert ERRORS[relation] == pytest.approx(errors, abs=0.006), relation


@pytest.mark.long
def test_families_that_were_left_out_of_the_fit_are_predicted() -> None:
    predictions = left_out(read_table())
    assert {item.graft.family for item in predictions} == {"deep", "gemma", "qwen", "wide", "zoo"}
    decided = [item for item in predictions if item.graft.is_usable is not None]

    def area(kind: str | None = None) -> float:
        chosen = [item for item in decided if kind in (None, item.graft.kind)]
        usable = [item.score for item in chosen if item.graft.is_usable]
        return auc(usable, [item.score for item in chosen if not item.graft.is_usable])

    assert area() >= 0.95
    assert min(area(kind) for kind in ("whole", "blocks", "one block", "embeddings", "LoRA", "purified")) >= 0.9
    assert spearman([item.loss for item in predictions], [min(3.0, item.graft.loss) for item in predictions]) >= 0.9
    for relation in (Relation.CLOSE, Relation.APART, Relation.STRANGER):
        held = [item.holds for item in predictions if relation_of(item.graft.groups) is relation]
        assert 0.7 <= sum(held) / len(held) <= 0.9, relation
    likeness = [
        min((g.grafted_similarity for g in item.graft.groups if g.grafted_similarity is not None), default=1.0)
        for item in decided
    ]
    usable = [bool(item.graft.is_usable) for item in decided]
    assert auc(*_split(likeness, usable)) < 0.95, "likeness alone is not enough"


def _split(values: list[float], usable: list[bool]) -> tuple[list[float], list[float]]:
    both = list(zip(values, usable, strict=True))
    return [value for value, good in both if good], [value for value, good in both if not good]


def test_auc_and_spearman_follow_their_definitions() -> None:
    assert auc([3.0, 2.0], [1.0, 0.0]) == 1.0
    assert auc([1.0, 3.0], [2.0, 1.0]) == pytest.approx((0.5 + 0 + 1 + 1) / 4)
    assert math.isnan(auc([], [1.0]))
    assert spearman([1.0, 2.0, 3.0], [10.0, 100.0, 1e9]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 2.0, 4.0], [4.0, 3.0, 3.0, 1.0]) == pytest.approx(-1.0)
    assert spearman([1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 3.0]) == pytest.approx(0.6)
    assert math.isnan(spearman([1.0, 1.0], [1.0, 2.0]))
