"""Who may do what: tokens for programs, sessions for browsers, and the short-lived tokens of single pages."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from organs.registry.catalog.tables.base import Base, Big, Timestamp, at_most, text


class Token(Base):
    """A contributor's token. Its secret is nowhere here: only what it hashes to."""

    __tablename__ = "tokens"
    __table_args__ = (
        CheckConstraint("length(public_id) = 9", name="public_id_length"),
        CheckConstraint("length(secret_sha256) = 64", name="secret_sha256_length"),
        at_most("scopes", 64),
        at_most("label", 96),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"), index=True)
    public_id: Mapped[str] = mapped_column(text(9), unique=True)
    """The part of the token by which it is called: no secret."""
    secret_sha256: Mapped[str] = mapped_column(text(64))
    """Of the whole token. It has 256 random bits, so that no slow hash is needed."""
    scopes: Mapped[str] = mapped_column(text(64))
    """In the order of the vocabulary, a blank between."""
    label: Mapped[str] = mapped_column(text(96))
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    expires_at: Mapped[datetime | None] = mapped_column(Timestamp)
    revoked_at: Mapped[datetime | None] = mapped_column(Timestamp)
    last_used_at: Mapped[datetime | None] = mapped_column(Timestamp)
    """To some minutes: it is no write a request."""
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("tokens.id"), index=True)
    """The token that created this one; NULL if an administrator created it in the registry's folder."""


class WebSession(Base):
    """A browser that is logged in by a token, for as long as that token is good."""

    __tablename__ = "web_sessions"
    __table_args__ = (CheckConstraint("length(secret_sha256) = 64", name="secret_sha256_length"),)

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    secret_sha256: Mapped[str] = mapped_column(text(64), unique=True)
    """Of what the cookie has."""
    token_id: Mapped[int] = mapped_column(ForeignKey("tokens.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    expires_at: Mapped[datetime] = mapped_column(Timestamp, index=True)


class PageToken(Base):
    """A token that a page holds in memory to call the API: narrow, short, and gone with its session."""

    __tablename__ = "page_tokens"
    __table_args__ = (
        CheckConstraint("length(secret_sha256) = 64", name="secret_sha256_length"),
        at_most("scopes", 64),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    secret_sha256: Mapped[str] = mapped_column(text(64), unique=True)
    session_id: Mapped[int] = mapped_column(ForeignKey("web_sessions.id", ondelete="CASCADE"), index=True)
    scopes: Mapped[str] = mapped_column(text(64))
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    expires_at: Mapped[datetime] = mapped_column(Timestamp)
