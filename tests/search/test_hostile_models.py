"""Tests of searches with hostile models: very many slots, and words that are not words."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select

from organs.registry.catalog.register.counts import FACETS_A_MODEL_MAX
from organs.registry.catalog.tables import Facet
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes, tensor, text
from tests.related_models import ingest_bytes
from tests.small_models import small_model


@pytest.mark.slow
def test_a_slot_is_found_after_thousands_of_other_slots(tmp_path: Path) -> None:
    odd = [tensor(f"odd{number:05d}", (1,)) for number in range(5500)]
    metadata = [text("general.architecture", "llama")]
    with LocalRegistry.open(tmp_path / "home") as registry:
        for name, tensors in (("odd", odd[:2750]), ("odder", odd[2750:])):
            ingest_bytes(registry, tmp_path, name, file_bytes(metadata, tensors))
        ingest_bytes(registry, tmp_path, "little", small_model())
        for query in ("slot:ffn_up", "slot:FFN_UP", "slot:ffn_up*"):
            assert {organ.slot for organ in registry.search(query)} == {"ffn_up"}


@pytest.mark.long
def test_a_model_of_very_many_slots_gets_a_thousand_facets_and_stays_searchable(tmp_path: Path) -> None:
    odd = [tensor(f"odd{number:05d}", (1,)) for number in range(FACETS_A_MODEL_MAX + 50)]
    with LocalRegistry.open(tmp_path / "home") as registry:
        ingest_bytes(registry, tmp_path, "odd", file_bytes([text("general.architecture", "llama")], odd))
        with registry.catalog.reading() as session:
            assert session.scalar(select(func.count()).select_from(Facet)) == FACETS_A_MODEL_MAX + 1
        assert registry.count("type:other arch:llama").total == len(odd)
        assert len(registry.search("type:other arch:llama", limit=1000)) == 1000
        assert [organ.name for organ in registry.search(f"slot:odd{FACETS_A_MODEL_MAX - 1:05d}")] == ["odd00999"]


def test_words_that_form_a_slot_name_get_a_suggestion(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "little", small_model())
    assert registry.search("blk.0.ffn_up.weight").notes == (
        "no model has the words blk 0 ffn up weight; to search for tensors in this slot, write slot:ffn_up",
    )
    assert registry.search("little").notes == ()
    assert registry.search("nonsense").notes == ("no model has the word nonsense",)
