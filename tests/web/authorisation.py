"""Who may what: every rule of the catalog, and what each kind of asker gets there.

What is addressed belongs to ada: see `tests.web.owned_catalog`. A rule stands behind its methods; of a page that has
twins, their endings stand behind it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

IN, LOG_IN = "in", "log in"
"""An answer that is no refusal; the way to the page on which one logs in. A number is the status of a refusal."""

Outcome = str | int


class Group(NamedTuple):
    """The expected answers for each kind of asker."""

    nobody: Outcome
    """Without a token or a session."""
    reader: Outcome
    """With a token that is good for `read` alone."""
    owner: Outcome
    """Ada, with one that is good for `upload`."""
    sparing: Outcome
    """Ada, with one that is good for `read` alone."""
    other: Outcome
    """Bob, with one that is good for `upload`."""
    admin: Outcome
    """With one that is good for `admin` alone."""
    keeper: Outcome
    """With one that is good for `upload` and `admin`."""
    manager: Outcome
    """Ada, with one that is good for `upload` and `tokens`."""


PUBLIC = Group(IN, IN, IN, IN, IN, IN, IN, IN)
NO_METHOD = Group(405, 405, 405, 405, 405, 405, 405, 405)
NO_FOLDER = Group(404, 404, 404, 404, 404, 404, 404, 404)
"""Repositories have files alone."""
NO_MEANING = NO_FOLDER
"""Accounts cannot give a meaning to a name without a namespace: only the user of the machine can."""
OFF = NO_FOLDER
"""A server answers prompts only if its operator turned it on: `tests.web.test_try_it`."""
SOMEBODY = Group(401, IN, IN, IN, IN, IN, IN, IN)
SOMEBODY_PAGE = SOMEBODY._replace(nobody=LOG_IN)
MANAGERS = Group(401, 403, 403, 403, 403, 403, 403, IN)
"""The token that is addressed was created by that of the manager."""
UPLOADERS = Group(401, 403, IN, 403, IN, 403, IN, IN)
OWN = Group(401, 403, IN, 403, 404, 403, 404, IN)
"""Data that belongs to one uploader and is absent for all others."""
OWN_SHOWN = OWN._replace(admin=IN, keeper=IN)
"""The same, which administrators see."""
NAMESPACE = Group(401, 403, IN, 403, 403, 403, 403, IN)
"""Data that everyone can see and only its owner may change."""
NAMESPACE_PAGE = NAMESPACE._replace(nobody=LOG_IN)
YANKERS = Group(401, 403, IN, 403, 403, IN, IN, IN)
OWN_QUERY = Group(401, 404, IN, IN, 404, 404, 404, IN)
"""A query that ada saved: every token of its account may delete it."""
JOBS = Group(404, 404, IN, 404, IN, IN, IN, IN)
OWN_JOB = Group(404, 404, IN, 404, 404, IN, IN, IN)
JOBS_PAGE, OWN_JOB_PAGE = JOBS._replace(nobody=LOG_IN), OWN_JOB._replace(nobody=LOG_IN)
CANCELS = Group(401, 404, IN, 404, 404, IN, IN, IN)
CONTINUES = OWN._replace(keeper=IN)
"""An evolution is continued in the queue, and removed, with the scope `upload`."""
ADMINS = Group(401, 403, 403, 403, 403, IN, IN, 403)
ADMINS_PAGE = Group(LOG_IN, 404, 404, 404, 404, IN, IN, 404)
ADMINS_TWIN = ADMINS_PAGE._replace(nobody=401)

LOCALLY: dict[Group, Outcome] = {
    **dict.fromkeys(
        (
            SOMEBODY,
            SOMEBODY_PAGE,
            UPLOADERS,
            NAMESPACE,
            NAMESPACE_PAGE,
            YANKERS,
            JOBS,
            JOBS_PAGE,
            OWN_JOB,
            OWN_JOB_PAGE,
            CANCELS,
            CONTINUES,
        ),
        IN,
    ),
    ADMINS: 403,
    ADMINS_PAGE: 404,
    ADMINS_TWIN: 404,
    OWN: 404,
    OWN_SHOWN: 404,
    OWN_QUERY: 404,
    MANAGERS: 403,
}
"""What anybody gets on a server of one's own, who may use every namespace and is nobody else."""
OTHERWISE_LOCALLY: dict[tuple[str, str], Outcome] = {
    ("DELETE", "/api/v1/account/tokens/<token>"): 404,
    ("POST", "/account/tokens/<token>/revoke"): 404,
    **{("GET", rule): IN for rule in ("/api/v1/storage", "/storage", "/storage.json", "/storage.csv")},
}
"""`local` has no tokens, which could leave the machine. The sizes in the store are its own business."""

