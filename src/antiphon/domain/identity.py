"""Who calls."""

from dataclasses import dataclass
from enum import StrEnum


class ActorKind(StrEnum):
    """How the caller is known."""

    ANONYMOUS = "anonymous"
    """A local caller of a server that has no key configured."""
    SERVICE_KEY = "service_key"
    """The bearer of the key in ANTIPHON_API_KEY; no administrative rights."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The caller of one request, as a verifier established it."""

    kind: ActorKind
    id: str
    """Stable and public: safe to log, never the credential or a part of it."""
    project: str = "default"
    """Whose prompts may share what the engines keep of them."""


LOCAL_ANONYMOUS = Actor(ActorKind.ANONYMOUS, "anonymous")
