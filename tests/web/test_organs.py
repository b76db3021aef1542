"""The search page and an organ's page."""

from __future__ import annotations

import csv
import re
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from flask.testing import FlaskClient

from organs.registry.amounts import weight_change_text
from organs.registry.anatomy import type_name
from tests.web.page_parser import found_at, page_at, parse_page


def linked(client: FlaskClient, link: str) -> list[dict[str, Any]]:
    """The organs that the search page at `link` is about."""
    address = unescape(link).replace("/organs?", "/api/v1/organs?limit=1000&", 1)
    items: list[dict[str, Any]] = found_at(client, address)["items"]
    return items


def filter_links(client: FlaskClient, address: str) -> dict[str, str]:
    """Return the address of each value of the filters, by its text."""
    page = client.get(address).text
    aside = page[page.index('<aside class="labels"') :]
    found = re.findall(r'<li><a href="([^"]+)"[^>]*>(.*?)</a>', aside)
    return {re.sub(r"<[^>]+>", "", text).strip(" ×◆●■│▲○"): unescape(link) for link, text in found}


def query_in(link: str) -> str:
    """The query of an address in a page."""
    return parse_qs(urlsplit(unescape(link)).query)["q"][0]


def test_a_filter_narrows_the_search_and_its_count_is_the_number_of_results(family_client: FlaskClient) -> None:
    counts = found_at(family_client, "/api/v1/organs?counts=1")["facets"]["fields"]["type"]
    links = filter_links(family_client, "/organs?q=sort:-theta")
    for kind, count in counts.items():
        assert len(linked(family_client, links[type_name(kind)])) == count, kind


def test_a_chosen_filter_is_removed_by_the_same_link(family_client: FlaskClient) -> None:
    chosen = filter_links(family_client, "/organs?q=sort:-theta")["norm"]
    assert query_in(chosen) == "type:norm"
    back = filter_links(family_client, chosen)["norm"]
    assert query_in(back) == "sort:-theta", "all organs: without a query the list begins with some"


def test_the_list_begins_with_feed_forward_organs_and_folds_the_other_types(family_client: FlaskClient) -> None:
    counts = found_at(family_client, "/api/v1/organs?counts=1")["facets"]["fields"]["type"]
    html = family_client.get("/organs").text
    page = parse_page(html)
    assert page.named("input")[0].attributes["value"] == "type:organ sort:-spectral"
    (folded,) = re.findall(r'<p class="folded small">(.*?)</p>', html, re.DOTALL)
    links = dict(re.findall(r'<a href="([^"]+)"><span class="type">.*?</span>\D*([\d,]+)</a>', folded))
    assert {query_in(link).split()[0]: int(count) for link, count in links.items()} == {
        f"type:{kind}": count for kind, count in counts.items() if kind != "organ"
    }
    for link, count in links.items():
        assert len(linked(family_client, link)) == int(count)
    (twin,) = [link for link in page.links() if link.startswith("/organs.json")]
    assert {one["type"] for one in found_at(family_client, twin)["items"]} == {"organ"}


def test_norms_among_the_results_are_folded_by_a_link(family_client: FlaskClient) -> None:
    html = family_client.get("/organs?q=model:local/base").text
    ((count, link),) = re.findall(r'(\d+) norms are among the results: <a href="([^"]+)"', html)
    found, everything = linked(family_client, link), linked(family_client, "/organs?q=model:local/base")
    assert "norm" not in {one["type"] for one in found}
    assert len(everything) - len(found) == int(count)
    assert "norms are among" not in family_client.get("/organs?q=model:local/base type:norm").text


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("", "organ type size θ", "spectral stable rank"),
        ("sort:signal", "organ type size θ signal", "spectral stable rank"),
        ("like:tokens", "organ likeness type size", "stable rank"),
    ],
)
def test_the_table_has_the_columns_that_its_query_asks_for_and_a_table_cell_for_each(
    family_client: FlaskClient, text: str, begin: str, end: str
) -> None:
    if text.startswith("like:"):
        text = f"like:{linked(family_client, '/organs?q=type:skeleton')[0]['digest'][:16]}"
    page = family_client.get("/organs", query_string={"q": text}).text
    head, rows = page[page.index("<thead>") : page.index("</tbody>")].split("<tbody>")
    headings = re.findall(r"<th [^>]*>(?:<a [^>]*>)?([^<]+?)(?: [▾▴])?<", head)
    assert " ".join(headings).startswith(begin)
    assert " ".join(headings).endswith(end)
    for row in rows.split("</tr>")[:-1]:
        assert len(re.findall(r"<t[hd]\b", row)) == len(headings)


