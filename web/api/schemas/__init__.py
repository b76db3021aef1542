"""What answers look like, as JSON Schemas: each by the name that the OpenAPI document gives it.

    values   JSON Schemas of single values, and what schemas are put together with
    models   schemas of models, their lineage, and two of them side by side
    reports  schemas of the registry as a whole: its figures and its reports

Schemas of entities, such as problem documents, are generated from their classes.
"""

import msgspec

from organs.registry.entities.base import schemas
from organs.registry.entities.problem import Problem
from organs.registry.entities.submission import Upload
from organs.web.api.schemas.models import MODEL_SCHEMAS
from organs.web.api.schemas.reports import REPORT_SCHEMAS
from organs.web.api.schemas.values import REF_TEMPLATE, Schema, ref

UPLOAD_PROBLEM: Schema = {
    "description": "What is wrong, and the members of the upload as it is.",
    "allOf": [
        ref("Problem"),
        {name: part for name, part in schemas([Upload])["Upload"].items() if name != "additionalProperties"},
    ],
}
_, _ENTITY_SCHEMAS = msgspec.json.schema_components([Problem], ref_template=REF_TEMPLATE)
_GROUPS = (
    *(REPORT_SCHEMAS, MODEL_SCHEMAS),
    _ENTITY_SCHEMAS,
    {"UploadProblem": UPLOAD_PROBLEM},
)
SCHEMAS: dict[str, Schema] = {name: schema for group in _GROUPS for name, schema in sorted(group.items())}

__all__ = ["SCHEMAS", "Schema"]
