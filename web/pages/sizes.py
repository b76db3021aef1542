"""Sizes of a model on its page: the curve of size against divergence, what fits into a memory, and a form for more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flask import Response, request
from msgspec import ValidationError, convert
from msgspec.structs import replace
from sqlalchemy.orm import Session

from organs.registry.amounts import size_text
from organs.registry.catalog.queries.jobs import newest_jobs_of_kind
from organs.registry.catalog.queries.model_names import find_model_by_text
from organs.registry.catalog.queries.relatives import proved_models
from organs.registry.catalog.queries.sizes import size_curve, sizes_of, source_of_size
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import CHIMERA
from organs.registry.columns import for_people
from organs.registry.entities.job import Job
from organs.registry.entities.model import Model
from organs.registry.entities.sizes import (
    CHOSEN,
    COLUMNS,
    FOUND,
    MINUTES_LEAST,
    MINUTES_MAX,
    PLAIN,
    QuantizationRequest,
    SizeCurve,
    SizePoint,
)
from organs.registry.errors import BadInput, BadQuery, NotComposable, NotFound
from organs.registry.gguf.mixes import MIXES
from organs.registry.kinds import FileKind
from organs.registry.quantizing.search import MINUTES
from organs.registry.quantizing.tags import request_for, tag_of
from organs.registry.validation.memory_estimate import MemoryEstimate, estimated_memory
from organs.web.charts import plots
from organs.web.error_pages import sentence_of
from organs.web.ollama import tagged_name
from organs.web.pages.charts import svg_answer
from organs.web.pages.jobs import QUANTIZE, TWICE_FIELD, minutes_needed, missing_runtime, size_form_address
from organs.web.pages.routes import Context, pages
from organs.web.params import addressed_model
from organs.web.permissions import may_see_jobs, queue_job, whose_jobs
from organs.web.responses import model_address, searching

OWN_CELLS = ("label", "kind", "size_bytes", "model")
"""Columns whose cells the page writes by itself."""
KIND_WORDS = {PLAIN: "mix of llama.cpp", CHOSEN: "chosen", FOUND: "not measured"}
JOBS_MAX = 200
"""Among so many newest jobs, those of a model are shown on its page."""
MEMORY_LEAST_GB, MEMORY_MAX_GB = 0.001, 100_000.0
CONTEXT_DEFAULT, CONTEXT_MAX = 4096, 10_000_000
MIXES_OFFERED = ("Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "4.5 bits")
"""Sizes that the form proposes, besides one in bytes."""
EXAMPLE_SHARE = 2 / 3
"""The size in bytes that the form proposes, as a share of the model."""
OFFERED_MIXES = ("Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K")
"""Mixes that need no measurement, which are proposed when the time is too short."""
MIX_MARGIN = 1.3
"""How many times the bits of its main type a mix may have."""
SIZE_MAX, MINUTES_MAX_LENGTH = 40, 20
"""Characters that are shown again of what was typed."""
BLOCK_ELEMENTS = 256
TWICE_CODE = "rounded-twice"
TWICE = "This model is quantised already: mark this box to round its weights a second time, or use its file in F16."


def sizes_shown(session: Session, row: ModelRow, model: Model, wrong: Mapping[str, str] | None = None) -> Context:
    """Return the sizes of a model for its page; nothing for files that are no complete language models.

    `wrong` has the sentences about the form that was sent, by its fields; what was typed is shown again.
    """
    if model.kind not in (FileKind.MODEL, CHIMERA) or not model.complete or model.unassemblable:
        return {"sizes": None}
    curve, source = size_curve(session, row), source_of_size(session, row.id) or _quantised_from(session, model)
    if source is not None and all(point.kind == FOUND for point in curve.points):
        return {"sizes": None, "size_of": source}
    shown = [column for column in for_people(COLUMNS, curve.points) if column.name not in OWN_CELLS]
    jobs = [] if not may_see_jobs() else _newest_jobs(session, model.name)
    usual_context = min(CONTEXT_DEFAULT, _trained_context(model))
    wrong, typed = wrong or {}, request.args if wrong is None else request.form
    memory = _stated_memory(typed, usual_context)
    fits = None if memory is None else _fitting(model, curve, *memory)
    drawn = _drawable(curve.points)
    stated = {
        "size": typed.get("size", "")[:SIZE_MAX],
        "minutes": typed.get("minutes", "")[:MINUTES_MAX_LENGTH],
        TWICE_FIELD: TWICE_FIELD in typed,
    }
    example = size_example(model.size_bytes)
    return {
        "sizes": curve,
        "size_of": source,
        "size_columns": shown,
        "size_rows": [_row(point, fits) for point in curve.points],
        "size_tags": list(dict.fromkeys(tagged_name(point.model) for point in curve.points if point.model is not None)),
        "are_measured": any(point.kind != FOUND for point in curve.points),
        "size_chart": model_address(model.name, "pages.sizes_chart", **_fits_parameter(fits)) if drawn else None,
        "size_chart_size": {"width": plots.SIZES_WIDTH, "height": plots.SIZES_HEIGHT},
        "size_jobs": [_job_shown(job, model) for job in jobs],
        "size_stated": stated,
        "size_wrong": wrong,
        "is_rounded": TWICE_FIELD in wrong or is_rounded_twice(session, row),
        "size_example": example,
        "size_examples": (*MIXES_OFFERED, example),
        "minutes_default": f"{MINUTES:g}",
        "minutes_least": MINUTES_LEAST,
        "minutes_max": MINUTES_MAX,
        "size_form": model_address(model.name, "pages.make_size"),
        "missing_runtime": missing_runtime(),
        "memory_gb": typed.get("memory", ""),
        "memory_context": typed.get("context", "") or str(usual_context),
        "fits": fits,
    }


def size_example(size_bytes: int) -> str:
    """Return a size in bytes that people may want of a model, as the form and links name it: `66 MB`."""
    example_bytes = float(f"{EXAMPLE_SHARE * size_bytes:.2g}")
    return f"{example_bytes / 1e9:g} GB" if example_bytes >= 1e9 else f"{example_bytes / 1e6:g} MB"


@pages.get("/models/<namespace>/<name>/sizes.svg")
def sizes_chart(namespace: str, name: str) -> Response:
    """Send the chart of the sizes of a model; `fits` is the size in bytes that is marked."""
    marked = request.args.get("fits", "")
    with searching() as session:
        model = addressed_model(session, namespace, name)
        points = _drawable(size_curve(session, model).points)
    if not points:
        raise NotFound(f"{model.full_name} has no measured sizes")
    is_number = marked.isascii() and marked.isdigit() and len(marked) < 19
    return svg_answer(plots.sizes_chart(points, int(marked) if is_number else None))


def queue_size(model: str, *, is_rounded: bool) -> None:
    """Queue the job that makes the size in the form that was sent; `is_rounded` says whether it must be accepted that
    weights are rounded twice. Raises WrongSizeForm."""
    is_accepted, plain = TWICE_FIELD in request.form, request.form.get("plain", "")
    try:
        memory = _stated_memory(request.form) if "fits" in request.form else None
        if plain in MIXES:
            wanted = QuantizationRequest(model=model, type=plain)
        elif memory is None:
            wanted = request_for(model, request.form.get("size", ""))
        else:
            wanted = QuantizationRequest(model=model, memory_bytes=int(1e9 * memory[0]), context=memory[1])
        minutes = None if wanted.type is not None else _minutes(request.form.get("minutes", "").strip())
        if is_rounded and not is_accepted:
            raise WrongSizeForm(TWICE_FIELD, TWICE, NotComposable.status)
        accepted = (TWICE_CODE,) if is_accepted else ()
        queue_job(QUANTIZE, replace(wanted, minutes=minutes, accept=accepted))
    except BadQuery as error:
        field = error.term if error.term == "minutes" else "size"
        raise WrongSizeForm(field, f"{error.reason.capitalize()}.", error.status) from error
    except NotComposable as error:
        if not error.refusals and error.unaccepted == (TWICE_CODE,):
            raise WrongSizeForm(TWICE_FIELD, TWICE, error.status) from error
        raise WrongSizeForm("size", sentence_of(error, capital=True), error.status) from error
    except BadInput as error:
        raise WrongSizeForm("size", sentence_of(error, capital=True), error.status) from error


class WrongSizeForm(Exception):
    """A field of the form for a size is wrong."""

    def __init__(self, field: str, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.wrong, self.status = {field: sentence}, status


def is_rounded_twice(session: Session, row: ModelRow) -> bool:
    """Return whether a size rounds weights again: the model is quantised, and its source was not proved."""
    return row.is_rounded and not proved_models(session, row.id)


def _quantised_from(session: Session, model: Model) -> str | None:
    """Return the parent from which a model was quantised, if that one has measured sizes."""
    for edge in model.lineage:
        if edge.direction == "parent" and edge.relation == "quantized" and edge.model is not None:
            parent = find_model_by_text(session, edge.model)
            if parent is not None and sizes_of(session, parent.id):
                return parent.full_name
    return None


def _newest_jobs(session: Session, model: str) -> list[Job]:
    """Return the newest job that makes a size of a model if it failed, and those that wait or run."""
    found = newest_jobs_of_kind(session, QUANTIZE, JOBS_MAX, whose_jobs())
    own = [job for job in found if job.arguments.get("model") == model]
    return [job for number, job in enumerate(own) if job.is_active or (number == 0 and job.state == "failed")]


def _drawable(points: Sequence[SizePoint]) -> list[plots.SizeDivergence]:
    return [
        plots.SizeDivergence(point.size_bytes, point.divergence, point.label, point.kind == PLAIN)
        for point in points
        if point.divergence is not None and point.divergence > 0
    ]


def _row(point: SizePoint, fits: Context | None) -> Context:
    return {
        "point": point,
        "kind": KIND_WORDS[point.kind],
        "download": None if point.model is None else model_address(point.model, "downloads.model"),
        "fits": fits is not None and point is fits["point"],
    }


def _job_shown(job: Job, model: Model) -> Context:
    """Return for which size a job is, in words; if its time was too short, with what to do about it."""
    try:
        wanted = convert(job.arguments, QuantizationRequest)
    except ValidationError:  # of another version
        return {"job": job, "tag": "an unknown limit"}
    tag = tag_of(wanted) if wanted.like is None else f"the bytes of {wanted.like}"
    if wanted.memory_bytes is not None:
        tag = f"a memory of {size_text(wanted.memory_bytes)}"
    if minutes_needed(job) is None:
        return {"job": job, "tag": tag}
    minutes, form = size_form_address(job) or (None, None)
    return {
        "job": job,
        "tag": tag,
        "minutes": minutes,
        "form": form,
        "plain": _plain_mix(wanted, model),
        TWICE_FIELD: bool(wanted.accept),
    }


def _plain_mix(wanted: QuantizationRequest, model: Model) -> str:
    """Return the mix of llama.cpp with the most bits that a wanted size surely has room for: some matrices of a mix
    have more bits than its main type."""
    if wanted.like is not None and wanted.like in MIXES:
        return wanted.like
    most_bytes = wanted.size_bytes or wanted.memory_bytes or (wanted.bits or 0.0) * model.parameters / 8
    sizes = {name: MIXES[name].dtype.size_bytes(BLOCK_ELEMENTS) / BLOCK_ELEMENTS for name in OFFERED_MIXES}
    room = most_bytes / MIX_MARGIN / max(model.parameters, 1)
    return next((name for name, size in sizes.items() if size <= room), OFFERED_MIXES[-1])


def _minutes(text: str) -> float | None:
    """Return the minutes that were typed; None for nothing. Raises BadQuery."""
    try:
        minutes = float(text or MINUTES)
    except ValueError:
        minutes = math.nan
    if not MINUTES_LEAST <= minutes <= MINUTES_MAX:
        raise BadQuery("minutes", f"use a number from {MINUTES_LEAST:g} to {MINUTES_MAX:,.0f}")
    return minutes if text else None


def _stated_memory(values: Mapping[str, str], usual_context: int = CONTEXT_DEFAULT) -> tuple[float, int] | None:
    """Return the memory in GB and the tokens of the context that a person stated; None without a memory.

    Raises BadQuery.
    """
    memory, context = values.get("memory", "").strip(), values.get("context", "").strip()
    if not memory:
        return None
    try:
        gigabytes, tokens = float(memory), int(context or usual_context)
    except ValueError:
        raise BadQuery("memory", "use a number of GB, and a whole number of tokens as context") from None
    if not (MEMORY_LEAST_GB <= gigabytes <= MEMORY_MAX_GB and 0 < tokens <= CONTEXT_MAX):
        raise BadQuery(
            "memory",
            f"use {MEMORY_LEAST_GB:g} to {MEMORY_MAX_GB:,.0f} GB, and a context of up to {CONTEXT_MAX:,} tokens",
        )
    return gigabytes, tokens


def _fitting(model: Model, curve: SizeCurve, gigabytes: float, context: int) -> Context:
    """Return the largest file that fits into a memory, by the estimate, and the commands that count exactly.

    There is none if the model itself fits.
    """
    metadata: Mapping[str, str] = {entry.key: entry.value for entry in model.metadata}
    estimate = estimated_memory(metadata, model.architecture, context)
    room = 0 if estimate is None else int(gigabytes * 1e9) - estimate.beside_bytes
    source_fits = estimate is not None and curve.source_size_bytes <= room
    registered = [] if source_fits else [point for point in curve.points if point.model is not None]
    fitting = [point for point in registered if _fits(point, gigabytes, context, room)]
    largest = max(fitting, key=lambda point: point.size_bytes, default=None)
    trained = _trained_context(model)
    name = model.name.partition("@")[0]
    return {
        "memory": f"{gigabytes:g} GB",
        "context": context,
        "sentence": _count_sentence(largest, context) or _estimate_sentence(estimate),
        "trained_context": trained if context > trained else None,
        "gigabytes": gigabytes,
        "is_estimated": estimate is not None,
        "source_fits": source_fits,
        "room_bytes": room,
        "point": largest,
        "command": f"organ quantize {name} --fits {gigabytes:g}GB --context {context}",
        "count_command": f"organ memory {name} --context {context}",
    }


def _trained_context(model: Model) -> int:
    """Return the tokens of the longest context that a model was trained for; CONTEXT_MAX if the header has none."""
    texts = (entry.value for entry in model.metadata if entry.key == f"{model.architecture}.context_length")
    text = next(texts, "")
    tokens = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return tokens or CONTEXT_MAX


def _fits(point: SizePoint, gigabytes: float, context: int, room_bytes: int) -> bool:
    """Return whether a size fits: by the count for it with this context, or a longer one, or by the estimate."""
    if point.memory_bytes is not None and point.memory_context is not None:
        is_within = point.memory_bytes <= gigabytes * 1e9
        if context == point.memory_context or (is_within and context < point.memory_context):
            return is_within
    return point.size_bytes <= room_bytes


def _count_sentence(point: SizePoint | None, context: int) -> str:
    """Return what the runtime counted for a size, if it did so for this context or a longer one."""
    tokens = 0 if point is None else point.memory_context or 0
    if point is None or point.memory_bytes is None or context > tokens:
        return ""
    return f"llama.cpp takes {size_text(point.memory_bytes)} for it with {tokens:,} tokens, by its own count."


def _estimate_sentence(estimate: MemoryEstimate | None) -> str:
    if estimate is None:
        return "The header does not say in plain numbers how large the cache is, so nothing is estimated."
    most = "at most " if estimate.is_most else ""
    return (
        f"Beside the file: {most}{size_text(estimate.cache_bytes)} for the cache of {estimate.context:,} tokens in "
        f"F16, and about {size_text(estimate.buffers_bytes)} for other buffers, rather too much than too little."
    )


def _fits_parameter(fits: Context | None) -> dict[str, str]:
    return {} if fits is None or fits["point"] is None else {"fits": str(fits["point"].size_bytes)}
