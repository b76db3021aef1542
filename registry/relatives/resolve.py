"""Find the relatives of a model: by its weights, and by the parents that its header declares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from sqlalchemy.orm import Session

from organs.registry.anatomy import Slot
from organs.registry.catalog.queries.relatives import (
    declared_edges_with,
    declared_texts_to,
    likenesses,
    measured_relation,
    metadata_texts,
    models_by_id,
    models_with,
    organs_at,
    organs_by_slot,
    parents_of,
    visible_models_with_words,
)
from organs.registry.catalog.register.models import (
    MeasuredEdge,
    record_measured,
    resolve_declared_edge,
)
from organs.registry.catalog.tables import Lineage, Model
from organs.registry.catalog.vocabulary import folded_words, shown_text
from organs.registry.lineage import (
    ComparableOrgan,
    Kinship,
    Similarity,
    correlations,
    is_another_encoding,
    probes,
    relation_to_parent,
    similarity,
)

PARENTS_MAX = 64
PARENT_KEYS = tuple(
    f"general.base_model.{number}.{part}"
    for number in range(PARENTS_MAX)
    for part in ("organization", "name", "version", "repo_url")
)
IDENTITY_KEYS = ("general.organization", "general.version", "general.repo_url")


@dataclass(frozen=True, slots=True)
class DeclaredParent:
    """A parent as `general.base_model.{number}.*` describes it; what is not given is empty."""

    organization: str
    name: str
    version: str
    repo_url: str

    @property
    def text(self) -> str:
        """`organization/name version`, as far as they are given, else the address; empty when neither is there."""
        text = "/".join(part for part in (self.organization, self.name) if part)
        return f"{text} {self.version}" if text and self.version else text or self.repo_url


def parent_in_words(text: str) -> DeclaredParent:
    """The parent that somebody means who writes its name, as `organization/name` or without, or its address."""
    if text.lower().startswith(("http://", "https://")):
        return DeclaredParent("", "", "", text)
    organization, _, name = text.partition("@")[0].rpartition("/")
    return DeclaredParent(organization, name, "", "")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a registered model goes by; what is not given is empty."""

    namespace: str
    name: str
    title: str
    architecture: str = ""
    organization: str = ""
    version: str = ""
    repo_url: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Match:
    """How well an identity answers a declaration; the greater the better."""

    same_address: bool
    same_organization: bool
    same_version: bool


def numbered_parents(texts: Mapping[str, str]) -> Iterator[tuple[int, DeclaredParent]]:
    """The parents that the strings of a header name, by number, each once; without name and address it is none."""
    known: set[str] = set()
    for number in range(PARENTS_MAX):
        prefix = f"general.base_model.{number}"
        parts = (texts.get(f"{prefix}.{key}", "") for key in ("organization", "name", "version", "repo_url"))
        parent = DeclaredParent(*parts)
        if parent.text and parent.text not in known:
            known.add(parent.text)
            yield number, parent


def match(declared: DeclaredParent, identity: Identity) -> Match | None:
    """How well `identity` answers `declared`; None when another model is meant.

    The name must be equal to its name or title, and so must an organization and a version that both give (another
    organization passes where the namespace or the address says the same). Without a name the address must be that of
    the model, or end in its `namespace/name`.
    """
    same_address = _same_address(declared.repo_url, identity)
    if not (_same_name(declared, identity) if declared.name else same_address):
        return None
    same_version = _agreement(declared.version, identity.version)
    same_organization = _agreement(declared.organization, identity.organization)
    if not same_organization and _agreement(declared.organization, identity.namespace):
        same_organization = True
    if same_version is False or (same_organization is False and not same_address):
        return None
    return Match(same_address, bool(same_organization), bool(same_version))


def folded(text: str) -> str:
    """The words of `text` without what case, accents and punctuation make of them."""
    return " ".join(folded_words(text))


def _same_name(declared: DeclaredParent, identity: Identity) -> bool:
    return folded(declared.name) in {folded(identity.name), folded(identity.title)} - {""}


def _same_address(address: str, identity: Identity) -> bool:
    if not folded(address):
        return False
    if folded(address) == folded(identity.repo_url):
        return True
    return address.rstrip("/").lower().split("/")[-2:] == [identity.namespace.lower(), identity.name.lower()]


def _agreement(first: str, second: str) -> bool | None:
    """Whether two texts say the same; None when one of them says nothing."""
    return folded(first) == folded(second) if folded(first) and folded(second) else None


