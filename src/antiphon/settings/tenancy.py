"""Settings of keys, limits, the ledger and single sign-on."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from antiphon.errors import SettingsError
from antiphon.settings.server import MIB, describe, is_loopback

LIMIT_SECRETS = frozenset({"url", "webhook", "webhook_secret"})
"""Settings of limits that contain secrets. The path of a webhook often is one."""

LONGEST_SYNC_S = 60
SMALLEST_SPOOL = 8 * MIB
"""The least bytes of a spool: 4 MiB for an HTTP process, and 4 MiB for the one that replaces it in a restart.
With less, the new process refuses requests until the old one ends."""

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Algorithms with a public key: a server that checks tokens cannot sign them."""

GROUP = Meta(pattern=r"^.+=[^=:]+:(owner|member|viewer)$")
SCOPE = Meta(pattern=r"^[!#-\[\]-~]+$")
"""A scope as RFC 6749 writes it."""
ADDRESS = Meta(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")


class KeysSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Projects, users and their keys (keys.md). Without `enabled`, the server does not start with the
    others."""

    enabled: Annotated[
        bool,
        describe(
            "ANTIPHON_KEYS",
            "Whether callers need keys that this server made. The first start writes the operator's "
            "key into `admin.key` beside the database.",
        ),
    ] = False
    store: Annotated[
        str | None,
        describe(
            "ANTIPHON_STORE",
            "Database of projects, users and keys: `sqlite:///PATH` or `postgresql://...`. None "
            "means `antiphon.db` in `ANTIPHON_HOME`, or in the platform's data directory.",
        ),
    ] = None
    pepper: Annotated[
        str | None,
        describe(
            "ANTIPHON_PEPPER",
            "The secret for the digests of keys: at least 64 hexadecimal digits, the same on every "
            "server. None means the file `pepper` in `ANTIPHON_HOME`, which the first start makes.",
        ),
    ] = None

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Returns the settings without secrets. `repr` and logs show this form."""
        return [("enabled", self.enabled), ("store", "***"), ("pepper", "***" if self.pepper else None)]


class LimitsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counters of limits and budgets (limits.md). They need keys."""

    url: Annotated[
        str | None,
        describe(
            "ANTIPHON_LIMITS_URL",
            "Redis or Valkey that counts for several servers: "
            "`redis://[USER:PASSWORD@]HOST:PORT/DB`, `rediss://...` or `unix:///PATH`. None "
            "means that this server counts alone.",
        ),
    ] = None
    prefix: Annotated[
        str,
        describe(
            "ANTIPHON_LIMITS_PREFIX",
            "Prefix of the names of keys in Redis. Servers that share limits use the same prefix.",
        ),
        Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9:._-]+$"),
    ] = "antiphon"
    unavailable: Annotated[
        Literal["closed", "open"],
        describe(
            "ANTIPHON_LIMITS_UNAVAILABLE",
            "What happens to limited requests while the counters cannot be read: `closed` "
            "refuses them with 503, `open` lets each HTTP process count alone.",
        ),
    ] = "closed"
    reserve_tokens: Annotated[
        int,
        describe(
            "ANTIPHON_LIMITS_RESERVE_TOKENS",
            "Output tokens that a request without `max_tokens` reserves at its start, and each "
            "time it needs more.",
        ),
        Meta(ge=1, le=1_000_000),
    ] = 512
    warn_at: Annotated[
        tuple[Annotated[float, Meta(gt=0, le=1)], ...],
        describe(
            "ANTIPHON_LIMITS_WARN_AT",
            "Shares of every budget of a day, week or month at which the server warns, once in "
            "each window. None means no warnings.",
            example="0.5,0.8,1",
        ),
    ] = (0.8, 1.0)
    webhook: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s/?#@]+(/[^\s#]*)?$")] | None,
        describe("ANTIPHON_LIMITS_WEBHOOK", "Address to which the server posts these warnings, signed."),
    ] = None
    webhook_secret: Annotated[
        Annotated[str, Meta(min_length=24, max_length=512)] | None,
        describe(
            "ANTIPHON_LIMITS_WEBHOOK_SECRET",
            "The secret of the signature: at least 24 characters, or `whsec_` and base64.",
        ),
    ] = None
    webhook_private: Annotated[
        bool,
        describe(
            "ANTIPHON_LIMITS_WEBHOOK_PRIVATE",
            "Whether the webhook can have a private address, or one without TLS.",
        ),
    ] = False

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Returns the settings without the address, which can contain a password. `repr` and logs show this
        form."""
        values = msgspec.structs.asdict(self)
        return [(name, "***" if name in LIMIT_SECRETS and value else value) for name, value in values.items()]


class LedgerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records of each generation (ledger.md). They need keys."""

    spool: Annotated[
        str | None,
        describe(
            "ANTIPHON_SPOOL",
            "Directory on a local disk for records that are not in the database yet. None means "
            "`spool` in `ANTIPHON_HOME`.",
        ),
    ] = None
    spool_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_SPOOL_BYTES",
            "Most bytes of the spool, at least 4 MiB for each HTTP process and at least 8 MiB in all. When "
            "it is full, requests get a 503.",
        ),
        Meta(ge=SMALLEST_SPOOL),
    ] = 64 * MIB
    sync_interval: Annotated[
        float,
        describe(
            "ANTIPHON_SPOOL_SYNC_INTERVAL",
            "Seconds until a record is surely on the disk. A power "
            "failure can lose the records of this time.",
        ),
        Meta(gt=0, le=LONGEST_SYNC_S),
    ] = 0.2


class OidcSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Users with tokens of an OpenID Connect issuer (single-sign-on.md)."""

    issuer: Annotated[
        Annotated[str, ADDRESS] | None,
        describe(
            "ANTIPHON_OIDC_ISSUER",
            "Address of the issuer, exactly as in its tokens. Needs `ANTIPHON_KEYS`. None accepts no tokens.",
            example="https://login.example.org/realms/main",
        ),
    ] = None
    audience: Annotated[
        str | None,
        describe("ANTIPHON_OIDC_AUDIENCE", "Audience that a token must have. Required with the issuer."),
    ] = None
    keys_url: Annotated[
        Annotated[str, ADDRESS] | None,
        describe(
            "ANTIPHON_OIDC_KEYS_URL",
            "Address of the issuer's public keys. None asks the issuer for it.",
            example="https://login.example.org/realms/main/certs",
        ),
    ] = None
    algorithms: Annotated[
        tuple[Algorithm, ...],
        describe("ANTIPHON_OIDC_ALGORITHMS", "Algorithms with which tokens can be signed."),
    ] = ("RS256", "ES256")
    user_claim: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)],
        describe("ANTIPHON_OIDC_USER_CLAIM", "Claim with the user's email address, as in the store."),
    ] = "email"
    add_users: Annotated[
        bool,
        describe(
            "ANTIPHON_OIDC_ADD_USERS",
            "Whether an unknown user is added to the store at the first request.",
        ),
    ] = False
    groups_claim: Annotated[
        Annotated[str, Meta(min_length=1, max_length=128)],
        describe(
            "ANTIPHON_OIDC_GROUPS_CLAIM",
            "Claim with the names of the user's groups. A dot means a field of an object: "
            "realm_access.roles.",
        ),
    ] = "groups"
    groups: Annotated[
        tuple[Annotated[str, GROUP], ...],
        describe(
            "ANTIPHON_OIDC_GROUPS",
            "Roles of groups, as `GROUP=PROJECT:ROLE`, with the project's id or name. A user in none of a "
            "project's groups is removed from the project.",
            example="ml-team=default:member",
        ),
    ] = ()
    leeway: Annotated[
        Annotated[int, Meta(ge=0, le=300)],
        describe(
            "ANTIPHON_OIDC_LEEWAY", "Seconds by which the issuer's clock can differ from this server's."
        ),
    ] = 30
    console_client_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        describe(
            "ANTIPHON_OIDC_CONSOLE_CLIENT_ID",
            "Id of the console at the issuer, as a public client with PKCE. None means that the console asks "
            "for a key.",
        ),
    ] = None
    console_scopes: Annotated[
        tuple[Annotated[str, SCOPE], ...],
        describe(
            "ANTIPHON_OIDC_CONSOLE_SCOPES",
            "Scopes that the console requests, with `openid` among them.",
            example="openid,email,api://antiphon/use",
        ),
    ] = ("openid", "email", "profile")


