"""The quantiser of llama.cpp itself, of the package @node-llama-cpp/linux-x64 of npm, in a process of its own.

`python -m tests.llama_quantizer LIBRARIES SOURCE TARGET FILE_TYPE [IMPORTANCES]` writes the file TARGET.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from organs.registry.gguf.importance import read_importances
from organs.registry.input_files import FileSource

PACKAGE = Path(__file__).resolve().parents[1] / ".clients" / "node_modules" / "@node-llama-cpp" / "linux-x64"
SECONDS = 1800


class Importances(ctypes.Structure):
    """`llama_model_imatrix_data`: the importances of one weight. A list of them ends with one without a name."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.POINTER(ctypes.c_float)),
        ("size", ctypes.c_size_t),
    ]


class Parameters(ctypes.Structure):
    """The beginning of `llama_model_quantize_params`; the rest stays as the library sets it."""

    _fields_: ClassVar = [
        ("threads", ctypes.c_int32),
        ("file_type", ctypes.c_int32),
        ("output_type", ctypes.c_int32),
        ("embedding_type", ctypes.c_int32),
        ("allow_requantize", ctypes.c_bool),
        ("switches", ctypes.c_bool * 5),
        ("importances", ctypes.POINTER(Importances)),
        ("rest", ctypes.c_uint8 * 120),
    ]


def is_installed() -> bool:
    """Return whether the package is there; `make clients` installs it."""
    return PACKAGE.is_dir()


def quantised(source: Path, target: Path, file_type: int, importances: Path | None = None) -> str:
    """Write `source` with llama.cpp as a file of the number `file_type`; return what failed, or an empty text."""
    libraries = next(PACKAGE.glob("bins/*"))
    words = [*map(str, (libraries, source, target, file_type)), *([str(importances)] if importances else [])]
    command = [sys.executable, "-m", "tests.llama_quantizer", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    if done.returncode == 0:
        return ""
    lines = (done.stderr + done.stdout).strip().splitlines()
    return next((line for line in lines if "failed" in line or "no tensor type" in line), lines[-1] if lines else "?")


def main(libraries: Path, source: str, target: str, file_type: str, importances: str = "") -> int:
    """Load the libraries and quantise; return 0 if it went well."""
    ctypes.CDLL(str(libraries / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    backends = ctypes.CDLL(str(next(libraries.glob("libggml.v*.so"))), mode=ctypes.RTLD_GLOBAL)
    backends.ggml_backend_load_all_from_path(f"{libraries}/".encode())
    library = ctypes.CDLL(str(next(libraries.glob("libllama.v*.so"))), mode=ctypes.RTLD_GLOBAL)
    library.llama_model_quantize_default_params.restype = Parameters
    library.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Parameters)]
    parameters = library.llama_model_quantize_default_params()
    parameters.file_type, parameters.threads = int(file_type), 2
    kept = []
    if importances:
        with FileSource(Path(importances)) as opened:
            matrix = read_importances(opened)
        items = (Importances * (len(matrix.by_tensor) + 1))()
        for item, (name, values) in zip(items, matrix.by_tensor.items(), strict=False):
            numbers = (ctypes.c_float * values.size)(*values.tolist())
            kept.append(numbers)
            item.name, item.data, item.size = name.encode(), numbers, values.size
        parameters.importances = items
    return int(library.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
