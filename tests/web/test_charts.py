"""Pictures: their numbers are those of the organ or model, their bytes are always the same, nothing in them acts."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.measure.sample import read_values, sample_runs
from organs.registry.store import BlobReader
from organs.web.app import create_app
from organs.web.charts import plots as sampling
from organs.web.charts.plots import (
    POLICY,
    STYLE,
    Axis,
    BlockTheta,
    Chart,
    ChartLine,
    Dot,
    FittedLine,
    SizedPoint,
    WeightHistogram,
    depth_chart,
    drawn,
    printable,
    sampled_values,
    scale_chart,
    ticks_between,
    weights_chart,
    weights_of,
)
from organs.web.render import (
    BASE_TONE,
    CHANGE_TONES,
    DARK,
    DONOR_TONES,
    LIGHT,
    SHARE_TONES,
    SPECTRAL_TONES,
    THETA_TONES,
)
from tests.assembly.test_stream import flip_last, largest_file
from tests.gguf_files import file_bytes
from tests.registry_templates import RegistryTemplates
from tests.small_models import block_metadata, ingest_file, weight_tensor

HOSTILE = '"><script>alert(1)</script>&]]>{{ 7*7 }}\x00\x1b[31m\ud800'
STYLESHEET = Path(__file__).parents[2] / "web" / "static" / "style.css"
SVG = "{http://www.w3.org/2000/svg}"
LARGE = weight_tensor("blk.0.ffn_up.weight", (1024, 5000), dtype="F32")
"""Twenty megabytes: five chunks."""


def odd_model(registry: LocalRegistry, folder: Path) -> None:
    """A model of odd organs: small ones, constant ones, one that nobody can read."""
    unreadable = TensorSpec("blk.0.ffn_gate.weight", (256, 4), dtype_by_name("Q8_K"))
    constant = TensorSpec("blk.0.attn_k.weight", (64, 64), dtype_by_name("F32"))
    infinite = TensorSpec("blk.1.attn_k.weight", (64, 64), dtype_by_name("F32"))
    tensors = [
        weight_tensor("blk.0.attn_q.weight", (256, 256)),
        weight_tensor("blk.1.attn_q.weight", (256, 256)),
        weight_tensor("blk.0.attn_norm.weight", (32,), dtype="F32"),
        (unreadable, bytes(unreadable.size_bytes)),
        (constant, np.full(64 * 64, 0.25, np.float32).tobytes()),
        (infinite, np.full(64 * 64, np.inf, np.float32).tobytes()),
    ]
    path = folder / "odd.gguf"
    path.write_bytes(file_bytes(block_metadata("Odd"), tensors))
    ingest_file(registry, path)


@pytest.fixture
def filled(registry: LocalRegistry, templates: RegistryTemplates) -> Iterator[FlaskClient]:
    """A client of a catalog with that model."""
    templates.fill(registry, odd_model)
    with create_app(registry).test_client() as client:
        yield client


def digest_of(client: FlaskClient, tensor: str) -> str:
    organs = client.get("/api/v1/models/local/odd/organs?limit=1000").get_json()["items"]
    return next(str(one["digest"]) for one in organs if one["name"] == tensor)


def texts(svg: bytes) -> list[str]:
    """Return the texts in a picture."""
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def hostile_chart() -> Chart:
    axis = Axis(0.0, 1.0, ((0.5, HOSTILE),), HOSTILE)
    line = ChartLine([(0.0, 0.0), (1.0, 1.0)], "curve", HOSTILE)
    return Chart(HOSTILE, 300, 200, axis, axis, (line,), (Dot(0.5, 0.5, "t3"),))


def test_text_in_a_picture_is_never_markup() -> None:
    svg = drawn(hostile_chart())
    root = ElementTree.fromstring(svg)
    kinds = {str(one.tag).removeprefix(SVG) for one in root.iter()}
    assert kinds == {"svg", "title", "style", "g", "path", "text", "circle"}
    assert not [name for one in root.iter() for name in one.attrib if name.startswith("on") or "href" in name]
    shown = '"><script>alert(1)</script>&]]>{{ 7*7 }}��[31m�'
    assert texts(svg).count(shown) == 5
    assert root.findtext(f"{SVG}title") == shown


@given(st.text())
def test_a_picture_with_any_text_is_valid_xml(text: str) -> None:
    root = ElementTree.fromstring(f"<a>{printable(text).replace('&', '&amp;').replace('<', '&lt;')}</a>")
    assert (root.text or "") == printable(text)


def test_a_picture_is_deterministic_and_has_its_size() -> None:
    svg = drawn(hostile_chart())
    assert svg == drawn(hostile_chart())
    root = ElementTree.fromstring(svg)
    assert (root.attrib["width"], root.attrib["height"], root.attrib["viewBox"]) == ("300", "200", "0 0 300 200")
    assert b"<!--" not in svg


def test_the_policy_of_a_picture_allows_its_own_stylesheet_and_nothing_else() -> None:
    styles = [one.text or "" for one in ElementTree.fromstring(drawn(hostile_chart())).iter(f"{SVG}style")]
    assert len(styles) == 1
    found = base64.b64encode(hashlib.sha256(styles[0].encode()).digest()).decode()
    assert f"style-src 'sha256-{found}'" in POLICY
    assert "unsafe" not in POLICY
    assert "script" not in POLICY
    assert "url(" not in STYLE
    assert "@import" not in STYLE


def test_pages_and_pictures_have_the_same_colours() -> None:
    css = STYLESHEET.read_text(encoding="utf-8")
    for letter, tones in (("t", THETA_TONES), ("g", DONOR_TONES)):
        found = dict(re.findall(rf"^\.{letter}(\d+) \{{ --tone: (#\w{{6}});", css, re.MULTILINE))
        assert found == {str(step): tone for step, tone in enumerate(tones)}
    for letter, tones in (("s", SHARE_TONES), ("c", CHANGE_TONES), ("p", SPECTRAL_TONES), ("gb", (BASE_TONE,))):
        found = re.findall(rf"^\.{letter}\d* \{{ --tone: (#\w{{6}});", css, re.MULTILINE)
        assert found == list(tones)
        dark = re.findall(rf"^  \.{letter}\d* \{{ --tone: (#\w{{6}});", css, re.MULTILINE)
        assert len(set(dark)) == len(tones)
    light, dark = re.findall(r":root \{([^}]*--paper[^}]*)\}", css)[:2]
    for inks, declared in ((LIGHT, light), (DARK, dark)):
        assert {name: re.findall(rf"--{name}: (#\w+);", declared)[0] for name in inks} == inks


def test_a_histogram_counts_every_finite_value_once() -> None:
    values = np.concatenate([np.random.default_rng(1).standard_normal(10_000), [np.nan, np.inf, 1e30]])
    found = weights_of(values)
    assert isinstance(found, WeightHistogram)
    assert sum(found.counts) + found.beyond == 10_001
    assert found.looked_at == 10_003
    assert len(found.counts) + 1 == len(found.edges) == len(found.bell) + 1
    assert np.all(np.diff(found.edges) > 0)


def test_the_fitted_bell_curve_of_gaussian_values_matches_their_histogram() -> None:
    found = weights_of(np.random.default_rng(2).standard_normal(98_304))
    assert isinstance(found, WeightHistogram)
    differences = np.abs(np.array(found.counts) - np.array(found.bell))
    assert differences.max() < 6 * np.sqrt(max(found.bell))
    assert abs(found.mean) < 0.02
    assert abs(found.deviation - 1) < 0.02


def test_values_that_are_too_large_to_be_drawn_give_a_sentence() -> None:
    with np.errstate(all="ignore"):
        found = weights_of(np.array([1e308, -1e308] * 100))
    assert isinstance(found, str)


@pytest.mark.long
@settings(deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=64, max_size=200),
)
def test_any_values_give_a_picture_or_a_sentence(values: list[float]) -> None:
    found = weights_of(np.array(values, np.float32))
    if isinstance(found, WeightHistogram):
        assert ElementTree.fromstring(weights_chart(found)).tag == f"{SVG}svg"
    else:
        assert found.endswith(".")


@given(st.floats(-1e30, 1e30), st.floats(1e-6, 1e30))
def test_an_axis_has_few_marks_and_they_are_within_its_range(low: float, length: float) -> None:
    high = low + length
    ticks = ticks_between(low, high) if high - low > abs(low) * 1e-6 else ()
    assert len(ticks) <= 14
    slack = (high - low) * 1e-6
    assert all(low - slack <= value <= high + slack for value, _ in ticks)


def test_marks_of_an_axis_are_round_numbers() -> None:
    assert [text for _, text in ticks_between(-0.15, 0.15)] == ["−0.15", "−0.10", "−0.05", "0", "0.05", "0.10", "0.15"]
    thousands = [text for _, text in ticks_between(0, 10_000, whole=True)]
    assert thousands == ["0", "2,000", "4,000", "6,000", "8,000", "10,000"]


def test_the_sample_of_a_stored_organ_is_that_of_its_bytes(registry: LocalRegistry, tmp_path: Path) -> None:
    spec, data = LARGE
    with reader_of(registry, tmp_path) as reader:
        assert len(reader.chunks) > 3
        found = sampled_values(reader, spec.dtype, spec.elements)
    expected = read_values(lambda offset, size: data[offset : offset + size], sample_runs(spec.elements), spec.dtype)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.long
def test_a_sample_of_a_large_organ_decodes_some_chunks_once_each(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, data = LARGE
    monkeypatch.setattr(sampling, "CHUNKS_MAX", 2)
    with reader_of(registry, tmp_path) as reader:
        decoded = []
        whole = BlobReader.read_chunk
        monkeypatch.setattr(
            BlobReader, "read_chunk", lambda self, chunk, out: (decoded.append(chunk.where), whole(self, chunk, out))[1]
        )
        found = sampled_values(reader, spec.dtype, spec.elements)
    assert len(decoded) == len(set(decoded)) == 2
    assert 256 <= found.size < 98_304
    assert set(found[:1000].tolist()) <= set(np.frombuffer(data, np.float32).tolist())


def reader_of(registry: LocalRegistry, folder: Path) -> BlobReader:
    """The stored form of LARGE."""
    path = folder / "large.gguf"
    path.write_bytes(file_bytes(block_metadata("Large"), [LARGE]))
    ingest_file(registry, path)
    digest = hashlib.sha256(LARGE[1]).hexdigest()
    with registry.catalog.reading() as session:
        return registry.blobs.open(next(iter(blobs_by_digest(session, [digest]).values())))


def test_the_picture_of_an_organ_is_cached_as_long_as_its_bytes_are_the_same(filled: FlaskClient) -> None:
    digest = digest_of(filled, "blk.0.attn_q.weight")
    organ = filled.get(f"/api/v1/organs/{digest}").get_json()
    address = f"/organs/{digest}/weights.svg?dtype={organ['dtype']}&shape={'x'.join(map(str, organ['shape']))}"
    answer = filled.get(address)
    assert (answer.status_code, answer.mimetype) == (200, "image/svg+xml")
    assert "immutable" in answer.headers["Cache-Control"]
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert filled.get(address, headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
    assert "immutable" not in filled.get(f"/organs/{digest}/weights.svg").headers["Cache-Control"]
    short = filled.get(f"/organs/{digest[:12]}/weights.svg")
    assert short.data == answer.data
    assert short.headers["Cache-Control"] == "no-cache"


def test_the_numbers_of_an_organ_are_the_same_in_every_format(filled: FlaskClient) -> None:
    address = f"/organs/{digest_of(filled, 'blk.0.attn_q.weight')}"
    values = filled.get(f"{address}/weights.json").get_json()
    assert sum(values["counts"]) + values["beyond"] == values["looked_at"] == 65_536
    page = filled.get(address).text
    assert all(f'<td class="n">{count:,}</td>' in page for count in values["counts"])
    sheet = filled.get(f"{address}/weights.csv").text.splitlines()
    assert sheet[0] == "lower,upper,count,bell_count"
    assert [int(line.split(",")[2]) for line in sheet[1:]] == values["counts"]


def test_an_organ_that_cannot_be_drawn_has_a_sentence_instead_of_a_picture(filled: FlaskClient) -> None:
    for tensor, words in (
        ("blk.0.attn_norm.weight", "fewer than 64"),
        ("blk.0.ffn_gate.weight", "cannot decode"),
        ("blk.0.attn_k.weight", "are equal"),
        ("blk.1.attn_k.weight", "fewer than 64"),
    ):
        address = f"/organs/{digest_of(filled, tensor)}"
        page = filled.get(address).text
        assert words in page, tensor
        assert "<img" not in page
        for ending in ("svg", "json"):
            assert filled.get(f"{address}/weights.{ending}").status_code == 404


@pytest.mark.folder
def test_faulty_bytes_are_not_drawn_and_the_page_says_so(registry: LocalRegistry, filled: FlaskClient) -> None:
    flip_last(largest_file(registry))
    said = [filled.get(f"/organs/{digest_of(filled, f'blk.{block}.attn_q.weight')}").text for block in (0, 1)]
    assert sum("The stored bytes are damaged" in page for page in said) == 1
    assert sum("<img" in page for page in said) == 1


def test_a_picture_that_does_not_exist_is_404_and_not_cached(family_client: FlaskClient) -> None:
    for address in ("/organs/zz/weights.svg", "/organs/0123456789ab/weights.svg", "/models/a/b/depth.svg"):
        answer = family_client.get(address)
        assert (answer.status_code, answer.headers["Cache-Control"]) == (404, "no-store"), address


def test_labels_of_lines_that_end_together_do_not_touch() -> None:
    points = tuple(BlockTheta("organ", "text", block, block, 3, 34.0, 35.0, 36.0) for block in range(3))
    svg = depth_chart(dict.fromkeys(("one", "two", "three", "four"), points), 3)
    places = sorted(
        float(one.attrib["y"]) for one in ElementTree.fromstring(svg).iter(f"{SVG}text") if one.get("class") == "name"
    )
    assert len(places) == 4
    assert min(np.diff(places)) >= 13.9


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1, 1e13), st.floats(0, 90), st.integers(1, 5000)), min_size=1, max_size=8))
def test_any_families_can_be_drawn(families: list[tuple[float, float, int]]) -> None:
    points = [SizedPoint(parameters, theta, models) for parameters, theta, models in families]
    svg = scale_chart(points, [FittedLine("families", "curve", -3.0, 60.0)])
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}circle"))) == len(points)
