"""The verifier of the one service key of ANTIPHON_API_KEY. It keeps a digest of the key, never the key."""

import hashlib
import hmac
import secrets

from antiphon.auth.base import Chosen
from antiphon.domain.identity import Actor, ActorKind

SERVICE_ACTOR = Actor(ActorKind.SERVICE_KEY, "service-key")
"""Who bears the service key; no administrative rights."""


class ServiceKey:
    """Knows one key by its keyed digest, whose own key lives as long as the process."""

    def __init__(self, key: str) -> None:
        self._salt = secrets.token_bytes(32)
        self._digest = self._digested(key)

    async def verify(self, token: str, chosen: Chosen) -> Actor | None:
        """The service actor when the token is the key. Takes the same time for every token of one length."""
        return SERVICE_ACTOR if hmac.compare_digest(self._digest, self._digested(token)) else None

    def _digested(self, token: str) -> bytes:
        return hmac.digest(self._salt, token.encode(), hashlib.sha256)
