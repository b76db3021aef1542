"""The OpenAPI document with examples, made from the routes of the API and a list of downloads; and the root."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import msgspec

from organs.registry.catalog.queries.reports import public_figures
from organs.registry.endpoints import about as endpoints
from organs.registry.endpoints.declaration import DOCUMENT, ROOT, Endpoint, Parameter
from organs.registry.endpoints.table import API, DOWNLOADS, GROUPS
from organs.registry.entities.base import REF_TEMPLATE, Entity, Schema, schema_name, schemas
from organs.registry.entities.problem import MEDIA_TYPE, Problem
from organs.registry.entities.server import Root
from organs.registry.entities.submission import Upload
from organs.web.api.operation import serves
from organs.web.file_responses import OCTETS
from organs.web.responses import (
    searching,
)


@cache
def example_answers() -> dict[str, Any]:
    """Return example answers by the name of the operation."""
    examples: dict[str, Any] = json.loads(files("organs.web.api").joinpath("examples.json").read_text("utf-8"))
    return examples


_TEXT: Schema = {"type": "string"}
VERSION = "3.1.1"
DESCRIPTION = """\
Answers are JSON, except downloads, which are bytes.

Reading needs no account. Operations that write or run something need a token in the header `Authorization: Bearer
TOKEN`. The token must have the scope of the operation, `upload` or `admin`; for the scope `any`, every token is valid.
A local server, which only its own machine can reach, needs no token. The API ignores cookies, and refuses requests
that a browser sends for a page of another site (403). Too many requests get 429; `Retry-After` has the seconds to wait.
Long tasks return 202 and a job; the header `Location` has its address.

A list has the form `{"items", "next", "notes"}`. To get the next page, send `after=<next>`; the header `Link` with
`rel="next"` has the address. A `next` is valid only for the query that it came from.

Answers to GET have a strong ETag. Send it as `If-None-Match` to get 304 without a body if nothing has changed. HEAD
returns the same headers as GET, without the body.

Every error below `/api/v1` is a problem document (RFC 9457, `application/problem+json`): `type`, `title`, `status`,
`detail`, a stable `code` for programs, and `errors`, a list of `field`, `code` and `detail`. Some codes have further
members, such as `seconds`. Unknown and repeated parameters are refused, so that you notice a misspelt one. 405 comes
with `Allow`, 503 with `Retry-After`. Other addresses return 404.

