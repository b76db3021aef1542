"""One model: its card, its anatomy, its verdict and recipe if it is a chimera, its lineage and files; its forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from statistics import fmean

from flask import current_app, redirect, request, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from organs.ingest.card_images import CardImageBytes, checked_image
from organs.ingest.contributions.manifest import FIELDS, read_edits
from organs.ingest.tools.ollama_image import has_image
from organs.registry.anatomy import Slot
from organs.registry.card_text import image_names
from organs.registry.catalog import tables
from organs.registry.catalog.queries.card_images import card_images
from organs.registry.catalog.queries.evolutions import evolution_of_winner
from organs.registry.catalog.queries.model_lists import descendants_page, published_model, versions
from organs.registry.catalog.queries.model_names import model_by_name, model_by_text
from organs.registry.catalog.queries.organs import organs_of_model
from organs.registry.catalog.vocabulary import CHIMERA, REACHABLE_STATES
from organs.registry.compose.chimeras import chimera_by_lock, chimera_of_model
from organs.registry.entities.chimera import Chimera
from organs.registry.entities.comparison import OrganChange
from organs.registry.entities.lineage import merged_edges
from organs.registry.entities.model import Model
from organs.registry.entities.organ import COLUMNS, PlacedOrgan
from organs.registry.entities.published import PublishedModel
from organs.registry.entities.validation import TYPICAL
from organs.registry.errors import BadImage, BadQuery, Conflict, Incomplete, NotFound, OverQuota
from organs.registry.gguf import dtype_by_name
from organs.registry.models import model_page
from organs.registry.names import parse_model_name
from organs.registry.relatives.comparison import PAGE_TENSORS_MAX, organ_changes, registered_model
from organs.registry.upload_limits import CARD_IMAGE_MAX_BYTES, CARD_IMAGES_MAX, CARD_IMAGES_MAX_BYTES
from organs.web.api import models as api
from organs.web.api.uploads import current_contributor_id, receiving
from organs.web.auth import ANY, need
from organs.web.downloads import public_names
from organs.web.error_pages import sentence_of
from organs.web.file_responses import attachment
from organs.web.pages.anatomy import READINGS, acts_text, anatomy
from organs.web.pages.charts import depth_shown
from organs.web.pages.chimeras import chimera_context, donor_marks, former_blocks
from organs.web.pages.jobs import active_validations
from organs.web.pages.model_actions import actions_of, closest_relatives, heading_of, what_would_fit
from organs.web.pages.routes import Context, Sheet, WebPage, canonical_model, paged, pages, sheet_of, writing_form
from organs.web.pages.sizes import WrongSizeForm, is_rounded_twice, queue_size, sizes_shown
from organs.web.pages.try_it import try_context
from organs.web.params import addressed_model, requested_choice
from organs.web.permissions import (
    log_in_first,
    may_edit,
    may_see_jobs,
    may_see_storage,
    may_yank,
    model_to_edit,
    whose_jobs,
)
from organs.web.responses import conditional, model_address, plain_page, registry, searching, with_parameters
from organs.web.security import BODY_MAX_BYTES

METADATA_SHOWN = 400
VERSIONS_SHOWN = DESCENDANTS_SHOWN = 20
HAS_BILLS = find_spec("cyclonedx") is not None
"""Whether the extra `sbom` is installed."""
SBOM_TYPE = "application/vnd.cyclonedx+json"
BILL_MODELS_MAX = 100
"""The most models in a bill of materials that the server makes."""
LINEAGE_SHOWN = 6
"""Relatives that are shown before the rest is opened."""


@paged("/models/<namespace>/<name>", csv=True, api="model")
def model(namespace: str, name: str) -> WebPage:
    """Show the model of that name. `by` is the reading that colours cells; `against` is the model to compare with."""
    try:
        return _model_page(namespace, name)
    except Incomplete as error:
        if not plain_page():
            raise
        context = {"name": error.name, "shards": error.shards, "missing": error.missing, "sentence": str(error)}
        return WebPage("incomplete.html", context, status=Incomplete.status)


@pages.get("/models/<short>")
def short_name(short: str) -> Response:
    """Redirect from a name without its namespace, such as `zoo:latest`, to the page of the model."""
    with searching() as session:
        model = canonical_model(session, short)
    name = model.full_name if "@" in short else f"{model.namespace}/{model.name}"
    return redirect(with_parameters(model_address(name), request.args.to_dict()))


@pages.get("/models/<namespace>/<name>/sbom.json")
def bill(namespace: str, name: str) -> Response:
    """Send the bill of materials of a model as CycloneDX. Raises TooSlow."""
    if not HAS_BILLS:
        raise NotFound("this server makes no bills of materials: it is installed without the extra sbom")
    from organs.registry.sbom import bill_of_materials

    with searching() as session:
        row = addressed_model(session, namespace, name)
        text = bill_of_materials(_ReadModels(session), row.full_name, BILL_MODELS_MAX)
    answer = current_app.response_class(text, mimetype=SBOM_TYPE)
    answer.headers["Content-Disposition"] = attachment(f"{row.name}.cdx.json")
    return conditional(answer)


class _ReadModels:
    """The models that everybody may read, in one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def model(self, name: str) -> Model:
        """Return a model without its stored sizes."""
        return model_page(self._session, model_by_text(self._session, name))

    def chimera(self, lock: str) -> Chimera:
        """Return the chimera of a lock."""
        return chimera_by_lock(self._session, lock)


