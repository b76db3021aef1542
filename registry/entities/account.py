"""Contributors: their accounts, tokens and quotas, and what everybody may see of them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from organs.registry.entities.base import (
    ITEMS_MAX,
    WHOLE_MAX,
    Bytes,
    Count,
    Digest,
    Entity,
    ModelText,
    Page,
    Request,
    Text,
    Time,
    Word,
)

TOKEN_DAYS_DEFAULT, TOKEN_DAYS_MAX = 365, 3650
LABEL_MAX = 96

Scopes = Annotated[tuple[Word, ...], Meta(max_length=16, description="`read`, `upload`, `admin`, `tokens`.")]
TokenId = Annotated[Word, Meta(min_length=1, description="The nine characters after `orgp_`. They are no secret.")]
Expiry = Annotated[Time, Meta(description="When it expires, in UTC.")] | None
"""None for a token that never expires."""
QuotaBytes = Annotated[Count, Meta(description="What may be kept for the contributor, in bytes.")]
State = Annotated[Word, Meta(description="`active` or `suspended`.")]


class Quota(Entity, frozen=True, kw_only=True):
    """How much may be kept for a contributor, and how much is."""

    limit_bytes: Bytes
    used_bytes: Annotated[Bytes, Meta(description="The sizes of models' files and of uploads.")]
    uploads_bytes: Annotated[Bytes, Meta(description="The part of used_bytes that uploads take.")] = 0
    """It is freed when models are made of the uploads."""
    submitted_bytes: Annotated[
        Bytes, Meta(description="In addition to used_bytes: models that are submitted and not made yet.")
    ] = 0

    @property
    def left_bytes(self) -> int:
        """What is left. 0 also where more is kept than allowed, because the quota was lowered."""
        return max(0, self.limit_bytes - self.used_bytes)

    def more_bytes(self, size_bytes: int, sent_bytes: int = 0) -> int:
        """Return by how much one more model of `size_bytes` would exceed the quota; 0 or less where it fits.

        `sent_bytes` of the model already lie in uploads.
        """
        models_bytes = self.used_bytes - self.uploads_bytes
        kept_bytes = max(self.used_bytes - sent_bytes, models_bytes + self.submitted_bytes)
        return kept_bytes + size_bytes - self.limit_bytes


class OwnQuota(Quota, frozen=True, kw_only=True):
    """The quota of an account, with the limit for a single model."""

    upload_max_bytes: Annotated[Bytes, Meta(description="The largest model that may be uploaded.")]


class OwnToken(Entity, frozen=True, kw_only=True):
    """The token that was sent, without its secret."""

    id: TokenId
    label: Text
    expires_at: Expiry


class AccountToken(Entity, frozen=True, kw_only=True):
    """A token of an account, without its secret."""

    id: TokenId
    label: Annotated[Text, Meta(description="What its owner calls it.")]
    scopes: Scopes
    state: Annotated[Word, Meta(description="`good`, `expired` or `revoked`.")]
    created_by: TokenId | None
    """The token that created it; None if an administrator did."""
    created_at: Time
    expires_at: Expiry
    revoked_at: Time | None
    last_used_at: Annotated[Time, Meta(description="To about ten minutes.")] | None


class AccountTokenPage(Page[AccountToken], frozen=True, kw_only=True):
    """All tokens of an account, newest first."""


class CreatedToken(AccountToken, frozen=True, kw_only=True):
    """A token that was just created, with its text."""

    token: Annotated[Text, Meta(description="The token itself. It is in this answer only: keep it.")]


class ListedToken(AccountToken, frozen=True, kw_only=True):
    """A token in the list of all contributors' tokens."""

    contributor: Word


class ListedTokenPage(Page[ListedToken], frozen=True, kw_only=True):
    """The tokens of all contributors, or of one."""


