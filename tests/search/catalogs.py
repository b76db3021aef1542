"""Catalogs of rows without files, random or explicit, with every edge case of the fields of a search."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from organs.registry.catalog.register.counts import FacetKey, facet_ids, repair_totals
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.rows import insert_or_add
from organs.registry.catalog.tables import (
    Blob,
    FacetCount,
    Fingerprint,
    GainOrgan,
    GainRow,
    Lineage,
    ModelFileRow,
    ModelMetadata,
    ModelRow,
    ModelTag,
    ModelWord,
    OrganRow,
    Placement,
)
from organs.registry.catalog.vocabulary import folded_tag, theta_bin, unique_words
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.local import LocalRegistry
from organs.registry.similarity import COARSE_BYTES

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
THETAS = (None, None, 0.0, 4.999, 5.0, 12.5, 39.999999999999996, 40.0, 44.999, 45.0, 45.0, 60.0, 89.9999999, 90.0, 90.0)
SPECTRALS = (None, 0.0, 0.25, 0.3, 0.3, 0.30000000000000004, 1.0)
MAGNITUDES = (None, 0.0, 0.9, 0.9, 1.02)
RANKS = (None, 1.0, 12.5, 200.0)
FINGERPRINTS = ("random",) * 8 + ("constant", "none")
SIZES = (1, 4096, 4096, 2_000_000, 3 * 10**9, 2**62)
PLACES = (
    ("embed", "text", None, "token_embd"),
    ("norm", "text", None, "output_norm"),
    ("norm", "text", 0, "attn_norm"),
    ("skeleton", "text", 0, "attn_q"),
    ("skeleton", "vision", 0, "attn_q"),
    ("skeleton", "text", 1, "attn_q"),
    ("organ", "text", 0, "ffn_up"),
    ("organ", "text", 1, "ffn_up"),
    ("organ", "text", 1, "ffn_down"),
    ("organ", "text", 7, "ffn_down"),
    ("adapter", "text", 7, "attn_q.lora_a"),
    ("other", "text", None, "what?is[this]*"),
)
SHAPES = ("64x64", "64x128", "64")
DTYPES = ("F16", "Q8_0", "Q4_K", "F32")
ARCHITECTURES = ("llama", "qwen2", "LLaMA", None)
LICENSES = ("apache-2.0", "mit", "MIT", "none", "llama 3, community", None)
NAMESPACES = ("acme", "Acme", "zoo.lab", "local")
NAMES = ("tiny", "tiny-Q8_0", "tiny_code", "A-2M", "b.c")
TITLES = ("Zoo-A v1.0", "Für Ärzte", "coder & farmer", None, "coders")
DESCRIPTIONS = (None, "A model's letters, ﬁne-tuned", "ΣΊΣΥΦΟΣ İstanbul", "farm 2M")
HEADS, EXPERTS = (None, None, None, "8", "4"), (None, None, None, None, "16")
"""The values of `attention.head_count` and `expert_count`; None if they are not stated."""
CONTRIBUTORS = ("alice", "Bob", "carol smith", "local")
OF_MODELS = (
    *("namespace", "name", "version", "state", "kind", "complete", "architecture", "title", "description", "license"),
    *("parameters", "size_bytes", "mean_theta", "mean_signal", "downloads", "grafts"),
)
OF_PLACEMENTS = (
    *("type", "tower", "block", "slot", "dtype", "size_bytes"),
    *("theta", "magnitude", "signal", "spectral_signal", "stable_rank", "effective_rank"),
)
"""The columns that are fields of the classes below."""
STATES = ("visible", "visible", "visible", "visible", "quarantined", "removed", "yanked")


@dataclass(frozen=True, slots=True)
class RandomPlacement:
    """The values of a placement that searches use."""

    type: str = "organ"
    tower: str = "text"
    block: int | None = 0
    slot: str = "ffn_up"
    organ: int = 1
    """Rows with the same number are placements of one organ."""
    shape: str = "64x64"
    dtype: str = "F16"
    size_bytes: int = 4096
    theta: float | None = 40.0
    magnitude: float | None = 0.9
    spectral_signal: float | None = 0.3
    stable_rank: float | None = 12.5
    fingerprint: str = "random"
    """The kind of its organ's fingerprint: random, constant, or none."""
    nonfinite: int | None = 0

    @property
    def effective_rank(self) -> float | None:
        return None if self.stable_rank is None else 1.5 * self.stable_rank

    @property
    def elements(self) -> int:
        return math.prod(map(int, self.shape.split("x")))

    @property
    def signal(self) -> float | None:
        return None if self.theta is None else math.sin(math.radians(self.theta))


