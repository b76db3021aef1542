"""Evolutions of a trained model in llama.cpp, end to end: interrupted, continued, without a winner, and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from organs.registry.catalog import work
from organs.registry.catalog.queries.evolutions import trials_of
from organs.registry.catalog.register.evolutions import NewTrial, add_trial, claim_trial
from organs.registry.catalog.tables import EvolutionRow, TrialRow
from organs.registry.catalog.work import WorkCancelled, exclusive, put_back
from organs.registry.compose import planner
from organs.registry.digest import digest_of
from organs.registry.entities.evolution import Evolution
from organs.registry.errors import (
    BadInput,
    BadRecipe,
    BadSource,
    Busy,
    Conflict,
    NoSuchEvolution,
    NotComposable,
    NotFound,
    OrganError,
    StoreUnreachable,
)
from organs.registry.evolving import search
from organs.registry.evolving.objectives import Objective, TrialResult
from organs.registry.evolving.scoring import TrialScorer
from organs.registry.evolving.search import (
    Evolver,
    Standing,
    Tried,
    begin_evolution,
    checked_evolution,
    conclude,
    evolve,
)
from organs.registry.evolving.space import Choices, SearchSpace, space_of_values
from organs.registry.local import LocalRegistry
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.texts import ScoredText, built_in_texts
from tests.evolutions import NoRuntimeYet
from tests.evolving.zoo_evolution import CODE, STEP, A, begun
from tests.registry_templates import RegistryTemplates, add_zoo_models
from tests.small_models import tensors_of

EARLY, OTHER_SHAPE = "local/Zoo-A-2M-v0.1-Q8_0@1", "local/Zoo-C-1M-v1.0-Q8_0@1"


@pytest.fixture(scope="module")
def zoo(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with (
        templates.open_copy(add_zoo_models, tmp_path_factory.mktemp("zoo") / "home") as opened,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(search, "VERDICT_SECONDS", 2.0)
        patch.setattr(search, "VERDICT_TRIALS", 0)
        yield opened


def state(zoo: LocalRegistry, number: int) -> list[tuple[int, str, str, int]]:
    with zoo.catalog.reading() as session:
        return [(row.number, row.role, row.state, row.attempts) for row in trials_of(session, number)]


def evolutions(zoo: LocalRegistry) -> int:
    with zoo.catalog.reading() as session:
        return session.scalar(select(func.count()).select_from(EvolutionRow)) or 0


class Stopped(Exception):
    """An interruption by a test."""


def stopping_at(step: str) -> Callable[[float, str], None]:
    def progress(_share: float, now: str) -> None:
        if now.startswith(step):
            raise Stopped

    return progress


@dataclass
class Run:
    """An evolution that was interrupted in each of its phases, and its trials after each interruption."""

    found: Evolution
    states: list[list[tuple[int, str, str, int]]]
    measured: int
    """How many trials were measured to their end."""


@pytest.fixture(scope="module")
def run(zoo: LocalRegistry) -> Run:
    number, states, measured = begun(zoo, trials=5, limits={"documentation": 50}, name="me/best"), [], 0
    differences = TrialScorer.differences

    def counting(self: TrialScorer, *rest: Any) -> Any:
        nonlocal measured
        found = differences(self, *rest)
        measured += 1
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialScorer, "differences", counting)
        for step in ("trial 1, window 2", "trial 2, planning", "trial 6, window 1", "making"):
            with pytest.raises(Stopped):
                evolve(zoo.catalog, zoo.blobs, number, LlamaCpp(), stopping_at(step))
            states.append(state(zoo, number))
        evolve(zoo.catalog, zoo.blobs, number, LlamaCpp())
    return Run(zoo.evolution(number), states, measured)


@pytest.mark.long
def test_an_interrupted_trial_is_put_back_and_done_by_the_next_call(run: Run) -> None:
    assert run.states[0] == [(1, "start", "queued", 0)]
    assert run.states[1] == [(1, "start", "done", 1), (2, "proposed", "queued", 0)]
    searched, checks = run.states[2][:5], run.states[2][5:]
    assert [row[1:] for row in searched] == [("start", "done", 1)] + [("proposed", "done", 1)] * 4
    assert {row[1:] for row in checks} == {("check", "queued", 0)}
    assert all(row[2:] == ("done", 1) for row in run.states[3]), "all is done before the result"
    after = [(trial.number, trial.role, trial.state, 1) for trial in run.found.history]
    assert after == run.states[3], "no trial is lost or doubled"
    assert [row[0] for row in after] == [*range(1, len(after) + 1)]


@pytest.mark.long
def test_trials_with_the_same_weights_are_measured_once(run: Run) -> None:
    searched = [trial for trial in run.found.history if trial.role in ("start", "proposed")]
    firsts: dict[float | str, Any] = {}
    for trial in searched:
        (weight,) = trial.choice.values()
        first = firsts.setdefault(weight, trial)
        assert trial.same_as == (None if first is trial else first.number)
        assert (trial.texts, trial.change) == (first.texts, first.change)
    assert 1 <= len(firsts) <= 2 < len(searched)
    checks = [trial for trial in run.found.history if trial.role == "check"]
    assert len(checks) == len([trial for trial in firsts.values() if not trial.is_stopped])
    without = [trial for trial in run.found.history if trial.role == "without"]
    assert [trial.change for trial in without] == [0.0], "it is the base, which is not measured again"
    assert run.measured == len([trial for trial in run.found.history if trial.same_as is None]) - 1


@pytest.mark.long
def test_the_best_trial_is_made_with_a_recipe_a_lock_and_a_verdict(
    zoo: LocalRegistry, run: Run, tmp_path: Path
) -> None:
    found = run.found
    assert (found.state, found.phase, found.note, found.winner) == ("finished", "over", "", "me/best@1")
    assert found.trials == found.trials_allowed == 5
    assert found.texts == ("python", "documentation")
    assert found.best is not None
    assert found.best.change is not None
    assert found.best.change < 0.0
    assert [(text.text, text.limit, text.windows) for text in found.best.texts] == [
        ("python", None, 18),
        ("documentation", 50.0, 18),
    ]
    assert [part.part for part in found.parts] == ["Zoo-A-2M-Code-v1.0-F16, feed-forward"]
    assert found.parts[0].change > 0.0
    assert found.verdict is not None
    assert {text.name for text in found.verdict.texts} == {"python", "documentation"}
    assert zoo.model("me/best").kind == "chimera"
    assert zoo.trial_recipe(found.id, found.best.number) == zoo.trial_recipe(found.id)
    zoo.assemble("me/best", tmp_path / "best.gguf")
    zoo.compose(zoo.trial_recipe(found.id)).plan().assemble(tmp_path / "made.gguf")
    assert tensors_of(tmp_path / "best.gguf") == tensors_of(tmp_path / "made.gguf")


@pytest.mark.long
def test_an_evolution_that_is_over_stays_as_it_is(zoo: LocalRegistry, run: Run) -> None:
    evolve(zoo.catalog, zoo.blobs, run.found.id, LlamaCpp())
    conclude(zoo.catalog, zoo.blobs, run.found.id, LlamaCpp(), lambda *_: None)
    assert zoo.evolution(run.found.id) == run.found
    with pytest.raises(NotFound):
        zoo.model("me/best@2")


@pytest.mark.long
def test_a_change_that_rounding_may_lose_is_measured_and_not_refused(
    zoo: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = begun(zoo, trials=1)
    monkeypatch.setattr(planner, "KEPT_MIN", 2.0)  # all changes are too small
    evolve(zoo.catalog, zoo.blobs, number, LlamaCpp())
    found = zoo.evolution(number)
    assert (found.state, found.winner is not None) == ("finished", True), found.note
    assert not zoo.compose(zoo.trial_recipe(number)).plan().can_be_made


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "note"),
    [
        ({"blends": [{**STEP, "models": EARLY}]}, "no trial is better than the base"),
        ({"limits": {"python": -60}}, "no trial holds the limits"),
    ],
)
def test_without_a_better_trial_the_note_says_so_and_nothing_is_made(
    values: dict[str, Any], note: str, zoo: LocalRegistry
) -> None:
    before = zoo.storage().models
    number = begun(zoo, **values)
    evolve(zoo.catalog, zoo.blobs, number, LlamaCpp())
    found = zoo.evolution(number)
    assert (found.state, found.note, found.winner, found.verdict) == ("finished", note, None, None)
    assert (found.best is None) == ("limits" in note)
    assert zoo.storage().models == before


@pytest.mark.long
def test_a_text_with_windows_for_the_search_only_is_enough(zoo: LocalRegistry) -> None:
    lines = "".join(f"def read_{number}(path):\n    return open(path).read()\n\n" for number in range(110))
    number = begun(zoo, (ScoredText("mine", lines, digest_of(lines.encode())),), texts=["mine"])
    evolve(zoo.catalog, zoo.blobs, number, LlamaCpp())
    found = zoo.evolution(number)
    assert found.state == "finished"
    assert found.history[0].texts[0].windows < 18
    assert all(trial.change is None or abs(trial.change) < 5.0 for trial in found.history)


# What is refused before anything begins.


@pytest.mark.parametrize(
    ("values", "error", "sentence"),
    [
        ({"base": "nobody/nothing"}, NotFound, "nobody/nothing"),
        ({"donors": ["nobody/nothing"]}, NotFound, "nobody/nothing"),
        (
            {"blends": [{**STEP, "models": OTHER_SHAPE}]},
            NotComposable,
            r"^Zoo-C-1M-v1\.0-Q8_0 alone: .*; kin:local/Zoo-A-2M-v1\.0.* finds donors that fit$",
        ),
        ({"blends": [], "donors": ["kin:nobody/nothing"]}, BadRecipe, "donors: no model fits"),
        ({"blends": [], "grafts": [{}]}, BadRecipe, r"grafts\[0\]\.models: no model"),
        (
            {"blends": [{**STEP, "models": [CODE, EARLY], "type": ["organ", "skeleton"], "depths": 16}] * 16},
            BadRecipe,
            "the space has 256 parameters; 1 to 200 can be searched",
        ),
        ({"name": "../x"}, OrganError, "is not a namespace"),
        ({"weights": {"pyhton": 2}}, BadRecipe, r"weights\.pyhton: no text has this name; the texts are python"),
        ({"texts": ["/dev/zero"]}, BadSource, "/dev/zero: neither a file nor a folder"),
        ({"texts": ["~nobody-of-this-name/x"]}, BadSource, "nobody-of-this-name"),
        ({"texts": ["x" * 4000]}, OrganError, "at most"),
    ],
    ids=range(11),
)
def test_what_cannot_be_searched_is_refused_with_one_sentence_before_anything_begins(
    values: dict[str, Any], error: type[OrganError], sentence: str, zoo: LocalRegistry
) -> None:
    before = evolutions(zoo)
    with pytest.raises(error, match=sentence) as caught:
        begun(zoo, **values)
    assert "\n" not in str(caught.value)
    assert evolutions(zoo) == before


def test_without_donors_and_steps_the_relatives_that_fit_are_the_donors(zoo: LocalRegistry) -> None:
    space = space_of_values({"base": A, "texts": ["documentation"], "limits": {}})
    texts = built_in_texts(["documentation"])
    found = checked_evolution(zoo.catalog, zoo.blobs, space, texts, NoRuntimeYet()).space
    assert CODE in found.donors
    assert not {OTHER_SHAPE, A} & set(found.donors)


def test_texts_that_are_too_many_or_too_short_are_refused(zoo: LocalRegistry) -> None:
    words = "a word and another one " * 40 + "\n"
    many = tuple(ScoredText(f"t{at}", words * 20, digest_of(b"%d" % at)) for at in range(17))
    before = evolutions(zoo)
    with pytest.raises(BadRecipe, match=r"texts: 17 texts, .*; at most 16 can be"):
        begun(zoo, many, texts=[text.name for text in many])
    with pytest.raises(BadRecipe, match="texts: two texts have the same name: rename a file"):
        begun(zoo, (many[0], many[0]), texts=["t0"])
    with pytest.raises(BadSource, match="t0: too short to be divided"):
        begun(zoo, (ScoredText("t0", words, many[0].digest),), texts=["t0"])
    space = space_of_values({"base": A, "donors": [CODE], "texts": ["python"], "limits": {}})
    python = ScoredText("python", many[0].text, many[0].digest)
    with pytest.raises(BadRecipe, match="texts: python is the name of a built-in text: rename yours"):
        begin_evolution(zoo.catalog, zoo.blobs, space, (python,), LlamaCpp(), "ada")
    assert evolutions(zoo) == before


def test_checks_and_parts_fit_into_the_time_that_is_left() -> None:
    """Whole trials of 40 and 60 s, two at a time; one that was stopped does not count."""
    results = [TrialResult(differences={"code": (-0.1,)}, seconds=seconds) for seconds in (40.0, 60.0)]
    results.append(TrialResult(differences={"code": (0.1,)}, is_stopped=True, seconds=20.0))
    trials = tuple(
        Tried(TrialRow(number=number, role="proposed", state="done"), {}, result)
        for number, result in enumerate(results, 1)
    )
    objective = Objective({"code": 1.0}, {})
    timed = Standing(Choices(SearchSpace("me/a", minutes=30.0), 2), objective, trials, seconds=60.0)
    assert timed.seconds_of_a_trial == pytest.approx(25.0)
    assert timed.affordable(0.1, 1.0) == 7
    assert timed.affordable(0.1, 2.0) == 3
    counted = Standing(Choices(SearchSpace("me/a", trials=9), 2), objective, trials, seconds=60.0)
    assert counted.affordable(0.1, 1.0) > 1000


# One trial of a process, with a scorer of the test.


@pytest.fixture
def number(zoo: LocalRegistry) -> int:
    return begun(zoo)


def evolver(zoo: LocalRegistry, number: int, **more: Any) -> Evolver:
    return Evolver(zoo.catalog, zoo.blobs, number, LlamaCpp(), "a test", **more)


@pytest.mark.parametrize(
    ("error", "expected", "note"),
    [
        (BadInput("no"), ("failed", 1), "no"),
        (StoreUnreachable("no answer"), ("queued", 1), "no answer"),
        (Busy("locked"), ("queued", 1), "locked"),
    ],
)
def test_the_class_of_an_error_decides_what_becomes_of_the_trial(
    error: OrganError,
    expected: tuple[str, int],
    note: str,
    zoo: LocalRegistry,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(TrialScorer, "differences", failing)
    assert evolver(zoo, number).work_on()
    assert state(zoo, number) == [(1, "start", *expected)]
    assert zoo.evolution(number).history[0].note == note


def test_a_trial_that_another_process_took_over_is_left_to_it_and_the_next_is_done(
    zoo: LocalRegistry, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "RENEW_SECONDS", 0.01)
    taken = []

    def slow(
        _self: TrialScorer,
        _plan: object,
        _place: object,
        _ranks: range,
        report: Callable[[float, str], None],
        *_: object,
    ) -> None:
        with zoo.catalog.writing() as session:
            row = session.get_one(TrialRow, (number, 1))
            row.state, row.holder, row.lease_expires_at = "queued", None, None
            session.flush()
            taken.append(claim_trial(session, number, "another"))
        while True:
            report(0.0, "window 1")

    monkeypatch.setattr(TrialScorer, "differences", slow)
    assert evolver(zoo, number).work_on()
    assert state(zoo, number) == [(1, "start", "running", 2)]
    with zoo.catalog.reading() as session:
        assert session.get_one(TrialRow, (number, 1)).holder == taken[0].holder

    def cancelled(_share: float, _step: str) -> None:
        raise WorkCancelled

    with zoo.catalog.writing() as session:
        put_back(session, taken[0])
    with pytest.raises(WorkCancelled):
        evolver(zoo, number, report=cancelled).work_on()
    assert state(zoo, number) == [(1, "start", "queued", 1)]


def test_a_number_is_given_once_and_only_to_the_next_trial(zoo: LocalRegistry, number: int) -> None:
    with zoo.catalog.writing() as session:
        trial = NewTrial("proposed", "{}")
        assert [add_trial(session, number, at, trial) for at in (1, 3, 2, 2)] == [False, False, True, False]


def test_another_runtime_is_refused_because_its_scores_cannot_be_compared(
    zoo: LocalRegistry, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaCpp, "identity", "llama.cpp, another")
    with pytest.raises(BadInput, match=r"was begun with llama\.cpp, xllamacpp .*, and this is llama\.cpp, another"):
        evolver(zoo, number)


def test_an_evolution_is_removed_with_its_trials_but_not_while_one_runs(zoo: LocalRegistry, number: int) -> None:
    with zoo.catalog.writing() as session:
        claim = claim_trial(session, number, "another")
    assert claim is not None
    with pytest.raises(Conflict, match=f"a trial of evolution {number} still runs"):
        zoo.remove_evolution(number)
    with zoo.catalog.writing() as session:
        put_back(session, claim)
    with exclusive(zoo.catalog, f"evolution {number}"), pytest.raises(Conflict, match="is being made"):
        zoo.remove_evolution(number)
    assert zoo.remove_evolution(number).id == number
    with zoo.catalog.reading() as session:
        assert trials_of(session, number) == []
    with pytest.raises(NoSuchEvolution, match=f"there is no evolution {number}"):
        zoo.evolution(number)
    with pytest.raises(NoSuchEvolution):
        evolver(zoo, number)
