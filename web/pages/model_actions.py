"""The first screen of a model's page: the name that a user gave, what one can do with the model, and its relatives."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from urllib.parse import urlencode

from flask import request, url_for

from organs.ingest.urls import HUB
from organs.registry.amounts import size_text, weight_change
from organs.registry.catalog.vocabulary import CHIMERA, PARTIAL
from organs.registry.compose.chimeras import PROMPT, assemble_command, llama_cli
from organs.registry.entities.lineage import LineageEdge
from organs.registry.entities.model import Model
from organs.registry.kinds import ADAPTER_TYPE_KEY, INVOCATION_KEY, MERGED_TYPE, WEIGHT_KINDS
from organs.registry.names import parse_model_name, split_quantisation
from organs.web.auth import identity
from organs.web.downloads import whole_name
from organs.web.ollama import llama_server_line, ollama_line
from organs.web.pages.documentation import documentation_address
from organs.web.pages.routes import Context
from organs.web.pages.sizes import size_example
from organs.web.responses import model_address, origin

RESUMED = "Run it again to continue. Error 416 means that the file is complete."
CLOSEST_SHOWN = 6
"""Relatives beside the card."""
TOOLS = {"lmstudio": "LM Studio", "llama-cpp": "llama.cpp", "hf": "the Hugging Face tools"}
"""Tools beside Ollama into which a model is installed."""
ADAPTER = "adapter"
RECEIVERS = (*WEIGHT_KINDS, CHIMERA)
"""Kinds of models that can be the base of a chimera."""
SAME_WEIGHTS = ("quantized", "dequantized")
"""Relations to models whose parts are not worth mixing: they have the same weights."""
_HUB = re.compile(r"https://(?:www\.)?huggingface\.co/([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})/?", re.ASCII)


def heading_of(model: Model) -> str:
    """Return the name that a user gave a model: an edited title, or else the registered name without its namespace."""
    in_header = next((entry.value for entry in model.metadata if entry.key == "general.name"), None)
    return model.title if model.title and model.title != in_header else parse_model_name(model.name).name


def actions_of(
    model: Model,
    bases: Sequence[LineageEdge],
    lineage: Sequence[LineageEdge],
    *,
    is_newest: bool,
    is_image: bool,
    can_run: bool,
) -> list[Context]:
    """Return what one can do with a model: for each, links and commands, and others that are folded.

    `bases` are its declared parents. `is_newest` says whether it is the newest visible version, `is_image` whether
    Ollama can pull it as an adapter, `can_run` whether the runtimes know its tensor types. There is nothing if the
    registry cannot assemble the model.
    """
    base = next((edge.model for edge in bases if edge.model is not None), None)
    if model.unassemblable or not model.files:
        return []
    if model.kind == PARTIAL and bases:
        graft = None if base is None else _link("Graft it into its base", _compose(base, graft=model.name))
        return [] if graft is None else [_action("Mix", graft)]
    actions = [_download(model), *_run(model, base, is_newest=is_newest, is_image=is_image, can_run=can_run)]
    if identity().is_local and model.kind in ("model", CHIMERA, ADAPTER):
        into = f"organ install {model.name} --to"
        more = [{"label": f"Into {name}", "line": f"{into} {tool}"} for tool, name in TOOLS.items()]
        actions.append(_action("Install", lines=[{"label": "Into Ollama", "line": f"{into} ollama"}], more=more))
    if model.kind in ("model", CHIMERA) and model.complete:
        wanted = f"{size_example(model.size_bytes)}, 4.5 bits a weight, or what fits your memory"
        actions.append(_action("Any size", _link(wanted, "#sizes")))
    if model.kind in RECEIVERS and model.complete:
        links = [
            _link("Put parts of other models into it", _compose(model.name)),
            _link("Models whose parts fit", url_for("pages.compose_fits", base=model.name)),
            _link("Measured gains", url_for("pages.leaderboard", base=model.name)),
        ]
        actions += [_action("Mix", *links), _adapt(model, lineage)]
    elif (
        model.kind == ADAPTER and base is not None and not any(entry.key == INVOCATION_KEY for entry in model.metadata)
    ):
        actions.append(_action("Adapt", _link("Merge it into its base", _compose(base, adapter=model.name))))
    return actions


def closest_relatives(model: Model, lineage: Sequence[LineageEdge]) -> list[Context]:
    """Return the registered relatives of a model, the closest first, with links to compare and to mix."""
    known = [edge for edge in lineage if edge.model is not None and edge.model != model.name]
    known.sort(key=_distance)
    can_mix = model.kind in RECEIVERS and model.complete and not model.unassemblable
    relatives = []
    for edge in known[:CLOSEST_SHOWN]:
        name = edge.model or ""
        mix = None
        if can_mix and edge.relation == ADAPTER and edge.direction == "child":
            mix = _link("merge", _compose(model.name, adapter=name))
        elif can_mix and edge.relation not in (*SAME_WEIGHTS, ADAPTER):
            is_parent = edge.direction == "parent"
            base, donor = (name, model.name) if is_parent else (model.name, name)
            label = "give parts to it" if is_parent else "take parts of it"
            mix = _link(label, url_for("pages.compose", base=base, donor=donor))
        is_alike = edge.relation != ADAPTER
        compare = url_for("pages.compare", first=model.name, second=name) if is_alike else None
        relatives.append({"edge": edge, "compare": compare, "mix": mix})
    return relatives


def what_would_fit(model: Model) -> list[Context]:
    """Return what to add to a registry that has no relative of a model: repositories of the hub, or words to search."""
    if model.kind not in ("model", CHIMERA, ADAPTER):
        return []
    stem = _search_words(model)
    if model.kind == ADAPTER:
        return [_wanted("Its base", _repositories(model, "general.base_model."), stem)]
    return [
        _wanted("Its base", _repositories(model, "general.base_model."), ""),
        _wanted("Its fine-tunes", (), f"{stem} finetune GGUF"),
        _wanted("A LoRA for it", (), f"{stem} LoRA"),
        _wanted("Another size", _repositories(model, "general.repo_url"), f"{stem} GGUF"),
    ]


def _wanted(label: str, repositories: Sequence[str], words: str) -> Context:
    """Return what to add to a registry: repositories, or otherwise the words of a search on the hub."""
    search = f"{HUB}/models?{urlencode({'search': words})}" if words else ""
    return {"label": label, "repositories": repositories, "words": words, "search": search}


def _distance(edge: LineageEdge) -> float:
    is_known = edge.change is not None or edge.likeness is not None
    return weight_change(edge.change, edge.likeness) if is_known else 9.0


def _action(label: str, *links: Context, lines: Sequence[Context] = (), more: Sequence[Context] = ()) -> Context:
    return {"label": label, "links": links, "lines": lines, "more": more}


def _link(label: str, address: str, *, is_file: bool = False) -> Context:
    return {"label": label, "address": address, "is_file": is_file}


def _compose(base: str, **steps: str) -> str:
    sources = {kind: f"from:{source}" for kind, source in steps.items()}
    return url_for("pages.compose", base=base, **sources)  # type: ignore[arg-type]


def _curl(name: str, to: str) -> str:
    host = request.host_url.rstrip("/")
    return f"curl -fL -C - -o {shlex.quote(to)} '{host}{model_address(name, 'downloads.model')}'"


def _file_name(model: Model) -> str:
    return whole_name(model.name, [file.name for file in model.files])


def _download(model: Model) -> Context:
    """Return the link to the complete model as one file, and commands that get it."""
    host, file = request.host_url.rstrip("/"), _file_name(model)
    label = "Download GGUF" if len(model.files) == 1 else "Download as one GGUF"
    repository, _, version = model.name.partition("@")
    pull = f"HF_ENDPOINT={host} hf download {repository} --revision v{version} --local-dir ."
    more = [
        {"label": "Download the file", "line": _curl(model.name, file), "remark": RESUMED},
        {"label": "Download it with Hugging Face tools", "line": pull},
        {"label": "Write the file on the registry's machine", "line": assemble_command(model.name, file)},
    ]
    link = _link(f"{label}, {size_text(model.size_bytes)}", model_address(model.name, "downloads.model"), is_file=True)
    return _action("Download", link, more=more)


def _run(model: Model, base: str | None, *, is_newest: bool, is_image: bool, can_run: bool) -> list[Context]:
    """Return the commands that run a model. An adapter is run on its registered `base`.

    llama.cpp can only load the newest version of a model from here.
    """
    file = _file_name(model)
    # Ollama pulls one file, so shards are merged and imported.
    ollama = ollama_line(model.name, request.host_url, shlex.quote(file) if len(model.files) > 1 else "")
    is_merged_only = any((entry.key, entry.value) == (ADAPTER_TYPE_KEY, MERGED_TYPE) for entry in model.metadata)
    if model.kind == ADAPTER and base is not None and not is_merged_only:
        run = f"llama-cli -m base.gguf --lora {shlex.quote(file)} -p {shlex.quote(PROMPT)} -n 64"
        lines = [
            *([{"label": "Both with Ollama", "line": ollama}] if is_image else []),
            {"label": "Download its base", "line": _curl(base, "base.gguf")},
            {"label": "Both with llama.cpp, from the files", "line": run},
        ]
    elif model.kind in ("model", CHIMERA) and can_run:
        server = llama_server_line(model.name, request.host_url)
        lines = [
            {"label": "With Ollama", "line": ollama},
            *([{"label": "With llama.cpp, from this registry", "line": server}] if is_newest else []),
            {"label": "The downloaded file with llama.cpp", "line": llama_cli(file)},
        ]
    else:
        return []
    return [_action("Run", lines=lines[:1], more=lines[1:])]


def _adapt(model: Model, lineage: Sequence[LineageEdge]) -> Context:
    """Return how to merge a LoRA into a model, to extract one from it, and to train one."""
    adapters = [edge.model for edge in lineage if edge.relation == ADAPTER and edge.direction == "child" and edge.model]
    parents = [edge.model for edge in lineage if edge.direction == "parent" and edge.relation not in SAME_WEIGHTS]
    source = next((parent for parent in parents if parent is not None), None)
    links = [_link("Merge a LoRA into it", _compose(model.name, **({"adapter": adapters[0]} if adapters else {})))]
    links.append(_link("Train a LoRA, take it in", documentation_address("models", "lora-adapters")))
    more = []
    if source is not None and model.kind in ("model", CHIMERA):
        own = "" if identity().is_local else f" --registry {origin()}"
        line = f"organ{own} extract-lora {model.name} --base {source}"
        more.append({"label": "Extract its change as a LoRA", "line": line})
    return _action("Adapt", *links, more=more)


def _repositories(model: Model, start: str) -> tuple[str, ...]:
    """Return the repositories of the hub that entries of the header name whose keys begin with `start`."""
    entries = (entry for entry in model.metadata if entry.key.startswith(start) and entry.key.endswith("repo_url"))
    found = (_HUB.fullmatch(entry.value) for entry in entries)
    return tuple(dict.fromkeys(match[1] for match in found if match))[:3]


def _search_words(model: Model) -> str:
    """Return words that find models like this one: the basename and the size of its header, or its name."""
    values = {entry.key: entry.value for entry in model.metadata}
    basename, size = values.get("general.basename", ""), values.get("general.size_label", "")
    words = f"{basename}-{size}" if basename and size else split_quantisation(parse_model_name(model.name).name)[0]
    return words[:96]
