"""Addresses within the catalog, and which addresses from outside may be links at all."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from flask import request, url_for

from organs.registry.catalog.search import Query
from organs.registry.catalog.search.parse import short_text

LINK_MAX_LENGTH = 2000
_ADDRESS = re.compile(r"https?://[A-Za-z0-9._~:/?#\[\]@!$&()*+,;=%-]+", re.IGNORECASE)


def organ_address(digest: str) -> str:
    """The page of the organ of that digest."""
    return f"{request.script_root}/organs/{digest}"  # `url_for` takes twenty times as long, and lists have many


def model_address(name: str, endpoint: str = "pages.model", **more: Any) -> str:
    """The page of the model `namespace/name` or `namespace/name@version`, or another endpoint for it."""
    if endpoint == "pages.model" and not more:
        return f"{request.script_root}/models/{quote(name, safe='/@')}"
    namespace, _, rest = name.partition("/")
    return url_for(endpoint, namespace=namespace, name=rest, **more)


def query_address(endpoint: str, query: Query, **more: str) -> str:
    """The list of what `query` finds."""
    return with_parameters(url_for(endpoint), {"q": short_text(query)}, **more)


def with_parameters(path: str, parameters: dict[str, str], **more: str) -> str:
    """`path` with `parameters`, those of `more` replaced; empty ones are left out."""
    kept = {name: value for name, value in {**parameters, **more}.items() if value}
    return quote(path, safe="/@:+~") + (f"?{urlencode(kept, safe=':,/*>=<-')}" if kept else "")


def twin_address() -> str:
    """The JSON twin of the page that is being made."""
    path = "/index" if request.path == "/" else request.path
    return with_parameters(f"{request.script_root}{path}.json", request.args.to_dict())


def outside_link(text: object) -> str | None:
    """`text` when it is an address that a page may link to: http or https, with a host, no quotes, no password."""
    if not isinstance(text, str) or len(text) > LINK_MAX_LENGTH or not _ADDRESS.fullmatch(text):
        return None
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:
        return None
    return text if host and parts.username is None and parts.password is None else None
