"""Charts as separate SVG files. The pages of an organ, a model and the reports show them with `<img>`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise

from flask import Response, current_app, request, url_for
from sqlalchemy.orm import Session

from organs.registry.amounts import UNCERTAIN
from organs.registry.anatomy import type_name
from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.organs import organs_of_model
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import CorruptBlob, MissingBlob, NotFound, UnsupportedDType
from organs.registry.gguf.quants import can_dequantize
from organs.registry.measures import caution_of_mean
from organs.registry.relatives.comparison import PAGE_TENSORS_MAX
from organs.web.charts import plots
from organs.web.charts.plots import POLICY, sampled_values
from organs.web.downloads import ChosenOrgan, chosen_organ
from organs.web.pages.routes import Context, Sheet, WebPage, paged, pages
from organs.web.params import addressed_model
from organs.web.render import glyph
from organs.web.responses import conditional, model_address, registry, searching

IMMUTABLE = "public, max-age=86400, immutable"
"""Cache-Control of a chart of bytes that cannot change. One day, because a later version may draw them differently."""
TYPES_FIRST = ("skeleton", "organ", "norm")
BINS = ("lower", "upper", "count", "bell_count")


@paged("/organs/<digest>/weights", csv=True)
def weights_figure(digest: str) -> WebPage:
    """Show the histogram of the weights of an organ as numbers. `dtype` and `shape` are those of downloads."""
    chosen, weights = _requested_weights(digest)
    return WebPage(
        "weights.html",
        lambda: {"digest": chosen.digest, **_shown_weights(weights, chosen)},
        sheet=lambda: Sheet(BINS, [list(row.values()) for row in _bins_of(weights)]),
        body={"digest": chosen.digest, **asdict(weights)},
    )


@pages.get("/organs/<digest>/weights.svg")
def weights_chart(digest: str) -> Response:
    """Send the histogram as SVG."""
    chosen, weights = _requested_weights(digest)
    return svg_answer(plots.weights_chart(weights), immutable=chosen.is_full_digest and chosen.is_unambiguous)


@pages.get("/models/<namespace>/<name>/depth.svg")
def depth_chart(namespace: str, name: str) -> Response:
    """Send the chart of θ along the blocks of a model."""
    with searching() as session:
        model = addressed_model(session, namespace, name)
        if model.tensors > PAGE_TENSORS_MAX:
            raise NotFound(f"{model.full_name} has more than {PAGE_TENSORS_MAX:,} tensors: too many for a chart")
        rows = plots.block_thetas(organs_of_model(session, model))
    lines, blocks = _depth_lines(rows)
    if not lines:
        raise NotFound(f"{model.full_name} has fewer than two blocks with a known θ")
    return svg_answer(plots.depth_chart(lines, blocks))


def weights_shown(digest: str, dtype: str, shape: Sequence[int]) -> Context:
    """Return the histogram and its table for the page of an organ, or the reason why there is none."""
    with searching() as session:
        chosen = chosen_organ(session, digest, dtype, "x".join(map(str, shape)))
        weights = _weights_of(session, chosen)
    return {"reason": weights} if isinstance(weights, str) else _shown_weights(weights, chosen)


def depth_shown(name: str, organs: Sequence[PlacedOrgan]) -> Context:
    """Return the depth chart for the page of a model; empty for fewer than two blocks."""
    rows = plots.block_thetas(organs)
    lines, _ = _depth_lines(rows)
    if not lines:
        return {}
    size = {"width": plots.DEPTH_WIDTH, "height": plots.DEPTH_HEIGHT}
    return {"depth_chart": model_address(name, "pages.depth_chart"), "depth_size": size, "depth": rows}


def svg_answer(body: bytes, *, immutable: bool = False) -> Response:
    """Return an SVG with a Content-Security-Policy that allows only its own stylesheet."""
    answer = current_app.response_class(body, mimetype="image/svg+xml")
    answer.headers["Content-Security-Policy"] = POLICY
    if immutable:
        answer.headers["Cache-Control"] = IMMUTABLE
    return conditional(answer)


def _shown_weights(weights: plots.WeightHistogram, chosen: ChosenOrgan) -> Context:
    """Return a histogram for the page: the address and size of the chart, and the bins."""
    shape = "x".join(map(str, chosen.shape))
    return {
        "reason": None,
        "chart": url_for("pages.weights_chart", digest=chosen.digest, dtype=chosen.dtype.name, shape=shape),
        "width": plots.WEIGHTS_WIDTH,
        "height": plots.WEIGHTS_HEIGHT,
        "bins": _bins_of(weights),
        "figure": weights,
        "csv": url_for("pages.weights_figure_csv", digest=chosen.digest, dtype=chosen.dtype.name, shape=shape),
    }


def _requested_weights(digest: str) -> tuple[ChosenOrgan, plots.WeightHistogram]:
    with searching() as session:
        chosen = chosen_organ(session, digest, request.args.get("dtype"), request.args.get("shape"))
        weights = _weights_of(session, chosen)
    if isinstance(weights, str):
        raise NotFound(weights)
    return chosen, weights


def _bins_of(weights: plots.WeightHistogram) -> list[Context]:
    """Return the bins as rows."""
    return [
        dict(zip(BINS, (lower, upper, count, bell), strict=True))
        for (lower, upper), count, bell in zip(pairwise(weights.edges), weights.counts, weights.bell, strict=True)
    ]


def _weights_of(session: Session, chosen: ChosenOrgan) -> plots.WeightHistogram | str:
    """Return the histogram, or the reason why there is none. It is computed once for each state of the catalog."""
    dtype = chosen.dtype

    def compute() -> plots.WeightHistogram | str:
        undecodable = f"The registry cannot decode the tensor type {dtype.name}, so there is no chart."
        if not can_dequantize(dtype):
            return undecodable
        elements = chosen.blob.size_bytes // dtype.block_bytes * dtype.block_elements
        try:
            with registry().blobs.open(chosen.blob) as reader:
                return plots.weights_of(sampled_values(reader, dtype, elements))
        except UnsupportedDType:
            return undecodable
        except (CorruptBlob, MissingBlob):
            return "The stored bytes are damaged, so there is no chart. To repair them, ingest the file again."

    return cached(session, ("weights", chosen.organ_id), compute, lambda weights: not isinstance(weights, str))


def _depth_lines(rows: Sequence[plots.BlockTheta]) -> tuple[dict[str, list[plots.BlockTheta]], int]:
    """Return a line by its label for each type that occurs in two or more blocks, and the number of blocks."""
    kinds = sorted({row.type for row in rows}, key=lambda kind: (kind not in TYPES_FIRST, kind == "norm", kind))
    lines = {}
    for kind in kinds:
        points = [row for row in sorted(rows, key=lambda row: row.position) if row.type == kind]
        if len(points) > 1:
            mark = UNCERTAIN if caution_of_mean(sum(point.caution != "" for point in points), len(points)) else ""
            lines[f"{glyph(kind)} {mark}{type_name(kind)}"] = points
    return lines, 1 + max((row.position for row in rows), default=0)
