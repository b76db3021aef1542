"""`organ push --to hf://NAMESPACE/NAME` and `organ pull hf://...`: what a hub gets, and what people read."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.cli.in_process import CommandResult, OrganCommand
from tests.client.scripted_server import Answer, ReceivedRequest, scripted_server
from tests.fake_hub import CHUNK_BYTES, COMPLETE, TOKEN, FakeHub, fake_hub
from tests.small_models import small_model, small_shards

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),  # about how the hub's client sends parts
]
ADDRESS = "hf://me/coder"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with fake_hub() as hub:
        yield hub


@pytest.fixture
def filled(organ: OrganCommand, tmp_path: Path) -> OrganCommand:
    """A registry with `local/coder-F16` and `local/split` in four shards."""
    (tmp_path / "a.gguf").write_bytes(small_model())
    (tmp_path / "shards").mkdir()
    for name, data in small_shards().items():
        (tmp_path / "shards" / name).write_bytes(data)
    organ.done("ingest", tmp_path / "a.gguf", "--name", "coder-F16")
    organ.done("ingest", tmp_path / "shards", "--name", "split")
    return organ


def push(organ: OrganCommand, hub: FakeHub, *arguments: object, token: str = TOKEN) -> CommandResult:
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": token}
    return organ("push", *arguments, "--to", ADDRESS, environment=environment)


def test_a_registered_model_is_sent_with_its_card_and_the_storage_gets_no_token(
    filled: OrganCommand, hub: FakeHub
) -> None:
    done = push(filled, hub, "coder-F16", "-y", "--private")
    assert done.status == 0, done
    assert done.lines == [f"{hub.endpoint}/me/coder/commit/{'c' * 40}"]
    assert "branch main, a new private repository:" in done.err
    assert "  coder-F16.gguf  " in done.err
    files = hub.repositories["me/coder"]
    assert files["coder-F16.gguf"] == small_model()
    assert b"local/coder-F16" in files["README.md"]
    assert hub.private == [True]
    (parts,) = hub.parts.values()
    assert [len(part) for part in parts.values()][:-1] == [CHUNK_BYTES] * (len(parts) - 1)
    assert len(parts) > 2
    assert {server for server, _, _ in hub.requests} == {"hub", "storage"}
    for server, request, header in hub.requests:
        assert header == (f"Bearer {TOKEN}" if server == "hub" and COMPLETE not in request else None), request


def test_a_private_push_never_goes_into_a_public_repository(filled: OrganCommand, hub: FakeHub) -> None:
    hub.repositories["me/coder"] = {}
    refused = push(filled, hub, "coder-F16", "-y", "--private")
    assert refused.status == 5
    assert "me/coder exists and is public" in refused.err
    assert (hub.private, hub.objects) == ([], {})


def test_a_file_is_sent_as_it_is_and_a_card_of_the_repository_stays(
    filled: OrganCommand, hub: FakeHub, tmp_path: Path
) -> None:
    (tmp_path / "b.gguf").write_bytes(small_model(seed=1))
    hub.repositories["me/coder"] = {"README.md": b"mine", "b.gguf": b"old"}
    done = push(filled, hub, tmp_path / "b.gguf", "coder-F16", "-y", "--json")
    assert done.status == 0, done
    assert [item["file"] for item in done.values["items"]] == ["b.gguf", "coder-F16.gguf"]
    assert hub.repositories["me/coder"] == {
        "README.md": b"mine",
        "b.gguf": small_model(seed=1),
        "coder-F16.gguf": small_model(),
    }


def test_an_interrupted_push_sends_no_complete_file_again(filled: OrganCommand, hub: FakeHub) -> None:
    shards = small_shards()
    hub.refused = {hashlib.sha256(shards["m-00002-of-00004.gguf"]).hexdigest()}
    broken = push(filled, hub, "split", "-y")
    assert broken.status != 0
    assert f"{hub.endpoint} answers 400" in broken.err
    assert "signature" not in broken.err
    assert hub.repositories["me/coder"] == {}
    complete = set(hub.objects)
    assert complete
    hub.refused, hub.requests[:] = set(), []
    assert push(filled, hub, "split", "-y").status == 0
    assert {name: data for name, data in hub.repositories["me/coder"].items() if name != "README.md"} == shards
    sent = {request.split("/")[1] for server, request, _ in hub.requests if server == "storage"}
    assert sent == {hashlib.sha256(data).hexdigest() for data in shards.values()} - complete


@pytest.mark.parametrize("token", ["hf_" + "w" * 34, ""])
def test_a_push_with_a_wrong_token_or_none_sends_nothing(token: str, filled: OrganCommand, hub: FakeHub) -> None:
    refused = push(filled, hub, "coder-F16", "-y", token=token)
    assert refused.status == 4
    assert "try: hf auth login, or set HF_TOKEN" in refused.err
    assert not token or token not in refused.err
    assert (hub.repositories, hub.objects) == ({}, {})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("push", "coder-F16", "--to", "hf://me", "-y"), "write hf://NAMESPACE/NAME"),
        (("push", "coder-F16", "--to", "hf://me/coder/a.gguf", "-y"), "without a file"),
        (("push", "coder-F16", "--to", ADDRESS, "--title", "x"), "with --to, the options are"),
        (("push", "coder-F16", "-y"), "--private and -y are for a push with --to"),
        (("push", "none", "--to", ADDRESS, "-y"), "no model is registered as local/none"),
        (("push", "coder-F16", "--to", ADDRESS), "nothing was sent; -y sends it without a question"),
        (("pull", "hf://me/coder", "--ingest"), "organ ingest hf://"),
    ],
)
def test_options_that_do_not_fit_are_refused_and_a_dry_run_sends_nothing(
    arguments: tuple[str, ...], sentence: str, filled: OrganCommand, hub: FakeHub
) -> None:
    ended = filled(*arguments, environment={"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN})
    assert ended.status != 0
    assert sentence in ended.err
    assert push(filled, hub, "coder-F16", "--dry-run").status == 0
    assert hub.repositories == {}


def test_without_the_client_of_the_hub_the_message_names_the_extra(
    filled: OrganCommand, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'organ-registry[hub]'" in push(filled, hub, "coder-F16", "-y").err


def test_a_pull_continues_and_is_checked_against_the_digest_of_the_hub(organ: OrganCommand, tmp_path: Path) -> None:
    data, broken, stated = small_model(blocks=9), [True], [hashlib.sha256(small_model(blocks=9)).hexdigest()]

    def script(request: ReceivedRequest) -> Answer:
        if "/api/models/me/coder/revision/" in request.path:
            return Answer(200, b'{"sha": "%s", "siblings": [{"rfilename": "m.gguf"}]}' % (b"c" * 40))
        begin, end = (int(number) for number in request.headers["range"].removeprefix("bytes=").split("-"))
        if broken[0] and end >= 100_000:
            return Answer(403, b"")
        end = min(end, len(data) - 1)
        headers = {
            "Content-Range": f"bytes {begin}-{end}/{len(data)}",
            "ETag": '"x"',
            "X-Linked-Etag": f'"{stated[0]}"',
        }
        return Answer(206, data[begin : end + 1], headers)

    target = tmp_path / "out" / "m.gguf"
    target.parent.mkdir()
    with scripted_server(script) as server:
        environment = {"HF_ENDPOINT": server.url, "HF_TOKEN": ""}
        assert organ("pull", "hf://me/coder", "-o", target, environment=environment).status != 0
        assert not target.exists()
        broken[0] = False
        done = organ("pull", "hf://me/coder", "-o", target, environment=environment)
        assert f"sha256:{stated[0]}" in done.out
        assert target.read_bytes() == data
        assert [path.name for path in target.parent.iterdir()] == ["m.gguf"]
        stated[0] = "0" * 64
        wrong = organ("pull", "hf://me/coder", "-o", target, "--force", environment=environment)
        assert "but the server states" in wrong.err
    assert target.read_bytes() == data
