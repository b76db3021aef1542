"""Licenses: SPDX expressions, and warnings for combinations of parents' licenses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from itertools import combinations

from organs.registry.amounts import names_text
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.published import LICENSE_MAX
from organs.registry.names import nearest

TEXT_MAX = 100
"""Characters of a license's name in a sentence."""
NOT_STATED = "not stated"
AND, NO_ASSERTION = " AND ", "NOASSERTION"
"""Words of SPDX expressions: `AND` if all of the licenses apply, `NOASSERTION` if no license is stated."""
LICENSES_MAX = 64
"""Licenses in one expression."""
_FIELD = "general.license"


class Terms(Flag):
    """The requirements of a license, in addition to keeping its notice."""

    PERMISSIVE = 0
    COPYLEFT = auto()
    """Derived works must have the same license."""
    NON_COMMERCIAL = auto()
    NO_DERIVATIVES = auto()
    OWN = auto()
    """A license of one publisher, with its own rules of use."""


@dataclass(frozen=True, slots=True)
class Combined:
    """The licenses of several parents together."""

    text: str
    """Each license with its parents, for the card."""
    findings: tuple[Finding, ...]


_PERMISSIVE = (
    "apache-2.0 mit mit-0 isc zlib ncsa unlicense wtfpl 0bsd bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear cc0-1.0 "
    "cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 pddl odc-by bsl-1.0 afl-3.0 ecl-2.0 postgresql artistic-2.0 "
    "cdla-permissive-1.0 cdla-permissive-2.0 ms-pl blueoak-1.0.0 etalab-2.0"
)
_COPYLEFT = (
    "gpl gpl-2.0 gpl-3.0 agpl-3.0 lgpl lgpl-2.1 lgpl-3.0 lgpl-lr mpl-2.0 epl-1.0 epl-2.0 eupl-1.1 eupl-1.2 osl-3.0 "
    "odbl gfdl cdla-sharing-1.0 cc-by-sa-2.0 cc-by-sa-2.5 cc-by-sa-3.0 cc-by-sa-4.0"
)
_OWN = (
    "llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 gemma qwen tongyi-qianwen deepseek falcon-llm openrail "
    "openrail++ creativeml-openrail-m bigscience-openrail-m bigcode-openrail-m bigscience-bloom-rail-1.0 openmdw-1.0 "
    "apple-ascl nvidia-open-model-license exaone lfm1.0"
)
_OWN_NON_COMMERCIAL = "qwen-research apple-amlr intel-research h-research mrl fair-noncommercial-research-license"

_TERMS: dict[str, Terms] = {
    **dict.fromkeys(_PERMISSIVE.split(), Terms.PERMISSIVE),
    **dict.fromkeys(_COPYLEFT.split(), Terms.COPYLEFT),
    **dict.fromkeys(_OWN.split(), Terms.OWN),
    **dict.fromkeys(_OWN_NON_COMMERCIAL.split(), Terms.OWN | Terms.NON_COMMERCIAL),
}
_USUAL = (
    *("apache-2.0", "mit", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "gpl-3.0"),
    *("llama3.1", "llama3.2", "gemma", "openrail"),
)
_USUAL_TEXT = f"Usual ones are {', '.join(_USUAL)}."
NO_LICENSE = f"No license is stated. State one, so that others know what they may do with it. {_USUAL_TEXT}"
_NON_COMMERCIAL = re.compile(r"cc-by-nc(?P<rest>-sa|-nd)?(-\d\.\d)?")
_OTHER_CREATIVE_COMMONS = "cc-by-nc-4.0 cc-by-nc-sa-4.0 cc-by-nc-nd-4.0 cc-by-nd-4.0"
_NO_DERIVATIVES = re.compile(r"cc-by-nd(-\d\.\d)?")

