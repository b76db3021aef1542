"""A chimera as plain values: how it came to be, what was predicted of it, what a runtime showed, and how to use it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.chimeras import verdicts_of
from organs.registry.catalog.queries.composing import (
    chimera_of,
    computations_in,
    computations_of,
    recorded_parents,
    thetas_of,
)
from organs.registry.catalog.queries.models import files_of, metadata_of, placements_of
from organs.registry.catalog.queries.published import is_reachable
from organs.registry.catalog.records import OrganKey
from organs.registry.catalog.register.organs import shape_text
from organs.registry.catalog.tables import Chimera, Model, ModelFile, Placement, Verdict
from organs.registry.compose.findings import (
    Finding,
    Severity,
)
from organs.registry.compose.licences import combined_licence
from organs.registry.compose.recipe import kept_recipe
from organs.registry.compose.recipe_io import (
    recipe_values,
    recipe_yaml,
)
from organs.registry.present.card import card
from organs.registry.present.changes import ACTS, changes_values, findings_values
from organs.registry.present.script import script
from organs.registry.present.usage import Usage
from organs.registry.present.values import Values
from organs.registry.relatives.lineage import withdrawn_findings


def chimera_values(session: Session, model: Model) -> Values | None:
    """All that is known of `model` because it was composed here; None of any other."""
    chimera = chimera_of(session, model.id)
    if chimera is None:
        return None
    (file,) = files_of(session, model.id)
    recipe = kept_recipe(chimera.recipe)
    parents = _parents(session, model, chimera)
    parts = _parts(session, model, chimera)
    values = {
        "model": model.full_name,
        "lock_id": chimera.lock_id,
        "file": {"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256},
        "recipe": recipe_values(recipe),
        "recipe_yaml": recipe_yaml(recipe),
        "parents": parents,
        "license": combined_licence({one["model"]: one["license"] for one in parents}).text,
        "findings": findings_values(
            [*_withdrawn(session, parents, chimera), *json.loads(chimera.findings)], recipe.accept
        ),
        "prediction": json.loads(chimera.prediction),
        "changes": changes_values(parts),
        "parts": parts,
        "computed": _computed(session, model, parts),
        "verdicts": [_verdict(one) for one in verdicts_of(session, model.id)],
        **_usage(session, model, file).values(),
        "python": script(recipe, file.name),
    }
    return values | {"card": card(model, [(file.name, file)], values)}


def _withdrawn(session: Session, parents: Sequence[Values], chimera: Chimera) -> list[Finding]:
    """Return a finding for each parent that was yanked or removed since, other than those that the plan warned of."""
    base, *_ = names = [one["model"] for one in parents]
    known = {one["sentence"] for one in json.loads(chimera.findings)}
    return [
        Finding(Severity.WARN, one.code, one.sentence, base=base, donor=name if name != base else "")
        for one in withdrawn_findings(session, names)
        for name in one.models
        if one.sentence not in known
    ]


def made_values(session: Session, digest: str) -> list[Values]:
    """How the organs with the bytes `digest` were computed, each with θ of what it was computed from."""
    made = [json.loads(text) for text in computations_of(session, digest)]
    thetas = thetas_of(session, {_source(one) for one in made})
    return [_made(one, thetas) for one in made]


def _parents(session: Session, model: Model, chimera: Chimera) -> list[Values]:
    """The parents in the order of the recipe; a licence is known of those that are still here."""
    origins = json.loads(chimera.origins)
    labels: list[str] = origins["parents"]
    acts: dict[str, set[str]] = {label: set() for label in labels}
    for number, *done in origins["parts"].values():
        acts[labels[number]].update(done)
    licences: dict[str, str | None] = {}
    for parent, act in recorded_parents(session, model.id):
        licences[parent.full_name] = parent.license
        if act == "adapter" and parent.id != chimera.base_model_id and parent.full_name in acts:
            acts[parent.full_name].add(act)
    return [
        {"model": label, "license": licences.get(label), "acts": [act for act in ACTS if act in acts[label]]}
        for label in labels
    ]


def _parts(session: Session, model: Model, chimera: Chimera) -> list[Values]:
    """The organs that are not the base's own, as a plan has them; of a base that is not shown nothing is told."""
    origins = json.loads(chimera.origins)
    held = placements_of(session, chimera.base_model_id) if is_reachable(session, chimera.base_model_id) else ()
    before = {placement.name: placement for placement, *_ in held}
    rows = []
    for placement, _, digest, _ in placements_of(session, model.id):
        origin = origins["parts"].get(placement.name)
        if origin is not None:
            number, *acts = origin
            base = before.get(placement.name)
            rows.append(_part(placement, digest, base, origins["parents"][number], acts))
    return rows


def _part(placement: Placement, digest: str, base: Placement | None, label: str, acts: list[str]) -> Values:
    return {
        "name": placement.name,
        "type": placement.type,
        "tower": placement.tower,
        "block": placement.block,
        "slot": placement.slot,
        "from": label,
        "acts": acts,
        "dtype_before": placement.dtype if base is None else base.dtype,
        "dtype": placement.dtype,
        "theta_before": None if base is None else base.theta,
        "theta": placement.theta,
        "spectral_signal": placement.spectral_signal,
        "size_bytes_before": placement.size_bytes if base is None else base.size_bytes,
        "size_bytes": placement.size_bytes,
        "digest": digest,
    }


def _computed(session: Session, model: Model, parts: Iterable[Values]) -> list[Values]:
    """The organs that were computed: how, from what, and θ before and after."""
    made = {name: json.loads(text) for name, text in computations_in(session, model.id).items()}
    thetas = thetas_of(session, {_source(one) for one in made.values()})
    return [
        {
            **{key: part[key] for key in ("name", "type", "block", "slot", "from", "digest")},
            **_made(made[part["name"]], thetas),
            "theta": part["theta"],
        }
        for part in parts
        if part["name"] in made and set(part["acts"]) - {"grafted"}
    ]


def _made(made: Values, thetas: Mapping[OrganKey, float | None]) -> Values:
    digest, dtype, shape = _source(made)
    return {
        "acts": [*(["adapter"] if made.get("add") else []), *(["purified"] if made.get("purify") else [])],
        "method": made.get("purify"),
        "keep": made.get("keep"),
        "adapters": [
            {"a": a[0], "b": b[0], "alpha": alpha, "scale": scale} for a, b, alpha, scale in made.get("add", ())
        ],
        "dtype": made["dtype"],
        "source": {"digest": digest, "dtype": dtype, "shape": shape},
        "theta_before": thetas.get((digest, dtype, shape)),
    }


def _source(made: Values) -> OrganKey:
    digest, dtype, shape = made["source"]
    return digest, dtype, shape_text(shape)


def _verdict(verdict: Verdict) -> Values:
    return {
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "runtime": verdict.runtime,
        "report": json.loads(verdict.report),
        "created_at": verdict.created_at.isoformat(),
    }


def _usage(session: Session, model: Model, file: ModelFile) -> Usage:
    key = f"{model.architecture}.context_length"
    said = next((row.value for row in metadata_of(session, model.id) if row.key == key), "")
    return Usage(model.full_name, file.name, model.title or model.name, int(said) if said.isdecimal() else None)
