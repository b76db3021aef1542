"""What is said of a model beside its bytes, as its owner may change it."""

from __future__ import annotations

from dataclasses import dataclass

TITLE_MAX = 200
LICENSE_MAX = 96
DESCRIPTION_MAX = 4096
TAGS_MAX = 20
TAG_MAX = 48
BASE_MAX = 200


@dataclass(frozen=True, slots=True)
class Edits:
    """What is to be changed. None leaves as it is; an empty text, or no tags, says that nothing is said any more."""

    title: str | None = None
    description: str | None = None
    """Markdown."""
    license: str | None = None
    """An SPDX expression, `LicenseRef-` and a name, or `other`."""
    tags: tuple[str, ...] | None = None
    base: str | None = None
    """The model that it was made from, `namespace/name`, or what it is called elsewhere."""
