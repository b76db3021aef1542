"""Composing in a registry elsewhere: the same steps, planned and made there; the file is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from organs.registry import notebook
from organs.registry.amounts import size_text
from organs.registry.client.connection import API, Connection
from organs.registry.client.fetching import FileToFetch, fetch
from organs.registry.client.jobs import done
from organs.registry.client.names import gguf_path
from organs.registry.client.planned import PlannedOrgan, check_planned, findings, planned_organs, prediction
from organs.registry.client.shape import Members, Values, check, digest, flag, text, whole
from organs.registry.compose.api import RecipeBuilder
from organs.registry.compose.build import (
    Made,
    Progress,
)
from organs.registry.compose.findings import (
    Finding,
    counted,
    refusals,
    unaccepted,
)
from organs.registry.compose.lock import Lock, parse_lock
from organs.registry.compose.recipe import Recipe
from organs.registry.compose.recipe_io import recipe_values
from organs.registry.digest import Digest
from organs.registry.errors import BadLock, BadRecipe, BadReply, NotComposable, NotFound
from organs.registry.store.files import (
    Files,
    check_room,
    placing_error,
)

if TYPE_CHECKING:
    from organs.registry.compose.prediction import Prediction

_MADE: Members = {"model": text, "lock": digest, "sha256": digest, "size_bytes": whole, "created": flag}


@dataclass(frozen=True, slots=True, repr=False)
class RemoteComposition(RecipeBuilder):
    """A recipe under way, on the models of a registry elsewhere."""

    connection: Connection

    def plan(self) -> RemotePlan:
        """What it comes to there: nothing is made yet. Raises NotFound for a base that is not registered there."""
        values = self.connection.send("POST", f"{API}/plans", recipe_values(self.recipe), every_part=1)
        check_planned(values)
        if values["plan"] is None:
            sentences = [(one["field"], one["sentence"]) for one in values["findings"]]
            if [one["code"] for one in values["findings"]] == ["unknown-base"]:
                raise NotFound(sentences[0][1])
            raise BadRecipe("recipe", sentences)
        return RemotePlan(self.recipe, values, self.connection)


class RemotePlan:
    """What a recipe comes to: every tensor of the result, findings, sizes, and a prediction."""

    def __init__(self, recipe: Recipe, values: Values, connection: Connection) -> None:
        """Of the checked answer `values`, which has a plan."""
        self.recipe = recipe
        self.values: Values = {**values["plan"], "findings": values["findings"]}
        """As `registry.present.plan.plan_values` has them, with every organ among `parts`."""
        self.size_bytes: int = self.values["size_bytes"]
        """Of the file."""
        self.file_name: str = self.values["file"]
        self.can_be_made: bool = self.values["can_be_made"]
        """Whether nothing refuses it and every warning is accepted."""
        self._connection = connection

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """All that was found: refusals, warnings, and what will change."""
        return findings(self.values["findings"])

    @cached_property
    def parts(self) -> tuple[PlannedOrgan, ...]:
        """The tensors of the result, in order."""
        return planned_organs(self.values["parts"])

    @cached_property
    def prediction(self) -> Prediction:
        return prediction(self.values["prediction"])

    def __repr__(self) -> str:
        return f"<RemotePlan {self._headline()}>"

    def _repr_html_(self) -> str:
        rows = [(one.severity.value, one.code, one.field, one.sentence) for one in self.findings]
        return notebook.document(
            notebook.heading(self._headline()),
            notebook.paragraph(self.prediction.sentence()),
            notebook.table(("", "code", "field", "what"), rows) if rows else "",
        )

    def check(self) -> None:
        """Raise NotComposable unless it can be made."""
        refused, wanted = refusals(self.findings), unaccepted(self.findings, self.recipe.accept)
        if refused or wanted or not self.can_be_made:
            raise NotComposable([one.sentence for one in refused], sorted({one.code for one in wanted}))

    def lock(self) -> Lock:
        """The lock of what it comes to; nothing is made there. Raises NotComposable where it cannot be made.

        Where organs are still to be computed there is none: that is asked of what was made.
        """
        self.check()
        values = self._connection.send("POST", f"{API}/plans", recipe_values(self.recipe), lock=1)
        check(values, {"plan": {"lock": text}}, "plan")
        try:
            return parse_lock(values["plan"]["lock"])
        except BadLock as error:
            raise BadReply(f"{self._connection.url} gives no lock: {error}") from error

    def register(self, progress: Progress | None = None) -> Made:
        """Make and register the chimera there; its file is streamed whenever somebody asks. Raises as `assemble`."""
        self.check()
        told = 0

        def tell(share: float, note: str) -> None:
            nonlocal told
            size_bytes = int(share * self.size_bytes)
            if progress is not None and size_bytes > told:
                progress(note, size_bytes - told)
                told = size_bytes

        result = done(self._connection, "/chimeras", recipe_values(self.recipe), tell)
        check(result, _MADE, "job.result")
        lock_id, sha256 = Digest(result["lock"]), Digest(result["sha256"])
        return Made(result["model"], lock_id, sha256, result["size_bytes"], result["created"])

    def assemble(self, path: str | Path, progress: Progress | None = None) -> Made:
        """Make and register the chimera there, and fetch its file to `path`, replacing what is there.

        Raises NotComposable for refusals and warnings that are not accepted, NotAllowed, Unreachable, DiskFull; then
        `path` is as it was. What was registered by then stays.
        """
        target = Path(path)
        self.check()
        _check_place(target, self.size_bytes)
        made = self.register(progress)
        file = FileToFetch(gguf_path(made.model), made.size_bytes, made.sha256)
        fetch(self._connection, file, target, lambda size: progress("fetch", size) if progress is not None else None)
        return made

    def _headline(self) -> str:
        refused, wanted = refusals(self.findings), unaccepted(self.findings, self.recipe.accept)
        said = [
            f"{self.values['changed']} of {counted(len(self.parts), 'tensor', 'tensors')} of {self.values['base']}",
            size_text(self.size_bytes),
            *([counted(len(refused), "refusal", "refusals")] if refused else []),
            *([counted(len(wanted), "warning to accept", "warnings to accept")] if wanted else []),
            *(["can be made"] if self.can_be_made else []),
        ]
        return ", ".join(said)


def _check_place(target: Path, size_bytes: int) -> None:
    """Raise what placing the file would, as far as it can be known before anything is made."""
    try:
        check_room(target.parent, size_bytes, Files())
    except OSError as error:
        raise placing_error(error, target) from error
