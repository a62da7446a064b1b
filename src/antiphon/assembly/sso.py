"""Single sign-on, where the settings name an issuer. The library of tokens is imported nowhere else."""

from antiphon.assembly.keys import Managed
from antiphon.auth.base import TokenVerifier
from antiphon.auth.claims import ClaimReader, group_rules
from antiphon.domain.context import Clock
from antiphon.errors import StartupError
from antiphon.settings.tenancy import OidcSettings


def signing_on(oidc: OidcSettings, managed: Managed, clock: Clock) -> TokenVerifier | None:
    """None where no issuer is named. Raises StartupError without the library."""
    if oidc.issuer is None:
        return None
    try:
        from antiphon.auth.signing_keys import SigningKeys, fetched
        from antiphon.auth.single_sign_on import Proof, SingleSignOn, Terms
    except ModuleNotFoundError:
        raise StartupError("single sign-on needs a library: pip install 'antiphon[oidc]'") from None

    terms = Terms(oidc.issuer, oidc.audience or "", oidc.algorithms, oidc.leeway)
    keys = SigningKeys(oidc.issuer, oidc.keys_url, fetched, clock.monotonic)
    reader = ClaimReader(oidc.user_claim, oidc.groups_claim, group_rules(oidc.groups))
    proof = Proof(terms, keys, reader, clock.wall)
    return SingleSignOn(
        proof, reader.ruled, managed.keyring, managed.tenants, managed.changes, oidc.add_users
    )
