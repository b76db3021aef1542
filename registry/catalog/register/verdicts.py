"""What runtimes said, written down."""

from __future__ import annotations

from sqlalchemy.orm import Session

from organs.registry.catalog.clock import now
from organs.registry.catalog.tables import Score, Verdict
from organs.registry.catalog.upsert import insert_missing
from organs.registry.catalog.vocabulary import shown_text


def keep_score(
    session: Session,
    file_digest: str,
    text_digest: str,
    tokens: int,
    runtime: str,
    reading: str,
    perplexity: float | None,
) -> None:
    """Keep the reading (JSON) of a file on a text; what is kept already stays."""
    row = {
        "file_digest": file_digest,
        "text_digest": text_digest,
        "tokens": tokens,
        "runtime": runtime,
        "reading": reading,
        "perplexity": perplexity,
        "created_at": now(),
    }
    insert_missing(session, Score, [row])


def add_verdict(session: Session, model_id: int, runtime: str, verdict: str, reason: str, report: str) -> int:
    """Write down a verdict on a model; `report` is JSON. Its id."""
    row = Verdict(
        model_id=model_id,
        runtime=shown_text(runtime, 256),
        verdict=verdict,
        reason=shown_text(reason),
        report=report,
        created_at=now(),
    )
    session.add(row)
    session.flush()
    return row.id
