"""What can be set of callers who sign on elsewhere. `antiphon.settings` has the rest, and reads them."""

from collections.abc import Callable
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from antiphon.errors import SettingsError
from antiphon.settings_meta import describe

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Those with a public key: nobody who can check a token can make one."""

GROUP = Meta(pattern=r"^.+=[^=:]+:(owner|member|viewer)$")
ADDRESS = Meta(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")


class OidcSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Users who come with a token of another server, an OpenID Connect issuer (single-sign-on.md)."""

    issuer: Annotated[
        Annotated[str, ADDRESS] | None,
        describe(
            "ANTIPHON_OIDC_ISSUER",
            "Address of the issuer whose tokens are accepted, exactly as its tokens spell it; needs "
            "`ANTIPHON_KEYS`. None accepts none.",
            example="https://login.example.org/realms/main",
        ),
    ] = None
    audience: Annotated[
        str | None,
        describe(
            "ANTIPHON_OIDC_AUDIENCE", "For whom a token must be made; has to be said beside the issuer."
        ),
    ] = None
    keys_url: Annotated[
        Annotated[str, ADDRESS] | None,
        describe(
            "ANTIPHON_OIDC_KEYS_URL",
            "Where the issuer's public keys are; none asks the issuer.",
            example="https://login.example.org/realms/main/certs",
        ),
    ] = None
    algorithms: Annotated[
        tuple[Algorithm, ...],
        describe("ANTIPHON_OIDC_ALGORITHMS", "How tokens may be signed."),
    ] = ("RS256", "ES256")
    user_claim: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)],
        describe(
            "ANTIPHON_OIDC_USER_CLAIM", "Claim that holds the user's email address, as the store has it."
        ),
    ] = "email"
    add_users: Annotated[
        bool,
        describe(
            "ANTIPHON_OIDC_ADD_USERS",
            "Whether a user who is not in the store is added, at the first request.",
        ),
    ] = False
    groups_claim: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)],
        describe(
            "ANTIPHON_OIDC_GROUPS_CLAIM",
            "Claim that holds the names of the user's groups; dots lead into objects.",
        ),
    ] = "groups"
    groups: Annotated[
        tuple[Annotated[str, GROUP], ...],
        describe(
            "ANTIPHON_OIDC_GROUPS",
            "What groups make of their users, as `GROUP=PROJECT:ROLE`. Who is in no group of a project "
            "that is named here is no member of it.",
            example="ml-team=default:member",
        ),
    ] = ()
    leeway: Annotated[
        Annotated[int, Meta(ge=0, le=300)],
        describe("ANTIPHON_OIDC_LEEWAY", "Seconds by which the issuer's clock may differ from ours."),
    ] = 30


def require_usable(oidc: OidcSettings, keyed: bool, is_loopback: Callable[[str], bool]) -> None:
    """Raises SettingsError for single sign-on that could not work, or that anybody on the way could forge.
    `keyed`: whether keys are on."""
    if oidc.issuer is None:
        if oidc != OidcSettings():
            raise SettingsError(
                "oidc.issuer is missing: the other settings of oidc act on nothing without it"
            )
        return
    if not keyed:
        raise SettingsError(
            "oidc.issuer needs keys.enabled (ANTIPHON_KEYS=true): users are kept with the keys"
        )
    if not oidc.audience:
        raise SettingsError("oidc.audience is missing: say for whom the issuer's tokens must be made")
    if not oidc.algorithms:
        raise SettingsError("oidc.algorithms is empty; leave it out for RS256 and ES256")
    for name, url in (("issuer", oidc.issuer), ("keys_url", oidc.keys_url)):
        if url and url.startswith("http:") and not is_loopback(urlsplit(url).hostname or ""):
            raise SettingsError(
                f"oidc.{name} must be an https address: whoever is on the way could sign tokens"
            )
