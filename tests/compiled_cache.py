"""A cache of compiled code for a test run: every test has its own registry and application, which would compile it
again.

SQLAlchemy caches the SQL of a statement by the dialect of an engine, werkzeug the code that builds an address by its
rule. Both are equal for all engines and all applications of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.util import LRUCache
from werkzeug.routing import Rule

from organs.registry.catalog import engine as product

STATEMENTS_MAX = 5000

Builder = Callable[..., tuple[str, str]]


@contextmanager
def compile_once() -> Iterator[None]:
    """Compile nothing twice inside the block."""
    with _statements_once(), _addresses_once():
        yield


@contextmanager
def _statements_once() -> Iterator[None]:
    """Give all SQLite engines of the product one dialect and one cache of compiled statements."""
    own = product._engine
    scratch = create_engine("sqlite://")
    with scratch.connect():
        pass  # from here on, its dialect has loaded the library
    scratch.dispose()
    compiled: LRUCache[object, object] = LRUCache(STATEMENTS_MAX)

    def made(url: URL, *, writes: bool) -> Engine:
        engine = own(url, writes=writes)
        if engine.dialect.name == "sqlite":
            scratch.dialect.statement_compiler = engine.dialect.statement_compiler
            engine.dialect, engine._compiled_cache = scratch.dialect, compiled
        return engine

    with patch.object(product, "_engine", made):
        yield


@contextmanager
def _addresses_once() -> Iterator[None]:
    """Share the compiled code of rules with the same text; the rule and its converters are arguments of the call."""
    own = Rule._compile_builder
    compiled: dict[object, Builder] = {}

    def made(rule: Rule, append_unknown: bool = True) -> Builder:
        if rule.defaults:
            return own(rule, append_unknown)
        known = rule.rule, tuple(rule._trace), append_unknown
        if known not in compiled:
            compiled[known] = own(rule, append_unknown)
        return compiled[known]

    with patch.object(Rule, "_compile_builder", made):
        yield
