"""The targets of fuzzing, by name."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol


class Target(Protocol):
    """Makes the bytes of a case from its number and tries them."""

    def warm_up(self) -> None:
        """Try every seed unchanged, so that one-time allocations are made; raise if one is refused."""
        ...

    def try_case(self, number: int) -> str:
        """Try a case; return ACCEPTED or the refusal without its values. Any exception is a failure."""
        ...

    def material(self, number: int) -> bytes:
        """Return the bytes of a case, for inspection."""
        ...


TARGETS = {
    "headers": "tests.faults.fuzzing.header_check:HeaderTarget",
    "blobs": "tests.faults.fuzzing.blob_check:BlobTarget",
}


def build_target(name: str) -> Target:
    """Return the target `name`: one of TARGETS, or `module:maker`."""
    module, _, maker = TARGETS.get(name, name).partition(":")
    target: Target = getattr(import_module(module), maker)()
    return target
