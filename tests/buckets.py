"""A pytest plugin that keeps blobs in a bucket: `pytest -p tests.buckets PATH`, or `make test-object-store`.

It starts an S3 server on this machine: that of moto, or with `TEST_S3=swift` that of OpenStack Swift; or it uses
the one that `TEST_S3_ENDPOINT` names. It gives each registry's folder a folder in the bucket. A copied folder
gets copies of the objects of the original folder. It can be combined with `-p tests.postgres`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from organs.registry.settings import BLOBS_VARIABLE, Settings
from tests import swift_server

ENDPOINT_VARIABLE = "TEST_S3_ENDPOINT"
SERVER_VARIABLE = "TEST_S3"
BUCKET = "organ-tests"
MARKER = "registry.bucket"
"""The file in a registry's folder that names its folder in the bucket, so that copies can find the original."""
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": swift_server.USER,
    "AWS_SECRET_ACCESS_KEY": swift_server.PASSWORD,
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
SERVER = """
import sys, threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""
"""A program that serves S3 from its memory until its standard input ends."""


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start one server for all workers, and let every folder use it, before any test module is imported."""
    if ENDPOINT_VARIABLE not in os.environ:
        server = ExitStack()
        server.callback(os.environ.pop, ENDPOINT_VARIABLE, None)
        os.environ[ENDPOINT_VARIABLE] = server.enter_context(SERVERS[os.environ.get(SERVER_VARIABLE, "moto")]())
        early_config.add_cleanup(server.close)
    os.environ.update(CREDENTIALS, AWS_ENDPOINT_URL=os.environ[ENDPOINT_VARIABLE])
    if "PYTEST_XDIST_WORKER" not in os.environ:
        create_bucket()
    in_folder, from_environment = Settings.in_folder, Settings.from_environment  # those of another plugin, if any

    def set_back() -> None:
        Settings.in_folder = in_folder  # type: ignore[method-assign]
        Settings.from_environment = from_environment  # type: ignore[method-assign]

    Settings.in_folder = classmethod(_in_bucket(in_folder))  # type: ignore[method-assign,assignment]
    Settings.from_environment = classmethod(_of_environment(from_environment))  # type: ignore[method-assign,assignment]
    early_config.add_cleanup(set_back)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests about blobs in a folder."""
    left_out = [item for item in items if item.get_closest_marker("folder") is not None]
    items[:] = [item for item in items if item.get_closest_marker("folder") is None]
    config.hook.pytest_deselected(items=left_out)


def is_used() -> bool:
    """Return whether the blobs of this process are in a bucket."""
    return ENDPOINT_VARIABLE in os.environ


@contextmanager
def memory_server() -> Iterator[str]:
    """Run an S3 server that keeps objects in memory; yield its address. Raises pytest.UsageError without the group."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        if not address:
            raise pytest.UsageError("the S3 server did not start: install the dependency group `object-store`")
        try:
            yield address
        finally:
            assert process.stdin is not None
            process.stdin.close()


SERVERS = {"moto": memory_server, "swift": swift_server.swift_server}


def create_bucket() -> None:
    """Create the bucket of the tests."""
    import boto3

    owner = boto3.client("s3")
    owner.create_bucket(Bucket=BUCKET)
    owner.close()


def address_of(home: Path) -> str:
    """Return the address of the blobs of the registry in the folder `home`, with the objects of the original folder."""
    name = _name_of(home)
    marker = home / MARKER
    source = marker.read_text() if marker.is_file() else name
    if source != name:
        _copy_objects(source, name)
    if source != name or not marker.is_file():
        home.mkdir(parents=True, exist_ok=True)
        marker.write_text(name)
    return f"s3://{BUCKET}/{name}"


def environment(home: Path) -> dict[str, str]:
    """Return the variables by which another process finds the blobs of the registry in the folder `home`."""
    return {BLOBS_VARIABLE: address_of(home)} if is_used() else {}


def copy_objects(home: Path, source: Path) -> None:
    """Give the registry in the folder `home` copies of the objects of the registry in the folder `source`."""
    _copy_objects((source / MARKER).read_text(), _name_of(home))


def _in_bucket(in_folder: Callable[[Path], Settings]) -> Callable[[type[Settings], Path], Settings]:
    def in_bucket(_cls: type[Settings], home: Path) -> Settings:
        settings = in_folder(home)
        return replace(settings, bucket=address_of(settings.home), bucket_allows_http=True)

    return in_bucket


def _of_environment(
    from_environment: Callable[[Mapping[str, str]], Settings],
) -> Callable[[type[Settings], Mapping[str, str]], Settings]:
    def of_environment(_cls: type[Settings], environment: Mapping[str, str]) -> Settings:
        settings = from_environment(environment)
        if environment.get(BLOBS_VARIABLE):
            return settings
        return replace(settings, bucket=address_of(settings.home), bucket_allows_http=True)

    return of_environment


def _name_of(home: Path) -> str:
    return hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:32]


def _copy_objects(source: str, target: str) -> None:
    from obstore.store import from_url

    store: Any = from_url(f"s3://{BUCKET}", client_options={"allow_http": True})
    for chunk in store.list(source):
        for entry in chunk:
            store.copy(entry["path"], target + entry["path"][len(source) :])
