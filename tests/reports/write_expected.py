"""Write the texts of whole reports: `python -m tests.reports.write_expected`; review what has changed in them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.local import LocalRegistry
from organs.registry.reports.dissection import model_report
from organs.registry.reports.formats import markdown
from organs.registry.reports.overview import registry_report
from tests.registry_templates import FillRegistry
from tests.reports.conftest import add_models, add_odd_models

FOLDER = Path(__file__).parent / "expected"
REGISTRIES: list[tuple[FillRegistry, tuple[str, ...], int]] = [
    (add_models, ("little", "tall", "tuned", "adapter", "words", "part"), 50),
    (add_odd_models, ("mixture", "broken", "opaque", "large", "pure"), 2),
]
"""What fills each registry, its models, and the number of rows of a list in the report on the registry."""

STORED_SIZE = re.compile(r"^([|] stored size +[|] )[^|]+[^| ]", re.MULTILINE)
"""The cell that another version of Zstandard may change."""


def texts_of_reports(registry: LocalRegistry, models: tuple[str, ...], limit: int) -> Iterator[tuple[Path, str]]:
    """Yield the file and the text of the report on a registry, and of the report on each of its models."""
    with registry.catalog.reading() as session:
        whole = registry_report(session, limit)
        lasting = {name: section for name, section in whole.sections.items() if name != "ingests"}  # it has times
        yield FOLDER / f"registry with {models[0]}.md", markdown(replace(whole, sections=lasting))
        for name in models:
            report = model_report(session, model_by_text(session, name), 4, complete=True)
            yield FOLDER / f"{name}.md", STORED_SIZE.sub(r"\1…", markdown(report))


if __name__ == "__main__":
    for furnish, models, limit in REGISTRIES:
        with tempfile.TemporaryDirectory() as folder, LocalRegistry.open(Path(folder) / "home") as registry:
            furnish(registry, Path(folder))
            for path, text in texts_of_reports(registry, models, limit):
                path.write_text(text, encoding="utf-8")