# For each copyleft license, the other licenses with which it allows combinations.
_AGREED: dict[str, frozenset[str]] = {
    "gpl-3.0": frozenset(("agpl-3.0", "lgpl-3.0", "lgpl-2.1", "mpl-2.0", "cc-by-sa-4.0")),
    "agpl-3.0": frozenset(("gpl-3.0", "lgpl-3.0", "mpl-2.0")),
    "gpl-2.0": frozenset(("lgpl-2.1", "mpl-2.0")),
    "lgpl-3.0": frozenset(("lgpl-2.1", "mpl-2.0")),
    "lgpl-2.1": frozenset(("mpl-2.0",)),
}
_DISPUTED = frozenset({frozenset(("gpl-2.0", "apache-2.0"))})
"""Pairs of a copyleft and a permissive license that are commonly considered incompatible."""


def differing_license(stated: str | None, in_header: str | None, model: str = "") -> str | None:
    """Return a sentence if the license that is stated for a model is not the one in its file's header.

    The two are equal if only the spelling differs: `Apache 2.0` is `apache-2.0`. None if one of them is missing.
    `model` is the name of the model for the sentence, if it is not clear from the context.
    """
    if not stated or not in_header or _spelled(stated) == _spelled(in_header):
        return None
    whose = f" of {model}" if model else ""
    return (
        f"The stated license{whose} is {stated[:TEXT_MAX]!r}, but the header of the file says "
        f"{in_header[:TEXT_MAX]!r}: check which one is right."
    )


def is_license_in_file(stated: str | None, in_header: str | None) -> bool:
    """Return whether a file's header has the license that is stated for the model, or no license is stated."""
    return not stated or _spelled(stated) == _spelled(in_header or "")


def terms_of(license: str) -> Terms | None:
    """Return the terms of `license`, the text in a header, in upper or lower case; None if it is unknown."""
    name = _folded(license)
    match = _NON_COMMERCIAL.fullmatch(name)
    if match is not None:
        more = {"-sa": Terms.COPYLEFT, "-nd": Terms.NO_DERIVATIVES}.get(match["rest"] or "", Terms.PERMISSIVE)
        return Terms.NON_COMMERCIAL | more
    if _NO_DERIVATIVES.fullmatch(name):
        return Terms.NO_DERIVATIVES
    return _TERMS.get(name)


def known_licenses() -> dict[str, str]:
    """Return the terms of each known license in words, the usual licenses first."""
    words = {
        Terms.COPYLEFT: "derived works under the same license",
        Terms.NON_COMMERCIAL: "non-commercial",
        Terms.NO_DERIVATIVES: "no derivatives",
        Terms.OWN: "own terms of its publisher",
    }
    known = {}
    for name in dict.fromkeys([*_USUAL, *sorted({*_TERMS, *_OTHER_CREATIVE_COMMONS.split()}), OTHER]):
        terms = terms_of(name)
        known[name] = "described in the model's card"
        if terms is not None:
            known[name] = ", ".join(text for term, text in words.items() if term in terms) or "permissive"
    return known


def unknown_license(text: str) -> str | None:
    """Return a sentence if a license in a file's header is not known here, or None."""
    parts = [part.strip("() ") for item in text.split(AND) for part in item.split(" OR ")]
    unknown = [part for part in parts if part and terms_of(part) is None and license_problem(part) is not None]
    return f"The license {unknown[0][:TEXT_MAX]!r} is unknown. {_USUAL_TEXT}" if unknown else None


