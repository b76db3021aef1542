"""The lineage of a model: declared, recorded and measured, with findings where these disagree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.registry.amounts import names_text, percent_text, weight_change
from organs.registry.catalog.queries.chimeras import chimera_of, stored_origins, withdrawn_ancestors
from organs.registry.catalog.queries.model_names import model_by_name, withdrawn_models
from organs.registry.catalog.queries.relatives import (
    Edge,
    StatedEdge,
    comparable_organs,
    edges_from,
    edges_of,
    main_dtypes,
    models_by_id,
    organs_by_slot,
    other_end,
    parents_of,
    proved_models,
)
from organs.registry.catalog.tables import Lineage, ModelRow
from organs.registry.entities.comparison import UNCHECKED, Proof
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.lineage import PROVED, RECORDED, RELATIVE, LineageEdge, ModelLineage
from organs.registry.kinds import WEIGHT_KINDS
from organs.registry.names import parse_model_name
from organs.registry.relatives.declared import folded
from organs.registry.relatives.descent import FLOATS, MATCHED_MIN, Descent, Records, descents
from organs.registry.relatives.sources import proof_of
from organs.registry.similarity import CLOSE, Groups, Kinship, is_another_encoding, similarity

SELF_RELATIONS = ("quantized", "relative")
"""Relations of an edge from a model to its own name: another encoding, or the same weights unquantised."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A parent that a model declares, and the result of the comparison with it."""

    text: str
    relation: str
    model: str | None
    """The registered model that the text means."""
    kinship: Kinship | None = None
    """None if the two were not compared."""
    likeness: float | None = None
    organ_count: int = 0
    matrix_count: int = 0
    is_encoding: bool = False
    """Whether rounding to another dtype explains all differences."""
    change: float | None = None


def findings(kind: str, declared: Sequence[Declared], undeclared: Mapping[str, float], relatives: int) -> list[Finding]:
    """Return all findings of a model of `kind`.

    `undeclared` has the close relatives that no declaration explains, by name with their likeness, the nearest first;
    `relatives` counts the measured relatives.
    """
    results = [finding for parent in declared for finding in _of_declared(kind, parent)]
    if undeclared:
        sentence = (
            f"Almost identical to {names_text(list(undeclared))}, but neither model names the other, or a common "
            "parent, as its base."
        )
        code, score = "close-relative-not-declared", max(undeclared.values())
        results.append(Finding(Severity.WARN, code, sentence, models=tuple(undeclared), score=score))
    if kind == "adapter" and not declared:
        results.append(Finding(Severity.WARN, "no-base-named", "This adapter does not say which model it belongs to."))
    if kind == "model" and not declared and not relatives:
        sentence = "It declares no parent, and no registered model has similar weights at the same places."
        results.append(Finding(Severity.INFO, "no-known-relatives", sentence))
    return results


def withdrawn(model: ModelRow, child: str | None = None) -> Finding:
    """Return the finding that `model`, a parent in the state yanked or removed, is not to be used any more.

    `child` is the chimera that was made from it, if it is not a parent but a more distant ancestor.
    """
    name = model.full_name
    who = f"The parent {name}" if child is None else f"{name}, from which {child} was made,"
    when = "" if model.changed_at is None else f" on {model.changed_at.date().isoformat()}"
    sentence = f"{who} was {model.state}{when}: {(model.state_reason or 'no reason was given').rstrip('.')}."
    return Finding(Severity.WARN, f"parent-{model.state}", sentence, models=(name,) if child is None else (name, child))


def unexplained(
    model_id: int, close: Collection[int], declared: Iterable[StatedEdge], titles: Mapping[int, str | None]
) -> set[int]:
    """Return the models of `close` that no chain of declarations connects with `model_id`.

    A chain goes over parents and children, over parents of one name that are not registered, and over equal titles.
    """
    groups = stated_groups(declared, titles)
    return {other for other in close if groups.leader(other) != groups.leader(model_id)}


def stated_groups(declared: Iterable[StatedEdge], titles: Mapping[int, str | None]) -> Groups:
    """Return the models in groups that declarations connect, also over unregistered parents and equal titles."""
    groups = Groups()
    for edge in declared:
        if folded(edge.text):
            groups.join(edge.child_id, ("text", folded(edge.text)))
        if edge.parent_id is not None:
            groups.join(edge.child_id, edge.parent_id)
    for titled_id, title in titles.items():
        if folded(title or ""):
            groups.join(titled_id, ("title", folded(title or "")))
    return groups


