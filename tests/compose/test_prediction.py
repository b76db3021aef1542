"""Tests of predictions: the arithmetic, the zoo, and the results of 155 grafts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quality import auc, spearman
from organs.registry.anatomy import OrganType
from organs.registry.compose.models import Parent
from organs.registry.compose.prediction import (
    LOSS_LIMIT,
    SCORE_MAX,
    Change,
    Group,
    Prediction,
    group_loss,
    predict,
    recovered_of,
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
DATA = Path(__file__).with_name("data") / "grafts.json"
USABLE = ("gains", "coherent")


def organs(donor: str, *types: OrganType, blocks: tuple[int, ...] = (), base: str = A) -> Prediction:
    """Return the prediction for organs of a donor of the zoo in a base."""
    own: Parent = zoo(base)
    replacements = replacements_from(own, zoo(donor), *(types or (ORGAN,)), blocks=blocks)
    changes = [
        Change(replacement.before, replacement.after, replacement.after)
        for replacement in replacements
        if replacement.changes
    ]
    return predict(changes, sum(part.spec.elements for part in own.parts))


def group(similarity: float | None, kind: OrganType = ORGAN, block: int | None = 1, **more: float) -> Group:
    """Return a group with all matrices grafted."""
    return Group(kind, "text", block, 3, 0, similarity, grafted_similarity=similarity, **_also_grafted(more))


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
    assert group_loss(group(0.5, block=0)) == pytest.approx(10 * group_loss(group(0.5, block=1)))
    assert group_loss(group(0.5, EMBED, None)) == pytest.approx(40 * group_loss(group(0.5)))
    assert group_loss(group(0.5, SKELETON, 0)) == group_loss(group(0.5))


def test_the_formula_is_the_one_that_is_documented() -> None:
    groups = [group(0.64, scale=0.5, distortion=0.1), group(None, NORM, None, distortion=0.2), group(1.0)]
    losses = [group_loss(effect) for effect in groups]
    assert losses == pytest.approx([0.2 * ((1 - 0.32) ** 1.5 + 0.05), 0.02, 0.0])
    recovered = recovered_of(groups)
    assert recovered == pytest.approx((0.32 + 1.0) / 2)
    assert score_of(sum(losses), recovered) == pytest.approx(math.log(1.25) / sum(losses))
    assert score_of(0.01, 0.1) == pytest.approx(0.5)
    assert score_of(0.0, None) == SCORE_MAX


def test_only_grafted_organs_can_be_kept_and_all_changed_organs_can_lose() -> None:
    useless = group(0.02, scale=0.9)
    purified = [Group(SKELETON, "text", block, 4, 0, 1.0, distortion=0.01) for block in range(4)]
    assert recovered_of([useless, *purified]) == recovered_of([useless]) == pytest.approx(0.018)
    assert recovered_of(purified) is None
    assert group_loss(purified[0]) > 0.0


def test_a_block_of_an_unrelated_model_is_not_usable_beside_computed_organs() -> None:
    own = zoo(A)
    stranger = [
        Change(replacement.before, replacement.after, replacement.after)
        for replacement in replacements_from(own, zoo(B), ORGAN, blocks=(3,))
    ]
    computed = [
        Change(part, part, None, 0.001) for part in own.parts if part.place.type is SKELETON and part.organ.is_matrix
    ]
    alone, both = (predict(changes, 10**6) for changes in (stranger, [*stranger, *computed]))
    assert alone.recovered == both.recovered
    assert both.usable is False
    only_computed = predict(computed, 10**6)
    assert only_computed.recovered is None
    assert only_computed.usable
    assert "is kept" not in only_computed.sentence


def test_each_block_shows_what_it_contributes() -> None:
    prediction = organs(STEP_270)
    assert prediction.loss == pytest.approx(sum(effect.loss for effect in prediction.effects))
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
    prediction = predict([], 100)
    assert (prediction.loss, prediction.usable, prediction.share) == (0.0, True, 0.0)
    assert prediction.sentence == "Nothing changes, so the perplexity stays the same."


def test_models_that_cannot_be_compared_have_no_prediction() -> None:
    prediction = organs("Zoo-C-1M-v1.0-Q8_0.gguf")
    assert (prediction.loss, prediction.score, prediction.usable) == (None, None, None)
    assert prediction.uncounted == 12
    assert prediction.sentence.startswith("No prediction:")


def test_the_sentence_has_the_prediction_and_its_basis() -> None:
    assert organs(CODE).sentence == (
        "Likely usable: about 1% higher perplexity than the base; the grafts keep 99% of the replaced organs' function."
        " An estimate from 12 compared matrices; the model was not run."
    )
    assert organs(B).sentence.startswith(
        "Likely not usable: more than 3 times the perplexity of the base; the grafts keep 2% of"
    )
    assert "perplexity of the base" in organs(A_Q8).sentence


@PATIENT
@given(any_changes(), st.integers(0, 10**12))
def test_any_measures_give_a_prediction(changes: list[Change], elements: int) -> None:
    prediction = predict(changes, elements)
    text = encode(prediction).decode()
    assert json.loads(text)["sentence"] == prediction.sentence
    assert (prediction.loss is None) == (prediction.score is None) == (prediction.usable is None)
    assert prediction.loss is None or prediction.loss >= 0.0
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
    assert group_loss(low) >= group_loss(high)
    assert group_loss(low) >= group_loss(group(low.similarity, kind, 0, scale=scale))


def test_the_score_separates_the_155_grafts_that_were_run() -> None:
    """Groups as type, block, similarity, scale, distortion; verdicts and losses from llama.cpp."""
    rows = [row for row in json.loads(DATA.read_text()) if row["verdict"] != "undecided"]
    assert len(rows) == 149
    groups = [[_group(*values) for values in row["groups"]] for row in rows]
    scores = [score_of(sum(map(group_loss, effect)), recovered_of(effect)) for effect in groups]
    usable = [row["verdict"] in USABLE for row in rows]
    assert auc(*_split(scores, usable)) >= 0.95
    assert sum((score >= 1.0) == good for score, good in zip(scores, usable, strict=True)) == 142
    assert spearman(scores, [-row["loss"] for row in rows]) >= 0.9
    lowest = [
        min((effect.similarity for effect in known if effect.similarity is not None), default=1.0) for known in groups
    ]
    assert auc(*_split(lowest, usable)) < 0.95, "likeness alone is not enough"


def _split(values: list[float], usable: list[bool]) -> tuple[list[float], list[float]]:
    both = list(zip(values, usable, strict=True))
    return [value for value, good in both if good], [value for value, good in both if not good]


def _group(kind: str, block: int | None, similarity: float | None, scale: float, distortion: float) -> Group:
    """Return a group; the similarity of a computed group of the base itself is exactly 1."""
    grafted = None if similarity == 1.0 else similarity
    return Group(OrganType(kind), "text", block, 1, 0, similarity, scale, distortion, grafted, scale)


def test_auc_and_spearman_follow_their_definitions() -> None:
    assert auc([3.0, 2.0], [1.0, 0.0]) == 1.0
    assert auc([1.0, 3.0], [2.0, 1.0]) == pytest.approx((0.5 + 0 + 1 + 1) / 4)
    assert math.isnan(auc([], [1.0]))
    assert spearman([1.0, 2.0, 3.0], [10.0, 100.0, 1e9]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 2.0, 4.0], [4.0, 3.0, 3.0, 1.0]) == pytest.approx(-1.0)
    assert spearman([1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 3.0]) == pytest.approx(0.6)
    assert math.isnan(spearman([1.0, 1.0], [1.0, 2.0]))
