"""Checks of every request (host names and sizes) and security headers of every answer."""

from __future__ import annotations

from flask import Flask, Request, Response, abort, request
from werkzeug.exceptions import MethodNotAllowed

from organs.web.settings import WebSettings

BODY_MAX_BYTES = 256 * 1024
"""Maximum size of a body. A lookup of 1,000 digests needs a quarter of it. Uploads have their own limits."""
ADDRESS_MAX_LENGTH = 8000
"""Maximum length of a path and its query, in characters. The HTTP server refuses even longer ones with its own
message."""
PROBES = frozenset({"/healthz", "/metrics"})
"""Paths without a check of the host name. Programs on the same network request them by an IP address or a service name
that is not among the configured host names.

A foreign site whose name resolves to this machine (DNS rebinding) learns from `/healthz` only that this is a registry.
`/metrics` has its own check (`web.metrics`).
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
    "Referrer-Policy": "same-origin",  # `no-referrer` would also hide the origin of our own forms
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def secure(app: Flask, settings: WebSettings) -> None:
    """Add the checks before every request to `app`, and the headers to every answer."""
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
            return  # the router answers it, with the list of allowed methods
        if len(request.environ.get("QUERY_STRING", "")) + len(request.path) > ADDRESS_MAX_LENGTH:
            abort(414, f"An address has at most {ADDRESS_MAX_LENGTH} characters.")

    @app.after_request
    def add_headers(response: Response) -> Response:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if response.status_code >= 400:
            response.headers["Cache-Control"] = "no-store"
        return response


def is_served(request: Request, hosts: frozenset[str]) -> bool:
    """Return whether the host of the request is one of `hosts`; the port is ignored."""
    return "*" in hosts or requested_host(request) in hosts


def requested_host(request: Request) -> str:
    """Return the host of the request in lower case, without a port; an IPv6 address keeps its brackets."""
    host = str(request.environ.get("HTTP_HOST", ""))
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
