"""The pages, one file each; every page has a JSON twin at the same address, every list a CSV.

home       the first page: what this is, the registry in figures
organ      organs: the search with facets and a histogram of θ, and the page of one organ
model      models: the list, one with its anatomy, lineage and files
anatomy    the anatomy grid: blocks as rows and slots or types as columns, coloured by a reading
chimeras   chimeras: a list, and one with how it came to be, what was predicted of it
verdicts   what a runtime showed of a chimera, and validations under way
compare    two models side by side
compose    composing: what fits a base, its cells and who could give to them, the recipe's steps
lineage    lineage: families of models as graphs and as lists
reports    reports in tables, with the words that explain them
charts     charts at addresses of their own
jobs       the list of jobs, and one job with its progress and its result
account    log-in and log-out, the reader's own account, and contributors as everybody sees them
admin      administration: submissions that wait for review, the event log, contributors
reference  the API as people read it
blueprint  the blueprint of all pages
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
from organs.web.pages.blueprint import pages

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
