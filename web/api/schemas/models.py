"""Schemas of models, their lineage, and two of them side by side."""

from __future__ import annotations

from organs.registry.catalog.search import (
    CHIMERA,
    PARTIAL,
)
from organs.registry.catalog.vocabulary import MODEL_KINDS, REACHABLE_STATES
from organs.web.api.schemas.values import (
    BYTES,
    COUNT,
    DIGEST,
    FLAG,
    MODEL_NAME,
    ORGAN_TYPE,
    SHARE,
    TEXT,
    THETA,
    TIME,
    Schema,
    described,
    list_of,
    nullable,
    record,
    ref,
    values_by_name,
)

_SUMMARY: dict[str, Schema] = {
    "name": MODEL_NAME,
    "title": described(nullable(TEXT), "What its file calls it, as text from outside."),
    "kind": described(
        {"type": "string", "enum": [*MODEL_KINDS, CHIMERA, PARTIAL]},
        "What was registered; `chimera` if it was composed here, `partial` where organs are missing.",
    ),
    "architecture": nullable(TEXT),
    "parameters": described(COUNT, "How many numbers its weights are."),
    "tensors": described(COUNT, "How many organs it has."),
    "size_bytes": described(COUNT, "Bytes of its files."),
    "mean_theta": described(nullable(THETA), "Mean θ over its tensors, in degrees. It is no mark."),
    "mean_signal": nullable(SHARE),
    "license": nullable(TEXT),
    "complete": described(FLAG, "Whether all of its organs are here."),
    "digest": described(DIGEST, "Of its bytes: the SHA-256 of its one file, or of its files' digests in order."),
    "created_at": described(TIME, "When it was registered, in UTC."),
    "state": described(
        {"type": "string", "enum": list(REACHABLE_STATES)}, "Yanked ones are shown to who names them alone."
    ),
    "downloads": described(COUNT, "How often it was fetched, whole or an organ of it."),
    "grafts": described(COUNT, "Visible chimeras that have organs of it."),
    "nonfinite_tensors": described(
        nullable(COUNT), "Tensors with values that are NaN or infinite; null where those of some were not counted."
    ),
}
_TYPE = record(
    "The organs of one type.",
    {
        "type": ORGAN_TYPE,
        "tensors": COUNT,
        "size_bytes": BYTES,
        "mean_theta": nullable(THETA),
        "mean_spectral_signal": nullable(SHARE),
    },
)
_METADATA = record(
    "An entry of its header, as text; long values are cut, arrays are told by their length.",
    {"key": TEXT, "type": TEXT, "value": TEXT},
)
_LINEAGE: dict[str, Schema] = {
    "lineage": list_of(ref("LineageEdge"), "Parents, then children, then measured relatives, the most alike first."),
    "lineage_left_out": described(COUNT, "Edges beyond the first 200."),
    "findings": list_of(
        ref("Finding"),
        "Where declared and measured disagree; parents that were yanked or removed.",
    ),
}
MODEL_SCHEMAS: dict[str, Schema] = {
    "Model": record(
        "A model with all that is known of it but its organs, which have pages of their own.",
        {
            **_SUMMARY,
            "description": described(nullable(TEXT), "Markdown, as its owner or its file has it."),
            "tags": list_of(TEXT),
            "contributor": described(TEXT, "Who added it."),
            "state_reason": described(nullable(TEXT), "Why it was yanked."),
            "changed_at": described(nullable(TIME), "When its state, or what is said of it, was last changed."),
            "flags": list_of(TEXT, "What is odd about its files."),
            "unassemblable": list_of(TEXT, "Why it is never written out again; empty for nearly all."),
            "types": list_of(_TYPE),
            "files": list_of(record("A file as it came in.", {"name": TEXT, "size_bytes": BYTES, "sha256": DIGEST})),
            "facts": values_by_name("What header and organs say, as short texts.", TEXT),
            "metadata": list_of(_METADATA),
            "ingest": {
                "type": ["object", "null"],
                "description": "What its ingest reported: counts, sizes, flags and notes. More may be added.",
            },
            "composed": nullable(
                record(
                    "By which lock, of which models, and by which recipe.",
                    {
                        "lock_id": DIGEST,
                        "parents": list_of(TEXT),
                        "recipe": {"type": "object", "additionalProperties": {}, "description": "As it was given."},
                    },
                )
            ),
            **_LINEAGE,
        },
    ),
}
