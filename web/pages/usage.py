"""Command lines that download and run a model."""

from __future__ import annotations

import shlex

from flask import request, url_for

from organs.registry.compose.chimeras import Usage
from organs.registry.entities.chimera import Chimera
from organs.registry.entities.model import Model
from organs.web.downloads import whole_name
from organs.web.pages.routes import Context
from organs.web.responses import model_address

RUN_LABEL = "Run it with llama.cpp"


def use_lines(model: Model, chimera: Chimera | None) -> list[Context]:
    """Return commands with their purposes; `chimera` is None for a model that was not composed here.

    The download comes first: other commands use the name of its file.
    """
    file = whole_name(model.name, [file.name for file in model.files])
    get, pull = _pull_lines(model.name, file)
    usage = Usage(model=model.name, file=file, title="", context_length=None)
    is_runnable = model.kind in ("model", "chimera")
    return [
        {"label": "Download the file", "line": get},
        *([{"label": RUN_LABEL, "line": usage.llama_cli()}] if is_runnable else []),
        *([] if chimera is None else [{"label": "Import it into Ollama", "line": _ollama_line(chimera)}]),
        {"label": "Download it with Hugging Face tools", "line": pull},
        {"label": "Write the file on the registry's machine", "line": usage.assemble()},
    ]


def _pull_lines(name: str, file: str) -> list[str]:
    """Return commands that download the model `name`: with curl into `file`, and with the Hugging Face client."""
    host, (repository, _, version) = request.host_url.rstrip("/"), name.partition("@")
    return [
        f"curl -fL -C - -o {shlex.quote(file)} '{host}{model_address(name, 'downloads.model')}'",
        f"HF_ENDPOINT={host} hf download {repository} --revision v{version}",
    ]


def _ollama_line(chimera: Chimera) -> str:
    name = chimera.model.partition("/")[2].partition("@")[0]
    modelfile = url_for("artifacts.chimera_text", lock=chimera.lock_id, text="Modelfile", _external=True)
    return f"curl -fL -o Modelfile '{modelfile}'\nollama create {shlex.quote(name.lower())} -f Modelfile"
