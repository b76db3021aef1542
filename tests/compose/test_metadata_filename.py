"""Tests of the file name of a chimera, which follows the GGUF convention for any base."""

from __future__ import annotations

import re

import pytest

from organs.registry.compose.metadata import file_stem
from organs.registry.gguf import KeyValue
from organs.registry.names import name_from_text, parse_model_name
from tests.compose.parents import HeaderValue, model_tensors, synthetic_parent
from tests.gguf_files import unsigned

TENSORS = model_tensors(blocks=0)


def stem(own: str | None, said: dict[str, HeaderValue], *sets: KeyValue) -> str:
    keys = {f"general__{key}": value for key, value in said.items()}
    return file_stem(synthetic_parent(tensors=TENSORS, **keys), sets, own)


@pytest.mark.parametrize(
    ("said", "name", "expected"),
    [
        ({"name": "Zoo A", "file_type": 1}, None, "Zoo-A-Chimera-v1.0-F16"),
        ({"basename": "Zoo-A", "name": "x", "size_label": "2M", "file_type": 7}, None, "Zoo-A-2M-Chimera-v1.0-Q8_0"),
        ({"name": "Zoo", "file_type": 15, "version": "v2.3"}, "acme/Coder", "Zoo-Coder-v2.3-Q4_K_M"),
        ({"name": "Zoo", "file_type": 15, "version": " 2 "}, None, "Zoo-Chimera-v2.0-Q4_K_M"),
        ({"name": "Zoo", "file_type": 15, "version": "2.3.4"}, None, "Zoo-Chimera-v2.3-Q4_K_M"),
        ({"name": "Zoo", "file_type": 15, "version": "final"}, None, "Zoo-Chimera-v1.0-Q4_K_M"),
        ({"name": "Zoo 1.5 (new)", "size_label": "1.5B", "file_type": 0}, None, "Zoo-1-5-new-1-5B-Chimera-v1.0-F32"),
        ({"file_type": 1}, None, "Model-Chimera-v1.0-F16"),
        ({"name": "动物", "file_type": 1}, None, "Chimera-v1.0-F16"),
        ({"name": "../../etc/passwd\n", "file_type": 1}, "a/b.c", "etc-passwd-b-c-v1.0-F16"),
        ({"name": "x" * 5000, "file_type": 1}, None, "x" * 40 + "-Chimera-v1.0-F16"),
        ({"name": "x" * 39 + "-y", "file_type": 1}, None, "x" * 39 + "-Chimera-v1.0-F16"),
        ({"name": "Zoo", "file_type": 99}, None, "Zoo-Chimera-v1.0-mixed"),
        ({"name": "Zoo"}, None, "Zoo-Chimera-v1.0-mixed"),
    ],
)
def test_the_stem_consists_of_words_of_the_base(said: dict[str, HeaderValue], name: str | None, expected: str) -> None:
    found = stem(name, said)
    assert found == expected
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", found)
    assert parse_model_name(name_from_text(found)).name == found


def test_the_type_that_the_chimera_sets_is_in_its_file_name() -> None:
    entries: dict[str, HeaderValue] = {"name": "Zoo", "file_type": 1}
    assert stem(None, entries, unsigned("general.file_type", 7)) == "Zoo-Chimera-v1.0-Q8_0"
