"""Requests and answers that are kept word by word, where a project wants that. Values only."""

from dataclasses import dataclass
from enum import StrEnum


class Redaction(StrEnum):
    """What is taken out of texts before they are kept."""

    KEY = "key"
    """Keys and tokens of APIs, ours and others'."""
    EMAIL = "email"
    CARD = "card"
    """Numbers of payment cards."""
    PHONE = "phone"
    ADDRESS = "address"
    """IP addresses."""


@dataclass(frozen=True, slots=True)
class RecordingPolicy:
    """That a project's requests are kept: how long, and without what."""

    days: int
    redact: tuple[Redaction, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request with its answer."""

    id: str
    """Of its entry in the ledger."""
    project: str
    at: int
    """Unix milliseconds, as its entry says."""
    expires: int
    """Unix seconds after which it is gone."""
    request: str
    """The body as it was sent."""
    answer: str
    """JSON: the choices as far as they were made."""