def combined_license(
    licenses: Mapping[str, str | None], in_headers: Mapping[str, str | None] | None = None
) -> Combined:
    """Return the licenses of a chimera's parents with findings; `licenses` is by the parent's label, the base first.

    `in_headers` has the licenses in the headers of the parents' files. If a header has another license than the parent,
    it is not known which one is right. Then both are checked, so that the stricter one decides.

    `licenses-conflict` (warn): a license that forbids derivatives; a copyleft license together with another copyleft
    license that it does not allow, with a non-commercial license or with own terms; two different sets of own terms.
    All other findings are information.
    """
    findings: list[Finding] = []
    base = next(iter(licenses), "")

    def add(severity: Severity, code: str, sentence: str, labels: Iterable[str]) -> None:
        others = [label for label in labels if label != base]
        findings.append(Finding(severity, code, sentence, _FIELD, (base, *others[:1])))

    differing: dict[str, str | None] = {}
    for parent, license in licenses.items():
        in_header = (in_headers or {}).get(parent)
        difference = differing_license(license, in_header, parent)
        if difference is not None:
            add(Severity.INFO, "license-differs", difference, [parent])
            differing[parent] = in_header
    parents = _by_license(licenses)
    # The parents of each license. For True, only the header of the parent's file has it, and another one is stated.
    holders: dict[str, dict[str, bool]] = {name: dict.fromkeys(labels, False) for name, labels in parents.items()}
    for name, labels in _by_license(differing).items():
        known_as = next((other for other in holders if _folded(other) == _folded(name)), name)
        more = [label for label in labels if label not in holders.get(known_as, ())]
        if more and name != NOT_STATED:
            holders.setdefault(known_as, {}).update(dict.fromkeys(more, True))
    texts = {
        name: names_text([f"the header of {label}" if in_header else label for label, in_header in labels.items()])
        for name, labels in holders.items()
    }
    for name, text in texts.items():
        terms = terms_of(name)
        if name == NOT_STATED:
            sentence = f"No license is stated for {text}: ask the authors before you publish the result."
            add(Severity.INFO, "license-not-stated", sentence, holders[name])
        elif terms is None:
            sentence = f"The license {name!r} of {text} is unknown to this registry: read it."
            add(Severity.INFO, "license-unknown", sentence, holders[name])
        elif Terms.NO_DERIVATIVES in terms:
            sentence = f"The license {name} of {text} forbids publishing derivatives: read it."
            add(Severity.WARN, "licenses-conflict", sentence, holders[name])
        elif terms & (Terms.OWN | Terms.NON_COMMERCIAL):
            limit = "does not allow commercial use" if Terms.NON_COMMERCIAL in terms else "has terms of its own"
            sentence = f"The license {name} of {text} {limit}; this applies to the chimera too: read it."
            add(Severity.INFO, "license-terms", sentence, holders[name])
    for first, second in combinations((name for name in holders if name != NOT_STATED), 2):
        # A chimera is under both licenses, unless they are the two that one parent has.
        are_combined = any(
            label != other or in_header == in_other
            for label, in_header in holders[first].items()
            for other, in_other in holders[second].items()
        )
        reason = _conflict(first, second) if are_combined else None
        if reason is not None:
            parties = " and ".join(f"{name} (of {texts[name]})" for name in (first, second))
            sentence = f"The licenses {parties} may conflict: {reason}. Read both before you publish the result."
            add(Severity.WARN, "licenses-conflict", sentence, holders[second])
    stated = [name for name in parents if name != NOT_STATED]
    if len(stated) > 1:
        sentence = f"The parents have {len(stated)} different licenses, and all of them apply: {_text(parents)}."
        add(Severity.INFO, "licenses-differ", sentence, ())
    return Combined(_text(parents), tuple(findings))


def license_expression(licenses: Mapping[str, str | None]) -> str | None:
    """Return the license of a chimera of these parents: an SPDX expression with all of their licenses.

    None if all parents state the same license, or none states a license: then the entry of the base's header is kept.
    """
    names = list(_by_license(licenses))
    if len(names) < 2:
        return None
    return AND.join(NO_ASSERTION if name == NOT_STATED else name for name in names)


