"""The pages that have a snapshot: two catalogs, who looks, and which page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import convert
from sqlalchemy import select

from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.chimeras import add_verdict, record_quick_look
from organs.registry.catalog.register.jobs import claim_job, enqueue_job, job_json, report_progress
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.catalog.tables import ModelRow, Token
from organs.registry.catalog.work import fail, finish
from organs.registry.entities.base import encode
from organs.registry.entities.validation import QuickLook, TextLook, VerdictReport
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.web.app import create_app
from organs.web.auth import COOKIE
from organs.web.settings import WebSettings
from tests.evolutions import add_evolution
from tests.gains import add_gains
from tests.gguf_files import raw_file, raw_tensor, text
from tests.related_models import ingest_bytes, model_file, parent_entries, related_tensors
from tests.sizes import add_size
from tests.small_models import block_tensors, expert_model, ingest_file, small_shards, weight_tensor
from tests.web.accounts import child_token, new_token, session_of
from tests.web.owned_catalog import fill_owned_catalog
from tests.web.page_outline import outline
from tests.web.test_verdicts import from_source, report, run_of

SNAPSHOTS = Path(__file__).with_name("snapshots")
SETTINGS = {"owner": WebSettings(personal=True), "reader": WebSettings(read_only=True)}
"""Of the servers on which somebody looks who is not at a server with accounts."""
ACCOUNTS = {"ada": ("upload", "tokens"), "root": ("admin",)}
"""The contributors who look, and the scopes of their tokens."""
PAGES: Mapping[str, tuple[str, str]] = {
    "home": ("anybody", "/"),
    "home-of-the-owner": ("owner", "/"),
    "models": ("anybody", "/models"),
    "models-second-page": ("anybody", "/models?limit=3 next"),
    "models-relatives": ("anybody", "/models?q=kin:local/base"),
    "models-gains": ("anybody", "/models?q=on:python+sort:-gain"),
    "models-wrong-query": ("anybody", "/models?q=block:3"),
    "model": ("anybody", "/models/local/base"),
    "model-of-ada": ("ada", "/models/ada/open"),
    "model-of-the-owner": ("owner", "/models/local/base"),
    "model-change": ("anybody", "/models/ada/open?against=local/stranger"),
    "model-versions": ("anybody", "/models/ada/weaver"),
    "model-yanked": ("anybody", "/models/ada/weaver@1"),
    "model-in-review": ("root", "/models/ada/hidden"),
    "model-removed": ("anybody", "/models/ada/gone"),
    "model-incomplete": ("anybody", "/models/local/shards"),
    "model-sizes": ("anybody", "/models/local/spinner-F16"),
    "model-sizes-of-the-owner": ("owner", "/models/local/spinner-F16?memory=8&context=512"),
    "model-that-is-a-size": ("anybody", "/models/local/spinner-Q8_0"),
    "model-experts": ("anybody", "/models/local/mixture"),
    "model-partial": ("anybody", "/models/local/wide?by=change"),
    "model-unknown-type": ("anybody", "/models/local/unknown"),
    "model-edit": ("ada", "/models/ada/open/edit"),
    "model-report": ("anybody", "/models/local/base/report"),
    "model-quantised": ("anybody", "/models/local/spinner-Q8_0"),
    "chimera": ("anybody", "/models/ada/mixed"),
    "chimera-of-the-owner": ("owner", "/models/ada/mixed"),
    "chimera-quick-look": ("owner", "/models/local/child"),
    "chimeras": ("anybody", "/chimeras"),
    "leaderboard": ("anybody", "/leaderboard"),
    "leaderboard-of-a-base": ("anybody", "/leaderboard?base=ada/open&on=python"),
    "search": ("anybody", "/search?q=base"),
    "search-of-ada": ("ada", "/search?q=tag:none&save=models"),
    "search-wrong-query": ("anybody", "/search?q=nothing:here"),
    "organs": ("anybody", "/organs?limit=4"),
    "organs-second-page": ("anybody", "/organs?q=type:norm+model:local/base&limit=2 next"),
    "organs-all": ("anybody", "/organs?q=model:local/base"),
    "organs-likeness": ("anybody", "/organs?q=fits:local/base+slot:ffn_up"),
    "organs-experts": ("anybody", "/organs?q=expert:5+slot:ffn_up_exps"),
    "organs-gains": ("anybody", "/organs?q=gain>0"),
    "organs-none": ("anybody", "/organs?q=nobodyknowsthis"),
    "organs-unknown-model": ("anybody", "/organs?q=fits:local/bas"),
    "organs-wrong-query": ("anybody", "/organs?q=thta:3"),
    "organ": ("anybody", "/organs/{organ}"),
    "organ-of-the-owner": ("owner", "/organs/{organ}"),
    "organ-norm": ("anybody", "/organs/{norm}"),
    "organ-expert": ("anybody", "/organs/{expert}"),
    "organ-computed": ("anybody", "/organs/{computed}"),
    "organ-weights": ("anybody", "/organs/{organ}/weights"),
    "compare": ("anybody", "/compare"),
    "compare-two-models": ("anybody", "/compare?first=local/base&second=ada/open"),
    "compare-one-model": ("anybody", "/compare?first=local/base&second=local/base@1"),
    "compare-more-organs": ("anybody", "/compare?first=local/base&second=local/mixture"),
    "compare-shapes": ("anybody", "/compare?first=local/base&second=local/wide"),
    "compare-experts": ("anybody", "/compare?first=local/mixture&second=local/edited"),
    "compare-unknown-models": ("anybody", "/compare?first=local/one&second=local/two"),
    "compose": ("anybody", "/compose"),
    "compose-without-base": ("anybody", "/compose?q=open&graft=from:local/base+type:organ+blocks:1"),
    "compose-base": ("anybody", "/compose?base=local/base&cell=organ:0"),
    "compose-steps": (
        "anybody",
        "/compose?base=local/base&graft=from:ada/open+type:organ+blocks:1&purify=method:fractal+blocks:0+type:skeleton",
    ),
    "compose-warnings": ("owner", "/compose?base=local/base&graft=from:local/stranger+type:organ+blocks:1"),
    "compose-accepted": (
        "owner",
        "/compose?base=local/base&graft=from:local/stranger+type:organ+blocks:1&accept=unrelated-lineage",
    ),
    "compose-refused": ("owner", "/compose?base=local/base&graft=from:ada/open+blocks:99"),
    "compose-wrong-steps": ("owner", "/compose?base=local/base&graft=rubbish&purify=method:magic&name=a@2"),
    "compose-unknown-base": ("anybody", "/compose?base=local/nobody"),
    "fits": ("anybody", "/compose/fits?base=local/base"),
    "fits-two-models": ("anybody", "/compose/fits?base=local/base&donor=local/stranger"),
    "fits-unknown-model": ("anybody", "/compose/fits?base=local/base&donor=local/nobody"),
    "lineage": ("anybody", "/lineage"),
    "lineage-no-relatives": ("anybody", "/lineage?model=local/wide"),
    "lineage-unknown-model": ("anybody", "/lineage?model=local/nobody"),
    "reports": ("anybody", "/reports"),
    **{
        f"report-{section}": ("anybody", f"/reports/{section}")
        for section in ("ranking", "types", "model_types", "components", "scale", "wells", "ingests")
    },
    "jobs": ("owner", "/jobs"),
    "jobs-of-ada": ("ada", "/jobs"),
    **{
        f"job-{state}": ("owner", f"/jobs/{number}")
        for number, state in enumerate(("queued", "file", "measured", "verdict", "chimera", "failed", "running"), 1)
    },
    "evolutions": ("owner", "/evolutions"),
    "evolutions-of-ada": ("ada", "/evolutions?base=ada/open"),
    **{
        f"evolution-{state}": ("owner", f"/evolutions/{number}")
        for number, state in enumerate(("interrupted", "finished", "failed"), 1)
    },
    "evolution-trial": ("owner", "/evolutions/2/trials/3"),
    "contributors": ("anybody", "/contributors"),
    "contributor": ("anybody", "/contributors/ada"),
    "upload": ("ada", "/upload"),
    "submission-ready": ("ada", "/submissions/1"),
    "submission-in-review": ("ada", "/submissions/2"),
    "submission-for-review": ("root", "/submissions/2"),
    "account": ("ada", "/account"),
    "account-of-the-owner": ("owner", "/account"),
    "log-in": ("anybody", "/login"),
    "admin": ("root", "/admin"),
    **{f"admin-{page}": ("root", f"/admin/{page}") for page in ("contributors", "events", "fleet", "quarantine")},
    "admin-run-of-a-fleet": ("root", "/admin/fleet/1"),
    "admin-events-second-page": ("root", "/admin/events?limit=2 next"),
    "unknown-address": ("anybody", "/nowhere"),
}
"""Who looks at which page of the full catalog, by name. After an address with `next`, it is the page that follows."""
ORGANS = {
    "organ": "model:local/base slot:ffn_up block:0",
    "norm": "model:local/base slot:output_norm",
    "expert": "model:local/mixture expert:5 slot:ffn_up_exps block:0",
    "computed": "model:local/child slot:ffn_up block:0",
}
"""The organs whose digests stand for the names in braces: the queries that find them."""
EMPTY_PAGES: Mapping[str, tuple[str, str]] = {
    f"empty-{path.strip('/') or 'home'}-{who}": (who, path)
    for who in ("anybody", "ada", "owner")
    for path in ("/", "/organs", "/models", "/compare", "/lineage", "/compose", "/chimeras", "/leaderboard", "/reports")
    if who == "owner" or path in ("/", "/models")
} | {
    "empty-home-reader": ("reader", "/"),
    "empty-jobs-owner": ("owner", "/jobs"),
    "empty-evolutions-owner": ("owner", "/evolutions"),
    "empty-storage-owner": ("owner", "/storage"),
}
"""The same for an empty registry."""
STORED = re.compile(r"(?<= )[\d.,]+(?: bytes| [kM]B|%)?(?=[,. ]|$)", re.M)
VARYING = (
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?Z?)?\b"), "DATE"),
    (re.compile(r"(?<=after=)[\w-]+"), "PLACE"),
    (re.compile(r"[\d.,]+ units a minute, [^\n]+ a second"), "SPEED"),
    (re.compile(r"^.*(?:[Ss]tored (?:here|by|size)| save ).*", re.M), lambda line: STORED.sub("N", line[0])),
)
"""What is different in each run, or with other versions of the libraries that compress, and the words in its place."""
FRAME = re.compile(r'<a class="skip".*?</header>', re.DOTALL)
"""The links at the top, which only snapshots of the first page have."""


def fill_shown_catalog(registry: LocalRegistry, folder: Path) -> None:
    """The catalog of `owned_catalog`, with more kinds of models, measured chimeras, and jobs of all states."""
    fill_owned_catalog(registry, folder)
    ingest_bytes(registry, folder, "stranger", model_file("Stranger", block_tensors(2, seed=9)))
    ingest_bytes(registry, folder, "mixture", expert_model("Mixture"))
    wide = [weight_tensor("blk.0.attn_q.weight", (32, 64)), weight_tensor("blk.0.ffn_up.weight", (64, 32))]
    ingest_bytes(registry, folder, "wide", model_file("Wide", wide))
    unknown = [raw_tensor(b"output.weight", (256,), 156)], bytes(96)
    ingest_bytes(registry, folder, "unknown", raw_file([text("general.architecture", "llama").encode()], *unknown))
    ingest_bytes(registry, folder, "edited", expert_model("Edited", changed={2: 50, 5: 51}))
    for version, alike in enumerate((0.98, 0.95)):
        path = folder / f"weaver-{version}.gguf"
        path.write_bytes(model_file("Weaver", related_tensors(3, alike), parent_entries("base", "Elder")))
        ingest_file(registry, path, "ada/weaver")
    for dtype in ("F16", "Q8_0"):
        ingest_bytes(registry, folder, f"spinner-{dtype}", model_file("Spinner", related_tensors(5, dtype=dtype)))
    (folder / "again.gguf").write_bytes((folder / "local-base.gguf").read_bytes())
    ingest_file(registry, folder / "again.gguf")
    name, data = list(small_shards("shards").items())[1]
    (folder / name).write_bytes(data)
    ingest_file(registry, folder / name)
    child = registry.compose("local/stranger").graft("ada/mixed", type="norm").accept("unrelated-lineage")
    child.purify("fractal", slot="ffn_up", blocks=0).named("local/child").plan().register()
    add_size(registry, "local/spinner-F16", "4.5bpw", 45_000, 0.05)
    add_size(registry, "local/spinner-F16", "8.1bpw", 60_000, 0.0009)
    add_size(registry, "local/spinner-F16", "Q8_0", 62_000, 0.001, model="local/spinner-Q8_0", kind="plain")
    add_gains(registry, "ada/mixed", {"python": 6.0, "narrative": -2.0})
    put_measurements(registry)
    found = convert(report(seconds=12.0), VerdictReport)
    add_evolution(registry, "ada/open", ["local/base"], winner="ada/mixed", verdict=found)
    add_evolution(registry, "ada/open", ["local/base"], (None,) * 5, state="failed", note="all trials fail: no room")
    put_jobs(registry)


def unusable_look() -> QuickLook:
    """A quick look that found a large loss."""
    python = TextLook(
        name="python", digest="0" * 64, base_perplexity=8.0, perplexity=12.0, ratio=1.5, ratio_margin=0.03, windows=4,
        window_count=9, tokens=1020, divergence=0.5, divergence_tokens=255, same_top=0.75,
    )  # fmt: skip
    return QuickLook(
        sentence="Not usable: +50% ± 3% perplexity on python.", usable=False, runtime="llama.cpp", window_tokens=256,
        seconds=30.0, tokens_per_second=270.0, texts=(python,),
    )  # fmt: skip


def put_measurements(registry: LocalRegistry) -> None:
    """A verdict on `ada/mixed`, a quick look at `local/child`, descriptions of two models, and a yanked version."""
    verdict = report(seconds=12.0, control=run_of("control", 64032.0), donors=[run_of("local/base@1", 27.8)])
    verdict["texts"][0]["recovered"] = 0.97
    with registry.catalog.writing() as session:
        mixed, child, first, second = (
            model_by_name(session, parse_model_name(name))
            for name in ("ada/mixed", "local/child", "ada/weaver@1", "ada/weaver@2")
        )
        add_verdict(session, mixed.id, "llama.cpp", "gains", "It is better.", json.dumps(verdict))
        record_quick_look(session, child.id, encode(unusable_look()).decode())
        rounded = model_by_name(session, parse_model_name("local/spinner-Q8_0"))
        worse = report(seconds=12.0, from_source=from_source("local/spinner-F16@1"))
        add_verdict(session, rounded.id, "llama.cpp", "coherent", "It is near.", json.dumps(worse))
        first.contributor_id = second.contributor_id = contributor_by_name(session, "ada").id
        session.flush()
        second.title, second.description, second.tags = "Weaver of yarns", "Spins **fine** yarns.\n\n- wool", ("wool",)
        hide_model(session, first, "yanked", "Trained on the test set.", LOCAL)
        waiting = session.scalars(select(ModelRow).where(ModelRow.name == "hidden")).one()
        waiting.description, waiting.tags = "Of **wool**, <b>not</b>.", ("wool", "sheep")


def put_jobs(registry: LocalRegistry) -> None:
    """Jobs that have ended, failed, and run."""
    largest = {"spectral_signal": {"difference": 0.25, "tensor": "output.weight"}}
    results = (
        ("measure", {"model": "local/base@1", "measured": 10, "differences": largest}),
        ("validate", {"model": "ada/mixed@1", "verdict": "gains", "reason": "Better.", "models": ["local/base@1"]}),
        ("compose", {"model": "ada/mixed@1", "lock": "ab" * 32, "size_bytes": 97_000, "created": False}),
        ("graft", "there is nothing to graft"),
        ("purify", None),
    )
    with registry.catalog.writing() as session:
        for kind, result in results:
            enqueue_job(session, kind, {"model": "local/base@1"})
            claim = claim_job(session, [kind])
            assert claim is not None
            if result is None:
                report_progress(session, claim, 0.625, "reading")
            elif isinstance(result, str):
                fail(session, claim, result)
            else:
                finish(session, claim, job_json(result, "result"))


class Onlookers:
    """Clients of everybody who looks at a registry."""

    def __init__(self, registry: LocalRegistry) -> None:
        self.clients = {who: create_app(registry, settings).test_client() for who, settings in SETTINGS.items()}
        app = create_app(registry)
        self.clients["anybody"] = app.test_client()
        for who, scopes in ACCOUNTS.items():
            token = new_token(registry, who, *scopes)
            if "tokens" in scopes:
                child_token(registry, token, "upload")
            self.clients[who] = app.test_client()
            self.clients[who].set_cookie(COOKIE, session_of(registry, token))
        with registry.catalog.reading() as session:
            tokens = re.compile("|".join(session.scalars(select(Token.public_id))))
        self.varying = (*VARYING, (tokens, "TOKEN"))
        found = {name: list(registry.search(query, limit=1)) for name, query in ORGANS.items()}
        self.digests = {name: organs[0].digest for name, organs in found.items() if organs}

    def page(self, name: str, who: str, path: str) -> str:
        """Return the outline of a page, with words in the place of what is different in each run."""
        address, _, following = path.format(**self.digests).partition(" ")
        client = self.clients[who]
        if following:
            address = client.get(address).headers["Link"].partition("<")[2].partition(">;")[0]
        answer = client.get(address, follow_redirects=True)
        page = f"{answer.status}\n" + outline(answer.text if "home" in name else FRAME.sub("", answer.text))
        for varying, word in self.varying:
            page = varying.sub(word, page)
        return page
