"""Chimeras: list, rank, get, plan, compose, graft, purify, validate; the address of a file."""

from __future__ import annotations

import json
from typing import Annotated

from msgspec import Meta

from organs.registry.endpoints.declaration import ACCEPTED, Group, Values
from organs.registry.endpoints.parameters import (
    EXAMPLE_BASE,
    EXAMPLE_LOCK,
    FULL_NAME_MAX_LENGTH,
    LIMIT_DEFAULT,
    After,
    Base,
    Limit,
    choice_note,
    note,
)
from organs.registry.entities.chimera import ORDERS, Assembly, AssemblyRequest, Chimera, ChimeraPage
from organs.registry.entities.gain import Leaderboard
from organs.registry.entities.job import GraftRequest, Job, PurificationRequest, ValidationRequest
from organs.registry.entities.plan import (
    ALIKE,
    CANDIDATE_ORDERS,
    STEP_MAX_LENGTH,
    Compatibility,
    CompositionState,
    FittingModels,
    PlannedRecipe,
    RecipeRequest,
)
from organs.registry.entities.sizes import QuantizationRequest
from organs.registry.entities.validation import QuickLookRequest
from organs.registry.search.language import QUERY_MAX_LENGTH

GROUP = Group("Chimeras", "Plan, make and validate chimeras: models with tensors of other models.")
EXAMPLE_DONOR = "local/Zoo-A-2M-Code-v1.0-F16"
RECIPE_EXAMPLE = json.dumps(
    {"base": EXAMPLE_BASE, "grafts": [{"from": EXAMPLE_DONOR, "type": "organ", "blocks": "1-3"}]}
)

LockDigest = Annotated[
    str,
    note(
        "The digest of the chimera's lock, or at least its first 8 characters.",
        EXAMPLE_LOCK,
        pattern="^(sha256:)?[0-9a-fA-F]{8,64}$",
    ),
]
ChimeraOrder = Annotated[
    str, choice_note("`new` for the newest first, `gain` for the largest measured gain first.", ORDERS, "gain")
]
AnyBase = Annotated[
    str,
    note(
        "Only chimeras of this base: its name, or `sha256:` and a digest of its file.",
        EXAMPLE_BASE,
        max_length=FULL_NAME_MAX_LENGTH,
    ),
]
OnTexts = Annotated[
    str,
    note(
        "Only gains on these kinds of text, separated by commas, such as `python` or `code`; without it, on any text.",
        "code",
        max_length=QUERY_MAX_LENGTH,
    ),
]
Donor = Annotated[
    str,
    note("The model that gives tensors, or an adapter.", "local/Zoo-B-2M-v1.0-Q8_0", max_length=FULL_NAME_MAX_LENGTH),
]
EveryPart = Annotated[bool, note("1 to list every tensor of the result in `parts`, also the unchanged ones.", 0)]
LockToo = Annotated[
    bool, note("1 to include the lock, if the chimera can be made and no tensor must be computed first.", 0)
]
Step = Annotated[str, Meta(max_length=STEP_MAX_LENGTH)]
LayerRuns = Annotated[tuple[Step, ...], note("Blocks of the result: `blocks:0-15`. May be repeated, in their order.")]
Grafts = Annotated[
    tuple[Step, ...],
    note("A graft: `from:acme/coder type:organ blocks:2-5`. May be repeated.", f"from:{EXAMPLE_DONOR} type:organ"),
]
Blends = Annotated[
    tuple[Step, ...],
    note("A blend: `from:acme/coder weight:0.5 type:organ`. May be repeated.", f"from:{EXAMPLE_DONOR} weight:0.5"),
]
Adapters = Annotated[tuple[Step, ...], note("An adapter: `from:acme/lora scale:0.5`. May be repeated.")]
Purifications = Annotated[tuple[Step, ...], note("A purification: `method:fractal type:organ`. May be repeated.")]
ExpertChoices = Annotated[
    tuple[Step, ...], note("Experts to keep or to drop: `keep:0-31,40 blocks:1-60`. May be repeated.")
]
TensorTypes = Annotated[
    tuple[Step, ...], note("The types in which matrices are written: `as:Q6_K blocks:0-3`. May be repeated.")
]
ImportanceMatrixName = Annotated[
    str, note("The importance matrix that weighs errors of rounding.", max_length=STEP_MAX_LENGTH)
]
AcceptedCodes = Annotated[tuple[Step, ...], note("The code of a warning to accept. May be repeated.")]
Metadata = Annotated[tuple[Step, ...], note("Metadata: `general.name=Tiny`. May be repeated.")]
Encoding = Annotated[
    str,
    note("How computed tensors are written: `same`, `finer`, or a dtype.", max_length=STEP_MAX_LENGTH),
]
ComputedFrom = Annotated[
    str,
    note("The weights that are computed with: `proved`, `given`, or a model.", max_length=STEP_MAX_LENGTH),
]
ChimeraName = Annotated[str, note("The name under which the chimera would be registered.", max_length=STEP_MAX_LENGTH)]
CellText = Annotated[
    str,
    note(
        "A cell of the base whose candidates are returned: `organ:2`, `embed:none`.",
        "organ:2",
        max_length=STEP_MAX_LENGTH,
    ),
]
CandidateOrder = Annotated[str, choice_note("The order of the candidates.", tuple(CANDIDATE_ORDERS), "-theta")]


