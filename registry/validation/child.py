"""What the programs in confined children have in common: an order on their input, and answers as lines of JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

from organs.registry.entities.base import Entity, decode

ORDER_MAX_BYTES = 64 * 1024 * 1024

Order = TypeVar("Order", bound=Entity)


def order_and_answers(kind: type[Order]) -> tuple[Order, Callable[[Entity], None]]:
    """Return the order on the standard input, and the function that prints an answer.

    All other output, such as that of llama.cpp itself, goes to the log. Raises ValueError for another order.
    """
    order = decode(sys.stdin.buffer.read(ORDER_MAX_BYTES), kind)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def tell(line: Entity) -> None:
        answers.write(msgspec.json.encode(line) + b"\n")

    return order, tell