@dataclass(frozen=True, slots=True)
class RandomModel:
    """The values of a model and its placements."""

    rows: tuple[RandomPlacement, ...]
    namespace: str = "acme"
    name: str = "tiny"
    version: int = 1
    state: str = "visible"
    kind: str = "model"
    complete: bool = True
    architecture: str | None = "llama"
    license: str | None = "mit"
    title: str | None = None
    description: str | None = None
    tags: tuple[str, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()
    contributor: str = "alice"
    parameters: int = 1000
    size_bytes: int = 4096
    mean_theta: float | None = 40.0
    mean_signal: float | None = 0.6
    downloads: int = 0
    grafts: int = 0

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}@{self.version}"

    @property
    def nonfinite(self) -> int | None:
        """The number of tensors with NaN or infinite values; None if some tensors were not counted."""
        counts = [row.nonfinite for row in self.rows]
        return None if None in counts else sum(count != 0 for count in counts)


@dataclass(frozen=True, slots=True)
class RandomEdge:
    """An edge of lineage between two models, by their ids."""

    child: int
    parent: int
    evidence: str = "declared"
    score: float | None = None


@dataclass(frozen=True, slots=True)
class RandomGain:
    """What a chimera gained over its base on a text; models by their ids, organs by their numbers."""

    chimera: int
    base: int
    donor: int | None
    text: str
    percent: float
    settled: bool
    organs: tuple[int, ...]
    """The organs that the gain is attributed to."""


@dataclass(slots=True, eq=False)
class WrittenCatalog:
    """The written models and placements by id, and the fingerprints by the number of the organ.

    No field is an argument, so Hypothesis does not print them.
    """

    models: dict[int, RandomModel] = field(default_factory=dict, init=False)
    rows: dict[int, tuple[RandomPlacement, RandomModel]] = field(default_factory=dict, init=False)
    ids: dict[tuple[str, str], int] = field(default_factory=dict, init=False)
    """Placements by the full name of the model and the name of the tensor."""
    organs: dict[int, int] = field(default_factory=dict, init=False)
    prints: dict[int, bytes] = field(default_factory=dict, init=False)
    edges: list[RandomEdge] = field(default_factory=list, init=False)
    gains: list[RandomGain] = field(default_factory=list, init=False)

    def found(self, organs: Iterable[PlacedOrgan]) -> list[int]:
        """Return the ids of the results of a search."""
        return [self.ids[organ.model, organ.name] for organ in organs]

    @property
    def visible(self) -> dict[int, tuple[RandomPlacement, RandomModel]]:
        return {row_id: both for row_id, both in self.rows.items() if both[1].state == "visible"}


Many = tuple[LocalRegistry, WrittenCatalog]
"""A registry, and what was written to its catalog."""


def digest(organ: int) -> str:
    """Return the digest of the organ `number`; digests of negative numbers have the same prefix."""
    own = hashlib.sha256(f"organ {organ}".encode()).hexdigest()
    return own if organ >= 0 else "1234567890" + own[10:]


def tensor_name(row: RandomPlacement, position: int) -> str:
    """Return the name of the tensor of a row, unique within its model."""
    return f"{position}.{row.slot}"


def write_models(
    registry: LocalRegistry, models: Iterable[RandomModel], placed: WrittenCatalog | None = None, seed: int = 1
) -> WrittenCatalog:
    """Write `models` and update the counts as registering does; add them to `placed` if it is given."""
    placed = WrittenCatalog() if placed is None else placed
    chance = random.Random(seed)
    with registry.catalog.writing() as session:
        for model in models:
            _place(session, model, placed, chance)
        repair_totals(session)
    return placed


def write_edges(registry: LocalRegistry, placed: WrittenCatalog, edges: Iterable[RandomEdge]) -> WrittenCatalog:
    """Write edges of lineage and add them to `placed`."""
    with registry.catalog.writing() as session:
        for edge in edges:
            relation = "relative" if edge.evidence == "measured" else "finetune"
            ends = {"child_model_id": edge.child, "parent_model_id": edge.parent}
            session.add(Lineage(relation=relation, evidence=edge.evidence, score=edge.score, created_at=NOON, **ends))
            placed.edges.append(edge)
    return placed


