"""The clock of the database, which all machines share."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select, type_coerce
from sqlalchemy.orm import Session

from organs.registry.catalog.tables import Timestamp


def database_now(session: Session) -> datetime:
    """Return the time by the database's clock: all leases and expiries use it, so that machines' clocks may differ."""
    is_server = session.get_bind().dialect.name == "postgresql"
    clock = func.clock_timestamp() if is_server else func.strftime("%Y-%m-%d %H:%M:%f", "now")
    moment: datetime = session.execute(select(type_coerce(clock, Timestamp))).scalar_one()
    return moment
