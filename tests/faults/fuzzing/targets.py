"""What can be fuzzed, by name."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from tests.faults.fuzzing.refusal_texts import Sentences


class Target(Protocol):
    """Makes the bytes of a case out of its number and tries them."""

    sentences: Sentences

    def warm_up(self) -> None:
        """Try every seed as it is, so that what is allocated once is allocated; raises where one is refused."""
        ...

    def try_case(self, number: int) -> str:
        """How the case ends: ACCEPTED or the sentence that refused it. Anything that it raises is a failure."""
        ...

    def material(self, number: int) -> bytes:
        """The bytes of a case, for a look at them."""
        ...


TARGETS = {
    "headers": "tests.faults.fuzzing.header_check:HeaderTarget",
    "blobs": "tests.faults.fuzzing.blob_check:BlobTarget",
}


def build_target(name: str) -> Target:
    """The target `name`: one of TARGETS, or `module:maker`."""
    module, _, maker = TARGETS.get(name, name).partition(":")
    target: Target = getattr(import_module(module), maker)()
    return target
