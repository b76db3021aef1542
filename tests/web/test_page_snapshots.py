"""What each page says, to each kind of user, is what its snapshot says; `write_snapshots` writes them anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from organs.registry.local import LocalRegistry
from tests.registry_templates import RegistryTemplates
from tests.web.shown_pages import EMPTY_PAGES, PAGES, SNAPSHOTS, Onlookers, fill_shown_catalog


@pytest.fixture(scope="module")
def onlookers(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Onlookers]:
    """Everybody who looks at the full catalog."""
    with templates.open_copy(fill_shown_catalog, tmp_path_factory.mktemp("shown") / "home") as registry:
        yield Onlookers(registry)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_its_snapshot_says(onlookers: Onlookers, name: str) -> None:
    assert onlookers.page(name, *PAGES[name]) == (SNAPSHOTS / f"{name}.txt").read_text(encoding="utf-8")


def test_the_pages_of_an_empty_registry_say_what_their_snapshots_say(registry: LocalRegistry) -> None:
    onlookers = Onlookers(registry)
    for name, (who, path) in EMPTY_PAGES.items():
        assert onlookers.page(name, who, path) == (SNAPSHOTS / f"{name}.txt").read_text(encoding="utf-8"), name


def test_every_snapshot_is_that_of_a_page() -> None:
    assert {file.stem for file in SNAPSHOTS.iterdir()} == {*PAGES, *EMPTY_PAGES}
