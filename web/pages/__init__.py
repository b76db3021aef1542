"""The pages, one module for each subject; every page has a JSON twin at the same address, every list a CSV.

routes     routes of pages with their twins, and forms that write
home       the first page: introduction, and the registry in figures
organ      organs: the search with counts and a histogram, and the page of one organ
model      models: the list, one with its anatomy, lineage and files; editing
anatomy    the anatomy grid: blocks as rows, slots or types as columns, coloured by a measure
chimeras   chimeras: the list, and one with its origin and its prediction
verdicts   results of validations, and validations in progress
compare    two models side by side
compose    composing: models that fit a base, its cells and their candidates, the steps of a recipe
lineage    families of models as graphs and as lists
reports    reports as tables with explanations
charts     charts at addresses of their own
jobs       the list of jobs, and one job with its progress and its result
account    log-in and log-out, the user's own account, and the public pages of contributors
admin      administration: submissions to review, the event log, contributors
reference  the API as a page
uploads    uploading in the browser
"""

from organs.web.pages import (
    account,
    admin,
    charts,
    chimeras,
    compare,
    compose,
    home,
    jobs,
    lineage,
    model,
    organ,
    reference,
    reports,
    uploads,
)
from organs.web.pages.routes import pages

__all__ = [
    "account",
    "admin",
    "charts",
    "chimeras",
    "compare",
    "compose",
    "home",
    "jobs",
    "lineage",
    "model",
    "organ",
    "pages",
    "reference",
    "reports",
    "uploads",
]
