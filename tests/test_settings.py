"""Tests of the folder of a registry, by the environment and by default."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from organs.registry.errors import BadSetting
from organs.registry.local import LocalRegistry
from organs.registry.settings import (
    ALLOW_HTTP_VARIABLE,
    BLOB_CACHE_BYTES,
    BLOBS_VARIABLE,
    CACHE_VARIABLE,
    DATABASE_VARIABLE,
    HOME_VARIABLE,
    LOG_VARIABLE,
    SANDBOX_VARIABLE,
    Settings,
    moved,
)


def test_the_default_home_is_the_data_folder_of_the_user() -> None:
    settings = Settings.from_environment({})
    assert settings.home == Path(platformdirs.user_data_dir("organ-registry"))
    assert settings == Settings.in_folder(settings.home)
    empty = {HOME_VARIABLE: "", DATABASE_VARIABLE: "", BLOBS_VARIABLE: ""}
    assert Settings.from_environment(empty) == settings


@pytest.mark.sqlite
def test_a_home_contains_the_database_and_the_blobs_which_can_be_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings.in_folder(Path("~/organs")).home == tmp_path / "organs"
    settings = Settings.from_environment({HOME_VARIABLE: "here"})
    assert (settings.home, settings.blobs) == (tmp_path / "here", tmp_path / "here" / "blobs")
    assert settings.database_url == f"sqlite:///{tmp_path}/here/registry.sqlite3"
    for blobs in ("large disk", f"file://{tmp_path}/large disk"):
        settings = Settings.from_environment({DATABASE_VARIABLE: "sqlite:///elsewhere", BLOBS_VARIABLE: blobs})
        assert (settings.database_url, settings.bucket) == ("sqlite:///elsewhere", None)
        assert settings.blobs == tmp_path / "large disk"


@pytest.mark.parametrize(
    ("variable", "default", "other"), [(SANDBOX_VARIABLE, "auto", "require"), (LOG_VARIABLE, "text", "json")]
)
def test_a_setting_is_one_of_two_words(variable: str, default: str, other: str) -> None:
    plain = Settings.from_environment({})
    assert Settings.from_environment({variable: default}) == Settings.from_environment({variable: ""}) == plain
    assert Settings.from_environment({variable: other}) != plain
    with pytest.raises(BadSetting, match=f"{variable} is 'off': it must be {default} or {other}"):
        Settings.from_environment({variable: "off"})


@pytest.mark.sqlite
@pytest.mark.parametrize("name", ["with space", "ümlaut-日本", "it's", 'a"b', "a#b", "a&b=c", "a+b", "a:b@c"])
def test_a_registry_can_be_in_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    home = tmp_path / name
    LocalRegistry.open(home).close()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert (home / "registry.sqlite3").is_file()


@pytest.mark.parametrize(
    ("text", "bucket"),
    [
        ("s3://organs", "s3://organs"),
        ("s3://organs/", "s3://organs"),
        ("s3://organs//", "s3://organs"),
        ("s3://my.organs-1/team/a_b.c/", "s3://my.organs-1/team/a_b.c"),
        ("gs://organs/blobs", "gs://organs/blobs"),
        ("az://container/blobs", "az://container/blobs"),
    ],
)
def test_blobs_can_be_in_a_bucket(text: str, bucket: str, tmp_path: Path) -> None:
    settings = Settings.from_environment({HOME_VARIABLE: str(tmp_path), BLOBS_VARIABLE: text})
    assert settings.bucket == settings.blobs_location == bucket
    assert settings.blobs == tmp_path / "blobs"
    assert settings.blob_cache == tmp_path / "cache"


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize(
    "rest",
    [
        *("", "/", "/folder", "b", "Capital", "-begins-with-a-sign", "organs?region=x", "organs#x", "organs/a b"),
        *("organs/ü", "organs/%2e", "key:word@organs", "organs\n", "o" * 300, "organs/" + "f" * 600),
    ],
)
def test_a_bad_address_of_a_bucket_is_refused_with_its_form(scheme: str, rest: str) -> None:
    with pytest.raises(BadSetting) as raised:
        Settings.from_environment({BLOBS_VARIABLE: f"{scheme}://{rest}"})
    message = str(raised.value)
    form = f"{scheme}://BUCKET or {scheme}://BUCKET/FOLDER"
    assert message == f"ORGAN_BLOBS_URL: write the address of a bucket as {form}", "without the credentials in it"


@pytest.mark.parametrize("text", ["https://s3.example/organs", "S3://organs", "ftp://host/blobs", "://x"])
def test_an_address_of_another_service_is_refused_with_the_ones_that_work(text: str) -> None:
    with pytest.raises(BadSetting) as raised:
        Settings.from_environment({BLOBS_VARIABLE: text})
    assert str(raised.value) == "ORGAN_BLOBS_URL: set it to the path of a folder, or to a bucket (s3://, gs://, az://)"


def test_the_cache_of_a_bucket_has_a_size_or_is_off() -> None:
    assert Settings.from_environment({}).blob_cache_bytes == BLOB_CACHE_BYTES
    assert Settings.from_environment({CACHE_VARIABLE: ""}).blob_cache_bytes == BLOB_CACHE_BYTES
    assert Settings.from_environment({CACHE_VARIABLE: "0"}).blob_cache_bytes == 0
    assert Settings.from_environment({CACHE_VARIABLE: "2G"}).blob_cache_bytes == 2 * 10**9
    assert Settings.from_environment({CACHE_VARIABLE: "2.1 GB"}).blob_cache_bytes == 2_100_000_000
    for text in ("-1", "much", "0G", "0.0", "1.5.0G", "off"):
        with pytest.raises(
            BadSetting, match=f"^ORGAN_BLOB_CACHE: '{text}' is not a size: write for example 2G or 500M$"
        ):
            Settings.from_environment({CACHE_VARIABLE: text})


@pytest.mark.folder
@pytest.mark.parametrize(
    ("text", "allows"), [("true", True), ("TRUE", True), ("1", True), ("", False), ("false", False), ("0", False)]
)
def test_unencrypted_requests_are_allowed_only_on_request(text: str, allows: bool) -> None:
    assert not Settings.from_environment({}).bucket_allows_http
    assert Settings.from_environment({ALLOW_HTTP_VARIABLE: text}).bucket_allows_http is allows


@pytest.mark.folder
def test_a_registry_in_a_folder_has_no_bucket_and_no_cache(tmp_path: Path) -> None:
    with LocalRegistry.open(tmp_path) as registry:
        registry.blobs.put(bytes(100_000))
    assert registry.settings.bucket is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.folder
def test_settings_of_a_moved_registry_keep_what_is_not_moved(tmp_path: Path) -> None:
    before = Settings.from_environment({HOME_VARIABLE: str(tmp_path), CACHE_VARIABLE: "2G"})
    assert moved(before, None, None) == moved(before, "", "") == before
    in_bucket = moved(before, "postgresql+psycopg://db/organs", "s3://organs")
    assert (in_bucket.database_url, in_bucket.blobs_location) == ("postgresql+psycopg://db/organs", "s3://organs")
    assert (in_bucket.home, in_bucket.blob_cache_bytes) == (tmp_path, 2 * 10**9)
    back = moved(in_bucket, None, str(tmp_path / "blobs"))
    assert (back.database_url, back.blobs_location) == (in_bucket.database_url, before.blobs_location)