def _model_page(namespace: str, name: str, wrong: Mapping[str, str] | None = None, status: int = 200) -> WebPage:
    """Return the page of a model; `wrong` has the sentences about the form for a size that was sent."""
    requested = requested_choice("by", tuple(READINGS)) if request.args.get("by") else None
    with searching() as session:
        row = canonical_model(session, f"{namespace}/{name}")
        page = model_page(session, row, shows_storage=may_see_storage())
        organs = organs_of_model(session, row, PAGE_TENSORS_MAX)
        left_out = row.tensors - len(organs)
        chimera = chimera_of_model(session, row)
        others = versions(session, row, REACHABLE_STATES, VERSIONS_SHOWN)
        newest = next((version.name for version in others.items if version.state == "visible"), None)
        compared_with = None if left_out else model_to_compare(session, page)
        possible = {"donor": chimera is not None, "change": compared_with is not None}
        readings = [reading for reading in READINGS if possible.get(reading, True)]
        parents = {edge.model for edge in page.lineage if edge.direction == "parent"}
        if compared_with is not None and compared_with not in parents and "against" not in request.args:
            readings.sort(key="change".__eq__)
        by = requested if requested in readings else readings[0]
        changes = changes_against(session, row, compared_with) if by == "change" and compared_with else {}
        jobs = active_validations(session, row.full_name) if chimera else ()
        may_see = chimera is not None and may_see_jobs()
        evolution_number = evolution_of_winner(session, row.id, whose_jobs()) if may_see else None
        is_image = page.kind == "adapter" and has_image(session, row)
        descendants = descendants_page(session, row, DESCENDANTS_SHOWN).items
        sizes = sizes_shown(session, row, page, wrong)
        tried = try_context(session, row)

    def context() -> Context:
        against = {"against": request.args["against"]} if request.args.get("against") else {}
        return {
            "organs": organs,
            "organs_left_out": left_out,
            "compared_with": compared_with,
            "versions": others.items,
            "versions_left_out": others.left_out,
            "newest": newest,
            "descendants": descendants,
            "by_label": READINGS[by],
            "is_compared": by == "change",
            "is_theta": by == "theta",
            "choices": [
                {
                    "label": READINGS[reading],
                    "chosen": reading == by,
                    "address": model_address(page.name, by=reading, **against),
                }
                for reading in readings
            ],
            "grid": anatomy(organs, by, changes, donor_marks(chimera), former_blocks(chimera)),
            **chimera_context(chimera, jobs),
            "evolution_number": evolution_number,
            **sizes,
            **tried,
            **_card(page, organs, is_newest=newest == page.name, is_image=is_image),
            **({} if left_out or by != "theta" else depth_shown(page.name, organs)),
        }

    def sheet() -> Sheet:
        if left_out:
            tensors = f"{page.tensors:,}"
            reason = f"it has {tensors} tensors, and a CSV has at most {PAGE_TENSORS_MAX:,}; the API lists all in pages"
            raise BadQuery(page.name, reason)
        return sheet_of(COLUMNS, organs)

    return WebPage("model.html", context, sheet, status=status)


