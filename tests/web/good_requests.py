"""A request for every rule of the catalog that is good, if who asks may: its address, and what is sent to it."""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any

from flask.testing import FlaskClient

from organs.registry.gguf import MemorySource, read_header
from organs.registry.local import LocalRegistry
from tests.card_images import NAME, POINTS
from tests.related_models import model_file, related_tensors
from tests.web import owned_catalog as ada
from tests.web.owned_catalog import ASKERS, Askers

READING = ("GET", "HEAD")
RECIPE = {"base": ada.VISIBLE, "grafts": [{"where": f"model:{ada.BASE} type:organ", "blocks": 1}]}
GRAFT = {"base": ada.VISIBLE, "donor": ada.BASE, "type": "organ"}
COMPOSED = {"base": ada.VISIBLE, "graft": f"from:{ada.BASE} type:organ blocks:0"}
YANK, REFUSE = {"reason": "why"}, {"reason": "no"}
SPREAD = sha256(bytes(96)).hexdigest()
MANIFEST = {
    "files": [{"name": "zeros.gguf", "size_bytes": 96, "sha256": SPREAD, "pieces": []}],
    "metadata": {"license": "mit"},
    "publish": False,
}
CHUNK = {
    "data": ada.SENT,
    "content_type": "application/octet-stream",
    "headers": {
        "Content-Range": f"bytes 0-{len(ada.SENT) - 1}/{len(ada.SENT)}",
        "Content-Digest": f"sha-256=:{base64.b64encode(sha256(ada.SENT).digest()).decode()}:",
    },
}
PLAIN_ARGUMENTS = {
    "text": "card.md",
    "filename": "catalog.js",
    "form": "npy",
    "image": sha256(POINTS).hexdigest(),
    "ending": "png",
    "section": "ranking",
    "page": "guide",
    "picture": "catalog-compose.png",
    "revision": "main",
    "tag": "latest",
    "run": "1",
    "evolution": "1",
    "trial": "1",
    "kind": "models",
    "saved": "small",
    "key": "0" * 32,
}
"""Values for names that rules have in angle brackets, in any catalog."""
_MODEL, _API, _ADMIN = "/models/<namespace>/<name>", "/api/v1", "/api/v1/admin"
BODIES: dict[tuple[str, str], Any] = {
    ("POST", f"{_API}/assemblies"): {"model": ada.VISIBLE},
    ("POST", f"{_API}/organs/lookup"): {"digests": ["0" * 64]},
    ("POST", f"{_API}/answers"): {"model": ada.VISIBLE, "messages": [{"role": "user", "content": "Hello"}]},
    ("POST", f"{_API}/uploads/lookup"): {"digests": ["0" * 64]},
    ("POST", f"{_API}/plans"): RECIPE,
    ("POST", f"{_API}/chimeras"): RECIPE,
    ("POST", f"{_API}/grafts"): GRAFT,
    ("POST", f"{_API}/purifications"): {"model": ada.VISIBLE, "method": "fractal", "type": "organ"},
    ("POST", f"{_API}/evolutions"): {"space": {"base": ada.VISIBLE, "donors": [ada.BASE], "texts": ["python"]}},
    ("POST", f"{_API}/extractions"): {"model": ada.VISIBLE},
    ("POST", f"{_API}/measurements"): {"model": ada.VISIBLE},
    ("POST", f"{_API}/jobs/quantize"): {"model": ada.VISIBLE, "like": "Q8_0"},
    ("POST", f"{_API}/quick-looks"): {"chimera": f"{ada.MIXED}@1"},
    ("POST", f"{_API}/validations"): {"chimera": f"{ada.MIXED}@1"},
    ("POST", f"{_API}/reports"): {},
    ("POST", f"{_API}/uploads"): {"kind": "piece", "size_bytes": 5, "digest": sha256(b"other").hexdigest()},
    ("POST", f"{_API}/submissions/<submission>/publish"): {},
    ("PUT", f"{_API}/saved-queries/<kind>/<saved>"): {"query": "params<1G"},
    ("POST", "/search/saved"): {"kind": "models", "name": "small", "q": "params<1G"},
    ("PUT", _API + _MODEL): MANIFEST,
    ("PATCH", _API + _MODEL): {"title": "Another"},
    ("POST", f"{_API}{_MODEL}/yank"): YANK,
    ("POST", f"{_API}{_MODEL}/restore"): {},
    ("POST", f"{_ADMIN}/contributors"): {"name": "grace"},
    ("PATCH", f"{_ADMIN}/contributors/<contributor>"): {"quota": 1},
    ("POST", f"{_ADMIN}{_MODEL}/remove"): {"version": 1, "reason": "no"},
    ("POST", f"{_ADMIN}/submissions/<submission>/refuse"): REFUSE,
    ("POST", "/api/models/<user>/<name>/paths-info/<revision>"): {"paths": ["README.md"]},
    ("POST", "/admin/contributors/new"): {"name": "hopper", "scope": "read", "days": "30"},
    ("POST", "/admin/contributors/<contributor>/quota"): {"quota": "1 GB"},
    ("POST", "/admin/contributors/<contributor>/state"): {"state": "suspended"},
    ("POST", "/admin/submissions/<submission>/refuse"): REFUSE,
    ("POST", "/compose"): COMPOSED,
    ("POST", "/evolutions"): {"base": ada.VISIBLE, "donors": ada.BASE, "text": ["python"], "minutes": "5"},
    ("POST", f"{_MODEL}/edit"): {"title": "Another"},
    ("POST", f"{_MODEL}/sizes"): {"size": "Q8_0"},
    ("POST", f"{_MODEL}/yank"): YANK,
    ("POST", "/submissions/<submission>/publish"): {"license": "mit"},
}
"""JSON for the API and the hub's clients, fields of a form for pages."""
QUERIES = {
    **{one: {"first": ada.VISIBLE, "second": ada.BASE} for one in (f"{_API}/compare", "/compare.csv", "/compare.json")},
    f"{_API}/compatibility": {"base": ada.VISIBLE, "donor": ada.BASE},
    f"{_API}/composition": {"base": ada.VISIBLE},
    f"{_API}/fitting": {"base": ada.VISIBLE},
    "/compose/fits.json": {"base": ada.VISIBLE},
    f"{_API}/models/lookup": {"digest": sha256(model_file("open", related_tensors())).hexdigest()},
}
OTHERWISE: dict[tuple[str, str], dict[str, str]] = {
    **{
        ("GET", f"/v2/<user>/<name>/{kind}/<digest>"): {
            "digest": f"sha256:{sha256(model_file('open', related_tensors())).hexdigest()}"
        }
        for kind in ("blobs", "chunksums")
    },
    ("GET", "/jobs/<job>/files/<file>"): {"job": str(ada.PACKED), "file": ada.PACK_FILE},
    ("PUT", f"{_API}/uploads/<upload>"): {"upload": ada.FULL},
    ("PUT", _API + _MODEL): {"name": "fresh"},
    **{
        ("POST", f"{root}/submissions/<submission>/{deed}"): {"submission": str(ada.WAITING)}
        for root in (_ADMIN, "/admin")
        for deed in ("approve", "refuse")
    },
    **{
        (method, f"{root}/contributors/<contributor>{end}"): {"contributor": "bob"}
        for method, root, end in (("PATCH", _ADMIN, ""), ("POST", "/admin", "/state"), ("POST", "/admin", "/quota"))
    },
}
"""Where something else is addressed than in all other rules."""