def stated_relation(kind: str, base: str, declared: Iterable[tuple[str, str]]) -> str:
    """Return the relation to the `base` that a contributor states for a model of `kind`, before weights are compared.

    `declared` are the texts and relations of the parents in the header: the header's word counts for a parent that it
    names itself, so that a quantisation stays one.
    """
    if kind == "adapter":
        return "adapter"
    wanted = folded(base.partition("@")[0].rpartition("/")[2])
    named = (relation for text, relation in declared if folded(text.rpartition("/")[2]) == wanted)
    return next(named, "finetune")


PROBES_MAX = 8
HIT_MIN = 0.15
"""Two deviations of the noise (0.07) of one organ: one stranger's organ in sixty is a hit."""
PROBE_MIN = 0.1
"""Half of what is called related. Seven strangers' hits of eight make so much, or one organ that is the same."""
COMPARED_MAX = 32
"""Candidates that are compared in full, the best by their probes; so it also bounds the edges of a newcomer."""
COMPARED_TENSORS_MAX = 262_144
"""Tensors of all candidates together that are compared in full. Writers wait meanwhile; it takes some seconds."""


@dataclass(frozen=True, slots=True)
class Relative:
    """A model that is measurably alike."""

    model_id: int
    relation: str
    """`quantized` for one set of weights in two encodings, else `relative`. Neither has a direction."""
    similarity: Similarity


def find_relatives(session: Session, model: Model) -> list[Relative]:
    """The visible models that are related to `model`, most alike first; of equals the older. Adapters have none."""
    if model.kind != "model":
        return []
    own = organs_by_slot(session, model.id)
    scores = _probe_scores(session, model, own)
    order = sorted(scores, key=lambda candidate: (-scores[candidate], candidate))
    found = []
    for candidate in _within_limit(session, order[:COMPARED_MAX]):
        other = organs_by_slot(session, candidate)
        compared = similarity(own, other)
        if compared.kinship in (Kinship.CLOSE, Kinship.KIN):
            relation = "quantized" if is_another_encoding(own, other, compared) else "relative"
            found.append(Relative(candidate, relation, compared))
    return sorted(found, key=lambda relative: (-(relative.similarity.mean or 0.0), relative.model_id))


def record_relatives(session: Session, model: Model) -> list[Relative]:
    """Find the relatives of a model that became visible just now, and write an edge to each that it has none to."""
    found = find_relatives(session, model)
    known = likenesses(session, model.id)
    record_measured(session, (_edge(model, one) for one in found if one.model_id not in known))
    return found


def _within_limit(session: Session, candidates: Sequence[int]) -> list[int]:
    """Those of the candidates, the first before the others, that have COMPARED_TENSORS_MAX tensors together at most."""
    models = models_by_id(session, candidates)
    kept, left = [], COMPARED_TENSORS_MAX
    for candidate in candidates:
        if candidate in models and models[candidate].tensors <= left:
            left -= models[candidate].tensors
            kept.append(candidate)
    return kept


def _edge(model: Model, relative: Relative) -> MeasuredEdge:
    alike = relative.similarity
    older, younger = sorted((model.id, relative.model_id))
    return MeasuredEdge(younger, older, relative.relation, alike.mean or 0.0, alike.organ_count)


def _probe_scores(session: Session, model: Model, own: Mapping[Slot, ComparableOrgan]) -> dict[int, float]:
    """The mean correlation over the probes, of the models in which it is enough; what is no hit counts as nothing."""
    places = probes(own, PROBES_MAX)
    sums: defaultdict[int, float] = defaultdict(float)
    for place in places:
        hits = _hits(session, place, own[place])
        for candidate, organ_id in models_with(session, place, hits):
            sums[candidate] += hits[organ_id]
    sums.pop(model.id, None)
    return {candidate: total / len(places) for candidate, total in sums.items() if total / len(places) >= PROBE_MIN}


def _hits(session: Session, place: Slot, own: ComparableOrgan) -> dict[int, float]:
    """The organs at `place` that are like ours, and their correlation with it."""
    rows = organs_at(session, place)
    others = [(organ_id, values) for organ_id, values in rows if values is not None and own.fingerprint is not None]
    found = correlations(own.fingerprint or b"", [values for _, values in others])
    alike = {one: value for (one, _), value in zip(others, found, strict=True) if value is not None}
    same = {organ_id: 1.0 for organ_id, _ in rows if organ_id == own.identity}
    return {organ_id: value for organ_id, value in (alike | same).items() if value >= HIT_MIN}


