"""The documentation: the Markdown files of the package as pages, readable without a connection to the internet."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from flask import Response, abort, current_app, url_for
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from organs.web.pages.routes import WebPage, paged, pages
from organs.web.responses import conditional, outside_link, with_parameters

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Begin": {
        "guide": "Every command and setting, and how to register and write models.",
        "local-models": "Take in the models that Ollama, LM Studio and other tools keep.",
        "models": "Take in adapters from PEFT and MLX, mixtures of experts, and models that are larger than the disk.",
        "check": "Will llama.cpp load a file, and what mends it?",
        "chat": "Let a model answer prompts, in the terminal and in the catalog.",
        "catalog": "What each page of the catalog shows.",
        "search": "Find tensors and models: the query language.",
        "numbers": "Reports, and what θ, the signals and ranks say and do not say.",
        "words": "The words of this project, with the usual terms.",
    },
    "Combine": {
        "chimeras": "Make a chimera, measure it, and find the donors that helped.",
        "recipes": "The file that describes a chimera.",
        "evolve": "Let the registry search for the best chimera of a model.",
        "quantize": "The best file of a size, and how much worse it is.",
        "prediction": "What the weights say before a run, and what a look of some seconds measures.",
        "relatives": "Which models share weights, and which was made from which.",
        "directories": "A folder with a file for each tensor, for your own scripts.",
        "original-tools": "For users of the original scripts.",
    },
    "Share": {
        "sharing": "Push, publish, pull and compose at a registry on another machine.",
        "downloads": "Download models and tensors with a browser, curl or the Hugging Face tools.",
        "ollama": "Ollama, llama.cpp and the Hugging Face hub.",
    },
    "Run a registry": {
        "deployment": "Run a registry for others: TLS, upgrades, metrics, PostgreSQL, several servers.",
        "administration": "Backups, damage, free space, accounts, review, removal.",
        "storage": "What takes bytes on the disk, and how similar models share them.",
        "fleet": "Work on many models with many processes and machines.",
    },
    "Write programs": {
        "python": "Use a registry from Python.",
        "api": "The API over HTTP, with examples and uploads.",
        "errors": "Every error code, its status and its exit code.",
    },
}
"""The pages in the order of the list, by group, each with one sentence."""
DESIGN = "design"
FOLDERS = ("", DESIGN)
"""The folders whose files are shown."""
_PUNCTUATION = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class DocumentHeading:
    """A heading of a page, with the fragment of its address."""

    text: str
    fragment: str


@dataclass(frozen=True, slots=True)
class Document:
    """A page of the documentation. `html` has `{root}` before the addresses of this site."""

    name: str
    title: str
    text: str
    html: str
    headings: tuple[DocumentHeading, ...]
    """The headings of the second level."""


@paged("/docs")
def documentation() -> WebPage:
    """List the pages of the documentation."""
    documents = all_documents()
    groups = {
        title: [(documents[name], summary) for name, summary in summaries.items()]
        for title, summaries in GROUPS.items()
    }
    notes = [document for name, document in sorted(documents.items()) if name.startswith(f"{DESIGN}/")]
    return WebPage("documents.html", {"groups": groups, "notes": notes}, body={"documents": sorted(documents)})


@paged("/docs/<path:page>")
def document(page: str) -> WebPage:
    """Show one page of the documentation."""
    found = all_documents().get(page.removesuffix(".md"))
    if found is None:
        abort(404)
    context = {
        "document": found,
        "content": Markup(found.html.replace(_ROOT, url_for("pages.documentation"))),  # noqa: S704  # our own files
        "is_note": found.name.startswith(f"{DESIGN}/"),
    }
    return WebPage("document.html", context, body={"name": found.name, "text": found.text})


@pages.get("/docs/images/<picture>")
def documentation_image(picture: str) -> Response:
    """Return a picture of the documentation."""
    content = _images().get(picture)
    if content is None:
        abort(404)
    return conditional(current_app.response_class(content, mimetype="image/png"))


def documentation_address(name: str, fragment: str = "") -> str:
    """Return the address of the page `name`, and of the heading with this fragment."""
    return with_parameters(url_for("pages.document", page=name), {}) + (f"#{fragment}" if fragment else "")


@lru_cache(maxsize=1)
def all_documents() -> Mapping[str, Document]:
    """Return the pages by name: `guide`, `design/search`. They are read from the package once."""
    texts = {}
    for folder in FOLDERS:
        for file in files("organs").joinpath(posixpath.join("docs", folder)).iterdir():
            if file.name.endswith(".md"):
                texts[posixpath.join(folder, file.name.removesuffix(".md"))] = file.read_text("utf-8")
    return {name: _document(name, text, texts.keys()) for name, text in texts.items()}


@lru_cache(maxsize=1)
def _images() -> Mapping[str, bytes]:
    place = files("organs") / "docs"
    return {file.name: file.read_bytes() for file in place.iterdir() if file.name.endswith(".png")}


_ROOT = "{root}"


def _document(name: str, text: str, names: Collection[str]) -> Document:
    """Return a file as a page. Its first heading is the title; comments in HTML, which are for tests, are left out."""
    body = [token for token in _READER.parse(text) if token.type != "html_block"]
    title, headings = name, []
    first = next(
        (place for place, token in enumerate(body) if token.type == "heading_open" and token.tag == "h1"), None
    )
    if first is not None:
        title = _plain(body[first + 1]) or name
        del body[first : first + 3]
    for place, token in enumerate(body):
        if token.children:
            token.children = [part for part in token.children if part.type != "html_inline"]
        if token.type == "heading_open":
            own = _plain(body[place + 1])
            token.attrs = {"id": slug(own)}
            if token.tag == "h2":
                headings.append(DocumentHeading(own, slug(own)))
        for part in (token, *(token.children or ())):
            _clean(part, posixpath.dirname(name), names)
    html = _READER.renderer.render(body, _READER.options, {})
    return Document(name=name, title=title, text=text, html=html, headings=tuple(headings))


def slug(heading: str) -> str:
    """Return the fragment of a heading, as code hosts make it: lower case, hyphens for spaces, no punctuation."""
    return _PUNCTUATION.sub("", heading.lower()).replace(" ", "-")


def _plain(token: Token) -> str:
    return "".join(part.content for part in token.children or () if part.type in ("text", "code_inline"))


def _clean(token: Token, folder: str, names: Collection[str]) -> None:
    """Point links and images to this site, and replace inline styles, which the policy of pages forbids.

    A link to a file that is not shown becomes plain text.
    """
    if token.type in ("th_open", "td_open"):
        token.attrs = {"class": "n"} if "right" in str(token.attrs.get("style", "")) else {}
    elif token.type == "image":
        token.attrs = {"src": _target(str(token.attrs.get("src", "")), folder, names) or "", "alt": token.content}
    elif token.type == "fence":
        token.info = ""
    is_shown = True
    for part in token.children or ():
        if part.type == "link_open":
            target = _target(str(part.attrs.get("href", "")), folder, names)
            is_shown = target is not None
            part.attrs = {"href": target} if target else {}
        if part.type in ("link_open", "link_close") and not is_shown:
            part.tag = "span"


def _target(address: str, folder: str, names: Collection[str]) -> str | None:
    """Return the address on this site of a link in a file in `folder`; None if nothing is there."""
    if outside_link(address) or address.startswith("#"):
        return address
    path, _, fragment = address.partition("#")
    place = posixpath.normpath(posixpath.join(folder, path))
    if place.endswith(".png"):
        return f"{_ROOT}/images/{posixpath.basename(place)}"
    name = place.removesuffix(".md").removesuffix("/README")
    if place == f"{DESIGN}/README.md" or name == DESIGN:
        name = f"{DESIGN}/README"
    if name not in names:
        return None
    return f"{_ROOT}/{name}" + (f"#{fragment}" if fragment else "")


def _make_reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark", {"html": True})
    reader.enable("table")
    rules: dict[str, Any] = reader.renderer.rules  # type: ignore[attr-defined]
    frame = '<div class="frame" tabindex="0" role="region" aria-label="Table"><table class="wide">\n'
    rules["table_open"] = lambda *_: frame
    rules["table_close"] = lambda *_: "</table></div>\n"
    rules["fence"] = lambda tokens, place, *_: f'<pre tabindex="0">{Markup.escape(tokens[place].content)}</pre>\n'
    return reader


_READER = _make_reader()
