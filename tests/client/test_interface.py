"""One scripted session gives the same entities in a local registry and in the same registry over HTTP.

The session has a step for every member of `Registry`; a member without a step fails the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import isfunction, signature
from pathlib import Path

import msgspec
import pytest

from organs.ingest.add import add_model
from organs.ingest.jobs import kinds
from organs.registry import LocalRegistry, Registry, RemoteRegistry, open_registry
from organs.registry.compose.lock import parse_lock
from organs.registry.compose.recipe import recipe_values
from organs.registry.digest import digest_of
from organs.registry.errors import BadSetting, NotAssemblable, OrganError
from organs.registry.output_files import OutputFiles
from organs.registry.validation import llama
from organs.registry.validation.comparison import ValidationBudget
from organs.registry.validation.quick import LookBudget
from organs.registry.validation.runtime import RuntimeReading, Say, Score, ScoringRequest, Window
from organs.registry.validation.texts import built_in_texts
from tests.client.served_registry import ServedRegistry
from tests.gains import add_gains
from tests.related_models import model_file, parent_entries, related_tensors
from tests.small_models import block_metadata, file_bytes, ingest_file

MEMBERS = {
    name
    for name, member in vars(Registry).items()
    if not name.startswith("_") and (isfunction(member) or isinstance(member, property))
} | {"__enter__", "__exit__"}
Answers = dict[str, object]
Session = Callable[[Registry, Path], object]


class EvenRuntime:
    """A runtime in which every model has the same perplexity."""

    identity = "even 1"

    def __init__(self, *_: object, **__: object) -> None:
        pass

    @staticmethod
    def is_installed() -> bool:
        return True

    def read(self, request: ScoringRequest, _say: Say) -> RuntimeReading:
        """Score every text with the same perplexity."""
        window = Window(255 * 3.0, 255, "")
        scores, reference = (
            tuple(
                Score(text.name, (window,) * len(of_text), 16, 4080)
                for text, of_text in zip(request.texts, ranks, strict=False)
            )
            for ranks in (request.ranks, request.reference_ranks)
        )
        return RuntimeReading(None, scores, reference=reference)


class RefusingRuntime(EvenRuntime):
    """A runtime that refuses every model."""

    def read(self, request: ScoringRequest, _say: Say) -> RuntimeReading:
        """Raise an error with data."""
        raise NotAssemblable("local/first@1", [f"{request.window_tokens} tokens are too many"])


def base_name(registry: Registry) -> str:
    return registry.models("base kind:model", limit=1).items[0].name


def lock_id(registry: Registry) -> str:
    found = registry.model("first").lock_id
    assert found is not None
    return found


def written(files: OutputFiles, folder: Path) -> object:
    """The names, the digests and the bytes of files that are written to `folder`."""
    targets = [folder / file.name for file in files.files]
    digests = files.place(targets)
    return files.files, files.model, digests, [digest_of(path.read_bytes()) for path in targets]


def all_files(registry: Registry, folder: Path) -> object:
    return [
        written(registry.files("tuned"), folder),
        written(registry.files(f"sha256:{lock_id(registry)}"), folder),
        written(registry.files("in-shards"), folder),
        written(registry.files("tuned", shard_bytes=40_000, stem="cut"), folder),
    ]


def merged(registry: Registry, folder: Path) -> object:
    """One file of two shards; its digest is known in advance to neither."""
    return written(registry.files("in-shards", merge=True), folder)


def composed(registry: Registry, folder: Path) -> object:
    plan = registry.compose("base").graft("tuned", type="organ", blocks=1).named("local/session").plan()
    made = plan.assemble(folder / "made.gguf")
    again = plan.register()
    assert (again.lock_id, again.created) == (made.lock_id, False)
    return plan.planned, plan.file_name, plan.lock(), msgspec.structs.replace(made, created=True)


def partial(registry: Registry, folder: Path) -> object:
    recipe = registry.partial_recipe("some-organs")
    assert recipe is not None
    plan = registry.compose(recipe).plan().accepting_all()
    return registry.partial_recipe("base"), recipe_values(recipe), written(plan.files(), folder)[2:]  # type: ignore[index]


def jobs(registry: Registry, _folder: Path) -> object:
    page = registry.jobs(limit=1000)
    return page, registry.jobs(limit=2, after=registry.jobs(limit=1).next)


def validated(registry: Registry, _folder: Path) -> object:
    steps: list[str] = []
    report = registry.validate("local/first", budget=ValidationBudget(60.0, 2048), progress=steps.append)
    return msgspec.structs.replace(report, seconds=None), bool(steps)


def looked_at(registry: Registry, _folder: Path) -> object:
    look = registry.quick_look("local/first", budget=LookBudget(10.0), progress=lambda _: None)
    return msgspec.structs.replace(look, seconds=0.0)


STEPS: dict[str, Session] = {
    "search": lambda registry, _: (registry.search("type:organ sort:-theta", limit=3), registry.search("block:1")),
    "count": lambda registry, _: registry.count("type:organ"),
    "models": lambda registry, _: registry.models("kind:model sort:-theta"),
    "ranked_models": lambda registry, _: registry.ranked_models(limit=2),
    "model": lambda registry, _: [registry.model(name) for name in ("base", "tuned", "first", base_name(registry))],
    "organs_of": lambda registry, _: registry.organs_of("tuned"),
    "versions": lambda registry, _: [registry.versions("base"), registry.versions("base@1", limit=1)],
    "organ": lambda registry, _: registry.organ(registry.organs_of("base")[1].digest[:12]),
    "compare": lambda registry, _: registry.compare("base", "tuned"),
    "report": lambda registry, _: [registry.report("tuned"), registry.report("base", limit=3)],
    "leaderboard": lambda registry, _: [registry.leaderboard(), registry.leaderboard("base", on="code", limit=1)],
    "figures": lambda registry, _: registry.figures(),
    "storage": lambda registry, _: [registry.storage(), registry.storage(limit=1)],
    "fitting": lambda registry, _: registry.fitting("base"),
    "compatibility": lambda registry, _: registry.compatibility("base", "stranger"),
    "compose": composed,
    "chimera": lambda registry, _: registry.chimera(lock_id(registry)[:16]),
    "lock_text": lambda registry, _: [
        registry.lock_text(lock_id(registry)[:12]),
        registry.lock_text(lock_id(registry)),
    ],
    "partial_recipe": partial,
    "assemble": lambda registry, folder: registry.assemble("tuned", folder / "tuned.gguf", lambda _: None),
    "files": all_files,
    "lock_files": lambda registry, folder: written(
        registry.lock_files(parse_lock(registry.lock_text(lock_id(registry)))), folder
    )[2:],  # type: ignore[index]
    "card": lambda registry, _: registry.card("base"),
    "organ_files": lambda registry, folder: written(registry.organ_files(registry.organs_of("base")[1].digest), folder),
    "validate": validated,
    "quick_look": looked_at,
    "jobs": jobs,
    "job": lambda registry, _: [registry.job(job.id) for job in registry.jobs(limit=3)],
    "cancel_job": lambda registry, _: [registry.cancel_job(job.id).state for job in registry.jobs(limit=3)],
}
BY_OTHER_STEPS = {"location", "close", "__enter__", "__exit__"}
"""Members that every step uses, and those that differ by their nature; `test_registries_are_context_managers`."""


@pytest.fixture(scope="module")
def prepared(served: ServedRegistry, tmp_path_factory: pytest.TempPathFactory) -> ServedRegistry:
    """The served registry with a model in shards, one with only some organs, and a finished job."""
    folder = tmp_path_factory.mktemp("prepared")
    registry = served.registry
    shards = registry.files("stranger", shard_bytes=40_000, stem="in-shards")
    targets = [folder / file.name for file in shards.files]
    shards.place(targets)
    ingest_file(registry, targets[0], "local/in-shards")
    trained = [tensor for tensor in related_tensors(correlation=0.99) if "blk.1.ffn" in tensor[0].name]
    data = file_bytes([*block_metadata("Some organs"), *parent_entries("Base")], trained)
    (folder / "some-organs.gguf").write_bytes(data)
    ingest_file(registry, folder / "some-organs.gguf", "local/some-organs")
    add_gains(registry, "local/first", {"python": 5.0, "narrative": -3.0})
    with RemoteRegistry(served.url) as remote:
        remote.compose(registry.model("first").recipe or "").plan().register()  # as a job, which stays in the list
    return served


@pytest.fixture
def remote(prepared: ServedRegistry) -> Iterator[Registry]:
    with open_registry(prepared.url) as registry:
        yield registry


def test_the_session_has_a_step_for_every_member_of_the_interface() -> None:
    assert STEPS.keys() | BY_OTHER_STEPS == MEMBERS
    assert STEPS.keys() & BY_OTHER_STEPS == set()


@pytest.mark.long
@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_the_session_gives_the_same_in_a_local_and_in_a_remote_registry(
    prepared: ServedRegistry, remote: Registry, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "LlamaCpp", EvenRuntime)
    monkeypatch.setattr(kinds, "LlamaCpp", EvenRuntime)
    answers = []
    for place, registry in (("local", prepared.registry), ("remote", remote)):
        folder = tmp_path / place
        folder.mkdir()
        answers.append(STEPS[name](registry, folder))
    assert answers[0] == answers[1]
    assert answers[0] not in (None, (), [])


def test_a_merged_file_is_the_same_in_a_local_and_in_a_remote_registry(
    prepared: ServedRegistry, remote: Registry, tmp_path: Path
) -> None:
    assert merged(prepared.registry, tmp_path) == merged(remote, tmp_path)


@pytest.mark.long
def test_a_model_is_added_to_either_registry_by_one_function(
    prepared: ServedRegistry, remote: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    added = []
    for number, registry in enumerate((prepared.registry, remote)):
        path = tmp_path / f"added-{number}.gguf"
        path.write_bytes(model_file(f"Added {number}", related_tensors(seed=20 + number)))
        first, again = add_model(registry, path), add_model(registry, path)
        assert (first.model, first.created, again.created) == (f"local/added-{number}@1", True, False)
        assert first.model == again.model
        added.append(registry.model(str(first.model)).size_bytes)
    assert added[0] == added[1]


@pytest.mark.parametrize("kind", [LocalRegistry, RemoteRegistry])
def test_both_registries_have_the_methods_of_the_interface_with_its_parameters(kind: type) -> None:
    for name in MEMBERS - {"location", "__enter__", "__exit__"}:
        required = list(signature(getattr(Registry, name)).parameters.values())
        assert [str(one).partition(":")[0] for one in required] == [
            str(one).partition(":")[0] for one in signature(getattr(kind, name)).parameters.values()
        ], name
        defaults = [one.default for one in required]
        assert [one.default for one in signature(getattr(kind, name)).parameters.values()] == defaults, name


def test_registries_are_context_managers_and_have_a_location(prepared: ServedRegistry) -> None:
    for location in (str(prepared.registry.settings.home), prepared.url):
        with open_registry(location) as registry:
            assert registry.location == location
            assert registry.models(limit=1).items


def test_a_remote_registry_takes_no_texts_and_no_runtime(remote: Registry) -> None:
    for options in ({"texts": built_in_texts()}, {"runtime": EvenRuntime()}):
        with pytest.raises(BadSetting, match="its own texts and runtime"):
            remote.validate("local/first", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "question",
    [
        lambda registry: registry.files("nobody"),
        lambda registry: registry.files("sha256:0123456789"),
        lambda registry: registry.organ_files("0123456789"),
        lambda registry: registry.organs_of("nobody"),
        lambda registry: registry.versions("nobody"),
        lambda registry: registry.versions("base", limit=101),
        lambda registry: registry.partial_recipe("nobody"),
        lambda registry: registry.chimera("0123456789"),
        lambda registry: registry.lock_text("0123456789"),
        lambda registry: registry.job(999_999),
        lambda registry: registry.cancel_job(999_999),
        lambda registry: registry.compose("base").purify("fractal", blocks=1).plan().accepting_all().lock(),
    ],
)
def test_errors_have_the_same_class_and_text(
    prepared: ServedRegistry, remote: Registry, question: Callable[[Registry], object]
) -> None:
    caught = []
    for registry in (prepared.registry, remote):
        with pytest.raises(OrganError) as error:
            question(registry)
        caught.append((type(error.value), str(error.value)))
    assert caught[0] == caught[1]


def test_an_error_of_a_job_has_the_same_class_text_and_data(
    prepared: ServedRegistry, remote: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "LlamaCpp", RefusingRuntime)
    monkeypatch.setattr(kinds, "LlamaCpp", RefusingRuntime)
    caught = []
    for registry in (prepared.registry, remote):
        with pytest.raises(NotAssemblable) as error:
            registry.validate("local/first")
        caught.append((str(error.value), error.value.code, error.value.errors))
    assert caught[0] == caught[1]
    assert [fault.detail for fault in caught[0][2]] == ["256 tokens are too many"]
    failed = next(job for job in remote.jobs(limit=5) if job.state == "failed")
    assert (remote.job(failed.id).problem or {})["code"] == "not-assemblable"
