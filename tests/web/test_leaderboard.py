"""The leaderboard as a page, a table and JSON, in the API, and gains on the other pages."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from tests.gains import add_gains
from tests.registry_templates import RegistryTemplates, add_three_models
from tests.web.page_parser import found_at, page_at

API = "/api/v1/leaderboard"


def add_measured_grafts(registry: LocalRegistry, folder: Path) -> None:
    """Register a base, a fine-tune, a stranger, and two validated chimeras."""
    add_three_models(registry, folder)
    for donor, gains in (
        ("tuned", {"python": 5.0, "narrative": -2.0}),
        ("stranger", {"python": -950.0, "narrative": -4000.0}),
    ):
        composition = registry.compose("base").graft(donor, type="organ").named(f"me/with-{donor}")
        made = composition.accept("unrelated-lineage").plan().register()
        add_gains(registry, made.model, gains)


@pytest.fixture
def client(registry: LocalRegistry, templates: RegistryTemplates) -> Iterator[FlaskClient]:
    templates.fill(registry, add_measured_grafts)
    with create_app(registry).test_client() as client:
        yield client


def test_a_graft_on_the_page_leads_to_its_recipe_which_says_what_was_measured(client: FlaskClient) -> None:
    links = page_at(client, "/leaderboard?on=code").links()
    (use,) = [link for link in links if link.startswith("/compose?") and "tuned" in link]
    plan = page_at(client, use).words
    assert "Validated before: me/with-tuned@1" in plan
    assert "Measured recipes for this base" in plan


def test_the_sheet_has_a_row_for_each_graft_with_gain_and_loss(client: FlaskClient) -> None:
    rows = list(csv.DictReader(io.StringIO(client.get("/leaderboard.csv").text)))
    assert [(row["chimera"], row["donors"], row["grafted"]) for row in rows] == [
        ("me/with-tuned@1", "local/tuned@1", "feed-forward 0-1"),
        ("me/with-stranger@1", "local/stranger@1", "feed-forward 0-1"),
    ]  # fmt: skip
    assert float(rows[0]["gain"]) == pytest.approx(5.0)
    assert float(rows[1]["loss"]) == pytest.approx(-4000.0)
    assert rows[0]["gain_on"] == "python"


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("base=local/nobody", 404, "no model is registered as local/nobody"),
        ("base=a/b/c", 400, "is not a namespace"),
        ("on=,", 400, "write names of texts, such as python or code, with commas between them"),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(
    client: FlaskClient, query: str, status: int, sentence: str
) -> None:
    answer = client.get(f"{API}?{query}")
    assert answer.status_code == status
    assert sentence in answer.get_json()["detail"]
    assert sentence in client.get(f"/leaderboard?{query}").text


def test_an_unknown_text_is_noted_and_pages_follow_each_other(client: FlaskClient) -> None:
    assert "nothing was measured on poetry" in page_at(client, "/leaderboard?on=poetry").words
    first = found_at(client, f"{API}?limit=1")
    second = found_at(client, f"{API}?limit=1&after={first['next']}")
    assert [one["chimera"] for page in (first, second) for one in page["items"]] == [
        "me/with-tuned@1",
        "me/with-stranger@1",
    ]
    assert second["next"] is None
    more = next(link for link in page_at(client, "/leaderboard?limit=1").links() if "after=" in link)
    assert "me/with-stranger@1" in page_at(client, more).words
