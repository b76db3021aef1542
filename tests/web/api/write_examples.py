"""Ask the examples of the API's reference anew and keep the answers: `python -m tests.web.api.write_examples`."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.settings import PromptLimits, WebSettings
from tests.web.api.admin_registry import administrator, put_waiting
from tests.web.api.zoo import examples, fill_zoo, ingest_zoo

TARGET = Path(__file__).resolve().parents[3] / "web" / "api" / "examples.json"


def main() -> None:
    """Write the file beside the modules of the API."""
    with TemporaryDirectory() as folder, LocalRegistry.open(folder) as registry:
        ingest_zoo(registry)
        fill_zoo(registry)
        with create_app(registry, WebSettings(personal=True, prompts=PromptLimits())).test_client() as client:
            found = examples(client)
        put_waiting(registry)
        found |= examples(administrator(registry), administering=True)
    TARGET.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