GROUPS: tuple[tuple[Group, str], ...] = (
    (
        PUBLIC,
        """
        GET /api/v1
        GET /api/v1/openapi.json
        GET /api/v1/chimeras
        GET /api/v1/chimeras/<lock>
        GET /api/v1/compare
        GET /api/v1/compatibility
        GET /api/v1/composition
        GET /api/v1/contributors
        GET /api/v1/contributors/<contributor>
        GET /api/v1/facets
        GET /api/v1/fitting
        GET /api/v1/headers/<header>
        GET /api/v1/leaderboard
        GET /api/v1/models
        GET /api/v1/models/lookup
        GET /api/v1/models/<namespace>/<name>
        GET /api/v1/models/<namespace>/<name>/descendants
        GET /api/v1/families
        GET /api/v1/models/<namespace>/<name>/lineage
        GET /api/v1/models/<namespace>/<name>/organs
        GET /api/v1/models/<namespace>/<name>/sizes
        GET /api/v1/models/<namespace>/<name>/versions
        GET /api/v1/organs
        GET /api/v1/organs/<digest>
        GET /api/v1/suggestions
        GET /api/v1/reports
        GET /api/v1/reports/<section>
        GET /api/v1/reports/models/<namespace>/<name>
        POST /api/v1/assemblies
        POST /api/v1/organs/lookup
        POST /api/v1/plans
        GET /api/models
        GET /api/models/<user>/<name>
        GET /api/models/<user>/<name>/auth-check
        GET /api/models/<user>/<name>/commits/<path:revision>
        GET /api/models/<user>/<name>/refs
        GET /api/models/<user>/<name>/revision/<path:revision>
        GET /api/models/<user>/<name>/tree/<revision>
        POST /api/models/<user>/<name>/paths-info/<revision>
        GET /<user>/<name>/raw/<revision>/<path:path>
        GET /<user>/<name>/resolve/<revision>/<path:path>
        GET /v2/
        GET /v2/<user>/<name>/blobs/<digest>
        GET /v2/<user>/<name>/chunksums/<digest>
        GET /v2/<user>/<name>/manifests/<tag>
        GET /v2/<user>/<name>/tags/list
        GET /
        GET /index.json
        GET /api .json
        GET /chimeras .json .csv
        GET /chimeras/<lock> .json
        GET /chimeras/<lock>/picture.png
        GET /chimeras/<lock>/picture.svg
        GET /chimeras/<lock>/<any("recipe.yaml", "lock.json", "card.md", "Modelfile"):text>
        GET /compare .json .csv
        GET /compose .json
        GET /compose/fits .json
        GET /contributors .json .csv
        GET /docs .json
        GET /docs/<path:page> .json
        GET /docs/images/<picture>
        GET /contributors/<contributor> .json
        GET /healthz
        GET /lineage .json .csv
        GET /login .json
        POST /login
        POST /logout
        GET /metrics
        GET /leaderboard .json .csv
        GET /models .json .csv
        GET /models/<namespace>/<name> .json .csv .gguf
        GET /models/<namespace>/<name>/depth.svg
        GET /models/<namespace>/<name>/files/<file>
        GET /models/<namespace>/<name>/images/<image>.<any(png, jpeg):ending>
        GET /models/<namespace>/<name>/picture.png
        GET /models/<namespace>/<name>/picture.svg
        GET /models/<namespace>/<name>/report .json .csv .md
        GET /models/<namespace>/<name>/sbom.json
        GET /models/<namespace>/<name>/sizes.svg
        GET /organs .json .csv
        GET /organs/<digest> .json
        GET /organs/<digest>.<any(raw,bin,npy):form>
        GET /organs/<digest>/weights .json .csv .svg
        GET /search .json
        GET /reports .json .md
        GET /reports/<any(ranking,types,model_types,components,scale,wells,ingests):section> .json .csv
        GET /reports/scale.svg
        GET /reports/types.svg
        GET /static/<path:filename>
        GET /upload .json
        """,
    ),
    (
        NO_METHOD,
        """
        GET|PUT|PATCH|DELETE /api/v1/assemblies
        GET|PUT|PATCH|DELETE /api/v1/organs/lookup
        GET|PUT|PATCH|DELETE /api/v1/plans
        GET|PUT|PATCH|DELETE /api/v1/uploads/lookup
        """,
    ),
    (
        SOMEBODY,
        """
        GET /api/v1/account
        GET /api/v1/account/overview
        GET /account.json
        GET /api/v1/saved-queries
        PUT /api/v1/saved-queries/<kind>/<saved>
        POST /search/saved
        """,
    ),
    (OWN_QUERY, "DELETE /api/v1/saved-queries/<kind>/<saved>; POST /search/saved/<kind>/<saved>/delete"),
    (NO_FOLDER, "GET /api/models/<user>/<name>/tree/<revision>/<path:path>"),
    (NO_MEANING, "GET /models/<short>"),
    (
        OFF,
        """
        POST /api/v1/answers
        GET|DELETE /api/v1/answers/<key>
        GET /answers/<key> .json
        POST /answers/<key>/delete
        GET /models/<namespace>/<name>/try .json
        POST /models/<namespace>/<name>/try
        """,
    ),
    (SOMEBODY_PAGE, "GET /account"),
    (
        MANAGERS,
        """
        GET|POST /api/v1/account/tokens
        DELETE /api/v1/account/tokens/<token>
        POST /account/tokens
        POST /account/tokens/<token>/revoke
        """,
    ),
    (
        UPLOADERS,
        """
        POST /api/v1/chimeras
        POST /api/v1/evolutions
        POST /api/v1/extractions
        POST /api/v1/grafts
        POST /api/v1/jobs/quantize
        POST /api/v1/measurements
        POST /api/v1/purifications
        POST /api/v1/quick-looks
        POST /api/v1/reports
        POST /api/v1/validations
        GET /api/v1/submissions
        GET|POST /api/v1/uploads
        POST /api/v1/uploads/lookup
        POST /account/page-token
        POST /chimeras/<lock>/quick-look
        POST /chimeras/<lock>/validate
        POST /evolutions
        POST /compose
        POST /models/<namespace>/<name>/sizes
        """,
    ),
    (
        OWN,
        """
        GET|DELETE /api/v1/submissions/<submission>
        POST /api/v1/submissions/<submission>/publish
        GET|PATCH|PUT|DELETE /api/v1/uploads/<upload>
        POST /submissions/<submission>/publish
        POST /submissions/<submission>/withdraw
        POST /uploads/<upload>/cancel
        """,
    ),
    (OWN_SHOWN, "GET /submissions/<submission> .json"),
    (
        NAMESPACE,
        """
        PATCH|PUT /api/v1/models/<namespace>/<name>
        PUT /api/v1/models/<namespace>/<name>/images
        GET /models/<namespace>/<name>/edit.json
        POST /models/<namespace>/<name>/edit
        """,
    ),
    (NAMESPACE_PAGE, "GET /models/<namespace>/<name>/edit"),
    (
        YANKERS,
        """
        POST /api/v1/models/<namespace>/<name>/yank
        POST /api/v1/models/<namespace>/<name>/restore
        POST /models/<namespace>/<name>/yank
        POST /models/<namespace>/<name>/restore
        """,
    ),
    (JOBS, "GET /api/v1/jobs; GET /jobs.json"),
    (JOBS_PAGE, "GET /jobs"),
    (OWN_JOB, "GET /api/v1/jobs/<job>; GET /jobs/<job>.json; GET /jobs/<job>/files/<file>"),
    (OWN_JOB_PAGE, "GET /jobs/<job>"),
    (CANCELS, "DELETE /api/v1/jobs/<job>; POST /jobs/<job>/cancel"),
    (JOBS, "GET /api/v1/evolutions; GET /evolutions.json"),
    (JOBS_PAGE, "GET /evolutions"),
    (
        OWN_JOB,
        """
        GET /api/v1/evolutions/<evolution>
        GET /api/v1/evolutions/<evolution>/trials/<trial>/recipe
        GET /evolutions/<evolution>.csv
        GET /evolutions/<evolution>.json
        GET /evolutions/<evolution>/front.svg
        GET /evolutions/<evolution>/progress.json
        GET /evolutions/<evolution>/trials.svg
        GET /evolutions/<evolution>/trials/<trial>.json
        """,
    ),
    (OWN_JOB_PAGE, "GET /evolutions/<evolution>; GET /evolutions/<evolution>/trials/<trial>"),
    (
        CONTINUES,
        """
        POST /api/v1/evolutions/<evolution>/continue
        POST /evolutions/<evolution>/continue
        DELETE /api/v1/evolutions/<evolution>
        POST /evolutions/<evolution>/remove
        """,
    ),
    (
        ADMINS,
        """
        GET /api/v1/storage
        GET /api/v1/admin/overview
        GET /api/v1/admin/health
        GET /api/v1/admin/quarantine
        GET /api/v1/admin/events
        GET /api/v1/admin/fleet
        GET /api/v1/admin/fleet/<run>
        GET|POST /api/v1/admin/contributors
        PATCH /api/v1/admin/contributors/<contributor>
        POST /api/v1/admin/models/<namespace>/<name>/remove
        POST /api/v1/admin/submissions/<submission>/approve
        POST /api/v1/admin/submissions/<submission>/refuse
        POST /admin/contributors/new
        POST /admin/contributors/<contributor>/quota
        POST /admin/contributors/<contributor>/state
        POST /admin/submissions/<submission>/approve
        POST /admin/submissions/<submission>/refuse
        """,
    ),
    (
        ADMINS_PAGE,
        """
        GET /storage
        GET /admin
        GET /admin/health
        GET /admin/quarantine
        GET /admin/events
        GET /admin/contributors
        GET /admin/fleet
        GET /admin/fleet/<run>
        """,
    ),
    (
        ADMINS_TWIN,
        """
        GET /storage.json
        GET /storage.csv
        GET /admin.json
        GET /admin/health.json
        GET /admin/quarantine.json
        GET /admin/events.json
        GET /admin/events.csv
        GET /admin/contributors.json
        GET /admin/fleet.json
        GET /admin/fleet/<run>.json
        """,
    ),
)

