"""The API below `/api/v1`: read-only, described by the OpenAPI document that is made from its routes.

blueprint    the blueprint and its root
operation    a route together with its description; what all requests have in common
parameters   parameters that operations share
body         a body of JSON, read strictly
refusals     what is refused, by field
root, organs, models, reports   the operations
downloads    what is said of downloads, which `web.downloads` serves
schemas      what answers look like
examples     real answers, shortened
document     the OpenAPI document
"""

from web.api import models, organs, reports, root
from web.api.blueprint import ROOT, api

__all__ = ["ROOT", "api", "models", "organs", "reports", "root"]
