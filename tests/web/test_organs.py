"""The search page; `test_page_snapshots` has what it says."""

from __future__ import annotations

import re
from html import unescape

from flask.testing import FlaskClient


def test_the_link_of_a_chosen_bar_removes_it(family_client: FlaskClient) -> None:
    page = family_client.get("/organs?q=theta>=30 theta<35 type:organ").text
    (chosen,) = re.findall(r'<a href="([^"]+)" aria-current="true" title="θ 30', page)
    assert chosen == "/organs?q=type:organ"


def test_all_pages_of_a_list_are_reached_by_links(family_client: FlaskClient) -> None:
    seen: list[str] = []
    address: str | None = "/organs?q=sort:size&limit=7"
    while address:
        page = family_client.get(address)
        seen += re.findall(r'<th scope="row"><a class="mono" href="/organs/(\w+)"', page.text)
        following = re.search(r'<a href="([^"]+)" rel="next">', page.text)
        told = re.search(r'<([^>]+)>; rel="next"', page.headers.get("Link", ""))
        assert (following is None) == (told is None)
        address = unescape(following[1]) if following else None
    everything = family_client.get("/api/v1/organs?limit=1000").get_json()["items"]
    assert len(seen) == len(everything)
    assert sorted(seen) == sorted(one["digest"] for one in everything)


def test_the_link_header_holds_a_query_with_comparisons(family_client: FlaskClient) -> None:
    first = family_client.get("/api/v1/organs?q=theta>0+theta<90&limit=2")
    match = re.match(r"<([^<>]*)>;", first.headers["Link"])  # as parsers take it: to the first bracket that closes
    assert match is not None
    second = family_client.get(match[1])
    assert second.status_code == 200
    assert second.get_json()["items"]
    assert second.get_json()["items"] != first.get_json()["items"]


def test_the_first_page_of_organs_is_small(family_client: FlaskClient) -> None:
    assert len(family_client.get("/organs").data) < 60_000