def model_to_compare(session: Session, model: Model) -> str | None:
    """Return the name of the requested model, else of a registered parent, else of the closest relative, else None."""
    requested = request.args.get("against")
    if requested:
        return model_by_name(session, parse_model_name(requested)).full_name
    if model.kind not in ("model", CHIMERA):
        return None  # the weights of an adapter are not similar to the weights that it changes
    registered = [edge for edge in model.lineage if edge.model is not None]
    parents = [edge.model for edge in registered if edge.direction == "parent"]
    relatives = [edge.model for edge in registered if edge.direction == "relative"]
    return next(iter([*parents, *relatives]), None)


def changes_against(session: Session, row: tables.ModelRow, against: str) -> dict[Slot, OrganChange]:
    """Return how the organs of the model differ from those of `against`."""
    other = model_by_name(session, parse_model_name(against))
    return organ_changes(*(registered_model(session, model_row, PAGE_TENSORS_MAX) for model_row in (other, row)))


def _card(model: Model, organs: Sequence[PlacedOrgan], *, is_newest: bool, is_image: bool) -> Context:
    """Return the texts, links and commands of a model.

    `is_newest` says whether it is the newest visible version, `is_image` whether Ollama can pull it as an adapter.
    """
    bases = [edge for edge in model.lineage if (edge.direction, edge.evidence) == ("parent", "declared")]
    # Norms would dominate the mean over all organs, although they have few values.
    thetas = [organ.theta for organ in organs if organ.spectral_signal is not None and organ.theta is not None]
    names = public_names([file.name for file in model.files])
    files = {name: model_address(model.name, "downloads.file_of_model", file=name) for name in names}
    namespace = model.name.partition("/")[0]
    lineage = merged_edges(model.lineage)
    can_run = not any(dtype_by_name(organ.dtype).is_foreign for organ in organs)
    closest = closest_relatives(model, lineage)
    return {
        "model": model,
        "heading": heading_of(model),
        "typical_divergences": TYPICAL,
        "picture": model_address(model.name, "pages.model_picture", form="png"),
        "matrix_theta": fmean(thetas) if thetas else None,
        "actions": actions_of(model, bases, lineage, is_newest=is_newest, is_image=is_image, can_run=can_run),
        "files_shown": [
            {"file": file, "address": None if model.unassemblable else files[name]}
            for name, file in zip(names, model.files, strict=True)
        ],
        "parents": [] if model.composed else bases,
        "lineage": lineage,
        "lineage_shown": LINEAGE_SHOWN,
        "closest": closest,
        "fitting": [] if any(relative["mix"] for relative in closest) else what_would_fit(model),
        "acts_text": acts_text,
        "may_edit": may_edit(namespace),
        "may_yank": may_yank(namespace),
        "csv": model_address(model.name, "pages.model_csv"),
        "bill": model_address(model.name, "pages.bill") if HAS_BILLS else None,
        "report_address": model_address(model.name, "pages.dissection"),
        "lineage_address": url_for("pages.lineage", model=model.name),
        "compare_endpoint": "pages.compare",
        "metadata_shown": model.metadata[:METADATA_SHOWN],
    }


TAGS_SEPARATOR = ","


@paged("/models/<namespace>/<name>/edit")
def model_edit(namespace: str, name: str) -> WebPage:
    """Show the form that edits the description of a model. Without an account, redirect to the log-in."""
    log_in_first()
    need(ANY)
    with searching() as session:
        row = model_to_edit(session, parse_model_name(f"{namespace}/{name}"))
        published, images = published_model(session, row), card_images(session, row.id)
    context = {"model": published, "stated": _description_context(published), "images": images, "wrong": {}}
    return WebPage("edit.html", context, body=published)


