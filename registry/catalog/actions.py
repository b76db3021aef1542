"""What the event log calls the things that are done: a verb, with what it is done to where that is no model."""

from __future__ import annotations

from enum import StrEnum


class Action(StrEnum):
    """Something that is done; at most 32 characters."""

    INGEST = "ingest"
    COMPOSE = "compose"
    SUBMIT = "submit"
    """Bytes to be looked at, and then a model that is registered in quarantine."""
    FAIL_CHECKS = "fail checks"
    """What was submitted is not taken; nobody was asked."""
    WITHDRAW = "withdraw"
    APPROVE = "approve"
    REFUSE = "refuse"
    PUBLISH = "publish"
    EDIT = "edit"
    QUARANTINE = "quarantine"
    YANK = "yank"
    RESTORE = "restore"
    REMOVE = "remove"
    REMOVE_WITHDRAWN = "remove withdrawn"
    """A model that nobody had seen, because its contributor no longer wanted it."""
    SET_ASIDE = "set aside blob"
    """Stored bytes were found wrong or missing."""
    TAKE_BACK = "take back blob"
    """Stored bytes that were set aside are right again."""
    ADD_CONTRIBUTOR = "add contributor"
    SUSPEND_CONTRIBUTOR = "suspend contributor"
    RESUME_CONTRIBUTOR = "resume contributor"
    SET_QUOTA = "set quota"
    CREATE_TOKEN = "create token"  # noqa: S105  # what is done, no token
    REVOKE_TOKEN = "revoke token"  # noqa: S105
    LOG_IN = "log in"
