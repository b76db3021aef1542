"""The proposed catalog entry of a submitted model, its relation to registered models, and the findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy.orm import Session

from organs.ingest.checking import UNSAFE
from organs.ingest.contributions.findings import NOTE, REFUSE, WARN
from organs.ingest.dissect import DissectedFile
from organs.ingest.records import is_complete
from organs.registry.amounts import names_text
from organs.registry.catalog.queries.model_names import (
    model_by_name,
    newest_reachable,
    next_version,
    removed_with_digest,
    visible_model_with_digest,
    yanked_with_digest,
)
from organs.registry.catalog.queries.organs import models_with_most_organs_of
from organs.registry.catalog.queries.relatives import parents_of
from organs.registry.catalog.queries.submissions import refused_with_digest
from organs.registry.catalog.tables import ModelRow
from organs.registry.compose.licenses import NO_LICENSE, differing_license, unknown_license
from organs.registry.compose.lock import LOCK_KEY
from organs.registry.compose.parents import misfit_sentence, parts_of
from organs.registry.digest import Digest
from organs.registry.entities.finding import FileFinding, Severity
from organs.registry.entities.submission import ProposedModel, SubmissionFinding, SubmissionMetadata
from organs.registry.errors import BadName, NotFound
from organs.registry.gguf import Header, TensorSpec
from organs.registry.names import ModelName, parse_model_name
from organs.registry.relatives.declared import (
    IDENTITY_KEYS,
    DeclaredParent,
    Identity,
    declared_parents,
    folded,
    models_meant,
    parent_in_words,
)

MUCH = 0.5
"""From this share of equal organs on, two models count as almost the same."""
REMOVED, REFUSED, YANKED = "removed-before", "refused-before", "yanked-before"
UNFIT = "base-does-not-fit"
FOR_ADMINISTRATORS = (REMOVED, REFUSED, YANKED)
"""Codes of findings that an administrator must review, with any setting of the review."""
SHOWN_MAX = 80
TEMPLATE_KEY = "tokenizer.chat_template"


def base_findings(
    session: Session,
    base: str | None,
    organs: Sequence[TensorSpec],
    child: Identity | None = None,
    parents: Sequence[DeclaredParent] = (),
) -> Iterator[SubmissionFinding]:
    """Yield findings on the named base: whether it is registered, and whether the `organs` of a partial model fit.

    A name of a model outside of this registry can be any text. With `child`, the model that names it, and
    `parents`, those in its header, the base is also searched as at publication. A guess refuses nothing.
    """
    if base is None:
        return
    registered = _registered_base(session, base)
    if registered is not None:
        misfit = _misfit_of(session, registered, organs)
        if misfit is not None:
            yield SubmissionFinding(REFUSE, UNFIT, misfit)
        return
    quoted = _shown(base)
    declared = _declared(base, parents)
    guesses = [] if child is None else models_meant(session, child, declared)
    if not guesses:
        sentence = (
            f"Its base {quoted} was not registered under that name at the inspection; when it is, the two are linked."
        )
        yield SubmissionFinding(NOTE, "base-not-registered", sentence)
        return
    names = names_text([guess.full_name for guess in guesses])
    match = names if len(guesses) == 1 else f"the most similar of {names}"
    evidence = "by the name in its header" if declared in parents else "by its name"
    yield SubmissionFinding(NOTE, "base-found", f"Its base {quoted} was identified {evidence} as {match}.")
    misfits = [_misfit_of(session, guess, organs) for guess in guesses]
    if misfits[0] is not None and None not in misfits:
        yield SubmissionFinding(WARN, UNFIT, misfits[0])


def _declared(base: str, parents: Sequence[DeclaredParent]) -> DeclaredParent:
    return next((parent for parent in parents if parent.text == base), None) or parent_in_words(base)


def misfit_of_base(session: Session, model: ModelRow) -> SubmissionFinding | None:
    """Return why a registered partial model does not fit into the current version of its base.

    Return None if it fits, or if no base is registered under exactly this name.
    """
    if model.kind != "model" or model.complete:
        return None
    organs = [part.spec for part in parts_of(session, model.id)]
    for edge in parents_of(session, [model.id], ("declared",)):
        if edge.parent_text and _registered_base(session, edge.parent_text) is not None:
            return next(base_findings(session, edge.parent_text, organs), None)
    return None


def _misfit_of(session: Session, base: ModelRow, organs: Iterable[TensorSpec]) -> str | None:
    return misfit_sentence(session, base, organs) if base.complete else None


def _registered_base(session: Session, base: str) -> ModelRow | None:
    """Return the visible model of that name, or None."""
    try:
        model = model_by_name(session, parse_model_name(base)) if "/" in base else None
    except (BadName, NotFound):
        return None
    return model if model is not None and model.state == "visible" else None


def digest_findings(
    session: Session, digest: Digest, name: ModelName, contributor_id: int
) -> Iterator[SubmissionFinding]:
    """Yield findings if the same bytes are registered, or were before an administrator removed or yanked them.

    Bytes that were refused before publication are mentioned only to their sender.
    """
    same = visible_model_with_digest(session, digest, None)
    if same is not None:
        sentence = f"The same bytes are registered as {same.full_name}."
        is_own = same.namespace == name.namespace
        yield SubmissionFinding(NOTE if is_own else WARN, "same-bytes", sentence)
    removed = removed_with_digest(session, digest)
    if removed is not None:
        sentence = "A model with the same bytes was removed from this registry: an administrator must review this one."
        yield SubmissionFinding(WARN, REMOVED, sentence)
    refused = refused_with_digest(session, digest, contributor_id)
    if refused is not None:
        day = refused.changed_at.date().isoformat()
        sentence = f"You submitted the same bytes before; they were refused on {day}: {refused.reason}"
        yield SubmissionFinding(NOTE, REFUSED, sentence)
    yanked = yanked_with_digest(session, digest)
    if yanked is not None:
        sentence = f"An administrator yanked {yanked.full_name}, which has the same bytes, and must review this model."
        yield SubmissionFinding(WARN, YANKED, sentence)


def name_findings(session: Session, name: ModelName, digest: Digest | None) -> Iterator[SubmissionFinding]:
    """Yield a finding if the model will become a new version of an existing name."""
    newest = newest_reachable(session, name)
    if newest is not None and (digest is None or visible_model_with_digest(session, digest, name) is None):
        sentence = (
            f"This becomes version {next_version(session, name)} of {newest.namespace}/{newest.name}; its version "
            f"{newest.version} is another file. To add a separate model, choose another name."
        )
        yield SubmissionFinding(NOTE, "new-version", sentence)


def organ_findings(
    session: Session, model: ModelRow, base: str | None, child: Identity, parents: Sequence[DeclaredParent]
) -> Iterator[SubmissionFinding]:
    """Yield a warning if most organs of `model` are those of another contributor's model that is not named as base.

    `child` are the names of `model`, and `parents` those in its header.
    """
    named = folded((base or "").partition("@")[0])
    organs, others = models_with_most_organs_of(session, model, LOCK_KEY)
    for other, shared in others:
        names = (f"{other.namespace}/{other.name}", other.name, other.title or "")
        is_named = named and named in [folded(name) for name in names]
        if other.digest == model.digest or is_named:
            continue
        if shared >= MUCH * organs:
            meant = models_meant(session, child, _declared(base, parents)) if base else []
            if other.id in [parent.id for parent in meant]:
                return
            share = f"{shared:,} of its {organs:,} tensors are those of {other.full_name}"
            yield SubmissionFinding(WARN, "organs-of-another", f"{share}, which it does not name as its base.")
        return


def propose(files: Sequence[DissectedFile], stated: SubmissionMetadata) -> ProposedModel:
    """Return the proposed catalog entry of the model in `files`."""
    header = files[0].header
    tensors = [tensor for file in files for tensor in file.header.tensors]
    return ProposedModel(
        title=stated.title or header.text("general.name"),
        description=stated.description or header.text("general.description"),
        license=stated.license or header.text("general.license"),
        base=stated.base or next((parent.text for parent in declared_parents(header)), None),
        tags=stated.tags if stated.tags is not None else files[0].front.tags,
        architecture=header.architecture,
        parameters=sum(tensor.elements for tensor in tensors),
        tensors=len(tensors),
        size_bytes=sum(file.header.file_size_bytes for file in files),
        kind=header.kind(has_tensors=bool(tensors)),
        complete=is_complete([file.header for file in files]),
    )


def identity_of(header: Header, name: ModelName, proposed: ProposedModel) -> Identity:
    """Return the names by which other models can declare this one."""
    header_names = (header.text(key) or "" for key in IDENTITY_KEYS)
    return Identity(name.namespace, name.name, proposed.title or "", proposed.architecture or "", *header_names)


def submitted(found: FileFinding) -> SubmissionFinding:
    """Return a finding on files as one of a submission. It refuses nothing: people also keep what no runtime loads."""
    sentence = f"{found.sentence[:1].upper()}{found.sentence[1:]}."
    if found.code == UNSAFE:
        sentence = f"The catalog will list it without a download, because the file can crash loaders: {found.sentence}"
    elif found.mend:
        sentence = f"{sentence} To mend it: {found.mend}."
    return SubmissionFinding(NOTE if found.severity is Severity.INFO else WARN, found.code, sentence)


def findings_of(
    files: Sequence[DissectedFile], name: ModelName, proposed: ProposedModel, found: Iterable[FileFinding]
) -> Iterator[SubmissionFinding]:
    """Yield the findings on the files alone, without the catalog; `found` are those of `ingest.checking`."""
    header = files[0].header
    yield from map(submitted, found)
    differing = differing_license(proposed.license, header.text("general.license"))
    if differing is not None:
        yield SubmissionFinding(WARN, "license-differs", differing)
    if proposed.license is None:
        yield SubmissionFinding(WARN, "no-license", NO_LICENSE)
    elif (unknown := unknown_license(proposed.license)) is not None:
        yield SubmissionFinding(NOTE, "unknown-license", unknown)
    title, owner = header.text("general.name"), header.text("general.organization")
    if title and folded(title) not in folded(name.name) and folded(name.name) not in folded(title):
        sentence = f"The header has the name {_shown(title)}; the catalog will list it as {name.namespace}/{name.name}."
        yield SubmissionFinding(NOTE, "other-name", sentence)
    if owner and folded(owner) != folded(name.namespace):
        sentence = (
            f"The header names {_shown(owner)} as its organization; the catalog will list it under {name.namespace}."
        )
        yield SubmissionFinding(NOTE, "other-organization", sentence)
    if proposed.kind == "model" and not proposed.complete and proposed.base is None:
        sentence = "It has only some tensors of its header, and names no base with the others: state its base."
        yield SubmissionFinding(WARN, "partial-without-base", sentence)
    elif proposed.kind == "model" and not proposed.complete:
        sentence = (
            f"It has only some tensors; for a complete file they are grafted into its base, {_shown(proposed.base)}."
        )
        yield SubmissionFinding(NOTE, "partial", sentence)
    if proposed.kind == "adapter" and proposed.base is None:
        yield SubmissionFinding(WARN, "adapter-without-base", "This adapter does not name its base: state it.")
    if header.field(TEMPLATE_KEY) is not None:
        sentence = "It has a chat template. The catalog only displays it, and tries it confined; runtimes execute it."
        yield SubmissionFinding(NOTE, "chat-template", sentence)


def _shown(text: str | None) -> str:
    return repr(text if text is None or len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…")
