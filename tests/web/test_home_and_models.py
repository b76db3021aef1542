"""The first page, the list of models and a model's page."""

from __future__ import annotations

import re

from flask.testing import FlaskClient

from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from tests.web.conftest import LOOP_BOMB
from tests.web.page_parser import parse_page


def test_the_home_page_shows_counts_and_the_newest_models(family_client: FlaskClient) -> None:
    html = family_client.get("/").text
    page = parse_page(html)
    figures = html[html.index('<dl class="figures">') :]
    assert figures.index("<dt>models</dt><dd>3</dd>") < figures.index("</dl>")
    newest = html[html.index('<h2 id="new">') :]
    assert re.findall(r'<a href="/models/([^"]+)"', newest[: newest.index("</table>")])[-3:] == [
        *("local/stranger@1", "local/tuned@1", "local/base@1")
    ]
    top = html[html.index('<h2 id="top">') : html.index('<h2 id="new">')]
    spectral = [float(share) for share in re.findall(r'</th><td class="n">([\d.]+)</td>', top)]
    assert len(spectral) == 8
    assert spectral == sorted(spectral, reverse=True)
    assert "Anatomy of local/stranger@1" in re.sub(r"\s+", " ", page.text)


def test_the_page_of_an_empty_registry_shows_the_command_to_run(registry: LocalRegistry) -> None:
    with create_app(registry).test_client() as client:
        for address in ("/", "/organs", "/models"):
            answer = client.get(address)
            assert answer.status_code == 200
            assert "organ ingest FILE.gguf" in answer.text, address


def test_models_are_searched_sorted_and_paged(family_client: FlaskClient) -> None:
    ranked = family_client.get("/api/v1/models?q=sort:-theta&limit=2").get_json()
    rest = family_client.get(f"/api/v1/models?q=sort:-theta&limit=2&after={ranked['next']}").get_json()
    thetas = [model["mean_theta"] for model in ranked["items"] + rest["items"]]
    assert len(thetas) == 3
    assert thetas == sorted(thetas, reverse=True)
    assert rest["next"] is None
    assert [one["name"] for one in family_client.get("/api/v1/models?q=tuned").get_json()["items"]] == ["local/tuned@1"]


def test_kin_of_a_model_have_a_column_for_their_likeness(family_client: FlaskClient) -> None:
    items = family_client.get("/api/v1/models?q=kin:local/base").get_json()["items"]
    assert [one["name"] for one in items] == ["local/base@1", "local/tuned@1"]
    assert 1.0 == items[0]["likeness"] > items[1]["likeness"] > 0.98
    page = family_client.get("/models?q=kin:local/base").text
    (first, _) = re.findall(r'<tr><th scope="row">.*?</tr>', page, re.DOTALL)
    heads = page.count('<th scope="col"')
    assert heads == first.count("<td") + 1
    assert '</th><td class="n">1.000</td>' in first
    assert family_client.get("/models").text.count('<th scope="col"') == heads - 1
    header, base, _ = family_client.get("/models.csv?q=kin:local/base").text.splitlines()
    assert dict(zip(header.split(","), base.split(","), strict=True))["likeness"] == "1.0"
    assert "/models?q=kin:local/base@1" in parse_page(family_client.get("/models/local/base").text).links()


def test_the_list_of_models_has_the_day_on_which_each_was_registered(family_client: FlaskClient) -> None:
    days = [one["created_at"][:10] for one in family_client.get("/api/v1/models").get_json()["items"]]
    page = family_client.get("/models").text
    assert re.findall(r'<td class="n hide-small">(\d{4}-\d\d-\d\d)</td></tr>', page) == days
    assert len(days) == 3


def test_the_head_of_a_column_shows_the_sort_order_and_links_to_its_reverse(family_client: FlaskClient) -> None:
    heads = parse_page(family_client.get("/models?q=sort:-theta").text)
    assert [one.attributes["aria-sort"] for one in heads.named("th") if "aria-sort" in one.attributes] == ["descending"]
    assert "/models?q=sort:theta" in heads.links()
    assert "/models?q=sort:-size" in heads.links()


def test_a_wrong_query_for_models_stays_on_the_page_with_the_error(family_client: FlaskClient) -> None:
    answer = family_client.get("/models?q=block:3")
    assert answer.status_code == 400
    assert "block is a field of organs" in answer.text
    assert parse_page(answer.text).named("input")[0].attributes["value"] == "block:3"
    assert family_client.get("/api/v1/models?q=block:3").get_json()["errors"][0]["field"] == "q"
    small = family_client.get("/models?limit=0")
    assert small.status_code == 400
    assert "from 1 to 1000" in small.text
    assert "Nothing is registered" not in small.text


