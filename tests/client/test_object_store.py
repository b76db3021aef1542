"""Objects in a real S3 server on this machine: `make test-object-store` installs and runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.errors import NotFound
from tests.cli.in_process import OrganCommand

ZOO = Path(__file__).parents[2] / "examples" / "zoo" / "Zoo-C-1M-v1.0-Q8_0.gguf"
BUCKET = "models"

pytestmark = pytest.mark.object_store


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of the server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def objects(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A client of the server's owner, with an empty bucket."""
    import boto3

    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "reader",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    owner = boto3.client("s3")
    owner.create_bucket(Bucket=BUCKET)
    yield owner
    for entry in owner.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        owner.delete_object(Bucket=BUCKET, Key=entry["Key"])
    owner.delete_bucket(Bucket=BUCKET)
    owner.close()


def put(owner: object, key: str, data: bytes) -> None:
    owner.put_object(Bucket=BUCKET, Key=key, Body=data)  # type: ignore[attr-defined]


def test_a_model_in_a_bucket_is_measured_as_the_file(objects: object, tmp_path: Path) -> None:
    put(objects, "zoo/q8/model one.gguf", ZOO.read_bytes())
    put(objects, "zoo/q8/README.md", b"")
    organ = OrganCommand(tmp_path / "home")
    local = organ.done("measure", ZOO, "--json").values
    for address in ("s3://models/zoo/q8/model one.gguf", "s3://models/zoo", "s3://models/*q8/*.gguf"):
        assert organ.done("measure", address, "--json").values["tensors"] == local["tensors"]
    planned = organ.done("measure", "--dry-run", "s3://models/zoo").out
    assert planned.startswith("s3://models/zoo/q8/model one.gguf: 39 tensors; would read ")
    missing = organ("measure", "s3://models/zoo/none.gguf")
    assert missing.status == NotFound.exit_code
    assert missing.err.endswith("organ: s3://models/zoo/none.gguf: no such object, or no such bucket\n")
