"""Faults of files, as headers and vocabularies show them."""

from __future__ import annotations

from typing import NamedTuple


class HeaderFault(NamedTuple):
    """A fault of a file. `ingest.checking` has for each code how serious it is, and what mends it."""

    code: str
    sentence: str
    """What is wrong and where, as a clause that begins with a small letter."""
