"""What the admin API takes and gives of requests that are kept word by word, as JSON."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.domain.recording import Record, Recording, Redaction
from antiphon.http.admin.shapes import Page

Days = Annotated[int, Meta(ge=1, le=3650)]


class NewRecording(Struct, frozen=True, forbid_unknown_fields=True):
    """Has a project's requests and answers kept: for so many days, and without what `redact` names, which is
    taken out before they are written down."""

    days: Days
    redact: list[Redaction] = msgspec.field(default_factory=list)

    def wanted(self) -> Recording:
        """As it is kept; each kind once."""
        return Recording(self.days, tuple(sorted(set(self.redact))))


class RequestCard(Struct, frozen=True, kw_only=True):
    """A request that was kept. Times are Unix seconds."""

    object: Literal["request"] = "request"
    id: str
    """Of its entry in the ledger."""
    project: str
    created_at: int
    expires_at: int
    request: str
    answer: str


class RequestPage(Page, frozen=True, kw_only=True):
    """Kept requests, the latest first."""

    data: list[RequestCard]


class Forgotten(Struct, frozen=True, kw_only=True):
    """How many kept requests were removed from the database. What waited in memory is not among them, and is
    never written down."""

    object: Literal["removed"] = "removed"
    removed: int


def request_card(record: Record) -> RequestCard:
    """A kept request as it is shown."""
    return RequestCard(
        id=record.id,
        project=record.project,
        created_at=record.at // 1000,
        expires_at=record.expires,
        request=record.request,
        answer=record.answer,
    )
