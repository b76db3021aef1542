"""How a model that was sent stands to what is registered: its base, the same bytes, whose organs it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy.orm import Session

from organs.ingest.submissions.findings import NOTE, REFUSE, WARN, Finding
from organs.registry.catalog.queries.models import (
    model_by_name,
    newest_reachable,
    next_version,
    visible_model_with_digest,
)
from organs.registry.catalog.queries.published import removed_with_digest, yanked_with_digest
from organs.registry.catalog.queries.relatives import parents_of
from organs.registry.catalog.queries.shared_organs import models_with_most_organs_of
from organs.registry.catalog.queries.submissions import refused_with_digest
from organs.registry.catalog.tables import Model
from organs.registry.compose.library import parts_of
from organs.registry.compose.lock import LOCK_KEY
from organs.registry.compose.partial import why_unfit
from organs.registry.compose.phrases import listed
from organs.registry.digest import Digest
from organs.registry.errors import BadName, NotFound
from organs.registry.gguf import TensorSpec
from organs.registry.names import ModelName, parse_model_name
from organs.registry.relatives.declared import DeclaredParent, Identity, folded, parent_in_words
from organs.registry.relatives.resolve import models_meant

MUCH = 0.5
"""From this share of organs on, a model is much the same as another."""
REMOVED, REFUSED, YANKED = "removed-before", "refused-before", "yanked-before"
UNFIT = "base-does-not-fit"
FOR_ADMINISTRATORS = (REMOVED, REFUSED, YANKED)
"""Codes of what an administrator has to look at, whatever the review says."""
SHOWN_MAX = 80


def base_findings(
    session: Session,
    base: str | None,
    organs: Sequence[TensorSpec] = (),
    child: Identity | None = None,
    parents: Sequence[DeclaredParent] = (),
) -> Iterator[Finding]:
    """Whether the base that is named is registered here, and has places for the `organs` of a model that has only some.

    Names of elsewhere can be any. With the `child` that names it and the `parents` in its header, it is also looked for
    as it will be when the model is published: that is a guess, which refuses nothing.
    """
    if base is None:
        return
    known = registered_base(session, base)
    if known is not None:
        unfit = _unfit(session, known, organs)
        if unfit is not None:
            yield Finding(REFUSE, UNFIT, unfit)
        return
    shown = repr(base if len(base) <= SHOWN_MAX else base[: SHOWN_MAX - 1] + "…")
    meant = next((parent for parent in parents if parent.text == base), None) or parent_in_words(base)
    guesses = [] if child is None else models_meant(session, child, meant)
    if not guesses:
        sentence = (
            f"Its base {shown} was not registered here under that name when this was looked at; when it is, the two "
            "are joined."
        )
        yield Finding(NOTE, "base-not-registered", sentence)
        return
    names = listed([guess.full_name for guess in guesses])
    taken = names if len(guesses) == 1 else f"the one that is most like it of {names}"
    how = "by the name in its header" if meant in parents else "by its name"
    yield Finding(NOTE, "base-found", f"Its base {shown} is taken to be {taken}, {how}.")
    unfits = [_unfit(session, guess, organs) for guess in guesses]
    if unfits[0] is not None and None not in unfits:
        yield Finding(WARN, UNFIT, unfits[0])


def unfit_for_its_base(session: Session, model: Model) -> Finding | None:
    """Why a registered model that has only some organs does not fit into the base that it names, as that is now.

    None where it fits, and where no base is registered under the very name that it gives.
    """
    if model.kind != "model" or model.complete:
        return None
    organs = [part.spec for part in parts_of(session, model.id)]
    for edge in parents_of(session, [model.id], ("declared",)):
        if edge.parent_text and registered_base(session, edge.parent_text) is not None:
            return next(base_findings(session, edge.parent_text, organs), None)
    return None


def _unfit(session: Session, base: Model, organs: Iterable[TensorSpec]) -> str | None:
    return why_unfit(session, base, organs) if base.complete else None


def registered_base(session: Session, base: str) -> Model | None:
    """The model of that name, if it is shown to everybody."""
    try:
        found = model_by_name(session, parse_model_name(base)) if "/" in base else None
    except (BadName, NotFound):
        return None
    return found if found is not None and found.state == "visible" else None


def digest_findings(session: Session, digest: Digest, name: ModelName, contributor_id: int) -> Iterator[Finding]:
    """Whether the same bytes are registered, or were before an administrator removed or yanked them.

    Of bytes that were refused before anybody saw them only who sent them is told.
    """
    same = visible_model_with_digest(session, digest, None)
    if same is not None:
        sentence = f"The same bytes are registered as {same.full_name}."
        is_own = same.namespace == name.namespace
        yield Finding(NOTE if is_own else WARN, "same-bytes", sentence)
    removed = removed_with_digest(session, digest)
    if removed is not None:
        sentence = "A model of exactly these bytes was removed from this registry: an administrator will look at it."
        yield Finding(WARN, REMOVED, sentence)
    refused = refused_with_digest(session, digest, contributor_id)
    if refused is not None:
        day = refused.changed_at.date().isoformat()
        sentence = f"You sent these bytes before, and they were refused on {day}: {refused.reason}"
        yield Finding(NOTE, REFUSED, sentence)
    yanked = yanked_with_digest(session, digest)
    if yanked is not None:
        sentence = f"An administrator yanked {yanked.full_name}, which has the same bytes, and will look at this one."
        yield Finding(WARN, YANKED, sentence)


def name_findings(session: Session, name: ModelName, digest: Digest | None) -> Iterator[Finding]:
    """Say that the model becomes a new version of a name that another file has, before the model is registered."""
    newest = newest_reachable(session, name)
    if newest is not None and (digest is None or visible_model_with_digest(session, digest, name) is None):
        sentence = (
            f"This becomes version {next_version(session, name)} of {newest.namespace}/{newest.name}, whose version "
            f"{newest.version} is another file. Under another name it would be a model of its own."
        )
        yield Finding(NOTE, "new-version", sentence)


def organ_findings(session: Session, model: Model, base: str | None) -> Iterator[Finding]:
    """Warn if most of the different organs of `model` are those of another's model, which it does not name as base."""
    named = folded((base or "").partition("@")[0])
    organs, others = models_with_most_organs_of(session, model, LOCK_KEY)
    for found in others:
        other = found.model
        names = (f"{other.namespace}/{other.name}", other.name, other.title or "")
        is_named = named and named in [folded(one) for one in names]
        if other.digest == model.digest or is_named:
            continue
        if found.shared >= MUCH * organs:
            much = f"{found.shared:,} of its {organs:,} organs are those of {other.full_name}"
            yield Finding(WARN, "organs-of-another", f"{much}, which it does not name as its base.")
        return