def header_digest(file: bytes) -> str:
    """Of the header of a GGUF file."""
    return sha256(file[: read_header(MemorySource(file)).end]).hexdigest()


def arguments(client: FlaskClient, registry: LocalRegistry, askers: Askers) -> dict[str, str]:
    """A value for each name that rules have in angle brackets."""
    model = client.get(f"/api/v1/models/{ada.VISIBLE}").get_json()
    organs = client.get(f"/api/v1/models/{ada.VISIBLE}/organs?limit=1000").get_json()["items"]
    return {
        **PLAIN_ARGUMENTS,
        **dict.fromkeys(("namespace", "user", "contributor"), "ada"),
        **dict.fromkeys(("file", "path"), model["files"][0]["name"]),
        "name": "open",
        "short": "open",
        "digest": organs[-1]["digest"],
        "header": header_digest(model_file("open", related_tensors())),
        "lock": ada.lock_ids(registry)[ada.MIXED],
        "token": askers.spare[5:14],
        "upload": ada.OPEN,
        "submission": str(ada.READY),
        "job": str(ada.QUEUED),
    }


def sent(askers: Askers, asker: str, method: str, rule: str) -> dict[str, Any]:
    """Return the options for a request of `asker`: a query, JSON, bytes, or a form."""
    scopes = ASKERS[asker][1] if asker in ASKERS else ("read",)
    body = BODIES.get((method, rule))
    if method in READING:
        return {"query_string": QUERIES.get(rule, {})}
    if (method, rule) == ("PATCH", f"{_API}/uploads/<upload>"):
        return CHUNK
    if (method, rule) == ("PUT", f"{_API}{_MODEL}/images"):
        return {"data": POINTS, "content_type": "application/octet-stream", "query_string": {"image": NAME}}
    if rule == f"{_API}/account/tokens":
        body = {"label": "more", "scopes": scopes[:1]}
    if rule.startswith("/api/"):
        return {} if body is None else {"json": body}
    own = {"/login": {"token": askers.spare}, "/account/tokens": {"scope": scopes[0]}}
    return {"data": {**(body or {}), **own.get(rule, {}), **askers.fields[asker]}}
