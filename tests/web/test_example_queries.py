"""Every example query that the catalog offers finds something in the zoo, the first catalog of a new user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import pytest
from flask.testing import FlaskClient

from organs.web.app import create_app
from tests.registry_templates import RegistryTemplates, add_zoo_models
from tests.web.page_parser import parse_page


@pytest.fixture(scope="module")
def zoo(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    """A client of the zoo's catalog."""
    home = tmp_path_factory.mktemp("zoo") / "home"
    with templates.open_copy(add_zoo_models, home) as registry, create_app(registry).test_client() as client:
        yield client


@pytest.mark.parametrize("page", ["/", "/organs", "/models", "/search"])
def test_every_offered_search_finds_something(zoo: FlaskClient, page: str) -> None:
    html = zoo.get(page).text
    boxes = {one.attributes["id"]: one.attributes for one in parse_page(html).named("input") if "id" in one.attributes}
    path = "/models" if page == "/models" else "/organs"
    offered = {f"{path}?q={boxes['q']['placeholder']}"} if page != "/search" else set()
    tries = re.findall(r"Try (.*?)</p>", html, re.DOTALL)
    offered |= {unescape(link) for part in tries for link in re.findall(r'href="([^"]+)"', part)}
    assert len(offered) > 2
    for address in offered:
        found = zoo.get("/api/v1" + address).get_json()
        assert found["items"], address
