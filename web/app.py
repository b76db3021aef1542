"""`create_app`: the Flask application over one open registry, and the head of every page."""

from __future__ import annotations

from contextlib import suppress

from flask import Flask, g, request
from werkzeug.middleware.proxy_fix import ProxyFix

from organs.registry.compose.licenses import known_licenses
from organs.registry.errors import OrganError
from organs.registry.local import LocalRegistry
from organs.registry.measures import THETA_LEGEND
from organs.web.answer_cache import cache_answers, hide_headers
from organs.web.api.operation import api
from organs.web.auth import ADMIN, ANYBODY, UPLOAD, identity, recognise
from organs.web.downloads import artifacts, downloads
from organs.web.error_pages import answer_errors
from organs.web.file_responses import count_downloads
from organs.web.hub import hub
from organs.web.metrics import count_faults, count_requests, health, metrics
from organs.web.ollama import ollama
from organs.web.pages.documentation import documentation_address
from organs.web.pages.lists import registry_is_empty, tag_query
from organs.web.pages.routes import form_token, pages
from organs.web.permissions import may_write
from organs.web.rate_limits import Counts, SharedCounts, common_counts, limit_rates, limit_reading, take_turns
from organs.web.render import FILTERS
from organs.web.responses import REGISTRY_KEY, SETTINGS_KEY, origin, settings, twin_address
from organs.web.security import secure
from organs.web.settings import WebSettings
from organs.web.static_files import serve_static_files

SCOPED_LINKS = ((UPLOAD, "pages.upload", "Upload"), (ADMIN, "pages.admin", "Administration"))
"""Links that are shown only to users with the scope: scope, endpoint and label."""


def page_head() -> dict[str, object]:
    """Return the head of the page for the current user: `name`, `may_log_in`, `may_log_out`, and `links`.

    If the user cannot be determined because of an error, return the head for a user without an account.
    """
    if "head" not in g:
        user, writes = ANYBODY, not settings().read_only
        if request.blueprint != "api":
            with suppress(OrganError):
                user = identity()
        links = [("pages.storage", "Storage")] if user.is_local or user.may(ADMIN) else []
        if writes and (user.may(UPLOAD) or user.may(ADMIN)):
            links += [("pages.evolutions", "Evolutions"), ("pages.jobs", "Jobs")]
        links += [(endpoint, label) for scope, endpoint, label in SCOPED_LINKS if writes and user.may(scope)]
        g.head = {
            "name": user.name,
            "may_log_in": writes and user.name is None,
            "may_log_out": writes and user.account is not None,
            "links": links,
        }
    head: dict[str, object] = g.head
    return head


NAVIGATION = (
    *(("pages.models", "Models"), ("pages.compose", "Compose")),
    *(("pages.search", "Search"), ("pages.documentation", "Docs")),
)
"""Endpoint and label of the links at the top of every page."""
MORE = (
    *(("pages.organs", "Tensors"), ("pages.chimeras", "Chimeras"), ("pages.leaderboard", "Leaderboard")),
    *(("pages.lineage", "Lineage"), ("pages.compare", "Compare"), ("pages.reports", "Reports")),
    ("pages.contributors", "Contributors"),
)
"""Endpoint and label of the links in the menu of every page."""


def create_app(registry: LocalRegistry, settings: WebSettings | None = None, counts: Counts | None = None) -> Flask:
    """Return the application for the catalog of `registry`. The caller closes the registry.

    `counts` stores the counts for the rates of requests. The processes of one server share it.
    """
    settings = settings or WebSettings()
    app = Flask("organs.web", static_folder=None)
    if settings.proxies:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=settings.proxies, x_proto=settings.proxies)  # type: ignore[method-assign]
    app.extensions[REGISTRY_KEY] = registry
    app.extensions[SETTINGS_KEY] = settings
    app.jinja_env.filters.update(FILTERS, documentation=documentation_address, tag_query=tag_query)
    app.jinja_env.globals.update(NAVIGATION=NAVIGATION, MORE=MORE, THETA_LEGEND=THETA_LEGEND, twin_address=twin_address)
    app.jinja_env.globals.update(known_licenses=known_licenses, origin=origin, registry_is_empty=registry_is_empty)
    app.jinja_env.globals.update(form_token=form_token, may_write=may_write, identity=identity, page_head=page_head)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    hide_headers(app)
    count_requests(app)
    count_faults(app, registry)
    count_downloads(app, registry)
    secure(app, settings)
    answer_errors(app)
    recognise(app)
    own = counts or SharedCounts()
    limit_rates(app, common_counts(registry.catalog, own, read_only=settings.read_only), own, identity)
    cache_answers(app, settings)
    limit_reading(app, identity)
    take_turns(app, settings)
    serve_static_files(app)
    for blueprint in (pages, api, health, metrics, downloads, artifacts, hub, ollama):
        app.register_blueprint(blueprint)
    return app