def split_group_rule(rule: str) -> tuple[str, str, str]:
    """Splits a rule `GROUP=PROJECT:ROLE` of `OidcSettings.groups` into group, project and role."""
    group, _, project_and_role = rule.rpartition("=")
    project, _, role = project_and_role.partition(":")
    return group, project, role


def require_complete_webhook(limits: LimitsSettings, has_keys: bool) -> None:
    """Raises SettingsError for a webhook that would be insecure or would never be called. `has_keys`: whether
    keys are on."""
    if limits.webhook is None:
        if limits.webhook_secret is not None or limits.webhook_private:
            raise SettingsError(
                "limits.webhook_secret and limits.webhook_private have no effect without limits.webhook; set "
                "limits.webhook (ANTIPHON_LIMITS_WEBHOOK), or leave them out"
            )
        return
    if limits.webhook_secret is None:
        raise SettingsError(
            "limits.webhook_secret (ANTIPHON_LIMITS_WEBHOOK_SECRET) is missing: the "
            "server signs its messages to the webhook with this secret"
        )
    if not has_keys:
        raise SettingsError(
            "limits.webhook would never be called, because budgets need keys: set keys.enabled "
            "(ANTIPHON_KEYS=true)"
        )
    if not limits.warn_at:
        raise SettingsError(
            "limits.warn_at is empty, so limits.webhook would never be called; leave warn_at or webhook out"
        )
    if limits.webhook.startswith("http:") and not limits.webhook_private:
        raise SettingsError(
            "limits.webhook must be an https address; in a private "
            "network, limits.webhook_private = true allows http"
        )


