"""The reference of the API: the document of `/api/v1/openapi.json` as a page, operation by operation."""

from __future__ import annotations

import json

from organs.web.api.document import document, example_answers, program_version
from organs.web.api.operation import Operation, operations
from organs.web.pages.routes import Context, WebPage, paged, pages
from organs.web.responses import origin

ANSWER_LINES_MAX = 10
"""Lines of an example answer on the page. The OpenAPI document has all of them."""
_METHODS = ("get", "post", "put", "patch", "delete")
_WITHOUT_ANSWER = ("openapi",)
"""Operations whose example answer would be the whole document."""


@paged(pages, "/api")
def reference() -> WebPage:
    """Show the operations of the API with examples; the JSON twin is the OpenAPI document."""
    api_document = document(program_version())
    return WebPage("reference.html", api_document, extra=lambda: _page_context(api_document))


def _page_context(api_document: Context) -> Context:
    components = api_document["components"]
    specs = {spec.name: spec for spec in operations()}
    operations_shown = [
        _operation(method, path, item[method], specs.get(item[method]["operationId"]))
        for path, item in api_document["paths"].items()
        for method in _METHODS
        if method in item
    ]
    groups = [
        {
            "name": tag["name"],
            "text": tag["description"],
            "operations": _operations_of_group(operations_shown, tag["name"]),
        }
        for tag in api_document["tags"]
    ]
    return {
        "groups": groups,
        "paragraphs": api_document["info"]["description"].split("\n\n"),
        "shared_statuses": _shared_statuses(components),
    }


def _shared_statuses(components: Context) -> list[tuple[str, str]]:
    """Return the statuses that mean the same for many operations, each with its meanings."""
    texts: dict[str, list[str]] = {}
    for name, response in components["responses"].items():
        meanings = texts.setdefault(_shared_status(name), [])
        if response["description"] not in meanings:
            meanings.append(response["description"])
    return sorted((status, " Or: ".join(meanings)) for status, meanings in texts.items())


def _shared_status(name: str) -> str:
    """Return the status of a shared response: `404` of `json-404`."""
    return "304" if name == "NotModified" else name.rpartition("-")[2]


def _operations_of_group(operations: list[Context], name: str) -> list[Context]:
    return [operation for operation in operations if operation["group"] == name]


def _operation(method: str, path: str, item: Context, spec: Operation | None) -> Context:
    answer = None if spec is None or spec.name in _WITHOUT_ANSWER else example_answers().get(spec.name)
    return {
        "name": item["operationId"],
        "group": item["tags"][0],
        "method": method.upper(),
        "path": path,
        "summary": item["summary"],
        "description": item["description"],
        "parameters": [_parameter(parameter) for parameter in item["parameters"] if "$ref" not in parameter],
        "request": _request(path, spec),
        "answer": answer and _first_lines(json.dumps(answer, ensure_ascii=False, indent=2)),
        "schema": None if spec is None else spec.answer,
        "statuses": [
            (status, response["description"])
            for status, response in sorted(item["responses"].items())
            if "$ref" not in response
        ],
        "shared_statuses": sorted(status for status, response in item["responses"].items() if "$ref" in response),
    }


def _first_lines(text: str) -> str:
    lines = text.split("\n")
    return text if len(lines) <= ANSWER_LINES_MAX else "\n".join([*lines[:ANSWER_LINES_MAX], "…"])


def _parameter(parameter: Context) -> Context:
    return {**parameter, "type_text": _type_text(parameter["schema"])}


def _type_text(schema: Context) -> str:
    """Return the type of a parameter in words, with its default."""
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    text = str({"integer": "whole number", "string": "text"}.get(schema["type"], schema["type"]))
    return f"{text}, {schema['default']} by default" if "default" in schema else text


def _request(path: str, spec: Operation | None) -> str | None:
    """Return the example request to this server as a curl command."""
    if spec is None:
        return None
    server = origin()
    if spec.method == "get":
        return f"curl '{server}{spec.example}'"
    method = "" if spec.method == "post" else f"-X {spec.method.upper()} "
    if spec.bytes_example is not None:
        required_headers = (
            parameter for parameter in spec.parameters if parameter.where == "header" and parameter.required
        )
        headers = [f"-H '{parameter.name}: {parameter.example}'" for parameter in required_headers]
        arguments = " ".join([*headers, "-H 'Content-Type: application/octet-stream'", "--data-binary @CHUNK"])
        return f"curl {method}{arguments} '{server}{spec.example}'"
    if spec.body is None:
        return f"curl {method or '-X POST '}'{server}{spec.example}'"
    return f"curl {method}-H 'Content-Type: application/json' -d '{spec.example}' {server}{path}"
