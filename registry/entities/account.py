"""Contributors: accounts, tokens, quotas, and the public data of a contributor."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from organs.registry.columns import CellKind, Column
from organs.registry.entities.base import (
    WHOLE_MAX,
    Bytes,
    Count,
    Digest,
    Entity,
    Items,
    ModelText,
    Page,
    RequestBody,
    Text,
    Time,
    Word,
)
from organs.registry.names import LOCAL

TOKEN_DAYS_DEFAULT, TOKEN_DAYS_MAX = 365, 3650
LABEL_MAX = 96

Scopes = Annotated[tuple[Word, ...], Meta(max_length=16, description="`read`, `upload`, `admin`, `tokens`.")]
TokenId = Annotated[Word, Meta(min_length=1, description="The nine characters after `orgp_`. They are not secret.")]
Expiry = Annotated[Time, Meta(description="When it expires, in UTC.")] | None
"""None for a token that never expires."""
QuotaBytes = Annotated[Count, Meta(description="The most bytes that may be stored for the contributor.")]
State = Annotated[Word, Meta(description="`active` or `suspended`.")]


class Quota(Entity):
    """The bytes that may be stored for a contributor, and the bytes that are stored."""

    limit_bytes: Bytes
    used_bytes: Annotated[Bytes, Meta(description="The sizes of models' files and of uploads.")]
    uploads_bytes: Annotated[Bytes, Meta(description="The part of used_bytes that uploads take.")] = 0
    """They are freed when the uploads are published as models."""
    submitted_bytes: Annotated[
        Bytes, Meta(description="In addition to used_bytes: models that are submitted and not registered yet.")
    ] = 0

    @property
    def left_bytes(self) -> int:
        """The bytes that are left; 0 if more is stored than allowed, which happens if the quota was lowered."""
        return max(0, self.limit_bytes - self.used_bytes)

    def more_bytes(self, size_bytes: int, sent_bytes: int = 0) -> int:
        """Return the bytes by which one more model of `size_bytes` would exceed the quota; 0 or less if it fits.

        `sent_bytes` of the model are already in uploads.
        """
        models_bytes = self.used_bytes - self.uploads_bytes
        stored_bytes = max(self.used_bytes - sent_bytes, models_bytes + self.submitted_bytes)
        return stored_bytes + size_bytes - self.limit_bytes


class OwnQuota(Quota):
    """The quota of an account, with the limit for a single model."""

    upload_max_bytes: Annotated[Bytes, Meta(description="The largest model that may be uploaded.")]


class AccountToken(Entity):
    """A token of an account, without its secret."""

    id: TokenId
    label: Annotated[Text, Meta(description="The name that its owner gave it.")]
    scopes: Scopes
    state: Annotated[Word, Meta(description="`good`, `expired` or `revoked`.")]
    created_by: TokenId | None
    """The token that created it; None if an administrator created it."""
    created_at: Time
    expires_at: Expiry
    revoked_at: Time | None
    last_used_at: Annotated[Time, Meta(description="Exact to about ten minutes.")] | None


class AccountTokenPage(Page[AccountToken]):
    """All tokens of an account, newest first."""


class CreatedToken(AccountToken):
    """A token that was just created, with its text."""

    token: Annotated[Text, Meta(description="The complete token. It is in this answer only: store it now.")]


class ListedToken(AccountToken):
    """A token in the list of all contributors' tokens."""

    contributor: Word


class ListedTokenPage(Page[ListedToken]):
    """The tokens of all contributors, or of one."""


class TokenRequest(RequestBody):
    """The token to create."""

    scopes: Annotated[
        tuple[Word, ...],
        Meta(min_length=1, max_length=16, description="Some of the scopes of the token of the request."),
    ]
    label: Annotated[str, Meta(max_length=LABEL_MAX, description="A name by which its owner recognises it.")] = ""
    days: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=TOKEN_DAYS_MAX,
                description="Days until it expires, by default a year; null to expire together with the token of the "
                "request. It never expires later than that token.",
            ),
        ]
        | None
    ) = TOKEN_DAYS_DEFAULT


