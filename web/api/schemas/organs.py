"""Schemas of organs: at their places, by digest, and how a search's findings are spread."""

from __future__ import annotations

from organs.registry.catalog.vocabulary import BLOB_STATES, REACHABLE_STATES
from organs.registry.entities.base import schemas
from organs.registry.entities.chimera import MadeOrgan
from organs.registry.present.meanings import MEANINGS
from organs.web.api.schemas.values import (
    BLOCK,
    BYTES,
    COUNT,
    DIGEST,
    FLAG,
    LIKENESS,
    MODEL_NAME,
    NUMBER,
    ORGAN_TYPE,
    SHAPE,
    SHARE,
    TEXT,
    THETA,
    TOWER,
    Schema,
    described,
    list_of,
    nullable,
    page_of,
    record,
    ref,
    values_by_name,
)

_PLACE: dict[str, Schema] = {
    "name": described(TEXT, "The tensor's name in its file, as text from outside."),
    "type": ORGAN_TYPE,
    "tower": TOWER,
    "block": BLOCK,
    "slot": described(TEXT, "The place in the block: what it does there."),
    "dtype": described(TEXT, "How its numbers are written down, such as `Q8_0`."),
    "size_bytes": BYTES,
}
_READINGS: dict[str, Schema] = {
    "theta": described(nullable(THETA), MEANINGS["theta"].what),
    "magnitude": described(nullable(NUMBER), MEANINGS["magnitude"].what),
    "signal": described(nullable(SHARE), MEANINGS["signal"].what),
    "spectral_signal": described(nullable(SHARE), MEANINGS["spectral_signal"].what),
    "stable_rank": described(nullable(NUMBER), MEANINGS["stable_rank"].what),
}
_NONFINITE = described(nullable(COUNT), "How many of its values are NaN or infinite; null where they were not counted.")
_COUNTS: dict[str, Schema] = {
    field: values_by_name(f"Count by {field}, the largest first.", COUNT)
    for field in ("type", "slot", "dtype", "arch", "license")
}

_MEASUREMENT: dict[str, Schema] = {
    "method": described(TEXT, "`z1` gives θ and what it is made of, `mp1` the spectral readings."),
    "sample_size": described(COUNT, "How many of the numbers were looked at."),
    "theta": THETA,
    "magnitude": NUMBER,
    "signal": SHARE,
    **dict.fromkeys(("entropy", "kurtosis", "coherence", "mean", "standard_deviation", "minimum", "maximum"), NUMBER),
    "nan_count": COUNT,
    "infinite_count": COUNT,
    "constant": FLAG,
    "spectral_signal": SHARE,
    "stable_rank": NUMBER,
    "reason": described(TEXT, "Why something was not measured."),
}
_ODD = {"dtype": _PLACE["dtype"], "shape": SHAPE, "measurements": list_of(ref("Measurement"))}

ORGAN_SCHEMAS: dict[str, Schema] = {
    "FoundOrgan": record(
        "An organ at its place in a model.",
        {
            "digest": DIGEST,
            "model": MODEL_NAME,
            **_PLACE,
            "shape": list_of(COUNT, "Row length first."),
            **_READINGS,
            "architecture": nullable(TEXT),
            "license": nullable(TEXT),
            "likeness": described(nullable(LIKENESS), "For `like:` alone."),
            "nonfinite": _NONFINITE,
        },
    ),
    "Placement": record(
        "An organ at its place in the model that was asked for.",
        {**_PLACE, **_READINGS, "shape": SHAPE, "digest": DIGEST, "nonfinite": _NONFINITE},
    ),
    "Place": record(
        "Where an organ sits.",
        {"model": MODEL_NAME, "model_state": {"type": "string", "enum": list(REACHABLE_STATES)}, **_PLACE, **_READINGS},
    ),
    "Measurement": record(
        "What one method read. What it does not give is left out; oddities are said only where there are any.",
        _MEASUREMENT,
        optional=[name for name in _MEASUREMENT if name not in ("method", "sample_size")],
    ),
    "Organ": record(
        "An organ with its readings and the first 100 of its places.",
        {
            "digest": DIGEST,
            "dtype": _PLACE["dtype"],
            "shape": SHAPE,
            "elements": COUNT,
            "nonfinite": _NONFINITE,
            "size_bytes": BYTES,
            "stored_bytes": described(COUNT, "Bytes that it takes, compressed."),
            "codec": described(TEXT, "How it is compressed, and which version of that."),
            "state": described(
                {"type": "string", "enum": list(BLOB_STATES)}, "`corrupt` when the stored bytes failed a check."
            ),
            "measurements": list_of(ref("Measurement")),
            "also": list_of(record("The same bytes under another dtype or shape.", _ODD)),
            "places": list_of(ref("Place")),
            "made": list_of(ref("MadeOrgan"), "How it was computed here; empty for what came in as it is."),
            "made_into": list_of(
                record(
                    "An organ that was computed from it, at one of its places.",
                    {"digest": DIGEST, "name": TEXT, "model": MODEL_NAME, "act": TEXT},
                )
            ),
        },
    ),
    "KnownOrgan": record(
        "An organ that is here. Bytes that stand under several dtypes or shapes are several.",
        {
            "digest": DIGEST,
            "dtype": _PLACE["dtype"],
            "shape": SHAPE,
            "elements": COUNT,
            "size_bytes": BYTES,
            "theta": nullable(THETA),
            "spectral_signal": nullable(SHARE),
        },
    ),
    "Facets": record(
        "How what a query finds is spread. Each field's counts leave out that field's own filter.",
        {
            "total": described(nullable(COUNT), "Null when there are too many to count one by one."),
            "exact": described(FLAG, "False where a share was estimated, or a filter was not counted."),
            "uncounted": list_of(TEXT, "The filters that the counts leave out."),
            "hurried": described(FLAG, "True where they were left out because counting them took too long."),
            **_COUNTS,
            "theta": list_of(
                record(
                    "A bin of 5 degrees by its lower edge; null is what has no θ.",
                    {"from": {"type": ["integer", "null"], "minimum": 0, "maximum": 85}, "count": COUNT},
                )
            ),
        },
    ),
}
_ORGANS = page_of(ref("FoundOrgan"), "A page of organs; `facets` with `counts=1`.")
_ORGANS["properties"]["facets"] = ref("Facets")
_KNOWN = page_of(ref("KnownOrgan"), "Which of the digests are here. `next` is always null.")
_KNOWN["properties"]["absent"] = list_of(DIGEST, "The digests that are not here, in the order in which they came.")
_KNOWN["required"].append("absent")
ORGAN_SCHEMAS |= {
    "Organs": _ORGANS,
    "Placements": page_of(ref("Placement"), "A page of a model's organs, in the order of its files."),
    "KnownOrgans": _KNOWN,
    "Digests": record(
        "Digests to look for.",
        {
            "digests": {
                "type": "array",
                "items": {"type": "string", "pattern": "^(sha256:)?[0-9a-f]{64}$"},
                "minItems": 1,
                "maxItems": 1000,
            }
        },
    ),
}
ORGAN_SCHEMAS |= schemas([MadeOrgan])