def _by_license(licenses: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Return the parents of each license. The key is the first spelling of the license."""
    spelled: dict[str, str] = {}
    parents: dict[str, list[str]] = {}
    for parent, license in licenses.items():
        # The header of a chimera can have several licenses.
        texts = [text.strip()[:TEXT_MAX] for text in (license or "").split(AND)[:LICENSES_MAX]]
        for text in dict.fromkeys("" if text.upper() == NO_ASSERTION else text for text in texts):
            name = spelled.setdefault(_folded(text), text) if text else NOT_STATED
            parents.setdefault(name, []).append(parent)
    return parents


def _text(parents: Mapping[str, list[str]]) -> str:
    if len(parents) == 1:
        return next(iter(parents))
    return "; ".join(f"{name} ({', '.join(labels)})" for name, labels in parents.items())


def _conflict(first: str, second: str) -> str | None:
    """Return why two licenses may conflict, or None."""
    name, other = _folded(first), _folded(second)
    terms, others = terms_of(first), terms_of(second)
    if terms is None or others is None or other in _AGREED.get(name, ()) or name in _AGREED.get(other, ()):
        return None
    if frozenset((name, other)) in _DISPUTED:
        return "they are commonly considered incompatible"
    if Terms.COPYLEFT in terms and Terms.COPYLEFT in others:
        return "each requires the whole to be under itself"
    copyleft, restrictions = (terms, others) if Terms.COPYLEFT in terms else (others, terms)
    if Terms.COPYLEFT in copyleft and restrictions & ~copyleft:
        return "one requires the whole to be under itself, the other adds restrictions"
    if Terms.OWN in terms and Terms.OWN in others:
        return "each sets its own terms for the whole"
    return None


def _spelled(license: str) -> str:
    return re.sub(r"[\s_]+", "-", license.strip().lower())


def _folded(license: str) -> str:
    """Return the name in lower case, without the suffixes of SPDX; the GPL `2.0 or later` counts as 3.0."""
    name = _spelled(license)
    if name in ("gpl-2.0-or-later", "gpl-2.0+"):
        return "gpl-3.0"
    if name in _TERMS:  # such as openrail++
        return name
    return name.removesuffix("-only").removesuffix("-or-later").removesuffix("+")


OTHER = "other"
"""The word for a license without an SPDX id on model hubs."""
_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]+)")
_REFERENCE = re.compile(r"(DocumentRef-[A-Za-z0-9.-]+:)?LicenseRef-[A-Za-z0-9.-]+")
_EXCEPTION = re.compile(r"[A-Za-z0-9.-]+")
_OPEN_BRACKET, _NO_EXCEPTION = "A bracket is not closed.", "The exception after WITH is missing."


def license_problem(text: str) -> str | None:
    """Return a sentence on the problem with `text` as a license; None if it is valid."""
    if len(text) > LICENSE_MAX:
        return f"A license has at most {LICENSE_MAX} characters; this one has {len(text)}."
    tokens = _TOKEN.findall(text)
    if not tokens:
        return "Write the SPDX id of a license, such as apache-2.0, or leave it empty."
    expected, depth = "license", 0
    may_have_exception = False
    for word in tokens:
        if expected == "license" and word == "(":
            depth += 1
        elif expected == "license":
            problem = _name_problem(word)
            if problem is not None:
                return problem
            expected, may_have_exception = "operator", True
        elif expected == "exception":
            if not _EXCEPTION.fullmatch(word):
                return _NO_EXCEPTION
            expected, may_have_exception = "operator", False
        elif word in ("AND", "OR"):
            expected = "license"
        elif word == "WITH" and may_have_exception:
            expected = "exception"
        elif word == ")" and depth:
            depth, may_have_exception = depth - 1, False
        elif depth:
            return _OPEN_BRACKET
        else:
            return f"Unexpected {word!r}: join licenses with AND or OR, with brackets if necessary."
    if expected != "operator":
        return "A license is missing at the end." if expected == "license" else _NO_EXCEPTION
    return _OPEN_BRACKET if depth else None


def _name_problem(word: str) -> str | None:
    """Return a sentence on the problem with `word` as the name of one license; None if it is valid."""
    if word in (")", "AND", "OR", "WITH"):
        return f"A license is missing before {word!r}."
    if _REFERENCE.fullmatch(word) or word == NO_ASSERTION or word.lower() == OTHER or terms_of(word) is not None:
        return None
    close = nearest(word, known_licenses())
    hint = f"; did you mean {close}?" if close else "."
    return (
        f"Unknown license {word!r}{hint} Write an SPDX id, or LicenseRef- with a name of your own, or {OTHER}. "
        f"{_USUAL_TEXT}"
    )
