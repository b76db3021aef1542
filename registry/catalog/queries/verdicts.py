"""What runtimes said: scores of files, and verdicts on chimeras."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.tables import Score, Verdict

VERDICTS_SHOWN = 20


def kept_score(session: Session, file_digest: str, text_digest: str, tokens: int, runtime: str) -> str | None:
    """The reading that is kept under these, as JSON."""
    statement = select(Score.reading).where(
        Score.file_digest == file_digest,
        Score.text_digest == text_digest,
        Score.tokens == tokens,
        Score.runtime == runtime,
    )
    return session.scalar(statement)


def verdicts_of(session: Session, model_id: int, limit: int = VERDICTS_SHOWN) -> Sequence[Verdict]:
    """The verdicts on a model, newest first."""
    statement = select(Verdict).where(Verdict.model_id == model_id).order_by(Verdict.id.desc())
    return session.scalars(statement.limit(limit)).all()


def newest_verdicts(session: Session, model_ids: Collection[int]) -> dict[int, Verdict]:
    """The newest verdict on each of `model_ids` that has any."""
    newest = select(func.max(Verdict.id)).where(Verdict.model_id.in_(model_ids)).group_by(Verdict.model_id)
    found = session.scalars(select(Verdict).where(Verdict.id.in_(newest)))
    return {verdict.model_id: verdict for verdict in found}
