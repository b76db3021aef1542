"""The server: its version and figures, and the OpenAPI document."""

from __future__ import annotations

from organs.registry.endpoints.declaration import Group
from organs.registry.entities.base import Schema
from organs.registry.entities.server import Root

GROUP = Group("About", "The version of the server, and this document.")


@GROUP.get("", "About this server")
def root() -> Root:
    """Return the version of the program, figures of the registry, and links."""


@GROUP.get("/openapi.json", "This document")
def openapi() -> Schema:
    """Return the OpenAPI 3.1 document of the API."""
