"""Organs as plain values."""

from __future__ import annotations

from dataclasses import asdict

import msgspec
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.chimeras import organs_made_of
from organs.registry.catalog.queries.organs import measurements_of, organs_by_prefix, places_of_organ
from organs.registry.catalog.tables import Measurement
from organs.registry.compose.chimeras import made_organs
from organs.registry.present.models import placement_values
from organs.registry.present.values import Values


def organ_page(session: Session, prefix: str, *, visible: bool = False) -> Values:
    """The organ whose digest begins with `prefix`; raises NotFound, Ambiguous, BadDigest.

    Bytes that stand under several dtypes or shapes are several organs: `also` has what was measured of the others.
    `made` says how it was computed, if it was, and `made_into` what was computed from it. With `visible`, only organs
    that a visible or yanked model has.
    """
    rows = organs_by_prefix(session, prefix, visible=visible)
    organ, blob = rows[0]
    return {
        "digest": blob.digest,
        "dtype": organ.dtype,
        "shape": organ.shape,
        "elements": organ.elements,
        "nonfinite": organ.nonfinite,
        "size_bytes": blob.size_bytes,
        "stored_bytes": blob.stored_bytes,
        "codec": f"{blob.codec}/{blob.codec_version}",
        "state": blob.state,
        "measurements": [measurement_values(row) for row in measurements_of(session, organ.id)],
        "also": [
            {
                "dtype": other.dtype,
                "shape": other.shape,
                "measurements": [measurement_values(row) for row in measurements_of(session, other.id)],
            }
            for other, _ in rows[1:]
        ],
        "places": [
            {"model": model.full_name, "model_state": model.state} | placement_values(placement)
            for one, _ in rows
            for placement, model in places_of_organ(session, one.id)
        ],
        "made": [msgspec.to_builtins(one) for one in made_organs(session, blob.digest)],
        "made_into": [asdict(one) for one in organs_made_of(session, blob.digest)],
    }


def measurement_values(row: Measurement) -> Values:
    """What one method read, without the columns that it does not give."""
    values = {name: getattr(row, name) for name in _MEASUREMENT_COLUMNS}
    return {name: value for name, value in values.items() if value is not None and (value or name not in _ODDITIES)}


_ODDITIES = ("nan_count", "infinite_count", "constant")
"""Said only where there are any; any other zero is a reading."""
_MEASUREMENT_COLUMNS = tuple(column.key for column in Measurement.__table__.columns if column.key != "organ_id")
