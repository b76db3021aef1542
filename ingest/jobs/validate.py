"""The kinds `validate` and `quick-look`: a chimera run in llama.cpp beside its base, its donors and its control; or for
some seconds beside its base.

They use only the built-in runtime and the built-in texts: a request must not choose the program that a server runs.
"""

from __future__ import annotations

import re
from typing import TypeVar

from msgspec.structs import asdict, replace

from organs.ingest.jobs.kind import VALIDATE as LANE
from organs.ingest.jobs.kind import (
    Inputs,
    JobKind,
    ReportProgress,
    check_members,
    text_or_none,
    whole_number,
)
from organs.registry.catalog.queries.chimeras import chimera_of
from organs.registry.catalog.queries.models import model_by_text
from organs.registry.entities.job import ValidationJobResult, ValidationRequest
from organs.registry.entities.quick_look import QuickLook, QuickLookRequest
from organs.registry.errors import BadInput, NotComposedHere
from organs.registry.local import LocalRegistry
from organs.registry.names import MODEL_TEXT_MAX_LENGTH
from organs.registry.validation.comparison import BUDGET_SECONDS, TOKENS_MAX, TOKENS_MIN, ValidationBudget
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.quick import LookBudget
from organs.registry.validation.run import look_at_chimera, run_chimera
from organs.registry.validation.texts import KINDS, built_in_texts

MINUTES_MIN, MINUTES_MAX = 0.1, 60.0

_LOCK = re.compile(r"[0-9a-f]{64}", re.ASCII)


def _check(arguments: Inputs) -> ValidationRequest:
    check_members(arguments, ("chimera", "tokens", "minutes", "texts"))
    chimera = text_or_none(arguments, "chimera", MODEL_TEXT_MAX_LENGTH)
    if chimera is None:
        raise BadInput("chimera is missing: its name, or the digest of its lock")
    tokens = whole_number(arguments, "tokens", TOKENS_MAX, TOKENS_MIN, TOKENS_MAX)
    minutes, texts = _check_minutes(arguments.get("minutes")), _check_texts(arguments.get("texts"))
    return ValidationRequest(chimera=chimera, tokens=tokens, minutes=minutes, texts=texts)


def _check_minutes(requested: object) -> float:
    if requested is None:
        return BUDGET_SECONDS / 60.0
    if type(requested) not in (int, float) or not MINUTES_MIN <= requested <= MINUTES_MAX:  # type: ignore[operator]
        raise BadInput(f"minutes must be a number from {MINUTES_MIN:g} to {MINUTES_MAX:g}")
    return float(requested)  # type: ignore[arg-type]


def _check_texts(requested: object) -> tuple[str, ...]:
    """Return the requested names in the order of the built-in texts; by default all of them."""
    if requested is None:
        return tuple(KINDS)
    if not isinstance(requested, list | tuple) or not requested or any(name not in KINDS for name in requested):
        raise BadInput(f"texts must be a list of one or more of {', '.join(KINDS)}")
    return tuple(name for name in KINDS if name in requested)


RequestT = TypeVar("RequestT", ValidationRequest, QuickLookRequest)


def _settle(registry: LocalRegistry, arguments: RequestT, _contributor: str) -> RequestT:
    """Return the arguments with the chimera's full name, under which its jobs are listed."""
    text = arguments.chimera
    with registry.catalog.reading() as session:
        model = model_by_text(session, f"sha256:{text}" if _LOCK.fullmatch(text) else text)
        if chimera_of(session, model.id) is None:
            raise NotComposedHere(
                f"{model.full_name} was not composed in this registry, so it has no base for a comparison"
            )
        return replace(arguments, chimera=model.full_name)


def _run(
    registry: LocalRegistry, arguments: ValidationRequest, report_progress: ReportProgress, _contributor: str
) -> ValidationJobResult:
    texts = built_in_texts(arguments.texts or KINDS)
    minutes, tokens = arguments.minutes or BUDGET_SECONDS / 60.0, arguments.tokens or TOKENS_MAX
    runtime = LlamaCpp(requires_sandbox=registry.settings.requires_sandbox)
    report = run_chimera(
        registry.catalog,
        registry.blobs,
        arguments.chimera,
        texts,
        runtime,
        ValidationBudget(60.0 * minutes, tokens),
        lambda event: report_progress(event.share, str(event)),
    )
    models = (report.model, report.base.name, *(donor.name for donor in report.donors))
    return ValidationJobResult(**asdict(report), models=models)


def _check_look(arguments: Inputs) -> QuickLookRequest:
    check_members(arguments, ("chimera", "seconds"))
    chimera, seconds = text_or_none(arguments, "chimera", MODEL_TEXT_MAX_LENGTH), arguments.get("seconds")
    if chimera is None:
        raise BadInput("chimera is missing: its name, or the digest of its lock")
    if seconds is None:
        return QuickLookRequest(chimera=chimera)
    if type(seconds) not in (int, float):
        raise BadInput("seconds must be a number")
    return QuickLookRequest(chimera=chimera, seconds=LookBudget(float(seconds)).seconds)  # type: ignore[arg-type]


def _look(
    registry: LocalRegistry, arguments: QuickLookRequest, report_progress: ReportProgress, _contributor: str
) -> QuickLook:
    return look_at_chimera(
        registry.catalog,
        registry.blobs,
        arguments.chimera,
        LlamaCpp(requires_sandbox=registry.settings.requires_sandbox),
        LookBudget() if arguments.seconds is None else LookBudget(arguments.seconds),
        progress=report_progress,
    )


QUICK_LOOK = JobKind("quick-look", LANE, QuickLookRequest, _check_look, _look, _settle)
"""Takes `chimera`, a name or the digest of a lock, and `seconds`. Returns the quick look."""

VALIDATE = JobKind("validate", LANE, ValidationRequest, _check, _run, _settle)
"""Takes `chimera`, a name or the digest of a lock; `tokens`, the most of each text; `minutes`, the time for all models;
and `texts`, names of built-in texts. Returns the verdict with its evidence."""
