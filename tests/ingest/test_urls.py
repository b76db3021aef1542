"""Models at addresses: measured by range, continued after an interruption, and found in a hub."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from organs.ingest.fleet.plan import expand_plan, read_plan
from organs.ingest.fleet.worker import UnitWorker
from organs.ingest.measuring import MeasureOptions, journal_path, measure_model, open_journal, plan_reads
from organs.ingest.sources import ModelSource, find_sources
from organs.ingest.urls import Hub, is_url
from organs.registry.catalog.queries.fleet import fleet_run
from organs.registry.catalog.register.fleet import start_run
from organs.registry.client.ranges import RangeClient, ReadLimits
from organs.registry.errors import BadHubToken, BadSource, BadSplit, NoSuchFile, NotAllowed, Unreachable
from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.client.scripted_server import CUT, Answer, ReceivedRequest, ScriptedServer, no_sleep, scripted_server
from tests.client.test_ranges import part
from tests.gguf_files import file_bytes, text
from tests.small_models import content_of, weight_tensor

COMMIT = "c" * 40
ZOO = Path(__file__).parents[2] / "examples" / "zoo"
LARGE = ZOO / "Zoo-C-1M-v1.0-Q8_0.gguf"


def shard(number: int, count: int) -> bytes:
    keys = [
        KeyValue("split.no", ValueType.UINT16, number),
        KeyValue("split.count", ValueType.UINT16, count),
        KeyValue("split.tensors.count", ValueType.INT32, count),
    ]
    metadata = [text("general.architecture", "llama"), *keys] if number == 0 else keys
    weight = TensorSpec(f"blk.{number}.ffn_up.weight", (64, 32), dtype_by_name("F32"))
    return file_bytes(metadata, [(weight, bytes(range(256)) * 32)])


@dataclass(slots=True)
class Stand:
    """A hub that runs: the answers of the documented routes of the Hugging Face hub."""

    files: dict[str, bytes]
    server: ScriptedServer
    refusal: Callable[[ReceivedRequest], Answer | None]

    def source(self, address: str, token: str | None = None) -> ModelSource:
        (source,) = find_sources([address], "measure", self.hub(token))
        return source

    def hub(self, token: str | None = None) -> Hub:
        client = RangeClient(connections=4, limits=ReadLimits(tries=2, total_seconds=20.0), sleep=no_sleep)
        return Hub(client, self.server.url, token)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = {"README.md": b"", "zoo.gguf": LARGE.read_bytes()}

    def script(request: ReceivedRequest) -> Answer:
        if (refused := running.refusal(request)) is not None:
            return refused
        if request.path.startswith("/api/models/big/moe/revision/"):
            siblings = [{"rfilename": name} for name in running.files]
            return Answer(200, json.dumps({"id": "big/moe", "sha": COMMIT, "siblings": siblings}).encode())
        name = request.path.removeprefix(f"/big/moe/resolve/{COMMIT}/")
        if name not in running.files:
            return Answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        return part(request, running.files[name])

    with scripted_server(script) as server:
        running = Stand(files, server, lambda _: None)
        yield running


def test_a_plan_states_what_the_measurement_reads(stand: Stand) -> None:
    source = stand.source("hf://big/moe")
    hub = source.remote[0].hub
    plan = plan_reads(source)
    headers, header_bytes = hub.client.requests, hub.client.received_bytes
    measure_model(source)
    assert plan.size_bytes == LARGE.stat().st_size
    assert (plan.tensors, plan.known_tensors) == (39, 0)
    # The headers are read again; one more request checks that the file has not changed.
    more = hub.client.requests - 2 * headers + 1
    assert plan.reads - 10 <= more <= plan.reads + 1, "small tensors may lie in the first 64 KiB"
    assert hub.client.received_bytes - 2 * header_bytes <= plan.read_bytes + 1


def test_an_interrupted_measurement_continues(stand: Stand, tmp_path: Path) -> None:
    cut_after = 25
    stand.refusal = lambda _: CUT if len(stand.server.requests) > cut_after else None
    source = stand.source("hf://big/moe")
    with pytest.raises(Unreachable):
        measure_model(source)
    (journal,) = (tmp_path / "cache").rglob("*.jsonl")
    with journal.open("ab") as file:
        file.write(b'{"file": "torn')
    stand.refusal = lambda _: None
    measure_model(source, MeasureOptions(lambda name, _: name == "output_norm.weight"))
    assert journal.exists(), "it has measurements that this selection did not need"
    before = plan_reads(source)
    assert 0 < before.known_tensors < before.tensors
    requests = source.remote[0].hub.client.requests
    (local,) = find_sources([str(LARGE)])
    assert content_of(measure_model(source)) == content_of(measure_model(local))
    assert source.remote[0].hub.client.requests - requests < plan_reads(source).reads
    assert not journal.exists()


def test_a_changed_file_is_measured_from_the_start(stand: Stand, tmp_path: Path) -> None:
    stand.refusal = lambda _: CUT if len(stand.server.requests) > 25 else None
    source = stand.source("hf://big/moe")
    with pytest.raises(Unreachable):
        measure_model(source)
    stand.refusal = lambda request: (
        part(request, stand.files["zoo.gguf"], '"2"') if request.path.endswith(".gguf") else None
    )
    assert plan_reads(source).known_tensors == 0


def test_all_shards_are_found_by_the_name_of_one(stand: Stand) -> None:
    stand.files |= {f"m-{number:05d}-of-00003.gguf": shard(number - 1, 3) for number in (1, 2, 3)}
    by_hub = stand.source("hf://big/moe/m-00002-of-00003.gguf@main")
    assert by_hub.label == "hf://big/moe/m-00001-of-00003.gguf and 2 more shards"
    by_address = stand.source(f"{stand.server.url}/big/moe/resolve/{COMMIT}/m-00003-of-00003.gguf")
    assert str(by_address.name) == "local/m"
    for source in (by_hub, by_address):
        names = [tensor.name for tensor in measure_model(source).tensors]
        assert names == ["blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "blk.2.ffn_up.weight"]
    del stand.files["m-00003-of-00003.gguf"]
    with pytest.raises(NoSuchFile, match=r"m-00003-of-00003\.gguf: no such file"):
        measure_model(by_hub)
    stand.files["m-00003-of-00003.gguf"] = shard(1, 3)
    with pytest.raises(BadSplit, match="repeats shard 2"):
        measure_model(by_hub)


def test_a_fleet_fetches_each_shard_at_the_commit_of_its_plan(
    stand: Stand, registry: LocalRegistry, tmp_path: Path
) -> None:
    stand.files |= {f"m-{number:05d}-of-00003.gguf": shard(number - 1, 3) for number in (1, 2, 3)}
    addresses = ["hf://big/moe/zoo.gguf", "hf://big/moe/m-00002-of-00003.gguf"]
    (tmp_path / "plan.toml").write_text(f'name = "hub"\n[[work]]\ndo = "ingest"\nfrom = {json.dumps(addresses)}\n')
    plan = expand_plan(registry, read_plan(tmp_path / "plan.toml"), tmp_path, stand.hub())
    names = ["zoo.gguf", *(f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3))]
    assert [unit.source for unit in plan.units] == [f"hf://big/moe/{name}@{COMMIT}" for name in names]
    with registry.catalog.writing() as session:
        run, _ = start_run(session, plan.name, plan.digest, plan.units)
    UnitWorker(registry, "w", stand.hub("hf_secret")).work_until_done(run)
    with registry.catalog.reading() as session:
        done = fleet_run(session, run)
    assert (done.done, done.failures) == (4, ())
    assert done.size_bytes == sum(len(stand.files[name]) for name in names)
    assert sorted(model.name for model in registry.models()) == ["big/m@1", "big/zoo@1"]


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("hf://big/moe", "it has 2 GGUF models; name one: other.gguf, zoo.gguf"),
        ("hf://big/moe/no.gguf", "it has no GGUF file no.gguf; it has zoo.gguf, other.gguf"),
        ("hf://big", "write hf://NAMESPACE/NAME"),
        ("hf://big/moe@v1/zoo.gguf@v2", "give one revision"),
        ("hf://big/moe/zoo.gguf@", "give one revision"),
        ("https://host/model.safetensors", "does not end with the name of a GGUF file"),
        ("http://[bad/m.gguf", "not a valid address"),
        ("hf://" + "a" * 3000, "not a valid address"),
    ],
)
def test_an_address_without_one_model_is_refused(address: str, sentence: str, stand: Stand) -> None:
    stand.files["other.gguf"] = b""
    with pytest.raises((BadSource, NoSuchFile), match=re.escape(sentence)):
        stand.source(address)


@pytest.mark.parametrize(
    ("status", "code", "error", "sentence"),
    [
        (401, "RepoNotFound", BadHubToken, "or the model does not exist"),
        (403, "GatedRepo", NotAllowed, "request access"),
        (403, "", NotAllowed, "access is not allowed"),
        (404, "RepoNotFound", NoSuchFile, "no such model"),
        (404, "RevisionNotFound", NoSuchFile, "no such revision"),
        (404, "EntryNotFound", NoSuchFile, "no such"),
    ],
)
def test_refusals_of_a_hub_are_explained(
    status: int, code: str, error: type[Exception], sentence: str, stand: Stand
) -> None:
    listed = stand.source("hf://big/moe")
    stand.refusal = lambda _: Answer(status, b"{}", {"X-Error-Code": code})
    with pytest.raises(error, match=f"hf://big/moe: .*{sentence}"):
        stand.source("hf://big/moe")
    with pytest.raises(error, match=rf"hf://big/moe/zoo\.gguf: .*{sentence}"):
        measure_model(listed)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"sha": "../..", "siblings": []}', b"[" * 100_000])
def test_an_answer_that_is_not_a_hubs_is_refused(body: bytes, stand: Stand) -> None:
    stand.refusal = lambda _: Answer(200, body)
    with pytest.raises(BadSource, match=r"does not answer as a hub does|does not name a commit"):
        stand.source("hf://big/moe")


def test_the_command_measures_a_model_of_a_hub(stand: Stand, tmp_path: Path) -> None:
    organ = OrganCommand(tmp_path / "home")
    environment = {"HF_ENDPOINT": f"{stand.server.url}/", "HF_TOKEN": "hf_abc"}
    planned = organ("measure", "hf://big/moe", "--dry-run", environment=environment)
    assert re.fullmatch(
        r"hf://big/moe/zoo\.gguf: 39 tensors; would read [\d.]+ MB of 1\.4 MB \([\d.]+%\) in \d+ requests"
        r"; it is faster to download the file and to measure the copy\n",
        planned.out,
    )
    path = journal_path(["hf://big/moe/zoo.gguf"])
    with open_journal(path):
        pass
    measured = organ("measure", "hf://big/moe", environment=environment)
    assert (measured.status, measured.lines[0].split(",")[0]) == (0, "hf://big/moe/zoo.gguf: llama")
    assert re.search(r"hf://big/moe/zoo\.gguf: downloaded [\d.]+ MB in \d+ requests, \d+ s", measured.err)
    assert f"an interrupted run has measurements in {path}; to forget them, delete it\n" in measured.err
    assert "interrupted" not in organ("measure", "hf://big/moe", environment=environment).err
    assert {request.headers["Authorization"] for request in stand.server.requests} == {"Bearer hf_abc"}
    refused = organ("measure", "hf://big/none", environment=environment)
    assert (refused.status, refused.err) == (3, "organ: hf://big/none: no such model or revision (404)\n")


def test_a_bad_endpoint_is_named_with_its_variable_and_without_secrets(tmp_path: Path) -> None:
    organ = OrganCommand(tmp_path / "home")
    for endpoint, sentence in {
        "user:pass@hub": "HF_ENDPOINT is not the address of a hub",
        "https://user:pass@hub.example": "HF_ENDPOINT is not the address of a hub",
        "http://hub.example": "HF_ENDPOINT is http://hub.example: a token is not sent over plain http",
    }.items():
        ended = organ("measure", "hf://big/moe", environment={"HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_abc"})
        assert ended.err.startswith(f"organ: {sentence}")
        assert "pass" not in ended.err


@pytest.mark.parametrize(
    "address",
    [
        "https://user:pa/ss@host/x.gguf",
        "https://user:pa?ss@host/x.gguf",
        "https://user:pass@host/x",
        "hf://user:pass@hub.example/ns/name",
        "hf://ns/name?token=pass",
        "s3://key:pass@bucket",
        "s3://key:pa/ss@bucket/x.gguf",
    ],
)
def test_an_address_that_is_refused_is_named_without_secrets(address: str, tmp_path: Path) -> None:
    ended = OrganCommand(tmp_path / "home")("measure", address)
    assert ended.status == 1
    assert not [word for word in ("pa/ss", "pa?ss", "pass", "user", "key:") if word in ended.err]


def test_a_server_that_does_not_answer_is_named_without_secrets(stand: Stand) -> None:
    stand.refusal = lambda _: CUT
    with pytest.raises(Unreachable) as caught:
        stand.source("hf://big/moe")
    assert str(caught.value).startswith(f"hf://big/moe at {stand.server.url}: ")
    address = stand.server.url.replace("//", "//user:pass@") + "/zoo.gguf?signature=secret"
    with pytest.raises(Unreachable) as caught:
        measure_model(stand.source(address))
    assert str(caught.value).startswith(f"{stand.server.url}/zoo.gguf: ")


def test_the_cost_of_all_experts_is_printed_and_confirmed(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = weight_tensor("blk.0.ffn_up_exps.weight", (64, 64, 6))
    stand.files = {"moe.gguf": file_bytes([text("general.architecture", "llama")], [stack])}
    organ = partial(OrganCommand(tmp_path / "home"), environment={"HF_ENDPOINT": stand.server.url})
    measured = organ("measure", "--experts", "--json", "hf://big/moe")
    cost = (
        r"hf://big/moe/moe\.gguf: 1 tensors and 6 experts; would read [\d.]+ kB of [\d.]+ kB \([\d.]+%\) in 7 requests"
    )
    assert re.match(cost, measured.err), "it is less than the limit, so there is no question"
    (tmp_path / "moe.gguf").write_bytes(stand.files["moe.gguf"])
    local = organ("measure", "--experts", "--json", tmp_path / "moe.gguf").values
    assert measured.values["experts"] == local["experts"]
    assert len(local["experts"]) == 6
    monkeypatch.setattr("organs.cli.measure.ASK_FROM_REQUESTS", 6)
    refused = organ("measure", "--experts", "hf://big/moe")
    assert (refused.status, refused.out) == (2, "")
    assert "add -y to download this" in refused.err
    assert organ("measure", "--experts", "-y", "--json", "hf://big/moe").values["experts"] == local["experts"]


OBJECTS = ("small/zoo.gguf", "small/README.md", "small/deep/a b.gguf", "big/m-00001-of-00003.gguf")
SHARDS = tuple(f"big/m-{number:05d}-of-00003.gguf" for number in (1, 2, 3))


@pytest.fixture
def in_bucket(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModelSource]:
    """Return a function that returns the model at an address of the bucket `models`, which has these objects."""
    keys = sorted({*OBJECTS, *SHARDS})
    monkeypatch.setattr(
        "organs.registry.client.ranges.list_objects",
        lambda _client, _bucket, folder, **_: [key for key in keys if key.startswith(folder)],
    )
    monkeypatch.setattr(
        "organs.registry.client.ranges.ObjectFile", lambda _client, address, *, allows_http: (address, allows_http)
    )

    def find(address: str) -> ModelSource:
        (source,) = find_sources([address], "measure", Hub(RangeClient(), "https://hub.example"))
        return source

    return find


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("s3://models/small/zoo.gguf", ("small/zoo.gguf",)),
        ("S3://models/small/*oo.gguf", ("small/zoo.gguf",)),
        ("s3://models/small/z*", ("small/zoo.gguf",)),
        ("s3://models/big/m-00002-of-00003.gguf", SHARDS),
        ("s3://models/big", SHARDS),
        ("s3://models/big/", SHARDS),
        ("s3://models/*-of-*", SHARDS),
    ],
)
def test_an_address_of_a_store_selects_a_file_or_all_shards(
    address: str, names: tuple[str, ...], in_bucket: Callable[[str], ModelSource]
) -> None:
    source = in_bucket(address)
    assert [location.lower() for location in source.locations] == [f"s3://models/{name}" for name in names]
    assert source.remote[0].open() == (source.locations[0], False)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("s3://models", "s3://models: it has 3 GGUF models; name one: big/m-00001-of-00003.gguf, small/deep/a b.gguf"),
        ("s3://models/none/", "s3://models/none/: it has no GGUF file"),
        ("s3://models/small/*Q4*", "s3://models/small/*Q4*: it has no GGUF file small/*Q4*; it has small/"),
        ("gs:///a.gguf", "gs://…: write gs://BUCKET/KEY.gguf, or the address of a folder"),
    ],
)
def test_an_object_address_without_one_model_is_refused(
    address: str, sentence: str, in_bucket: Callable[[str], ModelSource]
) -> None:
    with pytest.raises((BadSource, NoSuchFile), match=f"^{re.escape(sentence)}"):
        in_bucket(address)


def test_a_store_without_encryption_must_be_allowed(tmp_path: Path) -> None:
    environment = {"AWS_ENDPOINT_URL": "http://store.example", "AWS_ALLOW_HTTP": ""}
    ended = OrganCommand(tmp_path / "home")("measure", "s3://models/zoo.gguf", environment=environment)
    assert ended.status == 1
    assert re.fullmatch(r"organ: http://\S+ is an http address; to allow [\w ]+, set AWS_ALLOW_HTTP=true\n", ended.err)


def test_a_file_wins_over_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf:" / "big").mkdir(parents=True)
    (tmp_path / "hf:" / "big" / "moe.gguf").write_bytes(shard(0, 1))
    (source,) = find_sources(["hf://big/moe.gguf"])
    assert source.remote == ()
    assert is_url("hf://big/moe.gguf")
    with pytest.raises(BadSource, match="to ingest the model, download it first"):
        find_sources(["hf://big/other.gguf"])
