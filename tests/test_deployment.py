"""Tests of docs/deployment: every command in it is valid for `organ`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from organs.cli.main import organ
from organs.registry.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
PORTIONS = ("registry", "ingest", "cli", "web", "migrations")
FOLDER = ROOT / "docs" / "deployment"


def commands() -> dict[str, list[str]]:
    """Return the arguments of `organ` in each file, by the name of the file."""
    arguments_by_file = {}
    for path in sorted(FOLDER.glob("*.service")):
        (line,) = re.findall(r"^ExecStart=\S+/organ (.+)$", path.read_text(), re.MULTILINE)
        arguments_by_file[path.name] = line.split()
    (line,) = re.findall(r"^CMD (.+)$", (FOLDER / "Containerfile").read_text(), re.MULTILINE)[-1:]
    arguments_by_file["Containerfile"] = json.loads(line)
    return arguments_by_file


@pytest.mark.parametrize("name", commands())
def test_every_command_of_a_deployment_is_valid(name: str) -> None:
    command, *arguments = commands()[name]
    context = click.Context(organ)
    known = organ.get_command(context, command)
    assert known is not None
    known.make_context(command, list(arguments), parent=context)


def test_the_settings_of_a_deployment_are_valid_and_documented(tmp_path: Path) -> None:
    text = (FOLDER / "organ-registry.service").read_text().replace("%S", str(tmp_path))  # systemd's folder of states
    assert "CacheDirectory=organ-registry\n" in text
    assert "NUMBA_CACHE_DIR=%C/organ-registry/" in text, "numba cannot write beside the program"
    values = dict(re.findall(r"^Environment=(ORGAN_\w+)=(.+)$", text, re.MULTILINE))
    settings = Settings.from_environment(values)
    assert (settings.review, settings.quota_bytes) == ("manual", 100 * 10**9)
    guide = "".join(path.read_text() for path in FOLDER.parent.glob("*.md"))
    assert all(f"`{name}`" in guide for name in values)


def test_the_proxy_accepts_a_chunk_and_replaces_forwarding_headers() -> None:
    text = (FOLDER / "nginx.conf").read_text()
    assert "client_max_body_size 65m;" in text
    assert "proxy_request_buffering off;" in text
    for name in ("X-Forwarded-For $remote_addr", "X-Forwarded-Proto $scheme", 'Forwarded ""', "Host $host"):
        assert f"proxy_set_header {name};" in text, name
    assert text.count("{") == text.count("}")


def test_an_image_contains_only_the_program() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "everything is left out that is not named"
    kept = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert kept == {"LICENSE", "README.md", "pyproject.toml", "src", "docs", *PORTIONS}


def test_port_80_serves_certificate_challenges_before_it_redirects() -> None:
    text = (FOLDER / "nginx.conf").read_text()
    plain = text[text.index("listen 80;") : text.index("listen 443")]
    assert re.search(r"location \^~ /\.well-known/acme-challenge/ \{\s+root ", plain)
    assert re.search(r"location / \{\s+return 301 https://", plain)
    assert not re.search(r"^    return 301", plain, re.MULTILINE), "it would come before every location"
