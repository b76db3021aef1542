"""Commands with --registry URL: what they print of a registry elsewhere is what they print of the same folder."""

from __future__ import annotations

import io
import os
import re
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
from organs.registry.client.tokens import kept_token
from organs.registry.columns import CellKind
from organs.registry.digest import digest_of
from organs.registry.entities.base import encode
from organs.registry.entities.report import Report, ReportColumn, ReportFigure, ReportFigures, table
from organs.registry.errors import BadSource
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests import postgres
from tests.cli.in_process import CommandResult, OrganCommand
from tests.client.scripted_server import Answer, scripted_server
from tests.client.served_registry import ServedRegistry

ROOT = Path(__file__).resolve().parents[2]
Asking = Callable[..., CommandResult]


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a text on stdin."""

    def put(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return put


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "type:organ", "--limit", "3"),
        ("search", "type:norm", "--facets", "--json"),
        ("search", "-q", "block:1"),
        ("models", "kind:model", "--json"),
        ("models", "--rank", "kind:model", "-q"),
        ("show", "local/base"),
        ("show", "local/tuned", "--json"),
        ("compat", "base", "tuned"),
        ("compat", "base", "stranger", "--json"),
        ("compat", "base"),
        ("compat", "tuned", "--json", "--limit", "1"),
        ("compat", "nobody", "-q"),
        ("jobs", "--json"),
        ("show", "nobody"),
        ("search", "typ:organ"),
        ("models", "nothing:here"),
        ("jobs", "--show", "999"),
    ],
    ids=" ".join,
)
def test_a_command_prints_the_same_for_a_local_and_a_remote_registry(
    local_organ: OrganCommand, remote_organ: Asking, arguments: tuple[str, ...]
) -> None:
    own, other = local_organ(*arguments), remote_organ(*arguments)
    assert other.status == own.status
    if "--json" in arguments:
        assert other.values == own.values  # the members of an object have no order
    else:
        assert without_address(other.out) == own.out
    assert bool(own.out) != bool(own.status)


def without_address(text: str) -> str:
    """The text without the option that selects the remote registry, in commands to copy."""
    return re.sub(r" --registry \S+", "", text)


def test_an_organ_and_a_chimera_are_shown_the_same(
    local_registry: LocalRegistry, local_organ: OrganCommand, remote_organ: Asking
) -> None:
    digest = local_registry.model("base").organs[0].digest
    lock = local_registry.model("first").lock_id
    for what in (digest[:12], f"sha256:{lock}", "local/first"):
        assert without_address(remote_organ("show", what).out) == local_organ.done("show", what).out


@pytest.mark.long
def test_a_recipe_is_made_remotely_and_its_file_and_lock_are_downloaded(
    local_registry: LocalRegistry, local_organ: OrganCommand, remote_organ: Asking, tmp_path: Path
) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("base: base\ngrafts: [{from: stranger, type: organ, blocks: 1}]\nname: local/made-there\n")
    refused = remote_organ("compose", recipe, "-o", tmp_path / "x.gguf")
    assert refused.status == 5
    assert "--accept unrelated-lineage" in refused.err
    assert remote_organ("compose", recipe, "-y", "--dry-run").status == 0
    assert not local_registry.models("made-there")
    files = ("-o", tmp_path / "x.gguf", "--lock", tmp_path / "l.json", "--write-recipe", tmp_path / "w.yaml")
    made = remote_organ("compose", recipe, "-y", "--json", *files)
    assert made.status == 0, made.err
    values = made.values["made"]
    assert digest_of((tmp_path / "x.gguf").read_bytes()) == values["sha256"]
    assert digest_of((tmp_path / "l.json").read_bytes()) == values["lock_id"]
    assert "accept: [unrelated-lineage]" in (tmp_path / "w.yaml").read_text()
    assert local_registry.model("made-there").lock_id == values["lock_id"]
    told, there = (
        run("compose", tmp_path / "w.yaml", "--dry-run").out.split("; ") for run in (local_organ, remote_organ)
    )
    assert told == there


@pytest.mark.parametrize(
    "arguments",
    [
        *(("compare", "base", "tuned"), ("compare", "tuned", "stranger", "--json"), ("compare", "base", "base")),
        *(("report", "--limit", 2), ("report", "--json"), ("report", "--format", "csv"), ("report", "tuned")),
        *(("report", "first", "--format", "markdown"), ("report", "stranger", "--json", "--limit", 3)),
    ],
    ids=lambda arguments: " ".join(map(str, arguments)),
)
def test_remote_comparisons_and_reports_equal_those_of_the_folder(
    local_organ: OrganCommand, remote_organ: Asking, arguments: tuple[object, ...]
) -> None:
    due = local_organ(*arguments)
    assert due.status == 0, due.err
    assert remote_organ(*arguments) == due


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_remote_model_is_extracted_locally(local_organ: OrganCommand, remote_organ: Asking, tmp_path: Path) -> None:
    for run, folder in ((local_organ, "due"), (remote_organ, "came")):
        ended = run("extract", "first", "-o", tmp_path / folder, "-q")
        assert ended.status == 0, ended.err
    due, came = (files_below(tmp_path / folder) for folder in ("due", "came"))
    assert came == due
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()
    assert remote_organ("extract", "first", "-o", tmp_path / "came").status == 1
    assert remote_organ("extract", "nobody", "-o", tmp_path / "none").status == 3


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
    assert remote_organ("pull", "sha256:00000000", "-o", tmp_path).status == 3
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
    text = card.read_text("utf-8")
    assert text == local_registry.card("last")
    assert "| license | gpl-3.0 |" in text
    assert "| license in the file | " in text
    assert "parent-yanked" in text
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
        *(
            ("verify",),
            ("sweep",),
            ("work", "--once"),
            ("serve",),
            ("backup", "b"),
            ("migrate-store", "--to-blobs", "b"),
            ("ingest", __file__),
        ),
        *(("admin", "submissions"), ("admin", "remove", "local/base@1", "--reason", "x", "-y")),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_a_folder_says_so_and_names_an_alternative(
    remote_organ: Asking, arguments: tuple[str, ...]
) -> None:
    ended = remote_organ(*arguments)
    assert (ended.status, ended.out) == (1, "")
    assert f"organ: organ {arguments[0]}" in ended.err
    assert "works on a local registry only" in ended.err
    assert REMOTE_ALTERNATIVES[arguments[0]] in ended.err


def test_a_remote_report_has_no_more_rows_than_a_registry_returns(remote_organ: Asking) -> None:
    ended = remote_organ("report", "--limit", "1001")
    assert (ended.status, ended.out) == (1, "")
    assert "from 1 to 1000" in ended.err


def test_the_text_of_a_remote_report_is_harmless_in_every_format(local_organ: OrganCommand) -> None:
    odd = "x\x1b[31m\u202e"
    figures = {"x_count": ReportFigure(odd, odd, CellKind.COUNT, odd)}
    columns = (ReportColumn("a", odd, CellKind.TEXT),)
    report = Report(
        title=odd,
        main="t",
        opening=(odd,),
        sections={
            "f": ReportFigures(title=odd, before=(odd,), figures=figures, after=(odd,)),
            "t": table(odd, columns, ((odd,),), before=(odd,), after=(odd,), empty=odd),
            "u": table(odd, columns, (), before=(odd,), after=(odd,), empty=odd),
        },
        closing=(odd,),
    )
    with scripted_server(lambda _: Answer(200, encode(report))) as server:
        for form in ("text", "markdown", "csv", "json"):
            ended = local_organ("--registry", server.url, "report", "--format", form)
            assert ended.status == 0, ended.err
            assert "\\u202e" in ended.out.replace("\\\\", "\\")
            assert not {"\x1b", "\u202e"} & set(ended.out)


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
    kept = kept_token(served.url)
    assert kept is not None
    assert (kept.token, kept.plain_http) == (token.text, False)
    listed = remote_organ("login", "--list")
    assert listed.out == f"{served.url}\n"
    assert remote_organ("models").status == 0
    assert token.text not in ended.out + ended.err + listed.out + listed.err
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
    assert remote_organ("login", "--list", "--forget", "x").status == 2
    assert remote_organ("pull", "x").status == 3


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


def test_existing_files_are_not_fetched_again(
    remote_registry: RemoteRegistry, local_registry: LocalRegistry, tmp_path: Path
) -> None:
    files = [remote_registry.own_files(name).files[0] for name in ("base", "tuned")]
    output = FetchedFiles(remote_registry.connection, files)

    def fetched() -> list[Path]:
        return [one.path for one in write_files(output, tmp_path, quiet=True)]

    kept, lost = fetched()
    inode = kept.stat().st_ino
    lost.unlink()
    assert fetched() == [kept, lost]
    assert kept.stat().st_ino == inode, "it was left as it is"
    for path, name in ((kept, "base"), (lost, "tuned")):
        assert digest_of(path.read_bytes()) == local_registry.model(name).digest
    data = bytearray(kept.read_bytes())
    data[-1] ^= 1
    kept.write_bytes(data)
    lost.unlink()
    with pytest.raises(BadSource, match="already exists"):
        fetched()
    assert (kept.read_bytes(), lost.exists()) == (data, False), "nothing is replaced without --force"


def test_a_file_that_does_not_match_its_digest_is_never_complete(
    remote_registry: RemoteRegistry, tmp_path: Path
) -> None:
    """The digest of a chimera's file is only what the registry says; a fetched file is checked against its lock."""
    files = [remote_registry.own_files(name).files[0] for name in ("base", "tuned")]

    def fetched(check: Callable[[Path], None] | None) -> list[Path]:
        output = FetchedFiles(remote_registry.connection, [(name, replace(file, check=check)) for name, file in files])
        return [one.path for one in write_files(output, tmp_path, quiet=True)]

    whole = fetched(None)
    assert fetched(None) == whole
    with pytest.raises(BadSource, match="already exists"):
        fetched(lambda _path: None)
