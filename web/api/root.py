"""The root of the API, and the document that describes it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from organs.registry.present.models import public_figures
from organs.registry.present.values import Values
from organs.web.answers import reading, settings
from organs.web.api.blueprint import ROOT
from organs.web.api.document import document
from organs.web.api.operation import operation

GROUP = "About"


@operation("", group=GROUP, summary="What answers here", answer="Root", example=ROOT)
def root() -> Values:
    """The program's version, the registry in figures, and where to go on."""
    with reading(settings().search_seconds) as session:
        numbers = public_figures(session)
    names = ("organs", "facets", "models", "compare", "reports", "jobs", "openapi.json")
    links = {name: f"{ROOT}/{name}" for name in names}
    return {"name": "Organ registry", "version": program_version(), "figures": numbers, "links": links}


@operation(
    "/openapi.json",
    group=GROUP,
    summary="This document",
    answer="Document",
    example=f"{ROOT}/openapi.json",
)
def openapi() -> Values:
    """The API as OpenAPI 3.1 describes it."""
    return document(program_version())


@cache
def program_version() -> str:
    """The version that is installed; 0 where the program runs from a folder."""
    try:
        return version("organ-registry")
    except PackageNotFoundError:
        return "0"
