"""Trying a model: a form on its page, and the page of an answer, which grows while the model writes."""

from __future__ import annotations

from contextlib import suppress

from flask import request, url_for
from sqlalchemy.orm import Session

from organs.ingest.answering import silence_of
from organs.registry.catalog.queries.model_names import find_model_by_text
from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.chat import (
    SEED_MAX,
    SYSTEM,
    TEMPERATURE_DEFAULT,
    TEMPERATURE_MAX,
    USER,
    ChatMessage,
    PromptAnswer,
    PromptRequest,
)
from organs.registry.entities.plan import GRAFTED, QUANTISED
from organs.registry.errors import BadInput, NotFound, QueueFull, TooMany
from organs.registry.validation.run import compared_with
from organs.web.api import answers as api
from organs.web.error_pages import sentence_of
from organs.web.pages.routes import Context, WebPage, canonical_model, paged, writing_form
from organs.web.params import addressed_model
from organs.web.permissions import may_write
from organs.web.responses import model_address, searching

ENDINGS = {
    "end": "complete",
    "tokens": "cut at the most tokens of an answer",
    "seconds": "cut because the time was over",
    "context": "cut because the context of the model is full",
    "failed": "failed",
}
"""Why a reply ended, for people."""
ROLES = {GRAFTED: ("Chimera", "Base"), QUANTISED: ("Quantised", "Source")}
"""What the two models of an answer are, by how the first was made."""
NO_ROLES = ("", "")


def try_context(session: Session, row: ModelRow, *, has_form: bool | None = None) -> Context:
    """Return what the section "Try it" shows for a model; nothing on a server that answers no prompts.

    A form needs a token, and then no other client gets the same page from the cache. So it stands on the page of a
    model only if other forms do; otherwise a link leads to a page with the form.
    """
    limits = api.prompt_limits()
    if limits is None:
        return {"try_it": None}
    reason = silence_of(session, row)
    if reason is None:
        try:
            api.check_size(row.full_name, row.size_bytes, limits)
        except BadInput as error:
            reason = f"{sentence_of(error, capital=False)}"
    base, roles = None, NO_ROLES
    if reason is None:
        with suppress(NotFound):
            other, relation = compared_with(session, row)
            roles = ROLES.get(relation, NO_ROLES)
            is_fit = silence_of(session, other) is None and other.size_bytes <= limits.model_max_bytes
            base = other.full_name if is_fit else None
    return {
        "try_it": {
            "model": row.full_name,
            "reason": reason,
            "base": base,
            "roles": roles,
            "limits": limits,
            "has_form": may_write() if has_form is None else has_form,
            "address": model_address(row.full_name, "pages.try_model"),
            "stated": {"beside": True, "temperature": f"{TEMPERATURE_DEFAULT:g}"},
            "temperature_max": f"{TEMPERATURE_MAX:g}",
            "problem": None,
        }
    }


@paged("/models/<namespace>/<name>/try")
def try_model(namespace: str, name: str) -> WebPage:
    """Show the form for a prompt to a model."""
    with searching() as session:
        row = canonical_model(session, f"{namespace}/{name}")
        context = _form(session, row)
    return WebPage("answer.html", context, body={"model": context["try_it"]["model"]})


@writing_form("/models/<namespace>/<name>/try", None)
def ask_model(namespace: str, name: str) -> str | WebPage:
    """Put the prompt of the form into the queue, and show the page of its answer; or the form again, with the error."""
    with searching() as session:
        row = addressed_model(session, namespace, name)
        model, context = row.full_name, _form(session, row)
    stated = {field: request.form.get(field, "").strip() for field in ("prompt", "system", "temperature", "seed")}
    try:
        prompt_text = request.form.get("prompt", "").replace("\r\n", "\n")
        opening = (ChatMessage(role=SYSTEM, content=stated["system"]),) if stated["system"] else ()
        prompt = PromptRequest(
            model=model,
            messages=(*opening, ChatMessage(role=USER, content=prompt_text)),
            base="beside" in request.form and context["try_it"]["base"] is not None,
            temperature=_number(stated["temperature"], "temperature", TEMPERATURE_DEFAULT, TEMPERATURE_MAX),
            seed=_seed(stated["seed"]),
        )
        return url_for("pages.answer", key=api.ask(prompt).key)
    except (BadInput, TooMany, QueueFull) as error:  # with the form, so that the text is not lost
        context["try_it"] |= {
            "problem": sentence_of(error, capital=True),
            "stated": {**stated, "beside": "beside" in request.form},
        }
        return WebPage("answer.html", context, status=error.status)


@paged("/answers/<key>")
def answer(key: str) -> WebPage:
    """Show a prompt, what has been answered so far, and the form for the next prompt."""
    found = api.answer(key)
    with searching() as session:
        row = find_model_by_text(session, found.replies[0].model)
        context = {"try_it": None} if row is None else _form(session, row)
    roles = NO_ROLES
    if context["try_it"]:
        context["try_it"]["stated"] = _stated(found)
        if [reply.model for reply in found.replies[1:]] == [context["try_it"]["base"]]:
            roles = context["try_it"]["roles"]
    return WebPage(
        "answer.html",
        {**context, "answer": found, "endings": ENDINGS, "asked": found.messages[-1].content, "roles": roles},
        body=found,
    )


@writing_form("/answers/<key>/delete", None)
def forget_answer(key: str) -> str:
    """Delete an answer, and show the model."""
    return model_address(api.forget(key).replies[0].model)


def _form(session: Session, row: ModelRow) -> Context:
    context = try_context(session, row, has_form=True)
    if context["try_it"] is None:
        raise NotFound(api.OFF)
    return context


def _stated(found: PromptAnswer) -> Context:
    """Return the fields of the form for the next prompt as they were in the last one."""
    system = [message.content for message in found.messages if message.role == SYSTEM]
    return {
        "prompt": found.messages[-1].content,
        "system": "".join(system[:1]),
        "temperature": f"{found.temperature:g}",
        "beside": len(found.replies) > 1,
    }


def _seed(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(SEED_MAX)) and int(text) <= SEED_MAX):
        raise BadInput(f"the seed must be a whole number from 0 to {SEED_MAX:,}")
    return int(text)


def _number(text: str, name: str, default: float, most: float) -> float:
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if not 0 <= number <= most:  # also for NaN
        raise BadInput(f"the {name} must be a number from 0 to {most:g}")
    return number
