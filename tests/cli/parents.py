"""A base, a fine-tune of it and a stranger, as files and registered: what chimeras of the tests are made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.cli.in_process import OrganCommand
from tests.related_models import model_file, related_tensors

FINE_TUNE_ALIKE = 0.995


@dataclass(frozen=True, slots=True)
class Parents:
    """The files `base.gguf`, `tuned.gguf` and `stranger.gguf` in `folder`."""

    folder: Path

    @property
    def base(self) -> Path:
        return self.folder / "base.gguf"

    @property
    def tuned(self) -> Path:
        return self.folder / "tuned.gguf"

    @property
    def stranger(self) -> Path:
        return self.folder / "stranger.gguf"

    def recipe(self, text: str, name: str = "recipe.yaml") -> Path:
        """A file with `text`."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def graft(self, donor: str = "tuned", more: str = "") -> Path:
        """A recipe that takes the feed-forward organs of block 1 from `donor`."""
        return self.recipe(f"base: base\ngrafts:\n  - {{from: {donor}, type: organ, blocks: 1}}\n{more}")


def write_parents(folder: Path) -> Parents:
    """The three files, in `folder`, which is made."""
    folder.mkdir()
    parents = Parents(folder)
    parents.base.write_bytes(model_file("Base", related_tensors()))
    parents.tuned.write_bytes(model_file("Tuned", related_tensors(correlation=FINE_TUNE_ALIKE)))
    parents.stranger.write_bytes(model_file("Stranger", related_tensors(seed=7)))
    return parents


def ingest_parents(home: Path, folder: Path) -> Parents:
    """The three files, ingested into the registry in `home` as `local/base`, `local/tuned` and `local/stranger`."""
    parents = write_parents(folder)
    OrganCommand(home).done("ingest", parents.folder)
    return parents
