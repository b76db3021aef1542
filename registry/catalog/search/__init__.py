"""The query language: one grammar and one parser for the search box, the command, JSON and Python. Pure.

type:organ slot:ffn_up,ffn_down block:5-20 theta>=45 arch:qwen2 -license:none sort:-theta coder

    fields  the fields of the query language
    terms   a query as values
    parse   text to `Query`, and queries made narrower, wider or sorted otherwise
    cursor  where a page ended: the last row's sort value and id, bound to its query
"""

from organs.registry.catalog.search.fields import MODELS, ORGANS, Field, Vocabulary
from organs.registry.catalog.search.parse import parse_query
from organs.registry.catalog.search.terms import Choice, Interval, Numbers, Query, Sort

__all__ = [
    "MODELS",
    "ORGANS",
    "Choice",
    "Field",
    "Interval",
    "Numbers",
    "Query",
    "Sort",
    "Vocabulary",
    "parse_query",
]
