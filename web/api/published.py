"""After publishing: what is said of a model, yanked and restored, its versions, and who grafted its organs."""

from __future__ import annotations

from organs.ingest.describing import FIELDS, read_edits
from organs.ingest.publishing import publish_model
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.queries.published import OWN_STATES, VERSIONS_MAX, descendants_page, versions
from organs.registry.catalog.register.editing import edit_model
from organs.registry.catalog.register.states import hide_model
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.names import ModelName, parse_model_name
from organs.registry.present.published import descendants_values, published_values, versions_values
from organs.registry.present.values import Values
from organs.registry.relatives import resolve_declared
from organs.web.answers import reading, registry, settings
from organs.web.api.blueprint import ROOT
from organs.web.api.body import json_body
from organs.web.api.models import EXAMPLE, GROUP
from organs.web.api.operation import operation
from organs.web.api.parameters import AFTER, LIMIT, NAME, NAMESPACE
from organs.web.api.refusals import Refused
from organs.web.api.writing import writing_operation
from organs.web.asked import asked_after, asked_limit
from organs.web.identity import ANY, identity
from organs.web.owning import is_shown_all, known_model, model_to_edit, model_to_restore, model_to_yank

VERSION_MAX = 10**9
_MODEL = "/models/{namespace}/{name}"


@operation(
    f"{_MODEL}/versions",
    group=GROUP,
    summary="The versions of a model",
    parameters=(NAMESPACE, NAME),
    answer="Versions",
    refusals=(404, 410),
    example=f"{ROOT}/models/{EXAMPLE}/versions",
)
def model_versions(namespace: str, name: str) -> Values:
    """The versions of the name, newest first, each with what it has otherwise than the one before. A yanked one stands
    there with its reason; a removed one does not. Quarantined ones are shown to their owner."""
    states = OWN_STATES if is_shown_all(namespace) else REACHABLE_STATES
    with reading(settings().search_seconds) as session:
        model = known_model(session, _name(namespace, name, {}))
        return versions_values(versions(session, model, states, VERSIONS_MAX))


@operation(
    f"{_MODEL}/descendants",
    group=GROUP,
    summary="Who grafted its organs",
    parameters=(NAMESPACE, NAME, LIMIT, AFTER),
    answer="Descendants",
    refusals=(404, 410),
    example=f"{ROOT}/models/local/Zoo-A-2M-v1.0-F16/descendants?limit=1",
)
def model_descendants(namespace: str, name: str) -> Values:
    """The chimeras that were made of it, as their base or as a donor, newest first, with the acts and how many organs
    they have of it."""
    limit, after = asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        model = model_by_name(session, _name(namespace, name, {}))
        return descendants_values(model, descendants_page(session, model, limit, after))


@writing_operation(
    _MODEL,
    method="patch",
    group=GROUP,
    summary="Change what is said of a model",
    parameters=(NAMESPACE, NAME),
    body="ModelEdits",
    answer="Published",
    refusals=(404, 409, 410),
    example='{"tags": ["letters"], "license": "apache-2.0"}',
)
def edit(namespace: str, name: str) -> Values:
    """Title, description, licence, tags and base of one of your own models; its bytes never change. What is wrong is
    told by field. A base replaces what the file declares."""
    asked = json_body(("version", *FIELDS))
    edits, wrong = read_edits(asked)
    if wrong:
        raise Refused(*wrong[0], more=wrong[1:])
    wanted = _name(namespace, name, asked)
    with registry().catalog.writing() as session:
        model = model_to_edit(session, wanted)
        edit_model(session, model, edits, _asker())
        if model.state == "visible":
            resolve_declared(session, model)
        return published_values(session, model)


@writing_operation(
    f"{_MODEL}/yank",
    group=GROUP,
    summary="Yank a model",
    parameters=(NAMESPACE, NAME),
    body="YankRequest",
    answer="Published",
    refusals=(404, 409, 410),
    example='{"reason": "Its tokenizer was the wrong one."}',
    scope=ANY,
)
def yank(namespace: str, name: str) -> Values:
    """Take one of your own models out of searches, rankings and lists. Who names its version or its digest gets it
    still, with the reason. It may be of your own (scope `upload`), or you an administrator (scope `admin`)."""
    asked = json_body(("version", "reason"))
    reason = asked.get("reason")
    if not isinstance(reason, str):
        raise Refused("reason", "reason is missing: why it is yanked, for those who use it.")
    wanted = _name(namespace, name, asked)
    with registry().catalog.writing() as session:
        model = model_to_yank(session, wanted)
        hide_model(session, model, "yanked", reason, _asker())
        return published_values(session, model)


@writing_operation(
    f"{_MODEL}/restore",
    group=GROUP,
    summary="Restore a yanked model",
    parameters=(NAMESPACE, NAME),
    body="RestoreRequest",
    answer="Published",
    refusals=(404, 409, 410),
    example="{}",
    scope=ANY,
)
def restore(namespace: str, name: str) -> Values:
    """Let a yanked model be found again; one that is visible stays as it is. It is for whoever may yank it."""
    wanted = _name(namespace, name, json_body(("version",)))
    with registry().catalog.writing() as session:
        model = model_to_restore(session, wanted)
        publish_model(session, model, _asker())
        return published_values(session, model)


def _asker() -> str:
    name = identity().name
    assert name is not None
    return name


def _name(namespace: str, name: str, asked: Values) -> ModelName:
    """The name in the address, with the version of the body if there is one; raises BadName, Refused."""
    found = parse_model_name(f"{namespace}/{name}")
    version = asked.get("version")
    if version is None:
        return found
    if type(version) is not int or not 1 <= version < VERSION_MAX:
        raise Refused("version", "version is to be a whole number from 1.")
    if found.version not in (None, version):
        raise Refused("version", "The address names another version than the body.")
    return ModelName(found.namespace, found.name, version)
