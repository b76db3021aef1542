"""Two models side by side as plain values: how alike, by type, by block, what changed most, and what else differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.models import metadata_of
from organs.registry.catalog.queries.relatives import PlacedOrgan, organ_digests, placed_organs
from organs.registry.catalog.register.organs import shape_text
from organs.registry.catalog.tables import Model
from organs.registry.errors import BadQuery
from organs.registry.lineage import Kinship, Organ, Similarity, Slot, is_another_encoding, similarity
from organs.registry.present.facts import facts
from organs.registry.present.values import Values

PAGE_TENSORS_MAX = 10_000
"""Tensors of a model that a page or an answer lists or compares. The models that people train have a few thousand."""


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One side of a comparison."""

    name: str
    digest: str
    """Of its bytes: two sides of one digest are one model."""
    organs: Sequence[PlacedOrgan]
    kind: str = "model"
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else it is, by what that is called."""
    digests: Mapping[int, str] = field(default_factory=dict)
    """Of its organs, by their identities; empty where the organs are of no registry."""


def registered_model(session: Session, model: Model, tensors_max: int | None = None) -> ComparedModel:
    """Return a registered model as a side of a comparison; raises BadQuery for more than `tensors_max` tensors."""
    if tensors_max is not None and model.tensors > tensors_max:
        reason = f"it has {model.tensors:,} tensors; models with up to {tensors_max:,} are compared here"
        raise BadQuery(model.full_name, reason)
    organs = placed_organs(session, model.id)
    told = facts(model, metadata_of(session, model.id), (placed.organ.dtype for placed in organs))
    return ComparedModel(model.full_name, model.digest, organs, model.kind, told, organ_digests(session, model.id))


def comparison(first: ComparedModel, second: ComparedModel) -> Values:
    """Everything that a comparison says. Where both have an organ, names and types are those of `first`.

    `likeness` is the mean correlation of matrices at equal places, None where there is none to compare; adapters are
    not compared. `changed` has the compared organs, the least alike first; `only_first`, `only_second` and
    `shapes_differ` have the others. `differs` has what the headers say otherwise.
    """
    firsts, seconds = _by_slot(first), _by_slot(second)
    own, other = _organs(firsts), _organs(seconds)
    found = similarity(own, other)
    if "adapter" in (first.kind, second.kind):
        found = replace(found, mean=None, organ_count=0, by_organ={}, by_type={}, by_block={})
    return {
        "first": first.name,
        "second": second.name,
        "same_bytes": first.digest == second.digest,
        "likeness": found.mean,
        "kinship": found.kinship.value,
        "sentence": _sentence(first, second, found, is_encoding=is_another_encoding(own, other, found)),
        "organs": {
            "compared": found.organ_count,
            "first_matrices": found.first_count,
            "second_matrices": found.second_count,
            "first": len(firsts),
            "second": len(seconds),
            "identical": found.identical_count,
        },
        "types": list(_types(firsts, seconds, found)),
        "blocks": list(_blocks(found)),
        "changed": list(_changes(first, second, found)),
        "only_first": [placed.name for slot, placed in firsts.items() if slot not in seconds],
        "only_second": [placed.name for slot, placed in seconds.items() if slot not in firsts],
        "shapes_differ": [
            {"name": placed.name, "first": _shape(placed), "second": _shape(seconds[slot])}
            for slot, placed in firsts.items()
            if slot in seconds and placed.organ.shape != seconds[slot].organ.shape
        ],
        "differs": [
            {"what": what, "first": first.facts.get(what), "second": second.facts.get(what)}
            for what in {**first.facts, **second.facts}
            if first.facts.get(what) != second.facts.get(what)
        ],
    }


def changes(first: ComparedModel, second: ComparedModel) -> list[Values]:
    """What became of each organ that stands at one place in both: the change of θ in degrees from `first` to `second`.

    `likeness` is there for the matrices that can be compared; `identical` says that the bytes are the same.
    """
    firsts, seconds = _by_slot(first), _by_slot(second)
    found = similarity(_organs(firsts), _organs(seconds))
    return [
        {
            "name": placed.name,
            "tower": slot[0],
            "block": slot[1],
            "slot": slot[2],
            "theta_change": _difference(firsts[slot].theta, placed.theta),
            "likeness": found.by_organ.get(slot),
            "identical": firsts[slot].organ.identity == placed.organ.identity,
        }
        for slot, placed in seconds.items()
        if slot in firsts
    ]


def _difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else second - first


def _by_slot(model: ComparedModel) -> dict[Slot, PlacedOrgan]:
    return {placed.slot: placed for placed in model.organs}


def _organs(placed: Mapping[Slot, PlacedOrgan]) -> dict[Slot, Organ]:
    return {slot: one.organ for slot, one in placed.items()}


def _digest(model: ComparedModel, placed: PlacedOrgan) -> str | None:
    identity = placed.organ.identity
    return model.digests.get(identity) if isinstance(identity, int) else None


def _shape(placed: PlacedOrgan) -> str:
    return shape_text(placed.organ.shape)


def _sentence(first: ComparedModel, second: ComparedModel, found: Similarity, *, is_encoding: bool) -> str:
    """The outcome for people, in one sentence."""
    if first.digest == second.digest:
        return f"{first.name} and {second.name} are the same model to the last byte: there is nothing to compare."
    if found.identical_count == len(first.organs) == len(second.organs):
        return "Every organ is the same to the last byte: two files of the same weights, with other metadata."
    adapters = [side.name for side in (first, second) if side.kind == "adapter"]
    if adapters:
        names = f"{' and '.join(adapters)} {'are adapters' if len(adapters) > 1 else 'is an adapter'}"
        return f"{names}: adapters are not weights of a model; they are not compared."
    if found.kinship is Kinship.INCOMPARABLE:
        return (
            f"{first.name} and {second.name} cannot be compared: they have no matrix of one shape at one place "
            "whose values can be read."
        )
    if is_encoding:
        return (
            "The same weights in two encodings, as far as can be told: the vectors are the same to the last byte, and "
            "rounding explains the differences of the matrices."
        )
    return _shared(first, second, found) + _SENTENCES[found.kinship]


def _shared(first: ComparedModel, second: ComparedModel, found: Similarity) -> str:
    """The sentence that most organs are the same, where they are."""
    if 2 * found.identical_count <= max(len(first.organs), len(second.organs)):
        return ""
    counts = dict.fromkeys((len(first.organs), len(second.organs)))
    return f"{found.identical_count} of {' and '.join(map(str, counts))} organs are the same to the last byte. "


_SENTENCES = {
    Kinship.CLOSE: "Closely alike, as a model and its light fine-tune are, or two fine-tunes of one model.",
    Kinship.KIN: "Kin: alike beyond chance, with much training between them, or with organs of other origin.",
    Kinship.UNRELATED: "Not related, as far as weights at equal places can tell.",
}


def _types(
    firsts: Mapping[Slot, PlacedOrgan], seconds: Mapping[Slot, PlacedOrgan], found: Similarity
) -> Iterable[Values]:
    """A row a type: mean θ of each side in degrees, their difference, and the likeness of what was compared."""
    compared = Counter(firsts[slot].organ.type for slot in found.by_organ)
    kinds = sorted({placed.organ.type for placed in (*firsts.values(), *seconds.values())})
    for kind in kinds:
        first, second = _mean_theta(firsts.values(), kind), _mean_theta(seconds.values(), kind)
        yield {
            "type": kind,
            "first_theta": first,
            "second_theta": second,
            "difference": _difference(first, second),
            "likeness": found.by_type.get(kind),
            "compared": compared[kind],
        }


def _mean_theta(organs: Iterable[PlacedOrgan], kind: str) -> float | None:
    thetas = [placed.theta for placed in organs if placed.organ.type == kind and placed.theta is not None]
    return fmean(thetas) if thetas else None


def _blocks(found: Similarity) -> Iterable[Values]:
    compared = Counter(slot[:2] for slot in found.by_organ)
    for (tower, block), value in found.by_block.items():
        yield {"tower": tower, "block": block, "likeness": value, "compared": compared[tower, block]}


def _least_alike(found: Similarity) -> list[tuple[Slot, float]]:
    """The compared organs, the least alike first; of equals in the order of their places."""
    return sorted(found.by_organ.items(), key=lambda pair: pair[1])


def _changes(first: ComparedModel, second: ComparedModel, found: Similarity) -> Iterable[Values]:
    firsts, seconds = _by_slot(first), _by_slot(second)
    for slot, value in _least_alike(found):
        digests = {
            "first_digest": _digest(first, firsts[slot]),
            "second_digest": _digest(second, seconds[slot]),
        }
        yield _changed(firsts[slot], seconds[slot], value) | digests


def _changed(first: PlacedOrgan, second: PlacedOrgan, value: float) -> Values:
    tower, block, slot = first.slot
    return {
        "name": first.name,
        "type": first.organ.type,
        "tower": tower,
        "block": block,
        "slot": slot,
        "shape": _shape(first),
        "likeness": value,
        "identical": first.organ.identity == second.organ.identity,
        "first_theta": first.theta,
        "second_theta": second.theta,
    }
