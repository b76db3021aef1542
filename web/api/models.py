"""Models: search, files, comparison, lineage, editing, yanking and versions."""

from __future__ import annotations

from flask import request

from organs.ingest.contributions.manifest import read_edits
from organs.ingest.service import publish_model
from organs.registry.catalog.queries.model_lists import (
    VERSIONS_MAX,
    descendants_page,
    model_summaries,
    published_model,
    versions,
)
from organs.registry.catalog.queries.model_names import (
    OWN_STATES,
    model_by_digest,
    model_by_name,
    model_with_header,
    models_by_name,
)
from organs.registry.catalog.queries.organs import organ_page_of_model
from organs.registry.catalog.records import Edits
from organs.registry.catalog.register.model_changes import edit_model, hide_model
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import parse_digest, parse_prefix
from organs.registry.entities.comparison import Comparison
from organs.registry.entities.job import Job, ModelRequest
from organs.registry.entities.lineage import FamilyPage, ModelLineage
from organs.registry.entities.model import Model, ModelPage, ModelSummary
from organs.registry.entities.organ import OrganPage
from organs.registry.entities.published import (
    VERSION_MAX,
    DescendantPage,
    ModelEditRequest,
    ModelVersions,
    PublishedModel,
    RestoreRequest,
    YankRequest,
)
from organs.registry.errors import BadRequest, NotFound
from organs.registry.models import model_page
from organs.registry.names import ModelName, parse_model_name
from organs.registry.relatives import resolve_declared
from organs.registry.relatives.comparison import PAGE_TENSORS_MAX, compare_registered
from organs.registry.relatives.families import FAMILIES_DEFAULT, FAMILIES_MAX, families, family_of
from organs.registry.relatives.lineage import lineage_of
from organs.registry.search.language import MODELS
from organs.registry.search.models import search_models
from organs.web.api.operation import ACCEPTED, ROOT, checked, json_body, operation, queued, read_body, writing_operation
from organs.web.auth import ANY
from organs.web.params import (
    AFTER,
    FAMILIES,
    FIRST,
    HEADER,
    LIMIT,
    MODEL_DIGEST,
    MODEL_QUERY,
    NAME,
    NAMESPACE,
    OF_MODEL,
    PLACE,
    RANKED,
    SECOND,
    addressed_model,
    requested_limit,
    requested_page,
    requested_place,
    requested_query,
    requested_switch,
)
from organs.web.permissions import (
    is_shown_all,
    known_model,
    may_see_storage,
    model_to_edit,
    model_to_restore,
    model_to_yank,
    user_name,
)
from organs.web.responses import (
    registry,
    searching,
)

GROUP = "Models"
EXAMPLE = "local/Zoo-A-2M-v1.0-Q8_0"


@operation(
    GROUP, "/models", "Search models", MODEL_QUERY, LIMIT, AFTER, RANKED, example=f"{ROOT}/models?ranked=1&limit=2"
)
def models() -> ModelPage:
    """Return the models that match a query, newest first unless the query sorts."""
    ranked = requested_switch("ranked")
    query = requested_query(MODELS, "-theta" if ranked else None)
    with searching() as session:
        return search_models(session, query, *requested_page(), ranked=ranked)


@operation(
    GROUP,
    "/models/lookup",
    "Get the model with a digest",
    MODEL_DIGEST,
    example=f"{ROOT}/models/lookup?digest=75ae85f27135e26b",
    refusals=(404, 409),
)
def model_lookup() -> ModelSummary:
    """Return the oldest model whose bytes, file or lock have this digest, or a digest that begins with it. 409 if
    several models match.
    """
    prefix = checked(parse_prefix, request.args.get("digest", ""), "digest")
    with searching() as session:
        row = model_by_digest(session, prefix)
        return model_summaries(session, [row])[0]


@operation(GROUP, "/headers/{header}", "Get the model with a header", HEADER, refusals=(404,))
def header(header: str) -> ModelSummary:
    """Return the oldest model whose first file begins with this header. A lock names the header; with that file and the
    organs of the lock, anybody can make the file of the lock.
    """
    digest = checked(parse_digest, header, "header")
    with searching() as session:
        row = model_with_header(session, digest)
        if row is None:
            raise NotFound(f"no model in this registry has the header {digest[:12]}")
        return model_summaries(session, [row])[0]


