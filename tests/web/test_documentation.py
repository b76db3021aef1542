"""The documentation as pages: every shipped page is listed, its links lead somewhere, and nothing else is served."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from organs.web.pages.documentation import GROUPS, all_documents, slug
from tests.web.page_parser import page_at

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_page_of_the_documentation_is_in_the_list(family_client: FlaskClient) -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(file.stem for file in DOCS.glob("*.md"))
    links = page_at(family_client, "/docs").links()
    assert {f"/docs/{name}" for name in listed} <= links
    assert "/docs/design/search" in links


def test_every_link_within_the_documentation_leads_to_a_page_and_a_heading(family_client: FlaskClient) -> None:
    pages = {
        name: family_client.get(f"/docs/{name}").text for name in all_documents() if not name.startswith("design/")
    }
    fragments = {name: set(re.findall(r'<h\d id="([^"]+)"', html)) for name, html in pages.items()}
    checked = 0
    for name, html in pages.items():
        article = html[html.index("<article") : html.index("</article>")]
        assert "<!--" not in article
        assert " style=" not in article
        for link in map(unescape, re.findall(r'<a href="([^"]+)"', article)):
            path, _, fragment = link.partition("#")
            target = path.removeprefix("/docs/") or name
            if link.startswith("http") or target.startswith("design/"):
                continue
            assert target in pages, (name, link)
            assert not fragment or fragment in fragments[target], (name, link)
            checked += 1
    assert checked > 100


def test_a_link_to_a_file_that_is_not_shown_is_plain_text(family_client: FlaskClient) -> None:
    assert "../examples" in (DOCS / "python.md").read_text()
    html = family_client.get("/docs/python").text
    assert "../examples" not in html
    assert "examples" in html


@pytest.mark.parametrize(
    "address",
    ["/docs/../pyproject.toml", "/docs/%2e%2e/README", "/docs/deployment/nginx.conf", "/docs/images/../guide.md",
     "/docs/images/guide.md", "/docs/design", "/docs/%00", "/docs/GUIDE"],
)  # fmt: skip
def test_nothing_but_pages_and_pictures_is_served(address: str, family_client: FlaskClient) -> None:
    assert family_client.get(address).status_code == 404


def test_pictures_and_the_text_of_a_page_are_served(family_client: FlaskClient) -> None:
    picture = family_client.get("/docs/images/catalog-compose.png")
    assert (picture.mimetype, picture.data) == ("image/png", (DOCS / "catalog-compose.png").read_bytes())
    assert 'src="/docs/images/catalog-compose.png"' in family_client.get("/docs/catalog").text
    assert family_client.get("/docs/guide.json").get_json()["text"] == (DOCS / "guide.md").read_text()
    assert family_client.get("/docs/guide.md").status_code == 200


def test_the_fragment_of_a_heading_is_that_of_code_hosts() -> None:
    assert slug("What fits a model") == "what-fits-a-model"
    assert slug("Likeness, `kin:` & more") == "likeness-kin--more"
