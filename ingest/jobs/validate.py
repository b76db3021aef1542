"""The kind `validate`: a chimera run in llama.cpp beside its base, its donors and its control.

It uses only the built-in runtime and the built-in texts: a request must not choose the program that a server runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
from organs.registry.errors import BadInput, NotComposedHere
from organs.registry.local import LocalRegistry
from organs.registry.names import MODEL_TEXT_MAX_LENGTH
from organs.registry.validation.comparison import Event
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.run import run_chimera, verdict_report
from organs.registry.validation.runtime import (
    TOKENS_DEFAULT,
    TOKENS_MIN,
)
from organs.registry.validation.texts import BUILT_IN_NAMES, built_in_texts

TOKENS_LEAST, TOKENS_MOST = TOKENS_MIN, 512
ROLES_TYPICAL = 4
"""Base, chimera, control and a donor: only for the progress."""

_LOCK = re.compile(r"[0-9a-f]{64}", re.ASCII)


def _check(arguments: Inputs) -> ValidationRequest:
    check_members(arguments, ("chimera", "tokens", "texts"))
    chimera = text_or_none(arguments, "chimera", MODEL_TEXT_MAX_LENGTH)
    if chimera is None:
        raise BadInput("chimera is missing: its name, or the digest of its lock")
    tokens = whole_number(arguments, "tokens", TOKENS_DEFAULT, TOKENS_LEAST, TOKENS_MOST)
    return ValidationRequest(chimera=chimera, tokens=tokens, texts=_check_texts(arguments.get("texts")))


def _check_texts(requested: object) -> tuple[str, ...]:
    """Return the requested names in the order of the built-in texts; by default all of them."""
    if requested is None:
        return tuple(BUILT_IN_NAMES)
    if (
        not isinstance(requested, list | tuple)
        or not requested
        or any(name not in BUILT_IN_NAMES for name in requested)
    ):
        raise BadInput(f"texts must be a list of one or more of {', '.join(BUILT_IN_NAMES)}")
    return tuple(name for name in BUILT_IN_NAMES if name in requested)


def _settle(registry: LocalRegistry, arguments: ValidationRequest, _contributor: str) -> ValidationRequest:
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
    texts = [text for text in built_in_texts() if arguments.texts is None or text.name in arguments.texts]
    runtime = LlamaCpp(requires_sandbox=registry.settings.requires_sandbox)
    result = run_chimera(
        registry.catalog,
        registry.blobs,
        arguments.chimera,
        texts,
        runtime,
        arguments.tokens or TOKENS_DEFAULT,
        _RoleProgress(report_progress),
    )
    models = (result.model, result.base, *result.donors)
    return ValidationJobResult(**asdict(verdict_report(result)), models=models)


class _RoleProgress:
    """Reports a job's progress: the share of the models that have run."""

    def __init__(self, report_progress: ReportProgress) -> None:
        self._report_progress = report_progress
        self._roles: list[str] = []

    def __call__(self, event: Event) -> None:
        if event.role not in self._roles:
            self._roles.append(event.role)
        self._report_progress(_share(self._roles), f"{event.role}: {event.action}")


def _share(roles: Sequence[str]) -> float:
    done = len(roles) - 1
    return done / max(ROLES_TYPICAL, len(roles))


VALIDATE = JobKind("validate", LANE, ValidationRequest, _check, _run, _settle)
"""Takes `chimera`, a name or the digest of a lock; `tokens`, their number in each text; and `texts`, names of built-in
texts. Returns the verdict with its evidence."""
