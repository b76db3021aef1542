"""`RemoteRegistry`: a registry on a server. It implements `registry.interface.Registry` over HTTP.

registry = open_registry("https://registry.example")
registry.search("type:organ sort:-theta")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from organs.registry.catalog.cursor import (
    PAGE_MAX,
    check_limit,
)
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.client.address import (
    check_file_name,
    file_path,
    gguf_path,
    in_path,
    parse_full_name,
    whole_file_name,
)
from organs.registry.client.connection import Connection
from organs.registry.client.fetching import FileToFetch, check_all_fits, fetch, fetched
from organs.registry.client.tokens import kept_token
from organs.registry.digest import Digest, digest_of, is_digest, parse_prefix
from organs.registry.endpoints import about, answers, chimeras, downloads, evolutions, jobs, models, organs, queries
from organs.registry.entities.chat import ModelReply, PromptRequest
from organs.registry.entities.chimera import AssemblyRequest, Chimera
from organs.registry.entities.finding import BESIDE_FILE_CODES
from organs.registry.entities.job import Job, JobPage, ValidationRequest
from organs.registry.entities.model import Model, ModelPage
from organs.registry.entities.organ import FacetCounts, Organ, OrganPage, PlacedOrgan
from organs.registry.entities.published import LICENSE_MAX, ModelVersions
from organs.registry.entities.query import ANYTHING, SUGGESTIONS_DEFAULT, SavedQueryRequest
from organs.registry.entities.server import Figures
from organs.registry.entities.validation import QuickLookRequest
from organs.registry.errors import BadInput, BadReply, BadSetting, NotAssemblable, Unreachable
from organs.registry.interface import VERSIONS_DEFAULT, TextProgress, job_steps
from organs.registry.names import ModelName, check_query_name, parse_model_name
from organs.registry.output_files import SourceModel
from organs.registry.progress import Progress, no_progress
from organs.registry.search.language import MODELS, check_typed, parse_query, vocabulary_of
from organs.registry.settings import TOKEN_VARIABLE

if TYPE_CHECKING:
    from organs.registry.client.composition import RemoteComposition
    from organs.registry.compose.lock import Lock
    from organs.registry.compose.recipe import Recipe
    from organs.registry.entities.comparison import Comparison
    from organs.registry.entities.evolution import Evolution, EvolutionPage, EvolutionSummary
    from organs.registry.entities.gain import Leaderboard
    from organs.registry.entities.plan import Compatibility, FittingModels, RecipeFile
    from organs.registry.entities.query import SavedQueries, SavedQuery, Suggestions
    from organs.registry.entities.report import Report
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

CARD_MAX_BYTES = 8 * 1024 * 1024
ORGANS_MAX = 200_000
"""Organs of one model that are read."""
ANSWER_SECONDS = 0.5
"""The time between two requests for an answer that is being written."""
VERSIONS_MAX = 100
"""Versions of one name that a registry lists."""
DIGEST_LENGTH = 64


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """A temporary file with the bytes of a model's file."""

    name: str
    """The name of the original."""
    path: Path


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """The original files of a model."""

    model: ModelName
    """With its version."""
    files: Sequence[tuple[str, FileToFetch]]
    """The files with their names, which are safe as file names."""
    digest: Digest
    """SHA-256 of the model's bytes."""
    lock_id: Digest | None
    """SHA-256 of the lock; None unless the model is a chimera."""
    source: SourceModel


