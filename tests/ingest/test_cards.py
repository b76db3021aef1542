"""Cards: the Markdown of a file, and the values of its front matter; hostile files give a sentence or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.ingest.cards import CARD_MAX_BYTES, read_card, with_cards
from organs.ingest.sources import find_sources
from organs.registry.catalog.records import Edits
from organs.registry.entities.published import DESCRIPTION_MAX
from organs.registry.errors import BadSource

FRONT = "---\nlicense: mit\nbase_model: someone/base\ntags:\n- code\n- 7\n---\n# A\n"


@pytest.mark.parametrize(
    ("text", "edits"),
    [
        ("# A\r\n\r\n|a|\r\n|-|", Edits(description="# A\n\n|a|\n|-|")),
        (FRONT, Edits(description="# A", license="mit", base="someone/base", tags=("code", "7"))),
        (FRONT.replace("mit", "no license of mine"), Edits(description="# A", base="someone/base", tags=("code", "7"))),
        ("---\nbase_model: [a/b]\n---\nx", Edits(description="x", base="a/b")),
        ("---\nbase_model: [a/b, c/d]\ntags: x\nlicense: [mit]\n---\nx", Edits(description="x")),
        ("---\n- a\n---\nx", Edits(description="x")),
        ("---\na: &a [*a]\n---\nx", Edits(description="x")),
        ("---\n" + "[" * 5000 + "\n---\nx", Edits(description="x")),
        ("---\nlicense: mit\n" + "x: 1\n" * 20_000 + "---\nx", Edits(description="x")),
        ("a\n---\nlicense: mit\n---\n", Edits(description="a\n---\nlicense: mit\n---")),
        ("---\nnever ends", Edits(description="---\nnever ends")),
    ],
)
def test_a_card_is_read_without_its_front_matter(tmp_path: Path, text: str, edits: Edits) -> None:
    path = tmp_path / "README.md"
    path.write_bytes(text.encode())
    assert read_card(path) == edits


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xfe", "UTF-8"), (b"a\0b", "NUL"), (b"a" * (DESCRIPTION_MAX + 1), "at most 65,536"),
        (b"\n" * (CARD_MAX_BYTES + 1), "at most 65,536"), ("\u202e".encode(), "control characters"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_card_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "card.md").write_bytes(data)
    with pytest.raises(BadSource, match=reason):
        read_card(tmp_path / "card.md")
    with pytest.raises(BadSource, match="not a file"):
        read_card(tmp_path)


def test_only_the_one_readme_beside_the_sizes_of_one_model_is_its_card(tmp_path: Path) -> None:
    folders = {
        "sizes": ("m-F16.gguf", "m-Q8_0.gguf", "README.md"),
        "two models": ("m.gguf", "n.gguf", "README.md"),
        "two cards": ("m.gguf", "README.md", "readme.md"),
        "a form": ("m.gguf", "README.md"),
        "damaged": ("m.gguf", "README.md"),
        "linked": ("m.gguf",),
        "below": ("m.gguf",),
    }
    for folder, names in folders.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("# A card")
    (tmp_path / "a form" / "README.md").write_text("[More Information Needed]\n" * 6)
    (tmp_path / "damaged" / "README.md").write_bytes(b"\xff")
    (tmp_path / "linked" / "README.md").symlink_to(tmp_path / "sizes" / "README.md")
    (tmp_path / "README.md").write_text("# Of the whole folder")
    sources = with_cards(find_sources([str(tmp_path)]), [tmp_path])
    cards = {source.paths[0].relative_to(tmp_path).as_posix() for source in sources if source.card is not None}
    assert cards == {"sizes/m-F16.gguf", "sizes/m-Q8_0.gguf"}
    named = [str(tmp_path / "sizes" / "m-F16.gguf")]
    assert [source.card for source in with_cards(find_sources(named), [])] == [None]
