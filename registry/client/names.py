"""Names from a registry elsewhere as parts of addresses and of paths: checked first, for either may be anything."""

from __future__ import annotations

import re
from urllib.parse import quote

from organs.registry.errors import BadName, BadReply
from organs.registry.names import ModelName, parse_model_name

_PLAIN_FILE = re.compile(r"[A-Za-z0-9_+@][A-Za-z0-9._+@ -]{0,179}", re.ASCII)


def told_name(text: str) -> ModelName:
    """The model of that full name, as a registry gives it; raises BadReply for anything else."""
    try:
        name = parse_model_name(text)
    except BadName as error:
        raise BadReply(f"the registry gives a model the name {text[:80]!r}: {error}") from error
    if name.version is None or str(name) != text:
        raise BadReply(f"the registry gives a model the name {text[:80]!r}, which is no full one")
    return name


def model_path(name: ModelName) -> str:
    """Where the API has the model."""
    return f"/models/{quote(str(name), safe='/@')}"


def gguf_path(full_name: str) -> str:
    """Where a model is as one file, by its full name as a registry gives it; raises BadReply for what is no name."""
    return f"{model_path(told_name(full_name))}.gguf"


def file_path(full_name: str, file: str) -> str:
    """Where a model's own file is; `file` is a name as `told_file` lets it pass."""
    return f"{model_path(told_name(full_name))}/files/{quote(file, safe='')}"


def told_file(text: str) -> str:
    """A file's name that a registry gives, if a file can have it on any disk; raises BadReply for anything else."""
    if not _PLAIN_FILE.fullmatch(text) or text[-1] in ". ":
        raise BadReply(f"the registry names a file {text[:80]!r}, which is no plain name of a file")
    return text


def whole_file_name(text: str, model: ModelName) -> str:
    """How the only file of `model`, called `text`, is called here: by the model's name if that is no plain one."""
    plain = _PLAIN_FILE.fullmatch(text) and text.endswith(".gguf")
    return text if plain else f"{model.name}.gguf"
