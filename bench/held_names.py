"""Measure whether the time of an answer tells that a hidden model exists: its name beside ten names that no model has.

    python -m bench.held_names                  fills a catalog first, which takes a minute
    python -m bench.held_names --home FOLDER    keeps it there, or uses the catalog that is there
    python -m bench.held_names --rounds 200

Somebody without an account requests each route with the name of a model in quarantine, and with the absent names, in
turns and in random order. A route with a digest gets that of its header or of its organ, and digests of nothing. The
difference of the medians should be inside the spread of the absent names.
"""

from __future__ import annotations

import argparse
import http.client
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from bench.load import Server, served
from bench.populated import digest_of, populated
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.catalog.tables import Blob, ModelRow, OrganRow, Placement

CONTROLS = 10
NAMESPACE, STEM = "lab-7", "llama-sailor-9"
HELD = f"{STEM}00"
MODEL_ROUTES = (
    "/api/v1/models/{}",
    "/api/v1/models/{}/versions",
    "/models/{}",
    "/api/models/{}",
    "/v2/{}/manifests/latest",
    "/{}/resolve/main/README.md",
    "/api/v1/organs?q=model:{}",
)
DIGEST_ROUTES = ("/api/v1/headers/{}",)
ORGAN_ROUTES = ("/api/v1/organs/{}", "/organs/{}", "/organs/{}.raw")


def main() -> None:
    """Fill or open the catalog, hide a model, serve it, send requests, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="a folder for the catalog, to keep it")
    parser.add_argument("--placements", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or Path(folder)
        with populated(home, options.placements) as registry, registry.catalog.writing() as session:
            digest, organ = hidden(session)
        absent = [digest_of("nothing", number) for number in range(CONTROLS)]
        names = [f"{NAMESPACE}/{STEM}{number:02}" for number in range(1, CONTROLS + 1)]
        with served(home, sys.executable, "--accounts") as server:
            print(f"{'':36}{'held':>8}{'absent':>8}{'difference':>12}{'spread of absent':>18}  ms")
            measure(server, MODEL_ROUTES, f"{NAMESPACE}/{HELD}", names, options.rounds)
            measure(server, DIGEST_ROUTES, digest, absent, options.rounds)
            measure(server, ORGAN_ROUTES, organ, absent, options.rounds)


def hidden(session: Session) -> tuple[str, str]:
    """Quarantine one model; return its digest, and that of an organ that only it has."""
    own = (ModelRow.namespace == NAMESPACE, ModelRow.name == HELD)
    model = session.scalars(select(ModelRow).where(*own)).one_or_none()
    if model is None:
        model = session.scalars(select(ModelRow).order_by(ModelRow.id.desc()).limit(1)).one()
        model.namespace, model.name = NAMESPACE, HELD
        session.flush()
        hide_model(session, model, "quarantined", "held", "local")
    own_organs = select(Placement.organ_id).where(Placement.model_id == model.id)
    elsewhere = select(Placement.organ_id).where(Placement.model_id != model.id)
    chosen = (
        select(Blob.digest).join(OrganRow).where(OrganRow.id.in_(own_organs), OrganRow.id.not_in(elsewhere)).limit(1)
    )
    return model.digest, session.scalars(chosen).one()


def measure(server: Server, routes: Sequence[str], held: str, absent: Sequence[str], rounds: int) -> None:
    """Print a line for each route."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    for route in routes:
        times: dict[str, list[float]] = {value: [] for value in (held, *absent)}
        for number in range(-5, rounds):
            for value in random.sample(list(times), len(times)):
                took = answer_ms(connection, route.format(value))
                if number >= 0:
                    times[value].append(took)
        show(route, held, times)


def answer_ms(connection: http.client.HTTPConnection, address: str) -> float:
    """Return the time of an answer in milliseconds; wait while the server refuses because of its rates."""
    while True:
        began = time.perf_counter()
        connection.request("GET", address)
        answer = connection.getresponse()
        answer.read()
        took = 1000 * (time.perf_counter() - began)
        if answer.status != 429:
            return took
        time.sleep(float(answer.headers["Retry-After"]))


def show(route: str, held: str, times: Mapping[str, Sequence[float]]) -> None:
    """Print the medians of a route."""
    medians = {value: statistics.median(one) for value, one in times.items()}
    own = medians.pop(held)
    middle, spread = statistics.median(medians.values()), max(medians.values()) - min(medians.values())
    print(f"{route:36}{own:>8.2f}{middle:>8.2f}{own - middle:>+12.2f}{spread:>18.2f}", flush=True)


if __name__ == "__main__":
    main()