def test_the_json_of_a_page_names_a_wrong_parameter(family_client: FlaskClient) -> None:
    for address, field in (
        ("/api/v1/models?limit=0", "limit"),
        ("/api/v1/organs?after=x", "after"),
        ("/compare.json?first=local/tuned", "second"),
        ("/compare.json?second=local/tuned", "first"),
    ):
        answer = family_client.get(address, follow_redirects=True)
        assert (answer.status_code, answer.get_json()["errors"][0]["field"]) == (400, field), address
    assert family_client.get("/models/local/tuned?by=taste").status_code == 400


def test_models_as_csv_have_one_line_for_each_model(family_client: FlaskClient) -> None:
    answer = family_client.get("/models.csv")
    assert answer.mimetype == "text/csv"
    assert "attachment" in answer.headers["Content-Disposition"]
    lines = answer.text.splitlines()
    assert lines[0].startswith("name,title,kind,architecture")
    assert [line.partition(",")[0] for line in lines[1:]] == ["local/stranger@1", "local/tuned@1", "local/base@1"]


def test_the_grid_has_one_row_for_each_block_and_one_cell_for_each_slot(family_client: FlaskClient) -> None:
    page = family_client.get("/models/local/tuned").text
    grid = page[page.index('<table class="grid">') :]
    grid = grid[: grid.index("</table>")]
    assert re.findall(r'<th scope="row">([^<]+)</th>', grid) == ["0", "1"]
    assert re.findall(r'<th scope="col" title="([^"]+)"', grid) == ["attn_q", "attn_norm", "ffn_up", "ffn_down"]
    assert len(re.findall(r'<td class="cell', grid)) == 8


def test_cells_link_to_their_organs(family_client: FlaskClient) -> None:
    digests = {
        one["digest"] for one in family_client.get("/api/v1/models/local/tuned/organs?limit=1000").get_json()["items"]
    }
    links = parse_page(family_client.get("/models/local/tuned").text).links()
    assert {f"/organs/{digest}" for digest in digests} <= links


def readings(client: FlaskClient, address: str) -> dict[str, str]:
    """Return the texts of the cells of the grid at `address`, by the name of the organ."""
    cells = [one.attributes.get("data-reading") for one in parse_page(client.get(address).text).named("a")]
    return dict(cell.split(": ", 1) for cell in cells if cell)


def test_changes_are_measured_from_the_declared_parent(family_client: FlaskClient) -> None:
    html = family_client.get("/models/local/tuned?by=change").text
    assert 'Compared with <a href="/models/local/base@1"' in html
    alike = readings(family_client, "/models/local/tuned?by=alike")["blk.0.ffn_up.weight"]
    assert re.match(r"likeness (0\.9[89]|1\.0)", alike)
    change = readings(family_client, "/models/local/tuned?by=change")["blk.0.ffn_up.weight"]
    assert re.match(r"change of θ [+-]\d\.\d°", change), "not the same bytes"
    page = family_client.get("/models/local/tuned?by=change").text
    assert 'class="cell d4' in page or 'class="cell d3' in page or 'class="cell d5' in page


def test_changes_are_measured_from_the_named_model(family_client: FlaskClient) -> None:
    cells = readings(family_client, "/models/local/tuned?by=alike&against=local/stranger").values()
    likeness = [float(found[1]) for cell in cells if (found := re.match(r"likeness (-?[\d.]+)", cell))]
    assert likeness
    assert max(likeness) < 0.3
    assert family_client.get("/models/local/tuned?by=alike&against=local/nobody").status_code == 404


def test_a_models_page_lists_its_relatives_and_findings(family_client: FlaskClient) -> None:
    values = family_client.get("/models/local/tuned.json", follow_redirects=True).get_json()
    assert {(edge["direction"], edge["model"]) for edge in values["lineage"]} >= {
        ("parent", "local/base@1"),
        ("relative", "local/base@1"),
    }
    page = parse_page(family_client.get("/models/local/tuned").text)
    assert "Lineage" in page.text
    assert "/models/local/base@1" in page.links()


def test_a_chat_template_is_shown_and_never_rendered(hostile_client: FlaskClient) -> None:
    page = parse_page(hostile_client.get("/models/local/hostile").text)
    assert LOOP_BOMB in page.text
    assert "{{ 7*7 }}" in page.text
    assert "49" not in page.text.partition("7*7")[0][-5:]


def test_an_unknown_way_to_colour_the_cells_is_refused(family_client: FlaskClient) -> None:
    answer = family_client.get("/models/local/tuned?by=charm")
    assert answer.status_code == 400
    assert "one of theta, spectral, size, change, alike" in answer.text


def test_the_health_check_succeeds_while_the_database_answers(family_client: FlaskClient) -> None:
    assert family_client.get("/healthz").get_json() == {"ok": True}
