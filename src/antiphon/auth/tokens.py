"""The verifier of the one service key of ANTIPHON_API_KEY. It keeps a digest of the key, never the key."""

import hmac
import secrets

from antiphon.auth.base import Chosen
from antiphon.auth.secrets import Pepper
from antiphon.domain.identity import Actor, ActorKind
from antiphon.errors import PermissionDenied

SERVICE_ACTOR = Actor(ActorKind.SERVICE_KEY, "service-key")
"""Who bears the service key; no administrative rights."""


class ServiceKey:
    """Knows one key by its keyed digest, whose own key lives as long as the process."""

    def __init__(self, key: str, alone: bool = True) -> None:
        """`alone`: whether there is no other key, and so no project or user to choose: what a request says of
        them is then not read."""
        self._alone = alone
        self._pepper = Pepper(secrets.token_bytes(32))
        self._digest = self._pepper.digest(key)

    async def verify(self, token: str, chosen: Chosen) -> Actor | None:
        """The service actor when the token is the key. Takes the same time for every token of one length.
        Raises PermissionDenied where another project, or a user, was chosen."""
        if not hmac.compare_digest(self._digest, self._pepper.digest(token)):
            return None
        if not self._alone and (
            chosen.project not in (None, SERVICE_ACTOR.project) or chosen.user is not None
        ):
            raise PermissionDenied(
                "the key of the settings speaks for the project default alone, and for no user",
                param="x-user-id" if chosen.user is not None else "x-project-id",
            )
        return SERVICE_ACTOR
