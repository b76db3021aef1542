"""Gains of validated chimeras: what is recorded, what it is attributed to, and how it is found and ranked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from sqlalchemy import func, select

from organs.registry.amounts import gain_text
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.register.chimeras import is_settled
from organs.registry.catalog.register.model_changes import hide_model, remove_model
from organs.registry.catalog.tables import GainOrgan, GainRow
from organs.registry.compose.api import Composition
from organs.registry.compose.recipe import recipe_of, recipe_yaml
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import BadQuery, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import sweep
from tests.gains import add_gains
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_all, related_tensors

FED = ("blk.0.ffn_down.weight", "blk.0.ffn_up.weight", "blk.1.ffn_down.weight", "blk.1.ffn_up.weight")


def add_family(registry: LocalRegistry, folder: Path) -> None:
    """Register a base, two fine-tunes of it and a stranger."""
    kin = {"base": related_tensors(), "tuned": related_tensors(correlation=0.995)}
    others = {"second": related_tensors(correlation=0.98), "stranger": related_tensors(seed=7)}
    ingest_all(registry, folder, **kin, **others)


@pytest.fixture
def family(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, add_family)
    return registry


def made(composition: Composition, name: str) -> str:
    warned = {finding.code for finding in composition.plan().findings if finding.severity == "warn"}
    return composition.accept(*warned).named(f"me/{name}").plan().register().model


def graft(registry: LocalRegistry, donor: str, name: str, base: str = "base", **where: object) -> str:
    """Register a chimera with organs of one donor."""
    return made(registry.compose(base).graft(donor, **({"type": "organ"} | where)), name)  # type: ignore[arg-type]


def organs_with_gain(registry: LocalRegistry, query: str) -> list[tuple[str, str, float | None]]:
    def gain(organ: PlacedOrgan) -> float | None:
        return None if organ.gain is None else round(organ.gain.percent, 6)

    return [(organ.model.partition("@")[0], organ.name, gain(organ)) for organ in registry.search(query, limit=1000)]


def names(registry: LocalRegistry, query: str) -> list[str]:
    return [model.name.partition("@")[0] for model in registry.models(query)]


def test_a_gain_is_attributed_to_the_only_donor_and_to_the_organs_that_it_gave(family: LocalRegistry) -> None:
    add_gains(family, graft(family, "tuned", "coder"), {"python": 5.0, "narrative": -2.0})
    found = organs_with_gain(family, "gain>0")
    assert {(model, name) for model, name, _ in found} == {
        (model, name) for model in ("local/tuned", "me/coder") for name in FED
    }
    assert {gain for _, _, gain in found} == {5.0}
    assert set(names(family, "gain>=5")) == {"local/tuned", "me/coder"}
    (graft_,) = family.leaderboard()
    assert (graft_.chimera, graft_.base, graft_.donors) == ("me/coder@1", "local/base@1", ("local/tuned@1",))
    assert (graft_.grafted, str(graft_.best), str(graft_.worst)) == (
        "feed-forward 0-1", "+5.0% ± 1.0% python", "−2.0% ± 1.0% narrative",
    )  # fmt: skip
    assert graft_.likeness == pytest.approx(0.995, abs=0.005)
    assert graft_.change == pytest.approx(2 * (1 - graft_.likeness), rel=0.2)


def test_gains_of_several_donors_or_with_purified_organs_belong_to_the_chimera_only(family: LocalRegistry) -> None:
    both = family.compose("base").graft("tuned", type="organ", blocks=0).graft("second", type="organ", blocks=1)
    partly = family.compose("base").graft("tuned", type="organ").purify("fractal", slot="attn_q")
    for name, composition in (("both", both), ("partly", partly)):
        add_gains(family, made(composition, name), {"python": 5.0})
    assert set(names(family, "gain>0")) == {"me/both", "me/partly"}
    assert organs_with_gain(family, "gain>0") == []
    assert {graft_.grafted: graft_.donors for graft_ in family.leaderboard()} == {
        "feed-forward 0-1": ("local/tuned@1", "local/second@1"),
        "purified attention 0-1; feed-forward 0-1": ("local/tuned@1",),
    }
    assert [(graft_.likeness, graft_.change) for graft_ in family.leaderboard()] == [(None, None)] * 2


def test_a_purification_alone_is_attributed_to_the_purified_organs(family: LocalRegistry) -> None:
    purified = family.compose("base").purify("fractal", type="organ", blocks=1)
    add_gains(family, made(purified, "pure"), {"python": 1.5})
    assert sorted(organs_with_gain(family, "on:python")) == [("me/pure", name, 1.5) for name in FED[2:]]
    (graft_,) = family.leaderboard()
    assert (graft_.donors, graft_.grafted, graft_.likeness) == ((), "purified feed-forward 1", None)


def test_only_settled_gains_are_found_and_more_tokens_replace_fewer(family: LocalRegistry) -> None:
    model = graft(family, "tuned", "coder")
    add_gains(family, model, {"python": 0.5, "narrative": -0.5})
    assert list(family.leaderboard()) == []
    add_gains(family, model, {"python": 3.0}, tokens=2048)
    assert list(family.leaderboard()) == [], "from fewer tokens"
    add_gains(family, model, {"python": 2.5}, tokens=4096)
    assert [str(graft_.best) for graft_ in family.leaderboard()] == ["+2.5% ± 1.0% python"]
    add_gains(family, model, {"python": 9.0, "narrative": 9.0}, counts=False)
    assert [(gain.text, round(gain.percent, 6), gain.settled) for gain in next(iter(family.leaderboard())).gains] == [
        ("python", 2.5, True), ("narrative", -0.5, False),
    ]  # fmt: skip


def test_an_interval_is_settled_if_it_excludes_1_in_the_logarithm() -> None:
    assert is_settled(0.94, 0.01)
    assert is_settled(1.10, 0.05)
    assert not is_settled(0.995, 0.01)
    assert not is_settled(1.0, 0.0)


def test_the_leaderboard_is_by_gain_on_the_texts_and_over_the_base(family: LocalRegistry) -> None:
    add_gains(family, graft(family, "tuned", "coder"), {"python": 5.0, "javascript": 8.0, "narrative": -2.0})
    add_gains(family, graft(family, "second", "writer"), {"narrative": 4.0, "python": -9.0})
    add_gains(family, graft(family, "stranger", "odd"), {"python": -950.0, "narrative": -4000.0})
    add_gains(family, graft(family, "tuned", "other", base="second"), {"python": 6.0})

    def order(base: str | None = None, on: str | None = None) -> list[tuple[str, str]]:
        return [(graft_.chimera.partition("@")[0][3:], str(graft_.best)) for graft_ in family.leaderboard(base, on=on)]

    assert order() == [
        ("coder", "+8.0% ± 1.0% javascript"), ("other", "+6.0% ± 1.0% python"),
        ("writer", "+4.0% ± 1.0% narrative"), ("odd", "perplexity × 10 python"),
    ]  # fmt: skip
    assert [name for name, _ in order("second")] == ["other"]
    assert order("base", "python") == [
        ("coder", "+5.0% ± 1.0% python"), ("writer", "−9.0% ± 1.0% python"), ("odd", "perplexity × 10 python"),
    ]  # fmt: skip
    assert [name for name, _ in order("base", "Code")] == ["coder", "writer", "odd"]
    assert [name for name, _ in order("base", "prose, javascript")] == ["coder", "writer", "odd"]
    assert order("base", "poetry") == []
    assert family.leaderboard(on="poetry").notes == ("nothing was measured on poetry",)
    first = family.leaderboard(limit=3)
    rest = family.leaderboard(limit=3, after=first.next)
    assert [graft_.chimera for graft_ in (*first, *rest)] == [f"me/{name}@1" for name, _ in order()]
    assert (len(first.items), rest.next) == (3, None)
    for wrong in ({"on": " , "}, {"on": 'a"b'}, {"on": "code", "after": first.next}, {"after": "x"}):
        with pytest.raises(BadQuery):
            family.leaderboard(**wrong)
    with pytest.raises(NotFound, match="local/nobody"):
        family.leaderboard("nobody")


def test_a_plan_states_what_its_donors_gained_before(family: LocalRegistry) -> None:
    add_gains(family, graft(family, "tuned", "coder"), {"python": 5.0, "narrative": -2.0})
    add_gains(family, graft(family, "tuned", "part", blocks=1), {"python": 1.5})
    found = family.compose("base").graft("tuned", type="skeleton").graft("second", type="organ").plan().findings
    (finding,) = [finding for finding in found if finding.code == "measured-graft"]
    assert finding.sentence == (
        "Validated before: me/coder@1, with feed-forward 0-1 of local/tuned@1. "
        "At best +5.0% ± 1.0% python, at worst −2.0% ± 1.0% narrative."
    )
    assert finding.severity == "info"


def test_the_recipe_of_a_measured_graft_makes_it_again(family: LocalRegistry) -> None:
    model = graft(family, "tuned", "coder")
    add_gains(family, model, {"python": 5.0})
    (graft_,) = family.leaderboard()
    again = family.compose(msgspec.structs.replace(graft_.recipe, name="me/again")).plan().register()
    assert family.model(again.model).digest == family.model(model).digest
    assert "from: local/tuned@1" in recipe_yaml(recipe_of(graft_.recipe)), "what `tuned` meant then"


def test_organs_that_equal_those_of_the_base_and_their_donors_have_no_part_in_a_gain(
    family: LocalRegistry, tmp_path: Path
) -> None:
    tensors = related_tensors(correlation=0.97)
    own = [mine if "ffn" in mine[0].name else base for mine, base in zip(tensors, related_tensors(), strict=True)]
    ingest_all(family, tmp_path, partly=own)
    model = made(family.compose("base").graft("partly", type=["organ", "skeleton"]), "mixed")
    add_gains(family, model, {"python": 5.0})
    assert {name for _, name, _ in organs_with_gain(family, "gain>0")} == set(FED)
    assert "local/base" not in names(family, "gain>0")
    assert [graft_.grafted for graft_ in family.leaderboard()] == ["feed-forward 0-1"]


def test_a_stored_finding_never_names_the_chimera_of_another(family: LocalRegistry) -> None:
    add_gains(family, graft(family, "tuned", "coder"), {"python": 5.0})
    plan = family.compose("base").graft("tuned", type="skeleton").named("me/later").plan().accepting_all()
    assert "measured-graft" in [finding.code for finding in plan.findings]
    lock = plan.register().lock_id
    assert "measured-graft" not in [finding.code for finding in family.chimera(lock).findings]


def test_a_text_may_have_the_name_of_a_group_and_a_group_without_texts_is_noted_once(family: LocalRegistry) -> None:
    assert family.leaderboard(on="code").notes == ("nothing was measured on code",)
    add_gains(family, graft(family, "tuned", "coder"), {"code": 5.0})
    assert [str(graft_.best) for graft_ in family.leaderboard(on="Code")] == ["+5.0% ± 1.0% code"]
    assert family.leaderboard(on="code").notes == ()


@pytest.mark.parametrize("state", ["quarantined", "yanked"])
def test_hidden_chimeras_have_no_gains_and_hidden_donors_are_named(state: str, family: LocalRegistry) -> None:
    add_gains(family, graft(family, "tuned", "coder"), {"python": 5.0})
    add_gains(family, graft(family, "second", "writer"), {"narrative": 4.0})
    with family.catalog.writing() as session:
        for name in ("me/coder@1", "local/second@1"):
            hide_model(session, model_by_text(session, name), state, "a reason", "local")
    (graft_,) = family.leaderboard()
    assert (graft_.chimera, graft_.unavailable_parents) == ("me/writer@1", ("local/second@1",))
    assert names(family, "gain>0") == ["me/writer"]


@pytest.mark.parametrize("removed", ["me/coder@1", "local/base@1", "local/tuned@1"])
def test_gains_go_with_the_chimera_or_the_base_and_stay_without_the_donor(family: LocalRegistry, removed: str) -> None:
    add_gains(family, graft(family, "tuned", "coder"), {"python": 5.0})
    with family.catalog.writing() as session:
        remove_model(session, model_by_text(session, removed), "a reason", "local")
    sweep(family.catalog, family.blobs, dry_run=False)
    with family.catalog.reading() as session:
        left = [session.scalar(select(func.count()).select_from(table)) for table in (GainRow, GainOrgan)]
    stays = removed == "local/tuned@1"
    assert (left[0], bool(left[1])) == ((1, True) if stays else (0, left[1] > 0 if left[1] else False))
    assert len(family.leaderboard().items) == stays
    assert {model for model, _, _ in organs_with_gain(family, "gain>0")} == ({"me/coder"} if stays else set())


@pytest.mark.parametrize(
    ("percent", "margin", "text"),
    [
        (5.94, 0.66, "+5.9% ± 0.7%"),
        (-55.2, 11.4, "−55% ± 11%"),
        (-0.04, 0.5, "+0.0% ± 0.5%"),
        (-890.0, 30.0, "−890% ± 30%"),
        (-900.0, 30.0, "perplexity × 10"),
        (-4500.0, 30.0, "perplexity × 46"),
        (-123_456.0, 1.0, "perplexity × 1,236"),
        (-1e30, 1e30, "perplexity × 1.0e+28"),
        (-0.03, 0.01, "−0.03% ± 0.01%"),
    ],
)
def test_a_gain_as_text_has_its_margin_and_a_large_loss_is_a_multiple(percent: float, margin: float, text: str) -> None:
    assert gain_text(percent, margin) == text