@operation(GROUP, "/models/{namespace}/{name}", "One model", NAMESPACE, NAME, refusals=(404, 410))
def model(namespace: str, name: str) -> Model:
    """Return a model with its metadata, types, files and lineage. Another operation lists its organs."""
    with searching() as session:
        return model_page(session, addressed_model(session, namespace, name), shows_storage=may_see_storage())


@operation(
    GROUP,
    "/models/{namespace}/{name}/organs",
    "List the organs of a model",
    NAMESPACE,
    NAME,
    LIMIT,
    AFTER,
    example=f"{ROOT}/models/{EXAMPLE}/organs?limit=2",
    refusals=(404, 410),
)
def model_organs(namespace: str, name: str) -> OrganPage:
    """Return the organs of a model with their places, in the order of its files."""
    with searching() as session:
        return organ_page_of_model(session, addressed_model(session, namespace, name), *requested_page())


@operation(
    GROUP, "/models/{namespace}/{name}/lineage", "Get the lineage of a model", NAMESPACE, NAME, refusals=(404, 410)
)
def model_lineage(namespace: str, name: str) -> ModelLineage:
    """Return the relatives of a model, as declared, recorded or measured, and the contradictions between them."""
    with searching() as session:
        return lineage_of(session, addressed_model(session, namespace, name))


@operation(
    GROUP,
    "/families",
    "List families of models",
    OF_MODEL,
    FAMILIES,
    PLACE,
    example=f"{ROOT}/families?limit=1",
    refusals=(404, 410),
)
def model_families() -> FamilyPage:
    """Return families of models that descend from each other or have similar weights, the largest family first; with
    `model`, only the family of that model, even if it has no other member. A family has at most 60 members: those with
    the most edges.
    """
    limit, first = requested_limit(FAMILIES_DEFAULT, FAMILIES_MAX), requested_place()
    name = _requested_model("model") if "model" in request.args else None
    with searching() as session:
        if name is None:
            return families(session, first, limit)
        return FamilyPage(items=(family_of(session, model_by_name(session, name)),), next=None, count=1)


@writing_operation(
    GROUP,
    "/measurements",
    "Measure a model again",
    status=ACCEPTED,
    body=ModelRequest,
    example=f'{{"model": "{EXAMPLE}"}}',
    refusals=(404, 410),
)
def measure() -> Job:
    """Start a job that measures every organ of a model again from its stored bytes. The result has the new values, and
    the largest difference of each measure from the recorded value. The recorded values do not change.
    """
    return queued("measure", json_body(ModelRequest))


@writing_operation(
    GROUP,
    "/extractions",
    "Extract a model into an organ directory",
    status=ACCEPTED,
    body=ModelRequest,
    example=f'{{"model": "{EXAMPLE}"}}',
    refusals=(404, 410),
)
def extract() -> Job:
    """Start a job that writes an organ directory of a model as one uncompressed tar. Its address is
    `/jobs/<job>/files/<file>`, where `file` is in the result of the job; it is kept for one day.
    """
    return queued("extract", json_body(ModelRequest))


@operation(
    GROUP,
    "/compare",
    "Compare two models",
    FIRST,
    SECOND,
    example=f"{ROOT}/compare?first={EXAMPLE}&second=local/Zoo-A-2M-Prose-v1.0-Q8_0",
    refusals=(404, 410),
)
def compare() -> Comparison:
    """Return the likeness of two models at equal places, as a whole and by type, block and organ, and their other
    differences.
    """
    first, second = _requested_model("first"), _requested_model("second")
    with searching() as session:
        own, other = models_by_name(session, (first, second))
        return compare_registered(session, own, other, PAGE_TENSORS_MAX)[0]


def _requested_model(parameter: str) -> ModelName:
    """Return the model name in that parameter. Raises BadRequest."""
    text = request.args.get(parameter)
    if not text:
        raise BadRequest(parameter, f"{parameter} is missing: the name of a model, namespace/name.")
    return checked(parse_model_name, text, parameter)


_MODEL = "/models/{namespace}/{name}"


@operation(GROUP, f"{_MODEL}/versions", "List the versions of a model", NAMESPACE, NAME, refusals=(404, 410))
def model_versions(namespace: str, name: str) -> ModelVersions:
    """Return the newest 100 versions, each with its differences from the version before it. Yanked versions are listed
    with the reason; removed versions are not listed. Only their contributor sees versions that are held for review.
    """
    states = OWN_STATES if is_shown_all(namespace) else REACHABLE_STATES
    with searching() as session:
        model = known_model(session, _name(namespace, name))
        return versions(session, model, states, VERSIONS_MAX)


