"""The kind `validate`: a chimera run in llama.cpp beside its base, its donors and its control.

Only the built-in runtime and the built-in texts: what a server runs, nobody names from outside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from organs.ingest.jobs.kind import VALIDATE as LANE
from organs.ingest.jobs.kind import (
    JobKind,
    Tell,
    Values,
    check_members,
    text_or_none,
    whole_number,
)
from organs.registry.catalog.queries.composing import chimera_of, model_by_text
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
"""Base, chimera, control and a donor: for the progress alone."""

_LOCK = re.compile(r"[0-9a-f]{64}", re.ASCII)


def _checked(arguments: Values) -> Values:
    check_members(arguments, ("chimera", "tokens", "texts"))
    chimera = text_or_none(arguments, "chimera", MODEL_TEXT_MAX_LENGTH)
    if chimera is None:
        raise BadInput("chimera is missing: its name, or the digest of its lock")
    tokens = whole_number(arguments, "tokens", TOKENS_DEFAULT, TOKENS_LEAST, TOKENS_MOST)
    return {"chimera": chimera, "tokens": tokens, "texts": _texts(arguments.get("texts"))}


def _texts(asked: object) -> list[str]:
    """The names that are asked for, in the order of the built-in texts; all of them where none is."""
    if asked is None:
        return list(BUILT_IN_NAMES)
    if not isinstance(asked, list) or not asked or any(name not in BUILT_IN_NAMES for name in asked):
        raise BadInput(f"texts is to be a list of one or more of {', '.join(BUILT_IN_NAMES)}")
    return [name for name in BUILT_IN_NAMES if name in asked]


def _settled(registry: LocalRegistry, arguments: Values, _contributor: str) -> Values:
    """The same with the chimera's full name, so that whoever looks for its jobs finds them."""
    text: str = arguments["chimera"]
    with registry.catalog.reading() as session:
        model = model_by_text(session, f"sha256:{text}" if _LOCK.fullmatch(text) else text)
        if chimera_of(session, model.id) is None:
            raise NotComposedHere(f"{model.full_name} was not composed here, so there is no base to hold it against")
        return {**arguments, "chimera": model.full_name}


def _run(registry: LocalRegistry, arguments: Values, tell: Tell, _contributor: str) -> Values:
    texts = [text for text in built_in_texts() if text.name in arguments["texts"]]
    runtime = LlamaCpp(requires_sandbox=registry.settings.requires_sandbox)
    result = run_chimera(
        registry.catalog,
        registry.blobs,
        arguments["chimera"],
        texts,
        runtime,
        arguments["tokens"],
        _Watched(tell),
    )
    return {**msgspec.to_builtins(verdict_report(result)), "models": [result.model, result.base, *result.donors]}


class _Watched:
    """Tells a job's progress by how many of the models have had their turn."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._roles: list[str] = []

    def __call__(self, event: Event) -> None:
        if event.role not in self._roles:
            self._roles.append(event.role)
        self._tell(_share(self._roles), f"{event.role}: {event.action}")


def _share(roles: Sequence[str]) -> float:
    done = len(roles) - 1
    return done / max(ROLES_TYPICAL, len(roles))


VALIDATE = JobKind("validate", LANE, _checked, _run, _settled)
"""Takes `chimera`, a name or the digest of a lock, `tokens` a text and `texts`, names of built-in ones; gives the
verdict with all that it rests on."""
