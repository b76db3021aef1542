"""What fits what, and why not: all findings on two models, on a set of replacements, or on an adapter, all at once.

Nothing is read but headers, vocabularies and what the catalog knows of the organs: shapes, dtypes, digests,
fingerprints, θ. The table of codes is in docs/recipes.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from organs.registry.anatomy import OrganType
from organs.registry.compose.adaptation import check_adapter
from organs.registry.compose.changes import already_equal, changes
from organs.registry.compose.differences import Taken, differences
from organs.registry.compose.facts import Facts, facts_of
from organs.registry.compose.finding import Finding, Severity
from organs.registry.compose.fitting import is_dtype_refused, kept, misfits, misplaced, odd_weights
from organs.registry.compose.licences import combined_licence
from organs.registry.compose.parent import Parent
from organs.registry.compose.relatedness import relatedness
from organs.registry.compose.replacement import Replacement, by_donor
from organs.registry.relatives.findings import withdrawal_sentence

__all__ = [
    "TypeFit",
    "check_adapter",
    "check_pair",
    "check_replacements",
    "check_yanked",
    "fit_by_type",
]

TYPES = (OrganType.SKELETON, OrganType.ORGAN, OrganType.EMBED, OrganType.NORM)
"""What is exchanged by type, in the order in which it is shown."""
REASONS_SHOWN = 5
NO_BASES = frozenset({"adapter", "imatrix"})
"""Values of `general.type` of files that no loader takes for a model."""


@dataclass(frozen=True, slots=True)
class TypeFit:
    """How well a donor's organs of one type fit a base."""

    type: OrganType
    fitting: int
    """Places of the base that the donor has an organ for that can stand there; 0 where the whole type is refused."""
    total: int
    """Places that the base has."""
    findings: tuple[Finding, ...]
    """What is found when all of the type is taken; without what is to be said of the two models as wholes."""

    @property
    def is_refused(self) -> bool:
        return any(finding.severity is Severity.REFUSE for finding in self.findings)


def check_pair(base: Parent, donor: Parent) -> list[Finding]:
    """All that is to be said of the two: as wholes first, then what speaks for and against each type, then licences.

    A refusal of one type says nothing against the others: `fit_by_type` tells which is meant. An adapter is checked as
    one.
    """
    licences = combined_licence({base.label: base.license, donor.label: donor.license}).findings
    of_both = [*check_yanked((base, donor)), *licences]
    if donor.header.text("general.type") == "adapter":
        return _each_once([*_of_base(base), *check_adapter(base, donor), *of_both])
    facts = facts_of(base), facts_of(donor)
    nothing = Taken(frozenset(), frozenset())
    found = [*_of_base(base), *differences(*facts, nothing, (base.label, donor.label))]
    for fit in fit_by_type(base, donor, facts):
        found += fit.findings
    return _each_once([*found, *of_both])


def check_yanked(parents: Sequence[Parent]) -> list[Finding]:
    """Return a warning for each of the parents, the base first, that was yanked.

    A yanked model is still found by its name, so that nothing breaks that was made of it; it should not be used anew.
    """
    base = parents[0].label
    return [
        Finding(Severity.WARN, "parent-yanked", sentence, base=base, donor="" if parent.label == base else parent.label)
        for parent in parents
        if parent.yanked is not None
        for _, sentence in [withdrawal_sentence(parent.label, "yanked", *parent.yanked)]
    ]


def fit_by_type(base: Parent, donor: Parent, facts: tuple[Facts, Facts] | None = None) -> list[TypeFit]:
    """How much of each type of the base can be taken from `donor`, and what keeps the rest.

    The types that the base has, in the order skeleton, organ, embed, norm. `facts` are the two's, where they are known.
    """
    ours, theirs = facts if facts is not None else (facts_of(base), facts_of(donor))
    return [fit for kind in TYPES for fit in [_fit(base, donor, kind, ours, theirs)] if fit.total or fit.findings]


def check_replacements(base: Parent, replacements: Sequence[Replacement]) -> list[Finding]:
    """All that is to be said of replacing these at once: refusals, warnings and information, a few for each donor.

    What was asked for and came to no replacement is not seen here, nor are licences: `combined_licence` tells those of
    all parents together.
    """
    ours = facts_of(base)
    replaced = {one.before.name for one in replacements}
    own = [part for part in base.parts if part.name not in replaced]
    found = [*_of_base(base), *misplaced(base, replacements), *odd_weights(base, own, base=base, donor=None)]
    for donor, taken in by_donor(replacements):
        found += _of_donor(base, donor, taken, (ours, facts_of(donor)))
    return _each_once([*found, *changes(base, replacements)])


def _of_base(base: Parent) -> Iterator[Finding]:
    """Why nothing can be made of the base at all."""
    if base.unassemblable:
        reasons = "; ".join(base.unassemblable[:REASONS_SHOWN])
        sentence = f"{base.label} must not be given to a loader, nor what has its header: {reasons}."
        yield Finding(Severity.REFUSE, "not-loadable", sentence, base=base.label)
    kind = base.header.text("general.type")
    if kind in NO_BASES:
        sentence = f"{base.label} is of the type {kind}: no model can be made of it."
        yield Finding(Severity.REFUSE, "not-loadable", sentence, "general.type", base.label)
    if not base.complete:
        sentence = f"{base.label} is only a part of a model, so nothing that can be loaded comes of it."
        yield Finding(Severity.REFUSE, "not-complete", sentence, base=base.label)


def _of_donor(
    base: Parent, donor: Parent, replacements: Sequence[Replacement], facts: tuple[Facts, Facts]
) -> Iterator[Finding]:
    """All that is to be said of what one donor gives."""
    found = differences(*facts, Taken.of(replacements), (base.label, donor.label))
    yield from found
    yield from misfits(base, donor, replacements)
    yield from odd_weights(donor, [one.after for one in replacements], base=base, donor=donor)
    if not any(finding.code == "architecture-differs" for finding in found):
        yield from relatedness(base, donor, replacements)
    yield from already_equal(base, donor, replacements)


def _fit(base: Parent, donor: Parent, kind: OrganType, ours: Facts, theirs: Facts) -> TypeFit:
    places = [part for part in base.parts if part.place.type is kind]
    pairs = [(part, donor.by_slot.get(part.slot)) for part in places]
    taken = [Replacement(before, after, donor) for before, after in pairs if after is not None]
    as_wholes = differences(ours, theirs, Taken(frozenset(), frozenset()), (base.label, donor.label))
    found = [one for one in _of_donor(base, donor, taken, (ours, theirs)) if one not in as_wholes] if taken else []
    found += kept(base, donor, [part.place for part in places])
    # What refuses organs one by one leaves the others fitting; all else is against the type.
    against = [*as_wholes, *found]
    refused = {one.code for one in against if one.severity is Severity.REFUSE} - _ONE_BY_ONE
    fitting = 0 if refused else sum(one.fits and not is_dtype_refused(one) for one in taken)
    return TypeFit(kind, fitting, len(places), tuple(_each_once(found)))


_ONE_BY_ONE = {"width-differs", "dtype-refused", "partial-group", "slot-absent"}
"""Codes of refusals that are about single organs."""


def _each_once(findings: Iterable[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))
