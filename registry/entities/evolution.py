"""Evolutions: searches for the best chimera of a base, their trials and results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from organs.registry import notebook
from organs.registry.amounts import NO_VALUE, change_text, duration_text
from organs.registry.columns import CellKind, Column, data_only, for_people
from organs.registry.entities.base import (
    ITEMS_MAX,
    Count,
    Entity,
    Items,
    ModelText,
    Page,
    Text,
    Time,
    Word,
)
from organs.registry.entities.plan import RecipeFile
from organs.registry.entities.validation import VerdictReport

Choice = Annotated[dict[Text, float | Text], Meta(max_length=ITEMS_MAX, description="The value of each parameter.")]


CHOICES_MAX = 200
"""The best trials whose choices an answer of the API has."""


SEARCH_SHARE = 0.7
"""The share of the time after which no further trial is proposed. The rest is for checks, parts and the result."""


def share_used(trials: int, trials_allowed: int | None, seconds: float, seconds_allowed: float | None) -> float:
    """Return how much of the work is done, from 0 to 1, by the trials and the time that are used."""
    of_trials = SEARCH_SHARE * trials / trials_allowed if trials_allowed else 0.0
    of_time = seconds / seconds_allowed if seconds_allowed else 0.0
    return min(1.0, max(of_trials, of_time))


class TextChange(Entity):
    """How the perplexity on a text differs from that of the base, on the windows that both scored."""

    text: Text
    ratio: Annotated[float, Meta(description="Its perplexity divided by that of the base.")] | None
    margin: Annotated[float, Meta(description="The ratio plus and minus this is its interval of 90%.")] | None
    windows: Count
    limit: Annotated[float, Meta(description="The most percent by which it may rise.")] | None = None

    @property
    def amount(self) -> str:
        """The change with its margin, if enough windows were scored for one; a dash if it is not finite."""
        return NO_VALUE if self.ratio is None else change_text(self.ratio, self.margin)


class EvolutionTrial(Entity):
    """A chimera that was tried: what was chosen, and how it differs from the base."""

    number: Count
    role: Annotated[
        Word,
        Meta(
            description="`start` for a donor as it is and for the mean of all; `proposed` by the sampler; `check` for "
            "a good trial on further windows; `without` for the best trial without one of its parts."
        ),
    ]
    of_number: Annotated[Count, Meta(description="The trial that a check or an omission is about.")] | None = None
    state: Annotated[Word, Meta(description="`queued`, `running`, `done`, `failed` or `set_aside`.")]
    note: Text = ""
    start: Annotated[Text, Meta(description="What a starting point is, such as `mean of all`.")] = ""
    choice: Choice
    change: (
        Annotated[
            float,
            Meta(
                description="The mean over the texts, with their weights, of the logarithm of the ratio of the "
                "perplexities; of a trial that was stopped an estimate beside the best one. Negative is better."
            ),
        ]
        | None
    ) = None
    is_allowed: Annotated[bool, Meta(description="Whether all limits hold.")] = True
    is_stopped: Annotated[
        bool, Meta(description="Whether it was stopped early, because it is worse than the best.")
    ] = False
    texts: Items[TextChange] = ()
    same_as: Annotated[Count, Meta(description="An earlier trial with the same weights.")] | None = None
    seconds: Annotated[float, Meta(description="The time that it took.")] | None = None

    @property
    def remark(self) -> str:
        """Why it is not measured further or does not count, in words; empty for others."""
        if self.is_stopped:
            return "stopped early"
        return f"as trial {self.same_as}" if self.same_as else "" if self.is_allowed else "above a limit"

    @property
    def amount(self) -> str:
        """The mean change of the perplexity, as text."""
        return NO_VALUE if self.change is None else change_text(math.exp(min(self.change, 20.0)))


class PartEffect(Entity):
    """What a part of the best trial does: the mean change when it is left out."""

    part: Text
    change: Annotated[float, Meta(description="Of the logarithm of the perplexity; positive: it is worse without.")]
    margin: Annotated[float, Meta(description="The change plus and minus this is its interval of 90%.")] | None

    @property
    def amount(self) -> str:
        """The change of the perplexity, with its margin."""
        ratio = math.exp(min(self.change, 20.0))
        return change_text(ratio, None if self.margin is None else ratio * math.expm1(self.margin))


class EvolutionSummary(Entity):
    """An evolution as a line of a list."""

    id: Count
    base: ModelText
    state: Annotated[Word, Meta(description="`running`, `finished` or `failed`.")]
    note: Annotated[Text, Meta(description="Why it failed, or has no winner.")] = ""
    contributor: Word
    trials: Annotated[Count, Meta(description="The trials of the search that are done, without checks.")]
    winner: Annotated[ModelText, Meta(description="The chimera of the best trial; null until it is made.")] | None
    created_at: Time
    finished_at: Time | None

    @property
    def state_text(self) -> str:
        """The state for people: a process may work on one that is not finished, or none any more."""
        return "unfinished" if self.state == "running" else self.state


class Evolution(EvolutionSummary):
    """An evolution with its trials, the best one, and what was made of it."""

    phase: Annotated[
        Word, Meta(description="`search`, `check`, `parts`, `result` or `over`: what is done now, in this order.")
    ]
    donors: Items[ModelText]
    goal: Annotated[Word, Meta(description="`mean` of all texts, or `front`: each text for itself.")]
    space: Annotated[Text, Meta(description="What is searched, as YAML.")]
    labels: Annotated[dict[Text, Text], Meta(max_length=ITEMS_MAX, description="The parameters by key, in words.")]
    texts: Items[Text]
    seconds: Annotated[float, Meta(description="The time in which trials ran.")]
    seconds_allowed: float | None
    trials_allowed: Count | None
    best: EvolutionTrial | None
    front: Annotated[Items[Count], Meta(description="The trials of which no other one is better on all texts.")]
    parts: Annotated[Items[PartEffect], Meta(description="The parts of the best trial, the most important first.")]
    recipe: Annotated[RecipeFile, Meta(description="Of the best trial.")] | None
    verdict: Annotated[VerdictReport, Meta(description="On the winner, on windows that no trial used.")] | None
    history: Annotated[
        Items[EvolutionTrial],
        Meta(
            description="All trials, in the order in which they were begun. In an answer of the API, only the best "
            "200 of the search have a `choice`; `trials/N/recipe` has the recipes of all."
        ),
    ]

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state != "running"

    @property
    def tried(self) -> tuple[EvolutionTrial, ...]:
        """The trials of the search that are measured, the best first; those above a limit come last."""
        done = (one for one in self.history if one.role in ("start", "proposed") and one.change is not None)
        return tuple(sorted(done, key=lambda one: (not one.is_allowed, one.change or 0.0, one.number)))

    @property
    def share(self) -> float:
        """How much of its time or of its trials is used, from 0 to 1."""
        if self.is_over:
            return 1.0
        return share_used(self.trials, self.trials_allowed, self.seconds, self.seconds_allowed)

    def with_few_choices(self) -> Evolution:
        """Return the evolution as an answer of the API: the choices of most trials are left out, as they are long."""
        ranked = (*self.tried, *(trial for trial in self.history if trial.state in ("failed", "set_aside")))
        long = {trial.number for trial in ranked[CHOICES_MAX:]}
        history = tuple(
            msgspec.structs.replace(trial, choice={}) if trial.number in long else trial for trial in self.history
        )
        return msgspec.structs.replace(self, history=history)

    @property
    def progress(self) -> str:
        """How far it is, in words."""
        done = f"{self.trials:,}" + (f" of {self.trials_allowed:,}" if self.trials_allowed else "") + " trials"
        time = duration_text(self.seconds)
        allowed = "" if self.seconds_allowed is None else f" of {duration_text(self.seconds_allowed)}"
        return f"{done}, {time}{allowed}"

    def labelled(self, trial: EvolutionTrial) -> Mapping[str, float | str]:
        """Return the choice of a trial by the labels of its parameters."""
        return {self.labels.get(key, key): value for key, value in trial.choice.items()}

    def _repr_html_(self) -> str:
        return notebook.document(notebook.table(for_people(TRIAL_COLUMNS, self.tried), self.tried))


class EvolutionPage(Page[EvolutionSummary]):
    """A page of evolutions, newest first."""


TRIAL_COLUMNS = (
    Column("number", "trial", CellKind.FIGURE),
    Column("role", rank=4),
    Column("state", rank=5, shown=lambda trial: trial.state.replace("_", " ")),
    Column("change", "mean change", CellKind.FIGURE, shown="amount"),
    Column("is_stopped", "remark", shown=lambda trial: "; ".join(filter(None, (trial.start, trial.remark)))),
    Column(
        "texts",
        "on each text",
        CellKind.PROSE,
        shown=lambda trial: ", ".join(f"{text.text} {text.amount}" for text in trial.texts) or NO_VALUE,
    ),
    *data_only("seconds", "note"),
)
"""Columns of the trials of an evolution."""

EVOLUTION_COLUMNS = (
    Column("id", "evolution", CellKind.FIGURE),
    Column("base", kind=CellKind.NAME),
    Column("state", shown="state_text"),
    Column("trials", kind=CellKind.COUNT),
    Column("winner", kind=CellKind.NAME, shown=lambda one: one.winner or NO_VALUE),
    Column("created_at", "begun (UTC)", CellKind.MINUTE, rank=1),
)
"""Columns of a list of evolutions."""
