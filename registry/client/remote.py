"""`RemoteRegistry`: a registry elsewhere, with the interface of `LocalRegistry`.

registry = open_registry("https://registry.example")
registry.search("type:organ sort:-theta")
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from organs.registry.catalog.cursor import (
    PAGE_MAX,
    check_limit,
)
from organs.registry.catalog.search import MODELS, parse_query
from organs.registry.client import answers
from organs.registry.client.address import (
    file_path,
    gguf_path,
    model_path,
    told_file,
    told_name,
    whole_file_name,
)
from organs.registry.client.connection import API, Connection
from organs.registry.client.fetching import FileToFetch, Progress, fetch
from organs.registry.client.shape import Maybe, Members, Values, check, digest, text, whole
from organs.registry.client.tokens import kept_token
from organs.registry.digest import Digest, looks_like_prefix, parse_digest, parse_prefix
from organs.registry.entities.job import Job, JobPage
from organs.registry.entities.model import ModelPage, ModelSummary
from organs.registry.entities.organ import FacetCounts, Organ, OrganPage, PlacedOrgan
from organs.registry.errors import BadReply, NotAssemblable
from organs.registry.names import ModelName, parse_model_name
from organs.registry.settings import TOKEN_VARIABLE

if TYPE_CHECKING:
    from organs.registry.client.composing import RemoteComposition
    from organs.registry.compose.recipe import Recipe
    from organs.registry.entities.chimera import Chimera
    from organs.registry.entities.comparison import Comparison
    from organs.registry.entities.plan import Compatibility, FittingModels
    from organs.registry.entities.report import Report
    from organs.registry.present.registered import RegisteredModel

ORGANS_MAX = 200_000
"""Of one model; whoever lists more means no good."""
_ASSEMBLY: Members = {"model": text, "file": text, "size_bytes": whole, "sha256": Maybe(digest)}


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """The files of a model as they came in."""

    model: ModelName
    """With its version."""
    files: tuple[tuple[str, FileToFetch], ...]
    """Each with its name, which is a plain one."""
    digest: Digest
    """Of the model's bytes."""
    lock_id: Digest | None
    """Of the chimera that it is."""
    yanked: str | None = None
    """Why it was yanked, where it was."""


