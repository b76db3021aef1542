"""What all entities have in common: types with their limits, and pages of lists.

An entity is a frozen msgspec struct. It defines the Python value, its JSON, its schema, and the check of an answer that
may be hostile. The limits apply to values from outside; values that this program creates are within them. Unknown
members are ignored when JSON is decoded, because a newer registry may send more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar, dataclass_transform, overload

import msgspec
from msgspec import Meta

from organs.registry import digest as digests
from organs.registry import notebook

Schema = dict[str, Any]
"""A schema of OpenAPI 3.1: JSON Schema, draft 2020-12."""

REF_TEMPLATE = "#/components/schemas/{name}"
WHOLE_MAX = 2**63 - 1
ITEMS_MAX = 1 << 20
"""The most entries of one list or map."""
TEXT_MAX_LENGTH = 1 << 20
"""The most characters of one text."""
WORD_MAX_LENGTH = 210
DIMENSIONS_MAX = 8
PRINTABLE = r"^[ -~]*$(?!\n)"
"""The end excludes a line feed after the text, which `$` alone accepts."""

T = TypeVar("T")
Text = Annotated[str, Meta(max_length=TEXT_MAX_LENGTH)]
Word = Annotated[str, Meta(max_length=WORD_MAX_LENGTH, pattern=PRINTABLE)]
"""A short text of printable ASCII: a kind, a name, a state."""
ModelText = Annotated[
    str,
    Meta(
        max_length=WORD_MAX_LENGTH,
        pattern=PRINTABLE,
        description="`namespace/name@version`.",
        examples=["acme/tiny@1"],
    ),
]
Digest = Annotated[
    digests.Digest,
    Meta(pattern="^[0-9a-f]{64}$", max_length=64, description="SHA-256 of the plain bytes, in lower-case hexadecimal."),
]
Count = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
Bytes = Annotated[Count, Meta(description="Bytes.")]
Time = Annotated[datetime, Meta(tz=True)]
Share = Annotated[float, Meta(ge=0, le=1)]
Theta = Annotated[float, Meta(ge=0, le=90, description="θ in degrees.")]
Likeness = Annotated[
    float,
    # The bounds leave room for rounding.
    Meta(
        ge=-1.000001,
        le=1.000001,
        description="Correlation of weights at the same places: 1 is equal, 0 is not related.",
    ),
]
Change = Annotated[
    float,
    Meta(
        ge=0,
        le=4.000001,
        description="Energy of the difference of the weights at the same places, as a share of their energy: 0 is "
        "equal, 1e-5 a light fine-tune, 0.002 a rounding to 4 bits, 2 not related. Null if it is not known so exactly.",
    ),
]
Dimension = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
Shape = Annotated[tuple[Dimension, ...], Meta(max_length=DIMENSIONS_MAX, description="Row length first.")]
Items = Annotated[tuple[T, ...], Meta(max_length=ITEMS_MAX)]
"""A list with the usual limit: `Items[Text]`."""
Texts = Items[Text]
Acts = Annotated[Items[Word], Meta(description="The acts, in this order.")]
"""The acts on a tensor: grafted, merged, adapter, purified, pruned."""
Counts = Annotated[dict[Text, Count], Meta(max_length=ITEMS_MAX)]
"""A count by name."""


class _EntityMeta(msgspec.StructMeta):
    """Makes entities frozen and their fields keyword-only, unless a class says otherwise."""

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any], **options: Any) -> Any:
        return super().__new__(cls, name, bases, members, **({"frozen": True, "kw_only": True} | options))


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Entity(msgspec.Struct, metaclass=_EntityMeta, frozen=True):
    """A value that is exchanged as JSON. Its class is frozen, and its fields are given by name."""


class RequestBody(Entity, omit_defaults=True, forbid_unknown_fields=True):
    """The body of a request. Members with a default may be left out."""


E = TypeVar("E", bound=Entity)

_prepared: set[object] = set()
_preparing = threading.Lock()


class Page(Entity, Generic[T]):
    """One page of a list. Iteration yields its items."""

    items: Items[T]
    next: Annotated[str, Meta(max_length=TEXT_MAX_LENGTH)] | None
    """The `after` of the next page; None on the last page."""
    notes: Texts = ()
    """Remarks for the reader, for example that no model has a word, or that a comparison was cut."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def summary(self, noun: str) -> str:
        """Return the number of items in words, with the first note."""
        count = len(self.items)
        notes = "".join(f"; {notebook.visible(note)}" for note in self.notes[:1])
        return f"{count} {noun}{'' if count == 1 else 's'}{', more follow' if self.next else ''}{notes}"

    def below(self) -> Iterator[str]:
        """Yield the paragraphs below the table of a page in a notebook."""
        yield from (notebook.paragraph(note) for note in self.notes)
        if self.next is not None:
            yield notebook.paragraph("there are more: pass `next` as `after`")


def encode(value: object) -> bytes:
    """Return `value`, an entity or plain values, as UTF-8 JSON. NaN becomes null."""
    return msgspec.json.encode(value)


def decode(data: bytes | bytearray, kind: type[E]) -> E:
    """Return the entity in the JSON `data`; raises ValueError, with the place of the first error, for anything else."""
    try:
        return msgspec.json.decode(data, type=prepared(kind))
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    except (RecursionError, UnicodeDecodeError) as error:
        raise ValueError("the JSON is nested too deeply, or its text is not UTF-8") from error


@overload
def prepared(kind: type[T]) -> type[T]: ...
@overload
def prepared(kind: object) -> Any: ...
def prepared(kind: object) -> object:
    """Return `kind`, a type to decode or to convert to, after msgspec has examined it.

    Msgspec examines the fields of a class at its first use. A second thread that uses the class meanwhile finds fields
    without a type and crashes the process, so only one thread at a time may use types for the first time.
    """
    if kind not in _prepared:
        with _preparing:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)
    return kind


def schemas(kinds: list[type[Entity]]) -> dict[str, Schema]:
    """Return the schemas of `kinds` and of all entities in them, by name.

    The schemas describe values that this program sends. These have all members of their entity and no others; only
    entities that omit defaults may lack members.
    """
    _, components = msgspec.json.schema_components(kinds, ref_template=REF_TEMPLATE)
    partial = {kind.__name__ for kind in _descendants(Entity) if kind.__struct_config__.omit_defaults}
    return {name: _closed(schema, name in partial) for name, schema in sorted(components.items())}


def schema_name(kind: type) -> str:
    """Return the name of the schema of `kind`."""
    return kind.__name__


def _descendants(kind: type[Entity]) -> Iterator[type[Entity]]:
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)


def _closed(schema: Schema, is_partial: bool) -> Schema:
    """Return `schema` without defaults and additional members; all members are required unless `is_partial`."""
    if schema.get("type") != "object" or "properties" not in schema:
        return schema
    properties: dict[str, Schema] = {
        name: {key: value for key, value in member.items() if key != "default"}
        for name, member in schema["properties"].items()
    }
    return {
        **{name: value for name, value in schema.items() if name != "title"},
        "properties": properties,
        "required": schema.get("required", []) if is_partial else list(properties),
        "additionalProperties": False,
    }