HIDDEN_FROM_ALL = Group(404, 404, 404, 404, 404, 404, 404, 404)
HIDDEN_FROM_OTHERS = Group(404, 404, IN, IN, 404, IN, IN, IN)
"""What tells of a model in quarantine: to its owner, whatever the token is good for, and to administrators."""
HIDDEN_EDIT = Group(401, 403, IN, 403, 404, 403, 403, IN)
HIDDEN_YANK = Group(401, 404, 409, 403, 404, 409, 409, 409)
HIDDEN_RESTORE = Group(401, 404, 409, 403, 404, IN, IN, 409)
HIDDEN_GROUPS: tuple[tuple[Group, str], ...] = (
    (HIDDEN_FROM_OTHERS, "GET /api/v1/models/<namespace>/<name>/versions"),
    (HIDDEN_FROM_OTHERS, "GET /models/<namespace>/<name>/images/<image>.<any(png, jpeg):ending>"),
    (HIDDEN_EDIT, "PATCH /api/v1/models/<namespace>/<name>; POST /models/<namespace>/<name>/edit"),
    (HIDDEN_EDIT, "PUT /api/v1/models/<namespace>/<name>/images"),
    (Group(401, 404, IN, 403, 404, 403, 403, IN), "GET /models/<namespace>/<name>/edit.json"),
    (Group(LOG_IN, 404, IN, 403, 404, 403, 403, IN), "GET /models/<namespace>/<name>/edit"),
    (HIDDEN_YANK, "POST /api/v1/models/<namespace>/<name>/yank; POST /models/<namespace>/<name>/yank"),
    (HIDDEN_RESTORE, "POST /api/v1/models/<namespace>/<name>/restore; POST /models/<namespace>/<name>/restore"),
    (Group(401, 403, 404, 403, 404, 403, 404, 404), "POST /models/<namespace>/<name>/sizes"),
    (NAMESPACE, "PUT /api/v1/models/<namespace>/<name>"),
    (ADMINS, "POST /api/v1/admin/models/<namespace>/<name>/remove"),
)
"""The same of a chimera in quarantine. What names a model and is not here is HIDDEN_FROM_ALL."""

