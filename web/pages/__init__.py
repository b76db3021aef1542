"""The pages, one module for each subject. Lists are also served as CSV. JSON addresses redirect to the API.

organs     organs: the search with its columns, filters and histogram, and the page of one organ
models     the list of models with its filters, quantisations folded
model      one model: its card with commands that use it, its anatomy, lineage and files; its forms
sizes      the sizes of a model on its page: curve, memory, and a form for more
try_it     trying a model: the form for a prompt, and the page of its answer
chimeras   the list of chimeras as a gallery; a chimera on the page of its model: donors, verdict, findings, recipe
evolutions  the list of evolutions with a form, an evolution with its trials and charts, a trial
leaderboard  the validated chimeras by their gains
compare    two models side by side
compose    composing: the choice of a base, forms that change a recipe, models that fit a base
workbench  composing on one screen: donors, the network of the base and what a click gives, the chimera so far
steps      the steps of a recipe in addresses and forms
lineage    families of models as graphs and as lists
reports    reports as tables with explanations
storage    what is stored how, and what this saves
home       the first page: introduction, and the registry in figures
search     one search for models and tensors, and the saved queries of the user
jobs       the list of jobs, and one job with its progress and its result
uploads    uploading in the browser
account    log-in and log-out, the user's own account, and the public pages of contributors
admin      administration: submissions to review, the event log, contributors
reference  the reference of the API
documentation  the documentation of the package as pages
anatomy    the drawing of a model coloured by a measure
lists      lists of what a query selects: headings that sort, filters with counts
charts     charts as separate SVG files
pictures   pictures of models and chimeras to send around, as SVG and PNG
routes     routes of pages as HTML, JSON and CSV, and of forms that write
"""

from organs.web.pages import (  # noqa: F401  # each adds its routes
    account,
    admin,
    charts,
    chimeras,
    compare,
    compose,
    documentation,
    evolutions,
    home,
    jobs,
    leaderboard,
    lineage,
    model,
    models,
    organs,
    pictures,
    reference,
    reports,
    search,
    sizes,
    storage,
    try_it,
    uploads,
)
