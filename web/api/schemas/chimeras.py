"""Schemas of chimeras: recipes, plans, findings, what was made and shown; and what asks for them."""

from __future__ import annotations

from organs.registry.catalog.vocabulary import VERDICTS
from organs.registry.compose.findings import Severity
from organs.registry.present.plan import ACTS
from organs.web.api.schemas.values import (
    BLOCK,
    BYTES,
    COUNT,
    DIGEST,
    FLAG,
    MODEL_NAME,
    NUMBER,
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
    record,
    ref,
    values_by_name,
)

_ANYTHING: Schema = {"type": "object", "additionalProperties": {}}
_ACTS = list_of({"type": "string", "enum": list(ACTS)}, "What was done, in that order.")
_FINDING: dict[str, Schema] = {
    "severity": {"type": "string", "enum": [one.value for one in Severity]},
    "code": described(TEXT, "Its kind, for `accept`."),
    "sentence": TEXT,
    "field": described(TEXT, "Of the recipe or of a header, what it is about; empty for nothing in particular."),
    "base": TEXT,
    "donor": TEXT,
    "organs": list_of(TEXT, "Names of the tensors that it is about."),
    "accepted": described(FLAG, "Whether the recipe accepts it."),
}
_PARENT: dict[str, Schema] = {"model": TEXT, "license": nullable(TEXT), "acts": _ACTS}
_PART: dict[str, Schema] = {
    "name": described(TEXT, "The tensor's name, as text from outside."),
    "type": ORGAN_TYPE,
    "tower": TOWER,
    "block": BLOCK,
    "slot": TEXT,
    "from": described(TEXT, "The model whose organ stands there, or was computed from."),
    "acts": _ACTS,
    "dtype_before": TEXT,
    "dtype": TEXT,
    "theta_before": nullable(THETA),
    "theta": described(nullable(THETA), "Null where it is still to be computed."),
    "spectral_signal": nullable(SHARE),
    "size_bytes_before": BYTES,
    "size_bytes": BYTES,
}
_CHANGE: dict[str, Schema] = {
    "from": TEXT,
    "acts": _ACTS,
    "type": ORGAN_TYPE,
    "tower": TOWER,
    "first_block": BLOCK,
    "last_block": BLOCK,
    "organs": COUNT,
    "theta_before": nullable(THETA),
    "theta": nullable(THETA),
    "size_bytes_before": BYTES,
    "size_bytes": BYTES,
}
_MADE: dict[str, Schema] = {
    "acts": _ACTS,
    "method": described(nullable(TEXT), "How it was purified."),
    "keep": described(nullable(SHARE), "The share of the energy that spectral purification kept."),
    "adapters": list_of(
        record("A low-rank product that was added.", {"a": DIGEST, "b": DIGEST, "alpha": NUMBER, "scale": NUMBER})
    ),
    "dtype": TEXT,
    "source": record("The organ that it was computed from.", {"digest": DIGEST, "dtype": TEXT, "shape": SHAPE}),
    "theta_before": nullable(THETA),
}
_COMPUTED: dict[str, Schema] = {
    **{key: _PART[key] for key in ("name", "type", "block", "slot", "from")},
    "digest": DIGEST,
    **_MADE,
    "theta": nullable(THETA),
}
_PREDICTION: Schema = {
    **_ANYTHING,
    "description": (
        "What is expected of it before it is run, from measurements alone: `sentence` in words, `usable` or null, "
        "`score` (1 and more is usable), `loss` in nats a token, `recovered` from 0 to 1, and what they rest on."
    ),
}
_VERDICT: dict[str, Schema] = {
    "verdict": {"type": "string", "enum": list(VERDICTS)},
    "reason": TEXT,
    "runtime": TEXT,
    "report": {**_ANYTHING, "description": "Per model and text the perplexity with its standard error; what it wrote."},
    "created_at": TIME,
}
_SUMMARY: dict[str, Schema] = {
    "name": MODEL_NAME,
    "title": nullable(TEXT),
    "lock_id": DIGEST,
    "parents": list_of(TEXT, "The base first."),
    "withdrawn_parents": list_of(TEXT, "The parents that were yanked or removed."),
    "usable": described(nullable(FLAG), "Whether it is predicted to be usable."),
    "score": described(nullable(NUMBER), "Of the prediction: 1 and more is usable."),
    "verdict": described(nullable({"type": "string", "enum": list(VERDICTS)}), "The newest; null before it was run."),
    "size_bytes": BYTES,
    "mean_theta": nullable(THETA),
    "created_at": TIME,
}
_PLAN: dict[str, Schema] = {
    "name": described(TEXT, "What it would be registered as."),
    "file": TEXT,
    "size_bytes": BYTES,
    "base": MODEL_NAME,
    "base_size_bytes": BYTES,
    "parents": list_of(ref("Parent")),
    "license": described(TEXT, "Of all parents together, in words."),
    "prediction": _PREDICTION,
    "can_be_made": FLAG,
    "unaccepted": list_of(TEXT, "Codes of the warnings that the recipe does not accept."),
    "lock_id": described(nullable(DIGEST), "Null where organs are still to be computed, and for what is refused."),
    "to_compute": described(COUNT, "How many organs are to be computed."),
    "organs": COUNT,
    "changed": COUNT,
    "changes": list_of(ref("Change"), "The same in short: a line for each run of blocks."),
    "parts": list_of(ref("Part"), "The organs that change; with `every_part=1` all."),
    "lock": described(
        nullable(TEXT),
        "The lock itself, with `lock=1`: null where organs are still to be computed, and while it cannot be made.",
    ),
}
_CHIMERA: dict[str, Schema] = {
    "model": described(MODEL_NAME, "It is a model like any other."),
    "also": list_of(MODEL_NAME, "Other names of the same bytes."),
    "lock_id": DIGEST,
    "title": nullable(TEXT),
    "architecture": nullable(TEXT),
    "tensors": COUNT,
    "size_bytes": BYTES,
    "mean_theta": nullable(THETA),
    "created_at": TIME,
    "file": record("Its one file.", {"name": TEXT, "size_bytes": BYTES, "sha256": DIGEST}),
    "recipe": {**_ANYTHING, "description": "As it was given, in names and words."},
    "recipe_yaml": TEXT,
    "parents": list_of(ref("Parent")),
    "license": TEXT,
    "findings": list_of(ref("CompositionFinding"), "What the plan said, and parents that were yanked or removed."),
    "prediction": _PREDICTION,
    "changes": list_of(ref("Change")),
    "parts": list_of(record("An organ that is not the base's own.", {**_PART, "digest": DIGEST})),
    "computed": list_of(record("An organ that was computed.", _COMPUTED)),
    "verdicts": list_of(record("What a runtime showed.", _VERDICT), "Newest first."),
    "made_into": list_of(record("A model that was composed of it.", {"model": MODEL_NAME, "acts": _ACTS})),
    **dict.fromkeys(("modelfile", "llama_cli", "assemble", "python", "card"), TEXT),
}
_COUNTED: dict[str, Schema] = {
    "fitting": described(COUNT, "Its organs that have a place in the base."),
    "equal": described(COUNT, "Its organs that the base has itself at that place."),
    "total": described(COUNT, "Its organs."),
    "whole": described(FLAG, "Whether nothing of the type stands in the way."),
}
_FITTING: dict[str, Schema] = {
    "model": MODEL_NAME,
    "alike": described(nullable(NUMBER), "The mean correlation of its matrices with the base's; null of strangers."),
    "types": values_by_name("By type, all that it has.", record("One type.", _COUNTED)),
}
_TYPE_FIT: dict[str, Schema] = {
    "type": ORGAN_TYPE,
    "fitting": described(COUNT, "Places of the base that the donor has an organ for which can stand there."),
    "total": described(COUNT, "Places that the base has."),
    "refused": FLAG,
    "findings": list_of(ref("CompositionFinding")),
}

