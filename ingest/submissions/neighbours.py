"""How a model that was sent stands to what is registered: its base, the same bytes, whose organs it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlalchemy.orm import Session

from ingest.submissions.findings import NOTE, REFUSE, WARN, Finding
from registry.catalog.queries.models import model_by_name, visible_model_with_digest
from registry.catalog.queries.published import removed_with_digest, yanked_with_digest
from registry.catalog.queries.submissions import models_with_organs_of
from registry.catalog.tables import Model
from registry.compose.partial import why_unfit
from registry.digest import Digest
from registry.errors import BadName, NotFound
from registry.gguf import TensorSpec
from registry.names import ModelName, parse_model_name
from registry.relatives.declared import folded

MUCH = 0.5
"""From this share of organs on, a model is much the same as another."""
REMOVED, YANKED = "removed-before", "yanked-before"
FOR_ADMINISTRATORS = (REMOVED, YANKED)
"""Codes of what an administrator has to look at, whatever the review says."""
SHOWN_MAX = 80


def base_findings(session: Session, base: str | None, organs: Iterable[TensorSpec] = ()) -> Iterator[Finding]:
    """Whether the base that is named is registered here, and has places for the `organs` of a model that has only some.

    Names of elsewhere can be any.
    """
    if base is None:
        return
    known = registered_base(session, base)
    if known is None:
        shown = repr(base if len(base) <= SHOWN_MAX else base[: SHOWN_MAX - 1] + "…")
        sentence = f"Its base {shown} is not registered here under that name; when it is, the two will be joined."
        yield Finding(NOTE, "base-not-registered", sentence)
    elif known.complete:
        unfit = why_unfit(session, known, organs)
        if unfit is not None:
            yield Finding(REFUSE, "base-does-not-fit", unfit)


def registered_base(session: Session, base: str) -> Model | None:
    """The model of that name, if it is shown to everybody."""
    try:
        found = model_by_name(session, parse_model_name(base)) if "/" in base else None
    except (BadName, NotFound):
        return None
    return found if found is not None and found.state == "visible" else None


def digest_findings(session: Session, digest: Digest, name: ModelName) -> Iterator[Finding]:
    """Whether the same bytes are registered, or were before an administrator removed or yanked them."""
    same = visible_model_with_digest(session, digest, None)
    if same is not None:
        sentence = f"The same bytes are registered as {same.full_name}."
        is_own = same.namespace == name.namespace
        yield Finding(NOTE if is_own else WARN, "same-bytes", sentence)
    removed = removed_with_digest(session, digest)
    if removed is not None:
        sentence = "A model of exactly these bytes was removed from this registry: an administrator will look at it."
        yield Finding(WARN, REMOVED, sentence)
    yanked = yanked_with_digest(session, digest)
    if yanked is not None:
        sentence = f"An administrator yanked {yanked.full_name}, which has the same bytes, and will look at this one."
        yield Finding(WARN, YANKED, sentence)


def organ_findings(session: Session, model: Model, base: str | None) -> Iterator[Finding]:
    """Whether most of its organs are those of another's model that it does not name as its base."""
    named = folded((base or "").partition("@")[0])
    for other, shared in models_with_organs_of(session, model.id):
        names = (f"{other.namespace}/{other.name}", other.name, other.title or "")
        is_named = named and named in [folded(one) for one in names]
        if other.digest == model.digest or other.namespace == model.namespace or is_named:
            continue
        if shared >= MUCH * model.tensors:
            much = f"{shared:,} of its {model.tensors:,} organs are those of {other.full_name}"
            yield Finding(WARN, "organs-of-another", f"{much}, which it does not name as its base.")
        return
