"""Compare two models: their likeness by type, by block and by organ, and other differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from msgspec import structs
from sqlalchemy.orm import Session

from organs.registry.amounts import names_text, percent_text, share_text
from organs.registry.anatomy import Slot
from organs.registry.catalog.queries.model_contents import facts_of, metadata_of
from organs.registry.catalog.queries.organs import ModelExpert, model_experts
from organs.registry.catalog.queries.relatives import (
    ComparablePlacement,
    comparable_organs,
    measured_edge,
    organ_digests,
)
from organs.registry.catalog.rows import batches
from organs.registry.catalog.tables import ModelRow
from organs.registry.digest import Digest
from organs.registry.entities.comparison import (
    ComparedBlock,
    ComparedCounts,
    ComparedExpert,
    ComparedOrgan,
    ComparedStack,
    ComparedType,
    Comparison,
    FactDifference,
    OrganChange,
    ShapeDifference,
)
from organs.registry.errors import BadQuery
from organs.registry.measures import caution_of_mean, theta_caution
from organs.registry.relatives.descent import MATCHED_MIN
from organs.registry.relatives.sources import proof_of
from organs.registry.similarity import (
    Changes,
    ComparableOrgan,
    Kinship,
    Similarity,
    changes,
    is_another_encoding,
    paired_correlations,
    similarity,
    unexplained_by_rounding,
)

EXPERTS_LISTED_MAX = 1000
"""The most experts that a comparison lists; it counts all that differ."""
STACKS_IN_MEMORY = 8
"""Stacks of each model whose experts are loaded together. A stack has up to some thousand, with fingerprints."""
STACK_DIMENSIONS = 3
PAGE_TENSORS_MAX = 10_000
"""Tensors of a model that a page or an answer lists or compares. Usual models have a few thousand."""


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One side of a comparison."""

    name: str
    digest: str
    """The digest of the model's bytes: two sides with equal digests are one model."""
    organs: Sequence[ComparablePlacement]
    kind: str = "model"
    facts: Mapping[str, str] = field(default_factory=dict)
    """Short texts by name (`catalog.queries.model_contents.facts_of`)."""
    digests: Mapping[int, Digest] = field(default_factory=dict)
    """Digests of its organs, by their identities; empty if the organs are not registered."""


def registered_model(session: Session, model: ModelRow, tensors_max: int | None = None) -> ComparedModel:
    """Return a registered model as a side of a comparison; raises BadQuery for more than `tensors_max` tensors."""
    if tensors_max is not None and model.tensors > tensors_max:
        reason = f"it has {model.tensors:,} tensors; models with up to {tensors_max:,} are compared here"
        raise BadQuery(model.full_name, reason)
    organs = comparable_organs(session, model.id)
    facts = facts_of(model, metadata_of(session, model.id), (placed.organ.dtype for placed in organs))
    digests = {identity: Digest(digest) for identity, digest in organ_digests(session, model.id).items()}
    return ComparedModel(model.full_name, model.digest, organs, model.kind, facts, digests)


def compare_registered(
    session: Session, first: ModelRow, second: ModelRow, tensors_max: int | None = None
) -> tuple[Comparison, ComparedModel, ComparedModel]:
    """Compare two registered models, also the single experts of their stacks; return the two sides as well.

    Raises BadQuery for a model with more than `tensors_max` tensors.
    """
    own, other = (registered_model(session, model, tensors_max) for model in (first, second))
    stacks = _compare_stacks(session, (first.id, own), (second.id, other))
    edge = measured_edge(session, first.id, second.id)
    compared = compare_models(own, other, None if edge is None else edge.matched)
    for quantised, source in ((own, other), (other, own)):
        organs = _organs(_by_slot(source))
        proof = proof_of(session, (quantised.name, quantised.organs), (source.name, organs))
        if proof is not None:
            break
    if proof is not None:
        sentence = proof.sentence if proof.is_likely else compared.sentence
        compared = structs.replace(compared, proof=proof, sentence=sentence)
    return structs.replace(compared, stacks=tuple(stacks)), own, other


def _compare_stacks(
    session: Session, first: tuple[int, ComparedModel], second: tuple[int, ComparedModel]
) -> Iterator[ComparedStack]:
    """Yield the stacks of experts that differ, in the order of their places."""
    firsts, seconds = _by_slot(first[1]), _by_slot(second[1])
    places = [
        slot
        for slot, placed in firsts.items()
        if len(placed.organ.shape) == STACK_DIMENSIONS
        and slot in seconds
        and seconds[slot].organ.identity != placed.organ.identity
    ]
    listed = 0
    for batch in batches(places, STACKS_IN_MEMORY):
        own, other = (model_experts(session, model_id, batch) for model_id in (first[0], second[0]))
        for place in batch:
            if place not in own or place not in other or len(own[place]) != len(other[place]):
                continue
            pairs = [pair for pair in zip(own[place], other[place], strict=True) if pair[0].digest != pair[1].digest]
            changed = tuple(_compare_experts(pairs[: EXPERTS_LISTED_MAX - listed]))
            listed += len(changed)
            tower, block, slot = place
            yield ComparedStack(
                name=firsts[place].name,
                tower=tower,
                block=block,
                slot=slot,
                experts=len(own[place]),
                differ=len(pairs),
                changed=changed,
            )