@operation(
    GROUP,
    f"{_MODEL}/descendants",
    "List chimeras that use a model",
    NAMESPACE,
    NAME,
    LIMIT,
    AFTER,
    example=f"{ROOT}/models/local/Zoo-A-2M-v1.0-F16/descendants?limit=1",
    refusals=(404, 410),
)
def model_descendants(namespace: str, name: str) -> DescendantPage:
    """Return the chimeras that use the model as their base or as a donor, newest first."""
    with searching() as session:
        return descendants_page(session, addressed_model(session, namespace, name), *requested_page())


@writing_operation(
    GROUP,
    _MODEL,
    "Edit a model",
    NAMESPACE,
    NAME,
    method="patch",
    body=ModelEditRequest,
    example='{"tags": ["letters"], "license": "apache-2.0"}',
    refusals=(404, 409, 410),
)
def edit(namespace: str, name: str) -> PublishedModel:
    """Change the title, description, license, tags or base of one of your own models. Its bytes never change. `errors`
    names each field that is not valid. A base replaces the base that the file declares.
    """
    edit_request = json_body(ModelEditRequest)
    edits, wrong = read_edits(edit_request)
    if wrong:
        raise BadRequest(*wrong[0], more=wrong[1:])
    return change_model(_name(namespace, name, edit_request.get("version")), edits)


def change_model(name: ModelName, edits: Edits) -> PublishedModel:
    """Change the description of a model of the user. Raises NotFound, NotAllowed; Conflict for itself as base."""
    with registry().catalog.writing() as session:
        model = model_to_edit(session, name)
        edit_model(session, model, edits, user_name())
        if model.state == "visible":
            resolve_declared(session, model)
        return published_model(session, model)


@writing_operation(
    GROUP,
    f"{_MODEL}/yank",
    "Yank a model",
    NAMESPACE,
    NAME,
    body=YankRequest,
    example='{"reason": "Its tokenizer was the wrong one."}',
    refusals=(404, 409, 410),
    scope=ANY,
)
def yank(namespace: str, name: str) -> PublishedModel:
    """Hide a model from searches, rankings and lists. It can still be downloaded by its exact name or digest, which
    also shows the reason. With the scope `upload` you can yank your own models, with `admin` all models.
    """
    body = read_body(YankRequest)
    return yank_model(_name(namespace, name, body.version), body.reason)


def yank_model(name: ModelName, reason: str) -> PublishedModel:
    """Hide a model from searches, rankings and lists. Raises NotFound, NotAllowed, Conflict, BadValue."""
    with registry().catalog.writing() as session:
        model = model_to_yank(session, name)
        hide_model(session, model, "yanked", reason, user_name())
        return published_model(session, model)


@writing_operation(
    GROUP,
    f"{_MODEL}/restore",
    "Restore a yanked model",
    NAMESPACE,
    NAME,
    body=RestoreRequest,
    example="{}",
    refusals=(404, 409, 410),
    scope=ANY,
)
def restore(namespace: str, name: str) -> PublishedModel:
    """Show a yanked model in searches and lists again; a visible model does not change. The same accounts can do this
    as can yank the model.
    """
    return restore_model(_name(namespace, name, read_body(RestoreRequest).version))


def restore_model(name: ModelName) -> PublishedModel:
    """Show a yanked model in searches, rankings and lists again. Raises NotFound, NotAllowed, Conflict."""
    with registry().catalog.writing() as session:
        model = model_to_restore(session, name)
        publish_model(session, model, user_name())
        return published_model(session, model)


def _name(namespace: str, name: str, version: object = None) -> ModelName:
    """Return the name in the address, with the version of the body if there is one. Raises BadName, BadRequest."""
    parsed = parse_model_name(f"{namespace}/{name}")
    if version is None:
        return parsed
    if type(version) is not int or not 1 <= version <= VERSION_MAX:
        raise BadRequest("version", f"version must be a whole number from 1 to {VERSION_MAX}.")
    if parsed.version not in (None, version):
        raise BadRequest("version", "The address names another version than the body.")
    return ModelName(parsed.namespace, parsed.name, version)
