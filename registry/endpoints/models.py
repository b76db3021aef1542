"""Models: search, files, comparison, lineage, editing, yanking and versions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.endpoints.declaration import ACCEPTED, ANY, Group, Values
from organs.registry.endpoints.parameters import (
    EXAMPLE_BASE,
    EXAMPLE_LOCK,
    EXAMPLE_MODEL,
    LIMIT_DEFAULT,
    After,
    Limit,
    Name,
    Namespace,
    full_name_note,
    limit_note,
    note,
    query_note,
)
from organs.registry.entities.comparison import Comparison
from organs.registry.entities.job import Job, ModelRequest
from organs.registry.entities.lineage import FAMILIES_DEFAULT, FAMILIES_MAX, FamilyPage, ModelLineage
from organs.registry.entities.model import Model, ModelPage, ModelSummary
from organs.registry.entities.organ import OrganPage
from organs.registry.entities.published import (
    CardImage,
    DescendantPage,
    ModelEditRequest,
    ModelVersions,
    PublishedModel,
    RestoreRequest,
    YankRequest,
)
from organs.registry.entities.sizes import SizeCurve
from organs.registry.search.language import MODELS
from organs.registry.upload_limits import CARD_IMAGE_NAME_MAX

GROUP = Group("Models", "Search, compare and edit models; lineage and files.")
PLACE_MAX = 1_000_000
_MODEL = "/models/{namespace}/{name}"
_EXAMPLE = f"local/{EXAMPLE_MODEL}"
_MODEL_BODY = f'{{"model": "{_EXAMPLE}"}}'

ModelQuery = Annotated[str, query_note(MODELS, "kind:model sort:-theta")]
Ranked = Annotated[bool, note("1 for complete models only, by descending mean θ unless the query sorts.", 1)]
ModelDigest = Annotated[
    str,
    note(
        "The digest of a model, its file or its lock, or at least the first 8 characters, with or without `sha256:`.",
        EXAMPLE_LOCK,
        pattern="^(sha256:)?[0-9a-fA-F]{8,64}$",
    ),
]
HeaderDigest = Annotated[
    str,
    note(
        "The SHA-256 of a file's header, from its first byte to the last tensor info, as in locks.",
        "d517a753c035f3e0e718e07860437468c6bb95c4c74b68a7937177925b8e3bd3",
        pattern="^[0-9a-f]{64}$",
    ),
]
EXAMPLE_IMAGE = "GIF87a\x01\0\x01\0\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;"
"""A grey point."""
ImageName = Annotated[
    str,
    Meta(
        description="The path by which the description shows the image: `![a plot](images/plot.png)`.",
        examples=["images/plot.png"],
        min_length=1,
        max_length=CARD_IMAGE_NAME_MAX,
    ),
]
First = Annotated[str, full_name_note("A model, `namespace/name` or `namespace/name@version`.", _EXAMPLE)]
Second = Annotated[str, full_name_note("The model that it is compared with.", "local/Zoo-B-2M-v1.0-Q8_0")]
OfModel = Annotated[str, full_name_note("A model, to get only its family.")]
Families = Annotated[int, limit_note("Families on a page", FAMILIES_MAX)]
Place = Annotated[
    int,
    Meta(description="The `next` of the previous page: the number of items before this one.", ge=0, le=PLACE_MAX),
]


@GROUP.get("/models", "Search models", example="ranked=1&limit=2")
def models(
    q: ModelQuery = "", limit: Limit = LIMIT_DEFAULT, after: After | None = None, ranked: Ranked = False
) -> ModelPage:
    """Return the models that match a query, newest first unless the query sorts."""


@GROUP.get("/models/lookup", "Get the model with a digest", example=f"digest={EXAMPLE_LOCK}", refusals=(404, 409))
def model_lookup(digest: ModelDigest) -> ModelSummary:
    """Return the oldest model whose bytes, file or lock have this digest, or a digest that begins with it. 409 if
    several models match.
    """


@GROUP.get("/headers/{header}", "Get the model with a header", refusals=(404,))
def header(header: HeaderDigest) -> ModelSummary:
    """Return the oldest model whose first file begins with this header. A lock names the header; with that file and the
    tensors of the lock, anybody can make the file of the lock.
    """


@GROUP.get(_MODEL, "One model", refusals=(404, 410))
def model(namespace: Namespace, name: Name) -> Model:
    """Return a model with its metadata, types, files and lineage. Another operation lists its tensors."""


@GROUP.get(f"{_MODEL}/organs", "List the tensors of a model", example="limit=2", refusals=(404, 410))
def model_organs(
    namespace: Namespace, name: Name, limit: Limit = LIMIT_DEFAULT, after: After | None = None
) -> OrganPage:
    """Return the tensors of a model with their places, in the order of its files."""


@GROUP.get(f"{_MODEL}/lineage", "Get the lineage of a model", refusals=(404, 410))
def model_lineage(namespace: Namespace, name: Name) -> ModelLineage:
    """Return the relatives of a model, as declared, recorded or measured, and the contradictions between them."""


@GROUP.get(
    f"{_MODEL}/sizes",
    "Get the measured sizes of a model",
    example=f"/models/{EXAMPLE_BASE}/sizes?",
    refusals=(404, 410),
)
def model_sizes(namespace: Namespace, name: Name) -> SizeCurve:
    """Return the sizes that were measured for a model, the smallest first: how far the next-token distribution of each
    is from that of the model. A size with a `model` can be downloaded; its `tag` names it for other programs.
    """


@GROUP.get("/families", "List families of models", example="limit=1", refusals=(404, 410))
def model_families(model: OfModel | None = None, limit: Families = FAMILIES_DEFAULT, after: Place = 0) -> FamilyPage:
    """Return families of models that descend from each other or have similar weights, the largest family first; with
    `model`, only the family of that model, even if it has no other member. A family has at most 60 members: those with
    the most edges.
    """


@GROUP.write(
    "post", "/measurements", "Measure a model again", status=ACCEPTED, example=_MODEL_BODY, refusals=(404, 410)
)
def measure(body: ModelRequest) -> Job:
    """Start a job that measures every tensor of a model again from its stored bytes. The result has the new values, and
    the largest difference of each measure from the recorded value. The recorded values do not change.
    """


@GROUP.write(
    "post",
    "/extractions",
    "Extract a model into an organ directory",
    status=ACCEPTED,
    example=_MODEL_BODY,
    refusals=(404, 410),
)
def extract(body: ModelRequest) -> Job:
    """Start a job that writes an organ directory of a model as one uncompressed tar. Its address is
    `/jobs/<job>/files/<file>`, where `file` is in the result of the job; it is kept for one day.
    """


@GROUP.get(
    "/compare",
    "Compare two models",
    example=f"first={_EXAMPLE}&second=local/Zoo-A-2M-Prose-v1.0-Q8_0",
    refusals=(404, 410),
)
def compare(first: First, second: Second) -> Comparison:
    """Return the likeness of two models at equal places, as a whole and by type, block and tensor, and their other
    differences.
    """


@GROUP.get(f"{_MODEL}/versions", "List the versions of a model", refusals=(404, 410))
def model_versions(namespace: Namespace, name: Name) -> ModelVersions:
    """Return the newest 100 versions, each with its differences from the version before it. Yanked versions are listed
    with the reason; removed versions are not listed. Only their contributor sees versions that are held for review.
    """


@GROUP.get(
    f"{_MODEL}/descendants",
    "List chimeras that use a model",
    example=f"/models/{EXAMPLE_BASE}/descendants?limit=1",
    refusals=(404, 410),
)
def model_descendants(
    namespace: Namespace, name: Name, limit: Limit = LIMIT_DEFAULT, after: After | None = None
) -> DescendantPage:
    """Return the chimeras that use the model as their base or as a donor, newest first."""


@GROUP.write(
    "patch",
    _MODEL,
    "Edit a model",
    example='{"tags": ["letters"], "license": "apache-2.0"}',
    refusals=(404, 409, 410),
)
def edit(namespace: Namespace, name: Name, body: ModelEditRequest | Values) -> PublishedModel:
    """Change the title, description, license, tags or base of one of your own models. Its bytes never change. `errors`
    names each field that is not valid. A base replaces the base that the file declares.
    """


@GROUP.write(
    "put",
    f"{_MODEL}/images",
    "Send an image of a card",
    bytes_example=EXAMPLE_IMAGE,
    example="image=images/plot.png",
    refusals=(404, 409, 410, 411),
)
def send_image(namespace: Namespace, name: Name, image: ImageName, *, data: bytes) -> CardImage:
    """Add an image to the card of one of your own models, or replace the one of that name; the description must show
    it. The body is a PNG, JPEG, WebP or GIF of at most 4 MiB and 4,096 pixels on a side. The registry writes it again,
    as a PNG or a JPEG, without the metadata; of an animation it keeps the first frame. A card has at most 16 images, of
    16 MiB together. An edit of the description removes the images that it does not show any more.
    """


@GROUP.write(
    "post",
    f"{_MODEL}/yank",
    "Yank a model",
    example='{"reason": "Its tokenizer was the wrong one."}',
    refusals=(404, 409, 410),
    scope=ANY,
)
def yank(namespace: Namespace, name: Name, body: YankRequest) -> PublishedModel:
    """Hide a model from searches, rankings and lists. It can still be downloaded by its exact name or digest, which
    also shows the reason. With the scope `upload` you can yank your own models, with `admin` all models.
    """


@GROUP.write("post", f"{_MODEL}/restore", "Restore a yanked model", example="{}", refusals=(404, 409, 410), scope=ANY)
def restore(namespace: Namespace, name: Name, body: RestoreRequest) -> PublishedModel:
    """Show a yanked model in searches and lists again; a visible model does not change. The same accounts can do this
    as can yank the model.
    """