def _compare_experts(pairs: Sequence[tuple[ModelExpert, ModelExpert]]) -> Iterator[ComparedExpert]:
    comparable = {
        own.number: (own.fingerprint, other.fingerprint)
        for own, other in pairs
        if own.fingerprint is not None and other.fingerprint is not None and own.shape == other.shape
    }
    fingerprints = list(comparable.values())
    likeness = dict(zip(comparable, paired_correlations(fingerprints), strict=True))
    change = dict(zip(comparable, changes(fingerprints), strict=True))
    for own, other in pairs:
        yield ComparedExpert(
            expert=own.number,
            likeness=likeness.get(own.number),
            change=change.get(own.number),
            first_theta=own.theta,
            second_theta=other.theta,
            first_digest=own.digest,
            second_digest=other.digest,
        )


def compare_models(first: ComparedModel, second: ComparedModel, matched: float | None = None) -> Comparison:
    """Compare two models. Adapters have no likeness: they are not the weights of a model.

    `matched` is the share of sampled blocks of one that encoding the other gives.
    """
    firsts, seconds = _by_slot(first), _by_slot(second)
    own, other = _organs(firsts), _organs(seconds)
    alike = similarity(own, other)
    unexplained = [firsts[slot].name for slot in unexplained_by_rounding(own, other, alike)]
    is_source = (matched or 0.0) >= MATCHED_MIN
    encoding = _encoding_text(alike, matched) if is_source or is_another_encoding(own, other, alike) else ""
    if "adapter" in (first.kind, second.kind):
        alike = replace(alike, mean=None, organ_count=0, by_organ={}, by_type={}, by_block={}, change=Changes())
    compared = Counter(slot[:2] for slot in alike.by_organ)
    return Comparison(
        first=first.name,
        second=second.name,
        same_bytes=first.digest == second.digest,
        likeness=alike.mean,
        change=alike.change.mean,
        kinship=alike.kinship.value,
        sentence=_sentence(first, second, alike, unexplained, encoding),
        matched=matched,
        unexplained=tuple(unexplained),
        organs=ComparedCounts(
            compared=alike.organ_count,
            first_matrices=alike.first_count,
            second_matrices=alike.second_count,
            first=len(firsts),
            second=len(seconds),
            identical=alike.identical_count,
        ),
        types=tuple(_types(firsts, seconds, alike)),
        blocks=tuple(
            ComparedBlock(
                tower=tower,
                block=block,
                likeness=likeness,
                change=alike.change.by_block.get((tower, block)),
                compared=compared[tower, block],
            )
            for (tower, block), likeness in alike.by_block.items()
        ),
        changed=tuple(_changed(first, second, alike)),
        only_first=tuple(placed.name for slot, placed in firsts.items() if slot not in seconds),
        only_second=tuple(placed.name for slot, placed in seconds.items() if slot not in firsts),
        shapes_differ=tuple(
            ShapeDifference(name=placed.name, first=placed.organ.shape, second=seconds[slot].organ.shape)
            for slot, placed in firsts.items()
            if slot in seconds and placed.organ.shape != seconds[slot].organ.shape
        ),
        differs=tuple(
            FactDifference(what=name, first=first.facts.get(name), second=second.facts.get(name))
            for name in {**first.facts, **second.facts}
            if first.facts.get(name) != second.facts.get(name)
        ),
    )


def organ_changes(first: ComparedModel, second: ComparedModel) -> dict[Slot, OrganChange]:
    """Return how the organs of `second` differ from those of `first`, for each place where both have one."""
    firsts, seconds = _by_slot(first), _by_slot(second)
    alike = similarity(_organs(firsts), _organs(seconds))
    return {
        slot: OrganChange(
            likeness=alike.by_organ.get(slot),
            change=alike.change.by_organ.get(slot),
            identical=firsts[slot].organ.identity == placed.organ.identity,
        )
        for slot, placed in seconds.items()
        if slot in firsts
    }


def _by_slot(model: ComparedModel) -> dict[Slot, ComparablePlacement]:
    return {placed.slot: placed for placed in model.organs}


def _organs(placed: Mapping[Slot, ComparablePlacement]) -> dict[Slot, ComparableOrgan]:
    return {slot: placement.organ for slot, placement in placed.items()}


def _digest(model: ComparedModel, placed: ComparablePlacement) -> Digest | None:
    identity = placed.organ.identity
    return model.digests.get(identity) if isinstance(identity, int) else None


