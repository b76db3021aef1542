"""Make a model of a wanted size from its source, and measure how far it is from it."""

from __future__ import annotations

from msgspec.structs import replace
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.model_names import check_model_name, find_model_by_text, model_by_text
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.compose.build import check_own
from organs.registry.compose.plan import chimera_name
from organs.registry.compose.recipe import Recipe
from organs.registry.entities.sizes import QuantizationRequest, SizedModel
from organs.registry.errors import BadRequest, NotAssemblable
from organs.registry.kinds import FileKind
from organs.registry.progress import StepProgress
from organs.registry.store import BlobStore
from organs.registry.validation.runtime import Runtime

WANTED = ("type", "size_bytes", "bits", "like")
"""The members of a request of which it has exactly one."""


def checked_request(
    session: Session, request: QuantizationRequest, contributor: str = LOCAL
) -> tuple[QuantizationRequest, int]:
    """Return the request with full names, and the most bytes that its file can have, as far as this is known now.

    Raises BadRequest with all faults, NotAllowed for a name in another contributor's namespace, BadName, NotFound,
    NotAssemblable.
    """
    source = model_by_text(session, request.model)
    if source.unassemblable:
        raise NotAssemblable(source.full_name, source.unassemblable)
    faults: list[tuple[str | None, str]] = []
    if source.kind != FileKind.MODEL or not source.complete:
        faults.append(("model", f"{source.full_name} is no complete language model, so it has no sizes."))
    wanted = [name for name in WANTED if getattr(request, name) is not None]
    if len(wanted) != 1:
        found = f"The request has {', '.join(wanted)}." if wanted else "The request has none of them."
        faults.append((None, f"Give exactly one of {', '.join(WANTED)}. {found}"))
    like = None
    if request.like is not None and "/" in request.like:
        like = find_model_by_text(session, request.like)
        if like is None:
            faults.append(("like", f"{request.like[:100]!r} is no registered model."))
    importances = None if request.imatrix is None else find_model_by_text(session, request.imatrix)
    if request.imatrix is not None and (importances is None or importances.kind != FileKind.IMATRIX):
        faults.append(("imatrix", f"{request.imatrix[:100]!r} is no registered importance matrix."))
    if faults:
        raise BadRequest(*faults[0], more=faults[1:])
    settled = replace(request, model=source.full_name)
    if request.name is not None:
        name = chimera_name(Recipe(source.full_name, name=request.name), "", contributor)
        check_own(name, contributor)
        check_model_name(session, name)
        settled = replace(settled, name=str(name))
    if like is not None:
        settled = replace(settled, like=like.full_name)
    if importances is not None:
        settled = replace(settled, imatrix=importances.full_name)
    most_bytes = request.size_bytes or 0
    if request.bits is not None:
        most_bytes = int(request.bits * source.parameters / 8)
    if like is not None:
        most_bytes = like.size_bytes
    return settled, min(most_bytes, source.size_bytes)


def quantize(
    catalog: Catalog,
    blobs: BlobStore,
    request: QuantizationRequest,
    runtime: Runtime,
    progress: StepProgress = lambda _share, _step: None,
    contributor: str = LOCAL,
) -> SizedModel:
    """Make the model that `request` describes, in the namespace of `contributor`, store its size and return it."""
    raise NotImplementedError
