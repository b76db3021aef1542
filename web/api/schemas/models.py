"""Schemas of models, their lineage, and two of them side by side."""

from __future__ import annotations

from organs.registry.catalog.search.fields import CHIMERA
from organs.registry.catalog.vocabulary import MODEL_KINDS, REACHABLE_STATES
from organs.registry.lineage import Kinship
from organs.web.api.schemas.values import (
    BLOCK,
    BYTES,
    CHANGE,
    COUNT,
    DIGEST,
    FLAG,
    LIKENESS,
    MODEL_NAME,
    ORGAN_TYPE,
    SHAPE,
    SHARE,
    TEXT,
    THETA,
    TIME,
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

_SUMMARY: dict[str, Schema] = {
    "name": MODEL_NAME,
    "title": described(nullable(TEXT), "What its file calls it, as text from outside."),
    "kind": described(
        {"type": "string", "enum": [*MODEL_KINDS, CHIMERA]},
        "What was registered; `chimera` where it was composed here.",
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
_COMPARED: dict[str, Schema] = {
    "name": TEXT,
    "type": ORGAN_TYPE,
    "tower": TOWER,
    "block": BLOCK,
    "slot": TEXT,
    "shape": SHAPE,
    "likeness": LIKENESS,
    "identical": described(FLAG, "Whether the bytes are the same."),
    "first_theta": nullable(THETA),
    "second_theta": nullable(THETA),
    "first_digest": nullable(DIGEST),
    "second_digest": nullable(DIGEST),
}
_COMPARED_TYPE: dict[str, Schema] = {
    "type": ORGAN_TYPE,
    "first_theta": nullable(THETA),
    "second_theta": nullable(THETA),
    "difference": nullable(CHANGE),
    "likeness": nullable(LIKENESS),
    "compared": COUNT,
}
_COMPARED_COUNTS = ("compared", "first_matrices", "second_matrices", "first", "second", "identical")
_SHAPES_DIFFER: dict[str, Schema] = {"name": TEXT, "first": SHAPE, "second": SHAPE}
_FACTS_DIFFER: dict[str, Schema] = {"what": TEXT, "first": nullable(TEXT), "second": nullable(TEXT)}
_COMPARED_BLOCK: dict[str, Schema] = {"tower": TOWER, "block": BLOCK, "likeness": LIKENESS, "compared": COUNT}

MODEL_SCHEMAS: dict[str, Schema] = {
    "ModelSummary": record("A model as a line of a list.", _SUMMARY),
    "Models": page_of(ref("ModelSummary"), "A page of models."),
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
    "Comparison": record(
        "Two models side by side. Where both have an organ, names and types are those of the first.",
        {
            "first": MODEL_NAME,
            "second": MODEL_NAME,
            "same_bytes": FLAG,
            "likeness": described(nullable(LIKENESS), "The mean over matrices at equal places; null with none."),
            "kinship": {"type": "string", "enum": [one.value for one in Kinship]},
            "sentence": described(TEXT, "The outcome for people."),
            "organs": record("How many.", dict.fromkeys(_COMPARED_COUNTS, COUNT)),
            "types": list_of(record("The organs of one type.", _COMPARED_TYPE)),
            "blocks": list_of(record("The compared organs of one block.", _COMPARED_BLOCK)),
            "changed": list_of(record("A compared organ; the least alike first.", _COMPARED)),
            "only_first": list_of(TEXT),
            "only_second": list_of(TEXT),
            "shapes_differ": list_of(record("Both have it, in two shapes.", _SHAPES_DIFFER)),
            "differs": list_of(record("What the headers say otherwise.", _FACTS_DIFFER)),
        },
    ),
}
