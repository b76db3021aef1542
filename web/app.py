"""`create_app`: the Flask application over one open registry. It only wires; nothing happens at import."""

from __future__ import annotations

from flask import Flask
from limits.storage import Storage
from werkzeug.middleware.proxy_fix import ProxyFix

from organs.registry.registry import Registry
from organs.web.answers import REGISTRY_KEY, SETTINGS_KEY
from organs.web.api import api
from organs.web.concurrency import take_turns
from organs.web.counting import count_downloads
from organs.web.downloads import downloads
from organs.web.errors import answer_errors
from organs.web.forms import form_token
from organs.web.head import page_head
from organs.web.health import health
from organs.web.hub import hub
from organs.web.identity import identity, recognise
from organs.web.links import twin_address
from organs.web.made import made
from organs.web.memory import hide_headers, remember_answers
from organs.web.metrics import count_requests, metrics
from organs.web.pages import pages
from organs.web.rates import SharedCounts, limit_rates, limit_reading
from organs.web.security import secure
from organs.web.settings import WebSettings
from organs.web.shown import FILTERS
from organs.web.writing import may_write

NAVIGATION = (
    *(("pages.organs", "Organs"), ("pages.models", "Models"), ("pages.compare", "Compare")),
    *(("pages.compose", "Compose"), ("pages.lineage", "Lineage"), ("pages.reports", "Reports")),
    ("pages.reference", "API"),
)
"""Endpoint and label of what stands at the head of every page."""


def create_app(registry: Registry, settings: WebSettings | None = None, counts: Storage | None = None) -> Flask:
    """Return the catalog of `registry`, which the caller closes.

    `counts` hold what is counted for the rates of requests: the processes of one server share them.
    """
    settings = settings or WebSettings()
    app = Flask("organs.web")
    if settings.proxies:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=settings.proxies, x_proto=settings.proxies)  # type: ignore[method-assign]
    app.extensions[REGISTRY_KEY] = registry
    app.extensions[SETTINGS_KEY] = settings
    app.jinja_env.filters.update(FILTERS)
    app.jinja_env.globals.update(NAVIGATION=NAVIGATION, twin_address=twin_address)
    app.jinja_env.globals.update(form_token=form_token, may_write=may_write, identity=identity, page_head=page_head)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    hide_headers(app)
    count_requests(app)
    count_downloads(app, registry)
    secure(app, settings)
    answer_errors(app)
    recognise(app)
    limit_rates(app, counts or SharedCounts())
    remember_answers(app, settings)
    limit_reading(app)
    take_turns(app, settings)
    for blueprint in (pages, api, health, metrics, downloads, made, hub):
        app.register_blueprint(blueprint)
    return app