def random_edges(placed: WrittenCatalog, seed: int) -> list[RandomEdge]:
    """Return random edges of all kinds of evidence; the younger of two models is the child of a measured edge."""
    chance, ids = random.Random(seed), sorted(placed.models)
    edges = {}
    for _ in range(2 * len(ids)):
        child, parent = chance.sample(ids, 2)
        evidence = chance.choice(("declared", "recorded", "measured", "measured", "measured"))
        if evidence == "measured":
            child, parent = max(child, parent), min(child, parent)
        score = chance.choice((0.2, 0.5, 0.7, 1.0)) if evidence == "measured" else None
        edges[child, parent, evidence] = RandomEdge(child, parent, evidence, score)
    return list(edges.values())[: len(ids)]


def write_gains(registry: LocalRegistry, placed: WrittenCatalog, gains: Iterable[RandomGain]) -> WrittenCatalog:
    """Write what chimeras gained and add it to `placed`. All rows of a chimera have the same organs."""
    attributed = set()
    with registry.catalog.writing() as session:
        for row in gains:
            ends = {"model_id": row.chimera, "base_model_id": row.base, "donor_model_id": row.donor}
            read = {"text": row.text, "text_digest": hashlib.sha256(row.text.encode()).hexdigest(), "tokens": 4096}
            measured = {"percent": row.percent, "margin": 1.0, "settled": row.settled}
            session.add(GainRow(grafted="feed-forward 0-3", **ends, **read, **measured))
            attributed |= {(placed.organs[organ], row.chimera) for organ in row.organs}
            placed.gains.append(row)
        session.add_all(GainOrgan(organ_id=organ, model_id=chimera) for organ, chimera in attributed)
    return placed


