"""The OpenAPI document, made from the routes of the API, with examples; and the root that serves it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import msgspec

from organs.registry.catalog.queries.reports import public_figures
from organs.registry.entities.about import Root
from organs.registry.entities.base import REF_TEMPLATE, Schema, schemas
from organs.registry.entities.problem import MEDIA_TYPE, Problem
from organs.registry.entities.submission import Upload
from organs.web.api.blueprint import ROOT
from organs.web.api.downloads import DOWNLOADS, Download
from organs.web.api.downloads import GROUP as DOWNLOADS_GROUP
from organs.web.api.operation import NAMESPACE, Operation, Parameter, entities, operation, operations
from organs.web.file_responses import OCTETS
from organs.web.responses import (
    reading,
    settings,
)


@cache
def example_answers() -> dict[str, Any]:
    """An answer by the name of its operation."""
    found: dict[str, Any] = json.loads(files("organs.web.api").joinpath("examples.json").read_text("utf-8"))
    return found


VERSION = "3.1.1"
GROUPS: Mapping[str, str] = {
    "About": "What answers, and this document.",
    "Organs": "Tensors of models: searched, counted, looked up.",
    "Models": "What the organs came in with; lineage and comparison.",
    "Chimeras": "Models composed of organs of others: planned, made, validated, and what is known of each.",
    "Reports": "What the numbers say together, with what they do not say.",
    "Uploads": "Bytes on their way in, in chunks that need not come twice.",
    "Submissions": "Models of what was sent: looked at, published, withdrawn.",
    "Contributors": "Who contributes; one's own account and its tokens.",
    "Administration": "What waits for review, models removed, the event log. All of it needs the scope `admin`.",
    "Jobs": "What takes longer than a request waits in a queue: how far it is, what came of it.",
    DOWNLOADS_GROUP: "The bytes. They stand beside the pages, not below `/api/v1`, and their refusals are for people.",
}
DESCRIPTION = """\
Everything answers JSON, but downloads, which answer bytes.

Reading needs no account. What writes or runs something needs a token, as `Authorization: Bearer TOKEN`, that is good
for the scope that stands with it: `upload` or `admin`; where that is `any`, every token is. A server of one's own,
which nobody but its machine can reach, takes what its machine asks without one. Cookies mean nothing here, and a
request that a browser sends for another site's page is refused, by 403. Who asks too often gets 429, with the seconds
in `Retry-After`. What takes long answers 202 and a job, whose address stands in the header `Location`.

A list answers `{"items", "next", "notes"}`; the next page is `after=<next>`, and its address stands in the header
`Link` with `rel="next"`. A `next` belongs to the query that it came from.

Answers to GET have a strong ETag: send it as `If-None-Match`, and what has not changed answers 304 without a body. HEAD
answers as GET does, without the body.

Every error below `/api/v1` is a problem document (RFC 9457, `application/problem+json`): `type`, `title`, `status`,
`detail`, a stable `code` for programs, and `errors`, a list of `field`, `code` and `detail`. Some codes have further
members, such as `seconds`. A parameter that is not known here, or that is given twice, is refused, so that a misspelt
one is seen. 405 comes with `Allow`, 503 with `Retry-After`. An address that is not described here answers 404.

