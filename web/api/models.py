"""Models: search, files, comparison, lineage, editing, yanking and versions."""

from __future__ import annotations

from collections.abc import Mapping

from flask import request
from sqlalchemy.orm import Session

from organs.ingest.card_images import CardImageBytes, change_with_images, checked_image
from organs.ingest.contributions.manifest import read_edits
from organs.ingest.service import publish_model
from organs.registry.card_text import image_names
from organs.registry.catalog.queries.accounts import check_model_fits
from organs.registry.catalog.queries.card_images import card_images
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
from organs.registry.catalog.queries.sizes import size_curve
from organs.registry.catalog.records import Edits
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.model_changes import edit_model, hide_model
from organs.registry.catalog.tables import ContributorRow, ModelRow
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import digest_of, parse_digest, parse_prefix
from organs.registry.endpoints import models as endpoints
from organs.registry.endpoints.declaration import Values
from organs.registry.entities.comparison import Comparison
from organs.registry.entities.job import Job, ModelRequest
from organs.registry.entities.lineage import FamilyPage, ModelLineage
from organs.registry.entities.model import Model, ModelPage, ModelSummary
from organs.registry.entities.organ import OrganPage
from organs.registry.entities.published import (
    VERSION_MAX,
    CardImage,
    DescendantPage,
    ModelVersions,
    PublishedModel,
    RestoreRequest,
    YankRequest,
)
from organs.registry.entities.sizes import SizeCurve
from organs.registry.errors import BadImage, BadInput, BadRequest, NotFound
from organs.registry.models import model_page
from organs.registry.names import ModelName, parse_model_name
from organs.registry.relatives import resolve_declared
from organs.registry.relatives.comparison import PAGE_TENSORS_MAX, compare_registered
from organs.registry.relatives.families import families, family_of
from organs.registry.relatives.lineage import lineage_of
from organs.registry.search.language import MODELS, parse_query
from organs.registry.search.models import search_models
from organs.registry.upload_limits import CARD_IMAGE_MAX_BYTES
from organs.web.api.operation import checked, queued, serves
from organs.web.api.uploads import current_contributor_id, length_of_bytes, receiving
from organs.web.params import addressed_model
from organs.web.permissions import (
    is_shown_all,
    known_model,
    may_see_storage,
    model_to_edit,
    model_to_restore,
    model_to_yank,
    user_name,
)
from organs.web.responses import reading, registry, searching


@serves(endpoints.models)
def models(q: str, limit: int, after: str | None, ranked: bool) -> ModelPage:
    query = parse_query(q, MODELS, "-theta" if ranked else None)
    with searching() as session:
        return search_models(session, query, limit, after, ranked=ranked)


@serves(endpoints.model_lookup)
def model_lookup(digest: str) -> ModelSummary:
    prefix = checked(parse_prefix, digest, "digest")
    with searching() as session:
        row = model_by_digest(session, prefix)
        return model_summaries(session, [row])[0]


@serves(endpoints.header)
def header(header: str) -> ModelSummary:
    digest = checked(parse_digest, header, "header")
    with searching() as session:
        row = model_with_header(session, digest)
        if row is None:
            raise NotFound(f"no model in this registry has the header {digest[:12]}")
        return model_summaries(session, [row])[0]


@serves(endpoints.model)
def model(namespace: str, name: str) -> Model:
    with searching() as session:
        return model_page(session, addressed_model(session, namespace, name), shows_storage=may_see_storage())


@serves(endpoints.model_organs)
def model_organs(namespace: str, name: str, limit: int, after: str | None) -> OrganPage:
    with searching() as session:
        return organ_page_of_model(session, addressed_model(session, namespace, name), limit, after)


@serves(endpoints.model_lineage)
def model_lineage(namespace: str, name: str) -> ModelLineage:
    with searching() as session:
        return lineage_of(session, addressed_model(session, namespace, name))


@serves(endpoints.model_sizes)
def model_sizes(namespace: str, name: str) -> SizeCurve:
    with searching() as session:
        return size_curve(session, addressed_model(session, namespace, name))


@serves(endpoints.model_families)
def model_families(model: str | None, limit: int, after: int) -> FamilyPage:
    name = None if model is None else checked(parse_model_name, model, "model")
    with searching() as session:
        if name is None:
            return families(session, after, limit)
        return FamilyPage(items=(family_of(session, model_by_name(session, name)),), next=None, count=1)


