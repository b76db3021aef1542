"""The API below `/api/v1`, described by an OpenAPI document that is made from its routes.

organs       organs: search, counts, look-ups by digest
models       models: search, files, comparison, lineage, editing
queries      suggestions while a query is typed, and saved queries
chimeras     chimeras: list, get, compose, graft, purify, validate
evolutions   evolutions: begin, continue, list, get, the recipe of a trial
plans        plans of recipes, and compatibility of models
reports      reports on the registry and on models
uploads      uploads: look-ups of known pieces, and upload sessions in chunks
submissions  submissions: models made from uploads, checked and published
accounts     the account of the token, and public contributors
admin        administration: reviews, removals, the event log, contributors, storage
jobs         jobs: list, get, cancel
answers      answers of models to prompts: ask, get, delete
operation    a route of the API with its description: parameters, body, answer, rights
document     the OpenAPI document with examples; it also describes the downloads
"""

from organs.web.api import (  # noqa: F401  # each adds its routes
    accounts,
    admin,
    answers,
    chimeras,
    document,
    evolutions,
    jobs,
    models,
    organs,
    plans,
    queries,
    reports,
    submissions,
    uploads,
)
