"""Two models of a registry elsewhere side by side, as `registry.present.comparison.comparison` has them; checked."""

from __future__ import annotations

from organs.registry.client.connection import API, Connection
from organs.registry.client.shape import (
    Each,
    Maybe,
    Members,
    Values,
    check,
    digest,
    flag,
    number,
    one_of,
    text,
    whole,
    word,
)
from organs.registry.lineage import Kinship
from organs.registry.names import ModelName

_ORGANS: Members = dict.fromkeys(
    ("compared", "first_matrices", "second_matrices", "first", "second", "identical"), whole
)
_THETAS: Members = {"first_theta": Maybe(number), "second_theta": Maybe(number)}
_TYPE: Members = {**_THETAS, "type": text, "difference": Maybe(number), "likeness": Maybe(number), "compared": whole}
_BLOCK: Members = {"tower": text, "block": Maybe(whole), "likeness": number, "compared": whole}
_CHANGED: Members = {
    **_THETAS,
    **dict.fromkeys(("name", "type", "tower", "slot", "shape"), text),
    "block": Maybe(whole),
    "likeness": number,
    "identical": flag,
    "first_digest": Maybe(digest),
    "second_digest": Maybe(digest),
}
COMPARISON: Members = {
    "first": word,
    "second": word,
    "same_bytes": flag,
    "likeness": Maybe(number),
    "kinship": one_of(*(kinship.value for kinship in Kinship)),
    "sentence": text,
    "organs": _ORGANS,
    "types": Each(_TYPE),
    "blocks": Each(_BLOCK),
    "changed": Each(_CHANGED),
    "only_first": Each(text),
    "only_second": Each(text),
    "shapes_differ": Each({"name": text, "first": text, "second": text}),
    "differs": Each({"what": text, "first": Maybe(text), "second": Maybe(text)}),
}


def compared(connection: Connection, first: ModelName, second: ModelName) -> Values:
    """How alike `first` and `second` are, and what else differs; raises NotFound, Busy where it takes too long."""
    values = connection.get(f"{API}/compare", first=str(first), second=str(second))
    check(values, COMPARISON, "comparison")
    return values
