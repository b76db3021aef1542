"""A server of OpenStack Swift with its S3 interface on this machine: a proxy, and one storage server of each kind.

Swift is a second implementation of S3 beside the one of moto, and keeps objects in files. Its programs must be in PATH:
`python -m venv swift; swift/bin/pip install swift 'setuptools<80'; PATH=swift/bin:$PATH`.
"""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

USER, PASSWORD = "test:tester", "testing"
KINDS = ("account", "container", "object")
FILTERS = ("catch_errors", "gatekeeper", "listing_formats", "bulk", "s3api", "tempauth", "slo", "dlo")
"""The filters of the proxy, from the outermost to the innermost one."""
START_SECONDS = 60.0
CLUSTER = """[swift-hash]
swift_hash_path_prefix = organ
swift_hash_path_suffix = tests
[storage-policy:0]
name = one
default = yes
"""
COMMON = """[DEFAULT]
user = {user}
swift_dir = {folder}
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
devices = {folder}/disk
mount_check = false
fallocate_reserve = 0
"""
STORAGE = """[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
PROXY = """[pipeline:main]
pipeline = {filters} proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
"""
FILTER_SETTINGS = {
    "tempauth": f"user_{USER.replace(':', '_')} = {PASSWORD} .admin\n",
    "s3api": "location = us-east-1\n",
}


@contextmanager
def swift_server() -> Iterator[str]:
    """Run the servers; yield the address of the proxy. Raises pytest.UsageError if they do not start."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="organ-swift-", ignore_cleanup_errors=True))
        )
        ports = _configure(folder)
        for kind, port in ports.items():
            log = stack.enter_context((folder / f"{kind}.log").open("wb"))
            process = subprocess.Popen(
                [_program(f"swift-{kind}-server"), f"{folder / kind}.conf"], stdout=log, stderr=log
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            _wait_for(port, process, folder / f"{kind}.log")
        yield f"http://127.0.0.1:{ports['proxy']}"


def _configure(folder: Path) -> dict[str, int]:
    """Write the settings and the rings of the servers; return their ports."""
    ports = {kind: _free_port() for kind in (*KINDS, "proxy")}
    (folder / "disk" / "d1").mkdir(parents=True)
    (folder / "swift.conf").write_text(CLUSTER)
    for kind, port in ports.items():
        common = COMMON.format(user=getpass.getuser(), folder=folder, port=port)
        (folder / f"{kind}.conf").write_text(common + (_proxy() if kind == "proxy" else STORAGE.format(kind=kind)))
    for kind in KINDS:
        for step in (["create", "4", "1", "0"], ["add", f"r1z1-127.0.0.1:{ports[kind]}/d1", "1"], ["rebalance"]):
            command = [_program("swift-ring-builder"), str(folder / f"{kind}.builder"), *step]
            subprocess.run(command, check=True, capture_output=True)
    return ports


def _proxy() -> str:
    sections = [f"[filter:{name}]\nuse = egg:swift#{name}\n{FILTER_SETTINGS.get(name, '')}" for name in FILTERS]
    return PROXY.format(filters=" ".join(FILTERS)) + "".join(sections)


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise pytest.UsageError(f"{name} is not in PATH: see tests/swift_server.py")
    return path


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=5).close()
        except urllib.error.HTTPError as answer:  # it refuses this request, so it runs
            answer.close()
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise pytest.UsageError(f"Swift did not start: {log.read_text()[-2000:]}")
