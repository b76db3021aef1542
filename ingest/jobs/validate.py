"""The kinds `validate` and `quick-look`: a chimera run in llama.cpp beside its base, its donors and its control; or for
some seconds beside its base.

They use only the built-in runtime and the built-in texts: a request must not choose the program that a server runs.
"""

from __future__ import annotations

import re

from msgspec.structs import asdict, replace

from organs.ingest.jobs.kind import VALIDATE as LANE
from organs.ingest.jobs.kind import JobKind, ReportProgress
from organs.registry.catalog.queries.chimeras import chimera_of
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.entities.job import ValidationJobResult, ValidationRequest
from organs.registry.entities.validation import QuickLook, QuickLookRequest
from organs.registry.errors import BadInput, NotComposedHere
from organs.registry.local import LocalRegistry
from organs.registry.validation.comparison import BUDGET_SECONDS, TOKENS_MAX, ValidationBudget
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.quick import LookBudget
from organs.registry.validation.run import look_at_chimera, run_chimera
from organs.registry.validation.texts import KINDS, built_in_texts


def _chimera(registry: LocalRegistry, text: str) -> str:
    """Return the full name of a chimera, under which its jobs are listed. `text` is a name or the digest of a lock."""
    with registry.catalog.reading() as session:
        model = model_by_text(session, f"sha256:{text}" if re.fullmatch("[0-9a-f]{64}", text) else text)
        if chimera_of(session, model.id) is None:
            raise NotComposedHere(
                f"{model.full_name} was not composed in this registry, so it has no base for a comparison"
            )
        return model.full_name


def _settle(registry: LocalRegistry, request: ValidationRequest, _contributor: str) -> ValidationRequest:
    texts = tuple(KINDS) if request.texts is None else request.texts
    if not set(texts) <= set(KINDS):
        raise BadInput(f"texts must be a list of one or more of {', '.join(KINDS)}")
    return ValidationRequest(
        chimera=_chimera(registry, request.chimera),
        tokens=request.tokens or TOKENS_MAX,
        minutes=request.minutes or BUDGET_SECONDS / 60.0,
        texts=tuple(name for name in KINDS if name in texts),
    )


def _run(
    registry: LocalRegistry, arguments: ValidationRequest, report_progress: ReportProgress, _contributor: str
) -> ValidationJobResult:
    report = run_chimera(
        registry.catalog,
        registry.blobs,
        arguments.chimera,
        built_in_texts(arguments.texts or KINDS),
        LlamaCpp(requires_sandbox=registry.settings.requires_sandbox),
        ValidationBudget(60.0 * (arguments.minutes or BUDGET_SECONDS / 60.0), arguments.tokens or TOKENS_MAX),
        lambda event: report_progress(event.share, str(event)),
    )
    models = (report.model, report.base.name, *(donor.name for donor in report.donors))
    return ValidationJobResult(**asdict(report), models=models)


def _settle_look(registry: LocalRegistry, request: QuickLookRequest, _contributor: str) -> QuickLookRequest:
    return replace(request, chimera=_chimera(registry, request.chimera))


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


QUICK_LOOK = JobKind("quick-look", LANE, QuickLookRequest, _look, _settle_look)
"""Takes `chimera`, a name or the digest of a lock, and `seconds`. Returns the quick look."""

VALIDATE = JobKind("validate", LANE, ValidationRequest, _run, _settle)
"""Takes `chimera`, a name or the digest of a lock; `tokens`, the most of each text; `minutes`, the time for all models;
and `texts`, names of built-in texts. Returns the verdict with its evidence."""
