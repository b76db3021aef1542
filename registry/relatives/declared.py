"""Find the registered models that headers declare as parents."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import nsmallest

from sqlalchemy.orm import Session

from organs.registry.anatomy import Slot
from organs.registry.catalog.queries.model_contents import metadata_of_models
from organs.registry.catalog.queries.relatives import (
    declared_edges_to,
    declared_edges_with,
    declared_texts_to,
    measured_edge,
    models_by_id,
    organs_by_slot,
    parents_of,
    visible_models_with_words,
)
from organs.registry.catalog.register.lineage import resolve_declared_edge
from organs.registry.catalog.tables import Lineage, ModelRow
from organs.registry.catalog.vocabulary import folded_words, shown_text
from organs.registry.gguf import Header
from organs.registry.kinds import WEIGHT_KINDS
from organs.registry.similarity import ComparableOrgan, relation_to_parent, similarity

PARENTS_MAX = 64
PARENT_KEYS = tuple(
    f"general.base_model.{number}.{part}"
    for number in range(PARENTS_MAX)
    for part in ("organization", "name", "version", "repo_url")
)
IDENTITY_KEYS = ("general.organization", "general.version", "general.repo_url")


@dataclass(frozen=True, slots=True)
class DeclaredParent:
    """A parent as `general.base_model.{number}.*` describes it; missing values are empty."""

    organization: str
    name: str
    version: str
    repo_url: str

    @property
    def text(self) -> str:
        """`organization/name version`, as far as they are present; else the address; empty without either."""
        text = "/".join(part for part in (self.organization, self.name) if part)
        return f"{text} {self.version}" if text and self.version else text or self.repo_url


def parent_in_words(text: str) -> DeclaredParent:
    """Return the parent that a text names: `organization/name`, `name`, or an address."""
    if text.lower().startswith(("http://", "https://")):
        return DeclaredParent("", "", "", text)
    organization, _, name = text.partition("@")[0].rpartition("/")
    return DeclaredParent(organization, name, "", "")


@dataclass(frozen=True, slots=True)
class Identity:
    """The names of a registered model; missing values are empty."""

    namespace: str
    name: str
    title: str
    architecture: str = ""
    organization: str = ""
    version: str = ""
    repo_url: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Match:
    """How well an identity matches a declaration; greater is better."""

    same_address: bool
    same_organization: bool
    same_version: bool


def numbered_parents(texts: Mapping[str, str]) -> Iterator[tuple[int, DeclaredParent]]:
    """Yield the parents in a header's metadata with their numbers, each once, if they have a name or an address."""
    known: set[str] = set()
    for number in range(PARENTS_MAX):
        prefix = f"general.base_model.{number}"
        parts = (texts.get(f"{prefix}.{key}", "") for key in ("organization", "name", "version", "repo_url"))
        parent = DeclaredParent(*parts)
        if parent.text and parent.text not in known:
            known.add(parent.text)
            yield number, parent


def declared_parents(header: Header) -> list[DeclaredParent]:
    """Return the parents that the header names."""
    texts = {field.key: field.value for field in header.fields if isinstance(field.value, str)}
    count = header.integer("general.base_model.count") or 0
    return [parent for number, parent in numbered_parents(texts) if number < count]


def match(declared: DeclaredParent, identity: Identity) -> Match | None:
    """Return how well `identity` matches `declared`; None if it is another model.

    The name must be equal to its name or title. Organization and version must be equal if both have them; a different
    organization is accepted if the namespace or the address agrees. Without a name, the address must be that of the
    model, or end in its `namespace/name`.
    """
    same_address = _same_address(declared.repo_url, identity)
    is_named = folded(declared.name) in {folded(identity.name), folded(identity.title)} - {""}
    if not (is_named if declared.name else same_address):
        return None
    same_version = _agreement(declared.version, identity.version)
    same_organization = _agreement(declared.organization, identity.organization)
    if not same_organization and _agreement(declared.organization, identity.namespace):
        same_organization = True
    if same_version is False or (same_organization is False and not same_address):
        return None
    return Match(same_address, bool(same_organization), bool(same_version))


def folded(text: str) -> str:
    """Return the words of `text` without differences of case, accents and punctuation."""
    return " ".join(folded_words(text))


def _same_address(address: str, identity: Identity) -> bool:
    if not folded(address):
        return False
    if folded(address) == folded(identity.repo_url):
        return True
    return address.rstrip("/").lower().split("/")[-2:] == [identity.namespace.lower(), identity.name.lower()]


def _agreement(first: str, second: str) -> bool | None:
    """Return whether two texts have the same words; None if one of them has none."""
    return folded(first) == folded(second) if folded(first) and folded(second) else None