def _of_declared(kind: str, parent: Declared) -> list[Finding]:
    if parent.model is None:
        sentence = f"It names {parent.text!r} as its parent, which is not registered here: that cannot be checked."
        if parent.relation in SELF_RELATIONS:
            sentence = (
                f"It names itself, {parent.text!r}, as quantisations often do; the original is not registered here."
            )
        return [Finding(Severity.INFO, "parent-not-registered", sentence)]
    if kind != "model" or parent.kinship is None or parent.is_encoding or parent.kinship is Kinship.CLOSE:
        return []
    if parent.kinship is Kinship.INCOMPARABLE:
        sentence = f"It names {parent.model} as its parent, but no two matrices of the two have one shape at one place."
        return [Finding(Severity.INFO, "parent-not-comparable", sentence, models=(parent.model,))]
    alike = f"{parent.likeness:.2f} over {parent.organ_count} of {parent.matrix_count} matrices"
    if parent.kinship is Kinship.UNRELATED:
        sentence = (
            f"It names {parent.model} as its parent, but their weights at the same places are not related: "
            f"the mean correlation is {alike}."
        )
        return [Finding(Severity.WARN, "parent-unrelated", sentence, models=(parent.model,), score=parent.likeness)]
    sentence = (
        f"It names {parent.model} as its parent; their weights at the same places are only loosely alike: the mean "
        f"correlation is {alike}, where quantisations down to 4 bits and light fine-tunes have {CLOSE} and more."
    )
    severity = Severity.WARN if parent.relation == "quantized" else Severity.INFO
    return [Finding(severity, "parent-loosely-related", sentence, models=(parent.model,), score=parent.likeness)]


EDGES_MAX = 200
"""Edges in the lineage of a model."""
COMPARED_MAX = 64
"""The nearest relatives among which parents are searched."""
EDGES_READ_MAX = 1000
"""Edges to parents, to children and to relatives (each up to this many) by which declared and measured are compared."""
PARENTS_COMPARED = 8
"""Declared parents that are compared on every reading. A hostile file may name any number."""
PROOFS_MAX = 32
"""Models of which a proof is read for a lineage, those with most proved organs."""
TENSORS_COMPARED = 16_384
"""Tensors of a model and its declared parents together that are compared on every reading. Larger models are compared
once, when they are published."""


def lineage_of(session: Session, model: ModelRow) -> ModelLineage:
    """Return the first 200 edges of `model`: parents, then children, then measured relatives, most alike first.

    Beside them, the findings: where declared and measured disagree, and parents that were yanked or removed.
    """
    rows, count = edges_of(session, model.id, EDGES_READ_MAX)
    ends = {end for edge in rows for end in (edge.child_model_id, edge.parent_model_id) if end is not None}
    others = models_by_id(session, ends - {model.id})
    declared = _declared(session, model, rows, others)
    proofs = _proofs(session, model, others)
    measured = {other_end(edge, model.id): edge for edge in rows if edge.evidence == "measured"}
    undeclared = _undeclared(session, model, measured, others)
    near = [model.id, *list(measured)[:COMPARED_MAX]]
    proved = [
        (model.id, other) if proof.quantised == model.full_name else (other, model.id)
        for other, proof in proofs.items()
        if proof.is_complete
    ]
    kin = descents_among(session, edges_from(session, near), near, proved)
    stated = {other_end(edge, model.id): _direction(edge, model) for edge in rows if edge.evidence != "measured"}

    def direction(edge: Lineage) -> str:
        """Return the direction of an edge. What was stated of a parent or child is right against what was measured."""
        found = _direction(edge, model, kin)
        return found if found == RELATIVE else stated.get(other_end(edge, model.id), found)

    def place(edge: Lineage) -> tuple[int, bool, float, int]:
        """Return the place of an edge: parents, children, relatives; in each, what was stated, then the nearest."""
        role = ("parent", "child", RELATIVE).index(direction(edge))
        is_measured = edge.evidence == "measured"
        return role, is_measured, weight_change(edge.change, edge.score) if is_measured else 0.0, edge.id

    edges = []
    for edge in sorted(rows, key=place)[:EDGES_MAX]:
        other = others.get(other_end(edge, model.id))
        compared = declared.get(edge.id)
        shown = LineageEdge(
            direction=direction(edge),
            model=None if other is None else other.full_name,
            text=edge.parent_text,
            relation=edge.relation if edge.evidence != "measured" else _descent(edge, kin).relation,
            evidence=PROVED if edge.evidence == "measured" and _is_proved(edge, model, proofs) else edge.evidence,
            likeness=edge.score if compared is None else compared.likeness,
            change=edge.change if compared is None else compared.change,
            compared=edge.compared if compared is None else compared.organ_count,
            matched=edge.matched,
        )
        edges.append(shown)
    return ModelLineage(
        model=model.full_name,
        edges=tuple(edges),
        left_out=max(0, count - EDGES_MAX),
        findings=(
            *_withdrawn_origins(session, model, rows, others),
            *findings(model.kind, list(declared.values()), undeclared, len(measured)),
            *_source_findings(session, model, measured.values(), proofs),
        ),
    )


