"""Models in safetensors files, converted to GGUF by the program of llama.cpp, `convert_hf_to_gguf.py`.

The program is another project's, runs with the rights of the user, and can run code that the folder brings. It is
started only if a person asks for it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from organs.ingest.safetensors import is_model_folder
from organs.ingest.sources import GGUF_SUFFIX, LOCAL_NAMESPACE, ModelSource, refuse_unconvertible
from organs.ingest.spool import temporary_folder
from organs.registry.errors import BadSource, ConversionFailed
from organs.registry.names import ModelName, name_from_text

PROGRAM = "convert_hf_to_gguf.py"
LAST_LINES, LAST_BYTES = 8, 4096
"""How much of the program's output is in the error if it fails."""


@contextmanager
def converted(folder: Path, program: str, python: str, spool: Path) -> Iterator[ModelSource]:
    """Convert the model in `folder` with `program`; return a context manager for the file, which it removes.

    The file is in a new folder inside of `spool`. A `program` that is not executable is run by `python`. Raises
    BadSource if the folder has no model in safetensors files or one that cannot be converted, ConversionFailed with the
    last lines of the program, StoreUnwritable.
    """
    if not is_model_folder(folder):
        raise BadSource(f"{folder}: no model in safetensors files to convert: it has no config.json or no weights")
    refuse_unconvertible(folder)
    name = name_from_text(folder.resolve().name)
    with temporary_folder(spool) as work:
        file, log = work / f"{name}{GGUF_SUFFIX}", work / "log"
        start = [program] if os.access(program, os.X_OK) else [python, program]
        _run([*start, str(folder.resolve()), "--outfile", str(file), "--outtype", "auto"], log)
        if not file.is_file():
            raise ConversionFailed(f"{program} ended without an error, but wrote no file: {_last_lines(log)}")
        yield ModelSource((file,), ModelName(LOCAL_NAMESPACE, name))


def _run(command: list[str], log: Path) -> None:
    try:
        with log.open("wb") as output:
            done = subprocess.run(  # noqa: S603  # the person names the program
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False
            )
    except OSError as error:
        raise ConversionFailed(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        raise ConversionFailed(f"{command[0]} failed with the status {done.returncode}: {_last_lines(log)}")


def _last_lines(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip()) or "it printed nothing"