def _sentence(
    first: ComparedModel, second: ComparedModel, alike: Similarity, unexplained: Sequence[str], encoding: str
) -> str:
    """Return the result for people, in one sentence."""
    if first.digest == second.digest:
        return f"{first.name} and {second.name} are the same model to the last byte: there is nothing to compare."
    if alike.identical_count == len(first.organs) == len(second.organs):
        return "Every tensor is the same to the last byte: two files of the same weights, with other metadata."
    adapters = [side.name for side in (first, second) if side.kind == "adapter"]
    if adapters:
        names = f"{' and '.join(adapters)} {'are adapters' if len(adapters) > 1 else 'is an adapter'}"
        return f"{names}: adapters are not compared, because they are not the weights of a model."
    if alike.kinship is Kinship.INCOMPARABLE:
        return (
            f"{first.name} and {second.name} cannot be compared: no matrix that can be read has the same place and "
            "shape in both."
        )
    if encoding:
        return encoding + _unexplained_text(unexplained)
    shared = ""
    if 2 * alike.identical_count > max(len(first.organs), len(second.organs)):
        counts = " and ".join(map(str, dict.fromkeys((len(first.organs), len(second.organs)))))
        shared = f"{alike.identical_count} of {counts} tensors are the same to the last byte. "
    return shared + _SENTENCES[alike.kinship] + _unexplained_text(unexplained)


def _encoding_text(alike: Similarity, matched: float | None) -> str:
    """Return what is known of two models that rounding to other tensor types may explain."""
    close = f"Close: {share_text(alike.mean)};"
    if matched is None:
        return (
            f"{close} not proved to be a plain quantisation. The vectors are the same to the last byte, and rounding "
            "explains the differences of the 256 values that were compared of each matrix."
        )
    share = f"{percent_text(matched)} of the sampled blocks of the other"
    if matched < MATCHED_MIN:
        return f"{close} not proved to be a plain quantisation: encoding one of the two gives {share}."
    return f"{close} a quantisation, as far as samples show: encoding one of the two gives {share}."


def _unexplained_text(names: Sequence[str]) -> str:
    """Return the sentence that some matrices differ by more than their types explain, if there are any."""
    if not names:
        return ""
    verb = "differs" if len(names) == 1 else "differ"
    return f" {names_text(names)} {verb} by more than rounding to the tensor type explains."


_SENTENCES = {
    Kinship.CLOSE: "Almost identical, like a model and its light fine-tune, or two fine-tunes of one model.",
    Kinship.KIN: "Related, but far apart: much training lies between them, or some parts come from elsewhere.",
    Kinship.UNRELATED: "Not related, as far as the weights at equal places can show.",
}


def _types(
    firsts: Mapping[Slot, ComparablePlacement], seconds: Mapping[Slot, ComparablePlacement], alike: Similarity
) -> Iterable[ComparedType]:
    compared = Counter(firsts[slot].organ.type for slot in alike.by_organ)
    for kind in sorted({placed.organ.type for placed in (*firsts.values(), *seconds.values())}):
        first, first_caution = _mean_theta(firsts.values(), kind)
        second, second_caution = _mean_theta(seconds.values(), kind)
        yield ComparedType(
            type=kind,
            first_theta=first,
            first_caution=first_caution,
            second_theta=second,
            second_caution=second_caution,
            difference=None if first is None or second is None else second - first,
            likeness=alike.by_type.get(kind),
            change=alike.change.by_type.get(kind),
            compared=compared[kind],
        )


def _mean_theta(organs: Iterable[ComparablePlacement], kind: str) -> tuple[float | None, str]:
    """Return the mean θ of the organs of one type, and why it is uncertain; an empty text if it is not."""
    measured = [
        (placed.theta, theta_caution(placed.theta, placed.organ.dtype, math.prod(placed.organ.shape)))
        for placed in organs
        if placed.organ.type == kind and placed.theta is not None
    ]
    if not measured:
        return None, ""
    return fmean(theta for theta, _ in measured), caution_of_mean(
        sum(caution != "" for _, caution in measured), len(measured)
    )


def _changed(first: ComparedModel, second: ComparedModel, alike: Similarity) -> Iterable[ComparedOrgan]:
    """Yield the compared organs, the most changed first; equally changed ones in the order of their places."""
    firsts, seconds = _by_slot(first), _by_slot(second)
    for place, likeness in sorted(alike.by_organ.items(), key=lambda pair: -alike.distance_of(pair[0])):
        own, other = firsts[place], seconds[place]
        tower, block, slot = place
        yield ComparedOrgan(
            name=own.name,
            type=own.organ.type,
            tower=tower,
            block=block,
            slot=slot,
            shape=own.organ.shape,
            likeness=likeness,
            change=alike.change.by_organ.get(place),
            identical=own.organ.identity == other.organ.identity,
            first_theta=own.theta,
            second_theta=other.theta,
            first_digest=_digest(first, own),
            second_digest=_digest(second, other),
        )
