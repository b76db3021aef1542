"""Measure the way of models from Ollama into the registry and back: time, bytes on the disk, and what Ollama reads.

python -m bench.tools FOLDER --model FILE --second FILE --peft FOLDER

In FOLDER, a home is made whose Ollama has two models with everything that Ollama keeps beside them; FILE is a GGUF
file, and the PEFT folder has an adapter for the first one. Then each step is one command of `organ`, as a user calls
it. After each step the folder of Ollama is read by an independent reader, which checks every blob. At the end every
file must be as it was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from hashlib import file_digest
from pathlib import Path

from tests.ingest.tool_layouts import APACHE, ollama_layer, ollama_manifest
from tests.ingest.tool_readers import OllamaModel, read_ollama

RECIPE = {"base": "library/first", "name": "me/merged", "adapters": [{"from": "local/adapter"}]}
TEMPLATE = b"{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
ACCEPTED = ("rounded-twice", "change-lost-in-rounding")


def lay_out(home: Path, first: Path, second: Path) -> Path:
    """Lay out Ollama's folder with two models; return it."""
    ollama = home / ".ollama" / "models"
    texts = {
        "template": TEMPLATE,
        "system": b"You are a helpful assistant.",
        "params": b'{"stop":["<|im_start|>","<|im_end|>"]}',
        "license": APACHE.encode(),
    }
    for name, path in (("first", first), ("second", second)):
        layers = [ollama_layer(ollama, "model", path.read_bytes())]
        layers += [ollama_layer(ollama, kind, data) for kind, data in texts.items()] if name == "first" else []
        ollama_manifest(ollama, f"registry.ollama.ai/library/{name}/latest", *layers)
    return ollama


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                found[str(path.relative_to(folder))] = file_digest(file, "sha256").hexdigest()
    return found


def bytes_on_disk(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def texts_of(model: OllamaModel) -> tuple[object, ...]:
    return model.template, model.system, model.params, model.licenses[:1]


def main() -> None:
    """Run the steps and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--second", type=Path, required=True)
    parser.add_argument("--peft", type=Path, required=True)
    options = parser.parse_args()
    home: Path = options.folder.absolute() / "home"
    ollama = lay_out(home, options.model, options.second)
    recipe = home / "merge.json"
    recipe.write_text(json.dumps(RECIPE | {"accept": list(ACCEPTED)}))
    os.symlink(options.peft.absolute(), home / "adapter")
    before = digests(ollama)
    variables = os.environ | {"HOME": str(home), "ORGAN_HOME": str(home / "registry"), "OLLAMA_MODELS": ""}

    print("| step | seconds | Ollama, MB | registry, MB | models that Ollama reads |")
    print("|---|---|---|---|---|")

    def step(label: str, *words: str) -> dict[str, OllamaModel]:
        begin = time.monotonic()
        command = [sys.executable, "-m", "organs.cli", *words]
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - begin
        assert ended.returncode == 0, ended.stdout + ended.stderr
        models = read_ollama(ollama)
        sizes = [bytes_on_disk(folder) / 1e6 for folder in (ollama, home / "registry")]
        print(f"| {label} | {seconds:.1f} | {sizes[0]:.0f} | {sizes[1]:.0f} | {len(models)} |", flush=True)
        return models

    step("`organ scan`", "scan")
    step("`organ ingest --ollama`", "ingest", "--ollama")
    step("`organ ingest PEFT`", "ingest", str(home / "adapter"), "--base", "library/first", "--name", "local/adapter")
    step("`organ compose`, without a quick look", "compose", str(recipe), "--quick-look", "0")
    models = step("`organ install` the merged model", "install", "me/merged", "--to", "ollama")
    merged, base = (models[f"registry.ollama.ai/{name}:latest"] for name in ("me/merged", "library/first"))
    assert texts_of(merged) == texts_of(base)
    models = step("`organ install` the adapter on its base", "install", "local/adapter", "--to", "ollama")
    assert len(models["registry.ollama.ai/library/adapter:latest"].adapters) == 1
    after = digests(ollama)
    assert before.items() <= after.items()
    step("`organ reclaim --ollama --yes`", "reclaim", "--ollama", "--yes")
    step("`organ restore`", "restore")
    assert digests(ollama) == after
    step("`organ uninstall` the merged model", "uninstall", "me/merged")
    step("`organ uninstall` the adapter", "uninstall", "local/adapter")
    assert digests(ollama) == before
    print("\nAt the end every file of Ollama is as it was.")


if __name__ == "__main__":
    main()
