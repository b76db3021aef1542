"""`organ push`: what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.ingest.contributions.findings import NONFINITE
from organs.registry.tokens import new_token
from tests.cli.in_process import CommandResult, OrganCommand
from tests.ingest.memory_registry import FakeRegistry, fake_registry
from tests.small_models import small_model
from tests.web.live_server import unused_address


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as running:
        yield running


def run(folder: Path, url: str, *arguments: object, **environment: str) -> CommandResult:
    """`organ push` with caches and settings of its own."""
    places = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_CONFIG_HOME": str(folder / "config")}
    return OrganCommand(folder / "home")("--registry", url, "push", *arguments, environment=places | environment)


def write(folder: Path, name: str = "Mine.gguf", seed: int = 0) -> Path:
    path = folder / name
    path.write_bytes(small_model(seed=seed))
    return path


def test_a_push_prints_the_address_of_the_page_on_stdout(fake: FakeRegistry, tmp_path: Path) -> None:
    path, url, token = write(tmp_path), fake.connection.url, new_token().text
    first = run(tmp_path, url, path, "--license", "mit", "--tag", "a", "--tag", "b", ORGAN_TOKEN=token)
    assert (first.status, first.lines[-1]) == (0, f"{url}/models/me/Mine@1")
    assert first.lines[0].startswith("me/Mine@1: published; ")
    assert fake.manifests[0]["metadata"] == {"license": "mit", "tags": ["a", "b"]}
    assert fake.requests_to("POST", "/uploads")[0].headers["Authorization"] == f"Bearer {token}"
    again = run(tmp_path, url, path)
    assert again.lines == ["me/Mine@1: already registered there, nothing was sent", f"{url}/models/me/Mine@1"]
    note = "the registry already has this model; its description was not changed. Edit it on its page: "
    assert note not in again.err
    assert f"  note: {note}{url}/models/me/Mine@1/edit\n" in run(tmp_path, url, path, "--tag", "b").err
    assert list((tmp_path / "cache/organ-registry/push").iterdir()) == []  # the file was written only just now
    assert not (tmp_path / "home").exists()


def test_quiet_prints_the_address_of_the_model_or_of_its_submission_before_publication(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    url = fake.connection.url
    fake.outcome = {"state": "quarantined", "model": "me/Mine@1"}
    waits = run(tmp_path, url, path := write(tmp_path), "-q")
    assert (waits.status, waits.lines) == (0, [f"{url}/submissions/2"])
    assert "held for review by an administrator" in waits.err
    ended = run(tmp_path, url, path, "--json").values
    assert (ended["state"], ended["address"]) == ("quarantined", f"{url}/submissions/{ended['submission']}")
    left = run(tmp_path, url, write(tmp_path, seed=5), "-q", "--no-wait")
    assert (left.status, left.lines) == (0, [f"{url}/submissions/{list(fake.submissions)[-1]}"])
    fake.outcome = {"state": "published"}
    seen = run(tmp_path, url, write(tmp_path, seed=6), "-q")
    assert (seen.status, seen.lines, seen.err) == (0, [f"{url}/models/me/Mine@1"], "")


def test_an_unknown_license_is_refused_before_any_request_and_without_one_the_header_counts(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    with unused_address() as url:
        ended = run(tmp_path, url, path := write(tmp_path), "--license", "apache")
    assert (ended.status, ended.out) == (1, "")
    assert "license: Unknown license 'apache'; did you mean apache-2.0?" in ended.err
    assert "Usual ones are apache-2.0, mit, " in ended.err
    url = fake.connection.url
    assert run(tmp_path, url, path, "--license", "mit", "--dry-run").err == ""
    stated = "note: the license is apache-2.0, as the header of the file says; --license states another"
    assert stated in run(tmp_path, url, path, "--dry-run").err
    path.write_bytes(path.read_bytes().replace(b"general.license", b"general.licenze"))
    assert "Usual ones are apache-2.0" in run(tmp_path, url, path, "--dry-run").err


def test_a_dry_run_lists_the_bytes_to_send_and_json_has_the_sent_bytes(fake: FakeRegistry, tmp_path: Path) -> None:
    planned = run(tmp_path, fake.connection.url, write(tmp_path), "--dry-run")
    assert planned.lines == ["me/Mine: would send 95.7 kB in 11 pieces, 0 bytes in 0 pieces already there"]
    assert not fake.blobs
    fake.outcome["findings"] = [{"severity": "warn", "code": "no-license", "sentence": "It has no license.\x1b[2J"}]
    ended = run(tmp_path, fake.connection.url, write(tmp_path), "--json").values
    sent = {"bytes_sent": fake.received_bytes, "bytes_known": 0, "pieces_sent": len(fake.blobs), "pieces_known": 0}
    assert (sent | {"submission": 2, "findings": fake.outcome["findings"], "error": None}).items() <= ended.items()
    shown = run(tmp_path, fake.connection.url, write(tmp_path, seed=1))
    assert "  warn: It has no license.\\u001b[2J (no-license)" in shown.err


def test_a_refused_model_is_named_the_others_are_sent_and_the_status_is_1(fake: FakeRegistry, tmp_path: Path) -> None:
    (tmp_path / "Bad.gguf").write_bytes(b"GGUF, says the file")
    write(tmp_path, "Good.gguf")
    ended = run(tmp_path, fake.connection.url, tmp_path / "Bad.gguf", tmp_path / "Good.gguf", "--json")
    bad, good = (json.loads(line) for line in ended.lines)
    assert ended.status == 1
    assert "Bad.gguf" in bad["error"]
    assert good["model"] == "me/Good@1"
    fake.outcome = {"state": "refused", "reason": "It is no good."}
    refused = run(tmp_path, fake.connection.url, write(tmp_path, seed=3))
    assert (refused.status, refused.out) == (1, "")
    assert refused.err.startswith("organ: me/Mine: refused: It is no good.; ")


def test_a_finding_that_must_be_accepted_ends_the_push_until_it_is(fake: FakeRegistry, tmp_path: Path) -> None:
    path, url = write(tmp_path), fake.connection.url
    finding = {"severity": "warn", "code": NONFINITE, "sentence": "Weights are NaN."}
    fake.outcome = {"state": "ready", "findings": [finding]}
    stopped = run(tmp_path, url, path)
    assert stopped.status == 1
    assert f"warn: Weights are NaN. ({NONFINITE})" in stopped.err
    assert f"not published; to publish it, push it again with --accept {NONFINITE}" in stopped.err
    assert "accept" not in fake.manifests[0]
    fake.outcome = {"state": "published"}
    again = run(tmp_path, url, path, "--accept", NONFINITE)
    assert (again.status, fake.manifests[1]["accept"]) == (0, [NONFINITE])


def test_a_registered_model_is_pushed_by_its_name_and_leaves_no_file(fake: FakeRegistry, tmp_path: Path) -> None:
    organ, url = OrganCommand(tmp_path / "home"), fake.connection.url
    organ.done("ingest", write(tmp_path, "Kept.gguf"), "--name", "acme/Kept")
    pushed = run(tmp_path, url, "acme/Kept")
    assert (pushed.status, pushed.lines[-1]) == (0, f"{url}/models/me/Kept@1")
    assert [folder.name for folder in (tmp_path / "home" / "spool").iterdir()] == []
    digest = organ.done("show", "acme/Kept", "--json").values["digest"]
    again = run(tmp_path, url, f"sha256:{digest[:12]}", write(tmp_path, "Other.gguf", seed=1), "--dry-run")
    assert [line.partition(":")[0] for line in again.lines] == ["me/Other", "me/Kept@1", "http"]


@pytest.mark.folder
def test_what_is_neither_a_file_nor_a_registered_model_is_one_error(fake: FakeRegistry, tmp_path: Path) -> None:
    url = fake.connection.url
    nowhere = run(tmp_path, url, "me/missing")
    assert (nowhere.status, nowhere.err) == (1, "organ: me/missing: no such file or folder\n")
    assert not (tmp_path / "home").exists()
    OrganCommand(tmp_path / "home").done("ingest", write(tmp_path, "Kept.gguf"))
    assert run(tmp_path, url, "Keptt").err.startswith(
        "organ: Keptt: no such file or folder, and no model is registered as local/Keptt; did you mean local/Kept?\n"
    )
