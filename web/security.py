"""Checks of every request and headers of every answer: host names, sizes, and what browsers are allowed to do."""

from __future__ import annotations

from flask import Flask, Request, Response, abort, request
from werkzeug.exceptions import MethodNotAllowed

from organs.web.settings import WebSettings

BODY_MAX_BYTES = 256 * 1024
"""A lookup of a thousand digests takes a quarter of it. Uploads will have limits of their own."""
ADDRESS_MAX_LENGTH = 8000
"""Of a path and its query, in characters. The HTTP server itself refuses longer ones, in words of its own."""
PROBES = frozenset({"/healthz", "/metrics"})
"""Addresses that programs on the same network ask for by an IP address or a service's name, which nobody configures.

A page of another site whose name leads here (DNS rebinding) learns from `/healthz` only that this is a registry, and
`/metrics` has a check of its own (`web.metrics`).
"""

_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",  # with none, browsers hide where our own forms come from
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def secure(app: Flask, settings: WebSettings) -> None:
    """Put the checks before every request to `app`, and the headers on every answer."""
    app.config["MAX_CONTENT_LENGTH"] = BODY_MAX_BYTES
    app.config["MAX_FORM_MEMORY_SIZE"] = BODY_MAX_BYTES
    app.config["MAX_FORM_PARTS"] = 100

    @app.before_request
    def check() -> None:
        if request.path not in PROBES and not is_served(request, settings.hosts):
            abort(
                421,
                "This server does not accept this host name. An administrator can allow it: --allow-host NAME.",
            )
        if isinstance(request.routing_exception, MethodNotAllowed):
            return  # is answered by the router, with the methods that are allowed
        if len(request.environ.get("QUERY_STRING", "")) + len(request.path) > ADDRESS_MAX_LENGTH:
            abort(414, f"An address has at most {ADDRESS_MAX_LENGTH} characters.")

    app.after_request(_with_headers)


def is_served(request: Request, hosts: frozenset[str]) -> bool:
    """Return whether the request asks for one of `hosts`, whatever the port."""
    return "*" in hosts or requested_host(request) in hosts


def requested_host(request: Request) -> str:
    """Return the host that the request asks for, in lower case, without a port; an IPv6 address keeps its brackets."""
    host = str(request.environ.get("HTTP_HOST", ""))
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def _with_headers(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    if response.status_code >= 400:
        response.headers["Cache-Control"] = "no-store"
    return response
