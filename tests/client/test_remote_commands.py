"""Commands with --registry URL beyond what `test_interface` compares: files, pulls, log-in, what needs a folder."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from organs.cli.outputs import write_files
from organs.cli.registries import REMOTE_ALTERNATIVES
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.records import Edits
from organs.registry.catalog.register.accounts import add_contributor, create_token, revoke_token
from organs.registry.catalog.register.model_changes import edit_model, hide_model
from organs.registry.client.files import FetchedFiles
from organs.registry.client.remote import RemoteRegistry
from organs.registry.client.tokens import KeptToken, kept_token
from organs.registry.digest import digest_of
from organs.registry.errors import BadSource
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests import postgres
from tests.cli.in_process import CommandResult, OrganCommand
from tests.client.served_registry import ServedRegistry

ROOT = Path(__file__).resolve().parents[2]
Asking = Callable[..., CommandResult]


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a text on stdin."""

    def put(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return put


def test_files_are_assembled_and_pulled_from_a_remote_registry(
    local_registry: LocalRegistry, remote_organ: Asking, tmp_path: Path
) -> None:
    due = local_registry.assemble("first", tmp_path / "due.gguf")
    lock, organ = local_registry.model("first").lock_id, local_registry.model("first").organs[2]
    for number, arguments in enumerate((("assemble", "first"), ("pull", "first"), ("pull", f"sha256:{lock}"))):
        path = tmp_path / f"{number}.gguf"
        ended = remote_organ(*arguments, "-o", path, "-q")
        assert (ended.status, ended.out) == (0, f"{path}\n"), ended.err
        assert digest_of(path.read_bytes()) == due
    assert remote_organ("pull", "first", "-o", path).err.endswith("already exists; --force replaces it\n")
    pulled = remote_organ("pull", organ.digest[:12], "-o", tmp_path, "--json").values
    assert pulled["model"] is None
    assert digest_of(Path(pulled["items"][0]["file"]).read_bytes()) == organ.digest == pulled["items"][0]["sha256"]
    assert remote_organ("pull", organ.digest, "-o", tmp_path, "--ingest").status == 2


def test_what_a_pulled_file_cannot_contain_is_on_a_card_beside_it(
    local_registry: LocalRegistry, local_organ: OrganCommand, remote_organ: Asking, tmp_path: Path
) -> None:
    plain = remote_organ("pull", "tuned", "-o", tmp_path / "plain.gguf", "--json")
    assert (plain.values["card"], plain.err) == (None, "")
    local_registry.compose("base").graft("tuned", type="organ", blocks=0).named("local/middle").plan().register()
    last = local_registry.compose("middle").purify("fractal", blocks=1).named("local/last").plan().register()
    with local_registry.catalog.writing() as session:
        edit_model(session, model_by_name(session, parse_model_name("local/last")), Edits(license="gpl-3.0"), "local")
        middle = model_by_name(session, parse_model_name("local/middle"))
        hide_model(session, middle, "yanked", "Wrong texts.", "local")
    path, card = tmp_path / "last.gguf", tmp_path / "last.card.md"
    ended = remote_organ("pull", "last", "-o", path)
    assert ended.status == 0, ended.err
    assert digest_of(path.read_bytes()) == last.sha256, "the file itself does not change"
    assert f"{card}: the model's card" in ended.out
    assert "warn: The parent local/middle@1 was yanked on " in ended.err
    assert card.read_text("utf-8") == local_registry.card("last")
    again = remote_organ("pull", "last", "-o", tmp_path, "-q")
    assert "last.card.md: already exists; --force replaces it" in again.err
    assert "The parent local/middle@1 was yanked" in local_organ.done("assemble", "last", "-o", tmp_path / "a.gguf").err


def test_a_pulled_model_can_be_registered_in_the_same_command(
    local_registry: LocalRegistry, remote_organ: Asking, tmp_path: Path
) -> None:
    ended = remote_organ("pull", "tuned", "-o", tmp_path / "t.gguf", "--ingest", "--json")
    assert ended.values["ingested"] == "local/tuned@1", ended
    with LocalRegistry.open(tmp_path / "own") as own:
        assert own.model("tuned").digest == local_registry.model("tuned").digest


@pytest.mark.parametrize(
    "arguments",
    [
        *("verify", "sweep", "repack", "work --once", "serve", "backup b", "migrate-store --to-blobs b"),
        *("measure base", f"ingest {__file__}", "fleet list", "admin submissions", "admin yank base --reason x"),
    ],
)
def test_a_command_that_needs_a_folder_says_so_and_names_an_alternative(remote_organ: Asking, arguments: str) -> None:
    command, *more = arguments.split()
    ended = remote_organ(command, *more)
    assert (ended.status, ended.out) == (1, "")
    assert f"organ: organ {command}" in ended.err
    assert "works on a local registry only" in ended.err
    assert REMOTE_ALTERNATIVES[command] in ended.err


def test_the_option_home_takes_precedence_over_the_registry_of_the_environment(
    local_organ: OrganCommand, served: ServedRegistry
) -> None:
    away = {"ORGAN_REGISTRY": "http://127.0.0.1:9"}
    assert local_organ("--home", local_organ.home, "models", "-q", environment=away).status == 0
    assert local_organ("models", environment={"ORGAN_REGISTRY": served.url}).status == 0
    refused = local_organ("models", environment={"ORGAN_REGISTRY": "elsewhere"})
    assert "is not the address of a registry" in refused.err


def test_a_log_in_is_stored_listed_and_removed(
    served: ServedRegistry, remote_organ: Asking, type_in: Callable[[str], None]
) -> None:
    with served.registry.catalog.writing() as session:
        token = create_token(session, add_contributor(session, "ada").id, ("read", "upload"), "laptop")
    type_in(f"{token.text}\n")
    ended = remote_organ("login", "--token-stdin")
    assert ended.out == f"{served.url}: you are ada, with the scopes read, upload\n"
    assert token.text not in ended.err
    assert kept_token(served.url) == KeptToken(token.text, plain_http=False)
    assert remote_organ("login", "--list").out == f"{served.url}\n"
    assert remote_organ("models").status == 0
    with served.registry.catalog.writing() as session:
        revoke_token(session, token.public_id)
    assert "this token was revoked" in remote_organ("models").err
    type_in(token.text)
    assert remote_organ("login", "--token-stdin").status == 4
    assert remote_organ("login", "--forget", served.url).status == 0
    assert remote_organ("login", "--list", "--json").values == {"items": [], "next": None}
    assert remote_organ("login", "--forget", served.url).status == 1


def test_the_address_of_a_page_is_refused_and_the_root_is_named(remote_organ: Asking) -> None:
    page = "https://registry.example:8443/models/acme/tiny"
    for arguments in (("login", page, "--token-stdin"), ("--registry", page, "models")):
        ended = remote_organ(*arguments)
        assert ended.status == 1
        said = f"organ: {page!r} has a path, but the address of a registry has none: give https://registry.example:8443"
        assert ended.err.splitlines()[:1] == [said]


def test_an_invalid_token_is_not_sent(remote_organ: Asking, type_in: Callable[[str], None]) -> None:
    for text in ("", "hunter2\n", "orgp_" + "x" * 58):
        type_in(text)
        ended = remote_organ("login", "https://registry.example", "--token-stdin")
        assert ended.status == 4
        assert "hunter2" not in ended.err


def test_a_search_of_a_folder_loads_neither_numpy_nor_the_codecs_nor_http(local_organ: OrganCommand) -> None:
    script = (
        "import sys; from organs.cli.main import organ\n"
        "organ(['--home', sys.argv[1], 'search', '-q', '--limit', '1'], standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(local_organ.home)],
        cwd=ROOT,
        env={**os.environ, **postgres.environment(local_organ.home)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "organs.cli.search" in loaded
    assert loaded & {"numpy", "zstandard", "urllib3", "organs.registry.client.remote"} == set()


def test_existing_files_are_fetched_again_only_if_nothing_shows_that_they_are_right(
    remote_registry: RemoteRegistry, local_registry: LocalRegistry, tmp_path: Path
) -> None:
    files = [remote_registry.own_files(name).files[0] for name in ("base", "tuned")]

    def fetched(check: Callable[[Path], None] | None = None) -> list[Path]:
        output = FetchedFiles(remote_registry.connection, [(name, replace(file, check=check)) for name, file in files])
        return [one.path for one in write_files(output, tmp_path, quiet=True)]

    kept, lost = fetched()
    inode = kept.stat().st_ino
    lost.unlink()
    assert fetched() == [kept, lost]
    assert kept.stat().st_ino == inode, "it was left as it is"
    assert digest_of(lost.read_bytes()) == local_registry.model("tuned").digest
    with pytest.raises(BadSource, match="already exists"):
        fetched(lambda _path: None)  # as for a chimera, whose digest is only what the registry says
    wrong = kept.read_bytes()[:-1] + b"?"
    kept.write_bytes(wrong)
    lost.unlink()
    with pytest.raises(BadSource, match="already exists"):
        fetched()
    assert (kept.read_bytes(), lost.exists()) == (wrong, False), "nothing is replaced without --force"
