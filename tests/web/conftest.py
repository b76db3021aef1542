"""Catalogs that the tests of the pages browse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from types import CodeType
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from jinja2.bccache import Bucket, BytecodeCache

from organs.ingest.jobs.runner import Runner, add_job
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.chimeras import add_verdict
from organs.registry.catalog.register.jobs import claim_job, enqueue_job, job_json
from organs.registry.catalog.work import fail, finish
from organs.registry.gguf import ValueType
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.card_images import CARD, put_card
from tests.gains import add_gains
from tests.gguf_files import array, file_bytes, text
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_bytes, model_file, parent_entries, related_tensors
from tests.small_models import block_tensors, ingest_file, weight_tensor


class TemplateCache(BytecodeCache):
    """Templates that were compiled for one application, for all others of the run."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._kept.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._kept[bucket.key, bucket.checksum] = bucket.code


Flask.jinja_options = {"bytecode_cache": TemplateCache()}

HOSTILE = '"><script>alert(1)</script>{{ 7*7 }}'
HOSTILE_LINK = "javascript:alert(document.domain)"
FORMULA = '=HYPERLINK("http://elsewhere.example","x")'
LOOP_BOMB = "{% for _ in range(10**9) %}{% endfor %}"


def add_family(registry: LocalRegistry, folder: Path) -> None:
    """A base, a fine-tune of it and a stranger."""
    ingest_bytes(registry, folder, "base", model_file("Base", related_tensors()))
    tuned = model_file("Tuned", related_tensors(correlation=0.995), parent_entries("Base"))
    ingest_bytes(registry, folder, "tuned", tuned)
    ingest_bytes(registry, folder, "stranger", model_file("Stranger", block_tensors(3, seed=9)))


@pytest.fixture
def family_client(registry: LocalRegistry, templates: RegistryTemplates) -> Iterator[FlaskClient]:
    """A client of a catalog with a base, a fine-tune of it and a stranger."""
    templates.fill(registry, add_family)
    with create_app(registry).test_client() as client:
        yield client


def put_hostile_chimera(registry: LocalRegistry) -> str:
    """A chimera of the hostile models that says and is said as bad things as it can; the digest of its lock.

    Its extraction is the third job.
    """
    recipe = registry.compose("local/hostile").graft("local/plain", type="organ")
    recipe = recipe.purify("fractal", slot="ffn_up", blocks=1)
    for key, said in (("general.name", HOSTILE), ("general.description", HOSTILE_LINK), (f"acme.{HOSTILE}", HOSTILE)):
        recipe = recipe.metadata(key, said)
    made = recipe.plan().register()
    with registry.catalog.writing() as session:
        model = model_by_name(session, parse_model_name(made.model))
        add_verdict(session, model.id, HOSTILE, "broken", HOSTILE, json.dumps(hostile_report()))
    add_gains(registry, made.model, {HOSTILE: 5.0, f"{HOSTILE} again": -1000.0})
    add_job(registry, "extract", {"model": made.model})
    Runner(registry, Event()).run(once=True)
    return made.lock_id


def hostile_report() -> dict[str, Any]:
    """A verdict's report in which everything that a runtime may say is an attack."""
    failure = {"kind": "crashed", "reason": HOSTILE}
    score = {"text": "code", "perplexity": 1e300, "standard_error": None, "tokens": 3}
    broken = {"name": "local/hostile@1", "failure": failure, "scores": [], "written": None, "log": HOSTILE}
    ran = {**broken, "failure": None, "scores": [score], "written": LOOP_BOMB + HOSTILE}
    return {
        "model": HOSTILE,
        "verdict": "broken",
        "reason": HOSTILE,
        "runtime": HOSTILE,
        "tokens": 3,
        "base": ran,
        "chimera": broken | {"written": HOSTILE},
        "control": None,
        "control_remark": HOSTILE_LINK,
        "donors": [ran | {"name": "local/plain@1"}],
        "zeroed": [HOSTILE],
        "texts": [{"name": "code", "digest": "0" * 64, "ratio": None, "recovered": None}],
    }


def hostile_models(registry: LocalRegistry, folder: Path) -> None:
    """Models, jobs and a chimera in which whatever a contributor may write is an attack."""
    odd_names = ('"><script>alert(1)</script>', f"blk.0.{FORMULA}"[:60], "blk.1.'onmouseover='alert(1)")
    tensors = [*block_tensors(2), *(weight_tensor(name, (64, 64)) for name in odd_names)]
    entries = {
        "general.architecture": HOSTILE,
        "general.name": HOSTILE,
        "general.description": HOSTILE + HOSTILE_LINK,
        "general.license": f"{FORMULA}<img src=x onerror=alert(1)>",
        "general.url": HOSTILE_LINK,
        "general.repo_url": 'http://elsewhere.example/"onmouseover="alert(1)',
        "general.size_label": "' onfocus=alert(1) autofocus x='",
        "tokenizer.chat_template": LOOP_BOMB + HOSTILE,
        f"acme.{HOSTILE}": HOSTILE,
    }
    own = [text(key, value) for key, value in entries.items()]
    tags = array("general.tags", ValueType.STRING, [HOSTILE.encode(), FORMULA.encode()])
    metadata = [*own, tags, *parent_entries(HOSTILE, FORMULA, repo_url=HOSTILE_LINK)]
    first = folder / '"><img src=x onerror=alert(1)>.gguf'
    first.write_bytes(file_bytes(metadata, tensors))
    second = folder / "plain.gguf"
    second.write_bytes(file_bytes(metadata, related_tensors(correlation=0.99)))
    for path in (first, second):
        ingest_file(registry, path, "local/hostile" if path is first else None)
    put_card(registry, "local/hostile", text=f"{HOSTILE}{HOSTILE_LINK}\n\n{CARD}")
    with registry.catalog.writing() as session:
        enqueue_job(session, HOSTILE[:32], {HOSTILE: [HOSTILE_LINK]}, HOSTILE)
        claim = claim_job(session, [HOSTILE[:32]])
        assert claim is not None
        finish(session, claim, job_json({"model": HOSTILE_LINK + "/" + HOSTILE, "organ": HOSTILE_LINK}, "result"))
        enqueue_job(session, "hostile", {})
        claim = claim_job(session, ["hostile"])
        assert claim is not None
        fail(session, claim, HOSTILE)
    put_hostile_chimera(registry)


@pytest.fixture
def hostile_client(registry: LocalRegistry, templates: RegistryTemplates) -> Iterator[FlaskClient]:
    """A client of a catalog in which whatever a contributor may write is an attack; it writes, so jobs are shown."""
    templates.fill(registry, hostile_models)
    with create_app(registry, WebSettings(personal=True)).test_client() as client:
        yield client
