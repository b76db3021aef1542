"""Whether the organs of one model fit into another, type by type, as plain values."""

from __future__ import annotations

from organs.registry.compose.compatibility import check_pair, fit_by_type
from organs.registry.compose.models import Parent
from organs.registry.present.plan import findings_values
from organs.registry.present.values import Values


def compatibility_values(base: Parent, donor: Parent) -> Values:
    """How much of each type fits, and all that is to be said of the two.

    What refuses one type says nothing against the others. An adapter has no types: it fits as a whole, or not.
    """
    return {
        "base": base.label,
        "donor": donor.label,
        "types": [
            {
                "type": fit.type.value,
                "fitting": fit.fitting,
                "total": fit.total,
                "refused": fit.is_refused or not fit.fitting,
                "findings": findings_values(fit.findings, ()),
            }
            for fit in ([] if donor.header.text("general.type") == "adapter" else fit_by_type(base, donor))
        ],
        "findings": findings_values(check_pair(base, donor), ()),
    }
