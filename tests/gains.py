"""Gains of validated chimeras, recorded without a runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping

from organs.registry.catalog.queries.chimeras import chimera_of
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.chimeras import record_gains
from organs.registry.digest import digest_of
from organs.registry.entities.validation import TextVerdict
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name


def text_verdict(
    text: str, percent: float, margin: float = 1.0, tokens: int = 4096, counts: bool = True
) -> TextVerdict:
    """Return the result on a text: the perplexity fell by `percent`, plus and minus `margin`."""
    ratio = 1.0 - percent / 100.0
    return TextVerdict(
        name=text,
        digest=digest_of(text.encode()),
        verdict="",
        counts=counts,
        ratio=ratio,
        ratio_margin=math.nan if math.isnan(margin) else margin / 100.0,
        tokens=tokens,
    )


def add_gains(registry: LocalRegistry, model: str, gains: Mapping[str, float], **more: float) -> None:
    """Record what the chimera `model` gained, in percent by text, as `organ validate` does."""
    with registry.catalog.writing() as session:
        chimera = chimera_of(session, model_by_name(session, parse_model_name(model)).id)
        assert chimera is not None
        record_gains(session, chimera, [text_verdict(text, percent, **more) for text, percent in gains.items()])  # type: ignore[arg-type]
