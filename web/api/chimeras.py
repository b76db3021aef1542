"""Chimeras: list, rank, get, compose, graft, purify, validate; the address of a file."""

from __future__ import annotations

from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.queries.model_names import model_by_name, model_by_text
from organs.registry.compose.chimeras import chimera_by_lock, chimera_page
from organs.registry.compose.chimeras import leaderboard as leaderboard_page
from organs.registry.digest import Digest, parse_prefix
from organs.registry.endpoints import chimeras as endpoints
from organs.registry.endpoints.declaration import Values
from organs.registry.entities.chimera import Assembly, AssemblyRequest, Chimera, ChimeraPage
from organs.registry.entities.gain import Leaderboard
from organs.registry.entities.job import GraftRequest, Job, PurificationRequest, ValidationRequest
from organs.registry.entities.sizes import QuantizationRequest
from organs.registry.entities.validation import QuickLookRequest
from organs.registry.errors import BadRequest
from organs.registry.names import MODEL_TEXT_MAX_LENGTH, parse_model_name
from organs.web.api.operation import checked, queued, serves
from organs.web.api.plans import recipe_arguments
from organs.web.downloads import whole_model
from organs.web.responses import (
    model_address,
    searching,
)


@serves(endpoints.chimeras)
def chimeras(order: str, limit: int, after: str | None) -> ChimeraPage:
    with searching() as session:
        return chimera_page(session, limit, after, order=order)


@serves(endpoints.chimera)
def chimera(lock: str) -> Chimera:
    with searching() as session:
        return chimera_by_lock(session, checked(parse_prefix, lock, "lock"))


@serves(endpoints.leaderboard)
def leaderboard(base: str | None, on: str | None, limit: int, after: str | None) -> Leaderboard:
    with searching() as session:
        return leaderboard_page(session, None if base is None else model_by_text(session, base), on, limit, after)


@serves(endpoints.compose)
def compose(body: Values) -> Job:
    return queued("compose", recipe_arguments(body))


@serves(endpoints.graft)
def graft(body: GraftRequest) -> Job:
    return queued("graft", body)


@serves(endpoints.purify)
def purify(body: PurificationRequest) -> Job:
    return queued("purify", body)


@serves(endpoints.validate)
def validate(body: ValidationRequest) -> Job:
    return queued("validate", body)


@serves(endpoints.quick_look)
def quick_look(body: QuickLookRequest) -> Job:
    return queued("quick-look", body)


@serves(endpoints.quantize)
def quantize(body: QuantizationRequest) -> Job:
    return queued("quantize", body)


@serves(endpoints.assemble)
def assemble(body: AssemblyRequest) -> Assembly:
    names = [name for name in (body.model, body.lock) if name is not None]
    if len(names) != 1 or len(names[0]) > MODEL_TEXT_MAX_LENGTH:
        raise BadRequest(None, "The body must have model (a name) or lock (the digest of a lock), but not both.")
    with searching() as session:
        if body.lock is not None:
            model = chimeras_by_lock(session, checked(parse_prefix, names[0], "lock"))[0]
        else:
            model = model_by_name(session, checked(parse_model_name, names[0], "model"))
        content = whole_model(session, model, immutable=True)
        return Assembly(
            model=model.full_name,
            file=content.name,
            size_bytes=content.size_bytes,
            sha256=None if content.sha256 is None else Digest(content.sha256),
            address=model_address(model.full_name, "downloads.model"),
        )