def random_gains(placed: WrittenCatalog, seed: int) -> list[RandomGain]:
    """Return random gains of a fifth of the models, with one donor or several, on one to three texts each."""
    chance, ids = random.Random(seed), sorted(placed.models)
    gains = []
    for chimera in chance.sample(ids, len(ids) // 5):
        base, donor = chance.sample(ids[:12], 2)
        organs = tuple(chance.sample(sorted(placed.organs), 9)) if chance.random() < 0.8 else ()
        for text in chance.sample(("python", "narrative", "My notes.txt"), chance.randint(1, 3)):
            percent = chance.choice((-400.0, -2.5, 0.0, 2.5, 2.5, 7.0))
            row = (text, percent, percent != 0.0 and chance.random() < 0.8, organs)
            gains.append(RandomGain(chimera, base, donor if organs else None, *row))
    return gains


def write_random_catalog(registry: LocalRegistry, models: int, seed: int) -> WrittenCatalog:
    """Write random models with their lineage and what they gained."""
    placed = write_models(registry, random_models(models, seed))
    write_edges(registry, placed, random_edges(placed, seed))
    return write_gains(registry, placed, random_gains(placed, seed))


def random_models(models: int, seed: int) -> list[RandomModel]:
    """Return random models. Organs have several places, values are equal or missing, and some models are hidden."""
    chance, facts = random.Random(seed), random.Random(f"facts {seed}")
    organs = {number: _drawn_row(chance, number) for number in range(1, 6 * models)}
    versions: Counter[tuple[str, str]] = Counter()
    made = []
    for _ in range(models):
        owner, name = chance.choice(NAMESPACES), chance.choice(NAMES)
        versions[owner, name] += 1
        rows = tuple(organs[chance.choice(list(organs))] for _ in range(chance.randrange(14)))
        made.append(
            RandomModel(
                rows=rows,
                namespace=owner,
                name=name,
                version=versions[owner, name],
                state=chance.choice(STATES),
                kind=chance.choice(("model", "model", "adapter", "vocabulary")),
                complete=chance.random() < 0.8,
                architecture=chance.choice(ARCHITECTURES),
                license=chance.choice(LICENSES),
                title=chance.choice(TITLES),
                description=chance.choice(DESCRIPTIONS),
                tags=chance.choice(((), ("letters",), ("code", "Größe"))),
                metadata=tuple(
                    fact for architecture in ARCHITECTURES if architecture for fact in _drawn_facts(facts, architecture)
                ),
                contributor=chance.choice(CONTRIBUTORS),
                parameters=chance.choice((0, 1000, 1000, 7 * 10**9)),
                size_bytes=chance.choice((0, 4096, 2**40)),
                mean_theta=chance.choice(THETAS),
                mean_signal=chance.choice(SPECTRALS),
                downloads=facts.choice((0, 0, 7, 1000)),
                grafts=facts.choice((0, 0, 2)),
            )
        )
    return made


def _drawn_facts(chance: random.Random, architecture: str) -> tuple[tuple[str, str], ...]:
    stated = {"attention.head_count": chance.choice(HEADS), "expert_count": chance.choice(EXPERTS)}
    return tuple((f"{architecture}.{name}", value) for name, value in stated.items() if value is not None)


def _drawn_row(chance: random.Random, organ: int) -> RandomPlacement:
    drawn: tuple[Sequence[Any], ...]
    drawn = (PLACES, SHAPES, DTYPES, SIZES, THETAS, MAGNITUDES, SPECTRALS, RANKS, FINGERPRINTS)
    place, *values = [chance.choice(choices) for choices in drawn]
    nonfinite = random.Random(f"nonfinite {organ}").choice((0, 0, 0, 0, 0, 0, 7, None))
    return RandomPlacement(*place, organ, *values, nonfinite)


def _place(session: Session, model: RandomModel, placed: WrittenCatalog, chance: random.Random) -> None:
    number = len(placed.models) + 1
    own = ModelRow(
        **{name: getattr(model, name) for name in OF_MODELS},
        digest=hashlib.sha256(f"model {number}".encode()).hexdigest(),
        contributor_id=contributor_id(session, model.contributor),
        tags=(),
        tensors=len(model.rows),
        nonfinite_tensors=model.nonfinite,
        flags=(),
        unassemblable=(),
        created_at=NOON + timedelta(minutes=number),
    )
    session.add(own)
    session.flush()
    placed.models[own.id] = model
    digests = {"sha256": own.digest, "header_sha256": own.digest}
    file = ModelFileRow(model_id=own.id, position=0, name="a.gguf", size_bytes=1, header_bytes=1, **digests)
    session.add(file)
    session.flush()
    words = unique_words([model.namespace, model.name, model.title, *model.tags, model.description])
    session.execute(insert(ModelWord), [{"word": word, "model_id": own.id} for word in words])
    session.add_all(ModelTag(tag=folded_tag(tag), model_id=own.id) for tag in model.tags)
    for position, (key, value) in enumerate(model.metadata):
        session.add(ModelMetadata(model_id=own.id, position=position, key=key, type="uint32", value=value))
    _place_rows(session, own.id, file.id, model, placed, chance)


def _place_rows(
    session: Session, model_id: int, file_id: int, model: RandomModel, placed: WrittenCatalog, chance: random.Random
) -> None:
    named = (model.architecture or "", model.license or "")
    keys = [FacetKey(row.type, row.tower, row.slot, row.dtype, *named) for row in model.rows]
    facets = facet_ids(session, keys)
    shown = model.state == "visible"
    counts: Counter[tuple[int, int]] = Counter()
    for position, (row, key) in enumerate(zip(model.rows, keys, strict=True)):
        organ_id = _organ_id(session, row, placed, chance)
        values = {name: getattr(row, name) for name in OF_PLACEMENTS} | {"name": tensor_name(row, position)}
        values |= {"organ_id": organ_id, "facet_id": facets[key], "visible": shown, "offset_bytes": 0}
        made = Placement(model_id=model_id, position=position, file_id=file_id, **values)
        session.add(made)
        session.flush()
        placed.rows[made.id] = (row, model)
        placed.ids[model.full_name, made.name] = made.id
        counts[facets[key], theta_bin(row.theta)] += shown
    rolled = [
        {"facet_id": facet, "theta_bin": lower, "placements": number}
        for (facet, lower), number in counts.items()
        if number
    ]
    insert_or_add(session, FacetCount, ["facet_id", "theta_bin"], "placements", rolled)


def _organ_id(session: Session, row: RandomPlacement, placed: WrittenCatalog, chance: random.Random) -> int:
    if row.organ in placed.organs:
        return placed.organs[row.organ]
    times = {"created_at": NOON, "touched_at": NOON}
    sizes = {"size_bytes": 1, "stored_bytes": 1}
    blob = Blob(digest=digest(row.organ), codec="bytes", codec_version=1, state="present", **sizes, **times)
    session.add(blob)
    session.flush()
    organ = OrganRow(blob_id=blob.id, dtype=row.dtype, shape=row.shape, elements=row.elements, nonfinite=row.nonfinite)
    session.add(organ)
    session.flush()
    placed.organs[row.organ] = organ.id
    if row.fingerprint != "none":
        placed.prints[row.organ] = bytes(COARSE_BYTES)
        if row.fingerprint == "random":
            placed.prints[row.organ] = chance.randbytes(COARSE_BYTES)
        session.add(Fingerprint(organ_id=organ.id, values=placed.prints[row.organ]))
        session.flush()
    return organ.id
