"""Compiled kernels for organs that are stored by their difference, if numba is installed (the extra `fast`).

`kernels()` returns None until `warm()` has compiled them, or has loaded them from numba's cache. So no request waits
for a compiler, and everything works without numba.
"""

from __future__ import annotations

from typing import Any


def kernels() -> Any:
    """Return the compiled kernels, or None."""
    return None
