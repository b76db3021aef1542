"""Administration: the health of the server, reviews, the event log, contributors, fleets. Other users get 404."""

from __future__ import annotations

from flask import g, request, url_for

from organs.registry.amounts import parse_size
from organs.registry.catalog.queries.administration import (
    admin_overview,
    all_contributors,
    waiting_submissions,
)
from organs.registry.catalog.queries.events import newest_events
from organs.registry.catalog.queries.fleet import fleet_run, fleet_runs
from organs.registry.catalog.vocabulary import CONTRIBUTOR_STATES, Action
from organs.registry.entities.account import ContributorChangeRequest
from organs.registry.entities.administration import Event
from organs.registry.entities.report import Cell
from organs.registry.errors import BadInput, BadName
from organs.web.api.admin import EVENTS_SHOWN
from organs.web.auth import ADMIN
from organs.web.pages.account import DAYS
from organs.web.pages.routes import Context, Page, Sheet, paged, pages, writing_form
from organs.web.params import (
    parsed_run,
    requested_after,
    requested_limit,
)
from organs.web.responses import reading, registry, settings, with_parameters
from organs.web.services import administration
from organs.web.services.administration import check_admin
from organs.web.services.health import server_health

EVENT_COLUMNS = ("id", "at", "contributor", "action", "model", "text")
"""Columns of the event log as CSV."""
FIELD_MAX = 4096
"""Characters of a field of a form. A longer text is cut here; the service refuses it because of its length."""


@paged(pages, "/admin")
def admin() -> Page:
    """Show the registry in numbers, and the newest events."""
    check_admin()
    with reading(settings().search_seconds) as session:
        overview = admin_overview(session, EVENTS_SHOWN)
    return Page("admin.html", {"overview": overview}, entity=overview)


@paged(pages, "/admin/health")
def admin_health() -> Page:
    """Show the health of the server: what needs action first, then the numbers."""
    check_admin()
    health = server_health()
    to_do = [check for check in health.checks if check.state != "ok"]
    return Page(
        "admin_health.html",
        {"health": health},
        extra=lambda: {"to_do": to_do, "well": [check for check in health.checks if check.state == "ok"]},
        entity=health,
    )


@paged(pages, "/admin/quarantine")
def admin_quarantine() -> Page:
    """Show the submissions held for review, with their findings."""
    check_admin()
    limit, after = requested_limit(), requested_after()
    with reading(settings().search_seconds) as session:
        page = waiting_submissions(session, limit, after)
    decided = administration.decided(request.args.get("decided", ""))
    return Page(
        "admin_quarantine.html",
        {"items": page.items},
        extra=lambda: _context(page.next) | {"decided": decided},
        next=page.next,
        entity=page,
    )


@writing_form(pages, "/admin/submissions/<submission>/approve", scope=ADMIN)
def admin_approve(submission: str) -> str:
    """Approve a submission, and show the submissions that still wait."""
    administration.approve(submission)
    return url_for("pages.admin_quarantine", decided=submission)


@writing_form(pages, "/admin/submissions/<submission>/refuse", scope=ADMIN)
def admin_refuse(submission: str) -> str:
    """Refuse a submission, and show the submissions that still wait."""
    administration.refuse(submission, _field("reason"))
    return url_for("pages.admin_quarantine", decided=submission)


@paged(pages, "/admin/events", csv=True)
def admin_events() -> Page:
    """Show the event log, newest first, filtered by `contributor` and `action`."""
    check_admin()
    limit, after = requested_limit(), requested_after()
    contributor, action = request.args.get("contributor", "").strip(), request.args.get("action", "").strip()
    with reading(settings().search_seconds) as session:
        page = newest_events(session, limit, after, contributor, action)
    filters = {"contributor": contributor, "action": action}
    return Page(
        "admin_events.html",
        {"items": page.items},
        extra=lambda: _context(page.next, filters) | {"filters": filters, "actions": list(Action)},
        sheet=lambda: Sheet(EVENT_COLUMNS, [_event_row(event) for event in page]),
        next=page.next,
        entity=page,
    )


