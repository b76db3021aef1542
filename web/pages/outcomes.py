"""What came of a job, for its page: what matters of its result, each thing once. Pure but for addresses.

A result comes from the catalog, where any job of any kind may have left it: what has not the form that is looked for is
left out here, and stands in the result as JSON.
"""

from __future__ import annotations

from flask import url_for

from organs.registry.names import MODEL_TEXT_MAX_LENGTH
from organs.registry.present.text import size_text
from organs.registry.present.values import Values
from organs.web.links import model_address, organ_address
from organs.web.pages.verdicts import MEANINGS

LINKS_MAX = 100
TEXT_MAX = 2000


def outcome(kind: str, result: Values, lock: str | None = None) -> Values:
    """`facts` (label, text, address), `differences` and `links` of the result of a job of that kind.

    `lock` is that of the chimera which the result speaks of, where it is known otherwise.
    """
    facts: list[Values] = []
    differences: list[Values] = []
    if kind == "validate":
        facts = _validated(result, lock)
    elif _text(result, "lock"):
        facts = _composed(result)
    elif kind == "measure":
        facts, differences = _measured(result)
    elif kind == "report":
        facts = _reported(result)
    said = {fact["text"] for fact in facts if fact["address"] is not None} | {fact["address"] for fact in facts}
    links = [link for link in result_links(result) if not said & {link["label"], link["address"]}]
    return {"facts": facts, "differences": differences, "links": links}


def result_links(result: Values) -> list[Values]:
    """The pages of the models and organs that a result names, under `model`, `models`, `organ` and `organs`; and of the
    chimera whose `lock` it has."""
    models = [name for name in _texts(result, "model") if _is_name(name)]
    organs = [digest for digest in _texts(result, "organ") if digest.isalnum()]
    locks = [digest for digest in _texts(result, "lock") if digest.isalnum()]
    links = [{"label": "the chimera", "address": url_for("pages.chimera", lock=digest)} for digest in locks]
    links += [{"label": name, "address": model_address(name)} for name in models]
    links += [{"label": digest[:12], "address": organ_address(digest)} for digest in organs]
    return list({link["address"]: link for link in links}.values())[:LINKS_MAX]


def _validated(result: Values, lock: str | None) -> list[Values]:
    verdict, reason, name = (_text(result, key) for key in ("verdict", "reason", "model"))
    meaning = f": {MEANINGS[verdict]}" if verdict in MEANINGS else ""
    return [
        *([_fact("verdict", f"{verdict}{meaning}")] if verdict else []),
        *([_fact("reason", reason)] if reason else []),
        *_chimera(name, lock),
    ]


def _composed(result: Values) -> list[Values]:
    size, created = result.get("size_bytes"), result.get("created")
    return [
        *_chimera(_text(result, "model"), _text(result, "lock")),
        *([_fact("size", size_text(size))] if isinstance(size, int) else []),
        *([_fact("made", "before: the same recipe and organs stood here already")] if created is False else []),
    ]


def _measured(result: Values) -> tuple[list[Values], list[Values]]:
    measured, found = result.get("measured"), result.get("differences")
    name = _text(result, "model")
    facts = [_fact("model", name, model_address(name))] if _is_name(name) else []
    facts += [_fact("organs measured", f"{measured:,}")] if isinstance(measured, int) else []
    known = found.items() if isinstance(found, dict) else ()
    return facts, [
        {"number": number.replace("_", " "), "difference": one["difference"], "tensor": one["tensor"]}
        for number, one in known
        if isinstance(one, dict) and isinstance(one.get("difference"), float) and _text(one, "tensor")
    ]


def _reported(result: Values) -> list[Values]:
    if "report" not in result:
        return []
    name = _text(result, "model")
    if not name:
        return [_fact("report", "on all models", url_for("pages.reports"))]
    return [_fact("report", f"on {name}", model_address(name, "pages.dissection"))] if _is_name(name) else []


def _chimera(name: str, lock: str | None) -> list[Values]:
    """The chimera of that name: its page, where its lock is known, else that of the model."""
    if not _is_name(name):
        return []
    is_digest = lock is not None and lock.isalnum()
    return [_fact("chimera", name, url_for("pages.chimera", lock=lock) if is_digest else model_address(name))]


def _fact(label: str, text: str, address: str | None = None) -> Values:
    return {"label": label, "text": text, "address": address}


def _is_name(text: str) -> bool:
    return 1 <= text.find("/") < len(text) - 1 and len(text) <= MODEL_TEXT_MAX_LENGTH


def _text(result: Values, name: str) -> str:
    """What stands under `name`, if it is short text; else nothing."""
    text = result.get(name)
    return text if isinstance(text, str) and len(text) <= TEXT_MAX else ""


def _texts(result: Values, name: str) -> list[str]:
    """What stands under `name` and its plural, as far as it is short text."""
    one, many = result.get(name), result.get(f"{name}s")
    found = [one, *(many if isinstance(many, list) else [])]
    return [text for text in found if isinstance(text, str) and len(text) <= MODEL_TEXT_MAX_LENGTH]