EVIDENCE = (PROVED, RECORDED, "declared", "measured")
"""The kinds of evidence, the strongest first."""


def quantised_from(session: Session, model: ModelRow) -> ModelRow | None:
    """Return the registered model of which a model is a quantisation, as far as its lineage knows: the strongest first.

    Without a parent that is known, the nearest relative in floats whose rounding explains all differences. None for a
    model in floats.
    """
    if main_dtypes(session, [model.id]).get(model.id, "") in FLOATS:
        return None
    edges = [
        edge
        for edge in lineage_of(session, model).edges
        if edge.relation == "quantized" and edge.model is not None and edge.direction != "child"
    ]
    edges.sort(key=lambda edge: (edge.direction == RELATIVE, EVIDENCE.index(edge.evidence)))  # else as they come
    for edge in edges:
        source = model_by_name(session, parse_model_name(edge.model or ""))
        is_float = main_dtypes(session, [source.id]).get(source.id, "") in FLOATS
        if source.id != model.id and (is_float or edge.direction != RELATIVE):
            return source
    return None


def origin_findings(session: Session, model: ModelRow) -> list[Finding]:
    """Return a finding for each yanked or removed model among the parents and ancestors of `model`."""
    edges = parents_of(session, [model.id], ("declared", "recorded"))
    parents = {edge.parent_model_id for edge in edges if edge.parent_model_id is not None}
    return _withdrawn_origins(session, model, edges, models_by_id(session, parents))


def withdrawn_findings(session: Session, parents: Collection[str], model_ids: Collection[int]) -> list[Finding]:
    """Return a finding for each yanked or removed model among `parents` and among the ancestors of `model_ids`.

    `parents` are full names. `model_ids` has a chimera itself, or its parents.
    """
    rows = withdrawn_models(session, parents)
    findings = {name: withdrawn(rows[name]) for name in parents if name in rows}
    for ancestors in withdrawn_ancestors(session, model_ids).values():
        for ancestor in ancestors:
            findings.setdefault(ancestor.model.full_name, withdrawn(ancestor.model, ancestor.child))
    return list(findings.values())


def _withdrawn_origins(
    session: Session, model: ModelRow, edges: Sequence[Lineage], others: Mapping[int, ModelRow]
) -> list[Finding]:
    """Return the findings about registered parents of `model`, all parents of a chimera, and their ancestors.

    A chimera's record still names a parent that was removed.
    """
    chimera = chimera_of(session, model.id)
    composed = () if chimera is None else stored_origins(chimera).parents
    parents = [edge.parent_model_id or 0 for edge in edges if _direction(edge, model) == "parent"]
    names = dict.fromkeys([*composed, *(others[parent].full_name for parent in parents if parent in others)])
    return withdrawn_findings(session, names, dict.fromkeys([model.id, *parents]))


def _direction(edge: Lineage, model: ModelRow, kin: Mapping[tuple[int, int], Descent] | None = None) -> str:
    if edge.evidence == "measured":
        parent = _descent(edge, kin or {}).parent
        if parent is None:
            return RELATIVE
        return "child" if parent == model.id else "parent"
    return "parent" if edge.child_model_id == model.id else "child"


def _descent(edge: Lineage, kin: Mapping[tuple[int, int], Descent]) -> Descent:
    ends = edge.child_model_id or 0, edge.parent_model_id or 0
    return kin.get(ends, Descent(edge.relation))


def descents_among(
    session: Session, edges: Iterable[Edge], model_ids: Collection[int], proved: Iterable[tuple[int, int]] = ()
) -> dict[tuple[int, int], Descent]:
    """Return what those of `edges` say that are measured between these models, by child and parent of the edges.

    `proved` has pairs of a quantisation and its source.
    """
    measured = [edge for edge in edges if edge.evidence == "measured" and edge.parent_id in model_ids]
    return descents(measured, main_dtypes(session, model_ids), _records(session, model_ids, proved)) if measured else {}


def _records(session: Session, model_ids: Collection[int], proved: Iterable[tuple[int, int]]) -> Records:
    """Return what is recorded of these models, and of proved quantisations. A removed parent is still one."""
    parents: defaultdict[int, set[int]] = defaultdict(set)
    for quantised, source in proved:
        parents[quantised].add(source)
    mixed = set()
    for edge in parents_of(session, model_ids, (RECORDED,)):
        child = edge.child_model_id or 0
        parents[child].add(edge.parent_model_id or 0)
        if edge.relation != "quantized":
            mixed.add(child)
    return Records({child: frozenset(above) for child, above in parents.items()}, frozenset(mixed))