class RemoteRegistry:
    """A registry on a server. A context manager.

    Answers are checked before they are used, and files against their digests. Its methods raise what `Registry`
    documents, and Unreachable, BadReply, NotAllowed, TooMany and Busy.
    """

    def __init__(self, url: str, token: str | None = None, *, plain_http: bool = False) -> None:
        """Prepare a connection; no request is sent. `plain_http` allows the token on an unencrypted connection.

        Raises BadSetting for an invalid address, and for a token that would be sent unencrypted without `plain_http`.
        """
        self.connection = Connection(url, token, plain_http=plain_http)

    @classmethod
    def open(cls, url: str) -> RemoteRegistry:
        """Open the registry at `url` with the token in ORGAN_TOKEN, or the one that `organ login` stored.

        Raises BadSetting, as the constructor does.
        """
        token = os.environ.get(TOKEN_VARIABLE)
        if token:
            return cls(url, token)
        stored = kept_token(url)
        return cls(url) if stored is None else cls(url, stored.token, plain_http=stored.plain_http)

    @property
    def url(self) -> str:
        """The address, without a slash at its end."""
        return self.connection.url

    @property
    def location(self) -> str:
        """The address."""
        return self.url

    def __repr__(self) -> str:
        return f"<RemoteRegistry at {self.url}>"

    def __enter__(self) -> RemoteRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(self, query: str = "", *, limit: int = 50, after: str | None = None) -> OrganPage:
        """Return a page of organs: `registry.search("type:organ theta>=40 sort:-theta")`."""
        parse_query(query)
        check_limit(limit)
        return organs.organs(self.connection, query, limit, after)

    def count(self, query: str = "") -> FacetCounts:
        """Return how many organs match, by type, slot, dtype, architecture, license and θ."""
        parse_query(query)
        return organs.facets(self.connection, query)

    def models(self, query: str = "", *, limit: int = 50, after: str | None = None) -> ModelPage:
        """Return a page of models: `registry.models("coder license:mit sort:-theta")`."""
        parse_query(query, MODELS)
        check_limit(limit)
        return models.models(self.connection, query, limit, after)

    def suggestions(self, text: str, *, of: str = ANYTHING, limit: int = SUGGESTIONS_DEFAULT) -> Suggestions:
        """Return what `text` may mean: `registry.suggestions("typ", of="organs")`."""
        check_typed(text, of, limit)
        return queries.suggestions(self.connection, text, of, limit)

    def saved_queries(self) -> SavedQueries:
        """Return the queries that the account has saved, by name."""
        return queries.saved_queries(self.connection)

    def save_query(self, kind: str, name: str, query: str) -> SavedQuery:
        """Save a query for `models` or `organs` under a name, in the place of a query of this name."""
        parse_query(query, vocabulary_of(kind))
        check_query_name(name)
        return queries.save_query(self.connection, kind, name, SavedQueryRequest(query=query))

    def delete_query(self, kind: str, name: str) -> SavedQuery:
        """Delete a saved query and return it."""
        vocabulary_of(kind)
        check_query_name(name)
        return queries.delete_query(self.connection, kind, name)

    def model(self, name: str) -> RegisteredModel:
        """Return a model with its organs and relatives: `registry.model("acme/tiny").organs`."""
        from organs.registry.models import with_organs  # imports the tables, which searches do not need

        page = self.model_page(name)
        return with_organs(page, self._organs_of(parse_full_name(page.name)))

    def organs_of(self, name: str) -> tuple[PlacedOrgan, ...]:
        """Return all organs of a model, in the order of its files."""
        return self._organs_of(self.resolved(name))

    def versions(self, name: str, *, limit: int = VERSIONS_DEFAULT) -> ModelVersions:
        """Return the newest versions of a model's name."""
        check_limit(limit, VERSIONS_MAX)
        page = models.model_versions(self.connection, *in_path(replace(self.resolved(name), version=None)))
        left_out = page.left_out + max(0, len(page.items) - limit)
        return ModelVersions(items=page.items[:limit], left_out=left_out)

    def jobs(self, *, limit: int = 50, after: str | None = None) -> JobPage:
        """Return a page of jobs, newest first; raises NotFound without an account."""
        return jobs.jobs(self.connection, limit, after)

    def job(self, job: int) -> Job:
        """Return a job with its result."""
        return jobs.job(self.connection, job)

    def cancel_job(self, job: int) -> Job:
        """Cancel a job and return it; a job that has ended does not change."""
        return jobs.cancel(self.connection, job)

    def answer(self, request: PromptRequest, show: Callable[[tuple[ModelReply, ...]], None]) -> tuple[ModelReply, ...]:
        """Send a prompt, wait until it is answered, and return the replies; `show` is called with what is there so far.

        Nobody waits for the answer of an interrupted wait: it is deleted. Raises NotFound if the server answers no
        prompts, TooMany, Unreachable if the answer failed.
        """
        found = answers.ask(self.connection, request)
        try:
            while found.is_active:
                self.connection.sleep(ANSWER_SECONDS)
                found = answers.answer(self.connection, found.key)
                show(found.replies)
        except KeyboardInterrupt:
            answers.forget(self.connection, found.key)
            raise
        if found.state != "finished":
            raise Unreachable(f"{self.connection.url} did not answer: {found.note[:1000]}")
        return found.replies

    def figures(self) -> Figures:
        """Return the numbers of visible models and of their organs, and the size of their files."""
        return about.root(self.connection).figures

    def storage(self, *, limit: int | None = None) -> Storage:
        """Return what is stored how and what this saves, by family, model and encoding, the largest first."""
        from organs.registry.endpoints import administration
        from organs.registry.entities.storage import ROWS_DEFAULT as STORAGE_ROWS_DEFAULT

        return administration.storage(self.connection, STORAGE_ROWS_DEFAULT if limit is None else limit)

    def leaderboard(
        self, base: str | None = None, *, on: str | None = None, limit: int = 50, after: str | None = None
    ) -> Leaderboard:
        """Return a page of validated chimeras with their donors, the largest measured gain first."""
        check_limit(limit)
        return chimeras.leaderboard(self.connection, base, on, limit, after)

    def fitting(self, base: str, *, limit: int = 50) -> FittingModels:
        """Return the models with organs that fit the model `base`, by type, the most similar first."""
        check_limit(limit)
        return chimeras.fitting(self.connection, base, limit)

    def chimera(self, lock: str) -> Chimera:
        """Return the chimera whose lock has a digest that begins with `lock`."""
        return chimeras.chimera(self.connection, parse_prefix(lock))

    def lock_text(self, lock: str) -> str:
        """Return the lock whose digest begins with `lock`, as text; raises BadReply for another lock."""
        from organs.registry.compose.lock import LOCK_MAX_BYTES

        prefix = parse_prefix(lock)
        lock_id = Digest(prefix) if len(prefix) == DIGEST_LENGTH else self.chimera(prefix).lock_id
        data = self._bytes_at(f"/chimeras/{lock_id}/lock.json", LOCK_MAX_BYTES)
        if digest_of(data) != lock_id:
            raise BadReply(f"{self.url} sent another lock than the one with the digest {lock_id}")
        return data.decode("ascii")

    def partial_recipe(self, name: str) -> Recipe | None:
        """Return the recipe that grafts a model with only some organs into its base; None for any other model."""
        model = self.model_page(name)
        parents = [edge for edge in model.lineage if (edge.direction, edge.evidence) == ("parent", "declared")]
        if model.complete or not parents:
            return None
        from organs.registry.compose.recipe import Graft, Recipe

        base = next((edge.model for edge in parents if edge.model is not None), None)
        if base is None:
            named = ", ".join(edge.text or "" for edge in parents)
            reason = f"it has only some tensors, and its base, {named}, is not registered there"
            raise NotAssemblable(model.name, [reason])
        return Recipe(base, grafts=(Graft(model.name),))

    def validate(
        self,
        chimera: str,
        *,
        budget: ValidationBudget | None = None,
        texts: Sequence[ScoredText] | None = None,
        runtime: Runtime | None = None,
        progress: TextProgress | None = None,
    ) -> VerdictReport:
        """Run a chimera on the server, beside its base, its donors and a control, and return the verdict."""
        from organs.registry.client.composition import job_result
        from organs.registry.entities.validation import VerdictReport

        if texts is not None or runtime is not None:
            raise BadSetting("a remote registry validates with its own texts and runtime: it takes no others")
        tokens, minutes = (None, None) if budget is None else (budget.tokens, budget.seconds / 60.0)
        request = ValidationRequest(chimera=chimera, tokens=tokens, minutes=minutes)
        job = chimeras.validate(self.connection, request)
        return job_result(self.connection, VerdictReport, job, job_steps(progress))

    def quick_look(
        self,
        chimera: str,
        *,
        budget: LookBudget | None = None,
        texts: Sequence[ScoredText] | None = None,
        progress: TextProgress | None = None,
    ) -> QuickLook:
        """Run a chimera and its base for some seconds on the server, and return the result."""
        from organs.registry.client.composition import job_result
        from organs.registry.entities.validation import QuickLook

        if texts is not None:
            raise BadSetting("a remote registry looks at chimeras with its own texts: it takes no others")
        request = QuickLookRequest(chimera=chimera, seconds=None if budget is None else budget.seconds)
        job = chimeras.quick_look(self.connection, request)
        return job_result(self.connection, QuickLook, job, job_steps(progress))

    def quantize(self, request: QuantizationRequest, progress: TextProgress | None = None) -> SizedModel:
        """Make a model of a size on the server, in the own namespace, and return it with its measurements."""
        from msgspec.structs import replace as changed

        from organs.registry.client.composition import job_result
        from organs.registry.entities.sizes import SizedModel

        resolved = changed(request, model=str(self.resolved(request.model)))
        job = chimeras.quantize(self.connection, resolved)
        return job_result(self.connection, SizedModel, job, job_steps(progress))

    def begin_evolution(
        self, space: SearchSpace | Mapping[str, object], *, texts: Sequence[ScoredText] | None = None
    ) -> int:
        """Begin an evolution on the server; return its number. Texts are read here and sent, built-in ones by name."""
        from organs.registry.client.evolutions import evolution_of_job, evolution_request

        return evolution_of_job(evolutions.evolve(self.connection, evolution_request(space, texts)))

    def evolve(
        self,
        space: SearchSpace | Mapping[str, object],
        *,
        texts: Sequence[ScoredText] | None = None,
        progress: TextProgress | None = None,
    ) -> Evolution:
        """Search for the best chimera of a space on the server, in the own namespace, and return what was found."""
        return self.continue_evolution(self.begin_evolution(space, texts=texts), progress=progress)

    def continue_evolution(self, evolution: int, *, progress: TextProgress | None = None) -> Evolution:
        """Wait until the server has done what is left of an evolution, and return it."""
        from organs.registry.client.composition import job_result
        from organs.registry.entities.job import EvolutionJobResult

        found = self.evolution(evolution)
        if found.is_over:
            return found
        job = evolutions.continue_evolution(self.connection, evolution)
        job_result(self.connection, EvolutionJobResult, job, job_steps(progress))
        return self.evolution(evolution)

    def evolution(self, evolution: int) -> Evolution:
        """Return an evolution with its trials and its result."""
        return evolutions.evolution(self.connection, evolution)

    def evolutions(self, *, limit: int = 50, after: str | None = None) -> EvolutionPage:
        """Return a page of evolutions, newest first; raises NotFound without an account."""
        check_limit(limit)
        return evolutions.evolutions(self.connection, limit, after)

    def trial_recipe(self, evolution: int, trial: int | None = None) -> Recipe:
        """Return the recipe of a trial, by default of the best one."""
        from organs.registry.compose.recipe import recipe_of

        if trial is not None:
            return recipe_of(evolutions.trial_recipe(self.connection, evolution, trial))
        recipe = self.evolution(evolution).recipe
        if recipe is None:
            raise BadInput("no trial holds the limits yet")
        return recipe_of(recipe)

    def remove_evolution(self, evolution: int) -> EvolutionSummary:
        """Remove an evolution with its trials and its texts, and return it; the chimera that it made stays."""
        return evolutions.remove_evolution(self.connection, evolution)

    def sizes(self, model: str) -> SizeCurve:
        """Return the measured sizes of a model: how far each file is from the source, the smallest first."""
        return models.model_sizes(self.connection, *in_path(self.resolved(model)))

    def compatibility(self, base: str, donor: str) -> Compatibility:
        """Return whether organs of the model `donor` fit into the model `base`, type by type, with all findings."""
        return chimeras.compatibility(self.connection, base, donor)

    def compare(self, first: str, second: str) -> Comparison:
        """Return two models side by side: how similar their weights are, and what else differs."""
        return models.compare(self.connection, str(self.resolved(first)), str(self.resolved(second)))

    def report(self, model: str | None = None, *, limit: int | None = None) -> Report:
        """Return the report on the registry, or on a model; a list has at most `limit` rows."""
        from organs.registry.endpoints import reports
        from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT

        if model is None:
            return reports.report(self.connection, ROWS_DEFAULT if limit is None else limit)
        namespace, name = in_path(self.resolved(model))
        return reports.report_on_model(self.connection, namespace, name, ORGANS_DEFAULT if limit is None else limit)

    def assemble(self, name: str, path: str | Path, progress: Progress = no_progress) -> Digest:
        """Download the file of a model to `path`, replacing an existing file; return its SHA-256.

        The file is checked, and an interrupted download continues at the next call. The digest of a file that is merged
        from shards is not known in advance: then each organ is checked by its digest. Raises BadReply for wrong bytes.
        """
        return fetch(self.connection, self.whole_file(name), Path(path), progress)

    def compose(self, base: str | Recipe | RecipeFile) -> RemoteComposition:
        """Begin a chimera, which the server plans and makes: `registry.compose("acme/base").graft("acme/coder")`."""
        from organs.registry.client.composition import RemoteComposition  # with the codecs, which searches do not need
        from organs.registry.compose.recipe import recipe_of

        return RemoteComposition(recipe_of(base), self)

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    def files(
        self, name: str, *, merge: bool = False, shard_bytes: int | None = None, stem: str | None = None
    ) -> OutputFiles:
        """Return the files of a model, ready to be downloaded: the original files, or new ones.

        A file that is requested by a digest is checked against it. Shards are cut on this machine, so the disk needs
        room for twice the model.
        """
        from organs.registry.client.files import FetchedFiles, check_lock, file_in_shards

        own = self.own_files(name)
        stem = own.model.name if stem is None else stem
        files = own.files
        if is_digest(name):
            prefix, digests = parse_prefix(name), [own.digest, *(str(file.sha256) for _, file in files)]
            if own.lock_id is not None and own.lock_id.startswith(prefix):
                files = [(file_name, replace(file, check=check_lock(own.lock_id))) for file_name, file in files]
            elif not any(digest.startswith(prefix) for digest in digests):
                raise BadReply(f"the registry gives {own.model} for {prefix}, which is not one of its digests")
        if merge or shard_bytes is not None:
            single = files[0][1] if len(files) == 1 else self.whole_file(str(own.model))
            if shard_bytes is not None:
                shards = file_in_shards(self.connection, single, stem, shard_bytes, own.source)
                if shards is not None:
                    return shards
            files = [(f"{stem}.gguf", single)]
        return FetchedFiles(self.connection, files, own.source)

    def card(self, name: str) -> str:
        """Return the card of a model as Markdown; raises BadReply for a card that is too long or not text."""
        model = self.resolved(name)
        if model.version is None:
            model = parse_full_name(self.model_page(name).name)
        path = f"/{model.namespace}/{model.name}/resolve/v{model.version}/README.md"
        try:
            return self._bytes_at(path, CARD_MAX_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadReply(f"{self.url} sent a card that is not text") from error

    def _bytes_at(self, path: str, most_bytes: int) -> bytes:
        """Return the bytes at `path`; raises BadReply for more than `most_bytes`."""
        data = bytearray()
        with self.connection.download(path) as reply:
            for chunk in reply.stream():
                data += chunk
                if len(data) > most_bytes:
                    raise BadReply(f"{self.url} sent more than {most_bytes:,} bytes for {path}")
        return bytes(data)

    def lock_files(self, lock: Lock) -> OutputFiles:
        """Return the file of a lock, ready to be downloaded; nothing is registered.

        The file of a registered chimera is downloaded. Any other is assembled on this machine from the base's header
        and the organs.
        """
        from organs.registry.client.files import file_of_lock

        return file_of_lock(self, lock)

    def organ_files(self, prefix: str) -> OutputFiles:
        """Return the plain bytes of an organ as a file, ready to be downloaded."""
        from organs.registry.client.files import FetchedFiles

        organ = self.organ(prefix)
        file = FileToFetch(downloads.organ_raw.address(digest=organ.digest), organ.size_bytes, organ.digest)
        return FetchedFiles(self.connection, [(f"{organ.digest}.raw", file)])

    @contextmanager
    def downloaded(
        self, name: str, beside: Path, show: Callable[[int], AbstractContextManager[Progress]] | None = None
    ) -> Iterator[list[DownloadedFile]]:
        """Download the original files of a model, beside the path `beside`, and delete them after the block.

        `show` opens a display of the progress; its argument is the number of bytes. The disk needs room for twice the
        files. An interrupted download continues at the next call. Raises DiskFull.
        """
        own = self.own_files(name)
        target = Path(os.path.abspath(beside))
        place = target.parent / f".{target.name}"  # a temporary name: `beside` itself may be a folder
        files = [file for _, file in own.files]
        size_bytes = sum(file.size_bytes for file in files)
        check_all_fits(self.url, files, place, 2 * size_bytes)
        with ExitStack() as opened:
            with nullcontext(no_progress) if show is None else show(size_bytes) as progress:
                paths = [opened.enter_context(fetched(self.connection, file, place, progress)) for file in files]
            yield [DownloadedFile(own_name, path) for (own_name, _), path in zip(own.files, paths, strict=True)]

    def ranked_models(self, query: str = "", *, limit: int = 50, after: str | None = None) -> ModelPage:
        """Return a page of complete models by falling mean θ, without adapters and chimeras."""
        return models.models(self.connection, query, limit, after, ranked=True)

    def model_page(self, name: str) -> Model:
        """Return a model without its organs."""
        return models.model(self.connection, *in_path(self.resolved(name)))

    def resolved(self, name: str) -> ModelName:
        """Return the model's name for `name`, a name or `sha256:` and a digest; raises BadName, NotFound, Ambiguous."""
        if not is_digest(name):
            return parse_model_name(name)
        return parse_full_name(models.model_lookup(self.connection, parse_prefix(name)).name)

    def whole_file(self, name: str) -> FileToFetch:
        """Return the model called `name` as one file to download."""
        request = AssemblyRequest(model=str(self.resolved(name)))
        assembly = chimeras.assemble(self.connection, request)
        path = gguf_path(assembly.model)
        if assembly.sha256 is not None:
            return FileToFetch(path, assembly.size_bytes, assembly.sha256)
        from organs.registry.client.files import check_organs

        digests = {organ.name: organ.digest for organ in self._organs_of(parse_full_name(assembly.model))}
        return FileToFetch(path, assembly.size_bytes, None, check_organs(digests))

    def own_files(self, name: str) -> OwnFiles:
        """Return the original files of a model; raises as `model` does, and NotAssemblable."""
        from organs.registry.compose.licenses import is_license_in_file
        from organs.registry.compose.metadata import LICENSE_KEY

        page = self.model_page(name)
        model = parse_full_name(page.name)
        in_header = next((entry.value for entry in page.metadata if entry.key == LICENSE_KEY), None)
        if page.unassemblable:
            raise NotAssemblable(page.name, page.unassemblable)
        # The only file of a complete model has an address without its name; the file of a partial model does not.
        is_single = len(page.files) == 1 and page.complete
        names = [whole_file_name(file.name, model) if is_single else check_file_name(file.name) for file in page.files]
        paths = [gguf_path(page.name) if is_single else file_path(page.name, file_name) for file_name in names]
        files = [FileToFetch(path, file.size_bytes, file.sha256) for path, file in zip(paths, page.files, strict=True)]
        source = SourceModel(
            str(model),
            page.lock_id is not None,
            (page.state_reason or "") if page.state == "yanked" else None,
            tuple(finding for finding in page.findings if finding.code in BESIDE_FILE_CODES),
            is_license_in_file(page.license, in_header and shown_text(in_header, LICENSE_MAX)),
        )
        return OwnFiles(model, tuple(zip(names, files, strict=True)), page.digest, page.lock_id, source)

    def organ(self, prefix: str) -> Organ:
        """Return the organ whose digest begins with `prefix`."""
        bare = parse_prefix(prefix)
        organ = organs.organ(self.connection, bare)
        if not organ.digest.startswith(bare):
            raise BadReply(f"the registry answers with another tensor than {prefix}: {organ.digest}")
        return organ

    def _organs_of(self, name: ModelName) -> tuple[PlacedOrgan, ...]:
        placed: list[PlacedOrgan] = []
        after: str | None = None
        while True:
            page = models.model_organs(self.connection, *in_path(name), PAGE_MAX, after)
            placed += page.items
            after = page.next
            if after is None:
                return tuple(placed)
            if not page.items or len(placed) > ORGANS_MAX:
                raise BadReply(f"the pages of the tensors of {name} do not end")
