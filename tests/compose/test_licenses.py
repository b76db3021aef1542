"""Tests of licenses: known conditions, combinations with a warning, and the license on the card."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.compose.licenses import TEXT_MAX, combined_license, license_expression
from organs.registry.entities.finding import Severity

FREE = ("apache-2.0", "mit", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "unlicense")


def said(*licenses: str | None) -> dict[str, str]:
    """Return the codes and severities of the findings for parents named P0, P1 ..."""
    findings = combined_license({f"P{number}": license for number, license in enumerate(licenses)}).findings
    return {finding.code: finding.severity.value for finding in findings}


@pytest.mark.parametrize("pair", list(combinations(FREE, 2)))
def test_permissive_licenses_are_compatible(pair: tuple[str, str]) -> None:
    assert said(*pair) == {"licenses-differ": "info"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("gpl-3.0", "cc-by-nc-4.0"),
        ("gpl-3.0", "llama3.1"),
        ("cc-by-sa-4.0", "gemma"),
        ("cc-by-sa-4.0", "cc-by-nc-sa-4.0"),
        ("gpl-2.0", "gpl-3.0"),
        ("gpl-2.0-only", "Apache-2.0"),
        ("mpl-2.0", "cc-by-sa-4.0"),
        ("llama3.1", "gemma"),
        ("cc-by-nd-4.0", "mit"),
        ("cc-by-nd-4.0", "cc-by-nd-4.0"),
    ],
)
def test_licenses_that_may_be_incompatible_get_a_warning(first: str, second: str) -> None:
    for pair in ((first, second), (second, first)):
        assert said(*pair)["licenses-conflict"] == "warn"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("gpl-3.0", "mit"),
        ("gpl-3.0", "apache-2.0"),
        ("gpl-2.0-or-later", "apache-2.0"),
        ("gpl-3.0", "agpl-3.0"),
        ("gpl-3.0", "gpl-3.0-or-later"),
        ("gpl-3.0", "cc-by-sa-4.0"),
        ("gpl-3.0", "mpl-2.0"),
        ("cc-by-nc-4.0", "mit"),
        ("cc-by-nc-4.0", "cc-by-nc-sa-4.0"),
        ("cc-by-nc-4.0", "llama3.1"),
        ("llama3.1", "mit"),
        ("llama3.1", "Llama3.1"),
        ("other", "gpl-3.0"),
        ("other", "mystery"),
    ],
)
def test_compatible_or_unknown_licenses_get_no_warning(first: str, second: str) -> None:
    for pair in ((first, second), (second, first)):
        assert set(said(*pair).values()) <= {"info"}


def test_a_missing_or_unknown_license_is_reported_with_its_model() -> None:
    assert said("apache-2.0", None, "") == {"license-not-stated": "info"}
    assert said("other") == {"license-unknown": "info"}
    assert said("gemma") == {"license-terms": "info"}
    assert said("cc-by-nc-4.0") == {"license-terms": "info"}
    assert said("mit") == {}
    findings = combined_license({"A": "mit", "B": None, "C": " "}).findings
    assert [(finding.models, finding.sentence) for finding in findings] == [
        (("A", "B"), "No license is stated for B and C: ask the authors before you publish the result.")
    ]


def test_a_single_license_is_on_the_card_alone_and_several_with_their_parents() -> None:
    assert combined_license({"A": "apache-2.0", "B": "Apache-2.0"}).text == "apache-2.0"
    assert combined_license({"A": "mit", "B": "gemma", "C": "mit"}).text == "mit (A, C); gemma (B)"
    assert combined_license({"A": "mit", "B": None}).text == "mit (A); not stated (B)"
    assert combined_license({"A": None}).text == "not stated"


@given(st.dictionaries(st.text(max_size=5), st.none() | st.text(max_size=300), max_size=5))
def test_any_text_as_a_license_is_accepted_and_shown_shortened(licenses: dict[str, str | None]) -> None:
    combined = combined_license(licenses)
    assert len(combined.text) <= (TEXT_MAX + 5 * 10) * max(1, len(licenses))
    assert all(finding.severity is not Severity.REFUSE for finding in combined.findings)


def test_a_chimera_of_differing_licenses_states_them_all_and_its_children_know() -> None:
    assert license_expression({"a": "apache-2.0", "b": "cc-by-nc-4.0"}) == "apache-2.0 AND cc-by-nc-4.0"
    assert license_expression({"a": "apache-2.0 AND cc-by-nc-4.0", "b": "mit"}) == "apache-2.0 AND cc-by-nc-4.0 AND mit"
    assert license_expression({"a": "apache-2.0", "b": None}) == "apache-2.0 AND NOASSERTION"
    assert license_expression({"a": "apache-2.0", "b": "Apache-2.0"}) is None
    assert license_expression({"a": None, "b": None}) is None
    findings = combined_license({"base": "apache-2.0", "child": "apache-2.0 AND cc-by-nc-4.0"})
    assert [(finding.code, finding.severity) for finding in findings.findings if finding.code == "license-terms"] == [
        ("license-terms", Severity.INFO)
    ]
    assert "cc-by-nc-4.0 (child)" in findings.text


def test_a_header_with_another_license_than_the_stated_one_is_reported_and_the_stricter_one_decides() -> None:
    def codes(stated: dict[str, str | None], in_headers: dict[str, str | None]) -> list[tuple[str, str, str]]:
        findings = combined_license(stated, in_headers).findings
        return [(finding.code, finding.severity.value, finding.sentence) for finding in findings]

    stated: dict[str, str | None] = {"A": "cc-by-nc-4.0", "B": "mit"}
    findings = codes(stated, {"A": "cc-by-nc-4.0", "B": "gpl-3.0"})
    assert ("license-differs", "info") in [finding[:2] for finding in findings]
    assert "The stated license of B is 'mit', but the header of the file says 'gpl-3.0'" in findings[0][2]
    (conflict,) = (
        sentence for code, severity, sentence in findings if (code, severity) == ("licenses-conflict", "warn")
    )
    assert "cc-by-nc-4.0 (of A) and gpl-3.0 (of the header of B) may conflict" in conflict
    # The stated license can be the stricter one too.
    findings = codes({"A": "cc-by-nc-4.0", "B": "gpl-3.0"}, {"B": "mit"})
    assert [code for code, *_ in findings].count("licenses-conflict") == 1
    # A model does not conflict with its own header: only one of the two licenses is right.
    findings = codes({"A": "mit", "B": "cc-by-nc-4.0"}, {"B": "gpl-3.0"})
    assert [code for code, severity, _ in findings if severity == "warn"] == []
    # Another spelling, or a header without a license, is no difference.
    assert codes({"A": "mit"}, {"A": "MIT"}) == codes({"A": "mit"}, {"A": None}) == codes({"A": "mit"}, {}) == []
    # The licenses of the result are the stated ones.
    assert combined_license(stated, {"B": "gpl-3.0"}).text == "cc-by-nc-4.0 (A); mit (B)"