@paged(pages, "/admin/contributors")
def admin_contributors() -> Page:
    """Show contributors with state and quota."""
    check_admin()
    return _contributors_page()


@writing_form(pages, "/admin/contributors/new", scope=ADMIN)
def admin_add_contributor() -> Page:
    """Add a contributor and show the first token, which no other page shows. Show the form again after a mistake."""
    name, days = _field("name").strip(), _field("days")
    try:
        if days not in dict(DAYS):
            raise BadInput("choose how long the token is valid")
        scopes = tuple(scope[:FIELD_MAX] for scope in request.form.getlist("scope"))
        created = administration.add_with_token(name, scopes, int(days))
    except (BadName, BadInput) as error:
        text = str(error)
        return _contributors_page(f"{text[:1].upper()}{text[1:]}.", name)
    return Page("admin_token.html", {"created": created, "contributor": name})


@paged(pages, "/admin/fleet")
def admin_fleet() -> Page:
    """Show the runs of fleets with their progress."""
    check_admin()
    g.not_cached = True  # the speed changes with the time
    limit, after = requested_limit(), requested_after()
    with reading(settings().search_seconds) as session:
        page = fleet_runs(session, limit, after)
    return Page(
        "admin_fleet.html", {"items": page.items}, extra=lambda: _context(page.next), next=page.next, entity=page
    )


@paged(pages, "/admin/fleet/<run>")
def admin_fleet_run(run: str) -> Page:
    """Show a run with its failures and its workers."""
    check_admin()
    g.not_cached = True
    run_id = parsed_run(run)
    with reading(settings().search_seconds) as session:
        progress = fleet_run(session, run_id)
    return Page("admin_fleet_run.html", {"run": progress}, entity=progress)


def _contributors_page(problem: str | None = None, name: str = "") -> Page:
    """Return the list with the form for a new account, which shows `problem` after a mistake."""
    limit, after = requested_limit(), requested_after()
    with reading(settings().search_seconds) as session:
        page = all_contributors(session, limit, after, default_bytes=registry().settings.quota_bytes)
    form = {"problem": problem, "typed": name, "scopes": administration.FIRST_SCOPES, "days": DAYS}
    return Page(
        "admin_contributors.html",
        {"items": page.items},
        extra=lambda: _context(page.next, path=url_for("pages.admin_contributors")) | form,
        next=page.next,
        entity=page,
        status=400 if problem else 200,
    )


@writing_form(pages, "/admin/contributors/<contributor>/state", scope=ADMIN)
def admin_state(contributor: str) -> str:
    """Suspend or reactivate a contributor."""
    state = _field("state")
    if state not in CONTRIBUTOR_STATES:
        raise BadInput(f"a contributor is {' or '.join(CONTRIBUTOR_STATES)}")
    administration.change(contributor, ContributorChangeRequest(state=state))
    return url_for("pages.admin_contributors")


@writing_form(pages, "/admin/contributors/<contributor>/quota", scope=ADMIN)
def admin_quota(contributor: str) -> str:
    """Set the quota of a contributor; an empty field restores the default."""
    text = _field("quota").strip()
    administration.change(contributor, ContributorChangeRequest(quota=parse_size(text) if text else None))
    return url_for("pages.admin_contributors")


def _field(name: str) -> str:
    return request.form.get(name, "")[:FIELD_MAX]


def _event_row(event: Event) -> list[Cell]:
    return [event.id, event.at.isoformat(), event.contributor, event.action, event.model, event.text]


def _context(following: str | None, filters: dict[str, str] | None = None, path: str | None = None) -> Context:
    parameters = dict(filters or {})
    limit, path = request.args.get("limit", ""), path or request.path
    links: Context = {
        "following": following and with_parameters(path, {**parameters, "after": following}, limit=limit),
        "first": with_parameters(path, parameters, limit=limit) if request.args.get("after") else None,
    }
    if filters is not None:
        links["csv"] = with_parameters(url_for("pages.admin_events_csv"), parameters, limit="1000")
    return links
