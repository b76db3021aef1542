"""Tests of registered chimeras in llama.cpp: the control, stored results, and the reported figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from organs.registry.catalog.queries.chimeras import strongest_verdicts, verdicts_of
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.register.chimeras import add_verdict, record_quick_look
from organs.registry.compose.api import Composition
from organs.registry.digest import digest_of
from organs.registry.entities.base import encode
from organs.registry.entities.chimera import Origins
from organs.registry.entities.validation import RunFailure, VerdictReport
from organs.registry.errors import NotComposedHere
from organs.registry.gguf import MemorySource, ValueType, read_header
from organs.registry.local import LocalRegistry
from organs.registry.sandbox.process import ProcessLimits
from organs.registry.validation import quick
from organs.registry.validation.command import CommandRuntime
from organs.registry.validation.comparison import ScoreKey, ValidationBudget, act_between, validate
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.quick import LookBudget
from organs.registry.validation.run import (
    CatalogScores,
    look_at_chimera,
    registered_candidate,
    run_chimera,
)
from organs.registry.validation.runtime import (
    Failure,
    FailureKind,
    NoVerdict,
    Runtime,
    RuntimeReading,
    Say,
    Score,
    ScoringRequest,
    Window,
)
from organs.registry.validation.texts import built_in_texts
from tests.gguf_files import unsigned
from tests.registry_templates import RegistryTemplates, add_zoo_models
from tests.related_models import ingest_bytes
from tests.small_models import block_tensors, small_model
from tests.validation.changed_models import script

A, CODE, B, LORA = (
    f"Zoo-{name}" for name in ("A-2M-v1.0-F16", "A-2M-Code-v1.0-F16", "B-2M-v1.0-Q8_0", "A-2M-Code-LoRA-v1.0-F32")
)


@pytest.fixture(scope="module")
def kin(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with templates.open_copy(add_zoo_models, tmp_path_factory.mktemp("zoo") / "home") as opened:
        yield opened


def made(composition: Composition) -> str:
    return composition.accept("unrelated-lineage").plan().register().model


def tried(kin: LocalRegistry, model: str, runtime: Runtime | None = None, tokens: int = 2048) -> VerdictReport:
    texts = built_in_texts(("python", "documentation"))
    return run_chimera(kin.catalog, kin.blobs, model, texts, runtime or LlamaCpp(), ValidationBudget(tokens=tokens))


def test_a_weaker_verdict_never_replaces_a_stronger_one(kin: LocalRegistry) -> None:
    name = made(kin.compose(A).graft(CODE, type="organ", blocks=2).named("me/measured"))
    with kin.catalog.writing() as session:
        model = model_by_text(session, name)
        verdicts = (("coherent", 4096), ("gains", 8192), ("undecided", 99_999), ("degraded", 2048), ("gains", 8192))
        verdicts += (("writes", 999_999),)
        ids = [add_verdict(session, model.id, "r", kind, "A reason.", "{}", strength) for kind, strength in verdicts]
    with kin.catalog.reading() as session:
        assert [row.id for row in verdicts_of(session, model.id)] == [ids[at] for at in (4, 1, 0, 3, 2, 5)]
        assert strongest_verdicts(session, [model.id])[model.id].id == ids[4]


def test_a_base_that_crashes_the_runtime_is_an_error_and_nothing_is_stored(kin: LocalRegistry, tmp_path: Path) -> None:
    model = made(kin.compose(A).graft(CODE, type="organ", blocks=1).named("me/unlucky"))
    runtime = CommandRuntime(script(tmp_path, "sys.exit(3)"), ProcessLimits(wall_seconds=30.0))
    with pytest.raises(NoVerdict, match="the base does not run, so there is no verdict: the runtime ended with 3"):
        tried(kin, model, runtime)
    with kin.catalog.reading() as session:
        assert verdicts_of(session, model_by_text(session, model).id) == []


def test_a_look_that_is_not_started_is_stored_until_one_is(kin: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    name = made(kin.compose(A).graft(CODE, type="organ", blocks=3).named("me/too-large"))
    lock = kin.model(name).composed
    assert lock is not None
    monkeypatch.setattr(quick, "operations_per_second", lambda: 1.0)
    look_at_chimera(kin.catalog, kin.blobs, name, LlamaCpp())
    stored = kin.chimera(lock.lock_id).quick_look
    assert stored is not None
    assert (stored.is_started, stored.sentence[:12]) == (False, "Not started:")
    with kin.catalog.writing() as session:
        failed = msgspec.structs.replace(stored, failure=RunFailure(kind="crashed", reason="it crashed"))
        record_quick_look(session, model_by_text(session, name).id, encode(failed).decode())
    assert not look_at_chimera(kin.catalog, kin.blobs, name, LlamaCpp()).is_started
    assert kin.chimera(lock.lock_id).quick_look == failed


@dataclass
class FailingRuntime:
    """A runtime that fails, and keeps what the header of each model says about shards."""

    identity: str = "failing, 1"
    has_references: bool = True
    shards: list[int | None] = field(default_factory=list)

    def read(self, request: ScoringRequest, say: Say) -> RuntimeReading:
        header = read_header(MemorySource(request.model.read_bytes()))
        self.shards.append(header.integer("split.count"))
        return RuntimeReading(Failure(FailureKind.REFUSED, "it fails"), ())


def test_a_whole_base_that_says_that_it_is_a_shard_runs_without_these_keys(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    keys = (("split.no", 0), ("split.count", 3), ("split.tensors.count", len(block_tensors())))
    split = [unsigned(key, value, ValueType.UINT16) for key, value in keys]
    for name, data in (("base", small_model(more=split)), ("donor", small_model(seed=1))):
        ingest_bytes(registry, tmp_path, name, data)
    model, runtime = made(registry.compose("base").graft("donor", type="organ").named("me/whole")), FailingRuntime()
    with pytest.raises(NoVerdict, match="the base does not run"):
        tried(registry, model, runtime)
    assert runtime.shards == [None]


@pytest.mark.parametrize("nats", [1348.8284, math.inf])
def test_cached_scores_are_returned_unchanged_and_replaced_by_more(kin: LocalRegistry, nats: float) -> None:
    key = ScoreKey(digest_of(repr(nats).encode()), digest_of(b"text"), 256, "a stand-in, 1")
    cache = CatalogScores(kin.catalog)
    score = Score("python", (Window(nats, 255, "0123"),), 31, 8034)
    cache[key] = score
    assert cache.get(key) == score
    longer = replace(score, windows=(*score.windows, Window(1.5, 255, "4567")))
    cache[key] = longer
    assert cache.get(key) == longer
    assert cache.get(replace(key, window_tokens=128)) is None


QUANT = "Zoo-A-2M-v1.0-Q8_0"


@pytest.mark.long
def test_a_quantisation_is_compared_with_its_source_which_need_not_be_named(kin: LocalRegistry) -> None:
    report = tried(kin, QUANT)
    assert report.base.name == f"local/{A}@1"
    found = report.from_source
    assert found is not None
    assert found.source == f"local/{A}@1"
    assert found.divergence_tokens == sum(text.tokens or 0 for text in report.texts)
    models = registered_candidate(kin.catalog, kin.blobs, QUANT), registered_candidate(kin.catalog, kin.blobs, A)
    texts = built_in_texts(("python", "documentation"))
    act, budget = act_between(*models), ValidationBudget(tokens=2048)
    named = validate(*models, [], (), texts, LlamaCpp(), budget, act=act)
    assert named.from_source == found
    assert named.texts == report.texts
    assert kin.model(QUANT).from_source == found, "it is stored, and shown with the model"
    assert kin.model(A).from_source is None
    with kin.catalog.reading() as session:
        assert [row.verdict for row in verdicts_of(session, model_by_text(session, QUANT).id)] == [report.verdict]


@pytest.mark.long
def test_a_quick_look_at_a_quantisation_finds_its_source(kin: LocalRegistry) -> None:
    look = look_at_chimera(kin.catalog, kin.blobs, QUANT, LlamaCpp(), LookBudget(30.0, 3), built_in_texts(("python",)))
    assert (look.base, look.from_source is None) == (f"local/{A}@1", False)
    assert look.sentence.startswith(f"Divergence from local/{A}@1: 0.00")


def test_a_model_without_a_known_source_names_what_is_missing(kin: LocalRegistry) -> None:
    for name in (A, B):
        with pytest.raises(NotComposedHere, match="no model is known of which it is a quantisation: name its base"):
            tried(kin, name)


def test_only_a_chimera_that_was_quantised_and_nothing_else_is_a_quantisation_of_its_base() -> None:
    quantised = Origins(parents=("a/base@1",), parts={"blk.0.ffn_up.weight": (0, "quantised")})
    assert quantised.is_quantisation
    others = {
        "parts": {**quantised.parts, "blk.1.ffn_up.weight": (1, "grafted")},
        "merged": {"blk.0.ffn_up.weight": (1,)},
        "layers": ((0, 1), (0, 0)),
        "pruned": {"blk.0.ffn_up_exps.weight": (4, 8)},
    }
    for member, value in others.items():
        assert not msgspec.structs.replace(quantised, **{member: value}).is_quantisation
    purified = {"blk.0.ffn_up.weight": (0, "purified", "quantised")}
    assert not msgspec.structs.replace(quantised, parts=purified).is_quantisation
    assert not msgspec.structs.replace(quantised, parts={}).is_quantisation
