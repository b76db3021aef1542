"""Names of chimeras in the form that makes one: the name that is proposed, and the name for what was typed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.model_names import find_model
from organs.registry.errors import BadName
from organs.registry.names import (
    FULL_PRECISION,
    ModelName,
    name_from_text,
    namespace_from_text,
    parse_new_name,
    split_quantisation,
)

DONORS_MAX = 2
"""Donors that a proposed name names."""
PART_MAX, PROPOSED_MAX = 40, 80
NUMBERS_MAX = 50


def typed_name(text: str) -> str:
    """Return the name of a model that is nearest to what was typed: `my-coder` for `my coder`.

    A name that is valid stays as it is, and so does the text of one that cannot become valid.
    """
    try:
        parse_new_name(text)
    except BadName:
        namespace, slash, name = text.rpartition("/")
        if slash and not (namespace.strip("/") and name):
            return text
        return f"{namespace_from_text(namespace)}{slash}{name_from_text(name)}" if slash else name_from_text(text)
    return text


def proposed_name(session: Session, namespace: str, base: str, donors: Sequence[str]) -> str | None:
    """Return a short name for a chimera, without the namespace: the base, and what distinguishes the donors from it.

    A name that is taken gets a number. None without donors, and if all numbers are taken.
    """
    if not donors:
        return None
    stem = name_from_text(split_quantisation(_own(base))[0])[:PART_MAX].rstrip("._-")
    parts = list(dict.fromkeys(_distinction(base, donor) for donor in donors))
    what = "-".join(["with", *parts[:DONORS_MAX], *(["more"] if len(parts) > DONORS_MAX else [])])
    name = name_from_text(f"{stem}-{what}"[:PROPOSED_MAX])
    candidates = [name, *(f"{name}-{number}" for number in range(2, NUMBERS_MAX))]
    return next((name for name in candidates if find_model(session, ModelName(namespace, name)) is None), None)


def _distinction(base: str, donor: str) -> str:
    """Return the words of the name of a donor that are not in the name of the base; all if there are none."""
    known = {word.upper() for word in _words(base)} | FULL_PRECISION
    stem = split_quantisation(_own(donor))[0]
    words = "-".join(word for word in _words(stem) if word.upper() not in known)
    return (words or stem)[:PART_MAX].rstrip("._-")


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[-_]+|\.(?=[A-Za-z])", _own(name)) if word]


def _own(name: str) -> str:
    """Return the name of a model without its namespace and version."""
    return name.rpartition("/")[2].partition("@")[0]