def stated_relation(kind: str, base: str, declared: Iterable[tuple[str, str]]) -> str:
    """Return the relation to the `base` that a contributor states for a model of `kind`, before weights are compared.

    `declared` has the texts and relations of the parents in the header. The relation in the header is used for a parent
    that the header names: a quantisation stays a quantisation.
    """
    if kind == "adapter":
        return "adapter"
    wanted = folded(base.partition("@")[0].rpartition("/")[2])
    named = (relation for text, relation in declared if folded(text.rpartition("/")[2]) == wanted)
    return next(named, "finetune")


NAMESAKES_MAX = 200
"""Registered models of one name that are examined."""
TIES_MAX = 4
"""Equally good candidates, those with most bits a value, among which the most similar is chosen."""
FLOAT_MIN_BITS = 15.0
"""A file with at least so many bits a value has unquantised weights."""
NAMES_KEPT = 16
"""Names whose models are cached while edges are resolved, and models whose organs are."""
TENSORS_READ_MAX = 262_144
"""Tensors of models that are compared while edges are resolved. It takes some seconds, and other writers wait. Above
the limit, the candidate with most bits a value is chosen among equally good ones."""
TEXTS_MAX = 200
"""Different texts of edges that one ingest examines."""
EDGES_MAX = 100
"""Edges of other models that one ingest resolves."""


def resolve_declared(session: Session, newcomer: ModelRow) -> None:
    """Point the edges that `newcomer` declares, and up to EDGES_MAX of others that may mean it, to the best model.

    Edges above the limit do not change until the next model of that name is added: the write lock is held meanwhile.
    """
    edges = parents_of(session, [newcomer.id], ("declared",))
    if newcomer.kind in WEIGHT_KINDS:
        edges += _edges_that_may_mean(session, newcomer)
    _resolve(session, edges)


@contextmanager
def relinking_children(session: Session, model: ModelRow) -> Iterator[None]:
    """Point up to EDGES_MAX declared edges to `model`, which the block removes, to the next best model."""
    edges = declared_edges_to(session, model.id, EDGES_MAX)
    yield
    _resolve(session, edges)


def _resolve(session: Session, edges: Sequence[Lineage]) -> None:
    """Point declared edges to the best models.

    The best match is chosen, then a complete model, an unquantised one, the one whose registered name has the declared
    words and the fewest others, the most similar one, the finest, the oldest.
    """
    described = _described(session, {edge.child_model_id for edge in edges if edge.child_model_id is not None})
    cache = _Cache(session)
    for edge in edges:
        child = described.get(edge.child_model_id or 0)
        declared = None if child is None else child.declared(edge)
        if child is None or declared is None:
            continue
        ties = _finest(_ties(cache, child.identity, declared, child.model.id))
        if len(ties) > 1:
            own = cache.organs(child.model)
            ties.sort(key=lambda model: similarity(own, cache.organs(model)).distance)
        parent_id = ties[0].id if ties else None
        if parent_id != edge.parent_model_id:
            resolve_declared_edge(session, edge, parent_id)
    for edge in edges:
        _derive_relation(session, edge)


def _derive_relation(session: Session, edge: Lineage) -> None:
    """Correct the relation of a declared parent by the measurement: a declared fine-tune may be a quantisation."""
    if edge.child_model_id is None or edge.parent_model_id is None:
        return
    models = models_by_id(session, {edge.child_model_id, edge.parent_model_id})
    child, parent = models.get(edge.child_model_id), models.get(edge.parent_model_id)
    if child is not None and parent is not None:
        measured = measured_edge(session, child.id, parent.id)
        relation = None if measured is None else measured.relation
        edge.relation = relation_to_parent(edge.relation, relation, _bits_a_value(child), _bits_a_value(parent))


def models_meant(session: Session, child: Identity, declared: DeclaredParent) -> list[ModelRow]:
    """Return the registered models that `declared` would mean for a model `child` that is not registered yet.

    Up to TIES_MAX equally good models, those with most bits a value first; the weights decide between them. Nothing is
    written.
    """
    return _finest(_ties(_Cache(session), child, declared))


@dataclass(frozen=True, slots=True)
class _Described:
    """A model with the names and the parents in its header."""

    model: ModelRow
    identity: Identity
    parents: tuple[DeclaredParent, ...]

    def declared(self, edge: Lineage) -> DeclaredParent | None:
        """Return the declared parent of an edge: that of the header, or the text that the contributor wrote instead.

        None if the contributor chose a registered model.
        """
        declared = next((parent for parent in self.parents if shown_text(parent.text) == edge.parent_text), None)
        if declared is None and edge.parent_model_id is None and edge.parent_text:
            return parent_in_words(edge.parent_text)
        return declared

    def is_copy(self) -> bool:
        """Return whether it names itself as its parent, as quantisations do."""
        return any(match(parent, self.identity) is not None for parent in self.parents)