Every page of the catalog has a twin with the same values: `/organs.json`, `/models.json`, `/index.json`; lists have
`.csv` too. They may change with the pages; what is described here will not.
"""
_REFUSALS: Mapping[int, str] = {
    400: "The request is not valid; `errors` says which field and why.",
    401: "This needs a token, or the one that was sent is not good.",
    403: "The token is not good for this, what is asked for is not the asker's own, or this server only reads.",
    404: "Nothing is kept here.",
    409: "What was asked for is several things, or cannot be had in this form.",
    410: "The model was removed: `removed_on` and `reason` say when and why.",
    412: "The file is not the one that `If-Match` names.",
    411: "The length of the body is not told.",
    413: "The body is too large, over the quota (`over-quota`), or asks for too much work (`too-costly`).",
    414: "The address is too long.",
    415: "The body is of another type than is wanted here, or is packed.",
    429: "Asked too often; `Retry-After` has the seconds.",
    416: "The file has no byte in that range; `Content-Range` has its size.",
    421: "The catalog is not served under that name.",
    500: "The stored bytes are faulty; this is told before the first byte. Later the connection is cut.",
    503: "It took too long or too much is going on; `Retry-After` has the seconds.",
}
_API_REFUSALS: Mapping[int, str] = {416: "The chunk begins elsewhere than it is to; `received_bytes` says where."}
"""Where a status means something else to the API than to downloads."""
_REFUSAL_SCHEMAS: Mapping[int, str] = {416: "UploadProblem"}
_API_ONLY = (401, 403, 411)
_DOWNLOAD_REFUSALS = tuple(status for status in _REFUSALS if status not in _API_ONLY)
_CONDITIONS: Mapping[str, str] = {
    "If-None-Match": "ETags that the asker has.",
    "Range": "One range of bytes: `bytes=0-1023`. Several are answered with the whole.",
    "If-Range": "The ETag of what the asker has a part of; the whole is the answer if it is another.",
    "If-Match": "The ETag that the file must have.",
}
_API_CONDITIONS = ("If-None-Match",)
_FILE_HEADERS = ("ETag", "Accept-Ranges", "Content-Disposition", "Cache-Control")
_JSON = "application/json"
_BYTES: Schema = {"type": "string", "format": "binary"}
SECURITY = "token"
SECURITY_TEXT = "A contributor's token; `organ token create` makes one."


def document(version: str) -> Schema:
    """The document of that version of the program."""
    paths: dict[str, Schema] = {}
    order = tuple(GROUPS)
    for told in sorted(operations(), key=lambda told: order.index(told.group)):
        paths.setdefault(told.path, {})[told.method] = _operation(told)
    for download in DOWNLOADS:
        paths[download.path] = {"get": _download(download)}
    return {
        "openapi": VERSION,
        "info": {
            "title": "Organ registry",
            "version": version,
            "summary": "The parts of language models: search, measure, compare, download.",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in GROUPS.items()],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": _responses(),
            "parameters": {name: _header(name, text) for name, text in _CONDITIONS.items()},
            "securitySchemes": {SECURITY: {"type": "http", "scheme": "bearer", "description": SECURITY_TEXT}},
        },
    }


def _schemas() -> dict[str, Schema]:
    """Return the schemas of all entities that operations answer or take, and of what is not an entity."""
    _, problem = msgspec.json.schema_components([Problem], ref_template=REF_TEMPLATE)
    upload = schemas([Upload])["Upload"]
    upload_problem: Schema = {
        "description": "What is wrong, and the members of the upload as it is.",
        "allOf": [_ref("Problem"), {name: part for name, part in upload.items() if name != "additionalProperties"}],
    }
    openapi: Schema = {"type": "object", "description": "This document.", "required": ["openapi", "info", "paths"]}
    return {DOCUMENT: openapi, "UploadProblem": upload_problem, **problem, **schemas(list(entities()))}


def _operation(told: Operation) -> Schema:
    found: Schema = {
        "operationId": told.name,
        "tags": [told.group],
        "summary": told.summary,
        "description": told.description,
        "parameters": [_parameter(one) for one in told.parameters],
        "responses": {str(told.status): _answer(told)} | _refused("json", told.refusals),
    }
    if told.scope is not None:
        found["security"] = [{SECURITY: [told.scope]}]
    if told.method == "get":
        found["parameters"] += [_component("parameters", name) for name in _API_CONDITIONS]
        found["responses"]["304"] = _component("responses", "NotModified")
    if told.body is not None:
        found["requestBody"] = {"required": True, "content": {_JSON: {"schema": _ref(told.body)}}}
    if told.bytes_example is not None:
        found["requestBody"] = {"required": True, "content": {OCTETS: {"schema": _BYTES}}}
    return found


def _answer(told: Operation) -> Schema:
    content: Schema = {"schema": _ref(told.answer)}
    example = example_answers().get(told.name)
    if example is not None:
        content["example"] = example
    headers = {"ETag": _text_header("Strong.")} if told.method == "get" else {}
    if told.status == 202:
        headers["Location"] = _text_header("Where to ask how it goes on.")
    if told.is_list:
        headers["Link"] = _text_header("The next page, if there is one.", required=False)
    answer: Schema = {"description": told.summary, "content": {_JSON: content}}
    return answer | ({"headers": headers} if headers else {})


def _download(told: Download) -> Schema:
    headers = {name: _text_header("") for name in _FILE_HEADERS}
    content: Schema = {OCTETS: {"schema": {}}}
    part = {**headers, "Content-Range": _text_header("Which part, and of how many bytes.")}
    return {
        "operationId": told.name,
        "tags": [DOWNLOADS_GROUP],
        "summary": told.summary,
        "description": told.description,
        "parameters": [_parameter(one) for one in told.parameters]
        + [_component("parameters", name) for name in _CONDITIONS],
        "responses": {
            "200": {"description": "The whole.", "headers": headers, "content": content},
            "206": {"description": "The range that was asked for.", "headers": part, "content": content},
            "304": _component("responses", "NotModified"),
        }
        | _refused("words", [one for one in _DOWNLOAD_REFUSALS if one != 410 or NAMESPACE in told.parameters]),
    }


def _responses() -> Schema:
    """The refusals, for programs below the API and for people at downloads; and that nothing has changed."""
    found: Schema = {
        "NotModified": {"description": "What the asker has is current.", "headers": {"ETag": _text_header("")}}
    }
    for status, text in _REFUSALS.items():
        schema = _ref(_REFUSAL_SCHEMAS.get(status, "Problem"))
        told = _API_REFUSALS.get(status, text)
        found[f"json-{status}"] = {"description": told, "content": {MEDIA_TYPE: {"schema": schema}}}
        if status in _DOWNLOAD_REFUSALS:
            found[f"words-{status}"] = {"description": text, "content": {"text/html": {}, "text/plain": {}}}
        for form in ("json", "words"):
            if status in (429, 503) and f"{form}-{status}" in found:
                found[f"{form}-{status}"]["headers"] = {"Retry-After": _text_header("Seconds.")}
    used = {f"json-{status}" for one in operations() for status in one.refusals}
    return {name: one for name, one in found.items() if not name.startswith("json-") or name in used}


def _refused(form: str, statuses: Iterable[int]) -> Schema:
    return {str(status): _component("responses", f"{form}-{status}") for status in statuses}


def _parameter(one: Parameter) -> Schema:
    found: dict[str, Any] = {
        "name": one.name,
        "in": one.where,
        "required": one.required,
        "description": one.description,
        "schema": one.schema,
    }
    return found | ({"example": one.example} if one.example else {})


def _header(name: str, text: str) -> Schema:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}


def _text_header(text: str, *, required: bool = True) -> Schema:
    found: Schema = {"required": required, "schema": {"type": "string"}}
    return found | ({"description": text} if text else {})


def _ref(name: str) -> Schema:
    return {"$ref": REF_TEMPLATE.format(name=name)}


def _component(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


GROUP = "About"
DOCUMENT = "Document"
"""The schema of the OpenAPI document, the one answer that is not an entity."""


@operation("", group=GROUP, summary="What answers here", answer=Root, example=ROOT)
def root() -> Root:
    """The program's version, the registry in figures, and where to go on."""
    with reading(settings().search_seconds) as session:
        figures = public_figures(session)
    names = ("organs", "facets", "models", "compare", "reports", "jobs", "openapi.json")
    links = {name: f"{ROOT}/{name}" for name in names}
    return Root(name="Organ registry", version=program_version(), figures=figures, links=links)


@operation(
    "/openapi.json",
    group=GROUP,
    summary="This document",
    answer=DOCUMENT,
    example=f"{ROOT}/openapi.json",
)
def openapi() -> Schema:
    """The API as OpenAPI 3.1 describes it."""
    return document(program_version())


@cache
def program_version() -> str:
    """The version that is installed; 0 where the program runs from a folder."""
    try:
        return version("organ-registry")
    except PackageNotFoundError:
        return "0"
