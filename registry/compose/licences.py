"""Licences: SPDX expressions, and which combinations of parents' licences deserve a warning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from itertools import combinations

from organs.registry.compose.findings import listed
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.published import LICENSE_MAX

TEXT_MAX = 100
"""What is shown of a licence's name."""
NOT_STATED = "not stated"
AND, NO_ASSERTION = " AND ", "NOASSERTION"
"""Of SPDX expressions: all of these apply; nothing is said."""
LICENCES_MAX = 64
"""In one expression."""
_FIELD = "general.license"


class Terms(Flag):
    """What a licence is known for, beyond asking for its notice to be kept."""

    PERMISSIVE = 0
    COPYLEFT = auto()
    """What is derived must come under the same licence."""
    NON_COMMERCIAL = auto()
    NO_DERIVATIVES = auto()
    OWN = auto()
    """An agreement of its own, with rules for use."""


@dataclass(frozen=True, slots=True)
class Combined:
    """The licences of several parents together."""

    text: str
    """For the card: each licence with the parents that are under it."""
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
_NON_COMMERCIAL = re.compile(r"cc-by-nc(?P<rest>-sa|-nd)?(-\d\.\d)?")
_NO_DERIVATIVES = re.compile(r"cc-by-nd(-\d\.\d)?")

# Copyleft that says that it may be combined with these.
_AGREED: dict[str, frozenset[str]] = {
    "gpl-3.0": frozenset(("agpl-3.0", "lgpl-3.0", "lgpl-2.1", "mpl-2.0", "cc-by-sa-4.0")),
    "agpl-3.0": frozenset(("gpl-3.0", "lgpl-3.0", "mpl-2.0")),
    "gpl-2.0": frozenset(("lgpl-2.1", "mpl-2.0")),
    "lgpl-3.0": frozenset(("lgpl-2.1", "mpl-2.0")),
    "lgpl-2.1": frozenset(("mpl-2.0",)),
}
_DISPUTED = frozenset({frozenset(("gpl-2.0", "apache-2.0"))})
"""Copyleft that does not take this permissive licence in."""


def differing_licence(stated: str | None, in_header: str | None) -> str | None:
    """Return a sentence if the licence that is stated for a model is not the one in its file's header.

    Spelling is no difference: `Apache 2.0` is `apache-2.0`. None if either says nothing.
    """
    if not stated or not in_header or _spelled(stated) == _spelled(in_header):
        return None
    return (
        f"The stated licence is {stated[:TEXT_MAX]!r}, but the header of the file says {in_header[:TEXT_MAX]!r}. "
        "Check which one holds."
    )


def terms_of(licence: str) -> Terms | None:
    """What `licence` (as a header writes it, in any case) is known for; None for one that is not known here."""
    name = _folded(licence)
    found = _NON_COMMERCIAL.fullmatch(name)
    if found is not None:
        more = {"-sa": Terms.COPYLEFT, "-nd": Terms.NO_DERIVATIVES}.get(found["rest"] or "", Terms.PERMISSIVE)
        return Terms.NON_COMMERCIAL | more
    if _NO_DERIVATIVES.fullmatch(name):
        return Terms.NO_DERIVATIVES
    return _TERMS.get(name)


def combined_licence(licences: Mapping[str, str | None]) -> Combined:
    """What is to be said of the licences of a chimera's parents, by what the parents are called; the base stands first.

    `licences-conflict` is warned of: no-derivatives anywhere; copyleft beside another copyleft that it does not name,
    beside non-commercial or beside own terms; two different sets of own terms. Everything else is information.
    """
    parents = _by_licence(licences)
    stated = [name for name in parents if name != NOT_STATED]
    known = [name for name in stated if terms_of(name) is not None]
    base = next(iter(licences), "")
    found = [_finding(base, *one) for one in _single(parents)]
    for first, second in combinations(known, 2):
        reason = _conflict(first, second)
        if reason is not None:
            who = f"{first} is the licence of {listed(parents[first])}, {second} that of {listed(parents[second])}"
            sentence = f"{who}: {reason}. Read both before this is passed on."
            found.append(_finding(base, Severity.WARN, "licences-conflict", sentence, parents[second]))
    if len(stated) > 1:
        sentence = f"The parents are under {len(stated)} licences, and all apply: {_text(parents)}."
        found.append(_finding(base, Severity.INFO, "licences-differ", sentence, ()))
    return Combined(_text(parents), tuple(found))


def licence_expression(licences: Mapping[str, str | None]) -> str | None:
    """What a chimera of these parents states as its licence, an SPDX expression: all of theirs.

    None where they state the same, or none states any: then the base's header says it.
    """
    names = list(_by_licence(licences))
    if len(names) < 2:
        return None
    return AND.join(NO_ASSERTION if name == NOT_STATED else name for name in names)


def _by_licence(licences: Mapping[str, str | None]) -> dict[str, list[str]]:
    """The parents under each licence, spelled as it was first."""
    spelled: dict[str, str] = {}
    parents: dict[str, list[str]] = {}
    for parent, licence in licences.items():
        for text in _each_of(licence) or [""]:
            name = spelled.setdefault(_folded(text), text) if text else NOT_STATED
            parents.setdefault(name, []).append(parent)
    return parents


def _each_of(licence: str | None) -> list[str]:
    """The licences that a header states: a chimera of differing ones states them all."""
    texts = [text.strip()[:TEXT_MAX] for text in (licence or "").split(AND)[:LICENCES_MAX]]
    return list(dict.fromkeys("" if text.upper() == NO_ASSERTION else text for text in texts))


