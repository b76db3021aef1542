"""`create_app`: the Flask application over one open registry."""

from __future__ import annotations

from flask import Flask, Response, current_app, jsonify, render_template, request
from werkzeug.exceptions import HTTPException

from registry.errors import Ambiguous, BadDigest, BadName, Busy, NotFound, OrganError
from registry.registry import Registry
from web.health import health
from web.pages import pages, wants_json

REGISTRY_KEY = "organ_registry"

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_STATUS: tuple[tuple[type[OrganError], int], ...] = (
    (NotFound, 404),
    (BadName, 404),
    (BadDigest, 404),
    (Ambiguous, 409),
    (Busy, 503),
)


def create_app(registry: Registry) -> Flask:
    """The catalog of `registry`, which the caller closes."""
    app = Flask("web")
    app.extensions[REGISTRY_KEY] = registry
    app.register_blueprint(pages)
    app.register_blueprint(health)
    app.register_error_handler(OrganError, _refused)
    app.register_error_handler(HTTPException, _http_error)
    app.after_request(_secured)
    return app


def _secured(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    if response.status_code >= 400:
        response.headers["Cache-Control"] = "no-store"
    return response


def _refused(error: OrganError) -> tuple[str | Response, int]:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    if status >= 500:
        current_app.logger.error("%s", error, exc_info=error)
    sentence = str(error) if status < 500 else "The registry cannot answer just now; its log says why."
    return _error_body(sentence, status), status


def _http_error(error: HTTPException) -> tuple[str | Response, int]:
    status = error.code or 500
    return _error_body(error.description or error.name, status), status


def _error_body(sentence: str, status: int) -> str | Response:
    if wants_json(request.path):
        return jsonify(ok=False, error=sentence, errors=[{"field": None, "sentence": sentence}], status=status)
    return render_template("error.html", sentence=sentence, status=status)
