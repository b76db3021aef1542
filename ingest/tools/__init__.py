"""Models that other tools keep on this machine: found by the tools' own conventions, and named by what they record.

A folder that a person names is searched in the same way, without a tool.

places     where each tool keeps its models
ollama     Ollama: manifests and blobs
folders    LM Studio, llama.cpp, the Hugging Face tools and GPT4All: folders of GGUF files
findings   what a search returns, and names from repositories
layouts    where each tool expects the files of a model
installing models written into the folders of tools, and removed again
ollama_image  a model as an image, for Ollama's folder and for `ollama pull`
facts      what the registry keeps beside the bytes: texts, a license, a better name
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from organs.ingest.sources import ModelSource, find_sources, is_gguf_name
from organs.ingest.tools.findings import Findings
from organs.ingest.tools.folders import find_gpt4all, find_hub_cache, find_llama_cpp, find_lmstudio
from organs.ingest.tools.ollama import find_ollama
from organs.ingest.tools.places import Machine
from organs.registry.amounts import names_text, plural_text

FINDERS: dict[str, Callable[[Machine], Iterator[Findings]]] = {
    "hf-cache": find_hub_cache,
    "llama-cpp": find_llama_cpp,
    "lmstudio": find_lmstudio,
    "ollama": find_ollama,
    "gpt4all": find_gpt4all,
}
"""The tools by their options. The first one with a model names it: repositories have the most precise names."""
TOOL_NAMES = {
    "hf-cache": "Hugging Face",
    "llama-cpp": "llama.cpp",
    "lmstudio": "LM Studio",
    "ollama": "Ollama",
    "gpt4all": "GPT4All",
}


def find_tool_models(machine: Machine, tools: Iterable[str]) -> Iterator[Findings]:
    """Yield what each folder of `tools` has, in the order of FINDERS; a folder that two tools share comes once."""
    wanted, known = set(tools), set()
    for tool, find in FINDERS.items():
        if tool not in wanted:
            continue
        for findings in find(machine):
            if findings.folder in known:
                continue
            known.add(findings.folder)
            named = tuple(replace(source, tool=TOOL_NAMES[tool]) for source in findings.sources)
            yield replace(findings, tool=tool, sources=named)


def find_in_folder(argument: str) -> Findings:
    """Return the GGUF files in a folder that a person names, or one file. Raises BadSource without any."""
    sources = find_sources([argument], "scan")
    files = tuple(source for source in sources if is_gguf_name(source.paths[0].name))
    others = [source.label for source in sources if source not in files]
    notes: tuple[str, ...] = ()
    if others:
        notes = (f"{plural_text(len(others), 'model is', 'models are')} not in a GGUF file: {names_text(others)}",)
    return Findings(Path(argument), is_there=True, sources=files, notes=notes)


def sources_of(findings: Iterable[Findings]) -> list[ModelSource]:
    """Return the models in `findings`."""
    return [source for part in findings for source in part.sources]
