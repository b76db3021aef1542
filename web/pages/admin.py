"""Administration: the health of the server, reviews, the event log, contributors, fleets. Other users get 404."""

from __future__ import annotations

from contextlib import suppress

from flask import request, url_for

from organs.registry.amounts import parse_size
from organs.registry.catalog.vocabulary import CONTRIBUTOR_STATES, Action
from organs.registry.endpoints import administration as endpoints
from organs.registry.entities.account import ContributorChangeRequest
from organs.registry.entities.server import EVENT_COLUMNS
from organs.registry.errors import BadInput, BadName, NoSuchRun, NotFound
from organs.web.api import admin as administration
from organs.web.auth import ADMIN
from organs.web.error_pages import sentence_of
from organs.web.pages.account import DAYS
from organs.web.pages.routes import WebPage, list_links, list_page, paged, writing_form
from organs.web.params import parsed_number, requested
from organs.web.permissions import check_admin
from organs.web.responses import with_parameters

FIELD_MAX = 4096
"""Characters of a field of a form. A longer text is cut here; the service refuses it because of its length."""


@paged("/admin")
def admin() -> WebPage:
    """Show the registry in numbers, and the newest events."""
    check_admin()
    overview = administration.overview()
    return WebPage("admin.html", {"overview": overview}, body=overview)


@paged("/admin/health")
def admin_health() -> WebPage:
    """Show the health of the server: what needs action first, then the numbers."""
    check_admin()
    health = administration.health()
    to_do = [check for check in health.checks if check.state != "ok"]
    well = [check for check in health.checks if check.state == "ok"]
    return WebPage("admin_health.html", {"health": health, "to_do": to_do, "well": well}, body=health)


@paged("/admin/quarantine")
def admin_quarantine() -> WebPage:
    """Show the submissions held for review, with their findings."""
    check_admin()
    page = administration.quarantine(**requested(endpoints.quarantine))
    decided = None
    with suppress(NotFound):
        decided = administration.decision(parsed_number(request.args.get("decided", ""), "submission"))
    if decided is not None and decided.state not in ("published", "refused"):
        decided = None
    return list_page("admin_quarantine.html", page, extra={"decided": decided})


@writing_form("/admin/submissions/<submission>/approve", scope=ADMIN)
def admin_approve(submission: str) -> str:
    """Approve a submission, and show the submissions that still wait."""
    administration.approve_submission(parsed_number(submission, "submission"))
    return url_for("pages.admin_quarantine", decided=submission)


@writing_form("/admin/submissions/<submission>/refuse", scope=ADMIN)
def admin_refuse(submission: str) -> str:
    """Refuse a submission, and show the submissions that still wait."""
    administration.refuse(parsed_number(submission, "submission"), _field("reason"))
    return url_for("pages.admin_quarantine", decided=submission)


@paged("/admin/events", csv=True)
def admin_events() -> WebPage:
    """Show the event log, newest first, filtered by `contributor` and `action`."""
    check_admin()
    page = administration.events(**requested(endpoints.events))
    filters = {name: request.args.get(name, "").strip() for name in ("contributor", "action")}
    csv = with_parameters(url_for("pages.admin_events_csv"), filters, limit="1000")
    extra = {"filters": filters, "actions": list(Action), "csv": csv}
    return list_page("admin_events.html", page, *filters, columns=EVENT_COLUMNS, extra=extra)


@paged("/admin/contributors")
def admin_contributors() -> WebPage:
    """Show contributors with state and quota."""
    check_admin()
    return _contributors_page()


@writing_form("/admin/contributors/new", scope=ADMIN)
def admin_add_contributor() -> WebPage:
    """Add a contributor and show the first token, which no other page shows. Show the form again after a mistake."""
    name, days = _field("name").strip(), _field("days")
    try:
        if days not in dict(DAYS):
            raise BadInput("choose how long the token is valid")
        scopes = tuple(scope[:FIELD_MAX] for scope in request.form.getlist("scope"))
        created = administration.add_with_token(name, scopes, int(days))
    except (BadName, BadInput) as error:
        return _contributors_page(sentence_of(error, capital=True), name)
    return WebPage("admin_token.html", {"created": created, "contributor": name})


@paged("/admin/fleet")
def admin_fleet() -> WebPage:
    """Show the runs of fleets with their progress."""
    check_admin()
    return list_page("admin_fleet.html", administration.fleet(**requested(endpoints.fleet)))


@paged("/admin/fleet/<run>")
def admin_fleet_run(run: str) -> WebPage:
    """Show a run with its failures and its workers."""
    check_admin()
    progress = administration.fleet_progress(parsed_number(run, "run", NoSuchRun))
    return WebPage("admin_fleet_run.html", {"run": progress}, body=progress)


def _contributors_page(problem: str | None = None, name: str = "") -> WebPage:
    """Return the list with the form for a new account, which shows `problem` after a mistake."""
    page = administration.contributor_accounts(**requested(endpoints.contributor_accounts))
    form = {"problem": problem, "typed": name, "scopes": administration.FIRST_SCOPES, "days": DAYS}
    return WebPage(
        "admin_contributors.html",
        {"items": page.items, **list_links(page.next, path=url_for("pages.admin_contributors")), **form},
        next=page.next,
        body=page,
        status=400 if problem else 200,
    )


@writing_form("/admin/contributors/<contributor>/state", scope=ADMIN)
def admin_state(contributor: str) -> str:
    """Suspend or reactivate a contributor."""
    state = _field("state")
    if state not in CONTRIBUTOR_STATES:
        raise BadInput(f"a contributor is {' or '.join(CONTRIBUTOR_STATES)}")
    administration.change(contributor, ContributorChangeRequest(state=state))
    return url_for("pages.admin_contributors")


@writing_form("/admin/contributors/<contributor>/quota", scope=ADMIN)
def admin_quota(contributor: str) -> str:
    """Set the quota of a contributor; an empty field restores the default."""
    text = _field("quota").strip()
    administration.change(contributor, ContributorChangeRequest(quota=parse_size(text) if text else None))
    return url_for("pages.admin_contributors")


def _field(name: str) -> str:
    return request.form.get(name, "")[:FIELD_MAX]