class _Cache:
    """The models that were read while edges are resolved: thousands of edges may mean the same few models."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._described: dict[str, dict[int, _Described]] = {}
        self._organs: dict[int, dict[Slot, ComparableOrgan]] = {}
        self._tensors_left = TENSORS_READ_MAX

    def models_named(self, name: str) -> dict[int, _Described]:
        """Return the registered models that have all words of `name`, by id."""
        if name not in self._described:
            if len(self._described) >= NAMES_KEPT:
                self._described.clear()
            models = visible_models_with_words(self.session, folded_words(name), NAMESAKES_MAX)
            self._described[name] = _described(self.session, {model.id for model in models})
        return self._described[name]

    def organs(self, model: ModelRow) -> dict[Slot, ComparableOrgan]:
        """Return the organs of a model by their places; none if they would exceed TENSORS_READ_MAX."""
        if model.id not in self._organs:
            if len(self._organs) >= NAMES_KEPT:
                self._organs.clear()
            is_read = model.tensors <= self._tensors_left
            self._tensors_left -= model.tensors if is_read else 0
            self._organs[model.id] = organs_by_slot(self.session, model.id) if is_read else {}
        return self._organs[model.id]


def _edges_that_may_mean(session: Session, newcomer: ModelRow) -> list[Lineage]:
    """Return declared edges of other models whose text may contain the name of `newcomer`.

    Unresolved edges come first, then those to models of the same name. The texts with the fewest other words are used.
    """
    names = [set(folded_words(name)) for name in (newcomer.name, newcomer.title or "")]
    names = [words for words in names if words]
    named = (visible_models_with_words(session, words, NAMESAKES_MAX) for words in names)
    namesakes = {model.id for models in named for model in models} - {newcomer.id}
    signs = [max((word for word in words if word.isascii()), key=len, default="") for words in names]

    def near() -> Iterator[tuple[int, str]]:
        """Yield the texts that contain all words of a name, with the number of their other words."""
        for text in declared_texts_to(session, namesakes):
            lower = text.lower()
            # There are many texts, and most do not even contain the longest word of a name.
            if not text.isascii() or any(sign in lower for sign in signs):
                words = set(folded_words(text))
                rests = [len(words - name) for name in names if name <= words]
                if rests:
                    yield min(rests), text

    texts = {text for _, text in nsmallest(TEXTS_MAX, near())}
    return declared_edges_with(session, texts, namesakes, newcomer.id, EDGES_MAX)


def _ties(cache: _Cache, child: Identity, declared: DeclaredParent, child_id: int | None = None) -> list[ModelRow]:
    """Return the candidates that match equally well, better than all others.

    They have the child's architecture and are not the child. If the child names itself, other models that name
    themselves are excluded.
    """
    others = cache.models_named(declared.name or " ".join(declared.repo_url.rstrip("/").split("/")[-2:]))
    copies = match(declared, child) is not None
    ranked: dict[int, tuple[Match, bool, bool, float]] = {}
    for candidate in others.values():
        matched = None if candidate.model.id == child_id else match(declared, candidate.identity)
        architectures = {child.architecture, candidate.identity.architecture} - {""}
        if matched is None or len(architectures) > 1 or (copies and candidate.is_copy()):
            continue
        ranked[candidate.model.id] = (
            matched,
            candidate.model.complete,
            _bits_a_value(candidate.model) >= FLOAT_MIN_BITS,
            _nearness(declared.name, candidate.identity.name),
        )
    best = max(ranked.values(), default=None)
    return [others[model_id].model for model_id, rank in ranked.items() if rank == best]


def _nearness(wanted: str, name: str) -> float:
    """Return the negative number of other words in a registered `name`; the lowest value if it lacks a `wanted` word.

    It tells a base from what was made of it with a copy of its header, such as a mean or a fine-tune.
    """
    words, own = set(folded_words(wanted)), set(folded_words(name))
    return -len(own - words) if words <= own else -math.inf


def _bits_a_value(model: ModelRow) -> float:
    return 8 * model.size_bytes / max(model.parameters, 1)


def _finest(ties: list[ModelRow]) -> list[ModelRow]:
    return sorted(ties, key=lambda model: (-_bits_a_value(model), model.id))[:TIES_MAX]


def _described(session: Session, model_ids: Collection[int]) -> dict[int, _Described]:
    """Return the models with the names and the parents in their headers."""
    models = models_by_id(session, model_ids)
    texts = metadata_of_models(session, models, (*IDENTITY_KEYS, *PARENT_KEYS), "string")
    described = {}
    for model in models.values():
        own = (texts[model.id].get(key, "") for key in IDENTITY_KEYS)
        identity = Identity(model.namespace, model.name, model.title or "", model.architecture or "", *own)
        parents = tuple(parent for _, parent in numbered_parents(texts[model.id]))
        described[model.id] = _Described(model, identity, parents)
    return described