NAMESAKES_MAX = 200
"""Registered models of one name that are looked at."""
TIES_MAX = 4
"""Equally good candidates, the finest, of which the most alike is looked for."""
FLOAT_MIN_BITS = 15.0
"""Bits a value from which on a file holds the weights unquantised."""
NAMES_KEPT = 16
"""Names whose bearers are kept while edges are led, and models whose organs are."""
TENSORS_READ_MAX = 262_144
"""Tensors of models that are compared while edges are led. Writers wait meanwhile; it takes some seconds. When they are
used up, the finest of equally good candidates is taken."""
TEXTS_MAX = 200
"""Different texts of edges that one ingest looks at."""
EDGES_MAX = 100
"""Edges of other models that one ingest leads."""


def resolve_declared(session: Session, newcomer: Model) -> None:
    """Lead the edges that `newcomer` declares, and up to 100 of others that may mean it, to the best registered model.

    What is over stays as it was until the next model of that name comes in: the write lock is held meanwhile.
    """
    edges = parents_of(session, [newcomer.id], ("declared",))
    if newcomer.kind == "model":
        edges += _edges_that_may_mean(session, newcomer)
    described = _described(session, {edge.child_model_id for edge in edges if edge.child_model_id is not None})
    known = _Known(session)
    for edge in edges:
        child = described.get(edge.child_model_id or 0)
        declared = None if child is None else child.declared(edge)
        if child is None or declared is None:
            continue
        parent = _best(known, child, declared)
        if parent != edge.parent_model_id:
            resolve_declared_edge(session, edge, parent)
    for edge in edges:
        _derive_relation(session, edge)


def _derive_relation(session: Session, edge: Lineage) -> None:
    """Record a declared parent as what was measured: a quantisation that was stated to be a fine-tune is one."""
    if edge.child_model_id is None or edge.parent_model_id is None:
        return
    models = models_by_id(session, {edge.child_model_id, edge.parent_model_id})
    child, parent = models.get(edge.child_model_id), models.get(edge.parent_model_id)
    if child is not None and parent is not None:
        measured = measured_relation(session, child.id, parent.id)
        edge.relation = relation_to_parent(edge.relation, measured, _bits_a_value(child), _bits_a_value(parent))


def models_meant(session: Session, child: Identity, declared: DeclaredParent) -> list[Model]:
    """What a model that is not registered yet, and goes by `child`, would be led to by `declared`, if it were.

    Up to 4 where several are equally good, the finest first: of these the weights decide. Nothing is written.
    """
    return _finest(_ties(_Known(session), child, declared))


@dataclass(frozen=True, slots=True)
class _Described:
    """A model with what its header says of itself and of its parents."""

    model: Model
    identity: Identity
    parents: tuple[DeclaredParent, ...]

    def declared(self, edge: Lineage) -> DeclaredParent | None:
        """The parent that an edge of this model was made from: its header's, or what its owner wrote instead.

        None for one that its owner has chosen among the registered models.
        """
        found = next((parent for parent in self.parents if shown_text(parent.text) == edge.parent_text), None)
        if found is None and edge.parent_model_id is None and edge.parent_text:
            return parent_in_words(edge.parent_text)
        return found

    def is_copy(self) -> bool:
        """Whether it names itself as its parent, as quantisations do."""
        return any(match(parent, self.identity) is not None for parent in self.parents)


