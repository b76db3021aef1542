"""Chimeras: list, rank, get, compose, graft, purify, validate; the address of a file."""

from __future__ import annotations

from organs.registry.catalog.queries.chimeras import ORDERS, chimeras_by_lock
from organs.registry.catalog.queries.model_names import model_by_name, model_by_text
from organs.registry.compose.chimeras import chimera_by_lock, chimera_page
from organs.registry.compose.chimeras import leaderboard as leaderboard_page
from organs.registry.digest import Digest, parse_prefix
from organs.registry.entities.chimera import Assembly, AssemblyRequest, Chimera, ChimeraPage
from organs.registry.entities.gain import Leaderboard
from organs.registry.entities.job import GraftRequest, Job, PurificationRequest, ValidationRequest
from organs.registry.entities.plan import RecipeRequest
from organs.registry.entities.validation import QuickLookRequest
from organs.registry.errors import BadRequest
from organs.registry.names import MODEL_TEXT_MAX_LENGTH, parse_model_name
from organs.web.api.operation import (
    ACCEPTED,
    ROOT,
    checked,
    json_body,
    operation,
    queued,
    read_body,
    requested_recipe,
    writing_operation,
)
from organs.web.api.plans import GROUP, RECIPE_EXAMPLE
from organs.web.downloads import whole_model
from organs.web.params import (
    AFTER,
    ANY_BASE,
    CHIMERA_ORDER,
    LIMIT,
    LOCK,
    ON_TEXTS,
    requested_choice,
    requested_gains,
    requested_page,
)
from organs.web.responses import (
    model_address,
    searching,
)

EXAMPLE_LOCK = "75ae85f27135e26b"


@operation(GROUP, "/chimeras", "List chimeras", CHIMERA_ORDER, LIMIT, AFTER, example=f"{ROOT}/chimeras?limit=1")
def chimeras() -> ChimeraPage:
    """Return the chimeras of this registry, each with its strongest verdict and its gains."""
    with searching() as session:
        return chimera_page(session, *requested_page(), order=requested_choice("order", ORDERS))


@operation(GROUP, "/chimeras/{lock}", "Get a chimera", LOCK, refusals=(404, 409))
def chimera(lock: str) -> Chimera:
    """Return the recipe, parents, findings, screen and verdicts of a chimera, and every changed organ."""
    with searching() as session:
        return chimera_by_lock(session, checked(parse_prefix, lock, "lock"))


@operation(
    GROUP,
    "/leaderboard",
    "Rank donors by measured gain",
    ANY_BASE,
    ON_TEXTS,
    LIMIT,
    AFTER,
    example=f"{ROOT}/leaderboard?on=code&limit=1",
    refusals=(404,),
)
def leaderboard() -> Leaderboard:
    """Return the validated chimeras with their donors, the largest gain first: the fall of the perplexity against the
    base, in percent. A gain counts if its interval of 95% excludes 0.
    """
    base, on = requested_gains()
    with searching() as session:
        return leaderboard_page(session, None if base is None else model_by_text(session, base), on, *requested_page())


@writing_operation(
    GROUP,
    "/chimeras",
    "Compose a chimera",
    status=ACCEPTED,
    body=RecipeRequest,
    example=RECIPE_EXAMPLE,
    refusals=(404, 409, 410),
)
def compose() -> Job:
    """Start a job that makes and registers the chimera of a recipe. Errors are reported at once: 400 for an invalid
    recipe, 409 for a recipe that is refused or has warnings that it does not accept.
    """
    return queued("compose", requested_recipe())


@writing_operation(
    GROUP,
    "/grafts",
    "Graft organs of one model into another",
    status=ACCEPTED,
    body=GraftRequest,
    example='{"base": "local/Zoo-A-2M-v1.0-F16", "donor": "local/Zoo-A-2M-Code-v1.0-F16", "type": "organ"}',
    refusals=(404, 409, 410),
)
def graft() -> Job:
    """Start a job for a recipe with a single graft."""
    return queued("graft", json_body(GraftRequest))


@writing_operation(
    GROUP,
    "/purifications",
    "Purify organs of a model",
    status=ACCEPTED,
    body=PurificationRequest,
    example='{"model": "local/Zoo-A-2M-v1.0-F16", "method": "fractal", "type": "organ", "blocks": 3}',
    refusals=(404, 409, 410),
)
def purify() -> Job:
    """Start a job for a recipe with a single purification: a chimera of one model.

    Purifying usually raises the perplexity, often to a multiple. A plan of the recipe, by `POST /plans`, has the
    screen of the result, and `POST /quick-looks` measures it.
    """
    return queued("purify", json_body(PurificationRequest))


@writing_operation(
    GROUP,
    "/validations",
    "Validate a chimera",
    status=ACCEPTED,
    body=ValidationRequest,
    example=f'{{"chimera": "sha256:{EXAMPLE_LOCK}", "tokens": 2048}}',
    refusals=(404, 409, 410),
)
def validate() -> Job:
    """Start a job that runs a chimera, its base, its donors and its control in llama.cpp; one chimera at a time. The
    result is the verdict with all its measurements. It is stored with the chimera.
    """
    return queued("validate", json_body(ValidationRequest))


@writing_operation(
    GROUP,
    "/quick-looks",
    "Take a quick look at a chimera",
    status=ACCEPTED,
    body=QuickLookRequest,
    example=f'{{"chimera": "sha256:{EXAMPLE_LOCK}", "seconds": 10}}',
    refusals=(404, 409, 410),
)
def quick_look() -> Job:
    """Start a job that runs a chimera and its base in llama.cpp for some seconds, on a few windows of a few texts. The
    result has the change of perplexity on each text. It is stored with the chimera. Composing starts this job, too.
    """
    return queued("quick-look", json_body(QuickLookRequest))


@operation(
    GROUP,
    "/assemblies",
    "Get the address of a model's file",
    body=AssemblyRequest,
    example=f'{{"lock": "{EXAMPLE_LOCK}"}}',
    refusals=(404, 409, 410, 500),
)
def assemble() -> Assembly:
    """Return the address at which a model, or the chimera of a lock, can be downloaded as one file. The server
    assembles the file while it sends it. It merges shards; then the digest is not known in advance.
    """
    body = read_body(AssemblyRequest)
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
