"""The API below `/api/v1`, described by the OpenAPI document that is made from its routes.

blueprint    the blueprint of the API
operation    a route of the API with its description
submissions  submissions: a model of pieces that were sent or are here, looked at, published
admin        administration: what waits for review, models removed, the event log, contributors
downloads    downloads in the OpenAPI document
document     the OpenAPI document, made from the routes of the API, with examples
accounts     the account of the token that is sent, and contributors as everyone sees them
chimeras     chimeras: a list, one by its lock; made, grafted, purified, validated; where a file is
jobs         jobs: listed, looked up, cancelled
models       models: one, lists, files, comparison, lineage; and editing
organs       organs: search and its counts, one by digest, many by their digests
plans        plans: what a recipe comes to, and whether two models fit, before anything is made
reports      reports: on the registry, whole or one section, and on one model
uploads      uploads: which pieces need not be sent, and sessions in which the rest comes
"""

from organs.web.api import (
    accounts,
    admin,
    chimeras,
    document,
    jobs,
    models,
    organs,
    plans,
    reports,
    submissions,
    uploads,
)
from organs.web.api.blueprint import ROOT, api

__all__ = [
    "ROOT",
    "accounts",
    "admin",
    "api",
    "chimeras",
    "document",
    "jobs",
    "models",
    "organs",
    "plans",
    "reports",
    "submissions",
    "uploads",
]
