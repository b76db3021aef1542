"""A client that a stranger's generator makes of the OpenAPI document asks this API."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from flask import Flask

GENERATE = "from openapi_python_client.cli import app; app()"


@pytest.mark.long
def test_a_generated_python_client_can_call_the_api(
    document: dict[str, Any], zoo_app: Flask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "config.json").write_text(json.dumps({"post_hooks": []}))
    package = "generated_organ_client"
    arguments = ["--path", "openapi.json", "--config", "config.json", "--output-path", package, "--meta", "none"]
    command = [sys.executable, "-c", GENERATE, "generate", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout, done.stdout

    monkeypatch.syspath_prepend(str(tmp_path))
    client_class = importlib.import_module(package).Client
    transport = httpx.WSGITransport(app=zoo_app)
    client = client_class(
        base_url="http://localhost", httpx_args={"transport": transport}, raise_on_unexpected_status=True
    )

    def ask(group: str, operation: str, /, **arguments: Any) -> Any:
        module = importlib.import_module(f"{package}.api.{group}.{operation}")
        return module.sync(client=client, **arguments)

    listed = ask("models", "models", limit=2)
    assert [type(one).__name__ for one in listed.items] == ["ModelSummary", "ModelSummary"]
    namespace, _, name = listed.items[0].name.partition("@")[0].partition("/")
    assert ask("models", "model", namespace=namespace, name=name).name == listed.items[0].name
    assert ask("tensors", "organs", q="type:organ", limit=1).next_ is not None
    assert ask("tensors", "organ", digest="0" * 64).status == 404
