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
        return session.scalars(select(ModelRow.state).where(ModelRow.name == name)).one()


def test_a_waiting_submission_is_shown_then_published_or_refused(composer: OrganCommand, kept: LocalRegistry) -> None:
    first, second = put_submission(kept, "ann0"), put_submission(kept, "ann1")
    assert composer.done("admin", "show", second, "--json").values["model"] is None, "it has no model yet"
    let_wait(kept, "local/base", first)
    let_wait(kept, "local/tuned", second)
    shown = composer.done("admin", "show", second).out
    warning = "It is \\u001b[31modd"
    for text in (f"{second}, quarantined", "ann1", "local/tuned@1", "5,000,000 bytes", "new in this registry", warning):
        assert text in shown, text
    assert f"{second}: warn: {warning}" in composer.done("admin", "submissions").out
    values = composer.done("admin", "show", second, "--json").values
    assert (values["model"]["name"], values["state"], values["findings"]) == ("local/tuned@1", "quarantined", [FINDING])
    early = composer("admin", "restore", "local/base")
    assert (early.status, state_of(kept, "base")) == (5, "quarantined"), "it is held for review"
    refuse = ("admin", "refuse", second, "--reason", "Not theirs.")
    assert composer.done("admin", "approve", first).err == f"submission {first} is published\n"
    assert composer.done(*refuse).err == f"submission {second} is refused\n"
    assert composer(*refuse).status == 5
    assert (state_of(kept, "base"), state_of(kept, "tuned")) == ("visible", "removed")


def test_a_model_is_yanked_with_a_reason_and_restored(filled: OrganCommand, registry: LocalRegistry) -> None:
    filled.done("admin", "yank", "local/little", "--reason", "Trained on the wrong text.")
    assert state_of(registry, "little") == "yanked"
    assert filled.done("admin", "restore", "local/little@1").err == "local/little@1 is visible\n"
    assert state_of(registry, "little") == "visible"
    restored, yanked, *_ = filled.done("admin", "events", "--json").values["items"]
    assert (restored["action"], yanked["action"], yanked["contributor"]) == ("restore", "yank", "local")
    assert (yanked["model"], yanked["text"]) == ("local/little@1", "local/little@1: Trained on the wrong text.")


def test_a_removal_deletes_exactly_what_its_preview_lists(composer: OrganCommand, kept: LocalRegistry) -> None:
    made = kept.compose("local/base").graft("local/tuned", type="organ").plan().register()
    remove = ("admin", "remove", "local/tuned", "--reason", "It must go.")
    before = row_counts(kept)
    preview = composer.done(*remove, "--json")
    values = preview.values
    assert preview.err == "nothing was changed; repeat the command with -y to remove it\n"
    assert f"1 chimera has tensors of this model, and keeps them: {made.model}\n" in composer.done(*remove).out
    assert (row_counts(kept), values["chimeras"]) == (before, [made.model])
    assert 0 < values["organs"] < values["places"]
    assert composer.done(*remove, "-y").lines[0].endswith("removed")
    after = row_counts(kept)
    removed = [before[name] - after[name] for name in ("organs", "placements")]
    assert removed == [values["organs"], values["places"]]
    let_time_pass(kept)
    assert composer.done("sweep", "-y", "--json").values["doomed"] == values["blobs"]
    swept = composer.done("sweep", "-y", "--json").values
    assert (swept["removed"], swept["removed_bytes"]) == (values["blobs"], values["stored_bytes"])
    assert composer.done("verify", "--read-data").out.endswith("all are sound\n")
    composer.done("assemble", made.model, "-o", kept.settings.home / "out.gguf")
    ended = composer(*remove, "-y")
    assert (ended.status, ended.err) == (5, "organ: local/tuned@1 was removed: it cannot be changed\n")


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


@pytest.mark.folder
def test_the_doctor_checks_the_sandbox_settings_folders_the_database_and_compiled_code(
    organ: OrganCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    numba = ModuleType("numba")
    numba.__spec__ = ModuleSpec("numba", None)
    monkeypatch.setitem(sys.modules, "numba", numba)
    monkeypatch.setattr(fast, "has_cache", lambda: False)
    monkeypatch.setenv("ORGAN_REVEIW", "manual")
    organ.home.chmod(0o755)
    readable = organ("admin", "doctor")
    assert readable.status == 1
    assert "has mode 0755: other users of this machine can read it. To prevent this: chmod 700." in readable.out
    organ.home.chmod(0o700)
    values = organ.done("admin", "doctor", "--json").values
    checks = {check["name"]: check for check in values["checks"]}
    assert checks["settings"]["sentence"] == "ORGAN_REVEIW: no such setting. The guide lists all settings."
    assert [checks[name]["state"] for name in ("settings", "database", "compiled code")] == ["warning", "ok", "warning"]
    assert "set NUMBA_CACHE_DIR to a folder that this user can write" in checks["compiled code"]["sentence"]
    assert checks["space: blobs"]["sentence"].endswith(f"are free on the disk of {organ.home / 'blobs'}.")
    assert [one["name"] for one in values["protections"]] == ["files", "network", "system calls", "signals", "end"]
    (line,) = (line for line in organ.done("admin", "doctor").lines if "Landlock ABI" in line)
    assert "ORGAN_SANDBOX=auto" in line
    here = Kernel(landlock_abi=0, has_seccomp=True, is_linux=True)
    monkeypatch.setattr(admin_commands, "kernel", lambda: here)
    assert "It can read and write every file that its user can." in organ.done("admin", "doctor").out
    monkeypatch.setenv("ORGAN_SANDBOX", "require")
    assert organ("admin", "doctor").status == 1


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
