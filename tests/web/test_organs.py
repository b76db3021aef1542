"""The search page and an organ's page."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from flask.testing import FlaskClient

from organs.registry.amounts import weight_change_text
from organs.registry.anatomy import type_name
from tests.web.page_parser import parse_page


def filter_links(client: FlaskClient, address: str) -> dict[str, str]:
    """Return the address of each value of the filters, by its text."""
    page = client.get(address).text
    aside = page[page.index('<aside class="labels"') :]
    found = re.findall(r'<li><a href="([^"]+)"[^>]*>(.*?)</a>', aside)
    return {re.sub(r"<[^>]+>", "", text).strip(" ×◆●■│▲○"): unescape(link) for link, text in found}


def test_a_filter_narrows_the_search_and_its_count_is_the_number_of_results(family_client: FlaskClient) -> None:
    values = family_client.get("/api/v1/organs?counts=1").get_json()
    links = filter_links(family_client, "/organs?q=sort:-theta")
    for kind, count in values["facets"]["fields"]["type"].items():
        found = family_client.get(links[type_name(kind)].replace("/organs?", "/api/v1/organs?counts=1&")).get_json()
        assert found["facets"]["total"] == count == len(found["items"]), kind


def test_a_chosen_filter_is_removed_by_the_same_link(family_client: FlaskClient) -> None:
    chosen = filter_links(family_client, "/organs?q=sort:-theta")["norm"]
    assert parse_qs(urlsplit(unescape(chosen)).query)["q"] == ["type:norm"]
    back = filter_links(family_client, chosen)["norm"]
    assert parse_qs(urlsplit(back).query)["q"] == ["sort:-theta"], (
        "all organs: without a query the list begins with some"
    )


def test_the_list_begins_with_feed_forward_organs_and_folds_the_other_types(family_client: FlaskClient) -> None:
    counts = family_client.get("/api/v1/organs?counts=1").get_json()["facets"]["fields"]["type"]
    html = family_client.get("/organs").text
    page = parse_page(html)
    assert page.named("input")[0].attributes["value"] == "type:organ sort:-spectral"
    folded = re.search(r'<p class="folded small">(.*?)</p>', html, re.DOTALL)
    assert folded is not None
    links = dict(re.findall(r'<a href="([^"]+)"><span class="type">.*?</span>\D*([\d,]+)</a>', folded[1]))
    assert {unescape(link).partition("type:")[2].split("+")[0]: int(count) for link, count in links.items()} == {
        kind: count for kind, count in counts.items() if kind != "organ"
    }
    for link, count in links.items():
        address = unescape(link).replace("/organs?", "/api/v1/organs?limit=1000&", 1)
        assert len(family_client.get(address).get_json()["items"]) == int(count)
    (twin,) = [link for link in page.links() if link.startswith("/organs.json")]
    items = family_client.get(twin, follow_redirects=True).get_json()["items"]
    assert {one["type"] for one in items} == {"organ"}


def test_norms_among_the_results_are_folded_by_a_link(family_client: FlaskClient) -> None:
    html = family_client.get("/organs?q=model:local/base").text
    match = re.search(r'(\d+) norms are among the results: <a href="([^"]+)"', html)
    assert match is not None
    found = family_client.get(unescape(match[2]).replace("/organs?", "/api/v1/organs?", 1)).get_json()["items"]
    assert "norm" not in {one["type"] for one in found}
    everything = family_client.get("/api/v1/organs?q=model:local/base").get_json()["items"]
    assert len(everything) - len(found) == int(match[1])
    assert "norms are among" not in family_client.get("/organs?q=model:local/base type:norm").text


def test_two_values_of_one_filter_find_organs_with_either_value(family_client: FlaskClient) -> None:
    first = filter_links(family_client, "/organs?q=sort:-theta")["norm"]
    both = filter_links(family_client, first)["embedding"]
    assert parse_qs(urlsplit(both).query)["q"] == ["type:norm,embed"]


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
        text = f"like:{family_client.get('/api/v1/organs?q=type:skeleton').get_json()['items'][0]['digest'][:16]}"
    page = family_client.get("/organs", query_string={"q": text}).text
    head, rows = page[page.index("<thead>") : page.index("</tbody>")].split("<tbody>")
    headings = re.findall(r"<th [^>]*>(?:<a [^>]*>)?([^<]+?)(?: [▾▴])?<", head)
    assert " ".join(headings).startswith(begin)
    assert " ".join(headings).endswith(end)
    for row in rows.split("</tr>")[:-1]:
        assert len(re.findall(r"<t[hd]\b", row)) == len(headings)


def test_every_bar_of_the_histogram_links_to_the_organs_that_it_counts(family_client: FlaskClient) -> None:
    bins = {
        one["lower"]: one["count"] for one in family_client.get("/api/v1/organs?counts=1").get_json()["facets"]["theta"]
    }
    page = family_client.get("/organs?q=").text
    bars = re.findall(r'<li[^>]*><a href="([^"]+)"[^>]*title="θ (\d+)° to (\d+)°: ([\d,]+)"', page)
    assert [int(lower) for _, lower, _, _ in bars] == list(range(0, 90, 5))
    for link, lower, _, count in bars:
        assert bins.get(int(lower), 0) == int(count)
        values = family_client.get(unescape(link).replace("/organs", "/api/v1/organs", 1)).get_json()
        assert len(values["items"]) == int(count), link


def test_the_link_of_a_chosen_bar_removes_its_filter(family_client: FlaskClient) -> None:
    page = family_client.get("/organs?q=theta>=30 theta<35 type:organ").text
    (chosen,) = re.findall(r'<a href="([^"]+)" aria-current="true" title="θ 30', page)
    assert parse_qs(urlsplit(unescape(chosen)).query)["q"] == ["type:organ"]


def test_fitting_a_model_is_a_filter_like_any_other(family_client: FlaskClient) -> None:
    values = family_client.get("/api/v1/organs?q=fits:local/base&limit=1000&counts=1").get_json()
    assert {one["model"] for one in values["items"]} == {"local/tuned@1", "local/stranger@1"}
    assert {one["block"] for one in values["items"]} == {0, 1, None}, "the base has two blocks, the stranger three"
    assert values["facets"]["total"] == len(values["items"]) > 0
    assert values["facets"]["exact"]
    page = family_client.get("/organs?q=fits:local/base type:organ").text
    terms = {text: unescape(link) for link, text in re.findall(r'<a href="([^"]+)"[^>]*>(fits:[^<×]+)', page)}
    (taken_out,) = [link for text, link in terms.items() if text.strip() == "fits:local/base"]
    assert parse_qs(urlsplit(taken_out).query)["q"] == ["type:organ"]
    bars = re.findall(r'<li[^>]*><a href="([^"]+)"[^>]*title="θ (\d+)° to \d+°: ([\d,]+)"', page)
    for link, _, count in bars:
        found = family_client.get(unescape(link).replace("/organs", "/api/v1/organs", 1)).get_json()["items"]
        assert len([one for one in found if one["model"] != "local/base@1" and one["block"] != 2]) == int(count)
        assert len(found) == int(count)


def test_with_a_base_the_table_has_the_change_and_the_most_similar_organs_come_first(
    family_client: FlaskClient,
) -> None:
    page = parse_page(family_client.get("/organs?q=fits:local/base type:organ").text)
    assert [one.attributes["aria-sort"] for one in page.named("th") if "aria-sort" in one.attributes] == ["ascending"]
    shown = family_client.get("/api/v1/organs?q=fits:local/base type:organ").get_json()["items"]
    texts = re.findall(
        r'</th><td class="n">([^<]*)</td>', family_client.get("/organs?q=fits:local/base type:organ").text
    )
    assert texts == [weight_change_text(one["change"]) for one in shown]
    assert 0.0 < shown[0]["change"] < 0.02 < 1.0 < shown[-1]["change"]
    (reverse,) = [unquote(link) for link in page.links() if link.endswith("sort:likeness")]
    rising = family_client.get(reverse.replace("/organs", "/api/v1/organs", 1)).get_json()["items"]
    assert [one["model"] for one in rising] == ["local/stranger@1"] * 4 + ["local/tuned@1"] * 4
    address = "q=fits:local/base type:organ likeness<0.5"
    items = family_client.get(f"/api/v1/organs?{address}").get_json()["items"]
    assert [one["likeness"] for one in items] == [one["likeness"] for one in rising[3::-1]]
    header, *rows = [line.split(",") for line in family_client.get(f"/organs.csv?{address}").text.splitlines()]
    assert [float(row[header.index("likeness")]) for row in rows] == [one["likeness"] for one in items]
    wrong = family_client.get("/organs?q=likeness>0.5")
    assert wrong.status_code == 400
    assert "likeness needs a base: add fits:MODEL or kin:MODEL" in wrong.text


def test_an_unknown_base_is_noted_with_the_nearest_name(family_client: FlaskClient) -> None:
    assert family_client.get("/api/v1/organs?q=fits:local/bas").get_json()["notes"] == [
        "no model here is called local/bas; the nearest is fits:local/base"
    ]
    assert "the nearest is fits:local/base" in family_client.get("/organs?q=fits:local/bas").text
    assert family_client.get("/api/v1/organs?q=fits:local/*").status_code == 400


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


def test_the_link_header_of_a_json_list_has_the_address_of_the_next_page(family_client: FlaskClient) -> None:
    first = family_client.get("/api/v1/organs?q=type:norm&limit=2")
    match = re.fullmatch(r'<([^>]+)>; rel="next"', first.headers["Link"])
    assert match is not None
    second = family_client.get(match[1]).get_json()
    assert {one["type"] for one in second["items"]} == {"norm"}
    assert not {one["digest"] for one in second["items"]} & {one["digest"] for one in first.get_json()["items"]} - {
        one["digest"] for one in second["items"] if first.get_json()["items"][-1]["theta"] == one["theta"]
    }


def test_the_link_header_holds_a_query_with_comparisons(family_client: FlaskClient) -> None:
    first = family_client.get("/api/v1/organs?q=theta>0+theta<90&limit=2")
    match = re.match(r"<([^<>]*)>;", first.headers["Link"])  # as parsers take it: to the first bracket that closes
    assert match is not None
    second = family_client.get(match[1])
    assert second.status_code == 200
    assert second.get_json()["items"]
    assert second.get_json()["items"] != first.get_json()["items"]


def test_a_wrong_query_stays_in_the_search_box_with_the_error(family_client: FlaskClient) -> None:
    answer = family_client.get("/organs?q=thta:3")
    assert answer.status_code == 400
    page = parse_page(answer.text)
    assert "did you mean theta:?" in page.text
    assert page.named("input")[0].attributes["value"] == "thta:3"
    refused = family_client.get("/api/v1/organs?q=thta:3")
    assert refused.status_code == 400
    assert refused.get_json()["errors"] == [{"field": "q", "code": "bad-query", "detail": refused.get_json()["detail"]}]


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "１", "1e3", "9" * 40])
def test_a_page_has_one_to_a_thousand_results(family_client: FlaskClient, limit: str) -> None:
    assert family_client.get("/api/v1/organs", query_string={"limit": limit}).status_code == 400


@pytest.mark.parametrize("after", ["x", "null", "AAAA", "1 OR 1=1", "WyJ4IiwxLDJd", "a" * 5000])
def test_an_invalid_cursor_is_refused(family_client: FlaskClient, after: str) -> None:
    assert family_client.get("/api/v1/organs", query_string={"after": after}).status_code == 400


def test_the_results_of_an_organ_search_are_available_as_csv(family_client: FlaskClient) -> None:
    lines = family_client.get("/organs.csv?q=type:embed").text.splitlines()
    assert lines[0].startswith("digest,model,name,type,tower,block,slot,expert,dtype,shape")
    assert len(lines) == 1 + 3
    assert all(",token_embd.weight,embed," in line for line in lines[1:])


def test_the_page_of_an_organ_shows_the_parts_of_theta(family_client: FlaskClient) -> None:
    organ = family_client.get("/api/v1/organs?q=type:organ&limit=1").get_json()["items"][0]
    page = parse_page(family_client.get(f"/organs/{organ['digest'][:16]}").text)
    assert "θ = 90° × the mean of three scores: entropy" in page.text
    assert page.text.count("What is this?") >= 4
    assert "/models/" + organ["model"] in page.links()


def test_the_page_of_an_organ_lists_the_most_similar_organs(family_client: FlaskClient) -> None:
    base = family_client.get("/api/v1/models/local/base/organs?limit=1000").get_json()["items"]
    tuned = family_client.get("/api/v1/models/local/tuned/organs?limit=1000").get_json()["items"]
    place = next(number for number, one in enumerate(base) if one["name"] == "blk.0.ffn_up.weight")
    page = family_client.get(f"/organs/{base[place]['digest']}").text
    table = page[page.index('aria-label="Most similar organs"') :]
    table = table[: table.index("</table>")]
    digests = re.findall(r'<th scope="row"><a class="mono" href="/organs/(\w+)"', table)
    likeness = [float(text) for text in re.findall(r'</th><td class="n">([\d.-]+)</td>', table)]
    assert digests[0] == tuned[place]["digest"]
    assert likeness[0] > 0.98
    assert likeness == sorted(likeness, reverse=True)
    assert len(likeness) == len(digests)
    assert base[place]["digest"] not in digests


def test_the_page_of_a_short_norm_says_why_it_has_no_likeness(family_client: FlaskClient) -> None:
    norm = family_client.get("/api/v1/organs?q=type:norm&limit=1").get_json()["items"][0]
    page = family_client.get(f"/organs/{norm['digest']}").text
    assert "It has too few values to compare with other organs." in page
    assert 'aria-label="Most similar organs"' not in page


def test_the_first_page_of_organs_is_small(family_client: FlaskClient) -> None:
    assert len(family_client.get("/organs").data) < 60_000
