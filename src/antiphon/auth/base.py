"""The seam of authentication: a verifier turns a credential into an actor."""

from typing import Protocol

from antiphon.domain.identity import Actor


class TokenVerifier(Protocol):
    """One kind of credential. Verifiers are asked in order; the first that knows the token decides."""

    async def verify(self, token: str) -> Actor | None:
        """The bearer of the token; None when the token is not of this kind.

        Raises AuthenticationFailed when it is of this kind and bad (revoked, expired, forged).
        """
