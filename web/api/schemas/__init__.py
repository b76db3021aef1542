"""What answers look like, as JSON Schemas: each by the name that the OpenAPI document gives it.

    values       JSON Schemas of single values, and what schemas are put together with
    organs       schemas of organs: at their places, by digest, and how a search's findings are spread
    models       schemas of models, their lineage, and two of them side by side
    reports      schemas of the registry as a whole: its figures and its reports
    accounts     schemas of contributors, accounts and tokens
    admin        schemas of what administrators are told
    uploads      schemas of uploads
    submissions  schemas of submissions
    published    schemas of what becomes of a model after it was published

Schemas of entities, such as problem documents, are generated from their classes.
"""

import msgspec

from organs.registry.entities.problem import Problem
from organs.web.api.schemas.accounts import ACCOUNT_SCHEMAS
from organs.web.api.schemas.admin import ADMIN_SCHEMAS
from organs.web.api.schemas.models import MODEL_SCHEMAS
from organs.web.api.schemas.organs import ORGAN_SCHEMAS
from organs.web.api.schemas.published import PUBLISHED_SCHEMAS
from organs.web.api.schemas.reports import REPORT_SCHEMAS
from organs.web.api.schemas.submissions import SUBMISSION_SCHEMAS
from organs.web.api.schemas.uploads import UPLOAD_SCHEMAS
from organs.web.api.schemas.values import REF_TEMPLATE, Schema

_, _ENTITY_SCHEMAS = msgspec.json.schema_components([Problem], ref_template=REF_TEMPLATE)
_GROUPS = (
    *(REPORT_SCHEMAS, ORGAN_SCHEMAS, MODEL_SCHEMAS, ACCOUNT_SCHEMAS),
    UPLOAD_SCHEMAS,
    ADMIN_SCHEMAS,
    PUBLISHED_SCHEMAS,
    SUBMISSION_SCHEMAS,
    _ENTITY_SCHEMAS,
)
SCHEMAS: dict[str, Schema] = {name: schema for group in _GROUPS for name, schema in sorted(group.items())}

__all__ = ["SCHEMAS", "Schema"]