def test_every_bar_of_the_histogram_links_to_the_organs_that_it_counts(family_client: FlaskClient) -> None:
    theta = found_at(family_client, "/api/v1/organs?counts=1")["facets"]["theta"]
    bins = {one["lower"]: one["count"] for one in theta}
    page = family_client.get("/organs?q=").text
    bars = re.findall(r'<li[^>]*><a href="([^"]+)"[^>]*title="θ (\d+)° to \d+°: ([\d,]+)"', page)
    assert [int(lower) for _, lower, _ in bars] == list(range(0, 90, 5))
    for link, lower, count in bars:
        assert bins.get(int(lower), 0) == int(count) == len(linked(family_client, link)), link


def test_the_link_of_a_chosen_bar_or_term_removes_it(family_client: FlaskClient) -> None:
    page = family_client.get("/organs?q=theta>=30 theta<35 type:organ").text
    (chosen,) = re.findall(r'<a href="([^"]+)" aria-current="true" title="θ 30', page)
    assert query_in(chosen) == "type:organ"
    page = family_client.get("/organs?q=fits:local/base type:organ").text
    (term,) = re.findall(r'<a href="([^"]+)" aria-label="Remove fits:local/base"', page)
    assert query_in(term) == "type:organ"


def test_with_a_base_the_table_has_the_change_and_the_most_similar_organs_come_first(
    family_client: FlaskClient,
) -> None:
    address = "/organs?q=fits:local/base type:organ"
    html, shown = family_client.get(address).text, linked(family_client, address)
    page = parse_page(html)
    assert [one.attributes["aria-sort"] for one in page.named("th") if "aria-sort" in one.attributes] == ["ascending"]
    texts = re.findall(r'</th><td class="n">([^<]*)</td>', html)
    assert texts == [weight_change_text(one["change"]) for one in shown]
    assert 0.0 < shown[0]["change"] < 0.02 < 1.0 < shown[-1]["change"]
    (reverse,) = [link for link in page.links() if link.endswith("sort:likeness")]
    rising = linked(family_client, reverse)
    assert [one["model"] for one in rising] == ["local/stranger@1"] * 4 + ["local/tuned@1"] * 4
    header, *rows = csv.reader(family_client.get(address.replace("?", ".csv?")).text.splitlines())
    assert [float(row[header.index("likeness")]) for row in rows] == [one["likeness"] for one in shown]


def test_notes_and_errors_of_a_query_are_on_its_page(family_client: FlaskClient) -> None:
    note = "no model here is called local/bas; the nearest is fits:local/base"
    assert note in page_at(family_client, "/organs?q=fits:local/bas").text
    wrong = page_at(family_client, "/organs?q=likeness>0.5", 400)
    assert "likeness needs a base: add fits:MODEL or kin:MODEL" in wrong.text
    wrong = page_at(family_client, "/organs?q=thta:3", 400)
    assert "did you mean theta:?" in wrong.text
    assert wrong.named("input")[0].attributes["value"] == "thta:3"


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


def test_the_results_of_an_organ_search_are_available_as_csv(family_client: FlaskClient) -> None:
    lines = family_client.get("/organs.csv?q=type:embed").text.splitlines()
    assert lines[0].startswith("digest,model,name,type,tower,block,slot,expert,dtype,shape")
    assert len(lines) == 1 + 3
    assert all(",token_embd.weight,embed," in line for line in lines[1:])


def test_the_page_of_an_organ_shows_the_parts_of_theta(family_client: FlaskClient) -> None:
    organ = linked(family_client, "/organs?q=type:organ")[0]
    page = page_at(family_client, f"/organs/{organ['digest'][:16]}")
    assert "θ = 90° × the mean of three scores: entropy" in page.text
    assert page.text.count("What is this?") >= 4
    assert "/models/" + organ["model"] in page.links()


def test_the_page_of_an_organ_lists_the_most_similar_organs(family_client: FlaskClient) -> None:
    base, tuned = (
        next(
            organ["digest"]
            for organ in found_at(family_client, f"/api/v1/models/local/{name}/organs?limit=1000")["items"]
            if organ["name"] == "blk.0.ffn_up.weight"
        )
        for name in ("base", "tuned")
    )
    page = family_client.get(f"/organs/{base}").text
    table = page[page.index('aria-label="Most similar organs"') :].partition("</table>")[0]
    digests = re.findall(r'<th scope="row"><a class="mono" href="/organs/(\w+)"', table)
    likeness = [float(text) for text in re.findall(r'</th><td class="n">([\d.-]+)</td>', table)]
    assert digests[0] == tuned
    assert base not in digests
    assert likeness[0] > 0.98
    assert likeness == sorted(likeness, reverse=True)
    assert len(likeness) == len(digests)


def test_the_page_of_a_short_norm_says_why_it_has_no_likeness(family_client: FlaskClient) -> None:
    norm = linked(family_client, "/organs?q=type:norm")[0]
    page = family_client.get(f"/organs/{norm['digest']}").text
    assert "It has too few values to compare with other organs." in page
    assert 'aria-label="Most similar organs"' not in page


def test_the_first_page_of_organs_is_small(family_client: FlaskClient) -> None:
    assert len(family_client.get("/organs").data) < 60_000
