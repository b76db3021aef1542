"""Fuzz the whole OpenAPI document with schemathesis, over HTTP: `make fuzz-api`.

The catalog has the shipped models and two chimeras, uploads, submissions and models held for review. The server accepts
writing only from accounts, and no runner works on the jobs. schemathesis sends a token with every request. It makes
requests that the document allows and requests that it forbids, and checks every answer against it: no 5xx, no
undocumented status, header or content type, no answer of another form, no accepted request that is forbidden or that
came without a token. Rate limits are disabled here; they have tests of their own.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import Any

from sqlalchemy import update
from werkzeug.serving import WSGIRequestHandler, make_server

from organs.ingest.contributions.submissions import withdraw
from organs.ingest.contributions.uploads import cancel
from organs.ingest.jobs.runner import KINDS
from organs.registry.catalog.queries.jobs import active_jobs
from organs.registry.catalog.queries.submissions import open_submissions, open_uploads
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.jobs import cancel_job
from organs.registry.catalog.tables import ContributorRow, SubmissionRow, Token, now
from organs.registry.endpoints.submissions import EXAMPLE_SUBMISSIONS as SUBMISSIONS
from organs.registry.endpoints.uploads import EXAMPLES as UPLOADS
from organs.registry.errors import Conflict, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.tokens import new_token, parse_token
from organs.web.app import create_app
from organs.web.rate_limits import RATES_KEY, Rate, Rates, SharedCounts
from tests.faults.hostile.harness import Arena, Case, Options, Suite
from tests.web.accounts import authorization
from tests.web.api.admin_registry import put_waiting
from tests.web.api.zoo import compose_chimeras, ingest_zoo, put_accounts, put_jobs, put_submissions, put_uploads

LEFT_OUT = "positive_data_acceptance"
"""This check reports a refusal of anything that the schemas allow. For a schema, `q` is any text; the grammar of
searches cannot be written as a schema."""

EMPTIED_SECONDS = 0.3
CONFIGURATION = """
[checks]
negative_data_rejection.expected-statuses = [
  "400", "401", "403", "404", "405", "409", "411", "413", "414", "415", "416", "429"
]
"""
"""The statuses for forbidden requests: the default list lacks those for over-long addresses and bodies."""
ACCOUNT = "/api/v1/account"


class _Quiet(WSGIRequestHandler):
    """A handler without a log. Refuses addresses over 64 KiB before the application, as `organ serve` does."""

    error_content_type = "application/problem+json"
    error_message_format = (
        '{"type":"about:blank","title":"%(message)s","status":%(code)d,"detail":"%(explain)s","code":"uri-too-long",'
        '"errors":[]}'
    )

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002  # the name is werkzeug's
        pass


class _Generous(Rates):
    """Rate limits that are never exceeded."""

    def hit(self, rate: Rate, client: str, cost: int = 1) -> None:
        """Count nothing."""

    def check(self, rate: Rate, client: str) -> None:
        """Refuse nothing."""


class Tally:
    """Counts the answers of an application by their status."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = Lock()
        self.statuses: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def start(status: str, *more: Any) -> Any:
            with self._lock:
                self.statuses[status[:3]] += 1
            return start_response(status, *more)

        return self._application(environ, start)


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[list[Case]]:
    """Serve the application with everything that the examples of the document name; afterwards count the answers."""
    with LocalRegistry.open(arena.home) as registry:
        token = _prepare(registry)
        (arena.folder / "schemathesis.toml").write_text(CONFIGURATION, encoding="utf-8")
        app = create_app(registry)
        app.extensions[RATES_KEY] = _Generous(SharedCounts(), SharedCounts())
        tally = Tally(app)
        stop = Event()
        room = Thread(target=_make_room, args=(registry, token, stop), daemon=True)
        room.start()
        server = make_server("127.0.0.1", 0, tally, threaded=True, request_handler=_Quiet)
        Thread(target=server.serve_forever, daemon=True).start()

        def fuzz() -> str:
            done = subprocess.run(_command(server.server_port, token, options), cwd=arena.folder, check=False)
            assert done.returncode == 0, "schemathesis has found what it prints above"
            return "as described"

        yield [Case("api", "every operation", fuzz)]
        server.shutdown()
        stop.set()
        room.join()
        still = app.test_client().get(ACCOUNT, headers=authorization(token)).status_code
    counts = ", ".join(f"{count:,} of {status}" for status, count in sorted(tally.statuses.items()))
    arena.report.figures.append(f"{sum(tally.statuses.values()):,} answers: {counts}")
    broken = [status for status in tally.statuses if status.startswith("5")]
    arena.report.expect(not broken, f"the server broke: {broken}")
    arena.report.expect(still == 200, f"the token was good for nothing at the end, answered {still}")


def _prepare(registry: LocalRegistry) -> str:
    """Create everything that the examples of the document name; return a token of the owner `local` with all scopes."""
    ingest_zoo(registry)
    compose_chimeras(registry)
    put_accounts(registry)
    put_jobs(registry)
    put_uploads(registry)
    put_submissions(registry)
    put_waiting(registry)
    made = new_token()  # `local` cannot get a token, so it is inserted directly
    with registry.catalog.writing() as session:
        row = Token(public_id=made.public_id, secret_sha256=made.sha256, scopes="read upload admin", label="fuzzing")
        row.contributor_id, row.created_at = contributor_id(session, LOCAL), now()
        session.add(row)
    return made.text


def _make_room(registry: LocalRegistry, token: str, stop: Event) -> None:
    """End waiting and open items, again and again until `stop` is set: a full queue correctly answers 503, and too many
    items of one account 429. Restore the items that the examples name, the accounts, and the token, because a request
    may have suspended the account."""
    called = parse_token(token).public_id
    while not stop.wait(EMPTIED_SECONDS):
        with registry.catalog.writing() as session:
            for job in [job for kind in KINDS for job in active_jobs(session, kind)]:
                cancel_job(session, job.id)
            owner_id = contributor_id(session, LOCAL)
            session.execute(update(ContributorRow).values(state="active", quota_bytes=None))
            session.execute(update(Token).where(Token.public_id == called).values(revoked_at=None))
            named = {int(number) for number in SUBMISSIONS.values()}
            for number in named:
                row = session.get_one(SubmissionRow, number)
                row.state = "published" if number == int(SUBMISSIONS["shown"]) else "ready"
            waiting = [row.id for row in open_submissions(session, owner_id) if row.id not in named]
            under_way = [row.public_id for row in open_uploads(session, owner_id, now())]
        with suppress(Conflict, NotFound):
            for submission_id in waiting:
                withdraw(registry, LOCAL, submission_id)
            for public_id in set(under_way) - set(UPLOADS.values()):
                cancel(registry, owner_id, public_id)


def _command(port: int, token: str, options: Options) -> list[str]:
    return [
        *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
        *("run", f"http://127.0.0.1:{port}/api/v1/openapi.json"),
        *("--phases", "examples,coverage,fuzzing", "--checks", "all", "--exclude-checks", LEFT_OUT),
        *("--header", f"Authorization: Bearer {token}"),
        *("--max-examples", str(options.examples), "--continue-on-failure", "--max-failures", "20"),
        *("--suppress-health-check", "all", "--warnings", "off", "--no-color"),
        *(("--seed", str(options.seed)) if options.seed else ()),
    ]


SUITE = Suite(opened, {"examples": 150, "seed": 0})
"""`examples` is the number of requests made up for each operation, each way; a `seed` makes up the same ones again."""