@GROUP.get("/chimeras", "List chimeras", example="limit=1")
def chimeras(order: ChimeraOrder = ORDERS[0], limit: Limit = LIMIT_DEFAULT, after: After | None = None) -> ChimeraPage:
    """Return the chimeras of this registry, each with its strongest verdict and its gains."""


@GROUP.get("/chimeras/{lock}", "Get a chimera", refusals=(404, 409))
def chimera(lock: LockDigest) -> Chimera:
    """Return the recipe, parents, findings, screen and verdicts of a chimera, and every changed tensor."""


@GROUP.get("/leaderboard", "Rank donors by measured gain", example="on=code&limit=1", refusals=(404,))
def leaderboard(
    base: AnyBase | None = None, on: OnTexts | None = None, limit: Limit = LIMIT_DEFAULT, after: After | None = None
) -> Leaderboard:
    """Return the validated chimeras with their donors, the largest gain first: the fall of the perplexity against the
    base, in percent. A gain counts if its interval of 95% excludes 0.
    """


@GROUP.write(
    "post", "/chimeras", "Compose a chimera", status=ACCEPTED, example=RECIPE_EXAMPLE, refusals=(404, 409, 410)
)
def compose(body: RecipeRequest | Values) -> Job:
    """Start a job that makes and registers the chimera of a recipe. Errors are reported at once: 400 for an invalid
    recipe, 409 for a recipe that is refused or has warnings that it does not accept.
    """


@GROUP.write(
    "post",
    "/grafts",
    "Graft tensors of one model into another",
    status=ACCEPTED,
    example=f'{{"base": "{EXAMPLE_BASE}", "donor": "{EXAMPLE_DONOR}", "type": "organ"}}',
    refusals=(404, 409, 410),
)
def graft(body: GraftRequest) -> Job:
    """Start a job for a recipe with a single graft."""


@GROUP.write(
    "post",
    "/purifications",
    "Purify tensors of a model",
    status=ACCEPTED,
    example=f'{{"model": "{EXAMPLE_BASE}", "method": "fractal", "type": "organ", "blocks": 3}}',
    refusals=(404, 409, 410),
)
def purify(body: PurificationRequest) -> Job:
    """Start a job for a recipe with a single purification: a chimera of one model.

    Purifying usually raises the perplexity, often to a multiple. A plan of the recipe, by `POST /plans`, has the
    screen of the result, and `POST /quick-looks` measures it.
    """


@GROUP.write(
    "post",
    "/validations",
    "Validate a chimera",
    status=ACCEPTED,
    example=f'{{"chimera": "sha256:{EXAMPLE_LOCK}", "tokens": 2048}}',
    refusals=(404, 409, 410),
)
def validate(body: ValidationRequest) -> Job:
    """Start a job that runs a chimera, its base, its donors and its control in llama.cpp; one chimera at a time. The
    result is the verdict with all its measurements. It is stored with the chimera.
    """


