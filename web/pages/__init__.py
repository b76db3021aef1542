"""The pages, one file each; every page has a JSON twin at the same address, every list a CSV.

home      the registry in figures, its top organs and newest models
organs    search: facets, a histogram of θ that filters, a ranking by any measure
organ     one organ: what was measured, where it sits, its nearest relatives
models    models and their ranking
model     one model: the anatomy grid, its types, its lineage, its files
anatomy   the grid behind that page; pure
compare   two models side by side
lineage   families of models as graphs and lists
reports   what was measured, in tables with words: of all models, and of one
sections  a section of a report for a page
charts    pictures of an organ's values and of θ along a model
reference the API, from the document that describes it
"""

from web.pages import charts, compare, home, lineage, model, models, organ, organs, reference, reports
from web.pages.blueprint import pages

__all__ = [
    "charts",
    "compare",
    "home",
    "lineage",
    "model",
    "models",
    "organ",
    "organs",
    "pages",
    "reference",
    "reports",
]
