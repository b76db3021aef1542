"""Two models side by side: how much of long lists the page has; `test_page_snapshots` has what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.pages import compare
from tests.related_models import ingest_all, related_tensors
from tests.small_models import weight_tensor
from tests.web.page_parser import page_at


def test_long_lists_are_truncated_and_counted(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "NAMES_SHOWN", 2)
    more = [weight_tensor(f"blk.{block}.attn_k.weight", (16, 16)) for block in range(7)]
    ingest_all(registry, tmp_path, plain=related_tensors(), more=[*related_tensors(correlation=0.9), *more])
    page = page_at(create_app(registry).test_client(), "/compare?first=local/plain&second=local/more").text
    assert "Only in the second model: 7" in page
    assert page.count(".attn_k.weight") - page.count("attn_k.weight: change") == 2
    assert "5 more are in the JSON" in page