class Account(Entity):
    """The account of a token."""

    contributor: Word
    namespace: Annotated[Word, Meta(min_length=1, description="The namespace of the contributor's models.")]
    scopes: Annotated[Scopes, Meta(description="What the token allows.")]
    token: Annotated[AccountToken, Meta(description="The token of the request.")] | None
    """None for a request without a token to a server that only its own machine can reach."""
    quota: OwnQuota


class OwnModel(Entity):
    """A model of an account, in any state."""

    name: ModelText
    title: Text | None
    digest: Digest
    size_bytes: Bytes
    state: Annotated[Word, Meta(description="`visible`, `quarantined`, `yanked` or `removed`.")]
    state_reason: Text | None
    downloads: Count
    grafts: Annotated[Count, Meta(description="Visible chimeras that have tensors of the model.")]
    created_at: Time


class UploadTotals(Entity):
    """The sums over the uploads of one kind and state."""

    kind: Word
    state: Word
    count: Count
    received_bytes: Bytes
    size_bytes: Bytes


class OwnSubmission(Entity):
    """A submission in the list of an account."""

    id: Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
    name: Annotated[Word, Meta(description="`namespace/name`.")]
    state: Word
    model: ModelText | None
    model_state: Word | None
    reason: Text | None
    size_bytes: Bytes
    created_at: Time
    changed_at: Time


class AccountOverview(Account):
    """An account with its newest models, uploads and submissions, and with its tokens."""

    models: Items[OwnModel]
    uploads: Items[UploadTotals]
    submissions: Items[OwnSubmission]
    tokens: Items[AccountToken]
    """Only the token that was sent, if it does not have the scope `tokens`."""


class Contributor(Entity):
    """The public data of a contributor."""

    name: Annotated[Word, Meta(description="Also the name of the namespace.")]
    since: Annotated[Time, Meta(description="When the contributor was added, in UTC.")]
    models: Annotated[Count, Meta(description="Visible models, including chimeras. Each version counts.")]
    chimeras: Annotated[Count, Meta(description="Models that were composed in this registry.")]
    downloads: Count
    grafts: Annotated[Count, Meta(description="Visible chimeras that have tensors of a model, summed over the models.")]


CONTRIBUTOR_COLUMNS = (
    Column("name", "contributor", CellKind.NAME),
    Column("since", rank=3),
    Column("models", kind=CellKind.COUNT),
    Column("chimeras", kind=CellKind.COUNT, rank=3),
    Column("downloads", kind=CellKind.COUNT),
    Column("grafts", "uses as donor", CellKind.COUNT, 3),
)


class ContributorPage(Page[Contributor]):
    """A page of contributors, newest first."""


class ContributorAccount(Entity):
    """A contributor as administrators see it."""

    name: Word
    state: State
    since: Annotated[Time, Meta(description="When the contributor was added, in UTC.")]
    quota: Quota
    has_own_quota: Annotated[
        bool, Meta(description="Whether the quota was set for this contributor and is not the default.")
    ]

    @property
    def is_limited(self) -> bool:
        """Whether its quota counts: the account of the commands on this machine has none."""
        return self.name != LOCAL


class ContributorAccountPage(Page[ContributorAccount]):
    """A page of contributors, newest first."""


class NewContributorRequest(RequestBody):
    """The contributor to add."""

    name: Annotated[str, Meta(max_length=96, pattern=r"\S", description="Also the name of the namespace.")]
    quota: QuotaBytes | None = None
    """None for the default quota."""


class ContributorChangeRequest(RequestBody):
    """The changes: the state, the quota, or both."""

    state: State | msgspec.UnsetType = msgspec.UNSET
    quota: QuotaBytes | msgspec.UnsetType | None = msgspec.UNSET
    """None for the default quota."""
