"""The example of docs/deployment with two servers: nginx, PostgreSQL and a bucket. Run by `make test-servers`."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from organs.registry.local import LocalRegistry
from organs.registry.settings import BLOBS_VARIABLE, DATABASE_VARIABLE, Settings
from organs.registry.tokens import new_token as unknown_token
from organs.web.auth import SECURE_COOKIE
from organs.web.rate_limits import FAILED_TOKENS
from tests import buckets, postgres
from tests.gguf_files import file_bytes
from tests.small_models import block_metadata, ingest_file, small_model, weight_tensor
from tests.web.accounts import authorization, new_token
from tests.web.live_server import LiveServer, free_port, start_server, stop_server

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[1]
NGINX = ROOT / "docs" / "deployment" / "nginx.conf"
NAME = "localhost"
NODE_HEADER = "X-Test-Node"
OPTIONS = ("--proxies", "1", "--allow-host", NAME, "--workers", "2")
SMALL = small_model()


@dataclass
class Site:
    """Two servers behind nginx."""

    address: str
    certificate: Path
    nodes: list[LiveServer]
    homes: list[Path]
    logs: Path
    registry: LocalRegistry

    def client(self, node: int | None = None, **options: Any) -> httpx.Client:
        """Return a client of the site, or of one server directly, as nginx is."""
        if node is None:
            return httpx.Client(base_url=self.address, verify=trust(self.certificate), timeout=60, **options)
        forwarded = {"Host": NAME, "X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"}
        headers = forwarded | options.pop("headers", {})
        return httpx.Client(base_url=self.nodes[node].address, timeout=60, headers=headers, **options)

    def kill(self, node: int) -> None:
        """Kill all processes of a server at once."""
        parent = psutil.Process(self.nodes[node].process.pid)
        for process in (parent, *parent.children(recursive=True)):
            process.kill()
        self.nodes[node].process.wait()

    def start(self, node: int, port: int | None = None) -> None:
        """Start a server, on the port that nginx knows."""
        log = self.logs / f"node-{node}.log"
        server = start_server(self.homes[node], log, port=port, options=OPTIONS)
        self.nodes[node : node + 1] = [server]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv(DATABASE_VARIABLE, stack.enter_context(postgres.temporary_server()))
        environment.setenv(BLOBS_VARIABLE, f"s3://{buckets.BUCKET}/site")
        environment.setenv("AWS_ENDPOINT_URL", stack.enter_context(buckets.memory_server()))
        for name, value in buckets.CREDENTIALS.items():
            environment.setenv(name, value)
        buckets.create_bucket()
        settings = Settings.from_environment({**os.environ, "ORGAN_HOME": str(folder / "operator")})
        registry = stack.enter_context(LocalRegistry.from_settings(settings))
        homes = [folder / "one", folder / "two"]
        found = Site("", folder / "certificate.pem", [], homes, folder, registry)
        for node in range(2):
            found.start(node)
        stack.callback(lambda: [stop_server(server) for server in found.nodes])
        found.address = stack.enter_context(_proxy(folder, [server.port for server in found.nodes]))
        environment.setenv("SSL_CERT_FILE", str(found.certificate))
        yield found


@contextmanager
def _proxy(folder: Path, ports: list[int]) -> Iterator[str]:
    """Run nginx with the configuration of the documentation; yield its address."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise pytest.UsageError("install nginx")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-days", "2"]
    subprocess.run([*request, "-keyout", key, "-out", certificate, *subject], check=True, capture_output=True)
    port, plain_port = free_port(), free_port()
    site = NGINX.read_text()
    for pattern, replacement in (
        (r"    server 127\.0\.0\.1:8935 (.*)\n", "".join(rf"    server 127.0.0.1:{number} \1\n" for number in ports)),
        (r"listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        (r"listen 80;", f"listen 127.0.0.1:{plain_port};"),
        (r" *listen \[::\].*\n", ""),
        (r"ssl_certificate_key .*;", f"ssl_certificate_key {key};"),
        (r"ssl_certificate  .*;", f"ssl_certificate {certificate};"),
        (r"organs\.example\.org", NAME),
        (r"        proxy_pass ", f"        add_header {NODE_HEADER} $upstream_addr always;\n        proxy_pass "),
    ):
        site, changes = re.subn(pattern, replacement, site)
        assert changes, pattern
    temporary = "".join(
        f"    {name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"{user}daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\nerror_log {folder}/nginx.log;\n"
        f"events {{ worker_connections 256; }}\nhttp {{\n    access_log off;\n{temporary}{site}}}\n"
    )
    with subprocess.Popen([program, "-p", folder, "-c", configuration], stderr=subprocess.PIPE) as process:
        try:
            address = f"https://{NAME}:{port}"
            _wait_until(lambda: _answers(address, certificate))
            yield address
        finally:
            process.terminate()


def trust(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def _answers(address: str, certificate: Path) -> bool:
    try:
        return httpx.get(f"{address}/healthz", verify=trust(certificate)).status_code == 200
    except httpx.TransportError:
        return False


def _wait_until(condition: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_push_through_the_proxy_uses_both_servers(site: Site, tmp_path: Path) -> None:
    model, back = tmp_path / "pushed.gguf", tmp_path / "back.gguf"
    model.write_bytes(small_model("Pushed", blocks=6, seed=5))
    environment = {**os.environ, "ORGAN_TOKEN": new_token(site.registry, "bea", "read", "upload")}
    organ = [sys.executable, "-m", "organs.cli", "--registry", site.address]
    for arguments in (["push", str(model)], ["pull", "bea/pushed", "--output", str(back)]):
        done = subprocess.run([*organ, *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert back.read_bytes() == model.read_bytes()


def test_a_token_that_one_server_revokes_is_refused_by_the_other_at_once(site: Site) -> None:
    token = new_token(site.registry, "cay", "read", "tokens")
    headers = authorization(token)
    with site.client(0, headers=headers) as one, site.client(1, headers=headers) as two:
        assert one.get("/api/v1/account").status_code == two.get("/api/v1/account").status_code == 200
        assert one.delete(f"/api/v1/account/tokens/{token[5:14]}").status_code in (200, 204)
        begun = time.monotonic()
        assert two.get("/api/v1/account").status_code == 401
        assert time.monotonic() - begun < 1


def test_a_session_is_valid_on_both_servers_until_it_ends(site: Site) -> None:
    token = new_token(site.registry, "dov", "read", "upload", "tokens")
    with site.client() as browser:

        def send(address: str, page: str, **fields: str) -> None:
            form = {"form_token": form_token(browser.get(page).text), **fields}
            assert browser.post(address, data=form).status_code == 303

        def accounts() -> set[tuple[str, int]]:
            answers = [browser.get("/account") for _ in range(8)]
            return {(answer.headers[NODE_HEADER], answer.status_code) for answer in answers}

        send("/login", "/login", token=token)
        assert SECURE_COOKIE in browser.cookies
        assert sorted(status for _, status in accounts()) == [200, 200]
        kept = dict(browser.cookies)
        send("/logout", "/account")
        browser.cookies.update(kept)
        assert sorted(status for _, status in accounts()) == [303, 303]  # to the page for a log-in


def test_unknown_tokens_are_counted_on_both_servers(site: Site) -> None:
    statuses = []
    for number in range(FAILED_TOKENS.amount + 2):
        with site.client(number % 2, headers=authorization(unknown_token().text)) as client:
            statuses.append(client.get("/api/v1/account").status_code)
    assert statuses == [401] * FAILED_TOKENS.amount + [429] * 2


def test_a_page_shows_what_the_other_server_changed(site: Site, tmp_path: Path) -> None:
    with site.client(0) as one, site.client(1) as two:
        for number in range(3):
            assert f"eve/page-{number}" not in two.get("/models?q=page").text
            path = tmp_path / f"page-{number}.gguf"
            path.write_bytes(small_model("Page", seed=100 + number))
            ingest_file(site.registry, path, f"eve/page-{number}")
            for client in (one, two):
                assert f"page-{number}" in client.get("/api/v1/models").text


def test_a_download_continues_on_the_other_server_when_its_server_is_killed(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    shape = (1024, 4096)
    tensors = [weight_tensor(f"blk.{number}.ffn_up.weight", shape, seed=number) for number in range(6)]
    path.write_bytes(file_bytes(block_metadata("Large", 6), tensors))
    ingest_file(site.registry, path, "fay/large")
    data = path.read_bytes()
    received, tag = bytearray(), ""
    used: list[int] = []
    with site.client() as client:
        while len(received) < len(data):
            resumed = {"Range": f"bytes={len(received)}-", "If-Range": tag} if received else {}
            with client.stream("GET", "/models/fay/large@1.gguf", headers=resumed) as answer:
                assert answer.status_code == (206 if received else 200)
                tag = answer.headers["ETag"]
                ports = [node.port for node in site.nodes]
                node = ports.index(int(answer.headers[NODE_HEADER].rpartition(":")[2]))
                used.append(node)
                with suppress(httpx.TransportError):
                    for piece in answer.iter_raw():
                        received += piece
                        if len(used) == 1 and len(received) > len(data) // 8:
                            site.kill(node)
                            used.append(-1)
    assert bytes(received) == data
    assert used[0] != used[2]
    site.start(used[0], site.nodes[used[0]].port)


def test_probes_reach_a_server_by_its_address(site: Site) -> None:
    for node in site.nodes:
        assert httpx.get(f"{node.address}/healthz", headers={"Host": "10.1.2.3:8935"}).status_code == 200
        assert httpx.get(f"{node.address}/models", headers={"Host": "10.1.2.3:8935"}).status_code == 421


def form_token(page: str) -> str:
    """Return the token of the forms on a page."""
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None
    return found[1]
