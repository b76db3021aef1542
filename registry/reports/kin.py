"""Sections on the relatives of one model: who they are, and where what is declared disagrees with the weights."""

from __future__ import annotations

from sqlalchemy.orm import Session

from organs.registry.catalog.tables import Model
from organs.registry.present.relatives import lineage_values
from organs.registry.reports.document import Column, Kind, Table
from organs.registry.reports.words import ALIKE

RELATIVES_MAX = 50
"""Relatives that are listed; the most alike come first."""


def relatives_tables(session: Session, model: Model) -> tuple[Table, Table]:
    """The relatives of `model`, and the findings on them."""
    values = lineage_values(session, model)
    edges = values["lineage"]
    total = len(edges) + values["lineage_left_out"]
    rows = tuple(
        (
            edge["direction"],
            edge["model"] or edge["text"],
            edge["relation"],
            edge["evidence"],
            edge["score"],
            edge["compared"] or None,
        )
        for edge in edges[:RELATIVES_MAX]
    )
    cut = f" The first {len(rows)} of {total} are listed." if len(rows) < total else ""
    relatives = Table("relatives", "Relatives", _COLUMNS, rows, (_SOURCES + cut,), (ALIKE,), "None are known.")
    findings = tuple((one["severity"], one["code"], one["sentence"]) for one in values["findings"])
    return relatives, Table(
        key="findings",
        title="Findings on its relatives",
        columns=_FINDING_COLUMNS,
        rows=findings,
        before=("Where what its file declares and what the weights show disagree, or cannot be compared.",),
        after=("They are worked out anew for every report, from the models that are registered then.",),
        empty=_OF_ADAPTERS if model.kind == "adapter" else _NO_FINDING,
    )


_SOURCES = (
    "Parents that its file declares, what this registry itself did (recorded), and models with similar weights at the "
    "same places (measured)."
)
_OF_ADAPTERS = "None. The weights of an adapter are not compared with those of the model that it belongs to."
_NO_FINDING = "None: nothing that it declares disagrees with its weights."
_COLUMNS = (
    Column("direction", "kin", Kind.TEXT),
    Column("model", "model", Kind.NAME),
    Column("relation", "relation", Kind.TEXT),
    Column("evidence", "evidence", Kind.TEXT),
    Column("mean_correlation", "alike", Kind.SHARE),
    Column("compared_count", "matrices", Kind.COUNT),
)
_FINDING_COLUMNS = (
    Column("severity", "kind", Kind.TEXT),
    Column("code", "code", Kind.TEXT, data_only=True),
    Column("sentence", "finding", Kind.TEXT),
)
