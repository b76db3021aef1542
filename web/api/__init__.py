"""The API below `/api/v1`, described by the OpenAPI document that is made from its routes.

blueprint    the blueprint and its root
operation    a route together with its description; what all requests have in common
writing      the same for what writes or runs something
parameters   parameters that operations share
body         a body of JSON, read strictly
refusals     what is refused, by field
recipes      a recipe in a body, and what is wrong with one
root, organs, models, plans, chimeras, reports, jobs   the operations
accounts, contributors   the operations on accounts and their tokens, and who contributes
published    the operations on models after they were published
submissions   the operations on models on their way in
admin        the operations of administrators
uploads, declaring   the operations on what is sent, and the body that declares it
downloads    what is said of downloads, which `web.downloads` serves
schemas      what answers look like
examples     real answers, shortened
document     the OpenAPI document
"""

from organs.web.api import (
    accounts,
    admin,
    chimeras,
    contributors,
    jobs,
    models,
    organs,
    plans,
    published,
    reports,
    root,
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
    "contributors",
    "jobs",
    "models",
    "organs",
    "plans",
    "published",
    "reports",
    "root",
    "submissions",
    "uploads",
]
