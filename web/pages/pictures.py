"""Pictures of models and chimeras at addresses of their own, as SVG and PNG, to send around."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flask import Response, current_app, request
from sqlalchemy.orm import Session

from organs.registry.amounts import count_text, size_text
from organs.registry.catalog import tables
from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.queries.organs import organs_of_model
from organs.registry.compose.chimeras import chimera_of_model
from organs.registry.entities.chimera import Chimera
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import BadQuery
from organs.registry.models import model_page
from organs.registry.relatives.comparison import PAGE_TENSORS_MAX
from organs.web.charts.picture import PictureParent, PictureTexts, picture, tone
from organs.web.pages.anatomy import LegendLine, can_be_drawn, legend, marks, tones
from organs.web.pages.charts import svg_answer
from organs.web.pages.model import changes_against, model_to_compare
from organs.web.pages.routes import pages
from organs.web.params import addressed_model
from organs.web.responses import conditional, model_address, searching
from organs.web.security import is_served
from organs.web.settings import LOOPBACK_HOSTS


@pages.get("/models/<namespace>/<name>/picture.svg", defaults={"form": "svg"})
@pages.get("/models/<namespace>/<name>/picture.png", defaults={"form": "png"})
def model_picture(namespace: str, name: str, form: str) -> Response:
    """Send the picture of a model: coloured by donor for a chimera, else by the change against its base."""
    return _answer(lambda session: addressed_model(session, namespace, name), form)


@pages.get("/chimeras/<lock>/picture.svg", defaults={"form": "svg"})
@pages.get("/chimeras/<lock>/picture.png", defaults={"form": "png"})
def chimera_picture(lock: str, form: str) -> Response:
    """Send the picture of a chimera."""
    return _answer(lambda session: chimeras_by_lock(session, lock)[0], form)


def _answer(find: Callable[[Session], tables.ModelRow], form: str) -> Response:
    if request.args:  # each query would be an answer of its own in the cache
        raise BadQuery("picture", "a picture has no parameters")
    with searching() as session:
        row = find(session)
        organs = organs_of_model(session, row, PAGE_TENSORS_MAX) if row.tensors <= PAGE_TENSORS_MAX else ()
        organs = organs if can_be_drawn(organs) else ()
        chimera = chimera_of_model(session, row)
        if chimera is not None:
            lines = legend(chimera.parts, chimera.parents[0].model)
            donors = marks(chimera.parts, lines)
            colours = tones(organs, "donor", {}, donors)
            letters = {name: line.mark for name, line in donors.items()}
            facts = _chimera_texts(chimera, lines)
        else:
            facts, colours = _model_texts(session, row, organs)
            letters = {}
    body = picture(form, facts, organs, lambda organ: tone(colours[organ.name]), letters)
    if form == "svg":
        return svg_answer(body)
    return conditional(current_app.response_class(body, mimetype="image/png"))


def _chimera_texts(chimera: Chimera, lines: Sequence[LegendLine]) -> PictureTexts:
    figure, remark = _result(chimera)
    base = chimera.parents[0].model
    parents = [PictureParent(base.partition("@")[0], "", tone("gb"))]
    for model in dict.fromkeys(line.model for line in lines):
        changed = [line for line in lines if line.model == model]
        words = f", {changed[0].words}" if model == base else ""
        marks_text = " ".join(line.mark for line in changed)
        parents.append(PictureParent(f"{model.partition('@')[0]}{words}", marks_text, tone(changed[0].tone)))
    return PictureTexts(
        kind="Chimera",
        name=chimera.model.partition("@")[0],
        title=chimera.title or "",
        figure=figure,
        remark=remark,
        address=_address(chimera.model),
        parents=parents,
    )


def _result(chimera: Chimera) -> tuple[str, str]:
    """Return the measured change of perplexity, or what the weights say, and its meaning."""
    report = chimera.verdicts[0].report if chimera.verdicts else None
    from_source = chimera.from_source
    if from_source is not None:
        return f"{from_source.amount} nats", from_source.sentence
    measured = [] if report is None else [text for text in report.texts if text.ratio is not None and text.counts]
    if (report is None or not measured) and chimera.quick_look is not None:
        worst_look = chimera.quick_look.worst
        unmeasured = "measured" if chimera.quick_look.is_started else "not run yet"
        figure = unmeasured if worst_look is None else worst_look.amount
        return figure, f"Quick look: {chimera.quick_look.sentence}"
    if report is None or not measured:
        figure = "not measured" if chimera.verdicts else "not run yet"
        return figure, "" if chimera.screen is None else f"From the weights: {chimera.screen.brief}."
    best = min(measured, key=lambda text: text.ratio or 0.0)
    worst = max(measured, key=lambda text: text.ratio or 0.0)
    remark = f"Perplexity on {best.name} against the base: {report.verdict}."
    if worst is not best:
        remark += f" At worst {worst.change} on {worst.name}."
    return best.change, remark


def _model_texts(
    session: Session, row: tables.ModelRow, organs: Sequence[PlacedOrgan]
) -> tuple[PictureTexts, dict[str, str]]:
    """Return the texts of the picture of a model, and the CSS class of the colour of each organ."""
    model = model_page(session, row)
    against = model_to_compare(session, model) if len(organs) == row.tensors else None
    if against is None:
        colours = tones(organs, "spectral", {})
        meaning = "Colour: structure that random numbers do not have" if organs else "Too large to draw"
    else:
        colours = tones(organs, "change", changes_against(session, row, against))
        meaning = f"Colour: change against {against.partition('@')[0]}"
    facts = PictureTexts(
        kind=model.kind,
        name=model.name.partition("@")[0],
        title=model.title or "",
        figure=f"{count_text(model.parameters)} weights",
        remark=f"{size_text(model.size_bytes)}, {model.license or 'no license'}. {meaning}.",
        address=_address(model.name),
    )
    return facts, colours


def _address(name: str) -> str:
    """Return the address of the model's page; a sentence if others cannot reach it, because it is on this machine."""
    if is_served(request, LOOPBACK_HOSTS):
        return "made with the organ registry"
    return request.host_url.rstrip("/") + model_address(name.partition("@")[0])
