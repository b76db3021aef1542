"""Numbers as classes of the stylesheet, and colours that can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.catalog.vocabulary import ORGAN_TYPES
from organs.web.render import (
    DONOR_TONES,
    GLYPHS,
    SHARE_STEPS,
    THETA_STEPS,
    WIDTH_STEPS,
    change_tone,
    donor_class,
    foldable,
    number_text,
    share_class,
    spectral_class,
    theta_class,
    width_class,
)

STYLE = (Path(__file__).parents[2] / "web" / "static" / "style.css").read_text()
CLASSES = set(re.findall(r"^ *\.([tcpgswh][nb]?\d*) ", STYLE, re.MULTILINE))


def test_every_css_class_of_a_number_is_in_the_stylesheet() -> None:
    wanted = {
        "tn",
        *(f"t{step}" for step in range(THETA_STEPS)),
        *(f"g{number}" for number in range(len(DONOR_TONES))),
        "gb",
    }
    wanted |= {f"{letter}{step}" for letter in "cp" for step in range(SHARE_STEPS)}
    wanted |= {f"s{step}" for step in range(SHARE_STEPS)}
    wanted |= {f"{side}{step}" for side in "wh" for step in range(WIDTH_STEPS + 1)}
    assert wanted == CLASSES


@given(st.none() | st.floats(allow_nan=False))
def test_any_number_has_a_css_class(number: float | None) -> None:
    assert theta_class(number) in CLASSES
    assert share_class(number) in CLASSES
    assert width_class(number) in CLASSES
    assert change_tone(number) in CLASSES
    assert spectral_class(number) in CLASSES


def test_the_ends_and_the_middle_of_the_scales_have_their_classes() -> None:
    assert [theta_class(theta) for theta in (0.0, 45.0, 90.0, None)] == ["t0", "t16", "t31", "tn"]
    assert [width_class(share) for share in (None, 0.0, 0.001, 0.5, 1.0)] == ["w0", "w0", "w1", "w20", "w40"]
    assert [change_tone(change) for change in (0.0, 1e-7, 1e-5, 0.02, 2.0, None)] == [
        "c0", "c0", "c4", "c12", "c15", "tn",
    ]  # fmt: skip
    assert [change_tone(None, likeness) for likeness in (1.0, 0.99, 0.0)] == ["c0", "c12", "c15"]
    assert [spectral_class(signal) for signal in (0.0, 0.4, 0.8, 1.0, None)] == ["p0", "p8", "p15", "p15", "tn"]
    assert [donor_class(number) for number in (0, 7, 8)] == ["g0", "g7", "g0"]


def test_text_on_every_colour_of_the_scales_has_enough_contrast() -> None:
    colours = re.findall(r"^ *\.[tcpsg][\db]+ \{ --tone: (#\w{6}); --on-tone: (#\w{6}); \}", STYLE, re.MULTILINE)
    assert len(colours) == THETA_STEPS + 6 * SHARE_STEPS + len(DONOR_TONES) + 2
    for background, ink in colours:
        assert contrast(background, ink) >= 4.5, background


def test_the_style_sheet_has_no_declarations_outside_of_rules() -> None:
    rules = re.sub(r"/\*.*?\*/", "", STYLE, flags=re.DOTALL)
    depth = 0
    for token in re.findall(r"[^{};]+[{};]|[{};]", rules):
        assert depth or token.endswith("{") or token.lstrip().startswith("@"), token
        depth += {"{": 1, "}": -1}.get(token[-1], 0)
    assert depth == 0


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_on_paper_and_plates_has_enough_contrast_in_light_and_dark(scheme: int) -> None:
    block = re.findall(r":root \{([^}]*--paper[^}]*)\}", STYLE)[scheme]
    token = dict(re.findall(r"--([\w-]+): (#\w{6})", block))
    for ground in ("paper", "plate", "mark"):
        for ink in ("ink", "quiet", "link"):
            assert contrast(token[ground], token[ink]) >= 4.5, (ground, ink)


def test_names_can_wrap_between_their_parts_and_stay_text() -> None:
    assert str(foldable("blk.0.ffn_up.weight")) == "blk.<wbr>0.<wbr>ffn_up.<wbr>weight"
    assert str(foldable('<b>"x"/y')) == "&lt;b&gt;&#34;x&#34;/<wbr>y"
    assert str(foldable("...")) == "..."


def test_numbers_are_formatted_for_people() -> None:
    assert [number_text(one) for one in (None, True, 12345, 0.12345, "x")] == ["–", "yes", "12,345", "0.123", "x"]


def test_every_organ_type_has_its_own_symbol() -> None:
    assert set(GLYPHS) == set(ORGAN_TYPES)
    assert len(set(GLYPHS.values())) == len(GLYPHS)


def contrast(first: str, second: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def channels(colour: str) -> list[float]:
    """Red, green and blue from 0 to 1."""
    return [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
