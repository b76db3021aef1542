"""The page of two models side by side, its form, and what it says when it cannot compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from organs.registry.entities.base import decode
from organs.registry.entities.comparison import Comparison
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.pages import compare
from tests.gguf_files import file_bytes
from tests.related_models import related_tensors
from tests.small_models import block_metadata, ingest_file, weight_tensor
from tests.web.page_parser import page_at


def comparison_of(client: FlaskClient, address: str) -> Comparison:
    """The comparison of the API that the JSON address of the page leads to."""
    return decode(client.get(address.replace("?", ".json?"), follow_redirects=True).data, Comparison)


@pytest.fixture
def many(registry: LocalRegistry, tmp_path: Path) -> Iterator[FlaskClient]:
    """A client of a catalog with a model, one of more organs, and one that shares no shape with either."""
    more = [weight_tensor(f"blk.{block}.attn_k.weight", (16, 16)) for block in range(compare.NAMES_SHOWN + 5)]
    wide = [weight_tensor("blk.0.attn_q.weight", (32, 64)), weight_tensor("blk.0.ffn_up.weight", (64, 32))]
    for name, tensors in (
        ("plain", related_tensors()),
        ("more", [*related_tensors(correlation=0.9), *more]),
        ("wide", wide),
    ):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(file_bytes(block_metadata(name.capitalize()), tensors))
        ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        yield client


def test_a_comparison_that_is_impossible_gets_a_sentence_and_no_grid(many: FlaskClient) -> None:
    page = page_at(many, "/compare?first=local/plain&second=local/wide")
    assert "cannot be compared" in page.text
    assert not [one for one in page.named("a") if "data-reading" in one.attributes]
    assert "Different shapes at the same place: 2" in page.text
    assert "64×64 and 32×64" in page.text


def test_long_lists_are_truncated_and_counted(many: FlaskClient) -> None:
    address = "/compare?first=local/plain&second=local/more"
    result = comparison_of(many, address)
    assert len(result.only_second) == compare.NAMES_SHOWN + 5
    text = page_at(many, address).text
    assert f"Only in the second model: {compare.NAMES_SHOWN + 5}" in text
    assert text.count(".attn_k.weight") - text.count("attn_k.weight: change") >= compare.NAMES_SHOWN
    assert "5 more are in the JSON" in text
