"""Clients of npm against our routes and our OpenAPI document: `make clients` installs them and runs this module."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from organs.registry.local import LocalRegistry
from organs.web.api.document import document as make_document
from tests.small_models import ingest_file, small_model
from tests.web.live_server import LiveServer, running_server

pytestmark = pytest.mark.npm

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / ".clients" / "node_modules"
SECONDS = 120
TYPES_USED = """
import type { components, paths } from "./api";
const page: paths["/api/v1/models"]["get"]["responses"]["200"]["content"]["application/json"] = {
  items: [], next: null, notes: [],
};
const piece: NonNullable<components["schemas"]["UploadRequest"]["pieces"]>[number] = [1, "0".repeat(64)];
console.log(page, piece);
"""
QUESTIONS = """
import * as hub from "@huggingface/hub";
const [hubUrl, cacheDir] = process.argv.slice(2);
const repo = "local/a", path = "a.gguf";
const all = async (found) => { const list = []; for await (const one of found) list.push(one); return list; };
const bytes = async (blob) => Buffer.from(await blob.arrayBuffer());
console.log(JSON.stringify({
  exists: await hub.fileExists({ repo, path, hubUrl }),
  missing: await hub.fileExists({ repo, path: "b.gguf", hubUrl }),
  files: (await all(hub.listFiles({ repo, hubUrl, revision: "HEAD" }))).map((one) => one.path),
  file: (await bytes(await hub.downloadFile({ repo, path, hubUrl }))).toString("base64"),
  pointer: await (await hub.downloadFile({ repo, path, hubUrl, raw: true })).text(),
  models: (await all(hub.listModels({ hubUrl, additionalFields: ["filePaths"] }))).map((m) => [m.name, m.filePaths]),
  found: (await all(hub.listModels({ hubUrl, search: { query: "B", owner: "local" } }))).map((one) => one.name),
  commits: (await all(hub.listCommits({ repo, hubUrl, batchSize: 1 }))).map((one) => one.title),
  info: (await hub.modelInfo({ name: repo, hubUrl, revision: "HEAD" })).name,
  snapshot: await hub.snapshotDownload({ repo, hubUrl, cacheDir }),
}));
"""


def run(command: list[str], folder: Path) -> str:
    """The output of a command that went well."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def node(tmp_path: Path) -> str:
    """The program `node`; the packages are found from the test's folder."""
    found = shutil.which("node")
    assert found is not None, "node is not installed here; these tests run clients of npm"
    assert PACKAGES.is_dir(), "the clients of npm are not installed here: make clients"
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    return found


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveServer]:
    """A server of two models, one of them with two versions."""
    with LocalRegistry.open(tmp_path / "home") as registry:
        for name, seed in (("a", 0), ("a", 1), ("b", 2)):
            (tmp_path / f"{name}.gguf").write_bytes(small_model(seed=seed))
            ingest_file(registry, tmp_path / f"{name}.gguf", name)
    with running_server(tmp_path / "home", tmp_path / "log") as server:
        yield server


def test_the_npm_client_of_the_hub_finds_and_downloads_models(node: str, live: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "questions.mjs").write_text(QUESTIONS)
    said = run([node, "questions.mjs", live.address, str(tmp_path / "cache")], tmp_path)
    answers: dict[str, Any] = json.loads(said.splitlines()[-1])
    data = (tmp_path / "a.gguf").read_bytes()
    assert (answers["exists"], answers["missing"]) == (True, False)
    assert answers["files"] == ["a.gguf", "README.md"]
    assert answers["file"] == base64.b64encode(data).decode()
    assert hashlib.sha256(data).hexdigest() in answers["pointer"]
    assert answers["models"] == [["local/b", ["b.gguf", "README.md"]], ["local/a", ["a.gguf", "README.md"]]]
    assert answers["found"] == ["local/b"]
    assert answers["commits"] == ["local/a@2", "local/a@1"]
    assert answers["info"] == "local/a"
    assert (Path(answers["snapshot"]) / "a.gguf").read_bytes() == data


def test_types_that_are_generated_for_typescript_compile(node: str, tmp_path: Path) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(make_document("1")))
    run([node, str(PACKAGES / ".bin" / "openapi-typescript"), "openapi.json", "-o", "api.d.ts"], tmp_path)
    (tmp_path / "used.ts").write_text(TYPES_USED)
    run(
        [
            node,
            str(PACKAGES / ".bin" / "tsc"),
            "--noEmit",
            "--strict",
            "--skipLibCheck",
            "--lib",
            "es2022,dom",
            "used.ts",
        ],
        tmp_path,
    )
