"""Tests of whole reports: every table, figure and sentence is that of the file in the folder `expected`."""

from __future__ import annotations

import pytest

from organs.registry.local import LocalRegistry
from tests.registry_templates import FillRegistry, RegistryTemplates
from tests.reports.write_expected import REGISTRIES, texts_of_reports


@pytest.mark.parametrize(("furnish", "models", "limit"), REGISTRIES, ids=["common models", "odd models"])
def test_every_report_is_the_expected_one(
    furnish: FillRegistry,
    models: tuple[str, ...],
    limit: int,
    registry: LocalRegistry,
    templates: RegistryTemplates,
) -> None:
    templates.fill(registry, furnish)
    for path, text in texts_of_reports(registry, models, limit):
        assert text == path.read_text(encoding="utf-8"), path.name
