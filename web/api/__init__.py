"""The API below `/api/v1`, described by the OpenAPI document that is made from its routes.

blueprint    the blueprint of the API
operation    a route of the API with its description
submissions  submissions: models made from uploads, checked and published
admin        administration: reviews, removals, the event log, contributors
downloads    downloads in the OpenAPI document
document     the OpenAPI document, made from the routes of the API, with examples
accounts     the account of the token, and public contributors
chimeras     chimeras: list, get, compose, graft, purify, validate
jobs         jobs: list, get, cancel
models       models: search, files, comparison, lineage, editing
organs       organs: search, counts, look-ups by digest
plans        plans of recipes, and compatibility of models
reports      reports on the registry and on models
uploads      uploads: look-ups of known pieces, and upload sessions in chunks
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
