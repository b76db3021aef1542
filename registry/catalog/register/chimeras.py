"""Rows of chimeras: recipe, findings, lineage, how organs were computed, verdicts and gains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from organs.registry.amounts import ranges_text
from organs.registry.anatomy import type_name
from organs.registry.catalog.queries.chimeras import stored_origins
from organs.registry.catalog.queries.model_contents import organs_by_name
from organs.registry.catalog.queries.model_lists import donors_of
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.organs import organ_ids
from organs.registry.catalog.records import ChimeraRecord
from organs.registry.catalog.rows import insert_missing
from organs.registry.catalog.tables import (
    ChimeraRow,
    ComputationRow,
    GainOrgan,
    GainRow,
    Lineage,
    ModelRow,
    Placement,
    ScoreRow,
    VerdictRow,
    now,
)
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.entities.plan import ADAPTER, GRAFTED, PRUNED, PURIFIED, QUANTISED, SOURCE
from organs.registry.entities.validation import TextVerdict
from organs.registry.errors import NotFound
from organs.registry.names import parse_model_name


def register_chimera(session: Session, model: ModelRow, record: ChimeraRecord) -> None:
    """Write `record` for `model`, which was registered in the same transaction."""

    def add_edge(relation: str, **ends: int) -> None:
        session.add(Lineage(relation=relation, evidence="recorded", created_at=model.created_at, **ends))

    session.add(
        ChimeraRow(
            model_id=model.id,
            lock_id=record.lock_id,
            base_model_id=record.base_model_id,
            recipe=record.recipe,
            findings=record.findings,
            screen=record.screen,
            origins=record.origins,
        )
    )
    for parent_id, relation in dict.fromkeys(record.parents):
        add_edge(relation, child_model_id=model.id, parent_model_id=parent_id)
    session.flush()
    if model.state == "visible":
        count_grafts(session, model)
    keys = {computation.organ for computation in record.computations}
    keys |= {source for computation in record.computations for source, _ in computation.sources}
    ids = organ_ids(session, keys)
    for computation in record.computations:  # an organ with two computations has two rows
        organ_id = ids[computation.organ]
        row = {"key": computation.key, "organ_id": organ_id, "made": computation.made}
        insert_missing(session, ComputationRow, [row])
        for source, relation in dict.fromkeys(computation.sources):
            if source in ids and ids[source] != organ_id:
                add_edge(relation, child_organ_id=organ_id, parent_organ_id=ids[source])
    session.flush()


def count_grafts(session: Session, model: ModelRow, sign: int = 1) -> None:
    """Add `model`, if it is a chimera, to the counts of its donors; with `sign` -1, subtract it."""
    donors = session.scalars(donors_of(model.id)).all()
    session.execute(update(ModelRow).where(ModelRow.id.in_(donors)).values(grafts=ModelRow.grafts + sign))


def record_score(
    session: Session,
    file_digest: str,
    text_digest: str,
    tokens: int,
    runtime: str,
    reading: str,
    perplexity: float | None,
) -> None:
    """Store the reading (JSON) of a file on a text in windows of `tokens`, in place of an earlier one."""
    key = {"file_digest": file_digest, "text_digest": text_digest, "tokens": tokens, "runtime": runtime}
    values = {"reading": reading, "perplexity": perplexity, "created_at": now()}
    insert_missing(session, ScoreRow, [key | values])
    session.execute(update(ScoreRow).filter_by(**key).values(values))


def add_verdict(
    session: Session, model_id: int, runtime: str, verdict: str, reason: str, report: str, strength: int = 0
) -> int:
    """Store a verdict on a model; `report` is JSON. Return its id."""
    row = VerdictRow(
        model_id=model_id,
        runtime=shown_text(runtime, 256),
        verdict=verdict,
        reason=shown_text(reason),
        report=report,
        strength=strength,
        created_at=now(),
    )
    session.add(row)
    session.flush()
    return row.id


def record_quick_look(session: Session, model_id: int, look: str) -> None:
    """Store a quick look (JSON) at a chimera, in place of an earlier one."""
    session.execute(update(ChimeraRow).where(ChimeraRow.model_id == model_id).values(quick_look=look))


def record_gains(session: Session, chimera: ChimeraRow, texts: Iterable[TextVerdict]) -> None:
    """Store what a validated chimera gained on each text that counts for its verdict.

    A gain from fewer tokens does not replace a stored one on the same text.
    """
    donor, organs, grafted = _attribution(session, chimera)
    ends = {"base_model_id": chimera.base_model_id, "donor_model_id": donor, "grafted": grafted}
    for text in texts:
        if not text.counts or text.ratio is None or text.ratio_margin is None:
            continue
        key = {"model_id": chimera.model_id, "text_digest": text.digest}
        values = ends | {
            "text": shown_text(text.name, 96),
            "tokens": text.tokens or 0,
            "percent": 100.0 * (1.0 - text.ratio),
            "margin": 100.0 * text.ratio_margin,
            "settled": is_settled(text.ratio, text.ratio_margin),
        }
        insert_missing(session, GainRow, [key | values])
        session.execute(update(GainRow).filter_by(**key).where(GainRow.tokens <= values["tokens"]).values(values))
    rows = [{"organ_id": organ_id, "model_id": chimera.model_id} for organ_id in sorted(organs)]
    insert_missing(session, GainOrgan, rows)


def is_settled(ratio: float, margin: float) -> bool:
    """Return whether the interval of a change excludes no change. The interval is symmetric in the logarithm."""
    return abs(math.log(ratio)) > margin / ratio


def _attribution(session: Session, chimera: ChimeraRow) -> tuple[int | None, set[int], str]:
    """Return the only donor of a chimera, the organs that show its effect, and what differs from the base as text.

    With several donors, with a donor and purified or pruned organs, or with organs that were quantised, there is no
    donor and there are no organs.
    Grafted organs that equal those of the base do not count, nor donors that gave nothing else.
    """
    origins = stored_origins(chimera)
    parts = origins.by_tensor()
    own = organs_by_name(session, chimera.base_model_id)
    statement = select(Placement).where(Placement.model_id == chimera.model_id).order_by(Placement.position)
    changed = [
        place for place in session.scalars(statement) if place.name in parts and own.get(place.name) != place.organ_id
    ]
    acts = {place.name: parts[place.name][1] for place in changed}
    grafted = shown_text("; ".join(_groups(changed, acts)))
    without_effect = {model for model, _ in parts.values()} - {parts[name][0] for name in acts}
    uses = origins.acts()
    donors = [
        name
        for number, name in enumerate(origins.parents)
        if number and number not in without_effect and uses[name] != (SOURCE,)
    ]
    others = {act for done in acts.values() for act in done} & {PURIFIED, PRUNED, QUANTISED}
    if len(donors) > 1 or (donors and others) or QUANTISED in others:
        return None, set(), grafted
    organs = {place.organ_id for place in changed}
    try:
        donor = model_by_name(session, parse_model_name(donors[0])) if donors else None
    except NotFound:  # removed since
        donor = None
    if donor is None:
        return None, organs, grafted
    of_donor = organs_by_name(session, donor.id).items()
    organs |= {organ for name, organ in of_donor if donor.kind == ADAPTER or name in acts}
    return donor.id, organs, grafted


def _groups(places: Iterable[Placement], acts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the changed organs by type, with their blocks: `feed-forward 0-3`, `adapter attention 0-5`."""
    blocks: dict[tuple[str, str], set[int]] = {}
    for place in places:
        group = blocks.setdefault((" and ".join(acts[place.name]), place.type), set())
        group |= set() if place.block is None else {place.block}
    for (done, kind), numbers in blocks.items():
        label = type_name(kind) if done == GRAFTED else f"{done} {type_name(kind)}"
        yield f"{label} {ranges_text(sorted(numbers))}" if numbers else label
