"""JSON Schemas of single values, and what schemas are put together with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from organs.registry.catalog.vocabulary import ORGAN_TYPES

Schema = dict[str, Any]
"""A schema as OpenAPI 3.1 has it: JSON Schema, draft 2020-12."""

REF_TEMPLATE = "#/components/schemas/{name}"
DIGEST_PATTERN = "^[0-9a-f]{64}$"
SHAPE_PATTERN = "^[0-9]+(x[0-9]+){0,3}$"
MODEL_PATTERN = "^[^/@]+/[^/@]+@[0-9]+$"


def record(description: str, properties: Mapping[str, Schema], optional: Iterable[str] = ()) -> Schema:
    """An object that has all of `properties` but perhaps the `optional` ones, and nothing else."""
    left_out = set(optional)
    return {
        "type": "object",
        "description": description,
        "properties": dict(properties),
        "required": [name for name in properties if name not in left_out],
        "additionalProperties": False,
    }


def values_by_name(description: str, value: Schema) -> Schema:
    """An object of any names, each with such a value."""
    return {"type": "object", "description": description, "additionalProperties": value}


def list_of(item: Schema, description: str | None = None) -> Schema:
    """An array of such items."""
    return described({"type": "array", "items": item}, description)


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    if "$ref" in schema:
        return {"oneOf": [schema, {"type": "null"}]}
    found: Schema = {**schema, "type": [schema["type"], "null"]}
    return {**found, "enum": [*schema["enum"], None]} if "enum" in schema else found


def described(schema: Schema, description: str | None) -> Schema:
    """The same with a description."""
    return schema if description is None else {**schema, "description": description}


def ref(name: str) -> Schema:
    """The schema of that name among the components."""
    return {"$ref": REF_TEMPLATE.format(name=name)}


TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
BYTES: Schema = {"type": "integer", "minimum": 0, "description": "Bytes."}
THETA: Schema = {"type": "number", "minimum": 0, "maximum": 90, "description": "θ in degrees: 0 noise, 90 signal."}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
DIGEST: Schema = {
    "type": "string",
    "pattern": DIGEST_PATTERN,
    "description": "SHA-256 of the plain bytes, in lower-case hexadecimal.",
}
TIME: Schema = {"type": "string", "format": "date-time"}
MODEL_NAME: Schema = {"type": "string", "pattern": MODEL_PATTERN, "description": "`namespace/name@version`."}
ORGAN_TYPE: Schema = {"type": "string", "enum": list(ORGAN_TYPES)}
