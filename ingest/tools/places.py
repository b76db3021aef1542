"""Where other tools keep their models, by their own environment variables and settings.

Sources, as read in 2026: Ollama's `envconfig/config.go` and `docs/faq.mdx`; `findLMStudioHome` of LM Studio's
`lms-common-server` and `resolveModelsFolderPath` of `lms import`; llama.cpp's `fs_get_cache_directory` in
`common/common.cpp` and `get_cache_directory` in `common/hf-cache.cpp`; GPT4All's `mysettings.cpp`, `main.cpp` and
`gpt4all.py`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from configparser import ConfigParser, Error
from dataclasses import dataclass
from pathlib import Path

SETTINGS_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """What the places of models depend on."""

    home: Path
    variables: Mapping[str, str]
    platform: str
    """As `sys.platform`."""
    root: Path = Path("/")

    def folder(self, variable: str) -> Path | None:
        """Return the folder in an environment variable, as an absolute path; None if it is not set."""
        value = self.variables.get(variable, "").strip()
        if value == "~" or value.startswith("~/"):
            return self.home / value[2:]
        return Path(value).absolute() if value else None

    def standard_folder(self, on_a_mac: str, variable: str, otherwise: str) -> Path:
        """Return the folder of all programs for one purpose: below `Library` on a Mac, else as XDG names it."""
        if self.platform == "darwin":
            return self.home / "Library" / on_a_mac
        return self.folder(variable) or self.home / otherwise


def this_machine() -> Machine:
    """Return the machine on which this process runs."""
    return Machine(Path(os.path.expanduser("~")), os.environ, sys.platform)


def ollama_folders(machine: Machine) -> list[Path]:
    """Return the folders with Ollama's `manifests` and `blobs`: of the user, and of the service on Linux."""
    chosen = machine.folder("OLLAMA_MODELS")
    if chosen is not None:
        return [chosen]
    folders = [machine.home / ".ollama" / "models"]
    if machine.platform.startswith("linux"):
        folders.append(machine.root / "usr" / "share" / "ollama" / ".ollama" / "models")
    return folders


def hub_cache(machine: Machine) -> Path:
    """Return the cache folder of the Hugging Face tools."""
    chosen = machine.folder("HF_HUB_CACHE") or machine.folder("HUGGINGFACE_HUB_CACHE")
    return chosen or hub_home(machine) / "hub"


def hub_home(machine: Machine) -> Path:
    """Return the folder of the Hugging Face tools, which has the cache and the token."""
    cache = machine.folder("XDG_CACHE_HOME") or machine.home / ".cache"
    return machine.folder("HF_HOME") or cache / "huggingface"


def llama_cpp_cache(machine: Machine) -> Path:
    """Return llama.cpp's own cache. Newer versions use the cache of the Hugging Face tools instead."""
    return machine.folder("LLAMA_CACHE") or machine.standard_folder("Caches", "XDG_CACHE_HOME", ".cache") / "llama.cpp"


def lmstudio_folders(machine: Machine) -> list[Path]:
    """Return LM Studio's folders of models: the chosen or default one, older defaults, and bundled models."""
    homes = [machine.home / ".lmstudio", machine.home / ".cache" / "lm-studio"]
    pointer = read_text(machine.home / ".lmstudio-home-pointer").strip()
    if pointer and "\0" not in pointer and Path(pointer).is_absolute():
        homes.insert(0, Path(pointer))
    folders = []
    for home in dict.fromkeys(homes):
        chosen = _downloads_folder(home / "settings.json")
        folders += [*([chosen] if chosen else []), home / "models", home / ".internal" / "bundled-models"]
    return list(dict.fromkeys(folders))


def _downloads_folder(settings: Path) -> Path | None:
    try:
        chosen = json.loads(read_text(settings))["downloadsFolder"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_path = isinstance(chosen, str) and chosen and "\0" not in chosen
    return Path(chosen) if is_path and Path(chosen).is_absolute() else None


def gpt4all_folders(machine: Machine) -> list[Path]:
    """Return GPT4All's folders: the chosen one, the default one, and that of its Python package."""
    configuration = machine.folder("XDG_CONFIG_HOME") or machine.home / ".config"
    organization = "nomic.ai"
    if machine.platform == "darwin":
        configuration, organization = machine.home / ".config", "gpt4all.io"
    chosen = _ini_value(configuration / organization / "GPT4All.ini", "modelPath")
    data = machine.standard_folder("Application Support", "XDG_DATA_HOME", ".local/share")
    folders = [data / "nomic.ai" / "GPT4All", machine.home / ".cache" / "gpt4all"]
    if chosen and "\0" not in chosen and Path(chosen).is_absolute():
        folders.insert(0, Path(chosen))
    return list(dict.fromkeys(folders))


def _ini_value(path: Path, key: str) -> str:
    """Return a value in the section General of a file of Qt's settings; empty without it."""
    parser = ConfigParser(interpolation=None, strict=False, delimiters=("=",), comment_prefixes=(";",))
    try:
        parser.read_string(read_text(path))
        return parser.get("General", key, fallback="")
    except Error:
        return ""


def read_text(path: Path) -> str:
    """Return the text of a small file; empty if it cannot be read."""
    try:
        if not path.is_file():  # a FIFO would wait for its writer
            return ""
        with path.open("rb") as file:
            return file.read(SETTINGS_MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
