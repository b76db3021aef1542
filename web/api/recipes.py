"""A recipe in the body of a request, and what is wrong with one, as refusals by field."""

from __future__ import annotations

from flask import Response

from organs.registry.errors import BadRecipe, NotComposable
from organs.registry.present.values import Values
from organs.web.api.blueprint import api
from organs.web.api.body import json_body
from organs.web.api.refusals import ERRORS_MAX, Refused
from organs.web.errors import error_answer

YAML = "yaml"


def asked_recipe() -> Values:
    """The body as arguments of the job `compose`: `recipe`, or `recipe_text` where it is `{"yaml": TEXT}`."""
    body = json_body()
    if YAML not in body:
        return {"recipe": body}
    if len(body) > 1:
        raise Refused(YAML, f"{YAML} holds the whole recipe, so nothing stands beside it.")
    if not isinstance(body[YAML], str) or not body[YAML]:
        raise Refused(YAML, f"{YAML} is to be a text: the recipe.")
    return {"recipe_text": body[YAML]}


@api.errorhandler(BadRecipe)
def refused_recipe(error: BadRecipe) -> Response:
    """400 with everything that is wrong."""
    errors = [(field or None, _sentence(reason)) for field, reason in error.reasons][:ERRORS_MAX]
    return error_answer(400, errors[0][1], errors=errors)


@api.errorhandler(NotComposable)
def refused_plan(error: NotComposable) -> Response:
    """409 with everything that refuses it, and the codes of what would have to be accepted."""
    errors = [("recipe", _sentence(reason)) for reason in error.refusals][:ERRORS_MAX]
    if error.unaccepted:
        errors.append(("accept", f"Accept {', '.join(error.unaccepted)} to make it all the same."))
    return error_answer(409, errors[0][1], errors=errors)


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:].rstrip('.')}."