@writing_form("/models/<namespace>/<name>/edit", files_max_bytes=CARD_IMAGES_MAX_BYTES)
def save_model(namespace: str, name: str) -> str | WebPage:
    """Save the description and show the model. If a field is not valid, show the form again with the errors."""
    typed = {field: request.form[field] for field in FIELDS if field in request.form}
    values: Context = dict(typed)
    if "tags" in typed:
        values["tags"] = [tag for tag in map(str.strip, typed["tags"].split(TAGS_SEPARATOR)) if tag]
    edits, wrong = read_edits(values)
    with searching() as session:
        row = model_to_edit(session, parse_model_name(f"{namespace}/{name}"))
        before, stored = published_model(session, row), card_images(session, row.id)
    images: dict[str, CardImageBytes] = {}
    if not wrong:
        try:
            images = _sent_images(before.description if edits.description is None else edits.description)
        except BadImage as error:
            wrong.append(("images", sentence_of(error, capital=True)))
    if not wrong:
        try:
            api.change_card(parse_model_name(before.name), edits, images)  # this version, also if a newer one appears
        except (BadImage, OverQuota) as error:
            wrong.append(("images", sentence_of(error, capital=True)))
        except Conflict as error:  # the model would be its own base, which only the registry can check
            wrong.append(("base", sentence_of(error, capital=True)))
    if wrong:
        stated = _description_context(before) | typed
        context = {"model": before, "stated": stated, "images": stored, "wrong": dict(wrong)}
        return WebPage("edit.html", context, status=400)
    return model_address(before.name)


def _sent_images(description: str | None) -> dict[str, CardImageBytes]:
    """Return the images in the form by the names in `description`; browsers send names of files without their folders.

    Raises BadImage.
    """
    sent, names = [file for file in request.files.getlist("images") if file.filename], image_names(description or "")
    if len(sent) > CARD_IMAGES_MAX:
        raise BadImage(f"{len(sent)} images; a card has at most {CARD_IMAGES_MAX}")
    images: dict[str, CardImageBytes] = {}
    is_held = not sent or (request.content_length or 0) > BODY_MAX_BYTES
    with nullcontext() if is_held else receiving(current_contributor_id()):
        for file in sent:
            own = (file.filename or "").replace("\\", "/").rpartition("/")[2]
            named = [name for name in names if name.rpartition("/")[2] == own]
            if not named:
                raise BadImage(f"the description shows no image {own[:80]!r}: write ![what it shows](its name) there")
            data = file.stream.read(CARD_IMAGE_MAX_BYTES + 1)
            image = checked_image(own, data, required=registry().settings.requires_sandbox)
            images |= dict.fromkeys(named, image)
    return images


@writing_form("/models/<namespace>/<name>/sizes")
def make_size(namespace: str, name: str) -> str | WebPage:
    """Queue the job that makes the size in the form, and show the model, which links to the job; or the form again."""
    with searching() as session:
        row = addressed_model(session, namespace, name)
        model_name, is_rounded = row.full_name, is_rounded_twice(session, row)
    try:
        queue_size(model_name, is_rounded=is_rounded)
    except WrongSizeForm as error:
        owner, _, own_name = model_name.partition("/")
        return _model_page(owner, own_name, error.wrong, error.status)
    return f"{model_address(model_name)}#sizes"


@writing_form("/models/<namespace>/<name>/yank", scope=ANY)
def yank_model(namespace: str, name: str) -> str:
    """Hide the model from searches, rankings and lists, with the reason in the form."""
    yanked = api.yank_model(parse_model_name(f"{namespace}/{name}"), request.form.get("reason", ""))
    return model_address(yanked.name)


@writing_form("/models/<namespace>/<name>/restore", scope=ANY)
def restore_model(namespace: str, name: str) -> str:
    """Show a yanked model in searches, rankings and lists again."""
    return model_address(api.restore_model(parse_model_name(f"{namespace}/{name}")).name)


def _description_context(model: PublishedModel) -> Context:
    """Return the values of the fields of the form."""
    texts = {field: getattr(model, field) or "" for field in FIELDS if field != "tags"}
    return texts | {"tags": f"{TAGS_SEPARATOR} ".join(model.tags)}
