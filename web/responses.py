"""Responses: pages as HTML, lists as CSV, entities as JSON; and links within the catalog."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from flask import Response, current_app, request, url_for
from sqlalchemy.orm import Session

from organs.registry.entities.base import encode
from organs.registry.local import LocalRegistry
from organs.web.settings import WebSettings

LINK_MAX_LENGTH = 2000
_ADDRESS = re.compile(r"https?://[A-Za-z0-9._~:/?#\[\]@!$&()*+,;=%-]+", re.IGNORECASE)


def origin() -> str:
    """Return the address of this server as the client uses it, for commands on pages."""
    return request.url_root.rstrip("/")


def organ_address(digest: str) -> str:
    """Return the address of the page of the organ with that digest."""
    return f"{request.script_root}/organs/{digest}"  # `url_for` takes 20 times as long, and lists have many links


def model_address(name: str, endpoint: str = "pages.model", **more: Any) -> str:
    """Return the address of `endpoint`, by default the page, for `namespace/name` or `namespace/name@version`."""
    if endpoint == "pages.model" and not more:
        return f"{request.script_root}/models/{quote(name, safe='/@')}"
    namespace, _, rest = name.partition("/")
    return url_for(endpoint, namespace=namespace, name=rest, **more)


def with_parameters(path: str, parameters: dict[str, str], **more: str) -> str:
    """Return `path` with `parameters` and `more`, which has precedence. Empty parameters are left out."""
    query = {name: value for name, value in {**parameters, **more}.items() if value}
    return quote(path, safe="/@:+~") + (f"?{urlencode(query, safe=':,/*>=<-')}" if query else "")


def twin_address() -> str:
    """Return the address of the JSON twin of this page."""
    path = "/index" if request.path == "/" else request.path
    return with_parameters(f"{request.script_root}{path}.json", request.args.to_dict())


def outside_link(text: object) -> str | None:
    """Return `text` if a page may link to it, otherwise None.

    The scheme must be http or https. The address must have a host, and neither quotes, a user nor a password.
    """
    if not isinstance(text, str) or len(text) > LINK_MAX_LENGTH or not _ADDRESS.fullmatch(text):
        return None
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:
        return None
    return text if host and parts.username is None and parts.password is None else None


REGISTRY_KEY = "organ_registry"
SETTINGS_KEY = "organ_settings"
JSON_SUFFIX, CSV_SUFFIX = ".json", ".csv"
API_PREFIX = "/api/"


def json_answer(value: object, status: int = 200) -> Response:
    """Return `value`, an entity or plain values, as a JSON answer."""
    return current_app.response_class(encode(value) + b"\n", status=status, mimetype="application/json")


def conditional(answer: Response) -> Response:
    """Return `answer` with an ETag of its bytes, or 304 without a body if the client already has these bytes."""
    answer.headers.setdefault("Cache-Control", "no-cache")  # browsers store it and revalidate it
    answer.add_etag()
    answer.make_conditional(request)
    return answer


def next_address(after: str) -> str:
    """Return the address of this request with another `after`, escaped for the header `Link`."""
    address = with_parameters(request.script_root + request.path, request.args.to_dict(), after=after)
    return address.replace("<", "%3C").replace(">", "%3E")


def wants_json(path: str) -> bool:
    """Return whether `path` is the address of a JSON twin or of the API."""
    return path.endswith(JSON_SUFFIX) or path.startswith(API_PREFIX)


def plain_page() -> bool:
    """Return whether the answer is a page for people: neither JSON nor CSV."""
    return not wants_json(request.path) and not wants_csv(request.path)


def wants_csv(path: str) -> bool:
    """Return whether `path` is the address of a list as CSV."""
    return path.endswith(CSV_SUFFIX)


def registry() -> LocalRegistry:
    """Return the registry that this application serves."""
    opened: LocalRegistry = current_app.extensions[REGISTRY_KEY]
    return opened


def settings() -> WebSettings:
    """Return the settings of this application."""
    configured: WebSettings = current_app.extensions[SETTINGS_KEY]
    return configured


@contextmanager
def reading(seconds: float | None = None) -> Iterator[Session]:
    """Yield a session that reads the catalog. With `seconds`, a query that takes longer raises TooSlow."""
    with registry().catalog.reading(seconds) as session:
        yield session


@contextmanager
def searching() -> Iterator[Session]:
    """Yield a session that reads the catalog. A query that takes longer than searches may take raises TooSlow."""
    with reading(settings().search_seconds) as session:
        yield session
