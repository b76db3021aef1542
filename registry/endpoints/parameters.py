"""Types of parameters that several endpoints have, and the notes from which types are made."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.catalog.cursor import CURSOR_MAX_LENGTH, PAGE_MAX
from organs.registry.entities.base import WHOLE_MAX
from organs.registry.names import NAME_MAX_LENGTH
from organs.registry.search.language import ORGANS, QUERY_MAX_LENGTH, Vocabulary

LIMIT_DEFAULT = 50
EXAMPLE_MODEL = "Zoo-A-2M-v1.0-Q8_0"
EXAMPLE_BASE = "local/Zoo-A-2M-v1.0-F16"
EXAMPLE_LOCK = "75ae85f27135e26b"
WORD_PATTERN = "[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
VERSION_PATTERN = "(@[1-9][0-9]{0,8})?"
FULL_NAME_MAX_LENGTH = 203


def note(
    description: str, example: str | int | None = None, *, pattern: str | None = None, max_length: int | None = None
) -> Meta:
    """Return the note of a type with its description, an example, and limits of a text."""
    examples = None if example is None else [example]
    return Meta(description=description, examples=examples, pattern=pattern, max_length=max_length)


def number_note(thing: str, example: str = "1") -> Meta:
    """Return the note of the number of a job or the like."""
    return Meta(description=f"The number of the {thing}.", examples=[example], ge=1, le=WHOLE_MAX)


def limit_note(label: str, most: int = PAGE_MAX) -> Meta:
    """Return the note of the length of a list."""
    return Meta(description=f"{label}, from 1 to {most:,}.", examples=[2], ge=1, le=most)


def choice_note(description: str, choices: tuple[str, ...], example: str) -> Meta:
    """Return the note of a text that is one of `choices`."""
    return Meta(description=description, examples=[example], extra_json_schema={"enum": list(choices)})


def query_note(vocabulary: Vocabulary, example: str) -> Meta:
    """Return the note of a query with its fields and sorts."""
    fields = "; ".join(f"`{field.name}:` {field.meaning}" for field in vocabulary.fields.values())
    sorts = ", ".join(f"`sort:{name}`" for name in vocabulary.sorts)
    text = f"{fields}. {sorts}, descending with a minus: `sort:-theta`. Other words are searched in names and texts."
    return note(f"The query. {text}", example, max_length=QUERY_MAX_LENGTH)


def full_name_note(description: str, example: str | None = None) -> Meta:
    """Return the note of the name of a model with its namespace."""
    pattern = f"^{WORD_PATTERN}/{WORD_PATTERN}{VERSION_PATTERN}$"
    return note(description, example, pattern=pattern, max_length=FULL_NAME_MAX_LENGTH)


Limit = Annotated[int, limit_note("Results on a page")]
After = Annotated[
    str, note("The `next` of the previous page; valid for the same query only.", max_length=CURSOR_MAX_LENGTH)
]
OrganQuery = Annotated[str, query_note(ORGANS, "type:organ sort:-spectral")]
OrganDigest = Annotated[
    str,
    note("The tensor's digest, or at least its first 8 characters.", "aadb682ed7753b5f", pattern="^[0-9a-f]{8,64}$"),
]
Namespace = Annotated[
    str, note("The model's namespace.", "local", pattern=f"^{WORD_PATTERN}$", max_length=NAME_MAX_LENGTH)
]
Name = Annotated[
    str,
    note(
        "The model's name, or `name@3` for a version; without one, the newest.",
        EXAMPLE_MODEL,
        pattern=f"^{WORD_PATTERN}{VERSION_PATTERN}$",
        max_length=106,
    ),
]
Base = Annotated[
    str,
    note(
        "The model that receives tensors: its name, or `sha256:` and a digest of its file.",
        EXAMPLE_BASE,
        max_length=FULL_NAME_MAX_LENGTH,
    ),
]
