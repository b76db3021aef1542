"""schemathesis against the whole OpenAPI document, over HTTP: `python -m tests.faults.api_fuzzing`.

The catalog has the shipped models and two chimeras, and the server writes; nothing works at the jobs. schemathesis
makes up requests that the document allows and requests that it forbids, and holds every answer against it: no 5xx, no
status, header or content type that is not described, no answer of another shape, nothing accepted that is forbidden.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

from ingest.jobs.kinds import KINDS
from registry.catalog.queries.jobs import active_jobs
from registry.catalog.register.jobs import cancel_job
from registry.registry import Registry
from tests.web.api.zoo import compose_chimeras, ingest_zoo
from web.app import create_app
from web.settings import WebSettings

LEFT_OUT = "positive_data_acceptance"
"""This check takes any refusal of what the schemas allow for a fault. `q` is any text to a schema; the grammar of
searches is none that a schema can say."""

EMPTIED_SECONDS = 1.0
CONFIGURATION = """
[checks]
negative_data_rejection.expected-statuses = ["400", "404", "405", "409", "413", "414", "415", "416"]
"""
"""The answers to what the document forbids: its own list lacks those to addresses and bodies that are too long."""


class _Quiet(WSGIRequestHandler):
    """Does not log a line a request."""

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002  # the name is werkzeug's
        pass


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


def main() -> int:
    """Fuzz; 0 when nothing was found."""
    options = _options()
    with TemporaryDirectory() as folder, Registry.open(Path(folder) / "home") as registry:
        ingest_zoo(registry)
        compose_chimeras(registry)
        (Path(folder) / "schemathesis.toml").write_text(CONFIGURATION, encoding="utf-8")
        tally = Tally(create_app(registry, WebSettings(personal=True)))
        Thread(target=_empty_queue, args=(registry,), daemon=True).start()
        server = make_server("127.0.0.1", 0, tally, threaded=True, request_handler=_Quiet)
        Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run(_command(server.server_port, options), cwd=folder, check=False)
        server.shutdown()
    told = ", ".join(f"{count:,} of {status}" for status, count in sorted(tally.statuses.items()))
    print(f"{sum(tally.statuses.values()):,} answers: {told}")
    broken = [status for status in tally.statuses if status.startswith("5")]
    if broken:
        print(f"the server broke: {', '.join(sorted(broken))}")
    return done.returncode or int(bool(broken))


def _empty_queue(registry: Registry) -> None:
    """Cancel what waits, for as long as the process lives: a full queue answers 503, and rightly."""
    while True:
        time.sleep(EMPTIED_SECONDS)
        with registry.catalog.writing() as session:
            for job in [job for kind in KINDS for job in active_jobs(session, kind)]:
                cancel_job(session, job.id)


def _command(port: int, options: argparse.Namespace) -> list[str]:
    return [
        *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
        *("run", f"http://127.0.0.1:{port}/api/v1/openapi.json"),
        *("--phases", "examples,coverage,fuzzing", "--checks", "all", "--exclude-checks", LEFT_OUT),
        *("--max-examples", str(options.examples), "--continue-on-failure", "--max-failures", "20"),
        *("--suppress-health-check", "all", "--warnings", "off", "--no-color"),
        *(("--seed", str(options.seed)) if options.seed is not None else ()),
        *options.more,
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--examples", type=int, default=150, help="requests made up for each operation, each way")
    parser.add_argument("--seed", type=int, help="makes up the same requests again")
    parser.add_argument("more", nargs="*", help="further options of schemathesis, behind --")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