def require_complete_oidc(oidc: OidcSettings, has_keys: bool) -> None:
    """Raises SettingsError if single sign-on cannot work, or if an attacker on the network could forge
    tokens. `has_keys`: whether keys are on."""
    if oidc.issuer is None:
        if oidc != OidcSettings():
            raise SettingsError(
                "the settings of oidc have no effect without oidc.issuer (ANTIPHON_OIDC_ISSUER); set the "
                "issuer, or leave all settings of oidc out"
            )
        return
    if not has_keys:
        raise SettingsError(
            "oidc.issuer needs keys.enabled (ANTIPHON_KEYS=true): users are stored with the keys"
        )
    if not oidc.audience:
        raise SettingsError(
            "oidc.audience is missing: name the audience of this server in the issuer's tokens"
        )
    if not oidc.algorithms:
        raise SettingsError("oidc.algorithms is empty; leave it out for RS256 and ES256")
    if "openid" not in oidc.console_scopes:
        raise SettingsError(
            "oidc.console_scopes lacks openid: without it the issuer gives no proof of who signed in"
        )
    for name, url in (("issuer", oidc.issuer), ("keys_url", oidc.keys_url)):
        if url and url.startswith("http:") and not is_loopback(urlsplit(url).hostname or ""):
            raise SettingsError(
                f"oidc.{name} must be an https address: an attacker on the network could forge tokens"
            )
    if oidc.console_client_id is not None and ":" in (urlsplit(oidc.issuer).hostname or ""):
        raise SettingsError(
            "oidc.issuer has an IPv6 address, which the console's content security policy cannot name: write "
            "a host name, or leave oidc.console_client_id out"
        )
