"""The pages, one file each; every page has a JSON twin at the same address, every list a CSV.

home      the registry in figures, its top organs and newest models
organs    search: facets, a histogram of θ that filters, a ranking by any measure
organ     one organ: what was measured, where it sits, its nearest relatives
models    models and their ranking
model     one model: the anatomy grid, its types, its lineage, its files
anatomy   the grid behind that page; pure
chimeras  what was composed here: a list, and one with its recipe, prediction and verdict
donors    where its organs come from, as letters; pure
verdicts  what a runtime showed of it, as a table; pure
compare   two models side by side
compose   a base, then its cells and who could give to them, what it comes to, and the chimera into the queue
composing what such a page is asked for, and the addresses of others
workbench the page with a base chosen
cells     its grid; pure
fits      what fits a base, and why not
lineage   families of models as graphs and lists
reports   what was measured, in tables with words: of all models, and of one
sections  a section of a report for a page
charts    pictures of an organ's values and of θ along a model
validating jobs that validate a chimera, and whether this server can
jobs      what takes longer than a request: a list, and one with its progress
outcomes  what came of one; pure
login     logging in by a token, and out
account   one's own models, uploads, quota and tokens
contributors who contributes: a list, and one with their models
published what owners do with a published model: edit, yank, restore
admin     what waits for administrators, the event log, contributors
uploading files on their way in, and what is submitted
reference the API, from the document that describes it
"""

from organs.web.pages import (
    account,
    admin,
    charts,
    chimeras,
    compare,
    compose,
    contributors,
    fits,
    home,
    jobs,
    lineage,
    login,
    model,
    models,
    organ,
    organs,
    published,
    reference,
    reports,
    uploading,
)
from organs.web.pages.blueprint import pages

__all__ = [
    "account",
    "admin",
    "charts",
    "chimeras",
    "compare",
    "compose",
    "contributors",
    "fits",
    "home",
    "jobs",
    "lineage",
    "login",
    "model",
    "models",
    "organ",
    "organs",
    "pages",
    "published",
    "reference",
    "reports",
    "uploading",
]
