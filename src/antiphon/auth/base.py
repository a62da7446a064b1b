"""The seam of authentication: a verifier turns a credential into an actor."""

from typing import Protocol

from antiphon.domain.identity import Actor
from antiphon.domain.values import Value

REFUSAL = "Incorrect API key provided, or none: send a valid key in the header Authorization: Bearer KEY"
"""What is said of every credential that is not accepted, whoever finds it so."""


class Chosen(Value, frozen=True):
    """For whom a request says that it speaks, beside its credential: a choice among what the credential may
    speak for, never more."""

    project: str | None = None
    user: str | None = None


UNCHOSEN = Chosen()


class TokenVerifier(Protocol):
    """One kind of credential. Verifiers are asked in order; the first that knows the token decides."""

    async def verify(self, token: str, chosen: Chosen) -> Actor | None:
        """The bearer of the token; None when the token is not of this kind.

        Raises AuthenticationFailed when it is of this kind and bad (revoked, expired, forged),
        PermissionDenied when it may not speak for what was chosen.
        """
