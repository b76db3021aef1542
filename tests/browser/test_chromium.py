"""The browser of the tests is found or asked for in one sentence."""

from __future__ import annotations

import pytest

from tests.browser.chromium import VARIABLE, NoBrowser, find_chromium


def test_the_browser_named_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_chromium()
    monkeypatch.setenv(VARIABLE, found)
    assert find_chromium() == found


def test_without_a_browser_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/chromium")
    with pytest.raises(
        NoBrowser, match=r"^There is no /nowhere/chromium here: install Chromium .+ CHROMIUM to its path\.$"
    ):
        find_chromium()
