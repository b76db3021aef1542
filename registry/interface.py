"""`Registry`: the interface of a registry, local or remote.

Commands and scripts use a `Registry` in the same way for both kinds. `LocalRegistry` and `RemoteRegistry` implement it
with the same keywords, results and errors; a remote registry also raises Unreachable, BadReply, NotAllowed, TooMany
and Busy. The implementations differ inside: a remote file is downloaded, checked and resumed; a remote job runs on the
server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from organs.registry.progress import Progress, StepProgress, no_progress

if TYPE_CHECKING:
    from organs.registry.compose.api import RecipeBuilder
    from organs.registry.compose.lock import Lock
    from organs.registry.compose.recipe import Recipe
    from organs.registry.digest import Digest
    from organs.registry.entities.chimera import Chimera
    from organs.registry.entities.comparison import Comparison
    from organs.registry.entities.evolution import Evolution, EvolutionPage, EvolutionSummary
    from organs.registry.entities.gain import Leaderboard
    from organs.registry.entities.job import Job, JobPage
    from organs.registry.entities.model import ModelPage
    from organs.registry.entities.organ import FacetCounts, Organ, OrganPage, PlacedOrgan
    from organs.registry.entities.plan import Compatibility, FittingModels, RecipeFile
    from organs.registry.entities.published import ModelVersions
    from organs.registry.entities.query import SavedQueries, SavedQuery, Suggestions
    from organs.registry.entities.report import Report
    from organs.registry.entities.server import Figures
    from organs.registry.entities.sizes import QuantizationRequest, SizeCurve, SizedModel
    from organs.registry.entities.storage import Storage
    from organs.registry.entities.validation import QuickLook, VerdictReport
    from organs.registry.evolving.space import SearchSpace
    from organs.registry.models import RegisteredModel
    from organs.registry.output_files import OutputFiles
    from organs.registry.validation.comparison import ValidationBudget
    from organs.registry.validation.quick import LookBudget
    from organs.registry.validation.runtime import Runtime
    from organs.registry.validation.texts import ScoredText

TextProgress = Callable[[str], None]
"""Called with a short text about the current step."""
VERSIONS_DEFAULT = 10


def job_steps(progress: TextProgress | None) -> StepProgress:
    """Return a callback that gets the finished share of a work, from 0 to 1, and its current step."""

    def report_step(share: float, step: str) -> None:
        if progress is not None:
            progress(f"{share:.0%} {step}")

    return report_step


class Registry(Protocol):
    """A registry of organs: search it, compare models, write files, compose chimeras and run them.

    A context manager; at the end of the block the connections are closed. The name of a model is `namespace/name`, with
    `@version` for an older version, or `sha256:` and the first 8 or more characters of the digest of the model, of its
    file or of its lock. A method with a model name as a parameter raises
    NotFound (with the nearest name), Ambiguous, BadName and BadDigest.
    """

    @property
    def location(self) -> str:
        """The folder of a local registry, the URL of a remote one."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """Close the connections."""

    # The catalog

    def search(self, query: str = "", *, limit: int = 50, after: str | None = None) -> OrganPage:
        """Return a page of organs: `registry.search("type:organ theta>=40 sort:-theta")`.

        `after` is the `next` of the previous page; `limit` is from 1 to 1,000. Raises BadQuery for an invalid query,
        NotFound or Ambiguous if `like:` does not name one organ.
        """

    def count(self, query: str = "") -> FacetCounts:
        """Return how many organs match, by type, slot, dtype, architecture, license and θ. Raises BadQuery.

        An organ is counted at each of its places. `like:` and `unique:` do not change the counts.
        """

    def models(self, query: str = "", *, limit: int = 50, after: str | None = None) -> ModelPage:
        """Return a page of models: `registry.models("coder license:mit sort:-theta")`. Raises BadQuery."""

    def ranked_models(self, query: str = "", *, limit: int = 50, after: str | None = None) -> ModelPage:
        """Return a page of complete models by falling mean θ, without adapters and chimeras. Raises BadQuery."""

    def suggestions(self, text: str, *, of: str = "all", limit: int = 8) -> Suggestions:
        """Return what `text` may mean: `registry.suggestions("typ", of="organs")`.

        `of` is `names` for names of models, `all` for any search, `models` or `organs` for the word at the cursor of
        a query for these. `limit` is from 1 to 20. Raises BadQuery.
        """

    def saved_queries(self) -> SavedQueries:
        """Return the queries that the account has saved, by name. A remote registry raises BadToken without one."""

    def save_query(self, kind: str, name: str, query: str) -> SavedQuery:
        """Save a query for `models` or `organs` under a name, in the place of a query of this name.

        Raises BadQuery, BadInput, NotAllowed if 100 queries are saved.
        """

    def delete_query(self, kind: str, name: str) -> SavedQuery:
        """Delete a saved query and return it. Raises BadQuery, BadInput, NotFound."""

    def model(self, name: str) -> RegisteredModel:
        """Return a model with its organs and relatives: `registry.model("acme/tiny").organs`."""

    def organs_of(self, name: str) -> tuple[PlacedOrgan, ...]:
        """Return all organs of a model, in the order of its files."""

    def versions(self, name: str, *, limit: int = VERSIONS_DEFAULT) -> ModelVersions:
        """Return the newest versions of a model's name. `limit` is from 1 to 100. Raises BadQuery."""

    def organ(self, prefix: str) -> Organ:
        """Return the organ whose digest begins with `prefix`; raises BadDigest, NotFound, Ambiguous."""

    def compare(self, first: str, second: str) -> Comparison:
        """Return two models side by side: how similar their weights are, and what else differs."""

    def report(self, model: str | None = None, *, limit: int | None = None) -> Report:
        """Return the report on the registry, or on a model; a list has at most `limit` rows."""

    def figures(self) -> Figures:
        """Return the numbers of visible models and of their organs, and the size of their files."""

    def storage(self, *, limit: int | None = None) -> Storage:
        """Return what is stored how and what this saves, by family, model and encoding, the largest first.

        `limit` is from 1 to 1,000 families and models. Raises BadQuery. On a server only administrators may see it.
        """

    # Chimeras

    def leaderboard(
        self, base: str | None = None, *, on: str | None = None, limit: int = 50, after: str | None = None
    ) -> Leaderboard:
        """Return a page of validated chimeras with their donors, the largest measured gain first.

        With `base`, only chimeras of this base are listed; with `on`, only gains on these kinds of text count:
        `registry.leaderboard("acme/tiny", on="code")`. Raises BadQuery.
        """

    def fitting(self, base: str, *, limit: int = 50) -> FittingModels:
        """Return the models with organs that fit the model `base`, by type, the most similar first.

        `limit` is from 1 to 1,000, and also limits the models that are examined. Raises BadQuery.
        """

    def compatibility(self, base: str, donor: str) -> Compatibility:
        """Return whether organs of the model `donor` fit into the model `base`, type by type, with all findings."""

    def compose(self, base: str | Recipe | RecipeFile) -> RecipeBuilder:
        """Begin a chimera: `registry.compose("acme/base").graft("acme/coder", type="organ").plan()`.

        `base` is the name of a model, or a recipe: `registry.compose.recipe.read_recipe` reads one from text, and
        the grafts of `leaderboard` have theirs. Raises BadRecipe.
        """

    def chimera(self, lock: str) -> Chimera:
        """Return the chimera whose lock has a digest that begins with `lock`. Raises NotFound, Ambiguous, BadDigest."""

    def lock_text(self, lock: str) -> str:
        """Return the lock whose digest begins with `lock`, as text. Raises NotFound, Ambiguous, BadDigest."""

    def partial_recipe(self, name: str) -> Recipe | None:
        """Return the recipe that grafts a model with only some organs into its base; None for any other model.

        Raises NotAssemblable if no base that the model names is registered.
        """

    def validate(
        self,
        chimera: str,
        *,
        budget: ValidationBudget | None = None,
        texts: Sequence[ScoredText] | None = None,
        runtime: Runtime | None = None,
        progress: TextProgress | None = None,
    ) -> VerdictReport:
        """Run a chimera, its base, its donors and a control; store the verdict and return it.

        Windows of the texts are scored until everything is settled or `budget` is spent: by default ten minutes. By
        default the runtime is llama.cpp, and the texts are the built-in ones. A remote registry supports only these,
        and raises BadSetting for others. Raises NotComposedHere, NoRuntime, NoVerdict if the base does not run.
        """

    def quick_look(
        self,
        chimera: str,
        *,
        budget: LookBudget | None = None,
        texts: Sequence[ScoredText] | None = None,
        progress: TextProgress | None = None,
    ) -> QuickLook:
        """Run a chimera and its base on a few windows of a few texts for some seconds; store the result and return it.

        A remote registry has only its own texts, and raises BadSetting for others. Raises NotComposedHere, NoRuntime,
        NoVerdict if the two tokenize differently.
        """

    def quantize(self, request: QuantizationRequest, progress: TextProgress | None = None) -> SizedModel:
        """Make the model that differs least from its source within what `request` allows, register and measure it.

        `QuantizationRequest(model="me/coder-F16", bits=4.5)`; others are `size_bytes`, `like` (the size of a mix such
        as Q4_K_M, or of a registered model), `memory_bytes` (what llama.cpp takes with a `context` of some tokens), and
        `type`, a mix of llama.cpp itself. What was measured is stored, so an interrupted call continues; `minutes`
        limits the measurements. Raises BadInput for another number of limits, for one below the smallest file and for
        too little time, NoRuntime, NoVerdict, NotAssemblable, StoreError, DiskFull.
        """

    def sizes(self, model: str) -> SizeCurve:
        """Return the measured sizes of a model: how far each file is from the source, the smallest first."""

    # Evolutions

    def begin_evolution(
        self, space: SearchSpace | Mapping[str, object], *, texts: Sequence[ScoredText] | None = None
    ) -> int:
        """Check a space and begin an evolution; return its number, for `continue_evolution`.

        Paths of texts begin in the present folder. `texts` replaces those that the space names; a remote registry gets
        at most 1 MiB of them, evenly spread. Raises BadRecipe, BadSource, MissingExtra, NoRuntime, NotComposable.
        """

    def evolve(
        self,
        space: SearchSpace | Mapping[str, object],
        *,
        texts: Sequence[ScoredText] | None = None,
        progress: TextProgress | None = None,
    ) -> Evolution:
        """Search for the best chimera of a space, make it, and measure it on parts of the texts that no trial used.

        `registry.evolve({"base": "me/base", "donors": ["kin:me/base"], "texts": ["python"], "minutes": 30})`. Raises as
        `begin_evolution` and `continue_evolution` do.
        """

    def continue_evolution(self, evolution: int, *, progress: TextProgress | None = None) -> Evolution:
        """Do what is left of an evolution, and return it. Raises NoSuchEvolution, NoRuntime, BadInput."""

    def evolution(self, evolution: int) -> Evolution:
        """Return an evolution with its trials and its result; raises NoSuchEvolution.

        A remote registry sends the choices of the best 200 trials only.
        """

    def evolutions(self, *, limit: int = 50, after: str | None = None) -> EvolutionPage:
        """Return a page of evolutions, newest first. A remote registry raises NotFound without an account."""

    def trial_recipe(self, evolution: int, trial: int | None = None) -> Recipe:
        """Return the recipe of a trial, by default of the best one.

        Raises NoSuchEvolution, BadInput for a number that no trial has, and if no trial holds the limits.
        """

    def remove_evolution(self, evolution: int) -> EvolutionSummary:
        """Remove an evolution with its trials and its texts, and return it; the chimera that it made stays.

        Raises NoSuchEvolution, and Conflict while something works on it.
        """

    # Files

    def assemble(self, name: str, path: str | Path, progress: Progress = no_progress) -> Digest:
        """Write the file of a model to `path`, replacing an existing file; return its SHA-256.

        The file is the original file, byte for byte; the shards of a split model become one file. Raises
        NotAssemblable, StoreError, DiskFull; then `path` is unchanged.
        """

    def files(
        self, name: str, *, merge: bool = False, shard_bytes: int | None = None, stem: str | None = None
    ) -> OutputFiles:
        """Return the files of a model, ready to be written: the original files, or new ones.

        With `merge`, all shards become one file. With `shard_bytes`, the files are shards with at most this many bytes
        of tensors each. The names of new files begin with `stem`, by default the name of the model. Raises
        NotAssemblable.
        """

    def card(self, name: str) -> str:
        """Return the card of a model as Markdown: its facts, license and findings; for a chimera its recipe too.

        It has no verdicts. A model's file never changes, so a license that was stated later is only on the card.
        """

    def lock_files(self, lock: Lock) -> OutputFiles:
        """Return the file of a lock, ready to be written; nothing is registered.

        Raises NotAssemblable with a list of the missing organs and headers, BadLock if the lock does not describe a
        valid file.
        """

    def organ_files(self, prefix: str) -> OutputFiles:
        """Return the plain bytes of an organ as a file, ready to be written. Raises BadDigest, NotFound, Ambiguous."""

    # Jobs

    def jobs(self, *, limit: int = 50, after: str | None = None) -> JobPage:
        """Return a page of jobs, newest first. A remote registry raises NotFound without an account."""

    def job(self, job: int) -> Job:
        """Return a job with its result; raises NoSuchJob."""

    def cancel_job(self, job: int) -> Job:
        """Cancel a job and return it; a job that has ended does not change. Raises NoSuchJob."""