class RemoteRegistry:
    """A registry elsewhere. A context manager.

    What it answers is checked, and what is fetched is checked against its digest; raises Unreachable where it does not
    answer as a registry does, NotAllowed, TooMany, and otherwise what `LocalRegistry` does.
    """

    def __init__(self, url: str, token: str | None = None, *, plain_http: bool = False) -> None:
        """Nothing is asked yet. `plain_http` lets the token travel where others read along; raises BadSetting."""
        self.connection = Connection(url, token, plain_http=plain_http)

    @classmethod
    def open(cls, url: str) -> RemoteRegistry:
        """The registry at `url`, with the token of the environment (ORGAN_TOKEN), or the one that `organ login` kept.

        Raises BadSetting for what is no address, and rather than send a token where others read along.
        """
        told = os.environ.get(TOKEN_VARIABLE)
        if told:
            return cls(url, told)
        kept = kept_token(url)
        return cls(url) if kept is None else cls(url, kept.token, plain_http=kept.plain_http)

    @property
    def url(self) -> str:
        """Where it is."""
        return self.connection.url

    def __repr__(self) -> str:
        return f"<RemoteRegistry at {self.url}>"

    def __enter__(self) -> RemoteRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(self, query: str = "", *, limit: int = 50, after: str | None = None) -> OrganPage:
        """A page of organs: `registry.search("type:organ theta>=40 sort:-theta")`. As `LocalRegistry.search`."""
        parse_query(query)
        check_limit(limit)
        return self.connection.read(OrganPage, f"{API}/organs", q=query, limit=limit, after=after)

    def count(self, query: str = "") -> FacetCounts:
        """How what `query` finds is spread. As `LocalRegistry.count`."""
        parse_query(query)
        return self.connection.read(FacetCounts, f"{API}/facets", q=query)

    def models(self, query: str = "", *, limit: int = 50, after: str | None = None) -> ModelPage:
        """A page of models: `registry.models("coder license:mit sort:-theta")`. As `LocalRegistry.models`."""
        parse_query(query, MODELS)
        check_limit(limit)
        return self._models(query, limit=limit, after=after)

    def model(self, name: str) -> RegisteredModel:
        """The model called `name`, or that has the digest `sha256:...`, with its organs and relatives."""
        values = self.model_values(name)
        return answers.registered_model(values, self.organs_of(told_name(values["name"])))

    def jobs(self, limit: int = 50, after: str | None = None) -> JobPage:
        """Return a page of jobs, newest first; raises NotFound without an account."""
        return self.connection.read(JobPage, f"{API}/jobs", limit=limit, after=after)

    def job(self, job: int) -> Job:
        """Return a job with its result; raises NotFound."""
        return self.connection.read(Job, f"{API}/jobs/{job}")

    def cancel_job(self, job: int) -> Job:
        """Cancel a job and return it; one that has ended does not change. Raises NotFound."""
        return self.connection.delete(Job, f"{API}/jobs/{job}")

    def fitting(self, base: str, *, limit: int = 50) -> FittingModels:
        """The models that have organs which fit the model called `base`. As `LocalRegistry.fitting`."""
        from organs.registry.entities.plan import FittingModels

        check_limit(limit)
        return self.connection.read(FittingModels, f"{API}/fitting", base=base, limit=limit)

    def chimera(self, lock: str) -> Chimera:
        """Return the chimera whose lock has a digest that begins with `lock`. As `LocalRegistry.chimera`."""
        from organs.registry.entities.chimera import Chimera

        return self.connection.read(Chimera, f"{API}/chimeras/{parse_prefix(lock)}")

    def lock_text(self, lock: str) -> str:
        """Return the lock with the digest `lock`, as text; raises BadReply for another lock."""
        from organs.registry.client.shown import lock_text

        return lock_text(self.connection, parse_digest(lock))

    def compatibility(self, base: str, donor: str) -> Compatibility:
        """Return whether organs of `donor` fit into `base`, type by type. As `LocalRegistry.compatibility`."""
        from organs.registry.entities.plan import Compatibility

        return self.connection.read(Compatibility, f"{API}/compatibility", base=base, donor=donor)

    def compare(self, first: str, second: str) -> Comparison:
        """Return the models called `first` and `second` side by side. As `LocalRegistry.compare`; raises Busy too."""
        from organs.registry.entities.comparison import Comparison

        names = {"first": str(self.resolved(first)), "second": str(self.resolved(second))}
        return self.connection.read(Comparison, f"{API}/compare", **names)

    def report(self, model: str | None = None, *, limit: int | None = None) -> Report:
        """Return the report on the registry, or on the model called `model`. As `LocalRegistry`; raises Busy too."""
        from organs.registry.entities.report import Report

        path = f"{API}/reports" + ("" if model is None else model_path(self.resolved(model)))
        return self.connection.read(Report, path, limit=limit)

    def assemble(self, name: str, path: str | Path, progress: Progress | None = None) -> Digest:
        """Fetch the file of the model called `name` to `path`, replacing what is there; the file's SHA-256.

        It is checked on its way, and gone on with where it was cut. Of a model that came in shards, it is one file of
        all of them: nobody knows its digest beforehand, so its organs are checked by theirs. Raises what `model` does,
        NotAssemblable, BadReply for other bytes than promised, DiskFull; then `path` is as it was.
        """
        return fetch(self.connection, self.whole_file(name), Path(path), progress)

    def compose(self, base: str | Recipe) -> RemoteComposition:
        """Begin a chimera, which is planned and made there: `registry.compose("acme/base").graft("acme/coder")`."""
        from organs.registry.client.composing import RemoteComposition  # with the codecs, which searches never load
        from organs.registry.compose.recipe import Recipe

        recipe = Recipe(base) if isinstance(base, str) else base
        return RemoteComposition(recipe, self.connection)

    def close(self) -> None:
        """Give the connections back."""
        self.connection.close()

    def ranked_models(self, query: str = "", *, limit: int = 50, after: str | None = None) -> ModelPage:
        """A page of models as rankings compare them. As `LocalRegistry.ranked_models`."""
        return self._models(query, limit=limit, after=after, ranked=1)

    def _models(self, query: str, **parameters: Any) -> ModelPage:
        return self.connection.read(ModelPage, f"{API}/models", q=query, **parameters)

    def model_values(self, name: str) -> Values:
        """A model as plain values, as `registry.present.models.model_page` has them, without its organs."""
        values = self.connection.get(API + model_path(self.resolved(name)))
        check(values, answers.MODEL, "model")
        return values

    def resolved(self, name: str) -> ModelName:
        """The name that `name` means, which may be `sha256:` and a digest; raises BadName, NotFound, Ambiguous."""
        if not (name.startswith("sha256:") and looks_like_prefix(name)):
            return parse_model_name(name)
        return told_name(self.connection.read(ModelSummary, f"{API}/models/lookup", digest=parse_prefix(name)).name)

    def whole_file(self, name: str) -> FileToFetch:
        """The model called `name` as one file."""
        asked = {"model": str(self.resolved(name))}
        values = self.connection.send("POST", f"{API}/assemblies", asked)
        check(values, _ASSEMBLY, "assembly")
        path = gguf_path(values["model"])
        if values["sha256"] is not None:
            return FileToFetch(path, values["size_bytes"], Digest(values["sha256"]))
        from organs.registry.client.files import check_organs

        organs = {one.name: one.digest for one in self.organs_of(told_name(values["model"]))}
        return FileToFetch(path, values["size_bytes"], None, check_organs(organs))

    def own_files(self, name: str) -> OwnFiles:
        """The files of the model called `name` as they came in; raises what `model` does, NotAssemblable."""
        values = self.connection.get(API + model_path(self.resolved(name)))
        check(values, answers.MODEL, "model")
        model = told_name(values["name"])
        if values["unassemblable"]:
            raise NotAssemblable(values["name"], values["unassemblable"])
        # One that is whole and alone has an address of its own, whatever its name; one with only some organs has not.
        alone = len(values["files"]) == 1 and values["complete"]
        names = [whole_file_name(one["name"], model) if alone else told_file(one["name"]) for one in values["files"]]
        paths = [gguf_path(values["name"]) if alone else file_path(values["name"], file) for file in names]
        files = [
            FileToFetch(path, one["size_bytes"], Digest(one["sha256"]))
            for path, one in zip(paths, values["files"], strict=True)
        ]
        composed = values["composed"]
        return OwnFiles(
            model,
            tuple(zip(names, files, strict=True)),
            Digest(values["digest"]),
            None if composed is None else Digest(composed["lock_id"]),
            (values["state_reason"] or "") if values["state"] == "yanked" else None,
        )

    def one_file(self, own: OwnFiles) -> FileToFetch:
        """The model of these files as one file, merged if there are several."""
        return own.files[0][1] if len(own.files) == 1 else self.whole_file(str(own.model))

    def with_its_base(self, name: str) -> Recipe | None:
        """The base of a model that has only some organs, with these; None of any other model.

        Raises what `model` does, and NotAssemblable where no base that it names is registered there.
        """
        values = self.connection.get(API + model_path(self.resolved(name)))
        check(values, answers.MODEL, "model")
        return answers.partial_recipe(values)

    def organ_file(self, prefix: str) -> FileToFetch:
        """The plain bytes of the organ whose digest begins with `prefix`; raises BadDigest, NotFound, Ambiguous."""
        organ = self.organ(prefix)
        return FileToFetch(f"/organs/{organ.digest}.raw", organ.size_bytes, organ.digest)

    def organ(self, prefix: str) -> Organ:
        """Return the organ whose digest begins with `prefix`; raises BadDigest, NotFound, Ambiguous."""
        bare = parse_prefix(prefix)
        organ = self.connection.read(Organ, f"{API}/organs/{bare}")
        if not organ.digest.startswith(bare):
            raise BadReply(f"the registry answers with another organ than {prefix}: {organ.digest}")
        return organ

    def organs_of(self, name: ModelName) -> tuple[PlacedOrgan, ...]:
        """Return all organs of a model, in the order of its files."""
        found: list[PlacedOrgan] = []
        after: str | None = None
        while True:
            page = self.connection.read(OrganPage, f"{API}{model_path(name)}/organs", limit=PAGE_MAX, after=after)
            found += page.items
            after = page.next
            if after is None:
                return tuple(found)
            if not page.items or len(found) > ORGANS_MAX:
                raise BadReply(f"the registry does not come to the end of the organs of {name}")
