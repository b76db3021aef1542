"""Answers to clients of the hub: refs, files, revisions, and errors in the format of the hub."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select

from organs.registry.catalog.tables import ModelRow
from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.repositories import commit_of
from tests.gguf_files import file_bytes, text
from tests.small_models import block_tensors, ingest_file, small_model
from tests.web.conftest import FORMULA, HOSTILE, HOSTILE_LINK
from tests.web.test_downloads import Served, served

__all__ = ["served"]

API = "/api/models/local/a"


def commit(client: FlaskClient) -> str:
    return str(client.get(API).get_json()["sha"])


def test_a_tree_has_the_digest_of_a_written_file_as_git_computes_it(served: Served) -> None:
    model, readme = served.client.get(f"{API}/tree/main?recursive=true").get_json()
    assert model["lfs"] == {"oid": digest_of(served.data), "size": len(served.data), "pointerSize": 132}
    assert "lfs" not in readme
    written = served.client.get("/local/a/resolve/main/README.md")
    blob = b"blob %d\0" % len(written.data) + written.data
    assert readme["oid"] == hashlib.sha1(blob, usedforsecurity=False).hexdigest() == written.headers["ETag"].strip('"')


def ingest(served: Served, folder: Path, name: str, seed: int = 0) -> None:
    (folder / "b.gguf").write_bytes(small_model(seed=seed))
    ingest_file(served.registry, folder / "b.gguf", name)


def test_a_revision_is_a_tag_or_a_commit_and_a_commit_names_bytes(served: Served, tmp_path: Path) -> None:
    first = commit(served.client)
    ingest(served, tmp_path, "a")
    assert commit(served.client) != first
    for revision in ("v1", "refs%2Ftags%2Fv1", first, first[:7]):
        assert served.client.get(f"{API}/revision/{revision}").get_json()["sha"] == first, revision
    answer = served.client.get(f"/local/a/resolve/{first}/a.gguf")
    assert answer.data == served.data
    assert answer.headers["X-Repo-Commit"] == first
    assert "immutable" in answer.headers["Cache-Control"]
    assert answer.headers["X-Linked-Etag"] == answer.headers["ETag"] == f'"{digest_of(served.data)}"'
    assert answer.headers["X-Linked-Size"] == str(len(served.data))
    assert not [name for name, _ in answer.headers if "xet" in name.lower()]
    newest, oldest = served.client.get(f"{API}/commits/main").get_json()
    assert (newest["title"], oldest["id"]) == ("local/a@2", first)
    assert [one["id"] for one in served.client.get(f"{API}/commits/v1").get_json()] == [first]
    address = f"{API}/commits/HEAD?limit=1"
    for page, expected, link in (("", newest, f'<http://localhost{address}&p=1>; rel="next"'), ("&p=1", oldest, None)):
        listed = served.client.get(address + page)
        assert ([one["id"] for one in listed.get_json()], listed.headers.get("Link")) == ([expected["id"]], link)


def test_versions_of_equal_bytes_are_different_commits(served: Served) -> None:
    with served.registry.catalog.reading() as session:
        model = session.scalars(select(ModelRow)).one()
        first = commit_of(model)
        model.version = 2
        assert commit_of(model) != first
        model.version, model.name = 1, "b"
        assert commit_of(model) != first
        session.rollback()


MISSING = {
    "RepoNotFound": ("/api/models/local/b", "/api/models/local/a@1", "/local/b/resolve/main/a.gguf"),
    "RevisionNotFound": (
        *(f"{API}/revision/{revision}" for revision in ("v2", "0" * 40, "abc")),
        f"{API}/tree/v0",
        "/local/a/resolve/v9/a.gguf",
        "/local/a/raw/v9/a.gguf",
    ),
    "EntryNotFound": (
        *(f"/local/a/resolve/main/{path}" for path in ("b.gguf", "../../../etc/passwd")),
        "/local/a/raw/main/b.gguf",
        f"{API}/tree/main/folder",
        "/v2/local/a/manifests/Q4_K_M",
    ),
}


@pytest.mark.parametrize("code", MISSING)
def test_a_missing_thing_is_answered_with_its_error_code(code: str, served: Served) -> None:
    for address in MISSING[code]:
        for answer in (served.client.get(address), served.client.head(address)):
            assert (answer.status_code, answer.headers["X-Error-Code"]) == (404, code), address
            assert answer.headers["X-Error-Message"].isprintable()
            assert answer.headers["Cache-Control"] == "no-store"


def test_paths_are_looked_up_as_a_form_and_as_json(served: Served) -> None:
    address = f"{API}/paths-info/main"
    as_form = served.client.post(address, data={"paths": ["a.gguf", "no"], "expand": "False"}).get_json()
    assert [entry["path"] for entry in as_form] == ["a.gguf"]
    assert served.client.post(address, json={"paths": ["a.gguf", "no", 5]}).get_json() == as_form
    for odd in ({"paths": 7}, [], {"paths": {"a": 1}}):
        assert served.client.post(address, json=odd).get_json() == []


def test_a_raw_file_is_the_git_lfs_pointer(served: Served) -> None:
    digest = digest_of(served.data)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(served.data)}\n"
    assert served.client.get("/local/a/raw/main/a.gguf").text == pointer
    part = served.client.get("/local/a/raw/main/a.gguf", headers={"Range": "bytes=0-6"})
    assert (part.status_code, part.data) == (206, b"version")
    readme = served.client.get("/local/a/raw/main/README.md")
    assert readme.data == served.client.get("/local/a/resolve/main/README.md").data


def test_a_list_has_the_newest_version_of_each_model_in_pages(served: Served, tmp_path: Path) -> None:
    for seed, name in enumerate(("a", "b", "Other/C")):
        ingest(served, tmp_path, name, seed)
    found, address, pages = [], "/api/models?limit=1&sort=downloads&full=true", 0
    while address:
        answer = served.client.get(address)
        found += answer.get_json()
        following = re.fullmatch(r'<http://localhost(/api/models\?[^>]+)>; rel="next"', answer.headers.get("Link", ""))
        address, pages = following[1] if following else "", pages + 1
    assert ([one["id"] for one in found], pages) == (["Other/C", "local/b", "local/a"], 3)
    assert [one["rfilename"] for one in found[1]["siblings"]] == ["b.gguf", "README.md"]
    assert found[2]["sha"] == commit(served.client)
    assert "siblings" not in served.client.get("/api/models").get_json()[0]


def test_a_list_has_the_models_that_match_its_filters(served: Served, tmp_path: Path) -> None:
    ingest(served, tmp_path, "found")
    found = (
        "search=FOUND",
        "author=LOCAL&search=L/F",
        "filter=gguf&filter=llama",
        "filter=gguf,license:Apache-2.0&gated=false",
        "limit=1&config=true&expand=sha",
    )
    absent = (
        "search=%25",
        "author=nobody",
        "filter=onnx",
        "filter=license:mit",
        "filter=license:mit,license:apache-2.0",
        "pipeline_tag=x",
        "gated=true",
    )
    for asked, expected in (*((one, ["local/found"]) for one in found), *((one, []) for one in absent)):
        listed = served.client.get(f"/api/models?{asked}").get_json()
        assert [one["id"] for one in listed] == expected, asked


@pytest.mark.parametrize("asked", ["cursor=x", "limit=x", "limit=-1", "limit=9999999"])
def test_a_list_refuses_invalid_parameters(asked: str, served: Served) -> None:
    assert served.client.get(f"/api/models?{asked}").status_code == 400


def test_hostile_metadata_is_text_in_a_readme(registry: LocalRegistry, tmp_path: Path) -> None:
    name = f"{HOSTILE}\n---\nlicense: mit\n---\n[x]({HOSTILE_LINK})"
    entries = [
        text("general.architecture", "x\n- y"),
        text("general.name", name),
        text("general.description", f"{FORMULA} https://elsewhere.example www.elsewhere.example | ![x](y)"),
        text("general.license", "mit\nevil: true"),
    ]
    (tmp_path / "a.gguf").write_bytes(file_bytes(entries, block_tensors()))
    ingest_file(registry, tmp_path / "a.gguf")
    with create_app(registry).test_client() as client:
        readme = client.get("/local/a/resolve/main/README.md").text
    front, _, rest = readme.removeprefix("---\n").partition("---\n")
    assert front == "library_name: gguf\n"
    for markup in ("<script", "[x](", "https://", "www.e", "\n---", "\n- y", "evil: true\n"):
        assert markup not in rest, markup
    assert "&lt;script&gt;alert(1)" in rest


def test_a_readme_has_the_known_facts_about_the_model(registry: LocalRegistry, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(small_model())
    ingest_file(registry, tmp_path / "a.gguf")
    with create_app(registry).test_client() as client:
        readme = client.get("/local/a/resolve/main/README.md").text
    assert readme.startswith('---\nlibrary_name: gguf\nlicense: "apache-2.0"\ntags:\n- "llama"\n---\n\n# a\n\nLittle\n')
    assert digest_of(small_model()) in readme
    assert "| registered as | local/a\\@1 |" in readme
