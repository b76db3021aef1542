"""The reference of the API: the document of `/api/v1/openapi.json` as a page, operation by operation."""

from __future__ import annotations

import json
from typing import Any

from organs.registry.endpoints.declaration import Endpoint
from organs.registry.endpoints.table import API
from organs.web.api.document import document, example_answers, program_version
from organs.web.pages.routes import Context, WebPage, paged
from organs.web.responses import origin

ANSWER_LINES_MAX = 10
"""Lines of an example answer on the page. The OpenAPI document has all of them."""
_METHODS = ("get", "post", "put", "patch", "delete")
_WITHOUT_ANSWER = ("openapi",)
"""Operations whose example answer would be the whole document."""


@paged("/api")
def reference() -> WebPage:
    """Show the operations of the API with examples; the JSON twin is the OpenAPI document."""
    api_document = document(program_version())
    return WebPage("reference.html", lambda: api_document | _page_context(api_document), body=api_document)


def _page_context(api_document: Context) -> Context:
    shown = [
        _operation(method, path, item[method], API.get(item[method]["operationId"]))
        for path, item in api_document["paths"].items()
        for method in _METHODS
        if method in item
    ]
    statuses: dict[str, list[str]] = {}
    for name, response in api_document["components"]["responses"].items():
        status = "304" if name == "NotModified" else name.rpartition("-")[2]  # `404` of `json-404`
        meanings = statuses.setdefault(status, [])
        if response["description"] not in meanings:
            meanings.append(response["description"])
    return {
        "groups": [
            {
                "name": tag["name"],
                "text": tag["description"],
                "operations": [operation for operation in shown if operation["group"] == tag["name"]],
            }
            for tag in api_document["tags"]
        ],
        "paragraphs": api_document["info"]["description"].split("\n\n"),
        "shared_statuses": sorted((status, " Or: ".join(meanings)) for status, meanings in statuses.items()),
    }


def _operation(method: str, path: str, item: Context, spec: Endpoint[..., Any] | None) -> Context:
    answer = None
    if spec is not None and spec.name not in _WITHOUT_ANSWER and spec.name in example_answers():
        lines = json.dumps(example_answers()[spec.name], ensure_ascii=False, indent=2).split("\n")
        answer = "\n".join(lines if len(lines) <= ANSWER_LINES_MAX else [*lines[:ANSWER_LINES_MAX], "…"])
    return {
        "name": item["operationId"],
        "group": item["tags"][0],
        "method": method.upper(),
        "path": path,
        "summary": item["summary"],
        "description": item["description"],
        "parameters": [
            {**parameter, "type_text": _type_text(parameter["schema"])}
            for parameter in item["parameters"]
            if "$ref" not in parameter
        ],
        "request": None if spec is None else _request(path, spec),
        "answer": answer,
        "schema": None if spec is None else spec.answer_name,
        "statuses": [
            (status, response["description"])
            for status, response in sorted(item["responses"].items())
            if "$ref" not in response
        ],
        "shared_statuses": sorted(status for status, response in item["responses"].items() if "$ref" in response),
    }


def _type_text(schema: Context) -> str:
    """Return the type of a parameter in words, with its default."""
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    text = str({"integer": "whole number", "string": "text"}.get(schema["type"], schema["type"]))
    return f"{text}, {schema['default']} by default" if "default" in schema else text


def _request(path: str, spec: Endpoint[..., Any]) -> str:
    """Return the example request to this server as a curl command."""
    server = origin()
    if spec.method == "get":
        return f"curl '{server}{spec.example}'"
    method = "" if spec.method == "post" else f"-X {spec.method.upper()} "
    if spec.bytes_example is not None:
        headers = [
            f"-H '{parameter.name}: {parameter.example}'"
            for parameter in spec.parameters
            if parameter.where == "header" and parameter.required
        ]
        arguments = " ".join([*headers, "-H 'Content-Type: application/octet-stream'", "--data-binary @FILE"])
        return f"curl {method}{arguments} '{server}{spec.example}'"
    if spec.body is None:
        return f"curl {method or '-X POST '}'{server}{spec.example}'"
    return f"curl {method}-H 'Content-Type: application/json' -d '{spec.example}' {server}{path}"