def _text(parents: Mapping[str, list[str]]) -> str:
    if len(parents) == 1:
        return next(iter(parents))
    return "; ".join(f"{name} ({', '.join(those)})" for name, those in parents.items())


_Said = tuple[Severity, str, str, list[str]]


def _single(parents: Mapping[str, list[str]]) -> list[_Said]:
    """What is to be said of each licence on its own."""
    found: list[_Said] = []
    for name, those in parents.items():
        if name == NOT_STATED:
            sentence = f"No licence is stated by {listed(those)}: ask the makers before this is passed on."
            found.append((Severity.INFO, "licence-not-stated", sentence, those))
            continue
        terms = terms_of(name)
        if terms is None:
            sentence = f"{name!r}, the licence of {listed(those)}, is not known here: read what it says."
            found.append((Severity.INFO, "licence-unknown", sentence, those))
        elif Terms.NO_DERIVATIVES in terms:
            sentence = f"{name}, the licence of {listed(those)}, does not let derivatives be passed on: read it."
            found.append((Severity.WARN, "licences-conflict", sentence, those))
        elif terms & (Terms.OWN | Terms.NON_COMMERCIAL):
            what = "does not allow commercial use" if Terms.NON_COMMERCIAL in terms else "has terms of its own"
            sentence = f"{name}, the licence of {listed(those)}, {what}; that holds for the chimera, too: read it."
            found.append((Severity.INFO, "licence-terms", sentence, those))
    return found


def _conflict(first: str, second: str) -> str | None:
    """Why two licences may not go together, or None."""
    names = _folded(first), _folded(second)
    one, other = terms_of(first), terms_of(second)
    if one is None or other is None or _is_agreed(*names):
        return None
    if frozenset(names) in _DISPUTED:
        return "the two are commonly held not to go together"
    if Terms.COPYLEFT in one and Terms.COPYLEFT in other:
        return "each wants the whole under itself alone"
    if Terms.COPYLEFT in one | other and not _one_holds_all(one, other):
        return "one wants the whole under itself alone, the other adds rules to it"
    if Terms.OWN in one and Terms.OWN in other:
        return "each has terms of its own that it wants for the whole"
    return None


def _is_agreed(first: str, second: str) -> bool:
    return second in _AGREED.get(first, ()) or first in _AGREED.get(second, ())


def _one_holds_all(first: Terms, second: Terms) -> bool:
    """Whether the one without copyleft asks for nothing that the other does not ask for, too."""
    with_copyleft, other = (first, second) if Terms.COPYLEFT in first else (second, first)
    return other & ~with_copyleft == Terms.PERMISSIVE


def _spelled(licence: str) -> str:
    return re.sub(r"[\s_]+", "-", licence.strip().lower())


def _folded(licence: str) -> str:
    """Lower case, without what SPDX puts behind; a `2.0 or later` is as good as 3.0."""
    name = _spelled(licence)
    if name in ("gpl-2.0-or-later", "gpl-2.0+"):
        return "gpl-3.0"
    return name.removesuffix("-only").removesuffix("-or-later").removesuffix("+")


def _finding(base: str, severity: Severity, code: str, sentence: str, parents: tuple[str, ...] | list[str]) -> Finding:
    others = [parent for parent in parents if parent != base]
    return Finding(severity, code, sentence, _FIELD, (base, *others[:1]))


"""Characters; the catalog keeps no more."""
OTHER = "other"
"""What hubs write where a licence has no id."""
_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]+)")
_REFERENCE = re.compile(r"(DocumentRef-[A-Za-z0-9.-]+:)?LicenseRef-[A-Za-z0-9.-]+")
_EXCEPTION = re.compile(r"[A-Za-z0-9.-]+")


def wrong_with_licence(text: str) -> str | None:
    """A sentence on what is wrong with `text` as a licence; None where nothing is."""
    if len(text) > LICENSE_MAX:
        return f"A licence has at most {LICENSE_MAX} characters; this has {len(text)}."
    tokens = _TOKEN.findall(text)
    if not tokens:
        return "Write the SPDX id of a licence, such as apache-2.0, or leave the licence out."
    left = list(reversed(tokens))
    wrong = _expression(left)
    if wrong is None and left:
        return f"{left[-1]!r} does not belong there: licences are joined by AND or OR, in brackets where need be."
    return wrong


def _expression(left: list[str]) -> str | None:
    """Take an expression from the end of `left`; what is wrong with it. Brackets go as deep as 96 characters let."""
    while True:
        wrong = _part(left)
        if wrong is not None or not left or left[-1] not in ("AND", "OR"):
            return wrong
        left.pop()


def _part(left: list[str]) -> str | None:
    word = left.pop() if left else ""
    if word == "(":
        wrong = _expression(left)
        if wrong is not None:
            return wrong
        return None if left and left.pop() == ")" else "A bracket that is opened is not closed."
    if word in ("", ")", "AND", "OR", "WITH"):
        return f"A licence is missing{f' before {word!r}' if word else ' at the end'}."
    if not _is_known(word):
        return (
            f"{word!r} is no licence that is known here: write its SPDX id, such as apache-2.0 or cc-by-sa-4.0, or "
            f"LicenseRef- and a name of your own, or {OTHER}."
        )
    if left and left[-1] == "WITH":
        left.pop()
        if not left or not _EXCEPTION.fullmatch(left.pop()):
            return "The exception behind WITH is missing."
    return None


def _is_known(word: str) -> bool:
    if _REFERENCE.fullmatch(word) or word == NO_ASSERTION or word.lower() == OTHER:
        return True
    return terms_of(word) is not None