class TokenRequest(Request, frozen=True, kw_only=True):
    """The token to create."""

    scopes: Annotated[
        tuple[Word, ...], Meta(min_length=1, max_length=16, description="Some of the scopes of the token that is sent.")
    ]
    label: Annotated[str, Meta(max_length=LABEL_MAX, description="A name for its owner.")] = ""
    days: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=TOKEN_DAYS_MAX,
                description="Days until it expires, by default a year; null for as long as the token that is sent. It "
                "expires with that token at the latest.",
            ),
        ]
        | None
    ) = TOKEN_DAYS_DEFAULT


class Account(Entity, frozen=True, kw_only=True):
    """The account of a token."""

    contributor: Word
    namespace: Annotated[Word, Meta(min_length=1, description="The namespace of the contributor's models.")]
    scopes: Annotated[Scopes, Meta(description="What the token allows.")]
    token: OwnToken | None
    """None on a server of one's own that was asked without a token."""
    quota: OwnQuota


class OwnModel(Entity, frozen=True, kw_only=True):
    """A model of an account, in any state."""

    name: ModelText
    title: Text | None
    digest: Digest
    size_bytes: Bytes
    state: Annotated[Word, Meta(description="`visible`, `quarantined`, `yanked` or `removed`.")]
    state_reason: Text | None
    downloads: Count
    grafts: Annotated[Count, Meta(description="Visible chimeras that have organs of it.")]
    created_at: Time


class UploadTotals(Entity, frozen=True, kw_only=True):
    """The uploads of one kind and state, together."""

    kind: Word
    state: Word
    count: Count
    received_bytes: Bytes
    size_bytes: Bytes


class OwnSubmission(Entity, frozen=True, kw_only=True):
    """A submission as a line of the account's page."""

    id: Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
    name: Annotated[Word, Meta(description="`namespace/name`.")]
    state: Word
    model: ModelText | None
    model_state: Word | None
    reason: Text | None
    size_bytes: Bytes
    created_at: Time
    changed_at: Time


class AccountOverview(Account, frozen=True, kw_only=True):
    """An account with its newest models, uploads and submissions, and with its tokens."""

    models: Annotated[tuple[OwnModel, ...], Meta(max_length=ITEMS_MAX)]
    uploads: Annotated[tuple[UploadTotals, ...], Meta(max_length=ITEMS_MAX)]
    submissions: Annotated[tuple[OwnSubmission, ...], Meta(max_length=ITEMS_MAX)]
    tokens: Annotated[tuple[AccountToken, ...], Meta(max_length=ITEMS_MAX)]
    """Only the token that was sent, if it does not have the scope `tokens`."""


class Contributor(Entity, frozen=True, kw_only=True):
    """A contributor, as everybody may see them."""

    name: Annotated[Word, Meta(description="Also the name of the namespace.")]
    since: Annotated[Time, Meta(description="When the contributor was added, in UTC.")]
    models: Annotated[Count, Meta(description="Visible models, chimeras included. Each version counts.")]
    chimeras: Annotated[Count, Meta(description="Models that were composed here.")]
    downloads: Count
    grafts: Annotated[Count, Meta(description="Visible chimeras that have organs of a model, summed over the models.")]


class ContributorPage(Page[Contributor], frozen=True, kw_only=True):
    """A page of contributors, newest first."""


class ContributorAccount(Entity, frozen=True, kw_only=True):
    """A contributor, as administrators see them."""

    name: Word
    state: State
    since: Annotated[Time, Meta(description="When the contributor was added, in UTC.")]
    quota: Quota
    has_own_quota: Annotated[bool, Meta(description="Whether the quota differs from that of everybody.")]


class ContributorAccountPage(Page[ContributorAccount], frozen=True, kw_only=True):
    """A page of contributors, newest first."""


class NewContributorRequest(Request, frozen=True, kw_only=True):
    """The contributor to add."""

    name: Annotated[str, Meta(max_length=96, pattern=r"\S", description="Also the name of the namespace.")]
    quota: QuotaBytes | None = None
    """None for the quota of everybody."""


class ContributorChangeRequest(Request, frozen=True, kw_only=True):
    """What to change: the state, the quota, or both."""

    state: State | msgspec.UnsetType = msgspec.UNSET
    quota: QuotaBytes | msgspec.UnsetType | None = msgspec.UNSET
    """None for the quota of everybody."""