LEFT_OUT = values_by_name(
    "How many rows were left out, by the name of the list, where there are very many: `organs` are names in findings.",
    COUNT,
)

CHIMERA_SCHEMAS: dict[str, Schema] = {
    "CompositionFinding": record("What is to be said before anything is made.", _FINDING),
    "Parent": record("A model that gave something, or received.", _PARENT),
    "Part": record("An organ of the result, beside the one of the base that gives way to it.", _PART),
    "Change": record("Organs of a type in a run of blocks, to which the same is done.", _CHANGE),
    "Plan": record("What a recipe comes to.", _PLAN, optional=("lock",)),
    "PlannedRecipe": record(
        "A plan and what is to be said of it.",
        {
            "can_be_made": FLAG,
            "findings": list_of(ref("CompositionFinding"), "Refusals first, then warnings."),
            "plan": nullable(ref("Plan")),
            "left_out": LEFT_OUT,
        },
    ),
    "Compatibility": record(
        "Whether organs of one model fit into another.",
        {
            "base": MODEL_NAME,
            "donor": MODEL_NAME,
            "types": list_of(record("One type.", _TYPE_FIT)),
            "findings": list_of(ref("CompositionFinding")),
            "left_out": LEFT_OUT,
        },
    ),
    "Fitting": record(
        "Models that have organs which fit a base.",
        {
            "base": MODEL_NAME,
            "items": list_of(record("A model that has something which fits.", _FITTING)),
            "more": described(FLAG, "Whether others fit too, or were not looked at."),
            "next": described({"type": "null"}, "There is no other page: ask for a higher `limit`."),
        },
    ),
    "ChimeraSummary": record("A chimera as a line of a list.", _SUMMARY),
    "Chimeras": record(
        "A page of chimeras.",
        {
            "items": list_of(ref("ChimeraSummary")),
            "next": described(nullable(TEXT), "What to give as `after` for the next page; null on the last."),
        },
    ),
    "Chimera": record("A chimera with all that is known of it.", _CHIMERA),
    "MadeOrgan": record("How an organ was computed, and from what.", _MADE),
    "Assembly": record(
        "Where a model is as one file.",
        {
            "model": MODEL_NAME,
            "file": TEXT,
            "size_bytes": BYTES,
            "sha256": described(nullable(DIGEST), "Null where shards are merged."),
            "address": TEXT,
        },
    ),
}
