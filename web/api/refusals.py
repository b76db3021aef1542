"""What the API refuses: which field it was, in a sentence. The one shape of all errors is made in `web.errors`."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Response

from organs.registry.errors import BadDigest, BadInput, BadName
from organs.web.api.blueprint import api
from organs.web.errors import error_answer

ERRORS_MAX = 20
"""Things wrong with one request that are listed."""


class Refused(BadInput):
    """A request that cannot be answered as it stands; `errors` has a field and a sentence each."""

    def __init__(self, field: str | None, sentence: str, more: Sequence[tuple[str | None, str]] = ()) -> None:
        super().__init__(sentence)
        self.errors = ((field, sentence), *more)[:ERRORS_MAX]


@api.errorhandler(Refused)
def refused_request(error: Refused) -> Response:
    """400 with everything that is wrong."""
    return error_answer(400, str(error), errors=error.errors)


@api.errorhandler(BadDigest)
def refused_digest(error: BadDigest) -> Response:
    """400: what is no digest is not merely absent."""
    return error_answer(400, str(error), field="digest")


@api.errorhandler(BadName)
def refused_name(error: BadName) -> Response:
    """400: what is no name is not merely absent."""
    return error_answer(400, str(error), field="name")