class _Known:
    """What was read before while edges are led: thousands of edges may mean the same few models."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._bearers: dict[str, dict[int, _Described]] = {}
        self._organs: dict[int, dict[Slot, ComparableOrgan]] = {}
        self._tensors_left = TENSORS_READ_MAX

    def bearers(self, name: str) -> dict[int, _Described]:
        """The registered models that have all words of `name`, by id."""
        if name not in self._bearers:
            if len(self._bearers) >= NAMES_KEPT:
                self._bearers.clear()
            models = visible_models_with_words(self.session, folded_words(name), NAMESAKES_MAX)
            self._bearers[name] = _described(self.session, {model.id for model in models})
        return self._bearers[name]

    def organs(self, model: Model) -> dict[Slot, ComparableOrgan]:
        """Return the organs of a model by their places; none where TENSORS_READ_MAX would be passed."""
        if model.id not in self._organs:
            if len(self._organs) >= NAMES_KEPT:
                self._organs.clear()
            is_read = model.tensors <= self._tensors_left
            self._tensors_left -= model.tensors if is_read else 0
            self._organs[model.id] = organs_by_slot(self.session, model.id) if is_read else {}
        return self._organs[model.id]


def _edges_that_may_mean(session: Session, newcomer: Model) -> list[Lineage]:
    """Declared edges of others in whose text the name of `newcomer` can stand: open ones, then those led to namesakes.

    The nearest texts are taken, those with the fewest words beside the name.
    """
    names = [set(folded_words(name)) for name in (newcomer.name, newcomer.title or "")]
    names = [words for words in names if words]
    found = (visible_models_with_words(session, words, NAMESAKES_MAX) for words in names)
    namesakes = {model.id for models in found for model in models} - {newcomer.id}
    signs = [max((word for word in words if word.isascii()), key=len, default="") for words in names]
    near = (
        (rest, text)
        for text in declared_texts_to(session, namesakes)
        if _may_contain(text, signs) and (rest := _words_beside(text, names)) is not None
    )
    texts = {text for _, text in nsmallest(TEXTS_MAX, near)}
    return declared_edges_with(session, texts, namesakes, newcomer.id, EDGES_MAX)


def _may_contain(text: str, signs: Sequence[str]) -> bool:
    """Whether `text` can have the words that `signs` are the longest of; this is quick, for there are many texts."""
    if not text.isascii():
        return True
    lower = text.lower()
    return any(sign in lower for sign in signs)


def _words_beside(text: str, names: Sequence[set[str]]) -> int | None:
    """How many words `text` has beside those of the name that it has all words of; None when it has no name."""
    words = set(folded_words(text))
    return min((len(words - name) for name in names if name <= words), default=None)


def _best(known: _Known, child: _Described, declared: DeclaredParent) -> int | None:
    """The registered model that is meant, or None.

    It is of the child's architecture and not the child; a child that names itself does not descend from another such
    copy. The best match wins, then complete models, then unquantised ones, then the most alike; at last the oldest.
    """
    ties = _ties(known, child.identity, declared, child.model.id)
    return _most_alike(known, child.model, ties).id if ties else None


def _ties(known: _Known, child: Identity, declared: DeclaredParent, child_id: int | None = None) -> list[Model]:
    """The candidates that are as good as the best."""
    others = known.bearers(declared.name or " ".join(declared.repo_url.rstrip("/").split("/")[-2:]))
    copies = match(declared, child) is not None
    ranked: dict[int, tuple[Match, bool, bool]] = {}
    for candidate in others.values():
        found = None if candidate.model.id == child_id else match(declared, candidate.identity)
        if found is None or _foreign(child, candidate.identity) or (copies and candidate.is_copy()):
            continue
        ranked[candidate.model.id] = (found, candidate.model.complete, _bits_a_value(candidate.model) >= FLOAT_MIN_BITS)
    best = max(ranked.values(), default=None)
    return [others[model_id].model for model_id, rank in ranked.items() if rank == best]


def _foreign(child: Identity, candidate: Identity) -> bool:
    first, second = child.architecture, candidate.architecture
    return bool(first and second and first != second)


def _bits_a_value(model: Model) -> float:
    return 8 * model.size_bytes / max(model.parameters, 1)


def _most_alike(known: _Known, child: Model, ties: list[Model]) -> Model:
    """Of equally good candidates the one whose weights are most like the child's, then the finest, then the oldest."""
    ties = _finest(ties)
    if len(ties) == 1:
        return ties[0]
    own = known.organs(child)
    alike = {model.id: similarity(own, known.organs(model)).mean or 0.0 for model in ties}
    return max(ties, key=lambda model: alike[model.id])


def _finest(ties: list[Model]) -> list[Model]:
    return sorted(ties, key=lambda model: (-_bits_a_value(model), model.id))[:TIES_MAX]


def _described(session: Session, model_ids: Collection[int]) -> dict[int, _Described]:
    """Models with what their headers say of themselves and of their parents."""
    models = models_by_id(session, model_ids)
    texts = metadata_texts(session, models, (*IDENTITY_KEYS, *PARENT_KEYS))
    return {model.id: _described_by(model, texts[model.id]) for model in models.values()}


def _described_by(model: Model, texts: dict[str, str]) -> _Described:
    own = (texts.get(key, "") for key in IDENTITY_KEYS)
    identity = Identity(model.namespace, model.name, model.title or "", model.architecture or "", *own)
    return _Described(model, identity, tuple(parent for _, parent in numbered_parents(texts)))
