"""The query language: one grammar and one parser for the search box, the command, JSON and Python. Pure.

    type:organ slot:ffn_up,ffn_down block:5-20 theta>=45 arch:qwen2 -license:none sort:-theta coder

fields   what can be asked for, of organs and of models
terms    a query as values, and back as text
parse    text to `Query`; whatever is wrong is one sentence with the nearest right word
cursor   where a page ended, as a text that is checked when it comes back
found    what a search gives
"""

from organs.registry.catalog.search.fields import MODELS, ORGANS, Field, Vocabulary
from organs.registry.catalog.search.found import FacetCounts, FoundModel, FoundOrgan, ModelsPage, SearchPage
from organs.registry.catalog.search.parse import parse_query
from organs.registry.catalog.search.terms import Choice, Interval, Numbers, Query, Sort

__all__ = [
    "MODELS",
    "ORGANS",
    "Choice",
    "FacetCounts",
    "Field",
    "FoundModel",
    "FoundOrgan",
    "Interval",
    "ModelsPage",
    "Numbers",
    "Query",
    "SearchPage",
    "Sort",
    "Vocabulary",
    "parse_query",
]