@serves(endpoints.measure)
def measure(body: ModelRequest) -> Job:
    return queued("measure", body)


@serves(endpoints.extract)
def extract(body: ModelRequest) -> Job:
    return queued("extract", body)


@serves(endpoints.compare)
def compare(first: str, second: str) -> Comparison:
    names = (checked(parse_model_name, first, "first"), checked(parse_model_name, second, "second"))
    with searching() as session:
        own, other = models_by_name(session, names)
        return compare_registered(session, own, other, PAGE_TENSORS_MAX)[0]


@serves(endpoints.model_versions)
def model_versions(namespace: str, name: str) -> ModelVersions:
    states = OWN_STATES if is_shown_all(namespace) else REACHABLE_STATES
    with searching() as session:
        model = known_model(session, _name(namespace, name))
        return versions(session, model, states, VERSIONS_MAX)


@serves(endpoints.model_descendants)
def model_descendants(namespace: str, name: str, limit: int, after: str | None) -> DescendantPage:
    with searching() as session:
        return descendants_page(session, addressed_model(session, namespace, name), limit, after)


@serves(endpoints.edit)
def edit(namespace: str, name: str, body: Values) -> PublishedModel:
    edits, wrong = read_edits(body)
    if wrong:
        raise BadRequest(*wrong[0], more=wrong[1:])
    return change_card(_name(namespace, name, body.get("version")), edits, {})


@serves(endpoints.send_image)
def send_image(namespace: str, name: str, image: str) -> CardImage:
    length = length_of_bytes("An image", CARD_IMAGE_MAX_BYTES)
    with reading() as session:
        model = model_to_edit(session, _name(namespace, name))  # refuses it before the body is read
        full_name = parse_model_name(model.full_name)
        if image not in image_names(model.description or ""):
            raise BadImage(f"the description of {model.full_name} shows no image {image!r}")
    with receiving(current_contributor_id()):
        request.max_content_length = CARD_IMAGE_MAX_BYTES
        data = request.get_data(cache=False)
        if len(data) != length:
            raise BadInput(f"the body ended {length - len(data):,} bytes too early")
        checked_by_program = checked_image(image, data, required=registry().settings.requires_sandbox)
    change_card(full_name, Edits(), {image: checked_by_program})
    # It is not read back: an edit after this one may have removed it.
    return CardImage(
        name=image,
        digest=digest_of(checked_by_program.data),
        format=checked_by_program.format,
        width=checked_by_program.width,
        height=checked_by_program.height,
        size_bytes=len(checked_by_program.data),
    )


def change_card(name: ModelName, edits: Edits, images: Mapping[str, CardImageBytes]) -> PublishedModel:
    """Change the description of a model of the user, and give it images that its description then shows.

    Raises NotFound, NotAllowed, BadImage, OverQuota; Conflict for itself as base.
    """

    def change(session: Session) -> ModelRow:
        model = model_to_edit(session, name)
        edit_model(session, model, edits, user_name())
        if model.state == "visible":
            resolve_declared(session, model)
        owner = session.get_one(ContributorRow, model.contributor_id, with_for_update=bool(images))
        replaced = [image.size_bytes for image in card_images(session, model.id) if image.name in images]
        more_bytes = sum(len(image.data) for image in images.values()) - sum(replaced)
        if more_bytes > 0 and owner.name != LOCAL:
            quota_bytes = registry().settings.quota_bytes
            check_model_fits(session, owner, quota_bytes, more_bytes, subject="the images add")
        return model

    change_with_images(registry(), change, images, user_name())
    with reading() as session:
        return published_model(session, model_to_edit(session, name))


@serves(endpoints.yank)
def yank(namespace: str, name: str, body: YankRequest) -> PublishedModel:
    return yank_model(_name(namespace, name, body.version), body.reason)


def yank_model(name: ModelName, reason: str) -> PublishedModel:
    """Hide a model from searches, rankings and lists. Raises NotFound, NotAllowed, Conflict, BadValue."""
    with registry().catalog.writing() as session:
        model = model_to_yank(session, name)
        hide_model(session, model, "yanked", reason, user_name())
        return published_model(session, model)


@serves(endpoints.restore)
def restore(namespace: str, name: str, body: RestoreRequest) -> PublishedModel:
    return restore_model(_name(namespace, name, body.version))


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