@GROUP.write(
    "post",
    "/quick-looks",
    "Take a quick look at a chimera",
    status=ACCEPTED,
    example=f'{{"chimera": "sha256:{EXAMPLE_LOCK}", "seconds": 10}}',
    refusals=(404, 409, 410),
)
def quick_look(body: QuickLookRequest) -> Job:
    """Start a job that runs a chimera and its base in llama.cpp for some seconds, on a few windows of a few texts. The
    result has the change of perplexity on each text. It is stored with the chimera. Composing starts this job, too.
    """


@GROUP.write(
    "post",
    "/jobs/quantize",
    "Make a model of a size",
    status=ACCEPTED,
    example=f'{{"model": "{EXAMPLE_DONOR}", "like": "Q4_K_M", "minutes": 5}}',
    refusals=(404, 409, 410),
)
def quantize(body: QuantizationRequest) -> Job:
    """Start a job that makes the model of a size, or of a mix of llama.cpp, that stays closest to its source. It runs
    the source and many variants in llama.cpp. What was measured is stored: a job that was interrupted continues, and
    the next size of the same model takes a fraction of the time. The result has the model and its measurements.
    """


@GROUP.ask(
    "/assemblies",
    "Get the address of a model's file",
    example=f'{{"lock": "{EXAMPLE_LOCK}"}}',
    refusals=(404, 409, 410, 500),
)
def assemble(body: AssemblyRequest) -> Assembly:
    """Return the address at which a model, or the chimera of a lock, can be downloaded as one file. The server
    assembles the file while it sends it. It merges shards; then the digest is not known in advance.
    """


@GROUP.ask("/plans", "Plan a recipe", example=RECIPE_EXAMPLE, refusals=(429,))
def plan(body: RecipeRequest | Values, every_part: EveryPart = False, lock: LockToo = False) -> PlannedRecipe:
    """Return findings, sizes, a screen, and every tensor that a recipe changes. Nothing is made or written. The
    answer is 200 also for a refused recipe; its findings give the reasons. Without a known base there is no plan. The
    cost is estimated first: 413 for more than 2 s of processor time, or 10 s with an account. Lists have at most 2,000
    rows.
    """


@GROUP.get(
    "/composition",
    "Plan steps, and list what can be chosen next",
    example=f"base={EXAMPLE_BASE}&cell=organ:2",
    refusals=(404, 409, 410, 413, 429),
)
def composition(
    base: Base,
    layer: LayerRuns = (),
    graft: Grafts = (),
    blend: Blends = (),
    adapter: Adapters = (),
    purify: Purifications = (),
    expert: ExpertChoices = (),
    quantize: TensorTypes = (),
    accept: AcceptedCodes = (),
    meta: Metadata = (),
    imatrix: ImportanceMatrixName | None = None,
    encode: Encoding | None = None,
    source: ComputedFrom | None = None,
    name: ChimeraName | None = None,
    cell: CellText | None = None,
    order: CandidateOrder = ALIKE,
) -> CompositionState:
    """Return the plan of the steps in the address, and the choices for the next step: the cells of the base with θ, the
    models and adapters that fit, and the candidates for one cell.
    """


@GROUP.get(
    "/compatibility",
    "Check whether two models fit",
    example=f"base={EXAMPLE_BASE}&donor=local/Zoo-B-2M-v1.0-Q8_0",
    refusals=(404, 409, 410, 429),
)
def compatibility(base: Base, donor: Donor) -> Compatibility:
    """Return how many tensors of each type of a donor fit into a base, with all findings. A type can be refused while
    the others fit.
    """


@GROUP.get("/fitting", "List models that fit a base", example=f"base={EXAMPLE_BASE}&limit=2", refusals=(404, 409, 410))
def fitting(base: Base, limit: Limit = LIMIT_DEFAULT) -> FittingModels:
    """Return related models first, the most similar first; then unrelated models, newest first, whose tensors only have
    the right shapes. At most 1,000 models are checked, so that one page can hold all results.
    """