def _proofs(session: Session, model: ModelRow, others: Mapping[int, ModelRow]) -> dict[int, Proof]:
    """Return what is proved of a model and its sources or quantisations, by the id of the other model."""
    sources = proved_models(session, model.id)
    made = proved_models(session, model.id, is_source=True)
    near = [others[other] for other in (*sources, *made) if other in others][:PROOFS_MAX]
    placed = {one.id: comparable_organs(session, one.id) for one in ((model, *near) if near else ())}
    found: dict[int, Proof] = {}
    for other in near:
        quantised, source = (model, other) if other.id in sources else (other, model)
        organs = {item.slot: item.organ for item in placed[source.id]}
        proof = proof_of(session, (quantised.full_name, placed[quantised.id]), (source.full_name, organs))
        found |= {other.id: proof} if proof is not None else {}
    return found


def _is_proved(edge: Lineage, model: ModelRow, proofs: Mapping[int, Proof]) -> bool:
    proof = proofs.get(other_end(edge, model.id))
    return proof is not None and proof.is_complete


def _source_findings(
    session: Session, model: ModelRow, edges: Collection[Lineage], proofs: Mapping[int, Proof]
) -> list[Finding]:
    """Return the finding that the source of a quantisation is not settled, if it has relatives that may be it.

    Or the one that its source does not explain some organs. A chimera was not made by quantising another model.
    """
    own = [proof for proof in proofs.values() if proof.quantised == model.full_name]
    if chimera_of(session, model.id) is not None or any(proof.is_complete for proof in own):
        return []
    altered = [proof for proof in own if proof.is_likely and all(one.result != UNCHECKED for one in proof.others)]
    if altered:
        proof = max(altered, key=lambda proof: proof.explained)
        names = tuple(organ.name for organ in proof.others)
        return [Finding(Severity.WARN, "not-explained", proof.sentence, models=(proof.source,), organs=names)]
    dtype = main_dtypes(session, [model.id]).get(model.id, "")
    tried = [edge.matched for edge in edges if edge.matched is not None]
    best = max(tried, default=0.0)
    if dtype in FLOATS or best >= MATCHED_MIN:
        return []
    if not tried:
        if all(edge.relation != "quantized" for edge in edges):
            return []
        sentence = (
            "The source of this quantisation is not settled: it was not encoded again. For most tensor types this "
            "needs the extra quantize; then run organ measure --missing, or organ prove."
        )
        return [Finding(Severity.INFO, "source-not-tried", sentence)]
    sentence = (
        "The source of this quantisation is not settled: encoding its relatives again gives at most "
        f"{percent_text(best)} of its blocks. The source is not registered in the tensor type that was encoded, or an "
        "importance matrix or another program was used: organ prove tries a given one."
    )
    return [Finding(Severity.INFO, "source-not-settled", sentence)]


def _declared(
    session: Session, model: ModelRow, edges: Sequence[Lineage], others: Mapping[int, ModelRow]
) -> dict[int, Declared]:
    """Return the parents that `model` declares, by edge, each compared with it."""
    result: dict[int, Declared] = {}
    declared = [edge for edge in edges if edge.evidence == "declared" and edge.child_model_id == model.id]
    budget = TENSORS_COMPARED - model.tensors
    has_parent = any(edge.parent_model_id in others for edge in declared)
    own = organs_by_slot(session, model.id) if model.kind in WEIGHT_KINDS and has_parent and budget > 0 else {}
    for edge in declared:
        parent = others.get(edge.parent_model_id or 0)
        text = edge.parent_text or ""
        if parent is None or not own or len(result) >= PARENTS_COMPARED or parent.tensors > budget:
            result[edge.id] = Declared(text, edge.relation, None if parent is None else parent.full_name)
            continue
        budget -= parent.tensors
        organs = organs_by_slot(session, parent.id)
        alike = similarity(own, organs)
        result[edge.id] = Declared(
            text,
            edge.relation,
            parent.full_name,
            alike.kinship,
            alike.mean,
            alike.organ_count,
            alike.first_count,
            is_another_encoding(own, organs, alike),
            alike.change.mean,
        )
    return result


def _undeclared(
    session: Session, model: ModelRow, measured: Mapping[int, Lineage], others: Mapping[int, ModelRow]
) -> dict[str, float]:
    """Return the close relatives that no declaration explains, by name with their likeness, the nearest first."""
    close = {
        other: edge.score or 0.0
        for other, edge in measured.items()
        if (edge.score or 0.0) >= CLOSE or edge.relation == "quantized"
    }
    family = {model.id, *others}
    declared = [
        StatedEdge(edge.child_model_id or 0, edge.parent_model_id, edge.parent_text or "")
        for edge in parents_of(session, family, ("declared", "recorded"))
    ]
    titles = {member.id: member.title for member in (model, *others.values())}
    left = unexplained(model.id, close, declared, titles)
    return {others[other].full_name: likeness for other, likeness in close.items() if other in left}
