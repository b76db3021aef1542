"""`organ storage`, and what `organ show` says of stored bytes."""

from __future__ import annotations

import re

from organs.registry.amounts import size_text
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand


def test_sizes_are_explained_and_families_models_and_encodings_listed(composer: OrganCommand) -> None:
    ended = composer.done("storage")
    assert ended.lines[0].startswith("287.2 kB of files (3 models) take ")
    first = [line.split("  ")[0] for line in ended.lines if line]
    assert first[1:4] == ["equal parts stored once", "compression", "differences to other parts"]
    assert first.index("family") < first.index("model") < first.index("stored")
    assert {"local/base@1", "local/tuned@1", "local/stranger@1"} <= set(first)
    for model in composer.done("storage", "--json").values["models"]:
        (line,) = [line for line in ended.lines if line.startswith(model["name"])]
        sizes = [size_text(model[f"{name}_bytes"]) for name in ("files", "stored", "own")]
        assert re.split(" {2,}", line)[:4] == [model["name"], *sizes]
    assert "headers, vocabularies" in ended.out
    assert "own: bytes on the disk that only this model needs" in ended.err
    assert "2 smaller models left out; see --limit" in composer.done("storage", "--limit", "1").err


def test_show_says_how_a_model_and_an_organ_are_stored_and_of_what(composer: OrganCommand, kept: LocalRegistry) -> None:
    tuned = composer.done("show", "tuned").lines
    stored = next(number for number, line in enumerate(tuned) if line.startswith("stored "))
    assert "parts by their difference to others" in tuned[stored]
    assert tuned[stored + 1].split(maxsplit=1)[1] == "parents in local/base@1"
    tensor = "blk.0.ffn_up.weight"
    child, parent = (
        next(organ.digest for organ in kept.organs_of(name) if organ.name == tensor) for name in ("tuned", "base")
    )
    assert f"by its difference to {parent[:12]} ({tensor} of local/base@1)" in composer.done("show", child).out
    assert "alone; the parent of 1 other tensor" in composer.done("show", parent).out
