"""A registry answers the same as a folder, over HTTP, to a program that uses its API, and on the command line.

`tests/client/questions.py` has a question for every method of `Registry` that returns an entity; here is a step for
every other member. A member without either fails the test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from inspect import isfunction
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import msgspec
import pytest

from organs.ingest.jobs import kinds
from organs.registry import LocalRegistry, Registry, RemoteRegistry, open_registry
from organs.registry.compose.lock import parse_lock
from organs.registry.compose.recipe import recipe_values
from organs.registry.digest import digest_of
from organs.registry.entities.base import Entity, encode
from organs.registry.entities.sizes import QuantizationRequest
from organs.registry.errors import BadSetting, NotAssemblable, OrganError
from organs.registry.evolving import search as evolving
from organs.registry.output_files import OutputFiles
from organs.registry.quantizing import search
from organs.registry.validation import llama
from organs.registry.validation.comparison import ValidationBudget
from organs.registry.validation.quick import LookBudget
from organs.registry.validation.runtime import RuntimeReading, Say, Score, ScoringRequest, Window
from organs.registry.validation.texts import built_in_texts
from tests.cli.in_process import CommandResult
from tests.client.questions import ANSWERED, REFUSED, Question
from tests.client.served_registry import ServedRegistry, working
from tests.evolutions import LINES, evolve_without_runtime, text_of
from tests.sizes import search_without_runtime

MEMBERS = {
    name
    for name, member in vars(Registry).items()
    if not name.startswith("_") and (isfunction(member) or isinstance(member, property))
} | {"__enter__", "__exit__"}
Known = dict[str, str]
Step = Callable[[Registry, Known, Path], object]
Command = Callable[..., CommandResult]
Commands = tuple[Command, Command]
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


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


@pytest.fixture
def commands(prepared: ServedRegistry, local_organ: Command, remote_organ: Command) -> Commands:
    """The command on the folder, and on the address."""
    return local_organ, remote_organ


def without_address(text: str) -> str:
    """The text without the option that selects the remote registry, in commands to copy."""
    return re.sub(r" --registry \S+", "", text)


def over_http(url: str, path: str) -> tuple[int, Any]:
    """Return the status and the JSON at a path of the API, as any program gets them."""
    try:
        with urlopen(f"{url}/api/v1{quote(path, safe='/?=&:+')}") as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def as_json(entity: Any) -> Any:
    assert isinstance(entity, Entity)
    return json.loads(encode(entity))


@pytest.mark.parametrize("question", ANSWERED, ids=str)
def test_a_question_has_one_answer_in_a_folder_remotely_in_the_api_and_on_the_command_line(
    question: Question,
    prepared: ServedRegistry,
    remote_registry: RemoteRegistry,
    known: Known,
    commands: tuple[Command, Command],
) -> None:
    entity = question.ask(prepared.registry, known)
    assert entity not in (None, (), [])
    assert question.ask(remote_registry, known) == entity
    if question.path is not None:
        assert over_http(prepared.url, question.path.format(**known)) == (200, as_json(entity))
    if question.command is not None:
        words = question.command.format(**known).split()
        printed, remotely = (run(*words, "--json") for run in commands)
        assert (printed.status, printed.values) == (0, as_json(entity))
        assert remotely.values == printed.values
        shown, shown_remotely = (run(*words) for run in commands)
        assert (without_address(shown_remotely.out), shown_remotely.status) == (shown.out, 0)


def test_models_and_organs_are_shown_the_same_in_a_folder_and_remotely(
    prepared: ServedRegistry, known: Known, commands: Commands
) -> None:
    shared = prepared.registry.organs_of("base")[0].digest
    for name in ("base", "first", f"sha256:{known['lock']}", shared):
        here, remotely = (run("show", name, "--all") for run in commands)
        assert (without_address(remotely.out), remotely.status) == (here.out, 0)


@pytest.mark.parametrize("question", REFUSED, ids=str)
def test_a_refusal_is_one_error_in_a_folder_remotely_in_the_api_and_on_the_command_line(
    question: Question,
    prepared: ServedRegistry,
    remote_registry: RemoteRegistry,
    known: Known,
    commands: tuple[Command, Command],
) -> None:
    assert question.error is not None
    here, remotely = (
        refusal_of(one, lambda one: question.ask(one, known)) for one in (prepared.registry, remote_registry)
    )
    assert (type(here), str(here)) == (type(remotely), str(remotely))
    assert type(here) is question.error
    if question.path is not None:
        status, problem = over_http(prepared.url, question.path)
        assert (status, problem["code"]) == (question.error.status, question.error.code)
    if question.command is not None:
        for run in commands:
            ended = run(*question.command.split())
            assert (ended.status, ended.out) == (question.error.exit_code, "")
            first, *hints = ended.err.splitlines()
            assert first == f"organ: {here}"
            assert len(hints) <= 1


def refusal_of(registry: Registry, ask: Callable[[Registry], object]) -> OrganError:
    with pytest.raises(OrganError) as caught:
        ask(registry)
    return caught.value


def written(files: OutputFiles, folder: Path) -> object:
    """The names, the digests and the bytes of files that are written to `folder`."""
    targets = [folder / file.name for file in files.files]
    digests = files.place(targets)
    return files.files, files.model, digests, [digest_of(path.read_bytes()) for path in targets]


def models(registry: Registry, known: Known, _folder: Path) -> object:
    names = ("base", "local/tuned", "local/stranger@1", "first", "second", f"sha256:{known['lock']}")
    found = [registry.model(name) for name in (*names, f"sha256:{known['file'][:12]}")]
    return found, [model.recipe_yaml for model in found]


def all_files(registry: Registry, known: Known, folder: Path) -> object:
    return [
        written(registry.files("tuned"), folder),
        written(registry.files(f"sha256:{known['lock']}"), folder),
        written(registry.files("in-shards"), folder),
        written(registry.files("in-shards", merge=True), folder),  # its digest is known in advance to neither
        written(registry.files("tuned", shard_bytes=40_000, stem="cut"), folder),
    ]


def assembled(registry: Registry, _known: Known, folder: Path) -> object:
    found = []
    for name in ("base", "first", "in-shards"):
        come: list[int] = []
        digest = registry.assemble(name, folder / f"{name}.gguf", come.append)
        data = (folder / f"{name}.gguf").read_bytes()
        assert (digest_of(data), sum(come)) == (digest, len(data))
        found.append(digest)
    assert len(list(folder.iterdir())) == len(found), "nothing else is left"
    return found


def composed(registry: Registry, _known: Known, folder: Path) -> object:
    graft = registry.compose("base").graft("tuned", type="organ", blocks=1)
    strange = registry.compose("base").graft("stranger", type="organ").accept("unrelated-lineage")
    told: list[int] = []
    plan = graft.named("local/session").plan()
    made = plan.assemble(folder / "made.gguf", lambda _what, size: told.append(size))
    again = plan.register()
    assert (again.lock_id, again.created, told != []) == (made.lock_id, False, True)
    assert digest_of((folder / "made.gguf").read_bytes()) == made.sha256
    members = [
        (set(plan.findings), plan.screen, plan.recipe, plan.size_bytes, plan.can_be_made, plan.parts, plan.planned)
        for plan in (plan, graft.purify("fractal", slot="attn_q").plan(), strange.plan())
    ]
    texts = [*map(repr, plan.parts), repr(plan).replace("ChimeraPlan", "RemotePlan"), plan.file_name]
    return members, texts, plan.lock(), msgspec.structs.replace(made, created=True), registry.model(made.model).recipe


def partial(registry: Registry, _known: Known, folder: Path) -> object:
    recipe = registry.partial_recipe("some-organs")
    assert recipe is not None
    plan = registry.compose(recipe).plan().accepting_all()
    return registry.partial_recipe("base"), recipe_values(recipe), written(plan.files(), folder)[2:]  # type: ignore[index]


def validated(registry: Registry, _known: Known, _folder: Path) -> object:
    steps: list[str] = []
    report = registry.validate("local/first", budget=ValidationBudget(60.0, 2048), progress=steps.append)
    return msgspec.structs.replace(report, seconds=None), bool(steps)


def looked_at(registry: Registry, _known: Known, _folder: Path) -> object:
    look = registry.quick_look("local/first", budget=LookBudget(10.0), progress=lambda _: None)
    return msgspec.structs.replace(look, seconds=0.0)


def quantised(registry: Registry, _known: Known, _folder: Path) -> object:
    steps: list[str] = []
    request = QuantizationRequest(model="base", bits=6.5, minutes=1.0)
    sized = registry.quantize(request, steps.append)
    return sized, sized.point.bits == 6.5, bool(steps)


def saved(registry: Registry, _known: Known, _folder: Path) -> object:
    first = registry.save_query("models", "small", "params<1G")
    again = registry.save_query("models", "small", "params<2G")
    listed = registry.saved_queries().items
    gone = registry.delete_query("models", "small")
    assert listed == (again,) == (gone,)
    assert registry.saved_queries().items == ()
    return first.query, again.query


def evolved(registry: Registry, known: Known, folder: Path) -> object:
    """Begin with an own text, which is read here, and continue; what each registry numbers and dates is left out."""
    (folder / "mine.txt").write_text(LINES)
    steps: list[str] = []
    space = {"base": "base", "donors": ["tuned"], "texts": [str(folder / "mine.txt"), "python"], "trials": 3}
    number = registry.begin_evolution(space | {"minutes": 2})
    found = [
        registry.continue_evolution(number, progress=steps.append),
        registry.evolve(space | {"minutes": 2, "seed": 1}, progress=steps.append),
        registry.evolve({"base": "base", "donors": ["tuned"], "minutes": 2}, texts=[text_of("harbour")]),
    ]
    same = [msgspec.structs.replace(one, id=0, created_at=FIRST, finished_at=None) for one in found]
    recipes = [registry.trial_recipe(int(known["evolution"]), trial) for trial in (None, 1)]
    assert [one.texts for one in found] == [("mine", "python"), ("mine", "python"), ("harbour",)]
    again = registry.trial_recipe(number, 1), registry.continue_evolution(number).note
    gone = msgspec.structs.replace(registry.remove_evolution(number), id=0, created_at=FIRST, finished_at=None)
    assert number not in [one.id for one in registry.evolutions().items]
    return same, bool(steps), recipes, again, gone


STEPS: dict[str, Step] = {
    **dict.fromkeys(("saved_queries", "save_query", "delete_query"), saved),
    "model": models,
    "compose": composed,
    "lock_text": lambda registry, known, _: [registry.lock_text(known["lock"][:length]) for length in (12, 64)],
    "partial_recipe": partial,
    "assemble": assembled,
    "files": all_files,
    "lock_files": lambda registry, known, folder: written(
        registry.lock_files(parse_lock(registry.lock_text(known["lock"]))), folder
    )[2:],  # type: ignore[index]
    "card": lambda registry, _known, _folder: registry.card("base"),
    "organ_files": lambda registry, known, folder: [
        written(registry.organ_files(known["organ"][:length]), folder) for length in (10, 64)
    ],
    "validate": validated,
    "quick_look": looked_at,
    "quantize": quantised,
    **dict.fromkeys(("begin_evolution", "evolve", "continue_evolution", "trial_recipe", "remove_evolution"), evolved),
    "cancel_job": lambda registry, known, _: registry.cancel_job(int(known["job"])),
}
BY_OTHER_STEPS = {"location", "close", "__enter__", "__exit__"}
"""Members that every step uses, and those that differ by their nature; `test_registries_are_context_managers`."""


def test_there_is_a_question_or_a_step_for_every_member_of_the_interface() -> None:
    questions = {question.method for question in ANSWERED}
    assert STEPS.keys() | questions | BY_OTHER_STEPS == MEMBERS
    assert len(STEPS) + len(questions) + len(BY_OTHER_STEPS) == len(MEMBERS)


@pytest.mark.long
@pytest.mark.parametrize("name", STEPS)
def test_a_step_gives_the_same_in_a_local_and_in_a_remote_registry(
    prepared: ServedRegistry,
    remote_registry: RemoteRegistry,
    known: Known,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llama, "LlamaCpp", EvenRuntime)
    monkeypatch.setattr(kinds, "LlamaCpp", EvenRuntime)
    for module in (search, kinds):
        monkeypatch.setattr(module, "quantize", search_without_runtime)
    for module in (evolving, kinds):
        monkeypatch.setattr(module, "evolve", evolve_without_runtime)
    answers = []
    with working(prepared.registry, kinds.VALIDATION, kinds.EVOLUTION):
        for place, registry in (("local", prepared.registry), ("remote", remote_registry)):
            (tmp_path / place).mkdir()
            answers.append(STEPS[name](registry, known, tmp_path / place))
    assert answers[0] == answers[1]
    assert answers[0] not in (None, (), [])


@pytest.mark.parametrize(
    "question",
    [
        lambda registry: registry.compose("nobody").plan(),
        lambda registry: registry.compose("base").graft("stranger", type="organ").plan().assemble("x.gguf"),
        lambda registry: registry.compose("base").purify("fractal", blocks=1).plan().accepting_all().lock(),
    ],
    ids=["an unknown base", "a warning that is not accepted", "a lock before its tensors are computed"],
)
def test_a_plan_is_refused_with_the_same_class_and_text(
    prepared: ServedRegistry,
    remote_registry: RemoteRegistry,
    question: Callable[[Registry], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    here, remotely = (refusal_of(registry, question) for registry in (prepared.registry, remote_registry))
    assert (type(here), str(here)) == (type(remotely), str(remotely))
    assert not (tmp_path / "x.gguf").exists()


def test_an_error_of_a_job_has_the_same_class_text_and_data(
    prepared: ServedRegistry, remote_registry: RemoteRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "LlamaCpp", RefusingRuntime)
    monkeypatch.setattr(kinds, "LlamaCpp", RefusingRuntime)
    with working(prepared.registry, kinds.VALIDATION):
        here, remotely = (
            refusal_of(registry, lambda one: one.validate("local/first"))
            for registry in (prepared.registry, remote_registry)
        )
    assert (type(here), str(here), here.errors) == (NotAssemblable, str(remotely), remotely.errors)
    assert type(remotely) is NotAssemblable
    assert [fault.detail for fault in here.errors] == ["256 tokens are too many"]
    failed = next(job for job in remote_registry.jobs(limit=5) if job.state == "failed")
    assert (remote_registry.job(failed.id).problem or {})["code"] == "not-assemblable"


def test_registries_are_context_managers_and_have_a_location(prepared: ServedRegistry) -> None:
    for location, kind in ((str(prepared.registry.settings.home), LocalRegistry), (prepared.url, RemoteRegistry)):
        with open_registry(location) as registry:
            assert isinstance(registry, kind)
            assert registry.location == location
            assert registry.models(limit=1).items


def test_a_remote_registry_takes_no_texts_and_no_runtime(remote_registry: RemoteRegistry) -> None:
    for options in ({"texts": built_in_texts()}, {"runtime": EvenRuntime()}):
        with pytest.raises(BadSetting, match="its own texts and runtime"):
            remote_registry.validate("local/first", **options)  # type: ignore[arg-type]
