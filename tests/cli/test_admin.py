"""`organ admin`: what waits, models yanked, restored and removed, and the event log."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from sqlalchemy import select

from organs.cli import admin as admin_commands
from organs.registry.catalog.queries.administration import removal_of
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import add_contributor
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.catalog.tables import ModelRow, SubmissionRow
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.sandbox.protections import Kernel
from organs.registry.store.codec import fast
from tests.cli.crowded import FINDING, put_submission
from tests.cli.in_process import OrganCommand
from tests.faults.failing import let_time_pass
from tests.small_models import row_counts


def let_wait(registry: LocalRegistry, name: str, submission_id: int) -> None:
    """Take a model back into quarantine, where it waits by that submission."""
    with registry.catalog.writing() as session:
        model = model_by_name(session, parse_model_name(name))
        hide_model(session, model, "quarantined", "It waits.", "local")
        session.get_one(SubmissionRow, submission_id).model_id = model.id


def state_of(registry: LocalRegistry, name: str) -> str:
    with registry.catalog.reading() as session:
        namespace, _, rest = name.partition("/")
        return session.scalars(
            select(ModelRow.state).where(ModelRow.namespace == namespace, ModelRow.name == rest)
        ).one()


def test_all_facts_about_a_waiting_submission_are_shown(composer: OrganCommand, kept: LocalRegistry) -> None:
    first, second = put_submission(kept, "ann0"), put_submission(kept, "ann1")
    let_wait(kept, "local/tuned", first)
    shown = composer.done("admin", "show", first).out
    for text in (
        f"{first}, quarantined",
        "ann0",
        "local/tuned@1",
        "5,000,000 bytes",
        "new in this registry",
        "It is \\u001b[31modd",
    ):
        assert text in shown, text
    assert f"{first}: warn: It is \\u001b[31modd" in composer.done("admin", "submissions").out
    values = composer.done("admin", "show", first, "--json").values
    assert (values["model"]["name"], values["state"], values["findings"]) == ("local/tuned@1", "quarantined", [FINDING])
    assert composer.done("admin", "submissions", "--json").values["items"][0].items() <= values.items()
    assert composer.done("admin", "show", second, "--json").values["model"] is None, "it has no model yet"


def test_a_waiting_submission_is_published_or_refused_once(composer: OrganCommand, kept: LocalRegistry) -> None:
    first, second = put_submission(kept, "ann0"), put_submission(kept, "ann1")
    let_wait(kept, "local/base", first)
    let_wait(kept, "local/tuned", second)
    early = composer("admin", "restore", "local/base")
    assert (early.status, state_of(kept, "local/base")) == (5, "quarantined")
    assert composer.done("admin", "approve", first).err == f"submission {first} is published\n"
    assert (
        composer.done("admin", "refuse", second, "--reason", "Not theirs.").err == f"submission {second} is refused\n"
    )
    assert (state_of(kept, "local/base"), state_of(kept, "local/tuned")) == ("visible", "removed")
    for again in (("approve", first), ("refuse", first, "--reason", "x"), ("approve", 77)):
        assert composer("admin", *again).status == (3 if 77 in again else 5)
    with kept.catalog.reading() as session:
        found = session.execute(select(SubmissionRow.state, SubmissionRow.reason).order_by(SubmissionRow.id)).all()
    assert [tuple(row) for row in found] == [("published", None), ("refused", "Not theirs.")]


def test_a_model_is_yanked_with_a_reason_and_restored(filled: OrganCommand, registry: LocalRegistry) -> None:
    filled.done("admin", "yank", "local/little", "--reason", "Trained on the wrong text.")
    assert state_of(registry, "local/little") == "yanked"
    assert "little" not in filled.done("models", "-q").out
    assert filled.done("admin", "restore", "local/little@1").err == "local/little@1 is visible\n"
    assert state_of(registry, "local/little") == "visible"
    log = filled.done("admin", "events", "--json").values["items"]
    assert [one["action"] for one in log][:2] == ["restore", "yank"]
    assert log[1] | {"id": 0, "at": ""} == {
        "id": 0,
        "at": "",
        "contributor": "local",
        "action": "yank",
        "model": "local/little@1",
        "text": "local/little@1: Trained on the wrong text.",
    }


def test_a_removal_deletes_exactly_what_its_preview_lists(composer: OrganCommand, kept: LocalRegistry) -> None:
    made = kept.compose("local/base").graft("local/tuned", type="organ").plan().register()
    before = row_counts(kept)
    told = composer.done("admin", "remove", "local/tuned", "--reason", "It must go.", "--json")
    assert told.err == "nothing was changed; repeat the command with -y to remove it\n"
    assert row_counts(kept) == before
    values = told.values
    assert values["chimeras"] == [made.model]
    assert 0 < values["organs"] < values["places"]
    would = composer.done("admin", "remove", "local/tuned", "--reason", "It must go.").out
    assert "would be removed" in would
    assert f"1 chimera has organs of this model, and keeps them: {made.model}\n" in would
    assert composer.done("admin", "remove", "local/tuned", "--reason", "It must go.", "-y").lines[0].endswith("removed")
    after = row_counts(kept)
    assert before["organs"] - after["organs"] == values["organs"]
    assert before["placements"] - after["placements"] == values["places"]
    let_time_pass(kept)
    assert composer.done("sweep", "-y", "--json").values["doomed"] == values["blobs"]
    swept = composer.done("sweep", "-y", "--json").values
    assert (swept["removed"], swept["removed_bytes"]) == (values["blobs"], values["stored_bytes"])
    assert composer.done("verify", "--read-data").out.endswith("all are sound\n")
    composer.done("assemble", made.model, "-o", kept.settings.home / "out.gguf")
    ended = composer("admin", "remove", "local/tuned", "--reason", "Once more.", "-y")
    assert (ended.status, ended.err) == (
        5,
        "organ: local/tuned@1 was removed: it cannot be changed\n",
    )


def test_a_removal_counts_no_blob_that_anything_else_needs(kept: LocalRegistry) -> None:
    with kept.catalog.reading() as session:
        base = removal_of(session, model_by_name(session, parse_model_name("local/base")))
        tuned = removal_of(session, model_by_name(session, parse_model_name("local/tuned")))
        assert base.places == tuned.places
        assert base.chimeras == ()
        assert base.stored_bytes > 0
        stranger = model_by_name(session, parse_model_name("local/stranger"))
        assert removal_of(session, stranger).organs == stranger.tensors, "it shares nothing"


def test_events_can_be_filtered_and_paged(filled: OrganCommand, registry: LocalRegistry) -> None:
    def texts(*options: object) -> list[str]:
        return [one["text"] for one in filled.done("admin", "events", *options, "--json").values["items"]]

    with registry.catalog.writing() as session:
        for name in ("ann", "bob", "eve"):
            add_contributor(session, name, by="root" if name == "eve" else "local")
    assert texts("--action", "Add CONTRIBUTOR") == ["eve", "bob", "ann"]
    assert texts("--by", "ROOT") == ["eve"]
    assert filled.done("admin", "events", "--by", "nobody").err == "No such events.\n"
    place = filled.done("admin", "events", "--limit", 2).err.split()[-1]
    assert texts("--limit", 2, "--after", place)[0] == "ann"
    other = filled("admin", "events", "--by", "ann", "--after", place)
    assert (other.status, other.out) == (1, ""), "a place in one list is none in another"


def test_the_doctor_lists_the_protections_of_the_sandbox_and_fails_if_they_are_required_and_incomplete(
    organ: OrganCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    organ.home.chmod(0o700)
    (line,) = (line for line in organ.done("admin", "doctor").lines if "Landlock ABI" in line)
    assert "ORGAN_SANDBOX=auto" in line
    values = organ.done("admin", "doctor", "--json").values
    assert [one["name"] for one in values["protections"]] == ["files", "network", "system calls", "signals", "end"]
    here = Kernel(landlock_abi=0, has_seccomp=True, is_linux=True)
    monkeypatch.setattr(admin_commands, "kernel", lambda: here)
    assert "It can read and write every file that its user can." in organ.done("admin", "doctor").out
    monkeypatch.setenv("ORGAN_SANDBOX", "require")
    assert organ("admin", "doctor").status == 1


@pytest.mark.folder
def test_the_doctor_checks_settings_folders_and_database(organ: OrganCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORGAN_REVEIW", "manual")
    organ.home.chmod(0o755)
    readable = organ("admin", "doctor")
    assert readable.status == 1
    assert "has mode 0755: other users of this machine can read it. To prevent this: chmod 700." in readable.out
    organ.home.chmod(0o700)
    checks = {check["name"]: check for check in json.loads(organ.done("admin", "doctor", "--json").out)["checks"]}
    assert checks["settings"] == {
        "name": "settings",
        "state": "warning",
        "sentence": "ORGAN_REVEIW: no such setting. The guide lists all settings.",
    }
    assert checks["database"]["state"] == "ok"
    assert checks["space: blobs"]["sentence"].endswith(f"are free on the disk of {organ.home / 'blobs'}.")


def test_the_doctor_says_how_compiled_code_gets_a_folder(organ: OrganCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    numba = ModuleType("numba")
    numba.__spec__ = ModuleSpec("numba", None)
    monkeypatch.setitem(sys.modules, "numba", numba)
    monkeypatch.setattr(fast, "has_cache", lambda: False)
    organ.home.chmod(0o700)
    checks = {check["name"]: check for check in json.loads(organ.done("admin", "doctor", "--json").out)["checks"]}
    assert checks["compiled code"]["state"] == "warning"
    assert "set NUMBA_CACHE_DIR to a folder that this user can write" in checks["compiled code"]["sentence"]


@pytest.mark.parametrize(
    ("name", "variables", "sentence"),
    [
        (
            "database",
            {"ORGAN_DATABASE_URL": "postgresql+psycopg://ada:secret@127.0.0.1:1/organs"},
            "Connection refused." if importlib.util.find_spec("psycopg") else "pip install 'organ-registry[postgres]'",
        ),
        ("bucket", {"ORGAN_BLOBS_URL": "s3://none/organs"}, "error sending request"),
    ],
)
def test_the_doctor_says_what_does_not_answer_and_never_prints_a_password(
    name: str, variables: dict[str, str], sentence: str, organ: OrganCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    organ.home.chmod(0o700)
    addresses = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true"}
    for variable, value in {**variables, **addresses, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr("organs.registry.store.bucket.RETRIES", 0)
    ended = organ("admin", "doctor", "--json")
    assert ended.status == 1
    assert "secret" not in ended.out + ended.err
    checks = {check["name"]: check for check in json.loads(ended.out)["checks"]}
    assert checks[name]["state"] == "failed"
    assert sentence in checks[name]["sentence"]
