"""Pictures of models and chimeras, as SVG and PNG."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from flask.testing import FlaskClient
from PIL import Image, ImageFont

from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.register.chimeras import add_verdict
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.charts import picture
from organs.web.charts.picture import PictureParent, PictureTexts, tone
from organs.web.charts.plots import POLICY
from organs.web.pages.anatomy import SLOTS_MAX
from organs.web.render import BASE_TONE, DONOR_TONES
from organs.web.settings import WebSettings
from tests.gguf_files import placed_organ
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_all, ingest_bytes, model_file, related_tensors
from tests.small_models import weight_tensor
from tests.web.conftest import HOSTILE
from tests.web.test_verdicts import report

SVG = "{http://www.w3.org/2000/svg}"
FACTS = PictureTexts(
    "Chimera", "me/coder", "A × B", "−5.7% ± 1.5%", "Perplexity on python.", "http://localhost/models/me/coder"
)


def add_chimera(registry: LocalRegistry, folder: Path) -> None:
    """A base, its fine-tune, and `me/mix`, which is made of both."""
    ingest_all(registry, folder, base=related_tensors(), tuned=related_tensors(correlation=0.995))
    recipe = registry.compose("local/base").graft("local/tuned", type="organ", blocks=0).named("me/mix")
    recipe.plan().register()


@pytest.fixture
def lock(registry: LocalRegistry, templates: RegistryTemplates) -> str:
    """The lock of that chimera."""
    templates.fill(registry, add_chimera)
    composed = registry.model("me/mix").composed
    assert composed is not None
    return composed.lock_id


@pytest.fixture
def client(registry: LocalRegistry, lock: str) -> Iterator[FlaskClient]:
    with create_app(registry).test_client() as client:
        yield client


def texts_of(svg_bytes: bytes) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg_bytes).iter(f"{SVG}text")]


def fills_of(svg_bytes: bytes) -> list[str]:
    return [one.attrib["fill"] for one in ElementTree.fromstring(svg_bytes).iter(f"{SVG}polygon")]


def test_the_picture_of_a_chimera_has_its_name_its_donors_its_screen_and_its_address(
    registry: LocalRegistry, client: FlaskClient, lock: str
) -> None:
    hosts = frozenset({"registry.example"})
    with create_app(registry, WebSettings(hosts)).test_client() as others:
        answer = others.get(f"/chimeras/{lock}/picture.svg", base_url="https://registry.example")
    texts = texts_of(answer.data)
    assert "me/mix" in texts
    assert "A local/tuned" in texts
    assert "not run yet" in texts
    assert any(text.startswith("From the weights: ") for text in texts)
    assert "https://registry.example/models/me/mix" in texts
    assert "made with the organ registry" in texts_of(client.get(f"/chimeras/{lock}/picture.svg").data)
    fills = fills_of(answer.data)
    assert fills.count(DONOR_TONES[0]) == 3, "two tensors, and the legend"
    assert BASE_TONE in fills
    assert answer.headers["Content-Security-Policy"] == POLICY


def test_the_picture_of_a_chimera_has_its_measured_gain(
    registry: LocalRegistry, client: FlaskClient, lock: str
) -> None:
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, lock)[0]
        add_verdict(session, model.id, "llama.cpp", "gains", "It is better.", json.dumps(report(seconds=12.0)))
    texts = texts_of(client.get("/models/me/mix/picture.svg").data)
    assert "−6.0% ± 0.7%" in texts
    assert "not run yet" not in texts


def test_the_png_has_the_size_of_previews_of_links_and_the_colours_of_the_donors(
    client: FlaskClient, lock: str
) -> None:
    answer = client.get(f"/chimeras/{lock}/picture.png")
    assert answer.mimetype == "image/png"
    image = Image.open(io.BytesIO(answer.data)).convert("RGB")
    assert image.size == (1200, 630)
    colours = {colour for _, colour in image.getcolors(1 << 20) or ()}
    for expected in (DONOR_TONES[0], BASE_TONE):
        assert tuple(bytes.fromhex(expected[1:])) in colours


def test_a_model_has_the_same_picture_until_it_changes(client: FlaskClient) -> None:
    first = client.get("/models/local/tuned/picture.png")
    again = client.get("/models/local/tuned/picture.png", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code) == (200, 304)
    assert client.get("/models/local/nobody/picture.png").status_code == 404
    assert client.get("/models/local/tuned/picture.gif").status_code == 404


def test_a_picture_has_no_parameters_and_a_model_of_very_many_slots_is_not_drawn(
    registry: LocalRegistry, client: FlaskClient, tmp_path: Path
) -> None:
    assert client.get("/models/local/tuned/picture.png?x=1").status_code == 400
    wide = [weight_tensor(f"blk.0.slot_{number:04}.weight", (4, 4)) for number in range(SLOTS_MAX + 1)]
    ingest_bytes(registry, tmp_path, "wide", model_file("Wide", wide))
    texts = texts_of(client.get("/models/local/wide/picture.svg").data)
    assert any("Too large to draw" in text for text in texts)


def test_hostile_texts_stay_texts_and_are_cut_to_the_picture() -> None:
    facts = PictureTexts(
        "Chimera", HOSTILE * 9, HOSTILE, HOSTILE, HOSTILE, HOSTILE, [PictureParent(HOSTILE * 9, "A", tone("g0"))] * 9
    )
    drawn = picture.picture("svg", facts, [placed_organ("ffn_up")], lambda organ: tone("g0"), {})
    assert {one.tag for one in ElementTree.fromstring(drawn).iter()} == {
        f"{SVG}{name}" for name in ("svg", "title", "polygon", "text")
    }
    assert all(len(text) < 140 for text in texts_of(drawn))
    assert "and 4 more" in texts_of(drawn)
    assert picture.picture("png", facts, [placed_organ("ffn_up")], lambda organ: tone("g0"), {}).startswith(b"\x89PNG")


def test_a_machine_without_fonts_paints_texts_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    load = ImageFont.truetype

    def only_embedded(font: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(font, str):
            raise OSError
        return load(font, *arguments, **options)

    picture._font.cache_clear()
    monkeypatch.setattr(ImageFont, "truetype", only_embedded)
    without = picture.picture("png", FACTS, [placed_organ("ffn_up")], lambda organ: tone("g0"), {})
    picture._font.cache_clear()
    monkeypatch.undo()
    blank = picture.picture(
        "png", PictureTexts("Chimera", "", "", "", "", ""), [placed_organ("ffn_up")], lambda organ: tone("g0"), {}
    )
    assert Image.open(io.BytesIO(without)).size == (1200, 630)
    assert without != blank
    assert picture._plain("−5.7% ± 1.5% × é") == "-5.7% +/- 1.5% x e"


def test_a_model_without_organs_has_a_picture_too() -> None:
    assert b"<svg" in picture.picture("svg", FACTS, [], lambda organ: tone("tn"), {})
