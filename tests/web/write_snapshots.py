"""Write the snapshots of the pages, to be read before they are committed: `python -m tests.web.write_snapshots`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from organs.registry.local import LocalRegistry
from tests.web.shown_pages import EMPTY_PAGES, PAGES, SNAPSHOTS, Onlookers, fill_shown_catalog


def main() -> None:
    """Replace the files of the folder."""
    for old in SNAPSHOTS.glob("*.txt"):
        old.unlink()
    for pages in (PAGES, EMPTY_PAGES):
        with TemporaryDirectory() as folder, LocalRegistry.open(Path(folder) / "home") as registry:
            if pages is PAGES:
                fill_shown_catalog(registry, Path(folder))
            onlookers = Onlookers(registry)
            for name, (who, path) in pages.items():
                (SNAPSHOTS / f"{name}.txt").write_text(onlookers.page(name, who, path), encoding="utf-8")


if __name__ == "__main__":
    main()