Pages of the catalog have JSON too: add `.json` to the address of a page. If an operation returns its content, the
address redirects (302) to that operation; otherwise it returns the values of the page, which may change with the page.
Lists also have `.csv`.
"""
_REFUSALS: Mapping[int, str] = {
    400: "The request is not valid; `errors` has the fields and the reasons.",
    401: "A token is missing, or the one that was sent is not valid.",
    403: "The token lacks the scope, the resource belongs to somebody else, or the server is read-only.",
    404: "Not found.",
    409: "The request is ambiguous, or conflicts with the state of the resource.",
    410: "The model was removed; `removed_on` and `reason` have the details.",
    412: "The file does not have the ETag in `If-Match`.",
    411: "The header `Content-Length` is missing.",
    413: "The body is too large, exceeds the quota (`over-quota`), or costs too much work (`too-costly`).",
    414: "The address is too long.",
    415: "The body has the wrong type, or is compressed.",
    429: "Too many requests; `Retry-After` has the seconds to wait.",
    416: "The file has no byte in that range; `Content-Range` has its size.",
    421: "The server does not accept this host name.",
    500: "The stored bytes are damaged. If this is found after the first byte was sent, the connection is closed.",
    503: "The request took too long, or the server is busy; `Retry-After` has the seconds to wait.",
}
_API_REFUSALS: Mapping[int, str] = {416: "The chunk does not begin at `received_bytes`."}
"""Statuses whose meaning differs between the API and downloads."""
_REFUSAL_SCHEMAS: Mapping[int, str] = {416: "UploadProblem"}
_API_ONLY = (401, 403, 411)
_DOWNLOAD_REFUSALS = tuple(status for status in _REFUSALS if status not in _API_ONLY)
_CONDITIONS: Mapping[str, str] = {
    "If-None-Match": "ETags of cached answers.",
    "Range": "One range of bytes: `bytes=0-1023`. For several ranges, the whole file is returned.",
    "If-Range": "The ETag of the partly downloaded file; if it differs, the whole file is returned.",
    "If-Match": "The ETag that the file must have.",
}
_API_CONDITIONS = ("If-None-Match",)
_FILE_HEADERS = ("ETag", "Accept-Ranges", "Content-Disposition", "Cache-Control")
_JSON = "application/json"
_BYTES: Schema = {"type": "string", "format": "binary"}
SECURITY = "token"
SECURITY_TEXT = "A contributor's token; `organ token create` creates one."


def document(version: str) -> Schema:
    """Return the OpenAPI document for that version of the program."""
    paths: dict[str, Schema] = {}
    for spec in API.values():
        paths.setdefault(spec.path, {})[spec.method] = _operation(spec)
    for download in DOWNLOADS.values():
        paths[download.path] = {"get": _download(download)}
    return {
        "openapi": VERSION,
        "info": {
            "title": "Organ registry",
            "version": version,
            "summary": "Search, compare, combine and download the parts of language models.",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": group.name, "description": group.text} for group in GROUPS],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": _responses(),
            "parameters": {
                name: {"name": name, "in": "header", "required": False, "description": text, "schema": _TEXT}
                for name, text in _CONDITIONS.items()
            },
            "securitySchemes": {SECURITY: {"type": "http", "scheme": "bearer", "description": SECURITY_TEXT}},
        },
    }


def _schemas() -> dict[str, Schema]:
    """Return the schemas of all entities that operations answer or take, and of what is not an entity."""
    kinds = [kind for spec in API.values() for kind in (spec.answer, spec.body) if isinstance(kind, type)]
    entities = list(dict.fromkeys(kind for kind in kinds if issubclass(kind, Entity)))
    _, problem = msgspec.json.schema_components([Problem], ref_template=REF_TEMPLATE)
    upload = schemas([Upload])["Upload"]
    upload_problem: Schema = {
        "description": "The problem, and the members of the upload in its present state.",
        "allOf": [_ref("Problem"), {name: part for name, part in upload.items() if name != "additionalProperties"}],
    }
    openapi: Schema = {"type": "object", "description": "This document.", "required": ["openapi", "info", "paths"]}
    return {DOCUMENT: openapi, "UploadProblem": upload_problem, **problem, **schemas(entities)}


def _operation(spec: Endpoint[..., Any]) -> Schema:
    described: Schema = {
        "operationId": spec.name,
        "tags": [spec.group],
        "summary": spec.summary,
        "description": spec.description,
        "parameters": [_parameter(parameter) for parameter in spec.parameters],
        "responses": {str(spec.status): _answer(spec)} | _refused("json", spec.refusals),
    }
    if spec.scope is not None:
        described["security"] = [{SECURITY: [spec.scope]}]
    if spec.method == "get":
        described["parameters"] += [_component("parameters", name) for name in _API_CONDITIONS]
        described["responses"]["304"] = _component("responses", "NotModified")
    if spec.body is not None:
        described["requestBody"] = {"required": True, "content": {_JSON: {"schema": _ref(schema_name(spec.body))}}}
    if spec.bytes_example is not None:
        described["requestBody"] = {"required": True, "content": {OCTETS: {"schema": _BYTES}}}
    return described


def _answer(spec: Endpoint[..., Any]) -> Schema:
    content: Schema = {"schema": _ref(spec.answer_name)}
    example = example_answers().get(spec.name)
    if example is not None:
        content["example"] = example
    headers = {"ETag": _text_header("Strong.")} if spec.method == "get" else {}
    if spec.status == 202:
        headers["Location"] = _text_header("The address of the job, upload or submission.")
    if spec.is_list:
        headers["Link"] = _text_header("The next page, if there is one.", required=False)
    answer: Schema = {"description": spec.summary, "content": {_JSON: content}}
    return answer | ({"headers": headers} if headers else {})


def _download(spec: Endpoint[..., Any]) -> Schema:
    headers = {name: _text_header("") for name in _FILE_HEADERS}
    content: Schema = {OCTETS: {"schema": {}}}
    part = {**headers, "Content-Range": _text_header("The range and the size of the file.")}
    return {
        "operationId": spec.name,
        "tags": [spec.group],
        "summary": spec.summary,
        "description": spec.description,
        "parameters": [_parameter(parameter) for parameter in spec.parameters]
        + [_component("parameters", name) for name in _CONDITIONS],
        "responses": {
            "200": {"description": "The whole file.", "headers": headers, "content": content},
            "206": {"description": "The requested range.", "headers": part, "content": content},
            "304": _component("responses", "NotModified"),
        }
        | _refused("words", [status for status in _DOWNLOAD_REFUSALS if status != 410 or "{namespace}" in spec.path]),
    }


def _responses() -> Schema:
    """Return the responses that operations share: errors as JSON and as text, and 304."""
    responses: Schema = {"NotModified": {"description": "Not modified.", "headers": {"ETag": _text_header("")}}}
    for status, text in _REFUSALS.items():
        schema = _ref(_REFUSAL_SCHEMAS.get(status, "Problem"))
        spec = _API_REFUSALS.get(status, text)
        responses[f"json-{status}"] = {"description": spec, "content": {MEDIA_TYPE: {"schema": schema}}}
        if status in _DOWNLOAD_REFUSALS:
            responses[f"words-{status}"] = {"description": text, "content": {"text/html": {}, "text/plain": {}}}
        for form in ("json", "words"):
            if status in (429, 503) and f"{form}-{status}" in responses:
                responses[f"{form}-{status}"]["headers"] = {"Retry-After": _text_header("Seconds.")}
    used = {f"json-{status}" for spec in API.values() for status in spec.refusals}
    return {name: response for name, response in responses.items() if not name.startswith("json-") or name in used}


def _refused(form: str, statuses: Iterable[int]) -> Schema:
    return {str(status): _component("responses", f"{form}-{status}") for status in statuses}


def _parameter(parameter: Parameter) -> Schema:
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.description,
        "schema": parameter.schema,
    }
    return described | ({"example": parameter.example} if parameter.example else {})


def _text_header(text: str, *, required: bool = True) -> Schema:
    header: Schema = {"required": required, "schema": {"type": "string"}}
    return header | ({"description": text} if text else {})


def _ref(name: str) -> Schema:
    return {"$ref": REF_TEMPLATE.format(name=name)}


def _component(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


@serves(endpoints.root)
def root() -> Root:
    with searching() as session:
        figures = public_figures(session)
    names = ("organs", "facets", "models", "compare", "reports", "jobs", "openapi.json")
    links = {name: f"{ROOT}/{name}" for name in names}
    return Root(name="Organ registry", version=program_version(), figures=figures, links=links)


@serves(endpoints.openapi)
def openapi() -> Schema:
    return document(program_version())


@cache
def program_version() -> str:
    """Return the installed version; 0 if the program runs from a folder."""
    try:
        return version("organ-registry")
    except PackageNotFoundError:
        return "0"
