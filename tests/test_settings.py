"""Tests of the folder of a registry, by the environment and by default."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import platformdirs
import pytest

from organs.registry.errors import BadSetting
from organs.registry.local import LocalRegistry
from organs.registry.settings import BLOBS_VARIABLE, DATABASE_VARIABLE, HOME_VARIABLE, SANDBOX_VARIABLE, Settings


def test_the_default_home_is_the_data_folder_of_the_user() -> None:
    settings = Settings.from_environment({})
    assert settings.home == Path(platformdirs.user_data_dir("organ-registry"))
    assert settings == Settings.in_folder(settings.home)


def test_the_data_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Settings.from_environment({}).home == tmp_path / "organ-registry"


@pytest.mark.sqlite
def test_a_home_contains_the_database_and_the_blobs(tmp_path: Path) -> None:
    settings = Settings.from_environment({HOME_VARIABLE: str(tmp_path)})
    assert settings.home == tmp_path
    assert settings.database_url == f"sqlite:///{tmp_path}/registry.sqlite3"
    assert settings.blobs == tmp_path / "blobs"


def test_database_and_blobs_can_be_elsewhere(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {
            HOME_VARIABLE: str(tmp_path),
            DATABASE_VARIABLE: "postgresql+psycopg://db/organs",
            BLOBS_VARIABLE: str(tmp_path / "large disk"),
        }
    )
    assert settings.database_url == "postgresql+psycopg://db/organs"
    assert settings.blobs == tmp_path / "large disk"


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    empty = {HOME_VARIABLE: "", DATABASE_VARIABLE: "", BLOBS_VARIABLE: ""}
    assert Settings.from_environment(empty) == Settings.from_environment({})


@pytest.mark.sqlite
def test_a_relative_home_becomes_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_environment({HOME_VARIABLE: "here", BLOBS_VARIABLE: "there"})
    assert settings.home == tmp_path / "here"
    assert settings.blobs == tmp_path / "there"
    assert settings.database_url == f"sqlite:///{tmp_path}/here/registry.sqlite3"


def test_a_tilde_means_the_home_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings.in_folder(Path("~/organs")).home == tmp_path / "organs"


def test_settings_are_immutable(tmp_path: Path) -> None:
    with pytest.raises(FrozenInstanceError):
        Settings.in_folder(tmp_path).home = tmp_path  # type: ignore[misc]


@pytest.mark.sqlite
@pytest.mark.parametrize("name", ["with space", "ümlaut-日本", "it's", 'a"b', "a#b", "a&b=c", "a+b", "a:b@c"])
def test_a_registry_can_be_in_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    home = tmp_path / name
    LocalRegistry.open(home).close()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert (home / "registry.sqlite3").is_file()


def test_the_sandbox_setting_is_auto_or_require(tmp_path: Path) -> None:
    assert not Settings.from_environment({}).requires_sandbox
    assert not Settings.from_environment({SANDBOX_VARIABLE: "auto"}).requires_sandbox
    assert Settings.from_environment({SANDBOX_VARIABLE: "require"}).requires_sandbox
    with pytest.raises(BadSetting, match="ORGAN_SANDBOX is 'off': it must be auto or require"):
        Settings.from_environment({SANDBOX_VARIABLE: "off"})