GONE_FOR_ALL = Group(410, 410, 410, 410, 410, 410, 410, 410)
GONE_FOR_UPLOADERS = Group(401, 403, 410, 403, 410, 403, 410, 410)
GONE_FOR_SOMEBODY = GONE_FOR_ALL._replace(nobody=401)
GONE_GROUPS: tuple[tuple[Group, str], ...] = (
    (GONE_FOR_UPLOADERS, "PATCH /api/v1/models/<namespace>/<name>; POST /models/<namespace>/<name>/edit"),
    (GONE_FOR_UPLOADERS, "PUT /api/v1/models/<namespace>/<name>/images"),
    (GONE_FOR_UPLOADERS, "POST /models/<namespace>/<name>/sizes"),
    (GONE_FOR_SOMEBODY, "GET /models/<namespace>/<name>/edit.json"),
    (GONE_FOR_SOMEBODY._replace(nobody=LOG_IN), "GET /models/<namespace>/<name>/edit"),
    (
        GONE_FOR_SOMEBODY,
        """
        POST /api/v1/models/<namespace>/<name>/yank
        POST /api/v1/models/<namespace>/<name>/restore
        POST /models/<namespace>/<name>/yank
        POST /models/<namespace>/<name>/restore
        """,
    ),
    (NAMESPACE, "PUT /api/v1/models/<namespace>/<name>"),
    (ADMINS._replace(admin=409, keeper=409), "POST /api/v1/admin/models/<namespace>/<name>/remove"),
)
"""The same of a model that was removed. What names a model and is not here is GONE_FOR_ALL."""


def rows(groups: tuple[tuple[Group, str], ...]) -> dict[tuple[str, str], Group]:
    """The group of each method of each rule; raises for one that occurs twice."""
    found: dict[tuple[str, str], Group] = {}
    for group, text in groups:
        for line in filter(None, map(str.strip, re.split(r"[;\n]", text))):
            methods, _, rule = line.partition(" ")
            rule, *endings = rule.split(" .")
            for method in methods.split("|"):
                for one in (rule, *(f"{rule}.{ending}" for ending in endings)):
                    assert (method, one) not in found, f"{method} {one} occurs twice"
                    found[method, one] = group
    return found


class Uncounted:
    """Counts that stay 0: rates are tested elsewhere."""

    def add(self, key: str, seconds: int, amount: int) -> int:
        return 0

    def count(self, key: str) -> tuple[int, float]:
        return 0, 0.0
